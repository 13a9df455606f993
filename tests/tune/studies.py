"""Studies over a response surface instead of services, for tests of the loop: a fake measurer, a fake clock, folders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from loadcell.seeds import derive
from loadcell.testing.fake_clock import FakeClock
from loadcell.tune.events import Closed, Opened, Record
from loadcell.tune.outcome import TrialResult
from loadcell.tune.parameters import Configuration, Constraint, Parameter, Place
from loadcell.tune.sampler import SearchSpec
from loadcell.tune.setting import Setting, StudyWatcher
from loadcell.tune.space import Space
from loadcell.tune.standing import SECOND
from loadcell.tune.storage import Book, open_book
from loadcell.tune.study import Study
from loadcell.tune.study_folder import JOURNAL, StudyFolder

SEQS = Parameter("seqs", "int", Place(flag="--max-num-seqs"), low=1, high=1024, log=True, default=64)
MEMORY = Parameter("memory", "float", Place(flag="--gpu-memory-utilization"), low=0.5, high=1.0, default=0.9)
CACHING = Parameter("caching", "bool", Place(flag="--enable-prefix-caching"), default=True)
LIMIT = "ttft p95 <= 1s"
SPACE = (SEQS, MEMORY, CACHING)


def hill(configuration: Configuration, rng: np.random.Generator, noise: float = 0.02) -> dict[str, Any]:
    """Twice the default's throughput at 256; more than 0.97 of the memory is too much, more than 512 sequences too slow."""
    seqs, memory = float(configuration.get("seqs", 64)), float(configuration.get("memory", 0.9))
    if memory > 0.97:
        return {"outcome": "oom_start", "phase": "launch", "evidence": "torch.OutOfMemoryError: CUDA out of memory"}
    value = float(1000 * 2 ** (2 - abs(np.log2(seqs / 256))) * np.exp(rng.normal(0, noise)))
    margin = float(np.log(seqs / 512)) + float(rng.normal(0, 0.02))
    return {
        "outcome": "ok" if margin <= 0 else "slo_violated",
        "phase": "report",
        "objective": value,
        "objective_se": value * noise,
        "violations": {LIMIT: margin},
        "figures": {"throughput": value, "ttft_p95": float(np.exp(margin))},
    }


def flat(configuration: Configuration, rng: np.random.Generator) -> dict[str, Any]:
    value = 1000 * float(np.exp(rng.normal(0, 0.03)))
    return {
        "outcome": "ok",
        "phase": "report",
        "objective": value,
        "violations": {LIMIT: -1.0 + float(rng.normal(0, 0.02))},
        "figures": {"throughput": value},
    }


def dead(configuration: Configuration, rng: np.random.Generator) -> dict[str, Any]:
    return {"outcome": "oom_start", "phase": "launch", "evidence": "No available memory for the cache blocks"}


class Fake:
    """Measures with `surface`; each trial takes a minute. `calls`: (number, kind, configuration). `at`: called before each measurement."""

    def __init__(self, surface: Callable[..., dict[str, Any]], clock: FakeClock, at: Callable[[int], None] = lambda _: None) -> None:
        self.surface, self.clock, self.at = surface, clock, at
        self.calls: list[tuple[int, str, Configuration]] = []
        self.remembered: list[TrialResult] = []

    def measure(self, configuration: Configuration, number: int, kind: Any) -> TrialResult:
        self.calls.append((number, kind, dict(configuration)))
        self.at(number)
        told = self.surface(configuration, np.random.default_rng(derive(1, "noise", number)))
        self.clock.advance(60)
        return TrialResult(number, configuration, kind=kind, **({"launch_s": 20.0, "measure_s": 35.0, "stop_s": 5.0} | told))

    def remember(self, result: TrialResult) -> None:
        self.remembered.append(result)


class Told(StudyWatcher):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.stages: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def stage(self, text: str) -> None:
        self.stages.append(text)


class Ready:
    """A study, its parts in reach. `resume`: in the folder of an earlier one."""

    def __init__(
        self,
        path: Path,
        surface: Callable[..., dict[str, Any]] = hill,
        parameters: tuple[Parameter, ...] = SPACE,
        *,
        sampler: str = "model",
        resume: bool = False,
        storage: str | None = None,
        at: Callable[[int], None] = lambda _: None,
        constraints: tuple[Constraint, ...] = (),
        **setting: Any,
    ) -> None:
        self.clock = FakeClock()
        self.space = Space(parameters, constraints)
        self.folder = StudyFolder.resume(path) if resume else StudyFolder.make(_made(path))
        opened = Opened("", "t", "t.toml", "spec.json", by=path.name, sampler=sampler, resumed=resume)
        self.folder.append(opened)
        self.setting = Setting(self.space, limits=(LIMIT,), shared=storage is not None, **setting)
        second = SECOND if self.setting.second is not None else None
        search = SearchSpec(self.space, 1, (LIMIT,), self.setting.known, second)
        directions = 2 if second else 1
        self.book: Book = open_book(storage, path / JOURNAL, "t", sampler, search, by=path.name, directions=directions)
        again = self.book.reconcile(self.folder.record, alone=storage is None)
        self.fake = Fake(surface, self.clock, at)
        self.told = Told()
        self.study = Study(self.setting, self.folder, self.book, self.fake, self.clock, self.told, again)

    @property
    def record(self) -> Record:
        return self.folder.record

    def run(self) -> Closed:
        with self.folder:
            return self.study.execute()


def _made(path: Path) -> Path:
    path.mkdir(parents=True)
    return path
