"""`evalscope perf`: the load and the service as its options, `benchmark_summary.json` and `benchmark_percentile.json` as figures.

Its keys have changed over the versions: each is looked for under all names that it has had. Source: evalscope/perf/utils/perf_constants.py and its
history.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from loadcell.tune.external.told import Adapter, Asked, BenchFailedError, Given, Told, figure, tree, whole

SUMMARY: Final = "benchmark_summary.json"
PERCENTILES: Final = "benchmark_percentile.json"

_THROUGHPUT: Final = ("Output Throughput (tok/s)", "Output token throughput (tok/s)")
_RATE: Final = ("Req Throughput (req/s)", "Request throughput (req/s)")
_TOTAL: Final = ("Total Requests", "Total requests")
_SUCCEEDED: Final = ("Success Requests", "Succeed requests")
_MEANS: Final = {
    "ttft": ("TTFT (ms)", "Avg TTFT (ms)", "Average time to first token (s)"),
    "tpot": ("TPOT (ms)", "Avg TPOT (ms)", "Average time per output token (s)"),
    "itl": ("ITL (ms)", "Avg ITL (ms)", "Average inter-token latency (s)"),
    "e2e": ("Avg Latency (s)", "Average latency (s)"),
}
_COLUMNS: Final = {
    "ttft": ("TTFT (ms)", "TTFT (s)"),
    "tpot": ("TPOT (ms)", "TPOT (s)"),
    "itl": ("ITL (ms)", "ITL (s)"),
    "e2e": ("Latency (s)", "Latency (ms)"),
}
_PERCENTS: Final = (10, 25, 50, 75, 90, 95, 99)  # those of every version


def _defaults(asked: Asked, given: Given) -> dict[str, Any]:
    added: dict[str, Any] = {}
    if not given.has("url"):
        added["url"] = asked.base_url.rstrip("/") + ("/v1/chat/completions" if asked.api == "chat" else "/v1/completions")
    if not given.has("model"):
        added["model"] = asked.model
    if not given.has("api"):
        added["api"] = "openai"
    if "concurrency" in asked.load and not given.has("parallel"):
        added["parallel"] = round(asked.load["concurrency"])
    if "request_rate" in asked.load and not given.has("rate"):
        added["rate"] = asked.load["request_rate"]
    if not given.has("seed"):
        added["seed"] = asked.seed
    return added


def _offered(_: Given) -> frozenset[str]:
    latencies = {f"{metric}_{statistic}" for metric in _MEANS for statistic in ("mean", *(f"p{percent}" for percent in _PERCENTS))}
    return frozenset({"throughput", "request_rate", "success_rate"} | latencies)


def _read(files: Sequence[Path], given: Given) -> Told:
    found = [path for path in files if path.name == SUMMARY]
    if len(found) != 1:
        told = "; one --parallel and one --number per trial, please" if found else ""
        raise BenchFailedError(f"{len(found)} files {SUMMARY} instead of one{told}")
    path = found[0]
    data = tree(path)
    if not isinstance(data, dict):
        raise BenchFailedError(f"{path} holds no figures")
    total = whole(_first(data, _TOTAL), _TOTAL[0], path)
    completed = whole(_first(data, _SUCCEEDED), _SUCCEEDED[0], path)
    if completed < 1:
        raise BenchFailedError(f"{path}: none of {total} requests was completed")
    figures: dict[str, float | None] = {
        "throughput": figure(_first(data, _THROUGHPUT), _THROUGHPUT[0], path),
        "request_rate": figure(_first(data, _RATE), _RATE[0], path),
        "success_rate": completed / total if total else None,
    }
    figures |= {f"{metric}_mean": _seconds(data, names) for metric, names in _MEANS.items()}
    figures |= _percentiles(path.with_name(PERCENTILES))
    n = dict.fromkeys(figures, completed) | {"success_rate": total}
    return Told(figures, n, requests=total, completed=completed, extra=_besides(given))


def _percentiles(path: Path) -> dict[str, float | None]:
    """A list of rows, or a table of columns; none where the file is not there."""
    if not path.exists():
        return {}
    data = tree(path)
    if isinstance(data, dict):
        columns = {name: values for name, values in data.items() if isinstance(values, list)}
        data = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=False)]
    found: dict[str, float | None] = {}
    for row in data if isinstance(data, list) else ():
        percent = str(row.get("Percentiles", "")).rstrip("%") if isinstance(row, dict) else ""
        if percent.replace(".", "", 1).isdigit():
            found |= {f"{metric}_p{float(percent):g}": _seconds(row, names) for metric, names in _COLUMNS.items()}
    return found


def _first(data: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((data[name] for name in names if data.get(name) is not None), None)


def _seconds(data: Mapping[str, Any], names: Sequence[str]) -> float | None:
    """By the unit in the key; 0 and less were not measured (it prints -1 or 0 where an answer was not streamed)."""
    for name in names:
        value = data.get(name)
        if isinstance(value, int | float) and value > 0:
            return value / 1000 if name.endswith("(ms)") else float(value)
    return None


def _besides(given: Given) -> int:
    """One question to see whether the service is there, and warm-ups: so many, or a share of the requests."""
    asked = 0 if given.option("no-test-connection") else 1
    try:
        warmups, number = (float(given.text(*names) or 0) for names in (("warmup-num", "warmup"), ("number", "n")))
    except ValueError:
        return asked
    return asked + (int(warmups) if warmups >= 1 or warmups <= 0 else max(1, int(warmups * number)))


ADAPTER: Final = Adapter(("evalscope", "perf"), _defaults, ("outputs-dir",), _read, _offered)
