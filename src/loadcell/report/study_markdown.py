"""What a study found -> report.md. The answer comes first; every cell and line from outside is escaped."""

from loadcell.report import study_tables as tables
from loadcell.report.figures import one_line
from loadcell.report.markdown import escape, fenced, paragraph, table_lines
from loadcell.report.study import StudyResults
from loadcell.report.study_launch import command_line, fits_containers


def render(results: StudyResults) -> str:
    """The whole report."""
    lines = [f"# {tables.title(results)}: {escape(results.name)}", "", paragraph(tables.budget(results)), ""]
    lines += [f"- {paragraph(text)}" for text in tables.answer(results)]
    lines += ["", *_start(results)]
    first = [tables.difference(results), tables.limits(results), tables.confirmation(results), tables.front(results)]
    then = [*(tables.capacity(curve) for curve in results.capacity), tables.failures(results), tables.outcomes(results)]
    for table in (*first, *then, tables.trials(results), tables.environment(results)):
        if table.rows:
            lines += table_lines(table, too_few_note=False)
    remarks = [*results.notices, *results.drifts]
    if remarks:
        lines += ["## Notices", "", *(f"- {paragraph(one_line(text, 600))}" for text in remarks), ""]
    return "\n".join([*lines, *_files(results)]) + "\n"


def _start(results: StudyResults) -> list[str]:
    if not results.launch:
        return []
    lines = ["## How to start it", "", *fenced("\n\n".join(command_line(one) for one in results.launch), "sh")]
    why = fits_containers(results.launch)
    more = "" if why else ", `compose.yaml`, `kubernetes.yaml`"
    lines += [f"`launch/` holds this as `launch.sh`, systemd units{more}: look at the names of images and secrets first.", ""]
    own = (results.spec.get("benchmark") or {}).get("kind", "loadcell") == "loadcell"
    run = ", and `loadcell run best.toml` measures it with the study's load and limits" if own else ""
    return [*lines, f"`loadcell fleet up best.toml` starts it too{run}.", ""]


def _files(results: StudyResults) -> list[str]:
    folder = next((one.folder for one in results.trials if one.folder), None)
    lines = [
        "## Files",
        "",
        "`trials.csv` and `trials.json` hold all trials with all figures; `events.jsonl` is what happened, in order.",
        "",
    ]
    if folder:
        lines += [f"Each trial has a folder with the logs of its services and the records of its load: `{folder}`, …", ""]
    lines += ["`loadcell study show` on this folder makes this file and the others again.", ""]
    if results.state != "complete":
        lines += ["`loadcell tune --resume` on this folder goes on; no trial that ended is measured again.", ""]
    return lines
