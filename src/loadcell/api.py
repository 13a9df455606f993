"""The few functions that a Python user calls; the command line is built on the same ones.

import loadcell
result = loadcell.bench(base_url=["http://127.0.0.1:8000"], concurrency=32, num_prompts=640)
result.summary.verdict, result.columns()["ttft_ms"]
"""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from loadcell.errors import EnvironmentFailure, LoadcellError, UserError
from loadcell.experiment.measure import measure
from loadcell.experiment.new_folder import new_folder, take_back
from loadcell.load.runner import Run, Watcher
from loadcell.load.signals import catching, leave
from loadcell.output import OutputSpec
from loadcell.scenario import Scenario

if TYPE_CHECKING:
    from loadcell.metrics.facts import RunFacts
    from loadcell.metrics.summary import Summary
    from loadcell.recordlog import Log
    from loadcell.tune.events import Closed
    from loadcell.tune.outcome import TrialResult
    from loadcell.tune.parameters import Configuration


class BenchResult(Struct, frozen=True):
    """What a run gave. `exit_code` is what the command would have exited with; `report` the path of report.md."""

    folder: Path
    summary: "Summary"
    facts: "RunFacts"
    exit_code: int

    def __repr__(self) -> str:
        counts = self.summary.whole.counts
        return f"<BenchResult {self.summary.verdict}: {counts.ok} ok, {counts.failed} failed, in {self.folder}>"

    @property
    def report(self) -> Path:
        from loadcell.report.files import REPORT_NAME

        return self.folder / REPORT_NAME

    @property
    def records(self) -> "Log":
        """The records, streamed from the disk; can be iterated any number of times."""
        from loadcell.recordlog import read_log

        return read_log(self.folder / "records.jsonl")

    def columns(self) -> dict[str, Any]:
        """One numpy array per figure, one row per request; times in ms, NaN where a figure does not exist."""
        from loadcell.metrics.columns import columns

        return columns(self.records, open_loop=self.facts.is_open_loop)


def bench(**flags: Any) -> BenchResult:
    """Run one load. The keywords are the flags of `loadcell bench`, underscores for dashes, lists where a flag may be given again.

    Nothing is printed. Raises UserError for what `loadcell bench` would refuse, EnvironmentFailure for what this machine cannot do.
    """
    from loadcell.flags.resolve import scenario_from_flags, with_api_key, with_fresh_seed

    scenario, output = scenario_from_flags(with_fresh_seed(flags))
    return run_scenario(with_api_key(scenario, os.environ), output, Watcher())


def run_scenario(scenario: Scenario, output: OutputSpec, watcher: Watcher) -> BenchResult:
    """Run it, write the reports that `output` asks for, and judge it."""
    _refuse_early(scenario, output)
    folder = new_folder(output.output_dir, output.name)
    run = Run(scenario, folder, folder.name, watcher)

    def after_the_load(number: int) -> None:
        if not run.stopped_by_signal:  # else the user has asked for the end, and waits for the report of what there is
            raise leave(number)

    with catching(after_the_load):
        return _run_and_report(run, scenario, output, folder)


def _run_and_report(run: Run, scenario: Scenario, output: OutputSpec, folder: Path) -> BenchResult:
    try:
        measured = measure(run.execute, folder, output.metric_percentiles)
    finally:
        take_back(folder)  # a run that never began leaves none behind
    from loadcell.metrics.exitcode import exit_code

    failures = list(_exports(scenario, output, measured.facts, measured.log))
    code = exit_code(measured.summary, strict=output.strict, gate=output.gate)
    result = BenchResult(folder=folder, summary=measured.summary, facts=measured.facts, exit_code=code)
    if failures:
        raise EnvironmentFailure(f"{'; '.join(failures)} (the run itself is in {folder})")
    return result


def _exports(scenario: Scenario, output: OutputSpec, facts: "RunFacts", log: "Log") -> Iterable[str]:
    """Write other tools' formats. One that cannot be written is told and keeps none of the others from being written."""
    from loadcell.report import files
    from loadcell.report.vllm_options import options_of

    if output.output_file:
        try:
            files.write_seed(output.output_file, log, facts, overwrite=output.overwrite)
        except LoadcellError as error:
            yield str(error)
    if output.save_result:
        options = options_of(scenario, output, facts.run.model or "", log.header.origin, time.time_ns())
        try:
            path = files.vllm_path(options, output.result_dir, output.result_filename)
            files.write_vllm(path, log, facts, options, append=output.append_result)
        except LoadcellError as error:
            yield str(error)


def _refuse_early(scenario: Scenario, output: OutputSpec) -> None:
    """Files that would be in the way are found before the run, not an hour later."""
    from loadcell.report.existing import refuse_existing

    if output.output_file and not output.overwrite:
        refuse_existing(output.output_file, "--output-file", "choose another name or add --overwrite")
    if output.save_result and output.result_filename and not output.append_result:
        path = Path(output.result_dir or ".") / output.result_filename
        refuse_existing(path, "--result-filename", "choose another, or --append-result to add to it")
    if not scenario.target.base_urls:
        raise UserError("--base-url: no endpoint is given")


class StudyResult(Struct, frozen=True):
    """What a study gave. `closed` says how it ended and what is announced; `trials` are all that ended. `exit_code` as the command's."""

    folder: Path
    closed: "Closed"
    trials: "list[TrialResult]"
    exit_code: int

    @property
    def best(self) -> "Configuration | None":
        """The configuration to use: the winner, or the default where nothing reliably beats it."""
        return self.closed.best


def tune(
    file: str | Path | None = None,
    *,
    resume: str | Path | None = None,
    output_dir: str | None = None,
    sets: Iterable[str] = (),
    env_file: str | Path | None = None,
    sampler: str | None = None,
) -> StudyResult:
    """Run a study: `loadcell tune FILE`, keywords as its options. Nothing is printed. Raises what the command would refuse."""
    from loadcell.experiment.run import hang_ups_are_terms
    from loadcell.fleet.state import fleet_registry
    from loadcell.tune.prepare import Asked, Watching, prepared
    from loadcell.tune.standing import exit_code

    asked = Asked(
        source=None if file is None else Path(file),
        sets=tuple(sets),
        env_file=None if env_file is None else Path(env_file),
        output_dir=output_dir,
        resume=None if resume is None else Path(resume),
        sampler=sampler,
    )
    with (
        prepared(asked, os.environ, fleet_registry(os.environ), Watching()) as ready,
        hang_ups_are_terms(),
        catching(ready.study.on_signal),
    ):
        closed = ready.study.execute()
        return StudyResult(ready.folder, closed, list(ready.record.results.values()), exit_code(closed, ready.study.signal))
