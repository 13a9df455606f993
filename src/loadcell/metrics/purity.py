"""Were we alone? The server's own counter of generation requests against the attempts that we sent.

The difference can fall short by our own aborted attempts (the server may not have counted them); it exceeds what we sent only when
somebody else asked too.
"""

import msgspec
from msgspec import Struct

from loadcell.metrics.facts import PurityFacts
from loadcell.metrics.summary import Purity


class SentAttempts(Struct, frozen=True):
    """Attempts at one endpoint: `sent` whose bytes left, `aborted` those of them that the server may not have counted."""

    sent: int = 0
    aborted: int = 0


def judge_purity(endpoint: str, facts: PurityFacts | None, ours: SentAttempts) -> Purity:
    """Pure, foreign (and how many at least), or unknown and why. `ours` stands in where the facts do not count attempts."""
    why = _why_unknown(facts)
    if facts is None or facts.before is None or facts.after is None or why is not None:
        return Purity(endpoint=endpoint, state="unknown", counter=facts.counter if facts else None, why=why)
    sent = ours.sent if facts.sent_attempts is None else facts.sent_attempts
    aborted = ours.aborted if facts.aborted_attempts is None else facts.aborted_attempts
    counted = round(facts.after - facts.before)
    found = Purity(endpoint=endpoint, state="pure", counter=facts.counter, counted=counted, sent=sent, tolerance=aborted, foreign=0)
    if counted > sent:
        rate = (counted - sent) / facts.seconds if facts.seconds else None
        return _as(found, state="foreign", foreign=counted - sent, foreign_per_s=rate)
    if counted < sent - aborted:
        return _as(found, state="unknown", foreign=None, why=f"the server counted {counted} of the {sent} requests that we sent")
    return found


def _why_unknown(facts: PurityFacts | None) -> str | None:
    if facts is None or facts.counter is None:
        return "the server shows no counter of generation requests"
    if facts.reset:
        return "the server's counter was reset: it restarted"
    if facts.before is None or facts.after is None:
        return "a scrape is missing"
    if facts.after < facts.before:
        return "the server's counter went backwards"
    if not facts.settled:
        return "the server was not quiet at the last scrape"
    return None


def _as(purity: Purity, **changes: object) -> Purity:
    return msgspec.structs.replace(purity, **changes)
