"""An external benchmark as a process: its end, its deadline, a service that dies or hangs, and that nothing of it is left."""

import os
import signal
import sys
import threading
from pathlib import Path

import psutil
import pytest

from loadcell.clock import NS_PER_S, MonotonicClock
from loadcell.fleet.registry import Registry
from loadcell.metrics.exposition import Scrape, parse_metrics
from loadcell.tune.external.run import Ended, Limits, Stillness, run
from loadcell.tune.external.told import Command

pytestmark = pytest.mark.timeout(60)


def ran(tmp_path: Path, code: str, *, limits: Limits | None = None, scrape=lambda: (), trouble=lambda: None) -> Ended:
    registry = Registry(tmp_path / "state")
    command = Command((sys.executable, "-c", code), {"MINE": "1"}, tmp_path / "results")
    ended = run(command, tmp_path / "log", limits or Limits(30, 30), registry, scrape, trouble, MonotonicClock(), name="study")
    assert registry.entries() == ()
    return ended


def test_only_what_is_new_is_its_result(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "old.json").write_text("{}")
    code = f"import os; open({str(tmp_path / 'results' / 'new.json')!r}, 'w').write(os.environ['MINE'])"
    ended = ran(tmp_path, code)
    assert (ended.how, ended.code, [path.name for path in ended.files]) == ("done", 0, ["new.json"])


def test_another_exit_code_is_a_failure_with_its_last_words(tmp_path: Path) -> None:
    ended = ran(tmp_path, "import sys; print('no such dataset', flush=True); sys.exit(3)")
    assert (ended.how, ended.code) == ("failed", 3)
    assert "exit code 3: no such dataset" in ended.text


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: OpenAI Completions API URL must end with one of: {'completions'}.",
        "vllm: error: unrecognized arguments: --no-such-option 64",
        "2026-12-01 13:06:51 - evalscope - \x1b[31mERROR\x1b[0m: no data set",
    ],
)
def test_the_line_that_names_the_error_is_told_whatever_follows_it(tmp_path: Path, line: str) -> None:
    """A library of vLLM's lists at its exit what it has leaked."""
    (tmp_path / "said").write_text("\n".join(["Traceback (most recent call last):", line, *[' - leaked function "gemm"'] * 30]))
    ended = ran(tmp_path, f"print(open({str(tmp_path / 'said')!r}).read(), flush=True); raise SystemExit(1)")
    told = line.replace("\x1b[31m", "").replace("\x1b[0m", "")
    assert ended.text == f"it ended with exit code 1: {told}"


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    command = Command((str(tmp_path / "nothing"),), {}, tmp_path)
    ended = run(command, tmp_path / "log", Limits(30, 30), Registry(tmp_path / "s"), lambda: (), lambda: None, MonotonicClock(), name="s")
    assert (ended.how, ended.code) == ("failed", 127)


def test_a_deadline_ends_it_and_its_children(tmp_path: Path) -> None:
    child = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(subprocess.Popen(['sleep', '60']).pid))"
    ended = ran(tmp_path, f"import subprocess, time; {child}; time.sleep(60)", limits=Limits(1, 30))
    assert ended.how == "deadline"
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert ended.seconds < 15


def test_trouble_of_the_service_ends_it(tmp_path: Path) -> None:
    ended = ran(tmp_path, "import time; time.sleep(60)", trouble=lambda: "replica-0 died: exit code 1")
    assert (ended.how, ended.text) == ("service", "replica-0 died: exit code 1")


def test_a_counter_that_stands_still_while_requests_run_is_a_hang(tmp_path: Path) -> None:
    standing = Scrape(generated=100.0, running=4.0)
    ended = ran(tmp_path, "import time; time.sleep(60)", limits=Limits(30, 0.5, 0.1), scrape=lambda: (standing,))
    assert ended.how == "hung"
    assert "stood still" in ended.text


def test_a_signal_of_the_user_ends_it(tmp_path: Path) -> None:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    ended = ran(tmp_path, "import time; time.sleep(60)")
    assert (ended.how, ended.signal) == ("signal", signal.SIGINT)


@pytest.mark.parametrize(
    ("steps", "still"),
    [
        ([(10, 1), (10, 1), (10, 1)], 2),
        ([(10, 1), (11, 1), (11, 1)], 1),
        ([(10, 1), (10, 0), (10, 1)], 0),
        ([(10, 0), (10, 0), (10, 0)], 0),
        ([(10, 1), None, (10, 1)], 0),
        ([(10, 1), (10, 1), (None, 1)], 0),
    ],
)
def test_standing_still_is_only_what_can_be_told(steps, still) -> None:
    seen = Stillness()
    for at, step in enumerate(steps):
        scrape = None if step is None else Scrape(generated=step[0], running=step[1])
        found = seen.still_s([scrape], at * NS_PER_S)
    assert found == still


def test_the_counter_of_output_tokens_is_read_from_metrics() -> None:
    text = 'vllm:generation_tokens_total{engine="0"} 40.0\nvllm:generation_tokens_total{engine="1"} 2.0\nvllm:num_requests_running{engine="0"} 3\n'
    found = parse_metrics(text)
    assert (found.generated, found.running) == (42.0, 3.0)
