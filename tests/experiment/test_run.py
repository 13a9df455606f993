"""The matrix over simulated engines: results, failures that end nothing, signals, disks; over played services: what is asked of a fleet, and when."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path

import jsonschema
import msgspec
import psutil
import pytest
from msgspec.structs import replace
from tests.load.running import counting, until

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.experiment.prepare import Prepared
from loadcell.experiment.results import report_again
from loadcell.experiment.run import LOW_DISK, ExperimentRun, exit_code
from loadcell.fleet.monitor import FleetEvent
from loadcell.report.experiment import results_schema
from loadcell.sim.inprocess import RunningEngine, running_engine
from loadcell.testing.replies import HANG, chat_stream

from .running import PlayedServices, Told, bytes_of, ready, run, states, stored, text

ROWS = "[[scenario]]\nname = 'c1'\nconcurrency = 1\n[[scenario]]\nname = 'c2'\nconcurrency = 2\n"


@pytest.fixture(scope="module")
def engines():
    with running_engine(ttft_ms=2.0, itl_ms=1.0) as one, running_engine(ttft_ms=2.0, itl_ms=1.0) as other:
        yield one, other


@pytest.fixture
def urls(engines: tuple[RunningEngine, RunningEngine]) -> list[str]:
    return [engine.root_url for engine in engines]


def test_a_matrix_leaves_results_reports_records_and_raw_outputs(tmp_path: Path, urls: list[str]) -> None:
    told = Told()
    results = run(tmp_path, text(urls, ROWS, top="repeats = 2\nslo = ['ttft p95 <= 1s']"), told)
    folder = tmp_path / "run"
    assert (results.state, results.cause, [scenario.name for scenario in results.scenarios]) == ("complete", None, ["c1", "c2"])
    assert states(results) == dict.fromkeys(("c1", "c1-r2", "c2", "c2-r2"), "done")
    assert all(cell.slos_met and cell.figures and cell.figures.all.ok == 6 and len(cell.endpoints) == 2 for cell in results.cells)
    assert results.scenarios[0].spread["ttft_mean_ms"].values.__len__() == 2
    jsonschema.validate(json.loads((folder / "results.json").read_bytes()), results_schema())
    assert sorted(path.name for path in (folder / "raw_outputs").iterdir()) == [
        f"openai_{name}.jsonl" for name in ("c1-r2", "c1", "c2-r2", "c2")
    ]
    for name in told.began:
        assert {path.name for path in (folder / "cells" / name).iterdir()} >= {"records.jsonl", "run.json", "summary.json", "report.md"}
    report = (folder / "report.md").read_text()
    for heading in ("## Scenarios", "## TTFT", "## TPOT", "## E2E", "## Endpoints", "## Limits", "## Purity", "## Repeats"):
        assert heading in report
    assert len(told.lines) == 4
    ports = " ".join(url.rpartition(":")[2] for url in urls)
    assert told.lines[0].endswith(f"+00:00] service health check: healthy=[{ports}] unhealthy=[]")


def test_purity_of_each_cell_is_told(tmp_path: Path, urls: list[str]) -> None:
    results = run(tmp_path, text(urls, ROWS))
    assert [(cell.purity.state, cell.purity.counted, cell.purity.sent) for cell in results.cells if cell.purity] == [("pure", 6, 6)] * 2


@contextmanager
def saying_hello(url: str, every_s: float) -> Iterator[list[int]]:
    """Somebody else, who asks for tokens now and then, as a health probe that infers does."""
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}).encode()
    over, sent = threading.Event(), [0]

    def ask() -> None:
        while not over.wait(every_s):
            request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5) as answer:
                answer.read()
            sent[0] += 1

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield sent
    finally:
        over.set()
        thread.join()


def test_somebody_else_s_requests_are_counted_and_their_rate_is_told(tmp_path: Path, urls: list[str]) -> None:
    rows = "[[scenario]]\nname = 'c1'\nconcurrency = 1\nnum-prompts = 40\noutput-len = 40\n"
    with saying_hello(urls[0], 0.2) as sent:
        results = run(tmp_path, text(urls, rows))
    (cell,) = results.cells
    assert cell.purity is not None
    assert (cell.verdict, cell.purity.state, [reason.rule for reason in cell.reasons]) == ("suspect", "foreign", ["foreign_requests"])
    assert 1 <= (cell.purity.foreign or 0) <= sent[0]
    assert 2 < (cell.purity.foreign_per_s or 0) < 8
    assert "somebody else loaded the services during the run: " in (tmp_path / "run" / "report.md").read_text()


def test_a_scenario_that_fails_is_recorded_with_its_cause_and_the_rest_goes_on(tmp_path: Path, urls: list[str]) -> None:
    rows = "[[scenario]]\nname = 'bad'\nmodel = 'no-such-model'\nrequest-max-retries = 0\n[[scenario]]\nname = 'good'\n[[scenario]]\nname = 'worse'\ntokenizer = '/no/such/file'"
    told = Told()
    results = run(tmp_path, text(urls, rows), told)
    assert states(results) == {"bad": "failed", "good": "done", "worse": "failed"}
    causes = {cell.name: cell.cause for cell in results.cells}
    assert "no-such-model" in (causes["bad"] or "")
    assert "/no/such/file" in (causes["worse"] or "")
    report = (tmp_path / "run" / "report.md").read_text()
    assert "WITH FAILURES" in report.splitlines()[0]
    assert "worse: FAILED" in report
    assert not (tmp_path / "run" / "cells" / "worse").exists()
    assert exit_code(results, (), signal_number=None, strict=False, gate=False) == 1


def test_a_bug_of_ours_in_one_cell_does_not_end_the_matrix(tmp_path: Path, urls: list[str]) -> None:
    services = PlayedServices(urls)
    with ready(tmp_path, text(urls, ROWS)) as found:
        services.now = iter_calls([ZeroDivisionError("bug"), services.now])  # type: ignore[method-assign]
        results = played(found, services).execute()
    assert states(results) == {"c1": "failed", "c2": "done"}
    assert results.cells[0].cause == "ZeroDivisionError: bug (see error.txt in its folder)"
    assert "Traceback" in (tmp_path / "run" / "cells" / "c1" / "error.txt").read_text()


def iter_calls(answers: list[object]) -> Callable[[], object]:
    left = iter(answers)

    def call() -> object:
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer()  # type: ignore[operator]

    return call


def played(found: Prepared, services: PlayedServices, **changes: object) -> ExperimentRun:
    """The same run over other services."""
    own = found.run
    return ExperimentRun(own._setting, own._folder, services, own._watcher, **changes)  # type: ignore[arg-type]


def test_what_happened_to_a_service_makes_the_cell_suspect_and_stands_in_its_own_report(tmp_path: Path, urls: list[str]) -> None:
    services = PlayedServices(urls)
    services.events = [FleetEvent("2026-01-01T00:00:00+00:00", "replica-1", "failed", "died", "died: killed by signal 9")]
    with ready(tmp_path, text(urls, ROWS)) as found:
        results = played(found, services).execute()
    first, second = results.cells
    assert (first.verdict, second.verdict) == ("suspect", "valid")
    assert first.reasons[0].observed == "replica-1 died: killed by signal 9"
    assert "replica-1 died: killed by signal 9" in (tmp_path / "run" / "cells" / "c1" / "report.md").read_text()
    assert services.calls == ["start", "serving", "revive", "serving", "stop"]
    assert results.fleet.leftovers == ["port 1 is held"]


def test_a_load_that_nobody_is_left_to_answer_ends_at_once_with_what_was_measured_and_the_next_one_goes_on(
    tmp_path: Path, urls: list[str]
) -> None:
    services = PlayedServices(urls)
    cell = tmp_path / "run" / "cells" / "c1"

    def some_have_ended() -> bool:
        return "c2" not in told.began and sum(log.read_bytes().count(b"\n") for log in cell.glob("records*.jsonl")) > 3

    services.all_gone = some_have_ended
    services.events = [FleetEvent("2026-01-01T00:00:00+00:00", "replica-1", "failed", "died", "died: killed by signal 9")]
    told = Told()
    rows = '[[scenario]]\nname = "c1"\nconcurrency = 1\nnum-prompts = 1000000\n[[scenario]]\nname = "c2"\nconcurrency = 2\n'
    with ready(tmp_path, text(urls, rows), told) as found:
        results = played(found, services).execute()
    first, second = results.cells
    assert (first.state, second.state) == ("failed", "done")
    assert first.cause == "replica-1 died: killed by signal 9; no process of any service is left"
    assert first.figures is not None
    assert first.figures.all.ok > 2
    assert services.calls == ["start", "serving", "revive", "serving", "stop"]
    report = (tmp_path / "run" / "report.md").read_text()
    assert "c1: FAILED: replica-1 died: killed by signal 9; no process of any service is left" in report
    assert "no process of any service is left" in (cell / "report.md").read_text()


def test_what_services_leave_behind_is_a_failure_of_the_environment(tmp_path: Path, urls: list[str]) -> None:
    with ready(tmp_path, text(urls, ROWS)) as found:
        results = played(found, PlayedServices(urls)).execute()
    assert results.state == "complete"
    assert exit_code(results, (), signal_number=None, strict=False, gate=False) == 1
    valid = [replace(cell, verdict="valid") for cell in results.cells]  # whatever this machine was busy with
    scenarios = [replace(one, cells=[cell for cell in valid if cell.scenario == one.name]) for one in results.scenarios]
    clean = replace(results, scenarios=scenarios, fleet=replace(results.fleet, leftovers=[]))
    assert exit_code(clean, (), signal_number=None, strict=False, gate=False) == 0
    left = replace(clean, fleet=results.fleet)
    assert [exit_code(left, (), signal_number=number, strict=False, gate=False) for number in (None, 2)] == [1, 130]


def test_the_fleet_s_log_of_events_is_in_the_results_without_its_routine_and_its_torn_line(tmp_path: Path, urls: list[str]) -> None:
    with ready(tmp_path, text(urls, ROWS)) as found:
        events = [FleetEvent("t", "replica-1", "ready", word) for word in ("started", "ready", "died", "restart", "ready", "stopped")]
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
        (tmp_path / "run" / "fleet_events.jsonl").write_bytes(lines + b'{"time":"t","serv')
        results = played(found, PlayedServices(urls)).execute()
    assert [event.event for event in results.fleet.events] == ["died", "restart"]


def test_replicas_that_are_missing_are_told_and_none_at_all_fails_the_cell(tmp_path: Path, urls: list[str]) -> None:
    services = PlayedServices(urls[:1])
    services.missing = ("replica-1 does not run (out of memory)",)
    with ready(tmp_path, text(urls, ROWS)) as found:
        results = played(found, services).execute()
    assert {cell.verdict for cell in results.cells} == {"suspect"}
    services.urls = ()
    with ready(tmp_path, text(urls, ROWS), output_dir=str(tmp_path / "other")) as found:
        results = played(found, services).execute()
    assert [cell.cause for cell in results.cells] == ["no service is ready: replica-1 does not run (out of memory)"] * 2


def test_figures_per_device_count_the_devices_of_the_services_that_serve(tmp_path: Path, urls: list[str]) -> None:
    services = PlayedServices(urls)
    services.devices = 8
    with ready(tmp_path, text(urls, ROWS, bench="num-prompts = 6\ninput-len = 8\noutput-len = 4\n")) as found:
        results = played(found, services).execute()
    figures = results.cells[0].figures
    assert figures is not None
    assert figures.devices == 8
    assert figures.output_tokens_per_s_per_device == pytest.approx((figures.all.output_tokens_per_s or 0) / 8)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_the_client_keeps_to_the_last_cpu_where_it_is_asked_to_and_only_while_it_loads(tmp_path: Path, urls: list[str]) -> None:
    from msgspec.structs import replace

    services, before = PlayedServices(urls), os.sched_getaffinity(0)
    with ready(tmp_path, text(urls, ROWS)) as found:
        found.run._setting = replace(found.run._setting, apart=True)
        played(found, services).execute()
    assert services.mask == {max(before)}
    assert os.sched_getaffinity(0) == before


def test_a_disk_that_runs_full_ends_the_matrix_cleanly(tmp_path: Path, urls: list[str]) -> None:
    left = chain([LOW_DISK, LOW_DISK], repeat(LOW_DISK - 1))
    services = PlayedServices(urls)
    with ready(tmp_path, text(urls, ROWS)) as found:
        results = played(found, services, free=lambda _: next(left)).execute()
    assert (results.state, states(results)) == ("stopped", {"c1": "done", "c2": "not_run"})
    assert "make room, then --resume" in (results.cause or "")
    assert services.calls == ["start", "serving", "stop"]
    assert exit_code(results, (), signal_number=None, strict=False, gate=False) == 1
    assert stored(tmp_path / "run").state == "stopped"


def test_services_that_do_not_start_are_the_cause_and_nothing_was_run(tmp_path: Path, urls: list[str]) -> None:
    class Broken(PlayedServices):
        def __enter__(self) -> PlayedServices:
            raise EnvironmentFailure("replica-0 did not start: out of memory")

    with ready(tmp_path, text(urls, ROWS)) as found, pytest.raises(EnvironmentFailure, match="out of memory"):
        played(found, Broken(urls)).execute()
    results = stored(tmp_path / "run")
    assert (results.state, results.cause, set(states(results).values())) == (
        "stopped",
        "replica-0 did not start: out of memory",
        {"not_run"},
    )


def test_a_refusal_leaves_no_folder(tmp_path: Path, urls: list[str]) -> None:
    with pytest.raises(UserError, match="nothing to run"), ready(tmp_path, f"name='x'\n[target]\nbase_url={urls!r}"):
        pass
    with pytest.raises(UserError, match="--only c9"), ready(tmp_path, text(urls, ROWS), only=("c9",)):
        pass
    assert not (tmp_path / "run").exists()


def test_only_runs_what_it_names(tmp_path: Path, urls: list[str]) -> None:
    assert states(run(tmp_path, text(urls, ROWS), only=("c2*",))) == {"c2": "done"}


def test_a_run_on_services_that_outlive_it_draws_prompts_of_its_own(tmp_path: Path, urls: list[str]) -> None:
    seeds = []
    for name in ("a", "b"):
        with ready(tmp_path, text(urls, ROWS), output_dir=str(tmp_path / name)) as found:
            seeds.append(found.spec.seed)
    assert seeds[0] != seeds[1]
    with ready(tmp_path, text(urls, ROWS, top="seed = 5"), output_dir=str(tmp_path / "c")) as found:
        assert found.spec.seed == 5


@pytest.mark.parametrize(
    ("changes", "code"),
    [({}, 0), ({"gate": True}, 3), ({"signal_number": 15}, 143), ({"signal_number": 2}, 130)],
)
def test_exit_codes(tmp_path: Path, urls: list[str], changes: dict[str, int], code: int) -> None:
    results = run(tmp_path, text(urls, "[[scenario]]\nname = 'c1'\nconcurrency = 1", top="slo = ['ttft p50 <= 1us']"))
    assert exit_code(results, (), **({"signal_number": None, "strict": False, "gate": False} | changes)) == code  # type: ignore[arg-type]
    assert exit_code(results, ("c1",), signal_number=None, strict=False, gate=False) == 3


def test_what_is_made_again_from_the_records_is_the_same(tmp_path: Path, urls: list[str]) -> None:
    results = run(tmp_path, text(urls, ROWS))
    before = bytes_of(tmp_path / "run" / "cells")
    again, remarks = report_again(tmp_path / "run")
    assert remarks == []
    assert [cell.figures for cell in again.cells] == [cell.figures for cell in results.cells]
    assert (again.state, again.name, again.verdict, again.fleet) == (results.state, results.name, results.verdict, results.fleet)
    assert bytes_of(tmp_path / "run" / "cells") == before


def command(tmp_path: Path, *words: str) -> "subprocess.Popen[str]":
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    return subprocess.Popen(
        [sys.executable, "-m", "loadcell", "run", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=tmp_path
    )


SLOW = chat_stream("a", "b", "c", first_ms=5, every_ms=40)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_drains_the_cell_and_leaves_results_that_can_be_resumed(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with counting(20, SLOW) as (server, reply):
        bench = "num-prompts = 1000\ninput-len = 8\noutput-len = 3\ntokenizer = 'words'\nmodel = 'm'\nhealth-check-interval = 0\n"
        (tmp_path / "exp.toml").write_text(
            text([server.base_url], "[[scenario]]\nname='long'\nconcurrency = 4\n[[scenario]]\nname='next'\n", bench=bench)
        )
        process = command(tmp_path, "exp.toml", "--output-dir", "run")
        reply.wait()
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    results = stored(tmp_path / "run")
    assert (results.state, states(results)) == ("interrupted", {"long": "interrupted", "next": "not_run"})
    assert results.cells[0].figures is not None
    assert results.cells[0].figures.all.ok >= 16
    assert "INTERRUPTED" in out
    assert "2 of 2 cells are left; go on with: loadcell run --resume run" in err
    assert "Traceback" not in err


def test_two_signals_end_it_at_once_and_the_files_are_whole(tmp_path: Path) -> None:
    with counting(4, [(0.0, HANG)]) as (server, reply):
        bench = "num-prompts = 1000\ninput-len = 8\noutput-len = 3\ntokenizer = 'words'\nmodel = 'm'\nhealth-check-interval = 0\n"
        (tmp_path / "exp.toml").write_text(text([server.base_url], "[[scenario]]\nname = 'c4'\nconcurrency = 4\n", bench=bench))
        process = command(tmp_path, "exp.toml", "--output-dir", "run")
        reply.wait()
        process.send_signal(signal.SIGINT)
        until(lambda: b"stopping" in (tmp_path / "run" / "cells" / "c4" / "events.jsonl").read_bytes())
        asked = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert time.monotonic() - asked < 4
    assert stored(tmp_path / "run").state == "interrupted"


def test_a_kill_leaves_what_was_measured_and_is_told(tmp_path: Path) -> None:
    with counting(30, SLOW) as (server, reply):
        bench = "num-prompts = 1000\ninput-len = 8\noutput-len = 3\ntokenizer = 'words'\nmodel = 'm'\nhealth-check-interval = 0\n"
        rows = "[[scenario]]\nname='short'\nnum-prompts = 10\nconcurrency = 4\n[[scenario]]\nname='long'\nconcurrency = 4\n"
        (tmp_path / "exp.toml").write_text(text([server.base_url], rows, bench=bench))
        process = command(tmp_path, "exp.toml", "--output-dir", "run")
        reply.wait()
        process.kill()
        process.communicate(timeout=30)
        until(lambda: not [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(one.info["cmdline"] or ())])
    kept = bytes_of(tmp_path / "run" / "cells" / "short")
    results, _ = report_again(tmp_path / "run")
    assert (results.state, states(results)) == ("interrupted", {"short": "done", "long": "cut_off"})
    assert results.cells[1].figures is not None
    assert results.cells[1].figures.all.ok > 0
    with running_engine(ttft_ms=1.0, itl_ms=1.0, model="m") as engine:
        sets = (f"target.base_url=['{engine.root_url}']",)
        resumed = run(tmp_path, None, resume=tmp_path / "run", only=("long",), sets=(*sets, "bench.num_prompts=8"))
    assert states(resumed)["long"] == "done"
    long = next(cell for cell in resumed.cells if cell.name == "long")
    assert (long.folder, long.earlier) == ("cells/long.2", ["cells/long"])
    assert bytes_of(tmp_path / "run" / "cells" / "short") == kept
