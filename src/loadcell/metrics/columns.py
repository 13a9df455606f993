"""Records -> columns for notebooks: one numpy array per figure, one row per request, in the order of the records.

Here null is NaN, as numpy's users expect; in every file it is null.
"""

import math
from array import array
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from loadcell.metrics.latency import final_attempt, request_latency
from loadcell.metrics.tally import COLUMNS
from loadcell.records import RequestRecord

_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000
_STAMPS: Final = ("sent", "first_token", "last_token", "done")
_NAN: Final = math.nan


def columns(records: Iterable[RequestRecord], open_loop: bool = False) -> dict[str, npt.NDArray[Any]]:
    """Arrays of equal length.

    `index`, `endpoint` (of the last attempt; −1: none), `worker`, `attempts`: int64. `ok`, `warmup`: bool. `outcome`: str.
    `scheduled_s`, `sent_s`, `first_token_s`, `last_token_s`, `done_s`: float64, seconds since the run's origin. `input_tokens`, `output_tokens`,
    `output_asked`: float64. `ttft_ms`, `e2e_ms`, `tpot_ms` and every other latency of docs/metrics.md: float64, NaN unless the request was `ok`.
    """
    ints = {name: array("q") for name in ("index", "endpoint", "worker", "attempts", "ok", "warmup")}
    floats = {name: array("d") for name in ("scheduled_s", "input_tokens", "output_tokens", "output_asked")}
    stamps = {f"{name}_s": array("d") for name in _STAMPS}
    latencies = {f"{name}_ms": array("d") for name in COLUMNS}
    outcomes: list[str] = []
    for record in records:
        attempt = final_attempt(record)
        latency = request_latency(record, open_loop) if record.outcome == "ok" else None
        ints["index"].append(record.index)
        ints["endpoint"].append(-1 if attempt is None else attempt.endpoint)
        ints["worker"].append(record.worker)
        ints["attempts"].append(len(record.attempts))
        ints["ok"].append(record.outcome == "ok")
        ints["warmup"].append(record.phase == "warmup")
        outcomes.append(record.outcome)
        floats["scheduled_s"].append(record.scheduled_ns / _NS_PER_S)
        floats["input_tokens"].append(_or_nan(attempt.input_tokens if attempt else None))
        floats["output_tokens"].append(_or_nan(attempt.output_tokens if attempt else None))
        floats["output_asked"].append(_or_nan(record.output_asked))
        for name in _STAMPS:
            stamps[f"{name}_s"].append(_or_nan(getattr(attempt, f"{name}_ns") if attempt else None, _NS_PER_S))
        for name in COLUMNS:
            latencies[f"{name}_ms"].append(_or_nan(getattr(latency, name) if latency else None, _NS_PER_MS))
    found: dict[str, npt.NDArray[Any]] = {name: np.array(values, dtype=np.int64) for name, values in ints.items()}
    found["ok"], found["warmup"] = found["ok"].astype(bool), found["warmup"].astype(bool)
    found["outcome"] = np.array(outcomes, dtype=np.str_)
    return found | {name: np.array(values, dtype=np.float64) for name, values in (floats | stamps | latencies).items()}


def _or_nan(value: float | None, unit: int = 1) -> float:
    return _NAN if value is None else value / unit
