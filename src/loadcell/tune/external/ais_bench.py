"""`ais_bench`: one CSV of latencies and one JSON of rates below its work folder's `performances/`, as figures.

Where it sends and how much stands in a Python file of its models, which is no option: a copy of its configuration is rendered into the load's folder
and named by `--config-dir`; its own file is never changed. Sources: docs of AISBench, performance_benchmark.md.
"""

import csv
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from loadcell.tune.external.told import Adapter, Asked, BenchFailedError, Given, Told, figure, tree, whole

_NAMES: Final = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2EL"}
_COLUMNS: Final = {"average": "mean", "min": "min", "max": "max", "median": "p50", "p75": "p75", "p90": "p90", "p95": "p95", "p99": "p99"}
_UNITS: Final = {"ms": 1e-3, "us": 1e-6, "s": 1.0}
_SEARCH_S: Final = 120.0
_PATH: Final = re.compile(r"(/[^\s│|]+\.py)")


def _defaults(_: Asked, given: Given) -> dict[str, Any]:
    return {} if given.has("mode", "m") else {"mode": "perf"}


def _offered(_: Given) -> frozenset[str]:
    latencies = {f"{metric}_{statistic}" for metric in _NAMES for statistic in _COLUMNS.values() if statistic != "p95"}
    return frozenset({"throughput", "request_rate", "success_rate"} | latencies)


def _prepare(asked: Asked, given: Given, program: tuple[str, ...], env: dict[str, str]) -> dict[str, Any]:
    """Raises BenchFailedError where its file of the model cannot be found."""
    models = given.text("models")
    if models is None or given.has("config-dir"):
        return {}
    source = _model_file(program, models, env)
    root = next((parent for parent in source.parents if parent.name == "configs"), source.parent.parent)
    copy = asked.folder / "configs"
    shutil.copytree(root, copy)
    (copy / source.relative_to(root)).write_text(rendered(source.read_text(encoding="utf-8"), asked), encoding="utf-8")
    return {"config-dir": str(copy)}


def rendered(text: str, asked: Asked) -> str:
    """The file of a model with this service and this load in it; keys that it does not have are not added."""
    changes: dict[str, str] = {"host_ip": f'"{asked.host}"', "host_port": str(asked.port)}
    if "concurrency" in asked.load:
        changes["batch_size"] = str(round(asked.load["concurrency"]))
    if "request_rate" in asked.load:
        changes["request_rate"] = f"{asked.load['request_rate']:g}"
    for key, value in changes.items():
        text = re.sub(rf"(\b{key}\s*=\s*)(?:\"[^\"\n]*\"|'[^'\n]*'|[0-9.]+)", lambda found, value=value: found[1] + value, text)  # type: ignore[misc]
    return text


def _model_file(program: tuple[str, ...], models: str, env: Mapping[str, str]) -> Path:
    import os

    words = [*program, "--models", models, "--search"]
    try:
        ended = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SEARCH_S, env={**os.environ, **env}, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchFailedError(f"`{' '.join(words)}`: {error}") from None
    lines = [line for line in (ended.stdout + ended.stderr).splitlines() if "--models" in line]
    found = next((Path(path[1]) for line in lines if (path := _PATH.search(line))), None)
    if ended.returncode or found is None or not found.is_file():
        raise BenchFailedError(f"`{' '.join(words)}` ended with {ended.returncode} and names no file of this model")
    return found


def _read(files: Sequence[Path], _: Given) -> Told:
    tables = [path for path in files if path.suffix == ".csv" and "performances" in path.parts]
    if len(tables) != 1:
        raise BenchFailedError(f"{len(tables)} tables below performances/ instead of one")
    table, common = tables[0], tables[0].with_suffix(".json")
    data = tree(common)
    if not isinstance(data, dict):
        raise BenchFailedError(f"{common} holds no figures")
    total = whole(_total(data, "Total Requests"), "Total Requests", common)
    completed = whole(_total(data, "Success Requests"), "Success Requests", common)
    if completed < 1:
        raise BenchFailedError(f"{common}: none of {total} requests was completed")
    figures: dict[str, float | None] = {
        "throughput": figure(_total(data, "Output Token Throughput"), "Output Token Throughput", common),
        "request_rate": figure(_total(data, "Request Throughput"), "Request Throughput", common),
        "success_rate": completed / total if total else None,
    }
    figures |= _latencies(table)
    return Told(figures, dict.fromkeys(figures, completed) | {"success_rate": total}, requests=total, completed=completed, extra=1)


def _latencies(path: Path) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = {str(row.get("Performance Parameters", "")).strip(): row for row in csv.DictReader(file)}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BenchFailedError(f"{path} cannot be read: {error}") from None
    for metric, name in _NAMES.items():
        for column, text in rows.get(name, {}).items():
            statistic = _COLUMNS.get(str(column).strip().lower())
            if statistic is not None:
                found[f"{metric}_{statistic}"] = _seconds(str(text or ""))
    return found


def _seconds(text: str) -> float | None:
    """`2006.0 ms` -> 2.006."""
    number, _, unit = text.strip().partition(" ")
    try:
        value = float(number) * _UNITS.get(unit.strip().lower() or "ms", 1e-3)
    except ValueError:
        return None
    return value if value > 0 else None


def _total(data: Mapping[str, Any], name: str) -> Any:
    """`{"total": "41.622 token/s"}` -> "41.622"."""
    value = data.get(name)
    value = value.get("total") if isinstance(value, Mapping) else value
    return value.split()[0] if isinstance(value, str) and value.split() else value


ADAPTER: Final = Adapter(("ais_bench",), _defaults, ("work-dir", "w"), _read, _offered, _prepare)
