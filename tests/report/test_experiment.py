"""Results of an experiment: sums and spreads over cells and repeats, the reports made of them, the published schema."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace

from loadcell.metrics.facts import RunFacts
from loadcell.metrics.slo import parse_slo
from loadcell.metrics.summarize import summarize
from loadcell.metrics.summary import Purity, Summary
from loadcell.records import RequestRecord
from loadcell.report.experiment import (
    CellPurity,
    CellResult,
    ExperimentResults,
    FleetEventSeen,
    FleetFacts,
    ScenarioResult,
    ServiceFacts,
    results_schema,
)
from loadcell.report.experiment_cells import all_met, cell_purity, measured_cell, with_spread, worst
from loadcell.report.experiment_markdown import reasons, render, title
from loadcell.report.experiment_terminal import lines

PUBLISHED = Path(__file__).parents[2] / "docs" / "results.schema.json"
BLANK = CellResult(name="c1", scenario="c1", repeat=0, state="done", hash="h", folder="cells/c1")


@pytest.fixture
def summary(records: list[RequestRecord], facts: RunFacts) -> Summary:
    return summarize(replace(facts, slos=(parse_slo("ttft p95 <= 100ms"), parse_slo("success_rate >= 10%"))), records)


def results(*cells: CellResult, **changes: Any) -> ExperimentResults:
    scenarios: dict[str, list[CellResult]] = {}
    for cell in cells:
        scenarios.setdefault(cell.scenario, []).append(cell)
    made = ExperimentResults(
        name="exp",
        run_id="r1",
        state="complete",
        cause=None,
        began="2026-07-10T08:45:00+00:00",
        ended="2026-07-10T08:46:00+00:00",
        verdict=worst([cell.verdict for cell in cells]),
        environment={"host": {"cpus": 2}},
        fleet=FleetFacts(managed=True, engine="vllm", model="m"),
        scenarios=[with_spread(ScenarioResult(name=name, flags={}, cells=found)) for name, found in scenarios.items()],
        notices=[],
        spec={},
    )
    return replace(made, **changes)


def test_a_cell_says_what_its_summary_says(summary: Summary) -> None:
    cell = measured_cell(BLANK, summary)
    assert cell.figures is not None
    assert (cell.figures.all.ok, cell.figures.all.failed, cell.figures.all.retried) == (2, 2, 1)
    assert (cell.figures.all.ttft, cell.figures.all.e2e) == (summary.whole.latency.ttft, summary.whole.latency.e2e)
    assert [(one.name, one.figures.ok, one.figures.failed) for one in cell.endpoints] == [
        ("127.0.0.1:30005", 1, 0),
        ("127.0.0.1:30006", 1, 1),
    ]
    assert (cell.verdict, [slo.met for slo in cell.slos], cell.slos_met) == ("suspect", [False, True], False)


def purity(**changes: Any) -> Purity:
    return Purity(**({"endpoint": "a", "state": "pure", "counted": 10, "sent": 10, "foreign": 0} | changes))


@pytest.mark.parametrize(
    ("endpoints", "expected"),
    [
        ([purity(), purity()], ("pure", 20, 20, 0, None)),
        ([purity(), purity(state="foreign", counted=14, foreign=4, foreign_per_s=2.0)], ("foreign", 24, 20, 4, 2.0)),
        ([purity(), purity(state="unknown", counted=None, sent=None, foreign=None)], ("unknown", None, None, None, None)),
        (
            [purity(state="foreign", counted=11, foreign=1, foreign_per_s=0.5), purity(state="unknown", foreign=None)],
            ("foreign", 21, 20, 1, 0.5),
        ),
    ],
)
def test_purity_of_a_cell_is_known_only_where_every_part_is_and_foreign_where_any_is(
    endpoints: list[Purity], expected: tuple[Any, ...]
) -> None:
    found = cell_purity(endpoints)
    assert isinstance(found, CellPurity)
    assert (found.state, found.counted, found.sent, found.foreign, found.foreign_per_s) == expected


def test_limits_are_met_only_when_each_is(summary: Summary) -> None:
    missed, met = summary.slos
    unknown = replace(met, met=None)
    assert [all_met(group) for group in ([], [met], [met, missed], [met, unknown], [missed, unknown])] == [None, True, False, None, False]


def test_repeats_are_shown_each_and_never_averaged(summary: Summary) -> None:
    one = measured_cell(BLANK, summary)
    assert one.figures is not None
    whole = one.figures.all
    slower = replace(whole, ttft=replace(whole.ttft, mean_ms=300.0))
    other = replace(one, name="c1-r2", repeat=1, figures=replace(one.figures, all=slower))
    cut = replace(other, name="c1-r3", repeat=2, state="interrupted")
    made = results(one, other, cut)
    spread = made.scenarios[0].spread["ttft_mean_ms"]
    assert (spread.values, spread.min, spread.max) == ([150.0, 300.0], 150.0, 300.0)
    text = render(made)
    assert "c1 · repeat 2" in text
    assert "| c1 | TTFT mean | 150.0 ms · 300.0 ms | 150.0 ms | 300.0 ms |" in text
    assert results(one).scenarios[0].spread == {}


def test_the_report_opens_with_the_verdict_and_the_reasons_shared_by_cells(summary: Summary) -> None:
    one = measured_cell(BLANK, summary)
    text = render(results(one, replace(one, name="c2", scenario="c2")))
    assert text.startswith("# SUSPECT: exp\n\n2 of 2 measured to their end · limits: 0 met, 2 missed")
    assert (
        "- c1: SUSPECT failures: 2 of 4 failed, and a service that refuses work looks faster: read no latency without this (the same in c2)"
        in text
    )
    for heading in ("Scenarios", "TTFT", "TPOT", "E2E", "Endpoints", "Limits"):
        assert f"\n## {heading}\n" in text
    assert "| c1 | ttft p95 &lt;= 100ms | 195.0 ms † | MISSED | 2 |" in text


def test_what_was_not_measured_is_a_dash_with_its_cause_never_a_zero() -> None:
    failed = replace(BLANK, state="failed", cause="no service is ready", folder=None)
    left = replace(BLANK, name="c2", scenario="c2", state="not_run", folder=None)
    made = results(failed, left, state="stopped", cause="the disk is full")
    text = render(made)
    assert text.startswith("# NOTHING MEASURED, STOPPED, WITH FAILURES: exp")
    assert "| c1 | failed | – | – |" in text
    assert "| c2 | not run | – | – |" in text
    assert reasons(made) == ["STOPPED: the disk is full", "c1: FAILED: no service is ready"]
    assert "## TTFT" not in text


def test_an_interrupted_run_says_so_first() -> None:
    made = results(replace(BLANK, state="interrupted", cause="SIGINT"), state="interrupted", cause="SIGINT came")
    assert title(made) == "NOTHING MEASURED, INTERRUPTED"
    assert "`loadcell run --resume` goes on with it" in render(made)
    assert lines(made)[0].startswith("NOTHING MEASURED, INTERRUPTED · 0 of 1")


def test_the_fleet_its_events_and_its_commands_are_shown_and_escaped(summary: Summary) -> None:
    fleet = FleetFacts(
        managed=True,
        engine="vllm",
        model="a|b",
        services=[
            ServiceFacts(
                "replica-0",
                "local",
                [0, 1],
                30005,
                "http://h:30005",
                "CUDA_VISIBLE_DEVICES=0,1 vllm serve `m`",
                "failed",
                "out of | memory",
            )
        ],
        events=[FleetEventSeen("2026-07-10T08:45:30+00:00", "replica-0", "member_lost", "<script>")],
        leftovers=["port 30005 is held"],
    )
    text = render(results(measured_cell(BLANK, summary), fleet=fleet))
    assert "| replica-0 | local | 0,1 | http://h:30005 | failed | – | out of \\| memory |" in text
    assert "member lost | &lt;script&gt; |" in text
    assert "left behind: port 30005 is held" in text
    assert "```sh\nCUDA_VISIBLE_DEVICES=0,1 vllm serve `m`\n```" in text
    assert "Engine vllm, model a\\|b." in text


@pytest.mark.parametrize(
    ("engine", "model", "words"), [("vllm", None, "\nEngine vllm.\n"), (None, "Org/M", "\nmodel Org/M.\n"), (None, None, None)]
)
def test_what_is_not_known_of_the_services_is_not_said(summary: Summary, engine: str | None, model: str | None, words: str | None) -> None:
    fleet = FleetFacts(managed=False, engine=engine, model=model, services=[ServiceFacts("http://h:1", base_url="http://h:1")])
    text = render(results(measured_cell(BLANK, summary), fleet=fleet))
    assert "model –" not in text
    assert words is None or words in text


def test_results_fit_the_published_schema_and_are_read_back_the_same(summary: Summary) -> None:
    made = results(measured_cell(BLANK, summary), replace(BLANK, name="c2", scenario="c2", state="not_run"))
    body = msgspec.json.encode(made)
    jsonschema.validate(json.loads(body), json.loads(PUBLISHED.read_text(encoding="utf-8")))
    assert msgspec.json.decode(body, type=ExperimentResults) == made
    assert json.loads(PUBLISHED.read_text(encoding="utf-8")) == results_schema(), "run `python docs/make_schema.py`"


def test_lines_of_a_terminal_are_columns(summary: Summary) -> None:
    found = lines(results(measured_cell(BLANK, summary)))
    assert found[-2].split()[:3] == ["scenario", "verdict", "limits"]
    assert found[-1].split()[:4] == ["c1", "SUSPECT", "MISSED", "2"]


def test_notices_that_differ_in_their_numbers_alone_stand_together(summary: Summary) -> None:
    one = replace(measured_cell(BLANK, summary), notices=["TPOT of 4 requests is estimated"])
    other = replace(one, name="c2", scenario="c2", notices=["TPOT of 1,280 requests is estimated"])
    assert "- c1: TPOT of 4 requests is estimated (alike in c2)" in render(results(one, other))
