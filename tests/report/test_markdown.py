"""report.md: the verdict first, figures that agree with JSON, and text from outside that stays text."""

import json
from collections.abc import Callable

import msgspec
import pytest
from markdown_it import MarkdownIt

from loadcell.metrics.facts import RunFacts
from loadcell.metrics.summarize import summarize
from loadcell.metrics.summary import Summary
from loadcell.records import RequestRecord
from loadcell.report.markdown import escape, paragraph, render

NASTY = '</script><script>document.title="X"</script> <!-- | ` `` *a* _b_ [c](http://d) &lt; # $e$ ~~f~~ \\ \n2nd line\r\n- item'
FLAT = NASTY.replace("\r", " ").replace("\n", " ").replace("  ", " ")


@pytest.fixture
def summary(records: list[RequestRecord], facts: RunFacts) -> Summary:
    return summarize(facts, records)


def cells(markdown: str, title: str) -> dict[str, list[str]]:
    """The rows of one table by their first cell, as a reader sees them."""
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown.split(f"## {title}", 1)[1].split("\n## ", 1)[0])
    rows: list[list[str]] = []
    for token in tokens:
        if token.type == "table_close":
            break
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and rows:
            rows[-1].append("".join(child.content for child in token.children or []))
    return {row[0]: row[1:] for row in rows if row}


def test_the_verdict_and_its_reasons_come_first(summary: Summary) -> None:
    lines = render(summary).splitlines()
    assert summary.verdict == "suspect"
    assert lines[0] == "# SUSPECT: bench"
    assert "2 ok, 2 failed (50.0 %)" in lines[2]
    assert "of 4" in lines[2]
    reasons = lines[4 : lines.index("", 4)]
    assert len(reasons) == len(summary.reasons)
    assert all(line.startswith("- SUSPECT") for line in reasons)


def test_figures_are_those_of_the_summary_with_their_units(summary: Summary) -> None:
    headline = cells(render(summary), "Headline figures (whole run)")
    assert headline["TTFT"][0] == "150.0 ms"
    assert headline["E2E"][0] == "815.0 ms"
    assert headline["E2E"][-1] == "2"
    assert headline["Request throughput"][0] == "1.00 req/s"
    assert headline["Goodput"][0] == "–"
    assert headline["Output tokens per device (–)"][0] == "–"
    assert headline["TTFT"][4].endswith("†")


def test_the_cause_of_a_failure_is_named_once_with_its_count(summary: Summary) -> None:
    outcomes = cells(render(summary), "Outcomes")
    assert outcomes["ok"][:2] == ["2", "50.0 %"]
    assert outcomes["connect_error"] == ["1", "25.0 %", "connection refused"]
    assert outcomes["no_endpoint"][0] == "1"


def test_endpoints_have_a_row_each(summary: Summary) -> None:
    endpoints = cells(render(summary), "Endpoints")
    assert (endpoints["127.0.0.1:30005"][-1], endpoints["127.0.0.1:30006"][-1]) == ("healthy", "unhealthy")
    assert endpoints["127.0.0.1:30006"][5] == "200.0 ms †"


def test_two_seconds_and_a_minute_are_whole(make_answered: Callable[..., RequestRecord], facts: RunFacts) -> None:
    record = make_answered(0, sent_ms=0, ttft_ms=2168, gaps_ms=(59_332,))
    summary = summarize(msgspec.structs.replace(facts, window_end_ns=None), [record])
    assert (summary.whole.latency.ttft.mean_ms, summary.whole.latency.e2e.mean_ms) == (2168.0, 61500.0)
    headline = cells(render(summary), "Headline figures (whole run)")
    assert (headline["TTFT"][0], headline["E2E"][0]) == ("2168 ms", "1 min 1.5 s")


def test_text_from_outside_stays_text(make_refused: Callable[..., RequestRecord], facts: RunFacts) -> None:
    run = msgspec.structs.replace(facts.run, model="<b>m</b>", name="a|b", metadata={"k|": NASTY}, spec={"note": "```\n</script>"})
    text = render(summarize(msgspec.structs.replace(facts, run=run, notices=(NASTY,)), [make_refused(0, error=NASTY)]))
    html = MarkdownIt("commonmark").enable("table").render(text)
    for tag in ("<script", "<b>m", "<em>", "<strong>", "<a ", "<!--", "<s>"):
        assert tag not in html
    assert "&lt;b&gt;m&lt;/b&gt;" in html
    assert cells(text, "Outcomes")["connect_error"][2].startswith('</script><script>document.title="X"</script> <!-- | ` ``')
    assert cells(text, "Environment")["metadata: k|"][0] == FLAT[:199] + "…" * (len(FLAT) > 200) or FLAT
    assert '````json\n{\n  "note": "```\\n</script>"' in text


@pytest.mark.parametrize(
    "text", [NASTY, "- x", "1. x", "+ x", "=== x", "plain deepseek_v4-flash", "_x_", "1) y", "a__b__c", "\\|", "~~~", "#1"]
)
def test_escaping_gives_back_the_text(text: str) -> None:
    flat = " ".join(text.split())
    tokens = (
        MarkdownIt("commonmark")
        .enable("table")
        .enable("strikethrough")
        .parse(f"| h |\n| --- |\n| {escape(text)} |\n\n- {paragraph(text)}\n")
    )
    inline = ["".join(child.content for child in token.children or []) for token in tokens if token.type == "inline"]
    assert inline == ["h", flat, flat]
    assert {child.type for token in tokens for child in token.children or []} <= {"text", "text_special"}


def test_names_stay_readable() -> None:
    plain = "127.0.0.1:30005 deepseek_v4-flash http_5xx -5 %"
    assert escape(plain) == paragraph(plain) == plain


def test_a_run_where_all_failed_is_invalid_and_has_no_invented_figures(make_refused: Callable[..., RequestRecord], facts: RunFacts) -> None:
    summary = summarize(facts, [make_refused(i) for i in range(200)])
    text = render(summary)
    assert text.startswith("# INVALID")
    headline = cells(text, "Headline figures (whole run)")
    assert headline["TTFT"] == ["–"] * 5 + ["0"]
    assert headline["Request throughput"][0] == "0.00 req/s"
    assert headline["Success rate"][0] == "0.0 %"
    assert text.count("connection refused") == 1
    assert "nan" not in text.lower().replace("null", "")
    assert "inf " not in text.lower()


def test_a_partial_run_says_so_at_the_top(summary: Summary) -> None:
    cut = msgspec.structs.replace(
        summary, partial=True, stop_reason="worker_lost", stop_detail="worker 1 died | with status 9", lost_workers=[1]
    )
    top = render(cut).split("## ")[0]
    assert "PARTIAL: the run ended early (worker\\_lost" in top or "PARTIAL: the run ended early (worker_lost" in top
    assert "lost workers 1" in top


def test_every_table_has_as_many_cells_as_its_header(summary: Summary) -> None:
    width = None
    for line in render(summary).splitlines():
        if not line.startswith("|"):
            width = None
            continue
        found = line.replace("\\|", "").count("|")
        assert width in (None, found), line
        width = found


def test_nothing_measured_at_all_still_renders() -> None:
    text = render(summarize(RunFacts(), []))
    assert text.startswith("# INVALID: bench")
    json.loads(msgspec.json.encode(summarize(RunFacts(), [])))
