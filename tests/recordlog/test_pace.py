"""How arrivals of chunks stand on the disk: as changes of pace, and back without loss."""

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from loadcell.clock import Anchor
from loadcell.recordlog import LogHeader, encode_header, encode_record, read_log
from loadcell.records import Attempt, RequestRecord

HEADER = LogHeader(run_id="r", name="n", created="2026-01-01T00:00:00+00:00", origin=Anchor(0, 0))
GAPS = st.lists(st.integers(min_value=0, max_value=10**10), max_size=30)


def record(*lists: list[int]) -> RequestRecord:
    attempts = [Attempt(endpoint=0, outcome="ok", chunk_us=chunks) for chunks in lists]
    return RequestRecord(index=0, scheduled_ns=0, outcome="ok", attempts=attempts)


@given(st.lists(GAPS, min_size=1, max_size=3))
def test_arrivals_come_back_as_they_were(tmp_path_factory, lists: list[list[int]]) -> None:
    path: Path = tmp_path_factory.mktemp("pace") / "records.jsonl"
    written = record(*lists)
    path.write_bytes(encode_header(HEADER) + encode_record(written))
    log = read_log(path)
    assert list(log) == list(log) == [written]


def test_encoding_changes_no_record() -> None:
    one = record([5, 20_000, 20_003])
    line = encode_record(one)
    assert one.attempts[0].chunk_us == [5, 20_000, 20_003]
    assert json.loads(line)["attempts"][0]["chunk_us"] == [5, 20_000, 3]


def test_a_token_costs_few_bytes() -> None:
    """Tokens every 20 ms, each up to 0.1 ms early or late."""
    steady = [3_000_000, *(20_000 + (at * 37) % 201 - 100 for at in range(999))]
    assert len(encode_record(record(steady))) / 1000 < 5
