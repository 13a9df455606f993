"""Summary -> tables of plain text: the story that every report tells, before any layout.

Cells are plain text in people's units, parts of them from outside (names, errors): the layouts escape every cell.
"""

from msgspec import Struct

from loadcell.metrics.summary import EndpointFigures, Figures, Lengths, Stats, Summary
from loadcell.report.figures import METHOD_NOTE, MISSING, TOO_FEW, count, ms, number, one_line, rate, seconds, share, yes_no

Row = tuple[str, ...]
HEADLINE_PERCENTILES = ("p50", "p90", "p95", "p99")


class Table(Struct, frozen=True):
    """A titled table. Every row has as many cells as the header. `notes` stand under it."""

    title: str
    header: Row
    rows: list[Row]
    notes: list[str] = []


def verdict_line(summary: Summary) -> str:
    """The verdict with what must stand beside any figure: how many requests succeeded and failed, of how many, in what time."""
    counts = summary.whole.counts
    parts = [
        summary.verdict.upper(),
        f"{count(counts.ok)} ok, {count(counts.failed)} failed ({share(counts.failure_rate)})",
        *([f"{count(counts.cancelled)} cancelled"] if counts.cancelled else []),
        f"of {count(counts.offered)}" + (f" ({count(counts.planned)} planned)" if counts.planned not in (None, counts.offered) else ""),
        seconds(summary.whole.window.duration_s),
        _number_of(len(summary.endpoints), "endpoint"),
    ]
    return " · ".join(parts)


def reasons(summary: Summary) -> list[str]:
    """Why the verdict is not better, and what makes the run less than whole. Empty for a clean one."""
    found = [f"{reason.severity.upper()} {reason.rule}: {one_line(reason.text)}" for reason in summary.reasons]
    if summary.partial or summary.stop_reason not in (None, "count", "duration"):
        how = f"PARTIAL: the run ended early ({summary.stop_reason or 'cause unknown'})"
        found.append(how + (f": {one_line(summary.stop_detail)}" if summary.stop_detail else ""))
    if summary.lost_workers:
        found.append(f"PARTIAL: lost workers {', '.join(map(str, summary.lost_workers))}; what they had in flight is missing")
    return found


def percentile(stats: Stats, name: str) -> str:
    """A percentile in people's units, marked where n is too small for it."""
    value = stats.percentiles_ms.get(name)
    return ms(value) if value is None or name not in stats.too_few else f"{ms(value)} {TOO_FEW}"


def any_marked(table: Table) -> bool:
    return any(cell.endswith(TOO_FEW) for row in table.rows for cell in row)


def headline(summary: Summary) -> Table:
    """One row per headline figure: its mean or value, percentiles, and n."""
    whole = summary.whole
    rates, counts, latency = whole.rates, whole.counts, whole.latency
    device = summary.per_device
    values = [
        ("Request throughput", rate(rates.requests_per_s, "req/s"), count(rates.completed_in_window)),
        ("Output token throughput", rate(rates.output_tokens_per_s, "tok/s"), count(rates.output_tokens_in_window)),
        ("Total token throughput", rate(rates.total_tokens_per_s, "tok/s"), MISSING),
        ("Peak output tokens", rate(rates.peak_output_tokens_per_s, "tok/s"), MISSING),
        ("Goodput", rate(rates.goodput_per_s, "req/s"), count(rates.goodput_requests)),
        ("Attainment of the limits", share(rates.attainment), count(counts.offered)),
        (f"Output tokens per device ({count(device.devices)})", rate(device.output_tokens_per_s, "tok/s"), MISSING),
        ("Success rate", share(counts.success_rate), count(counts.offered)),
    ]
    blank = (MISSING,) * len(HEADLINE_PERCENTILES)
    rows: list[Row] = [(name, value, *blank, n) for name, value, n in values]
    for name, stats in (("TTFT", latency.ttft), ("TPOT", latency.tpot), ("ITL", latency.itl), ("E2E", latency.e2e)):
        rows.append(latency_row(name, stats))
    return Table("Headline figures (whole run)", ("figure", "value or mean", *HEADLINE_PERCENTILES, "n"), rows, [METHOD_NOTE])


def latency_row(name: str, stats: Stats) -> Row:
    return (name, ms(stats.mean_ms), *(percentile(stats, wanted) for wanted in HEADLINE_PERCENTILES), count(stats.n))


def outcomes(summary: Summary) -> Table:
    """Every outcome with its count; the cause of a failure stands once, in its commonest words."""
    offered = summary.whole.counts.offered
    ranked = sorted(summary.whole.counts.by_outcome.items(), key=lambda item: (item[0] != "ok", -item[1], item[0]))
    rows: list[Row] = [
        (name, count(n), share(n / offered if offered else None), one_line(summary.errors.get(name, "")) or MISSING)
        for name, n in ranked
        if n or name == "ok"
    ]
    return Table("Outcomes", ("outcome", "requests", "share", "commonest message"), rows)


def endpoints(summary: Summary) -> Table:
    header = ("endpoint", "requests", "share", "ok", "failed", "retries", "TTFT p50", "TTFT p95", "TPOT p50", "E2E p50", "tok/s", "at end")
    return Table("Endpoints", header, [_endpoint_row(one) for one in summary.endpoints], [f"Balanced by {summary.strategy or MISSING}."])


def _endpoint_row(one: EndpointFigures) -> Row:
    counts, latency = one.figures.counts, one.figures.latency
    state = yes_no(one.healthy_at_end, "healthy", "unhealthy")
    return (
        one.name,
        count(counts.offered),
        share(one.share),
        count(counts.ok),
        count(counts.failed),
        count(counts.retried),
        percentile(latency.ttft, "p50"),
        percentile(latency.ttft, "p95"),
        percentile(latency.tpot, "p50"),
        percentile(latency.e2e, "p50"),
        rate(one.figures.rates.output_tokens_per_s, "").strip(),
        state + (f", ejected {one.ejections}×" if one.ejections else ""),
    )


def steady(summary: Summary) -> Table:
    """The steady state beside the whole run."""
    window = summary.steady
    columns = [_window_column(summary.whole), _window_column(window.figures) if window.figures is not None else {}]
    rows: list[Row] = [(name, value, columns[1].get(name, MISSING)) for name, value in columns[0].items()]
    if window.figures is None:
        notes = [f"No steady state: {one_line(window.why_null or 'cause unknown')}."]
    else:
        cut = f"{count(window.requests)} requests were sent inside, {count(window.cut)} outside ({share(window.share)} inside)"
        notes = [f"From {seconds(window.window.start_s)} to {seconds(window.window.end_s)} ({one_line(window.window.rule)}); {cut}."]
    return Table("Steady state beside the whole run", ("figure", "whole run", "steady state"), rows, notes)


def _window_column(figures: Figures) -> dict[str, str]:
    latency = figures.latency
    return {
        "Duration": seconds(figures.window.duration_s),
        "Request throughput": rate(figures.rates.requests_per_s, "req/s"),
        "Output token throughput": rate(figures.rates.output_tokens_per_s, "tok/s"),
        "In flight, mean": number(figures.concurrency.mean),
        "TTFT p50": percentile(latency.ttft, "p50"),
        "TTFT p95": percentile(latency.ttft, "p95"),
        "TPOT p50": percentile(latency.tpot, "p50"),
        "ITL p50": percentile(latency.itl, "p50"),
        "ITL p99": percentile(latency.itl, "p99"),
        "E2E p50": percentile(latency.e2e, "p50"),
        "E2E p95": percentile(latency.e2e, "p95"),
        "n": count(latency.e2e.n),
    }


def lengths(summary: Summary) -> Table:
    """Asked against delivered tokens, and where the counts came from."""
    tokens, prompts = summary.whole.tokens, summary.prompts
    rows = [
        _length_row("Input asked", tokens.input_asked),
        _length_row("Input delivered", tokens.input_delivered),
        _length_row("Output asked", tokens.output_asked),
        _length_row("Output delivered", tokens.output_delivered),
    ]
    exact = "exact" if prompts.exact else "estimated"
    notes = [
        f"Delivered output is {share(tokens.delivered_share)} of what was asked.",
        f"Input counts come from: {_mix(tokens.input_sources)}; output counts from: {_mix(tokens.output_sources)}.",
        f"Prompt lengths by tokenizer {one_line(prompts.tokenizer)} ({exact}).",
    ]
    if prompts.off_target is not None:
        off = prompts.off_target
        notes.append(f"{count(off.n)} prompts missed their length by {off.min:+d} to {off.max:+d} tokens (mean {off.mean:+.1f}).")
    if prompts.reused or prompts.skipped_rows:
        notes.append(f"{count(prompts.reused)} prompts were sent again (small data set); {count(prompts.skipped_rows)} rows were skipped.")
    if tokens.reasoning_tokens:
        notes.append(f"{count(tokens.reasoning_tokens)} output tokens were reasoning ({share(tokens.reasoning_share)}).")
    if tokens.cached_tokens is not None:
        notes.append(f"{count(tokens.cached_tokens)} input tokens came from the server's prefix cache ({share(tokens.cached_share)}).")
    if tokens.first_chunk_estimated:
        notes.append(f"TPOT of {count(tokens.first_chunk_estimated)} requests rests on an estimate of the tokens in their first chunk.")
    if summary.whole.rates.wasted_output_tokens:
        notes.append(f"{count(summary.whole.rates.wasted_output_tokens)} output tokens of failed requests are in no figure above.")
    return Table("Lengths", ("tokens", "n", "total", "mean", "min", "max"), rows, notes)


def _length_row(name: str, lengths: Lengths) -> Row:
    return (
        name,
        count(lengths.n),
        count(lengths.total if lengths.n else None),
        number(lengths.mean),
        count(lengths.min),
        count(lengths.max),
    )


def _mix(sources: dict[str, int]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in sorted(sources.items(), key=lambda item: -item[1]) if n) or MISSING


def slos(summary: Summary) -> Table:
    rows: list[Row] = []
    for result in summary.slos:
        show = ms if result.unit == "ms" else share
        observed = show(result.observed) + (f" {TOO_FEW}" if result.too_few and result.observed is not None else "")
        rows.append((one_line(result.text), show(result.limit), observed, yes_no(result.met, "met", "MISSED"), count(result.n)))
    return Table("Limits", ("limit", "value", "observed", "result", "n"), rows)


def _number_of(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"
