"""The nouns. Frozen; everything else turns one of them into the next.

Stamps are integer nanoseconds since the run's origin (`LogHeader.origin`), so that a record stands alone
and sorts by time. A value that could not be measured is null, never 0. docs/metrics.md defines each stamp.
"""

from typing import Final, Literal

from msgspec import Struct

Outcome = Literal[
    "ok",
    "http_4xx",
    "http_429",
    "http_5xx",
    "stream_error",
    "truncated",
    "empty_output",
    "invalid_response",
    "connect_error",
    "dns_error",
    "tls_error",
    "connection_reset",
    "first_byte_timeout",
    "idle_timeout",
    "total_timeout",
    "no_endpoint",
    "no_local_port",
    "cancelled",
]
Phase = Literal["warmup", "measure"]
TokenSource = Literal["usage", "tokenizer", "chunks", "estimated"]
Scheme = Literal["http", "https"]

RETRYABLE: Final[frozenset[str]] = frozenset(
    {
        "connect_error",
        "connection_reset",
        "first_byte_timeout",
        "idle_timeout",
        "http_5xx",
        "http_429",
        "stream_error",
        "truncated",
        "empty_output",
    }
)


class Address(Struct, frozen=True):
    """One resolved socket address. `family` is AF_INET (2) or AF_INET6 (10)."""

    family: int
    host: str
    port: int


class Endpoint(Struct, frozen=True):
    """One service under load, as it is reached.

    `name` is what reports print (`host:port`, brackets around IPv6); `target` the request path that is asked;
    `root` the URL path before `/health`, `/metrics`, `/tokenize` ("" or "/prefix").
    `addresses` is empty when the name did not resolve.
    """

    index: int
    name: str
    base_url: str
    scheme: Scheme
    host: str
    port: int
    target: str
    models_target: str
    root: str
    addresses: tuple[Address, ...] = ()
    proxy: str | None = None


class Request(Struct, frozen=True, gc=False):
    """One request, serialised before it is due.

    `index` is the arrival index over all workers. `input_tokens` is the local count (null when unknown),
    `input_source` where it came from. `session` keys `--lb-strategy session`.
    """

    index: int
    body: bytes
    stream: bool = True
    input_tokens: int | None = None
    input_source: TokenSource | None = None
    output_asked: int | None = None
    session: str | None = None


class Attempt(Struct, frozen=True, omit_defaults=True, gc=False):
    """One try of one request at one endpoint. Stamps: ns since the run's origin.

    `chunk_us` holds the arrival of every output-carrying event: the first element is µs since the origin, each later one the
    difference to its predecessor (µs, of the rounded absolute times, so that rounding never adds up). In the file each difference but
    the first is written as its change against the one before (`recordlog`).
    `chunk_tokens` is null unless the server told the tokens of each chunk.
    `coalesced` counts output events that shared a read with a later event (their stamp is an upper bound);
    `clock_stamps` those stamped by our own clock instead of the kernel.
    """

    endpoint: int
    outcome: Outcome
    status: int | None = None
    error: str | None = None
    error_code: str | None = None
    dispatched_ns: int | None = None
    connected_ns: int | None = None
    sent_ns: int | None = None
    headers_ns: int | None = None
    first_event_ns: int | None = None
    first_token_ns: int | None = None
    first_answer_ns: int | None = None
    last_token_ns: int | None = None
    done_ns: int | None = None
    streamed: bool | None = None
    chunk_us: list[int] = []
    chunk_tokens: list[int] | None = None
    coalesced: int = 0
    clock_stamps: int = 0
    output_tokens: int | None = None
    output_source: TokenSource | None = None
    input_tokens: int | None = None
    input_source: TokenSource | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    stale_replays: int = 0
    malformed_events: int = 0
    retry_after_s: float | None = None
    waited_ns: int = 0
    dropped_fields: list[str] | None = None
    text: str | None = None


class RequestRecord(Struct, frozen=True, omit_defaults=True, gc=False):
    """What became of one request. The last attempt is the one that counts; earlier ones failed and were retried.

    `scheduled_ns` is when it was due (open loop) or when its slot became free (closed loop).
    `attempts` is empty for a request that never reached an endpoint (`no_endpoint`, `cancelled`).
    """

    index: int
    scheduled_ns: int
    outcome: Outcome
    phase: Phase = "measure"
    worker: int = 0
    session: str | None = None
    input_asked: int | None = None
    output_asked: int | None = None
    error: str | None = None
    attempts: list[Attempt] = []


class Event(Struct, frozen=True, omit_defaults=True):
    """One line of events.jsonl: what happened besides requests (health transitions, phases, notices)."""

    at_ns: int
    kind: str
    endpoint: str | None = None
    cause: str | None = None
    detail: dict[str, str | int | float | bool | None] = {}
