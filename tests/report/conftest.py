"""Records with known figures, made by hand."""

from collections.abc import Callable

import pytest

from loadcell.metrics.facts import RunFacts, RunIdentity
from loadcell.records import Attempt, Endpoint, RequestRecord

MS = 1_000_000
US = 1000

MakeRecord = Callable[..., RequestRecord]


def endpoint(index: int, host: str = "127.0.0.1", port: int = 30005) -> Endpoint:
    return Endpoint(
        index=index,
        name=f"{host}:{port}",
        base_url=f"http://{host}:{port}/v1",
        scheme="http",
        host=host,
        port=port,
        target="/v1/chat/completions",
        models_target="/v1/models",
        root="",
    )


def answered(
    index: int, *, sent_ms: float, ttft_ms: float, gaps_ms: tuple[float, ...] = (), at: int = 0, output_tokens: int | None = None
) -> RequestRecord:
    """An ok request: first chunk at `ttft_ms`, then one chunk per gap, one token a chunk unless told otherwise."""
    sent_ns = round(sent_ms * MS)
    first_ns = sent_ns + round(ttft_ms * MS)
    last_ns = first_ns + sum(round(gap * MS) for gap in gaps_ms)
    attempt = Attempt(
        endpoint=at,
        outcome="ok",
        status=200,
        dispatched_ns=sent_ns,
        sent_ns=sent_ns,
        headers_ns=first_ns,
        first_event_ns=first_ns,
        first_token_ns=first_ns,
        first_answer_ns=first_ns,
        last_token_ns=last_ns,
        done_ns=last_ns,
        streamed=True,
        chunk_us=[first_ns // US, *(round(gap * MS) // US for gap in gaps_ms)],
        output_tokens=1 + len(gaps_ms) if output_tokens is None else output_tokens,
        output_source="usage",
        input_tokens=512,
        input_source="usage",
        finish_reason="length",
    )
    return RequestRecord(
        index=index, scheduled_ns=sent_ns, outcome="ok", input_asked=512, output_asked=1 + len(gaps_ms), attempts=[attempt]
    )


def refused(index: int, *, at_ms: float = 0, at: int = 0, error: str = "connection refused") -> RequestRecord:
    moment = round(at_ms * MS)
    attempt = Attempt(endpoint=at, outcome="connect_error", error=error, dispatched_ns=moment, done_ns=moment + MS)
    return RequestRecord(index=index, scheduled_ns=moment, outcome="connect_error", input_asked=512, output_asked=3, attempts=[attempt])


def retried(failed: RequestRecord, good: RequestRecord) -> RequestRecord:
    """`good` after the attempts of `failed`."""
    return RequestRecord(
        index=good.index,
        scheduled_ns=failed.scheduled_ns,
        outcome=good.outcome,
        input_asked=good.input_asked,
        output_asked=good.output_asked,
        attempts=[*failed.attempts, *good.attempts],
    )


@pytest.fixture
def make_answered() -> MakeRecord:
    return answered


@pytest.fixture
def make_refused() -> MakeRecord:
    return refused


@pytest.fixture
def two_ports() -> tuple[Endpoint, ...]:
    return endpoint(0, port=30005), endpoint(1, port=30006)


@pytest.fixture
def records() -> list[RequestRecord]:
    """Two good requests (TTFT 100 and 200 ms; E2E 130 and 1500 ms), one of them retried; one refused; one that no endpoint took."""
    lost = RequestRecord(
        index=3, scheduled_ns=500 * MS, outcome="no_endpoint", input_asked=512, output_asked=3, error="all endpoints are down"
    )
    return [
        answered(0, sent_ms=0, ttft_ms=100, gaps_ms=(10, 20)),
        retried(refused(1, at_ms=10, at=0), answered(1, sent_ms=20, ttft_ms=200, gaps_ms=(1270, 30), at=1)),
        refused(2, at_ms=40, at=1),
        lost,
    ]


@pytest.fixture
def facts(two_ports: tuple[Endpoint, ...]) -> RunFacts:
    return RunFacts(
        run=RunIdentity(
            run_id="r1", name="bench", created="2026-07-10T08:45:00Z", model="m", versions={"loadcell": "0.1.0"}, host={"cpus": 2}
        ),
        endpoints=two_ports,
        window_start_ns=0,
        window_end_ns=2000 * MS,
        load_end_ns=500 * MS,
        concurrency_cap=2,
        num_planned=4,
        stop_reason="count",
        strategy="round_robin",
        healthy_at_end=("127.0.0.1:30005",),
        stamps="kernel",
    )
