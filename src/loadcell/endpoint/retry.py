"""After a failure: ask again, where, and when; and when there is nobody to ask. Pure: takes what happened, gives what to do."""

import math
from typing import Final, Literal

from msgspec import Struct

from loadcell.endpoint.policy import NS_PER_S
from loadcell.endpoint.spec import EndpointSpec
from loadcell.records import RETRYABLE, Outcome

_BACKOFF_S: Final = 0.1
_BACKOFF_CAP_S: Final = 5.0


class Retry(Struct, frozen=True):
    """Ask again after `wait_ns` (0 = at once), holding the slot. The endpoint is chosen when the wait is over, `tried` left out."""

    wait_ns: int = 0


def max_retries(spec: EndpointSpec, n_endpoints: int) -> int:
    """Attempts beyond the first. Unless the user says otherwise there are none with one endpoint: while measuring, a retry hides a fault."""
    if spec.max_retries is not None:
        return spec.max_retries
    return 2 if n_endpoints > 1 else 0


def after_failure(
    outcome: Outcome,
    attempts_made: int,
    spec: EndpointSpec,
    n_endpoints: int,
    *,
    untried: int,
    others: int,
    retry_after_s: float | None = None,
) -> Retry | None:
    """Null: the request has failed. `attempts_made` counts the one that just failed.

    `untried`: endpoints available now that this request has not asked; `others`: those available now besides the one that failed.
    An untried one is asked at once. Where none is left the request waits: as long as the endpoint said when there is no other to go to,
    else a short exponential backoff, since it is asking again what has already failed.
    """
    if outcome not in RETRYABLE or attempts_made > max_retries(spec, n_endpoints):
        return None
    if untried > 0:
        return Retry()
    if others == 0 and retry_after_s is not None and math.isfinite(retry_after_s) and retry_after_s > 0:
        return Retry(math.ceil(retry_after_s * NS_PER_S))
    doublings = min(attempts_made - 1, 16)
    return Retry(round(min(_BACKOFF_CAP_S, _BACKOFF_S * 2**doublings) * NS_PER_S))


def when_none_available(
    since_ns: int, now_ns: int, spec: EndpointSpec, *, open_loop: bool, resting: bool
) -> Literal["wait", "no_endpoint", "end"]:
    """What to do with an arrival while no endpoint has been available `since_ns`.

    A closed loop waits with its slots instead of burning arrivals. An open loop's clock goes on: its arrivals become `no_endpoint`
    records, unless one is only `resting` (its Retry-After will pass: the wait is a queue delay). After the patience the run ends.
    """
    if now_ns - since_ns >= round(spec.patience_s * NS_PER_S):
        return "end"
    return "no_endpoint" if open_loop and not resting else "wait"


def is_fatal(outcome: Outcome, status: int | None, error: str | None = None, error_code: str | None = None) -> str | None:
    """Why the whole run cannot go on after this answer: one line for the user. Null: it can.

    A 404 is fatal when it is about the model; another one says that this path is wrong for this request, and is counted.
    """
    if outcome != "http_4xx":
        return None
    if status in (401, 403):
        said = f": {error}" if error else ""
        return f"the server answered {status}{said}; give the key that it wants (--api-key-env NAME, or --header 'Authorization: ...')"
    if status == 404 and "model" in f"{error or ''} {error_code or ''}".lower():
        said = (error or error_code or "").rstrip(". ")
        return f"the server does not serve this model: {said}; name one that it does with --model"
    return None
