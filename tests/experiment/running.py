"""An experiment run in this process on services that run already, or on ones that a test plays."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec
import psutil

from loadcell.experiment.matrix import Cell
from loadcell.experiment.prepare import Asked, Prepared, prepared
from loadcell.experiment.run import ExperimentWatcher
from loadcell.experiment.services import Now, OnEvent
from loadcell.fleet.health import Health
from loadcell.fleet.monitor import FleetEvent
from loadcell.fleet.registry import Registry
from loadcell.load.runner import Watcher
from loadcell.report.experiment import CellResult, ExperimentResults, ServiceFacts

BENCH = "num-prompts = 6\ninput-len = 8\noutput-len = 4\ntokenizer = 'words'\nhealth-check-interval = 0\n"


def text(urls: Sequence[str], rows: str, *, bench: str = BENCH, top: str = "") -> str:
    return f"name = 'exp'\n{top}\n[target]\nbase_url = {list(urls)!r}\n[bench]\n{bench}\n{rows}"


class Told(ExperimentWatcher):
    """Keeps what it is told. `at_cell`: called as each begins."""

    def __init__(self, at_cell: Callable[[str], None] = lambda _: None) -> None:
        self.notes: list[str] = []
        self.lines: list[str] = []
        self.began: list[str] = []
        self.ended: list[CellResult] = []
        self._at_cell = at_cell

    def note(self, text: str) -> None:
        self.notes.append(text)

    def health(self, at: str, health: Health) -> None:
        self.lines.append(f"[{at}] {health.line}")

    def cell(self, cell: Cell, position: int, of: int) -> Watcher:
        self.began.append(cell.name)
        self._at_cell(cell.name)
        return Watcher()

    def cell_ended(self, result: CellResult) -> None:
        self.ended.append(result)


@contextmanager
def ready(tmp_path: Path, spec: str | None, told: ExperimentWatcher | None = None, /, **asked: Any) -> Iterator[Prepared]:
    """`asked`: fields of Asked; the folder is tmp_path/run unless a run is resumed."""
    if spec is not None:
        (tmp_path / "exp.toml").write_text(spec)
        asked.setdefault("spec", tmp_path / "exp.toml")
    if "resume" not in asked:
        asked.setdefault("output_dir", str(tmp_path / "run"))
    with prepared(Asked(**asked), {}, Registry(tmp_path / "state"), told or Told()) as found:
        yield found


def run(tmp_path: Path, spec: str | None, told: ExperimentWatcher | None = None, /, **asked: Any) -> ExperimentResults:
    with ready(tmp_path, spec, told, **asked) as found:
        return found.run.execute()


def stored(folder: Path) -> ExperimentResults:
    return msgspec.json.decode((folder / "results.json").read_bytes(), type=ExperimentResults)


def states(results: ExperimentResults) -> dict[str, str]:
    return {cell.name: cell.state for cell in results.cells}


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class PlayedServices:
    """A fleet as the run of cells sees it. `events`: told during the load of the next cell; `revived`: what revive says."""

    managed = True
    engine: str | None = "played"
    model: str | None = None
    leftovers: tuple[str, ...] = ("port 1 is held",)

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = tuple(urls)
        self.missing: tuple[str, ...] = ()
        self.events: list[FleetEvent] = []
        self.calls: list[str] = []
        self.devices: int | None = None
        self.mask: set[int] = set()
        self.all_gone: Callable[[], bool] = lambda: False

    def __enter__(self) -> Self:
        self.calls.append("start")
        return self

    def __exit__(self, *why: object) -> None:
        self.calls.append("stop")

    def now(self) -> Now:
        return Now(self.urls, self.devices, self.missing)

    def facts(self) -> list[ServiceFacts]:
        return [ServiceFacts(name=f"replica-{index}", base_url=url) for index, url in enumerate(self.urls)]

    @contextmanager
    def serving(self, on_event: OnEvent) -> Iterator[None]:
        self.calls.append("serving")
        self.mask = set(psutil.Process().cpu_affinity())
        yield
        for event in self.events:
            on_event(event)
        self.events = []

    def gone(self) -> bool:
        return self.all_gone()

    def health(self) -> Health:
        return Health(("1",), ())

    def revive(self) -> tuple[str, ...]:
        self.calls.append("revive")
        return ()
