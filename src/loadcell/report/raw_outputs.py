"""The multi-service bench client's JSONL, as it lies in `raw_outputs/` -> the results of an experiment.

One line per request, a summary as the last line. What a line tells is taken as it stands (its TPOT counts one token in the first chunk); every
statistic is made anew from the requests, the summary is asked only for what no request tells: duration, retries, health. Where it is missing
the file was cut off, and rates are unknown. Nothing is known here of stamps, purity or the client's own lag. Reads files, changes none.
"""

import json
import math
import re
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from loadcell.errors import UserError
from loadcell.metrics.slo import Slo, percentile_of
from loadcell.metrics.stats import NS_PER_MS, Distribution, needs_more, stats_of
from loadcell.metrics.summary import SloResult
from loadcell.metrics.verdict import Evidence, judge
from loadcell.report.experiment import CellFigures, CellResult, EndpointPart, ExperimentResults, FleetFacts, PartFigures, ScenarioResult
from loadcell.report.experiment_cells import all_met, worst
from loadcell.report.figures import one_line

FOLDER: Final = "raw_outputs"
_ENGINES: Final = ("vllm", "sglang", "mindie", "simulated", "command", "openai")
_TIMES: Final = {"ttft": "first_token_time_ms", "e2e": "e2e_latency_ms"}
_METRICS: Final = ("ttft", "tpot", "icl", "e2e", "max_stall")
_UNTOLD: Final = "these files tell nothing of stamps, foreign requests or the client's own lag: those rules could not be judged"
_DIGITS: Final = re.compile(r"(\d+)")


class _Part:
    """Requests of one endpoint, or of all."""

    def __init__(self) -> None:
        self.requests = self.ok = self.retried = 0
        self.input_tokens: int | None = 0
        self.output_tokens: int | None = 0
        self.times = {name: array("d") for name in _METRICS}

    def add(self, line: dict[str, Any]) -> None:
        self.requests += 1
        if not line.get("success"):
            return
        self.ok += 1
        told_in, told_out = _number(line.get("input_tokens")), _number(line.get("output_tokens"))
        self.input_tokens = None if self.input_tokens is None or told_in is None else self.input_tokens + round(told_in)
        self.output_tokens = None if self.output_tokens is None or told_out is None else self.output_tokens + round(told_out)
        told = {name: _number(line.get(key)) for name, key in _TIMES.items()} | {"tpot": _tpot(line, told_out)}
        gaps = [gap for item in line.get("inter_token_latencies") or () if (gap := _number(item)) is not None]
        told["max_stall"] = max(gaps, default=None)
        for name, value in told.items():
            if value is not None:
                self.times[name].append(value)
        self.times["icl"].extend(gaps)

    def samples(self, name: str) -> Distribution:
        return Distribution.of([value * NS_PER_MS for value in self.times[name]])

    def figures(self, duration_s: float | None) -> PartFigures:
        both = None if self.input_tokens is None or self.output_tokens is None else self.input_tokens + self.output_tokens
        return PartFigures(
            requests=self.requests,
            ok=self.ok,
            failed=self.requests - self.ok,
            cancelled=0,
            retried=self.retried,
            duration_s=duration_s,
            requests_per_s=_per_second(self.ok, duration_s),
            output_tokens_per_s=_per_second(self.output_tokens, duration_s),
            total_tokens_per_s=_per_second(both, duration_s),
            ttft=stats_of(self.samples("ttft")),
            tpot=stats_of(self.samples("tpot")),
            itl=stats_of(Distribution.of([])),
            icl=stats_of(self.samples("icl")),
            e2e=stats_of(self.samples("e2e")),
        )


def _number(value: Any) -> float | None:
    """Python's json writes NaN and Infinity where a figure does not exist."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) else None


def _tpot(line: dict[str, Any], tokens: float | None) -> float | None:
    told = _number(line.get("tpot_ms"))
    if told is not None or tokens is None or tokens < 2:
        return told if tokens is None or tokens >= 2 else None
    first, end = (_number(line.get(key)) for key in _TIMES.values())
    return None if first is None or end is None else (end - first) / (tokens - 1)


def _per_second(amount: int | None, duration_s: float | None) -> float | None:
    return None if amount is None or not duration_s else amount / duration_s


class RawFile:
    """One scenario's lines, added one by one. `remarks`: what could not be read, or was odd."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.whole = _Part()
        self.parts: dict[str, _Part] = {}
        self.summaries: list[dict[str, Any]] = []
        self.errors: dict[str, int] = {}
        self.remarks: list[str] = []
        self._after_summary = False

    def read(self, lines: Iterable[bytes]) -> None:
        """Add all lines. A last line without its newline that is no JSON was being written; others that are none are counted."""
        broken = 0
        torn = False
        for raw in lines:
            if not raw.strip():
                continue
            try:
                line = json.loads(raw)
            except ValueError:  # bytes that are no UTF-8 too
                torn = not raw.endswith(b"\n")
                broken += not torn
                continue
            if isinstance(line, dict):
                self._add(line)
            else:
                broken += 1
        if torn:
            self.remarks.append("its half-written last line was dropped")
        if broken:
            self.remarks.append(f"{broken} line(s) that are no request and no summary were left out")
        if len(self.summaries) > 1:
            self.remarks.append(f"{len(self.summaries)} runs were written into this file: they are pooled, their durations added")

    def _add(self, line: dict[str, Any]) -> None:
        if "success" in line or "request_id" in line:
            self._after_summary = False
            self.whole.add(line)
            port = line.get("target_port")
            if port is not None:
                self.parts.setdefault(str(port), _Part()).add(line)
            if not line.get("success"):
                error = one_line(str(line.get("error") or "no cause told"))
                self.errors[error] = self.errors.get(error, 0) + 1
        elif "completed" in line:
            self._after_summary = True
            self.summaries.append(line)

    @property
    def empty(self) -> bool:
        return not self.whole.requests and not self.summaries

    def result(self, slos: Sequence[Slo], raw_output: str) -> CellResult:
        """The cell. Without a summary at the end it was cut off."""
        durations = [value for one in self.summaries if (value := _number(one.get("duration"))) is not None]
        whole = self._after_summary and len(durations) == len(self.summaries)
        duration_s = sum(durations) if whole else None
        self.whole.retried = sum(round(_number(one.get("retried")) or 0) for one in self.summaries)
        figures = self.whole.figures(duration_s)
        judgement = judge(Evidence(requests=figures.requests, ok=figures.ok, failed=figures.failed, lost_endpoints=self._lost()))
        results = [_judged(slo, self.whole) for slo in slos]
        causes = sorted(self.errors.items(), key=lambda item: -item[1])
        return CellResult(
            name=self.name,
            scenario=self.name,
            repeat=0,
            state="done" if self._after_summary else "cut_off",
            hash="",
            cause=None if self._after_summary else "the file has no summary as its last line: its run did not end",
            raw_output=raw_output,
            verdict=judgement.verdict,
            reasons=judgement.reasons,
            notices=[*self.remarks, *(f"{number} failed: {text}" for text, number in causes[:3])],
            partial=not self._after_summary,
            figures=CellFigures(all=figures, success_rate=figures.ok / figures.requests if figures.requests else None),
            endpoints=self._endpoints(duration_s),
            slos=results,
            slos_met=all_met(results),
        )

    def _healthy(self) -> list[str] | None:
        told = self.summaries[-1].get("healthy_ports_at_end") if self.summaries else None
        return [str(port) for port in told] if isinstance(told, list) else None

    def _ports(self) -> list[str]:
        told = self.summaries[-1].get("per_port_stats") if self.summaries else None
        return sorted({*self.parts, *(map(str, told) if isinstance(told, dict) else ())}, key=natural)

    def _lost(self) -> tuple[str, ...]:
        healthy = self._healthy()
        return () if healthy is None else tuple(f"{port} down at the end" for port in self._ports() if port not in healthy)

    def _endpoints(self, duration_s: float | None) -> list[EndpointPart]:
        healthy, served = self._healthy(), sum(part.requests for part in self.parts.values())
        found = []
        for port in self._ports():
            part = self.parts.get(port, _Part())
            share = part.requests / served if served else None
            found.append(EndpointPart(port, None, share, part.figures(duration_s), None if healthy is None else port in healthy))
        return found


def _judged(slo: Slo, part: _Part) -> SloResult:
    if slo.metric == "success_rate":
        rate = part.ok / part.requests if part.requests else None
        return SloResult(
            slo.text, slo.metric, slo.statistic, slo.limit, "share", rate, None if rate is None else rate >= slo.limit, part.requests
        )
    if slo.metric not in _METRICS:
        return SloResult(slo.text, slo.metric, slo.statistic, slo.limit, "ms", None, None, 0)
    samples, percent = part.samples(slo.metric), percentile_of(slo.statistic)
    values = {"mean": samples.mean, "min": samples.min, "max": samples.max}
    value = samples.percentile(percent) if percent is not None else values[slo.statistic]()
    observed = None if value is None else value / NS_PER_MS
    met = None if observed is None else observed <= slo.limit
    too_few = percent is not None and needs_more(samples.n, percent)
    return SloResult(slo.text, slo.metric, slo.statistic, slo.limit, "ms", observed, met, samples.n, too_few)


def natural(text: str) -> tuple[tuple[int, str], ...]:
    """Sorts c4 before c16."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in _DIGITS.split(text))


def open_raw_outputs(folder: Path, slos: Sequence[Slo] = ()) -> ExperimentResults:
    """Read a folder that holds `raw_outputs/*.jsonl` (or is that folder). UserError when there is nothing to report on."""
    raw = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    scenarios: list[ScenarioResult] = []
    engines: set[str] = set()
    notices = [_UNTOLD]
    for path in sorted(raw.glob("*.jsonl"), key=lambda path: natural(path.name)):
        engine, name = _named(path.stem)
        file = RawFile(name)
        with path.open("rb") as lines:
            file.read(lines)
        if file.empty:
            notices.append(f"{path.name} holds no request and no summary: it was left out")
            continue
        engines |= {engine} if engine else set()
        cell = file.result(slos, str(path.relative_to(folder)))
        scenarios.append(ScenarioResult(name=cell.name, flags={}, cells=[cell]))
    if not scenarios:
        raise UserError(f"{folder}: no {FOLDER}/*.jsonl with requests in it, so there is nothing to report on")
    cells = [scenario.cells[0] for scenario in scenarios]
    return ExperimentResults(
        name=folder.resolve().name,
        run_id=folder.resolve().name,
        state="complete",
        cause=None,
        began="",
        ended=None,
        verdict=worst([cell.verdict for cell in cells]),
        environment={},
        fleet=FleetFacts(managed=False, engine=engines.pop() if len(engines) == 1 else None),
        scenarios=scenarios,
        notices=notices,
        spec={},
    )


def is_raw_outputs(folder: Path) -> bool:
    """Whether it holds the client's files and nothing that a run of ours left."""
    return (folder / FOLDER).is_dir() or (folder.name == FOLDER and any(folder.glob("*.jsonl")))


def _named(stem: str) -> tuple[str | None, str]:
    """`vllm_c32_i512_o256` -> the engine and the scenario."""
    engine, _, name = stem.partition("_")
    return (engine, name) if engine in _ENGINES and name else (None, stem)
