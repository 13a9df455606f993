"""What a user asks for -> a study that is ready to run: file read, folder made or taken up again, storage opened, refusals made.

Everything that can be refused is refused here, before a service is started and without leaving a folder behind.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from loadcell.clock import Clock, MonotonicClock
from loadcell.errors import UserError
from loadcell.experiment.matrix import flag_of
from loadcell.experiment.new_folder import new_folder, take_back
from loadcell.experiment.secrets import Hider
from loadcell.fleet.events import now_text
from loadcell.fleet.registry import Registry
from loadcell.fleet.spec import seconds
from loadcell.load.redact import HIDDEN
from loadcell.metrics.slo import parse_slo
from loadcell.tune.events import FromOptix, Opened, Record
from loadcell.tune.fingerprint import fingerprint_of, refuse_other
from loadcell.tune.holds import held, hold_of
from loadcell.tune.objective import UNITS
from loadcell.tune.outcome import TrialResult
from loadcell.tune.parameters import Configuration
from loadcell.tune.read import prior_of, read_study
from loadcell.tune.reporting import Reporter, importance_of
from loadcell.tune.sampler import SearchSpec
from loadcell.tune.setting import Setting, StudyWatcher
from loadcell.tune.space import Space
from loadcell.tune.spec import StudySpec, known_of, objectives, space_of, trials_of
from loadcell.tune.standing import SECOND
from loadcell.tune.stopping import Budget
from loadcell.tune.storage import open_book
from loadcell.tune.study import Study
from loadcell.tune.study_folder import COPY, JOURNAL, SPEC, StudyFolder
from loadcell.tune.trial import Trial, TrialWatcher
from loadcell.tune.write import to_toml

_BEST_PRIORS: Final = 2
"""The best trials of a history are measured here, too, right after the default: what was good elsewhere is a guess."""


class Watching(StudyWatcher, TrialWatcher):
    """What a study and its trials tell. Override what is of interest."""

    def note(self, text: str) -> None:
        """Something that a person wants to know."""


class Asked(Struct, frozen=True):
    """The command. `source` null: that of the study that is resumed. `optix` null: it is a file of ours. What a resumed study was given before still
    holds, unless it is given anew.
    """

    source: Path | None = None
    optix: FromOptix | None = None
    sets: tuple[str, ...] = ()
    env_file: Path | None = None
    output_dir: str | None = None
    resume: Path | None = None
    sampler: str | None = None


class Prepared(Struct, frozen=True):
    """`record` grows while the study runs."""

    study: Study
    spec: StudySpec
    budget: Budget
    folder: Path
    record: Record
    reporter: Reporter


@contextmanager
def prepared(
    asked: Asked, environment: Mapping[str, str], registry: Registry, watcher: Watching, clock: Clock | None = None
) -> Iterator[Prepared]:  # fmt: skip
    """For the length of the block the study's folder is ours. Raises UserError, EnvironmentFailure."""
    clock = clock or MonotonicClock()
    if asked.resume is not None:
        with StudyFolder.resume(asked.resume) as folder, ExitStack() as stack:
            asked = as_before(asked, folder.record)
            spec = _spec(asked, environment, watcher.note)
            yield _prepared(asked, spec, folder, environment, registry, watcher, clock, stack)
        return
    spec = _spec(asked, environment, watcher.note)
    folder = StudyFolder.make(new_folder(asked.output_dir or spec.study.output_dir, spec.study.name))
    with folder, ExitStack() as stack:
        try:
            ready = _prepared(asked, spec, folder, environment, registry, watcher, clock, stack)
        except BaseException:
            if not folder.record.opened:  # a study that was refused leaves nothing behind
                _remove(folder.path)
            raise
        yield ready


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    take_back(folder)


def as_before(asked: Asked, record: Record) -> Asked:
    """What the study was given, and over it what is given now."""
    before = record.opened[-1]
    given = {_key(item) for item in asked.sets}
    lost = [item for item in before.sets if HIDDEN in item and _key(item) not in given]
    if lost:
        raise UserError(f"--resume {asked.resume}: --set {_key(lost[0])} held a secret, which is in no file: give it again")
    return replace(
        asked,
        source=asked.source or Path(before.source),
        optix=asked.optix or (before.optix if asked.source is None else None),
        sets=(*(item for item in before.sets if _key(item) not in given), *asked.sets),
        env_file=asked.env_file or (Path(before.env_file) if before.env_file else None),
        sampler=asked.sampler or before.sampler,
    )


def _key(item: str) -> str:
    return item.partition("=")[0].strip()


def _spec(asked: Asked, environment: Mapping[str, str], note: Callable[[str], None]) -> StudySpec:
    if asked.source is None:
        raise UserError("FILE: give the study's file, --from-optix CONFIG, or --resume DIR")
    if asked.optix is None:
        return read_study(asked.source, sets=asked.sets, env_file=asked.env_file, environment=environment, note=note)
    from loadcell.tune.optix.read import read_optix

    how = asked.optix
    spec = read_optix(
        asked.source, how.engine, how.benchmark, backup=how.backup, load_breakpoint=how.load_breakpoint, environment=environment, note=note
    )
    if not asked.sets:
        return spec
    with tempfile.TemporaryDirectory() as folder:  # `--set` speaks of the study that optix's file means
        path = Path(folder) / f"{spec.study.name}.toml"
        path.write_text(to_toml(spec), encoding="utf-8")
        return read_study(path, sets=asked.sets, env_file=asked.env_file, environment=environment, note=note)


def _prepared(
    asked: Asked,
    spec: StudySpec,
    folder: StudyFolder,
    environment: Mapping[str, str],
    registry: Registry,
    watcher: Watching,
    clock: Clock,
    stack: ExitStack,
) -> Prepared:
    assert asked.source is not None
    sampler = asked.sampler or spec.study.sampler
    space = space_of(spec)
    trial = Trial(spec, folder.path, registry, environment, watcher=watcher, clock=clock, source=asked.source)
    plans = trial.check()
    stack.enter_context(held(registry, hold_of(plans, spec.study.name, folder.path, fixed_ports=spec.fleet.port != "auto")))
    now, record = fingerprint_of(spec, environment), folder.record
    if record.opened:
        refuse_other(record.opened[0].fingerprint, now, f"--resume {folder.path}")
    setting = setting_of(spec, space, watcher.note)
    if not record.opened and (why := space.legal(space.default())) is not None:
        watcher.note(f"the default is not legal ({why}): it is not measured, and a winner is compared with nothing")
    by = str(folder.path.resolve())
    shared = spec.study.storage is not None
    search = SearchSpec(
        space,
        spec.study.seed,
        setting.limits,
        setting.known,
        SECOND if setting.second is not None else None,
        per_second=setting.budget.wall_s is not None,
        concurrency=_concurrency(spec),
        services=spec.fleet.replicas or 1,
    )
    book = open_book(
        spec.study.storage, folder.path / JOURNAL, spec.study.name, sampler, search, by, directions=2 if setting.second is not None else 1
    )
    refuse_other(book.fingerprint(now), now, f"[study] storage: study {spec.study.name!r} there")
    if shared and not record.opened and (others := len(book.results())):
        watcher.note(f"the storage holds {others} trials of study {spec.study.name!r} already: this one goes on with them")
    _write_down(asked, spec, folder, now, sampler, by)
    if record.searched is not None:
        watcher.note(
            f"its search has ended already ({record.searched.text}), and a larger budget does not begin it again: to search further, "
            "start another study, with its best as [study] known"
        )
    again = book.reconcile(record, alone=not shared)
    reporter = Reporter.of(folder.path, record)
    study = Study(setting, folder, book, trial, clock, watcher, again, reporter)
    return Prepared(study, spec, setting.budget, folder.path, record, reporter)


def setting_of(spec: StudySpec, space: Space, note: Callable[[str], None]) -> Setting:
    """What the loop is given."""
    table = spec.study.budget
    wall = None if table.wall_clock is None else seconds(table.wall_clock, "[study] budget.wall_clock")
    prior = prior_of(spec, note)
    return Setting(
        space=space,
        budget=Budget(wall, trials_of(table), table.launches),
        confirm=spec.study.confirm,
        known=_known(spec, space, prior),
        limits=tuple(parse_slo(text, "[[slo]]").text for text in spec.slo),
        second=_second(spec),
        prior=prior,
        shared=spec.study.storage is not None,
        importance=lambda space, results: importance_of(space, results, spec.study.seed),
    )


def _known(spec: StudySpec, space: Space, prior: tuple[TrialResult, ...]) -> tuple[Configuration, ...]:
    best = sorted((one for one in prior if one.feasible and one.objective), key=lambda one: -(one.objective or 0.0))
    return (*known_of(spec, space), *(one.configuration for one in best[:_BEST_PRIORS]))


def _second(spec: StudySpec) -> Callable[[TrialResult], float | None] | None:
    """The objective of a front that the trials' own is not. A latency is inverted: larger is better."""
    _, name = objectives(spec.objective)
    if name is None:
        return None
    if name in UNITS:
        key = f"{name}_per_device" if spec.objective.per == "device" else name
        return lambda result: result.figures.get(key) or None
    slo = parse_slo(f"{name} <= 1s", "[objective] pareto")

    def inverse(result: TrialResult) -> float | None:
        value = result.figures.get(f"{slo.metric}_{slo.statistic}")
        return 1 / value if value else None

    return inverse


def _concurrency(spec: StudySpec) -> float | None:
    """Of a load that is the same in every trial."""
    given = next((value for name, value in spec.bench.items() if flag_of(name) == "concurrency"), None)
    return float(given) if spec.load.mode == "fixed" and isinstance(given, int | float) else None


def _write_down(
    asked: Asked, spec: StudySpec, folder: StudyFolder, fingerprint: dict[str, str | None], sampler: str, by: str
) -> None:  # fmt: skip
    assert asked.source is not None
    hider = Hider.of(msgspec.to_builtins(spec))
    text = to_toml(spec) if asked.optix is not None else asked.source.read_text(encoding="utf-8")
    folder.keep_copy(COPY, hider.toml(text).encode())
    origins = {key: origin.replace(str(asked.source), asked.source.name) for key, origin in spec.origins.items()}
    shown = hider.tree(msgspec.to_builtins(replace(spec, origins=origins)))
    name = folder.keep_copy(SPEC, msgspec.json.format(msgspec.json.encode(shown), indent=2) + b"\n")
    folder.append(
        Opened(
            at=now_text(),
            name=spec.study.name,
            source=str(asked.source.absolute()),
            spec=name,
            by=by,
            sets=tuple(hider.toml(item) for item in asked.sets),
            env_file=str(asked.env_file.absolute()) if asked.env_file else None,
            sampler=sampler,
            optix=asked.optix,
            fingerprint=fingerprint,
            resumed=bool(folder.record.opened),
        )
    )
