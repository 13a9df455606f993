"""What a study found -> the lines that a terminal shows: the answer, what to change, what failed. Plain text."""

from textwrap import wrap
from typing import Final, TextIO

from loadcell.report import study_tables as tables
from loadcell.report.figures import one_line, share
from loadcell.report.study import StudyResults
from loadcell.report.terminal import WIDTH

_MOST_FAILURES: Final = 6


def lines(results: StudyResults, width: int = WIDTH) -> list[str]:
    """Not wider than that."""
    found = [f"{tables.title(results)}: {one_line(results.name)}"]
    for text in tables.answer(results):
        found += wrap(text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    changed = [one for one in results.parameters if one.changed]
    if changed:
        wide = max(len(one.name) for one in changed)
        found += ["", "  change"]
        for one in sorted(changed, key=lambda one: -(one.importance or 0.0)):
            weight = "" if one.importance is None else f"   (importance {share(one.importance)})"
            found.append(f"    {one.name:<{wide}}  {tables.value_text(one.default)} -> {tables.value_text(one.best)}{weight}")
    if results.front:
        found += ["", "  front"]
        found += [
            "    " + one_line(f"trial {row[0]}: {row[1]}, {results.objective.second} {row[2]}: {row[3]}", width - 4)
            for row in tables.front(results).rows
        ]
    if results.failures:
        found += ["", "  failed"]
        for failure in results.failures[:_MOST_FAILURES]:
            text = f"{len(failure.trials)} × {tables.OUTCOMES.get(failure.outcome, failure.outcome)}"
            found.append("    " + one_line(text + (f": {failure.evidence}" if failure.evidence else ""), width - 4))
        more = len(results.failures) - _MOST_FAILURES
        found += [f"    and {more} more kinds"] if more > 0 else []
    return [*found, "", *wrap(tables.budget(results), width)]


def show(results: StudyResults, out: TextIO, width: int = WIDTH) -> None:
    out.write("\n".join(lines(results, width)) + "\n")
    out.flush()
