"""A study's file, `--set` and an env file -> StudySpec; and the files that its parameters change, as texts. Executes nothing, starts nothing."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

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
    paths = dict.fromkeys(one.place.file for one in spec.parameter if one.place.file is not None)
    return {path: text_of(Path(path).expanduser()) for path in paths}


def prior_of(spec: StudySpec, note: Callable[[str], None] = lambda _: None) -> tuple[TrialResult, ...]:
    """The trials of `[study] prior`, numbered -1, -2, ...: known before the first of this study. `note` is told how many rows did not count, and why."""
    found: list[TrialResult] = []
    for name in spec.study.prior:
        history = read_history(text_of(Path(name).expanduser()), name, spec)
        found += (msgspec.structs.replace(one, number=-1 - len(found) - at) for at, one in enumerate(history.trials))
        skipped = ", ".join(f"{count} {why}" for why, count in history.skipped.items())
        note(f"{name}: {len(history.trials)} prior trials{f'; left out: {skipped}' if skipped else ''}")
    return tuple(found)
