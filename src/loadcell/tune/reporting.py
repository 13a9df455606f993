"""A study's folder -> its reports, written: after each trial, at its end, and again whenever somebody asks. All of them are derived from the record.

report.md, trials.csv, trials.json; with an answer best.toml and launch/ (a script, systemd units, a compose file, Kubernetes objects).
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from loadcell.errors import EnvironmentFailure, LoadcellError, UserError
from loadcell.metrics.slo import parse_slo
from loadcell.report.files import REPORT_NAME, write_files
from loadcell.report.study import ServiceLaunch, StudyResults
from loadcell.seeds import derive
from loadcell.tune.best import best_toml, chosen, launches
from loadcell.tune.events import Record
from loadcell.tune.outcome import TrialResult
from loadcell.tune.parameters import Configuration
from loadcell.tune.read import sources_of
from loadcell.tune.results import study_results, with_launch
from loadcell.tune.space import Space
from loadcell.tune.spec import StudySpec, space_of
from loadcell.tune.study_folder import SPEC, in_use, read_record, study_folder

TRIALS_JSON: Final = "trials.json"
TRIALS_CSV: Final = "trials.csv"
BEST: Final = "best.toml"
LAUNCH: Final = "launch"
OTHERS: Final = "others.json"
"""Trials of other machines that share the storage."""
_MADE_BY: Final = "Made by loadcell tune from study"

Importance = Callable[[Space, Sequence[TrialResult]], Mapping[str, float]]


class Reporter(Struct, frozen=True):
    """`spec`: without secrets, as `spec.json` has it. `importance` may take a second: it is asked for at the end alone."""

    folder: Path
    spec: StudySpec
    shown: dict[str, Any]
    space: Space
    importance: Importance = lambda space, results: {}  # noqa: ARG005

    @classmethod
    def of(cls, folder: Path, record: Record, importance: Importance | None = None) -> "Reporter":
        """From what stands in the folder. Raises UserError for one that cannot be read."""
        path = folder / (record.opened[-1].spec if record.opened else SPEC)
        try:
            body = path.read_bytes()
            spec = msgspec.json.decode(body, type=StudySpec)
            shown = msgspec.json.decode(body)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
            raise UserError(f"{path}: no study of this version of loadcell: {wrong}") from None
        return cls(
            folder, spec, shown, space_of(spec), importance or (lambda space, results: importance_of(space, results, spec.study.seed))
        )

    def after_trial(self, record: Record, elapsed_s: float) -> None:
        """While it goes on: what there is so far."""
        self._write(self._results(record, running=True, elapsed_s=elapsed_s))

    def results(self, record: Record, *, running: bool = False, others: Sequence[TrialResult] = ()) -> StudyResults:
        """All that can be told, with how the best is started."""
        weights = self.importance(self.space, record.searching())
        found = self._results(record, running=running, importance=weights, others=others or self._others_kept())
        if found.best is None:
            return found
        try:
            launch, why = self.launches_of(found.best, found.fingerprint)
        except LoadcellError as failure:
            launch, why = (), f"how the best is started cannot be told: {str(failure).splitlines()[0]}"
        return with_launch(found, launch, why)

    def write(self, record: Record, *, running: bool = False, others: Sequence[TrialResult] = ()) -> StudyResults:
        """Everything, best.toml among it; one of an earlier answer that no longer holds is taken away. Raises EnvironmentFailure."""
        if others:
            write_files(self.folder, {OTHERS: msgspec.json.encode(list(others)) + b"\n"})
        found = self.results(record, running=running, others=others)
        self._write(found)
        if found.best is None:
            self._take_back()
            return found
        try:
            best = self.best_of(found.best, record)
        except UserError as failure:  # a file that its parameters change is gone
            found = replace(found, notices=[*found.notices, f"best.toml cannot be made: {str(failure).splitlines()[0]}"])
            self._write(found)
            return found
        self._take_back()
        write_files(self.folder, {BEST: best.encode(), **launch_files(found.name, found.launch)})
        return found

    def best_of(self, configuration: Configuration, record: Record, number: int | None = None) -> str:
        """best.toml, or the same for any other configuration."""
        where = chosen(self.spec, configuration, sources_of(self.spec))
        measured = [one for one in record.results.values() if one.configuration == configuration and one.load]
        values = msgspec.toml.encode(configuration).decode()
        what = "the configuration that it chose" if number is None else f"the configuration of trial {number}"
        use = "An experiment's file: loadcell fleet up FILE starts it"
        own = self.spec.benchmark.kind == "loadcell"
        use += ", loadcell run FILE measures it with the study's load and limits." if own else f"; {self.spec.benchmark.kind} loaded it."
        head = f"{_MADE_BY} {self.spec.study.name}: {what}.\n{use}\n\n{values}"
        return best_toml(self.spec, where, measured[-1].load if measured else {}, head)

    def launches_of(
        self, configuration: Configuration, fingerprint: Mapping[str, str | None]
    ) -> tuple[Sequence[ServiceLaunch], str | None]:  # fmt: skip
        """How its services are started. Raises UserError for a file that is gone."""
        fleet = chosen(self.spec, configuration, sources_of(self.spec)).fleet
        config_text = None if fleet.config_file is None else _text(Path(fleet.config_file).expanduser())
        return launches(fleet, fingerprint, str((self.folder / LAUNCH).absolute()), config_text, shutil.which)

    def _results(self, record: Record, **more: Any) -> StudyResults:
        limits = [parse_slo(text, "[[slo]]").text for text in self.spec.slo]
        return study_results(self.spec, self.space, record, limits, shown=self.shown, **more)

    def _others_kept(self) -> list[TrialResult]:
        """As the storage had them when the study ended: a report that is made again asks no database."""
        try:
            return msgspec.json.decode((self.folder / OTHERS).read_bytes(), type=list[TrialResult])
        except (OSError, msgspec.DecodeError):
            return []

    def _write(self, results: StudyResults) -> None:
        from loadcell.report import study_csv, study_markdown

        write_files(
            self.folder,
            {
                TRIALS_JSON: msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n",
                TRIALS_CSV: study_csv.render(results).encode(),
                REPORT_NAME: study_markdown.render(results).encode(),
            },
        )

    def _take_back(self) -> None:
        """What an earlier answer left."""
        best = self.folder / BEST
        try:
            if best.is_file() and _MADE_BY.encode() in best.read_bytes()[:200]:
                best.unlink()
                shutil.rmtree(self.folder / LAUNCH, ignore_errors=True)
        except OSError as error:
            raise EnvironmentFailure(f"cannot remove {best}: {error.strerror}") from error


def launch_files(name: str, launch: Sequence[ServiceLaunch]) -> dict[str, bytes]:
    """Path in the study's folder -> content."""
    from loadcell.report import study_launch

    if not launch:
        return {}
    head = f"{_MADE_BY} {name}. Look at the names of images and secrets before you use it."
    files = {f"{LAUNCH}/launch.sh": study_launch.script(launch, head)}
    files |= {f"{LAUNCH}/{file}": text for file, text in study_launch.systemd(launch, name, head).items()}
    if study_launch.fits_containers(launch) is None:
        files[f"{LAUNCH}/compose.yaml"] = study_launch.compose(launch, head)
        files[f"{LAUNCH}/kubernetes.yaml"] = study_launch.kubernetes(launch, name, head)
    return {path: text.encode() for path, text in files.items()}


def report_again(given: Path) -> tuple[Path, Record, Reporter, bool]:
    """A study's folder: where it is, what it tells, who reports it, and whether a process works on it. Raises UserError."""
    folder = study_folder(given)
    record = read_record(folder)
    return folder, record, Reporter.of(folder, record), in_use(folder)


def importance_of(space: Space, results: Sequence[TrialResult], seed: int) -> dict[str, float]:
    """Of each parameter, from the results of a search."""
    import numpy as np

    from loadcell.tune.importance import importance
    from loadcell.tune.sampler.search import observed

    return importance(space, [observed(one) for one in results], np.random.default_rng(derive(seed, "importance")))


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
