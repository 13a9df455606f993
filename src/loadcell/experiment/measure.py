"""One load: run it, write down what it was, and report on it. The folder then holds a whole run, as `loadcell bench` leaves it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from loadcell.errors import EnvironmentFailure

if TYPE_CHECKING:
    from loadcell.metrics.facts import RunFacts
    from loadcell.metrics.summary import Summary
    from loadcell.recordlog import Log


class Measured(Struct, frozen=True):
    """`log` streams the records from the disk."""

    facts: "RunFacts"
    summary: "Summary"
    log: "Log"


def measure(execute: "Callable[[], RunFacts]", folder: Path, percentiles: Sequence[float] = ()) -> Measured:
    """`execute` runs the load, whose folder is `folder`, and gives what is known of it.

    A run that never began leaves an empty folder. Raises LoadcellError; records that were written stay, whatever happens.
    """
    try:
        facts = execute()
    except BaseException:
        clear_if_nothing_was_recorded(folder)
        raise
    try:
        (folder / "run.json").write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n")
    except OSError as error:
        raise EnvironmentFailure(f"cannot write {folder / 'run.json'}: {error.strerror}; the records are kept") from error
    return _reported(folder, msgspec.structs.replace(facts, percentiles=tuple(percentiles)))


def _reported(folder: Path, facts: "RunFacts") -> Measured:
    # numpy and the renderers are loaded here, after the run, so that they cost its start nothing.
    from loadcell.metrics.summarize import summarize
    from loadcell.recordlog import read_log
    from loadcell.report.files import write_derived

    log = read_log(folder / "records.jsonl")
    summary = summarize(facts, log)
    write_derived(folder, summary)
    return Measured(facts, summary, log)


def clear_if_nothing_was_recorded(folder: Path) -> None:
    """Empty the folder of a run that never began; whatever holds a record stays."""
    if any(file.is_dir() or (file.name.startswith("records.") and _lines_after_the_first(file)) for file in folder.glob("*")):
        return
    for file in folder.glob("*"):
        file.unlink()


def _lines_after_the_first(log: Path) -> bool:
    with log.open("rb") as lines:
        lines.readline()  # the header, however long
        return bool(lines.readline())
