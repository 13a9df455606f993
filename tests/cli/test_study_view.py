"""What a study shows while it runs: plain lines where nobody looks, a display of six lines below them on a terminal."""

import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.tune.studies import LIMIT, Ready

from loadcell.cli.study_view import StudyView, label, trial_line
from loadcell.load.snapshot import Snapshot
from loadcell.tune.events import Began
from loadcell.tune.outcome import TrialResult
from loadcell.tune.spec import LoadTable, Objective
from loadcell.tune.stopping import Budget

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
DEFAULT = {"seqs": 64, "memory": 0.9, "caching": True}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def ready(tmp_path: Path) -> Any:
    """A study of which nothing has run yet."""
    made = Ready(tmp_path / "s", sampler="random")
    spec = SimpleNamespace(study=SimpleNamespace(name="t"), objective=Objective(), load=LoadTable())
    return SimpleNamespace(spec=spec, study=made.study, budget=Budget(wall_s=300, trials=9), folder=Path("runs/t"), record=made.record)


def result(number: int, outcome: Any = "ok", kind: Any = "search", **more: Any) -> TrialResult:
    return TrialResult(number, {**DEFAULT, "seqs": 128}, outcome, "measure", kind=kind, launch_s=2.0, measure_s=4.0, **more)


def one_trial(view: StudyView, ready: Any) -> None:
    view.opening(ready)
    view.stage("search")
    view.began(Began("", 3, "search", "search/3", {**DEFAULT, "seqs": 128}))
    view.phase(3, "measure")
    view.ended(result(3, objective=4210.0, violations={LIMIT: 0.1}), ready.study.spent())
    view.began(Began("", 4, "search", "search/4", DEFAULT))
    view.ended(result(4, "oom_start", evidence="CUDA out of memory"), ready.study.spent())
    view.stop()


def test_without_a_terminal_there_are_two_lines_for_a_trial(ready: Any) -> None:
    err = io.StringIO()
    one_trial(StudyView(io.StringIO(), err, quiet=False), ready)
    lines = err.getvalue().splitlines()
    assert lines[0] == "loadcell: t: 3 parameters, more configurations than can be counted; budget 9 trials, 5 min; folder runs/t"
    assert lines[2] == "loadcell: trial 3 (search): seqs=128"
    assert lines[3].startswith(f"loadcell: trial 3: ok, 4,210 tokens/s, missed {LIMIT}, 6.0 s · nothing within the limits yet · 9 trials, ")
    assert lines[4] == "loadcell: trial 4 (search): as the default"
    assert lines[5].startswith("loadcell: trial 4: oom start, 6.0 s · CUDA out of memory · nothing within")


def test_quiet_says_only_what_went_wrong(ready: Any) -> None:
    err = io.StringIO()
    view = StudyView(io.StringIO(), err, quiet=True)
    one_trial(view, ready)
    view.note("the machine has drifted")
    view.note("the machine has drifted")
    assert err.getvalue() == "loadcell: the machine has drifted\n"


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_the_display_is_six_lines_that_do_not_wrap_and_are_gone_at_the_end(
    ready: Any, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    view = StudyView(io.StringIO(), Terminal(), quiet=False)
    view.opening(ready)
    view.began(Began("", 3, "search", "search/3", {**DEFAULT, "seqs": 128, "memory": 0.5}))
    view.phase(3, "measure")
    view.snapshot(
        Snapshot(phase="measure", elapsed_s=3.0, dispatched=90, done=80, ok=80, failed=0, in_flight=10, planned=160, tokens_per_s=1234.0)
    )
    live = view._live
    assert live is not None
    drawn = live.console.render_lines(view._drawing(), pad=False)
    lines = ["".join(part.text for part in line) for line in drawn]
    assert len(lines) == 6
    assert max(map(len, lines)) <= columns
    assert lines[0].startswith("trial 3 (search), measuring, ")
    if columns == 200:
        assert "80/160 requests, 10 in flight, 1,234 tok/s" in lines[0]
        assert lines[1] == "  seqs=128 memory=0.5"
        assert lines[5].startswith("left: 9 trials, 5 min")
    view.stop()
    assert view._live is None


def test_on_a_terminal_a_trial_is_one_line_as_it_ends(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    err = Terminal()
    one_trial(StudyView(io.StringIO(), err, quiet=False), ready)
    lines = [line.strip() for line in CONTROL.sub("", err.getvalue()).splitlines()]
    assert f"trial 3 (search): ok, 4,210 tokens/s, missed {LIMIT}, 6.0 s: seqs=128" in lines
    assert "trial 4 (search): oom start, 6.0 s: as the default · CUDA out of memory" in lines
    assert "loadcell: trial 3 (search): seqs=128" not in lines


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    err = Terminal()
    one_trial(StudyView(io.StringIO(), err, quiet=False), ready)
    assert "\x1b" not in err.getvalue()
    assert "loadcell: trial 3 (search): seqs=128" in err.getvalue()


@pytest.mark.parametrize(
    ("tag", "kind", "said"),
    [
        ("search/7", "fill", "trial 7 (fill)"),
        ("confirm/0/0", "confirm", "trial 7 (confirm, round 1: the default)"),
        ("confirm/1/2/again", "confirm", "trial 7 (confirm, round 2: candidate 2, again)"),
        ("final/0/1", "confirm", "trial 7 (confirm, round 1: what is left)"),
        ("revert/seqs/1", "revert", "trial 7 (revert of seqs)"),
    ],
)
def test_what_a_trial_is_for(tag: str, kind: Any, said: str) -> None:
    assert label(Began("", 7, kind, tag, {})) == said


def test_a_latency_of_a_front_is_told_as_a_time(ready: Any) -> None:
    ready.spec.objective = Objective(pareto=("ttft p95", "throughput"))
    view = StudyView(io.StringIO(), err := io.StringIO(), quiet=False)
    view.opening(ready)
    view.ended(result(3, objective=4210.0, figures={"second": 10.0}), ready.study.spent())
    assert "ok, 4,210 tokens/s, ttft p95 100.0 ms, 6.0 s · nothing within the limits yet" in err.getvalue()
    assert trial_line(result(3, objective=1.0), "") == "ok, 6.0 s"
