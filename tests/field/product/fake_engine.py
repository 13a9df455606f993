"""An engine for studies, as a program: answers chat requests after a time, as many at once as `--batch` says; fails as it is told.

Every start is a line in `--starts`. `--oom-above N`: a larger batch does not start. `--dies-at N`: so many requests at once end it. `--hangs V`: with this
batch no token comes. `--errors N`: every N-th request is an error.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
parser.add_argument("--starts")
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--memory", type=float, default=0.9)
parser.add_argument("--ttft", type=float, default=0.3)
parser.add_argument("--oom-above", type=int, default=1 << 30)
parser.add_argument("--no-model", action="store_true")
parser.add_argument("--hangs", type=int, default=-1)
parser.add_argument("--dies-at", type=int, default=1 << 30)
parser.add_argument("--dies-from-memory", type=float, default=0.0)
parser.add_argument("--errors", type=int, default=1 << 30)
args = parser.parse_args()
with Path(args.starts).open("a", encoding="utf-8") as starts:
    starts.write(json.dumps({"batch": args.batch, "memory": args.memory, "at": time.time()}) + "\n")
if args.no_model:
    sys.exit("OSError: /nope/model is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'")
if args.batch > args.oom_above:
    sys.exit(f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {args.batch}.00 GiB")
room, lock, counts = threading.Semaphore(args.batch), threading.Lock(), {"asked": 0, "at_once": 0}


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        body = json.dumps({"data": [{"id": "m"}]}).encode() if self.path == "/v1/models" else b"{}"
        self.send_response(200 if self.path in ("/health", "/v1/models") else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            counts["asked"] += 1
            counts["at_once"] += 1
            number, at_once = counts["asked"], counts["at_once"]
        if at_once >= args.dies_at and args.memory >= args.dies_from_memory:
            print("torch.OutOfMemoryError: CUDA out of memory under load", file=sys.stderr, flush=True)
            os._exit(1)
        try:
            self.answer(number, int(asked.get("max_tokens") or asked.get("max_completion_tokens") or 4))
        finally:
            with lock:
                counts["at_once"] -= 1

    def answer(self, number: int, tokens: int) -> None:
        if number % args.errors == 0:
            self.send_response(500)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")
            return
        with room:
            time.sleep(args.ttft)
            if args.batch == args.hangs and number > 1:
                time.sleep(3600)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for at in range(tokens):
                self.event({"choices": [{"index": 0, "delta": {"content": f" {at}"}, "finish_reason": None}]})
            self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
            self.event({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": tokens, "total_tokens": 4 + tokens}})
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def event(self, body: dict) -> None:
        self.wfile.write(b"data: " + json.dumps({"id": "x", "object": "chat.completion.chunk", "model": "m", **body}).encode() + b"\n\n")


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512


signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
Server(("127.0.0.1", args.port), Answers).serve_forever()
