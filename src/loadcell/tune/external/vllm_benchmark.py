"""`vllm bench serve`: the load and the service as its options, its result JSON as figures. Source: vllm/benchmarks/serve.py."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from loadcell.tune.external.told import LATENCIES, Adapter, Asked, BenchFailedError, Given, Told, figure, tree, wanted_percentiles, whole

_NAMES: Final = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
_STATISTICS: Final = {"mean": "mean", "p50": "median"}


def _defaults(asked: Asked, given: Given) -> dict[str, Any]:
    added: dict[str, Any] = {}
    if not given.has("base-url", "host", "port"):
        added["base-url"] = asked.base_url
    if not given.has("model"):
        added["model"] = asked.path or asked.model
    if not given.has("served-model-name") and (given.text("model") or asked.path or asked.model) != asked.model:
        added["served-model-name"] = asked.model
    if not given.has("backend", "endpoint-type") and asked.api == "chat":
        added |= {"backend": "openai-chat"} | ({} if given.has("endpoint") else {"endpoint": "/v1/chat/completions"})
    if "concurrency" in asked.load and not given.has("max-concurrency"):
        added["max-concurrency"] = round(asked.load["concurrency"])
    if "request_rate" in asked.load and not given.has("request-rate"):
        added["request-rate"] = asked.load["request_rate"]
    if not given.has("seed"):
        added["seed"] = asked.seed
    if not given.has("percentile-metrics"):
        added["percentile-metrics"] = ",".join(_NAMES.values())
    if not given.has("metric-percentiles"):
        added["metric-percentiles"] = wanted_percentiles(asked.slos)
    if not given.has("save-result"):
        added["save-result"] = True
    return added


def _offered(given: Given) -> frozenset[str]:
    metrics = (given.text("percentile-metrics") or ",".join(_NAMES.values())).split(",")
    percents = given.text("metric-percentiles")
    found = {"throughput", "request_rate", "success_rate"}
    for metric, name in _NAMES.items():
        if name in metrics:
            found |= {f"{metric}_mean", f"{metric}_p50"}
            found |= {f"{metric}_p{float(one):g}" for one in percents.split(",") if one.strip()} if percents else {_ANY.format(metric)}
    return frozenset(found)


_ANY: Final = "{}_p*"
"""Every percentile: it is asked for what the limits name."""


def _read(files: Sequence[Path], given: Given) -> Told:
    found = [
        (path, content) for path in files if path.suffix == ".json" and isinstance(content := tree(path), dict) and "completed" in content
    ]
    if len(found) != 1:
        raise BenchFailedError(
            f"{len(found)} result files instead of one{': ' if found else ''}{', '.join(str(path) for path, _ in found)}"
        )
    path, data = found[0]
    completed = whole(data.get("completed"), "completed", path)
    asked = whole(data.get("num_prompts", completed + (data.get("failed") or 0)), "num_prompts", path)
    if completed < 1:
        raise BenchFailedError(f"{path}: none of {asked} requests was completed")
    figures: dict[str, float | None] = {
        "throughput": figure(data.get("output_throughput"), "output_throughput", path),
        "request_rate": figure(data.get("request_throughput"), "request_throughput", path),
        "success_rate": completed / asked if asked else None,
    }
    for metric in LATENCIES:
        name = _NAMES[metric]
        for key, value in data.items():
            statistic, _, rest = key.partition("_")
            if rest == f"{name}_ms" and (statistic in ("mean", "median") or statistic.startswith("p")) and value is not None:
                called = {"median": "p50"}.get(statistic, statistic)
                # It prints 0 where it has measured nothing.
                figures[f"{metric}_{called}"] = value / 1000 if value > 0 else None
    n = dict.fromkeys(figures, completed) | {"success_rate": asked}
    warmups = given.text("num-warmups")
    return Told(figures, n, requests=asked, completed=completed, extra=1 + (int(warmups) if warmups and warmups.isdigit() else 0))


ADAPTER: Final = Adapter(("vllm", "bench", "serve"), _defaults, ("result-dir",), _read, _offered)
