"""A run that was cut short goes on: what was measured stays byte for byte, the rest is run, what changed is measured anew."""

import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from loadcell.errors import UserError
from loadcell.experiment.results import report_again
from loadcell.experiment.state import Began, encode
from loadcell.sim.inprocess import running_engine
from loadcell.testing.replies import Script, chat_stream
from loadcell.testing.scripted_server import Received, ScriptedServer

from .running import BENCH, Told, bytes_of, ready, run, states, text


def rows(number: int) -> str:
    return "".join(f"[[scenario]]\nname = 's{index}'\nconcurrency = {index + 1}\n" for index in range(number))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_engine(ttft_ms=1.0, itl_ms=1.0) as engine:
        yield engine.root_url


class Enough(BaseException):
    """Ends a run in its tracks."""


def broken_off_after(tmp_path: Path, spec: str, cells: int) -> None:
    def at_cell(_: str) -> None:
        if len(told.began) > cells:
            raise Enough

    told = Told(at_cell)
    with pytest.raises(Enough):
        run(tmp_path, spec, told)


def test_ten_after_a_resume_and_the_first_six_are_unchanged_byte_for_byte(tmp_path: Path, url: str) -> None:
    spec = text([url], rows(10))
    broken_off_after(tmp_path, spec, 6)
    kept = {name: body for name, body in bytes_of(tmp_path / "run").items() if name.startswith(("cells/", "raw_outputs/"))}
    assert set(states(report_again(tmp_path / "run")[0]).values()) == {"done", "cut_off", "not_run"}
    told = Told()
    results = run(tmp_path, None, told, resume=tmp_path / "run")
    assert (results.state, set(states(results).values()), len(results.cells)) == ("complete", {"done"}, 10)
    assert told.began == ["s6", "s7", "s8", "s9"]
    assert [cell.reused for cell in results.cells] == [True] * 6 + [False] * 4
    after = bytes_of(tmp_path / "run")
    assert {name: after[name] for name in kept} == kept
    assert len([name for name in after if name.startswith("raw_outputs/")]) == 10


def test_a_resume_of_what_is_whole_runs_nothing(tmp_path: Path, url: str) -> None:
    run(tmp_path, text([url], rows(1)))
    told = Told()
    with ready(tmp_path, None, told, resume=tmp_path / "run") as found:
        assert found.run.unfinished == 0
        assert found.run.execute().state == "complete"
    assert told.began == []
    assert not (tmp_path / "run" / "spec.2.json").exists()


def test_a_resume_keeps_what_is_known_of_the_services_until_they_are_started_again(tmp_path: Path, url: str) -> None:
    """Their names, how they were started, what happened to them: the cells that are kept were measured on them."""
    first = run(tmp_path, text([url], rows(1)))
    body = replace(
        first,
        notices=[*first.notices, "replica-0 was started again"],
        fleet=replace(first.fleet, leftovers=["port 1 is held"], services=[replace(first.fleet.services[0], command="serve it")]),
    )
    (tmp_path / "run" / "results.json").write_bytes(msgspec.json.encode(body))
    again = run(tmp_path, None, resume=tmp_path / "run")
    assert (again.fleet.services, again.fleet.model) == (body.fleet.services, first.fleet.model)
    assert again.fleet.leftovers == []  # this part of the run left nothing
    assert again.notices == [*body.notices, "left behind by an earlier part of this run: port 1 is held"]
    assert "serve it" in (tmp_path / "run" / "report.md").read_text()
    assert run(tmp_path, None, resume=tmp_path / "run").notices == again.notices


def test_what_the_specification_says_otherwise_now_is_measured_anew_and_the_old_is_kept(tmp_path: Path, url: str) -> None:
    two = "[[scenario]]\nname = 'a'\nconcurrency = 1\n[[scenario]]\nname = 'b'\nconcurrency = {}\n"
    run(tmp_path, text([url], two.format(1)))
    kept = bytes_of(tmp_path / "run" / "cells")
    told = Told()
    results = run(tmp_path, text([url], two.format(2)), told, resume=tmp_path / "run")
    assert told.began == ["b"]
    cell = next(cell for cell in results.cells if cell.name == "b")
    assert (cell.folder, cell.earlier, cell.raw_output) == ("cells/b.2", ["cells/b"], "raw_outputs/openai_b.2.jsonl")
    after = bytes_of(tmp_path / "run" / "cells")
    assert {name: after[name] for name in kept} == kept
    assert (tmp_path / "run" / "spec.2.json").exists()
    assert (tmp_path / "run" / "experiment.2.toml").exists()


def test_a_state_torn_in_the_middle_of_a_character_costs_one_cell(tmp_path: Path, url: str) -> None:
    run(tmp_path, text([url], rows(3)))
    state = tmp_path / "run" / "state.jsonl"
    lines = state.read_bytes().splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines) if b'"ended"' in line]
    torn = lines[ends[-1]].replace(b"done", "dé".encode())
    state.write_bytes(b"".join(lines[: ends[-1]]) + torn[: torn.index("é".encode()) + 1])
    told = Told()
    results = run(tmp_path, None, told, resume=tmp_path / "run")
    assert told.began == [results.cells[-1].name]
    assert set(states(results).values()) == {"done"}
    assert any("half-written line" in notice for notice in results.notices)


def test_a_finished_cell_whose_summary_is_gone_is_read_from_its_records(tmp_path: Path, url: str) -> None:
    figures = run(tmp_path, text([url], rows(1))).cells[0].figures
    (tmp_path / "run" / "cells" / "s0" / "summary.json").unlink()
    results = run(tmp_path, None, resume=tmp_path / "run")
    assert results.cells[0].figures == figures


def test_a_failed_cell_is_run_again(tmp_path: Path) -> None:
    good, bad = chat_stream("a", "b"), [(0.0, b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")]

    asked = count()

    def reply(request: Received) -> Script:
        return good if request.method == "POST" and next(asked) >= 6 else bad

    with ScriptedServer(reply) as server:
        spec = text([server.base_url], "[[scenario]]\nname = 'a'\n", bench=BENCH + "model = 'm'\nrequest-max-retries = 0\n")
        first = run(tmp_path, spec)
        assert (states(first), first.cells[0].folder) == ({"a": "failed"}, "cells/a")
        assert (first.cells[0].cause or "").startswith("none of 6 requests was ok (6 × http_5xx")
        second = run(tmp_path, None, resume=tmp_path / "run")
    assert (states(second), second.cells[0].folder, second.cells[0].earlier) == ({"a": "done"}, "cells/a.2", ["cells/a"])


def test_what_a_run_was_given_holds_for_its_resume(tmp_path: Path, url: str) -> None:
    broken_off_after(tmp_path, text([url], rows(3)), 1)
    (tmp_path / "exp.toml").rename(tmp_path / "moved.toml")
    with pytest.raises(UserError, match=r"exp\.toml"):
        run(tmp_path, None, resume=tmp_path / "run")
    told = Told()
    run(tmp_path, None, told, resume=tmp_path / "run", spec=tmp_path / "moved.toml")
    assert "s0" not in told.began


def test_a_secret_that_was_set_has_to_be_given_again(tmp_path: Path, url: str) -> None:
    spec = text([url], rows(1))
    run(tmp_path, spec, sets=("bench.header=['Authorization=Bearer abcdefgh']", "bench.extra_body.api_key='abcdefgh'"))
    assert "abcdefgh" not in "".join(map(str, bytes_of(tmp_path / "run").values()))
    with pytest.raises(UserError, match="held a secret, which is in no file: give it again"):
        run(tmp_path, None, resume=tmp_path / "run")


def test_what_cannot_be_resumed_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(UserError, match="this is no experiment's folder"):
        run(tmp_path, text([url], rows(10)), resume=tmp_path)
    (tmp_path / "state.jsonl").write_bytes(encode(Began("t", "a", "h", "cells/a")) + b"\n")
    with pytest.raises(UserError, match="tells of no experiment"):
        run(tmp_path, text([url], rows(10)), resume=tmp_path)


def test_a_measured_cell_of_which_nothing_can_be_read_is_no_result_and_is_measured_again(tmp_path: Path, url: str) -> None:
    """As where somebody deletes the folder of a cell that he does not believe."""
    run(tmp_path, text([url], rows(2)))
    shutil.rmtree(tmp_path / "run" / "cells" / "s0")
    found, _ = report_again(tmp_path / "run")
    assert states(found) == {"s0": "failed", "s1": "done"}
    assert found.cells[0].cause == "it was measured, but nothing of that can be read any more in cells/s0"
    told = Told()
    with ready(tmp_path, None, told, resume=tmp_path / "run") as prepared:
        assert (prepared.resumed, prepared.run.unfinished) == (1, 1)
        results = prepared.run.execute()
    assert told.began == ["s0"]
    assert states(results) == {"s0": "done", "s1": "done"}
    assert results.cells[0].folder == "cells/s0.2"


def test_a_report_without_the_plan_shows_the_cells_that_there_are(tmp_path: Path, url: str) -> None:
    before = run(tmp_path, text([url], rows(2)))
    (tmp_path / "run" / "spec.json").unlink()
    found, remarks = report_again(tmp_path / "run")
    assert states(found) == {"s0": "done", "s1": "done"}
    assert [cell.figures for cell in found.cells] == [cell.figures for cell in before.cells]
    assert remarks == ["spec.json cannot be read: cells are shown as state.jsonl names them, each a scenario of its own"]


def test_records_that_are_torn_are_partial_and_blame_nobody_else(tmp_path: Path, url: str) -> None:
    run(tmp_path, text([url], rows(1)))
    records = tmp_path / "run" / "cells" / "s0" / "records.jsonl"
    body = records.read_bytes()
    records.write_bytes(body[: body.rindex(b"\n", 0, len(body) - 1) - 20])
    (cell,) = report_again(tmp_path / "run")[0].cells
    assert cell.purity is None or cell.purity.state == "unknown"
    assert "foreign_requests" not in [reason.rule for reason in cell.reasons]
    assert any("half-written last line was dropped" in notice for notice in cell.notices)


def test_where_the_specification_is_gone_its_copy_is_named_and_does(tmp_path: Path, url: str) -> None:
    run(tmp_path, text([url], rows(1)))
    (tmp_path / "exp.toml").unlink()
    with pytest.raises(UserError, match=r"exp.toml cannot be read again: give the file, .*run/experiment.toml is what it said"):
        run(tmp_path, None, resume=tmp_path / "run")
    told = Told()
    results = run(tmp_path, None, told, spec=tmp_path / "run" / "experiment.toml", resume=tmp_path / "run")
    assert (told.began, states(results)) == ([], {"s0": "done"})
