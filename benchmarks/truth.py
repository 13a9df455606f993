"""A client's record log and the server's truth log -> errors of what the client says.

The join is exact: the server, asked with `tag=1`, tells its sequence number as `usage.prompt_tokens`, which a record keeps as
`input_tokens`. Both sides stamp with the same host's CLOCK_MONOTONIC.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Stamps = NDArray[np.int64]


@dataclass(frozen=True)
class Timeline:
    """One request in ns of CLOCK_MONOTONIC. Of a client: scheduled, sent, events received. Of the server: received, -, events sent."""

    sent_ns: int
    scheduled_ns: int | None
    events_ns: Stamps


def arrivals_us(written: list[int]) -> "np.ndarray":
    """A record's `chunk_us` as it stands in the file (first arrival, first gap, changes of the gap) -> arrivals."""
    coded = np.array(written, dtype=np.int64)
    return np.concatenate([coded[:1], coded[:1] + np.cumsum(np.cumsum(coded[1:]))])


def read_words(path: Path) -> dict[int, tuple[int, int, Stamps]]:
    """A log of 64-bit words: [seq, a, b, n, stamp × n] per request -> seq -> (a, b, stamps)."""
    words = np.fromfile(path, dtype=np.int64)
    rows: dict[int, tuple[int, int, Stamps]] = {}
    at = 0
    while at < len(words):
        count = int(words[at + 3])
        rows[int(words[at])] = (int(words[at + 1]), int(words[at + 2]), words[at + 4 : at + 4 + count])
        at += 4 + count
    return rows


def read_server(path: Path) -> dict[int, Timeline]:
    return {seq: Timeline(received, None, stamps) for seq, (received, _, stamps) in read_words(path).items()}


def read_c_client(path: Path) -> dict[int, Timeline]:
    return {seq: Timeline(sent, scheduled, stamps) for seq, (sent, scheduled, stamps) in read_words(path).items()}


def read_records(path: Path) -> dict[int, Timeline]:
    """records.jsonl -> timelines of the measured requests by the server's sequence number.

    Raises ValueError when two records name the same number: then the log was not made against a tagging server.
    """
    rows: dict[int, Timeline] = {}
    with path.open() as lines:
        origin_ns = json.loads(next(lines))["origin"]["monotonic_ns"]
        for line in lines:
            record = json.loads(line)
            if record["outcome"] != "ok" or record.get("phase", "measure") != "measure":
                continue
            last = record["attempts"][-1]
            events = arrivals_us(last["chunk_us"]) * 1000 + origin_ns
            if last["input_tokens"] in rows:
                raise ValueError(f"{path}: two records with input_tokens {last['input_tokens']}: was the server asked with tag=1?")
            rows[last["input_tokens"]] = Timeline(last["sent_ns"] + origin_ns, record["scheduled_ns"] + origin_ns, events)
    return rows


def errors(client: dict[int, Timeline], server: dict[int, Timeline]) -> dict[str, float]:
    """Errors in µs. `unmatched` counts requests that only one side knows or whose number of events differs.

    ITL error: |gap seen − gap sent| over all gaps. TTFT error: |(first event − sent) − (first event sent − received)|, which holds
    the way through the kernel; `received` is the kernel's stamp too. `ttft_median` is the difference of the two medians.
    Dispatch lag: sent − scheduled. `mark`: event received − event sent.
    """
    gaps, ttft, client_ttft, server_ttft, marks, lags = [], [], [], [], [], []
    unmatched = len(set(client) ^ set(server))
    for seq in set(client) & set(server):
        seen, true = client[seq], server[seq]
        if len(seen.events_ns) != len(true.events_ns) or len(seen.events_ns) == 0:
            unmatched += 1
            continue
        gaps.append(np.abs(np.diff(seen.events_ns) - np.diff(true.events_ns)))
        marks.append(seen.events_ns - true.events_ns)
        client_ttft.append(int(seen.events_ns[0]) - seen.sent_ns)
        server_ttft.append(int(true.events_ns[0]) - true.sent_ns)
        ttft.append(abs(client_ttft[-1] - server_ttft[-1]))
        if seen.scheduled_ns is not None:
            lags.append(seen.sent_ns - seen.scheduled_ns)
    if not gaps:
        raise ValueError(f"no request could be joined: {len(client)} of the client, {len(server)} of the server")
    gap, mark = np.concatenate(gaps) / 1e3, np.concatenate(marks) / 1e3
    figures = {
        "requests": float(len(gaps)),
        "unmatched": float(unmatched),
        "itl_p50": np.percentile(gap, 50),
        "itl_p99": np.percentile(gap, 99),
        "ttft_median": abs(np.median(client_ttft) - np.median(server_ttft)) / 1e3,
        "ttft_p50": np.percentile(ttft, 50) / 1e3,
        "ttft_p99": np.percentile(ttft, 99) / 1e3,
        "mark_p50": np.percentile(mark, 50),
        "mark_p99": np.percentile(mark, 99),
    }
    if lags:
        figures |= {"lag_p50": np.percentile(lags, 50) / 1e3, "lag_p99": np.percentile(lags, 99) / 1e3}
    return {key: float(value) for key, value in figures.items()}
