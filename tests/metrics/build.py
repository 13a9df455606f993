"""Short ways to write the records that tests reason about. Milliseconds in, nanoseconds out."""

from typing import Any

from loadcell.records import Attempt, Endpoint, RequestRecord

MS = 1_000_000
S = 1_000_000_000


def endpoint(index: int = 0) -> Endpoint:
    return Endpoint(
        index=index,
        name=f"host:{8000 + index}",
        base_url=f"http://host:{8000 + index}/v1",
        scheme="http",
        host="host",
        port=8000 + index,
        target="/v1/chat/completions",
        models_target="/v1/models",
        root="",
    )


def attempt(sent_ms: float, chunks_ms: list[float], **fields: Any) -> Attempt:
    """An attempt whose output events came at these absolute times; ok, one token each, unless `fields` say otherwise."""
    times_us = [round(one * 1000) for one in chunks_ms]
    deltas = [after - before for before, after in zip([0, *times_us], times_us, strict=False)]
    sent = round(sent_ms * MS)
    first = times_us[0] * 1000 if times_us else None
    last = times_us[-1] * 1000 if times_us else None
    known: dict[str, Any] = {
        "endpoint": 0,
        "outcome": "ok",
        "dispatched_ns": sent,
        "sent_ns": sent,
        "first_event_ns": first,
        "first_token_ns": first,
        "first_answer_ns": first,
        "last_token_ns": last,
        "done_ns": last,
        "chunk_us": deltas,
        "output_tokens": len(times_us),
        "output_source": "usage",
    }
    return Attempt(**(known | fields))


def record(index: int, attempts: list[Attempt], due_ms: float | None = None, **fields: Any) -> RequestRecord:
    """A request due when its first attempt was sent, unless said otherwise; its outcome is the last attempt's."""
    if due_ms is None:
        due_ms = (attempts[0].sent_ns or 0) / MS if attempts else 0
    known: dict[str, Any] = {"outcome": attempts[-1].outcome if attempts else "cancelled"}
    return RequestRecord(index=index, scheduled_ns=round(due_ms * MS), attempts=attempts, **(known | fields))


def failed(sent_ms: float, end_ms: float, outcome: str, **fields: Any) -> Attempt:
    """An attempt that brought nothing and ended so."""
    return attempt(
        sent_ms, [], **({"outcome": outcome, "done_ns": round(end_ms * MS), "output_tokens": None, "output_source": None} | fields)
    )
