"""A study's file, `--set` and an env file -> StudySpec; and the files that its parameters change, as texts. Executes nothing, starts nothing."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from loadcell.errors import UserError
from loadcell.experiment.read import Origins, cluster_file, name_of, over_cluster, read_tree, text_of
from loadcell.tune.conform import study_from
from loadcell.tune.optix.history import read_history
from loadcell.tune.outcome import TrialResult
from loadcell.tune.placing import check_sources
from loadcell.tune.spec import StudySpec


def read_study(
    path: Path,
    *,
    sets: Sequence[str] = (),
    env_file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> StudySpec:
    """Raises UserError naming file, line, key and what to do; arguments as those of `experiment.read.read_experiment`."""

    def made(tree: dict[str, Any], origins: Origins) -> StudySpec:
        cluster = cluster_file(tree, environment or {})
        spec = study_from(tree, name_of(path))
        if cluster is not None:
            spec = msgspec.structs.replace(spec, fleet=over_cluster(spec.fleet, cluster, note))
            origins.cluster(cluster)
        check_sources(spec, sources_of(spec))
        return msgspec.structs.replace(spec, origins=origins.found)

    return read_tree(path, made, sets=sets, env_file=env_file, environment=environment)


def sources_of(spec: StudySpec) -> dict[str, str]:
    """What stands in each file that a parameter changes a copy of, by its path as written. UserError for one that cannot be read."""
    found: dict[str, str] = {}
    for one in spec.parameter:
        path = one.place.file
        if path is not None and path not in found:
            found[path] = _text(path, f"[[parameter]] {one.name}, file")
    return found


def prior_of(spec: StudySpec, note: Callable[[str], None] = lambda _: None) -> tuple[TrialResult, ...]:
    """The trials of `[study] prior`, numbered -1, -2, ...: known before the first of this study. `note` is told how many rows did not count, and why."""
    found: list[TrialResult] = []
    for name in spec.study.prior:
        history = read_history(_text(name, "[study] prior"), name, spec)
        found += (msgspec.structs.replace(one, number=-1 - len(found) - at) for at, one in enumerate(history.trials))
        left = "; ".join(f"{many} left out: {why}" for why, many in history.skipped.items())
        count = len(history.trials)
        note(f"{name}: {count} trial{'' if count == 1 else 's'} to learn from" + (f" ({left})" if left else ""))
    return tuple(found)


def _text(name: str, key: str) -> str:
    try:
        return text_of(Path(name).expanduser())
    except UserError as wrong:
        raise UserError(f"{key} = {wrong}") from None
