#!/usr/bin/env python3
"""Measures the client: `cpu` per token, `truth` of its stamps, `rates` it sustains. docs/performance.md explains the figures.

    make -C benchmarks
    python benchmarks/run.py cpu
    python benchmarks/run.py truth --busy
    python benchmarks/run.py rates --only lag,start

The server runs on core 0, the client on core 1, runs alternate, the printed figures are medians, and benchmarks/results/ keeps
every sample. Nothing else should run on the machine.
"""

import argparse
import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import lab
import truth

TTFT_MS, ITL_MS, TOKENS = 50, 20, 100


class Loadcell:
    """The product's command line, writing one run folder at a time under `work`."""

    def __init__(self, command: str, server: lab.Server, work: Path) -> None:
        self.command = shlex.split(command)
        self.base_url = server.base_url
        self.folder = work / "run"

    def bench(self, prompts: int, tokens: int, *load: str, sample_rss: bool = False) -> lab.Cost:
        shutil.rmtree(self.folder, ignore_errors=True)
        fixed = f"--base-url {self.base_url} --model mock-model --dataset-name random --input-len 20 --tokenizer words --workers 1"
        quiet = "--disable-tqdm --health-check-interval 0"
        command = [*self.command, "bench", *fixed.split(), *quiet.split(), "--output-dir", str(self.folder)]
        command += ["--num-prompts", str(prompts), "--output-len", str(tokens), *load]
        # 1 is an invalid verdict: a figure of ours may well be one that the tool refuses to vouch for
        return lab.run_client(command, sample_rss=sample_rss, accept=(0, 1))

    @property
    def records(self) -> Path:
        return self.folder / "records.jsonl"

    def report(self) -> lab.Cost:
        return lab.run_client([*self.command, "report", str(self.folder)], accept=(0, 1))


def c_client(server: lab.Server, streams: int, requests: int, tokens: int, ramp_ms: float = 0, *more: str) -> lab.Cost:
    options = {"--port": server.port, "--streams": streams, "--requests": requests, "--tokens": tokens, "--ramp-ms": ramp_ms}
    return lab.run_client([str(lab.HERE / "bin" / "c_client"), *(str(word) for pair in options.items() for word in pair), *more])


def per_token_us(run: Callable[[int, int, int], lab.Cost], streams: int, requests: int, tokens: int) -> dict[str, float]:
    """CPU of a run less that of one tiny request, by token."""
    start = run(1, 1, 1)
    full = run(streams, requests, tokens)
    return {
        "us_per_token": (full.cpu_s - start.cpu_s) / (requests * tokens) * 1e6,
        "start_cpu_s": start.cpu_s,
        "start_wall_s": start.wall_s,
    }


def cpu(args: argparse.Namespace, server: lab.Server, work: Path) -> tuple[str, Any]:
    loadcell = Loadcell(args.loadcell, server, work)
    rows, results = [], {}
    for streams in args.streams:
        requests = streams * args.answers

        def c(s: int, n: int, t: int) -> lab.Cost:
            return c_client(server, s, n, t)

        def ours(s: int, n: int, t: int) -> lab.Cost:
            return loadcell.bench(n, t, "--concurrency", str(s))

        def peer(s: int, n: int, t: int) -> lab.Cost:
            return lab.run_client(shlex.split(args.peer.format(base_url=server.base_url, port=server.port, streams=s, prompts=n, tokens=t)))

        runs = {"C client": c, "loadcell": ours} | ({"peer": peer} if args.peer else {})

        def take(run: Callable[[int, int, int], lab.Cost], s: int = streams, n: int = requests) -> dict[str, float]:
            server.prepare(ttft=TTFT_MS, itl=ITL_MS)
            return per_token_us(run, s, n, TOKENS)

        print(f"{streams} streams, {requests} answers of {TOKENS} tokens", file=sys.stderr)
        samples = lab.alternate(args.n, {name: partial(take, run) for name, run in runs.items()})
        middle = {name: lab.medians(of)["us_per_token"] for name, of in samples.items()}
        for name, value in middle.items():
            rows.append(
                [
                    name,
                    str(streams),
                    f"{value:.1f}",
                    f"{value / middle['C client']:.2f}",
                    f"{lab.medians(samples[name])['start_wall_s']:.2f}",
                ]
            )
        results[streams] = samples
    return lab.markdown(["client", "streams", "µs CPU/token", "× C client", "one tiny request, s"], rows), results


def truth_of(args: argparse.Namespace, server: lab.Server, work: Path) -> tuple[str, Any]:
    loadcell = Loadcell(args.loadcell, server, work)
    columns = ["itl_p50", "itl_p99", "ttft_median", "ttft_p99", "lag_p50", "lag_p99", "mark_p50", "mark_p99", "unmatched"]
    rows, results = [], {}

    def ours(streams: int) -> dict[str, float]:
        server.prepare(ttft=TTFT_MS, itl=ITL_MS, log=1, tag=1)
        loadcell.bench(streams * args.answers, TOKENS, "--concurrency", str(streams))
        return truth.errors(truth.read_records(loadcell.records), truth.read_server(server.dump()))

    def c(streams: int) -> dict[str, float]:
        server.prepare(ttft=TTFT_MS, itl=ITL_MS, log=1)
        log = work / "c_client.bin"
        c_client(server, streams, streams * args.answers, TOKENS, 0, "--out", str(log))
        return truth.errors(truth.read_c_client(log), truth.read_server(server.dump()))

    for busy in (0, 2) if args.busy else (0,):
        for streams in args.streams:
            print(f"{streams} streams, {busy} busy loops", file=sys.stderr)
            with lab.busy_loops(busy):
                samples = lab.alternate(args.n, {"C client": partial(c, streams), "loadcell": partial(ours, streams)})
            for name, of in samples.items():
                middle = lab.medians(of)
                # The C client's schedule ends with its ramp, so it has no dispatch lag to tell
                shown = [
                    f"{middle[key]:.1f}" if key in middle and not (name == "C client" and key.startswith("lag")) else "–" for key in columns
                ]
                rows.append([name, str(streams), str(busy), *shown])
            results[f"{streams} streams, {busy} busy loops"] = samples
    return lab.markdown(
        ["client", "streams", "busy loops", *(f"{key} (µs)" if key != "unmatched" else key for key in columns)], rows
    ), results


def sustained(loadcell: Loadcell, server: lab.Server, itl_ms: float, streams: int) -> dict[str, float]:
    """One token a read at streams / itl_ms: tokens/s seen in the middle half of the run, and the share of reads that held several."""
    tokens = max(100, int(8_000 / itl_ms))
    server.prepare(ttft=TTFT_MS, itl=itl_ms)
    cost = loadcell.bench(streams, tokens, "--concurrency", str(streams))
    arrivals, coalesced = [], 0
    with loadcell.records.open() as lines:
        next(lines)
        for line in lines:
            last = json.loads(line)["attempts"][-1]
            arrivals.append(truth.arrivals_us(last["chunk_us"]))
            coalesced += last.get("coalesced", 0)
    at_us = np.concatenate(arrivals)
    low, high = np.percentile(at_us, [25, 75])
    seen = np.count_nonzero((at_us >= low) & (at_us < high))
    facts = server.get("/stats")
    return {
        "offered_tokens_s": streams / itl_ms * 1e3,
        "tokens_s": seen / (high - low) * 1e6,
        "coalesced_share": coalesced / len(at_us),
        "client_cpu_s": cost.cpu_s,
        "server_late_mean_us": facts["late_mean_us"],
        "server_late_max_us": facts["late_max_us"],
    }


def one_token(loadcell: Loadcell, server: lab.Server, requests: int, concurrency: int) -> dict[str, float]:
    server.prepare(ttft=0, chunked=0)
    loadcell.bench(requests, 1, "--concurrency", str(concurrency))
    facts = server.get("/stats")
    return {"requests_s": (facts["requests"] - 1) / (facts["last_request_ns"] - facts["first_request_ns"]) * 1e9}


def dispatch_lag(loadcell: Loadcell, server: lab.Server, rate: int, seconds: int) -> dict[str, float]:
    """Open loop at `rate` with 20-token answers: sent − scheduled, in ms."""
    server.prepare(ttft=10, itl=5)
    loadcell.bench(rate * seconds, 20, "--request-rate", str(rate), "--arrival", "constant")
    with loadcell.records.open() as lines:
        next(lines)
        records = [json.loads(line) for line in lines]
    lags = [record["attempts"][-1]["sent_ns"] - record["scheduled_ns"] for record in records if record["attempts"]]
    return {"lag_p50_ms": float(np.percentile(lags, 50)) / 1e6, "lag_p99_ms": float(np.percentile(lags, 99)) / 1e6}


def first_request(loadcell: Loadcell, server: lab.Server) -> dict[str, float]:
    """From the making of the process to the server's reading of its first request."""
    server.prepare(ttft=1, itl=1)
    cost = loadcell.bench(1, 1, "--concurrency", "1")
    return {"start_s": (server.get("/stats")["first_request_ns"] - cost.started_ns) / 1e9}


def memory(loadcell: Loadcell, server: lab.Server, tokens: int) -> dict[str, float]:
    """Highest memory of the process tree over that of a run of one token; answers of 1000 tokens as fast as they are taken."""
    server.prepare(burst=1, per_send=16)
    small = loadcell.bench(1, 1, "--concurrency", "1", sample_rss=True).peak_rss_mb
    large = loadcell.bench(tokens // 1000, 1000, "--concurrency", "256", sample_rss=True).peak_rss_mb
    if small is None or large is None:
        raise lab.LabError("the memory of the client could not be sampled")
    return {"growth_mb": large - small, "peak_mb": large}


def post_processing(loadcell: Loadcell, server: lab.Server, tokens: int) -> dict[str, float]:
    server.prepare(burst=1, per_send=16)
    loadcell.bench(tokens // 1000, 1000, "--concurrency", "256")
    cost = loadcell.report()
    return {"report_s": cost.wall_s, "report_cpu_s": cost.cpu_s, "bytes_per_token": loadcell.records.stat().st_size / tokens}


def rates(args: argparse.Namespace, server: lab.Server, work: Path) -> tuple[str, Any]:
    loadcell = Loadcell(args.loadcell, server, work)
    takes: dict[str, list[tuple[str, Callable[[], dict[str, float]]]]] = {
        "sustained": [(f"sustained, 2048 streams at {itl:g} ms", partial(sustained, loadcell, server, itl, 2048)) for itl in args.itl],
        "one-token": [("one-token requests, 64 at once", partial(one_token, loadcell, server, args.requests, 64))],
        "lag": [("dispatch at 1,000 requests/s", partial(dispatch_lag, loadcell, server, 1000, 5))],
        "start": [("start to first request", partial(first_request, loadcell, server))],
        "memory": [(f"memory of {n:g} M tokens", partial(memory, loadcell, server, int(n * 1e6))) for n in args.million],
        "report": [("report of 1 M tokens", partial(post_processing, loadcell, server, 1_000_000))],
    }
    chosen = {name: take for group in args.only for name, take in takes[group]}
    results = lab.alternate(args.n, chosen)
    rows = [
        [name, f"{key} = {value:,.4g}" if value < 1e4 else f"{key} = {value:,.0f}"]
        for name, of in results.items()
        for key, value in lab.medians(of).items()
    ]
    return lab.markdown(["measurement", "median"], rows), results


def number_list(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [kind(part) for part in text.split(",")]


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Performance of the loadcell client against a C server on this machine.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("-n", type=int, default=5, help="runs of each kind; the figures are their medians (default 5)")
    common.add_argument("--loadcell", default=f"{sys.executable} -m loadcell", help="the command under test")

    streaming = argparse.ArgumentParser(add_help=False)
    streaming.add_argument("--streams", type=number_list(int), default=[256, 1024], help="default 256,1024")
    streaming.add_argument("--answers", type=int, default=4, help="answers per stream (default 4)")

    verb = verbs.add_parser("cpu", parents=[common, streaming], help="µs of CPU per streamed token, side by side with the C client")
    verb.add_argument("--peer", help="a command to run as well, with {base_url} {port} {streams} {prompts} {tokens} filled in")
    verb = verbs.add_parser("truth", parents=[common, streaming], help="errors of gaps and TTFT against the server's own log")
    verb.add_argument("--busy", action="store_true", help="once more with two busy loops on the client's core")
    verb = verbs.add_parser("rates", parents=[common], help="what one worker sustains, dispatch lag, start, memory, post-processing")
    groups = ["sustained", "one-token", "lag", "start", "memory", "report"]
    verb.add_argument("--only", type=lambda text: text.split(","), default=groups, help=f"of {','.join(groups)}")
    verb.add_argument(
        "--itl", type=number_list(float), default=[25.6, 20.48], help="ms a token for `sustained` (default: 80,000 and 100,000 tokens/s)"
    )
    verb.add_argument("--requests", type=int, default=100_000, help="for `one-token`")
    verb.add_argument("--million", type=number_list(float), default=[1.0, 10.0], help="tokens for `memory`")
    args = parser.parse_args()
    if args.verb == "rates" and not set(args.only) <= set(groups):
        parser.error(f"--only takes {', '.join(groups)}")
    return args


def main() -> int:
    args = read_arguments()
    verbs = {"cpu": cpu, "truth": truth_of, "rates": rates}
    with tempfile.TemporaryDirectory(prefix="loadcell-bench-") as folder, lab.server(Path(folder)) as server:
        try:
            table, samples = verbs[args.verb](args, server, Path(folder))
        except lab.LabError as error:
            print(error, file=sys.stderr)
            return 1
    print(table)
    print(f"\nEvery sample: {lab.save(args.verb, vars(args), samples)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
