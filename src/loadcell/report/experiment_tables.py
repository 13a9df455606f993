"""Results of an experiment -> tables of plain text, in the order in which a reader asks. Cells are escaped by the layouts."""

from collections.abc import Iterator, Sequence
from typing import Final

from loadcell.metrics.summary import Stats
from loadcell.report.experiment import CellResult, ExperimentResults, PartFigures, Spread
from loadcell.report.figures import MISSING, count, ms, one_line, rate, seconds, share, yes_no
from loadcell.report.tables import HEADLINE_PERCENTILES, Row, Table, percentile

LATENCIES: Final = (("TTFT", "ttft"), ("TPOT", "tpot"), ("E2E", "e2e"))
_SPREAD_WORDS: Final = {"requests_per_s": "req/s", "output_tokens_per_s": "output tok/s", "goodput_per_s": "goodput, req/s"}
_SHOWN_SPREAD: Final = (*_SPREAD_WORDS, "ttft_mean_ms", "ttft_p95_ms", "tpot_mean_ms", "e2e_mean_ms", "e2e_p95_ms")
_MANY_VALUES: Final = 6


def label(cell: CellResult, repeats: int) -> str:
    return cell.scenario if repeats < 2 else f"{cell.scenario} · repeat {cell.repeat + 1}"


def labelled(results: ExperimentResults) -> Iterator[tuple[str, CellResult]]:
    for scenario in results.scenarios:
        for cell in scenario.cells:
            yield label(cell, len(scenario.cells)), cell


def headline(results: ExperimentResults) -> str:
    """`15 of 15 cells measured · limits: 12 met, 3 missed · 4 services · 2 min 3 s of load`."""
    cells = results.cells
    measured = [cell for cell in cells if cell.state == "done"]
    words = [f"{len(measured)} of {len(cells)} measured to their end"]
    for state, said in (("failed", "failed"), ("interrupted", "interrupted"), ("cut_off", "cut off"), ("not_run", "not run")):
        if number := sum(cell.state == state for cell in cells):
            words.append(f"{number} {said}")
    judged = [cell.slos_met for cell in measured if cell.slos]
    if judged:
        unknown = f", {judged.count(None)} not judged" if None in judged else ""
        words.append(f"limits: {judged.count(True)} met, {judged.count(False)} missed{unknown}")
    if results.fleet.services:
        number = len(results.fleet.services)
        words.append(f"{number} service{'' if number == 1 else 's'}" + ("" if results.fleet.managed else ", not started by this run"))
    load_s = sum(cell.figures.all.duration_s or 0.0 for cell in cells if cell.figures)
    return " · ".join([*words, *([f"{seconds(load_s)} of load"] if load_s else [])])


def overview(results: ExperimentResults) -> Table:
    """One row per cell: what it delivered, and whether that can be believed."""
    header = ("scenario", "verdict", "limits", "ok", "failed", "req/s", "output tok/s", "goodput", "TTFT mean", "TPOT mean", "E2E mean")
    rows: list[Row] = []
    for name, cell in labelled(results):
        if cell.figures is None:
            rows.append((name, _state(cell), *[MISSING] * (len(header) - 2)))
            continue
        whole = cell.figures.all
        rows.append(
            (
                name,
                _verdict(cell),
                limits_word(cell),
                count(whole.ok),
                count(whole.failed),
                rate(whole.requests_per_s, "").strip(),
                rate(whole.output_tokens_per_s, "").strip(),
                rate(cell.figures.goodput_per_s, "").strip(),
                ms(whole.ttft.mean_ms),
                ms(whole.tpot.mean_ms),
                ms(whole.e2e.mean_ms),
            )
        )
    return Table("Scenarios", header, rows)


def _verdict(cell: CellResult) -> str:
    word = (cell.verdict or MISSING).upper()
    return word if cell.state == "done" else f"{word}, {_state(cell)}"


def _state(cell: CellResult) -> str:
    return cell.state.replace("_", " ")


def limits_word(cell: CellResult) -> str:
    return MISSING if not cell.slos else yes_no(cell.slos_met, "met", "MISSED") if cell.slos_met is not None else "not judged"


def latency(results: ExperimentResults, title: str, name: str) -> Table:
    """One metric of every cell: mean and percentiles, with n."""
    rows: list[Row] = [(text, *_statistics(getattr(cell.figures.all, name))) for text, cell in labelled(results) if cell.figures]
    return Table(title, ("scenario", "mean", *HEADLINE_PERCENTILES, "max", "n"), rows)


def _statistics(stats: Stats) -> Row:
    return (ms(stats.mean_ms), *(percentile(stats, wanted) for wanted in HEADLINE_PERCENTILES), ms(stats.max_ms), count(stats.n))


def endpoints(results: ExperimentResults) -> Table:
    """Every endpoint of every cell."""
    pairs = [f"{title} {word}" for title, _ in LATENCIES for word in ("mean", "p50", "p95", "p99")]
    header = ("scenario", "endpoint", "share", "ok", "failed", "output tok/s", *pairs, "at end")
    rows: list[Row] = [
        (
            name,
            one.name,
            share(one.share),
            count(one.figures.ok),
            count(one.figures.failed),
            rate(one.figures.output_tokens_per_s, "").strip(),
            *_endpoint_latencies(one.figures),
            yes_no(one.healthy_at_end, "healthy", "unhealthy") + (f", ejected {one.ejections}×" if one.ejections else ""),
        )
        for name, cell in labelled(results)
        for one in cell.endpoints
    ]
    return Table("Endpoints", header, rows)


def _endpoint_latencies(figures: PartFigures) -> Iterator[str]:
    for _, name in LATENCIES:
        stats: Stats = getattr(figures, name)
        yield ms(stats.mean_ms)
        yield from (percentile(stats, word) for word in ("p50", "p95", "p99"))


def limits(results: ExperimentResults) -> Table:
    rows: list[Row] = []
    for name, cell in labelled(results):
        for one in cell.slos:
            show = ms if one.unit == "ms" else share
            result = yes_no(one.met, "met", "MISSED") if one.met is not None else "not judged"
            rows.append(
                (
                    name,
                    one_line(one.text),
                    show(one.observed) + (" †" if one.too_few and one.observed is not None else ""),
                    result,
                    count(one.n),
                )
            )
    return Table("Limits", ("scenario", "limit", "observed", "result", "n"), rows)


def purity(results: ExperimentResults) -> Table:
    """What the services counted against what we sent, per cell."""
    rows: list[Row] = []
    for name, cell in labelled(results):
        if cell.purity is None:
            continue
        one = cell.purity
        why = next((part.why for part in one.endpoints if part.why), None)
        rows.append(
            (
                name,
                one.state,
                count(one.counted),
                count(one.sent),
                count(one.foreign),
                rate(one.foreign_per_s) if one.foreign else MISSING,
                one_line(why or "") or MISSING,
            )
        )
    header = ("scenario", "state", "services counted", "we sent", "foreign", "foreign rate", "why unknown")
    notes = [
        "Generation requests between two quiet scrapes of the services' counters; warm-up is on both sides. Light GETs are no generation."
    ]
    return Table("Purity", header, rows, notes)


def repeats(results: ExperimentResults) -> Table:
    """Figures of the repeats side by side, never one percentile made of several."""
    rows: list[Row] = []
    for scenario in results.scenarios:
        for name in _SHOWN_SPREAD:
            if name in scenario.spread:
                rows.append((scenario.name, *_spread_row(name, scenario.spread[name])))
    note = "Each repeat's own figure, and the least and largest of them; results.json has further ones."
    return Table("Repeats", ("scenario", "figure", "each repeat", "least", "largest"), rows, [note])


def _spread_row(name: str, spread: Spread) -> Row:
    def show(value: float | None) -> str:
        return ms(value) if name.endswith("_ms") else rate(value, "").strip()

    shown = [show(value) for value in spread.values[:_MANY_VALUES]]
    if len(spread.values) > _MANY_VALUES:
        shown.append(f"and {len(spread.values) - _MANY_VALUES} more")
    words = _SPREAD_WORDS.get(name) or name.removesuffix("_ms").replace("_", " ").replace("ttft", "TTFT").replace("tpot", "TPOT").replace(
        "e2e", "E2E"
    )
    return words, " · ".join(shown), show(spread.min), show(spread.max)


def services(results: ExperimentResults) -> Table:
    header = ("service", "host", "devices", "address", "at the end", "restarts", "cause")
    rows: list[Row] = [
        (
            one.name,
            one.host or MISSING,
            ",".join(map(str, one.devices)) or MISSING,
            one.base_url or MISSING,
            one.state or MISSING,
            count(one.restarts),
            one_line(one.cause or "") or MISSING,
        )
        for one in results.fleet.services
    ]
    fleet = results.fleet
    known = [f"{word} {one_line(value)}" for word, value in (("Engine", fleet.engine), ("model", fleet.model)) if value]
    notes = [f"{', '.join(known)}."] if known else []
    return Table("Fleet", header, rows, notes)


def events(results: ExperimentResults) -> Table:
    rows: list[Row] = [
        (one.at, one.service, one.event.replace("_", " "), one_line(one.cause or "") or MISSING) for one in results.fleet.events
    ]
    return Table("What happened to the services", ("time", "service", "event", "cause"), rows)


def not_whole(results: ExperimentResults) -> Table:
    """Cells that were not measured to their end, with the cause, and attempts that were cut short before."""
    rows: list[Row] = [
        (
            name,
            _state(cell),
            one_line(cell.cause or "", 400) or MISSING,
            ", ".join([*cell.earlier, *([cell.folder] if cell.folder else [])]) or MISSING,
        )
        for name, cell in labelled(results)
        if cell.state != "done" or cell.earlier
    ]
    return Table("Not measured to the end, or not at the first attempt", ("scenario", "state", "cause", "folders"), rows)


def environment(results: ExperimentResults) -> Table:
    rows: list[Row] = [("Run", results.run_id), ("Began", results.began), ("Ended", results.ended or MISSING)]
    for kind, facts in results.environment.items():
        pairs: Sequence[tuple[str, object]] = list(facts.items()) if isinstance(facts, dict) else [("", facts)]
        rows += [(f"{kind}: {key}" if key else kind, one_line(str(value)) if value is not None else MISSING) for key, value in pairs]
    return Table("Environment", ("", "value"), rows)
