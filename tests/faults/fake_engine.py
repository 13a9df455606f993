"""A server of chat completions that misbehaves as its words say, made of the standard library alone: `python fake_engine.py --port P ...`."""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="m")
    parser.add_argument("--log", help="append a line of JSON per request, with its time")
    parser.add_argument("--argv", help="write the words here, as JSON")
    parser.add_argument("--children", type=int, default=0, help="so many, in the same session")
    parser.add_argument("--strays", type=int, default=0, help="so many, each in a session of its own, whose parent has left")
    parser.add_argument("--deaf", action="store_true", help="SIGTERM means nothing, to children too")
    parser.add_argument("--progress", type=float, default=0.0, help="say so each 0.2 s for so long before listening")
    parser.add_argument("--loading", type=float, default=0.0, help="answer 503 for so long")
    parser.add_argument("--slow-health", type=float, default=0.0)
    parser.add_argument("--say", default="", help="print it to stderr")
    parser.add_argument("--exit", type=int, help="then exit with this code")
    parser.add_argument("--dead-child", action="store_true", help="a child has exited with 1, the parent sleeps")
    parser.add_argument("--flood", type=int, default=0, help="write so many bytes to stdout and as many to stderr before listening")
    parser.add_argument("--per-request", type=int, default=0, help="bytes to the log at each request")
    parser.add_argument("--rate", type=float, default=0.0, help="MiB a second to the log, all the time")
    parser.add_argument("--dies-at", type=int, default=0, help="kill itself at this request")
    parser.add_argument("--dies-once", help="only while this file exists, which it removes")
    parser.add_argument("--tokens-every", type=float, default=0.0)
    return parser.parse_known_args()[0]


ASKED = words()
BEGAN = time.monotonic()
COUNT = [0]
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _note(self) -> None:
        if ASKED.log:
            line = json.dumps({"method": self.command, "path": self.path, "time": time.time(), "port": ASKED.port}) + "\n"
            with Path(ASKED.log).open("ab", buffering=0) as out:
                out.write(line.encode())

    def do_GET(self) -> None:
        self._note()
        if time.monotonic() - BEGAN < ASKED.loading:
            return self._answer(503, b"{}")
        if self.path == "/health":
            time.sleep(ASKED.slow_health)
            return self._answer(200, b"")
        if self.path == "/v1/models":
            return self._answer(200, json.dumps({"object": "list", "data": [{"id": ASKED.model, "object": "model"}]}).encode())
        return self._answer(404, b"{}")

    def do_POST(self) -> None:
        self._note()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if time.monotonic() - BEGAN < ASKED.loading:
            self._answer(503, b"{}")
            return
        with LOCK:
            COUNT[0] += 1
            at = COUNT[0]
        if ASKED.per_request:
            sys.stdout.write("r" * ASKED.per_request + "\n")
            sys.stdout.flush()
        if ASKED.dies_at and at >= ASKED.dies_at and (not ASKED.dies_once or Path(ASKED.dies_once).exists()):
            if ASKED.dies_once:
                Path(ASKED.dies_once).unlink()
            print("RuntimeError: CUDA error: an illegal memory access was encountered", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        asked = json.loads(body)
        tokens = int(asked.get("max_completion_tokens") or asked.get("max_tokens") or 4)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for index in range(tokens):
            if ASKED.tokens_every:
                time.sleep(ASKED.tokens_every)
            last = "stop" if index == tokens - 1 else None
            self._event({"choices": [{"index": 0, "delta": {"content": "a "}, "finish_reason": last}]})
        self._event({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": tokens, "total_tokens": 8 + tokens}})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _event(self, tree: dict[str, Any]) -> None:
        self.wfile.write(
            b"data: " + json.dumps({"id": "x", "object": "chat.completion.chunk", "model": ASKED.model, **tree}).encode() + b"\n\n"
        )


SLEEPER = "import time; time.sleep(600)"
STRAY = f"import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEPER!r}], env={{}}, start_new_session=True)"


def main() -> None:
    if ASKED.argv:
        Path(ASKED.argv).write_text(json.dumps(sys.argv[1:]), encoding="utf-8")
    if ASKED.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(ASKED.children):
        subprocess.Popen([sys.executable, "-c", SLEEPER])
    for _ in range(ASKED.strays):
        subprocess.run([sys.executable, "-c", STRAY], check=True)
    if ASKED.flood:
        for stream in (sys.stdout, sys.stderr):
            for _ in range(ASKED.flood // 64):
                stream.write("x" * 63 + "\n")
            stream.flush()
    if ASKED.say:
        print(ASKED.say, file=sys.stderr, flush=True)
    if ASKED.exit is not None:
        sys.exit(ASKED.exit)
    if ASKED.dead_child:
        subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(1)"])
        time.sleep(600)
    while time.monotonic() - BEGAN < ASKED.progress:
        print(f"loading weights: {100 * (time.monotonic() - BEGAN) / ASKED.progress:.0f}%", flush=True)
        time.sleep(0.2)
    if ASKED.rate:
        threading.Thread(target=flood, daemon=True).start()
    ThreadingHTTPServer.request_queue_size = 128
    ThreadingHTTPServer(("127.0.0.1", ASKED.port), Handler).serve_forever()


def flood() -> None:
    number = 0
    while True:
        lines = "".join(f"{number + one:012d} {'y' * 115}\n" for one in range(1024))
        number += 1024
        sys.stdout.write(lines)
        sys.stdout.flush()
        time.sleep(0.125 / ASKED.rate)


if __name__ == "__main__":
    main()
