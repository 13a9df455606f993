"""What a run prints at its end."""

import io

import msgspec
import pytest

from loadcell.metrics.facts import RunFacts
from loadcell.metrics.summarize import summarize
from loadcell.metrics.summary import Summary
from loadcell.records import RequestRecord
from loadcell.report.terminal import WIDTH, lines, show


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def summary(records: list[RequestRecord], facts: RunFacts) -> Summary:
    return summarize(facts, records)


def test_the_verdict_line_is_first_and_no_line_is_too_wide(summary: Summary) -> None:
    long = msgspec.structs.replace(summary, notices=["x" * 500], errors={"connect_error": "y" * 500})
    found = lines(long)
    assert found[0].startswith("SUSPECT · 2 ok, 2 failed (50.0 %) · of 4 · 2000 ms · 2 endpoints")
    assert found[1].startswith("  SUSPECT ")
    assert max(map(len, found)) <= WIDTH


def test_a_sentence_is_wrapped_where_a_row_is_cut(summary: Summary) -> None:
    reason = msgspec.structs.replace(summary.reasons[0], text=f"{'why ' * 40}and what to do")
    found = lines(msgspec.structs.replace(summary, reasons=[reason], notices=[f"{'word ' * 40}and the end"]))
    assert max(map(len, found)) <= WIDTH
    text = " ".join(" ".join(found).split())
    assert "why and what to do" in text
    assert "word and the end" in text


def test_what_ended_a_run_is_said_once(summary: Summary) -> None:
    said = "SIGINT: draining for 5 s"
    cut = msgspec.structs.replace(
        summary, partial=True, stop_reason="interrupt", stop_detail=said, notices=[said, "the run is partial", "another"]
    )
    found = lines(cut)
    assert sum(said in line for line in found) == 1
    assert "note: another" in found
    assert not any("the run is partial" in line for line in found)


def test_the_headline_is_there(summary: Summary) -> None:
    text = "\n".join(lines(summary))
    for wanted in ("TTFT", "150.0 ms", "Request throughput", "1.00 req/s", "127.0.0.1:30006", "unhealthy", "connection refused"):
        assert wanted in text


def test_a_pipe_gets_plain_text_and_a_terminal_the_same_words(summary: Summary) -> None:
    pipe, screen = io.StringIO(), Screen()
    show(msgspec.structs.replace(summary, errors={"connect_error": "[red]x[/red]\x1b[2J"}), pipe)
    show(msgspec.structs.replace(summary, errors={"connect_error": "[red]x[/red]\x1b[2J"}), screen)
    assert "\x1b" not in pipe.getvalue()
    for text in (pipe.getvalue(), screen.getvalue()):
        assert "[red]x[/red] [2J" in text
        assert "\x1b[2J" not in text


def test_many_endpoints_are_cut_short(summary: Summary) -> None:
    many = msgspec.structs.replace(summary, endpoints=summary.endpoints * 20)
    assert any(line.startswith("and 24 more") for line in lines(many))


def test_a_long_endpoint_name_keeps_its_port_and_its_figures(summary: Summary) -> None:
    long = [msgspec.structs.replace(one, name="x" * 80 + ":30005") for one in summary.endpoints]
    line = next(line for line in lines(msgspec.structs.replace(summary, endpoints=long)) if ":30005" in line)
    assert line.startswith("…x")
    assert "100.0 ms" in line
