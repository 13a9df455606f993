"""What the logs of a trial's services say of how it ended."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from loadcell.experiment.secrets import Hider
from loadcell.fleet.causes import CauseFinder
from loadcell.fleet.engines import ENGINES
from loadcell.fleet.spec import Cause, FleetSpec
from loadcell.tune import blame
from loadcell.tune.loaded import Loaded
from loadcell.tune.outcome import MEASURED, TrialResult

_TAIL: Final = 1 << 16


def of_the_world(result: TrialResult, study: Path, retry_on: Sequence[str], hider: Hider) -> TrialResult:
    """A failure whose logs hold a text of `trial.retry_on` is the machine's, not the configuration's. `study`: its folder."""
    texts = [text.lower() for text in retry_on if text]
    if not texts or result.outcome in (*MEASURED, "cancelled", "infrastructure") or result.folder is None:
        return result
    for log in sorted((study / result.folder).rglob("*.log")):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            if any(text in line.lower() for text in texts):
                said = hider.text(line.strip()[:300])
                return replace(result, outcome="infrastructure", evidence=f"{log.name}: {said} (trial.retry_on)")
    return result


def explained(loaded: Loaded, fleet: FleetSpec, folder: Path) -> Loaded:
    """A death, or failed requests, with what the services' logs say of it. Read after their end: nothing is written any more."""
    ending = loaded.ending
    if ending is None or (ending.death is None and ending.failure is None and not _failures(ending)):
        return loaded
    found = log_cause(fleet, folder)
    if found is None:
        return loaded
    death = None if ending.death is None else replace(ending.death, log=found)
    return replace(loaded, blame=blame.of_load(replace(ending, death=death, log=found)))


def log_cause(fleet: FleetSpec, folder: Path) -> tuple[Cause, str] | None:
    """The cause that the services' logs name, with its line; a named one before one that is only fatal."""
    found: tuple[Cause, str] | None = None
    for log in sorted((folder / "logs").glob("*.log")):
        finder = CauseFinder((*fleet.pattern, *ENGINES[fleet.engine].patterns))
        try:
            text = log.read_bytes()[-_TAIL:].decode("utf-8", "replace")
        except OSError:
            continue
        for line in text.replace("\r", "\n").split("\n"):
            finder.feed(line)
        if finder.best is not None and (found is None or found[0] == "fatal"):
            found = finder.best
    return found


def _failures(ending: blame.Ending) -> bool:
    return ending.summary is not None and ending.summary.whole.counts.failed > 0
