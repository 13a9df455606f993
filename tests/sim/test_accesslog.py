from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadcell.errors import UserError
from loadcell.sim.accesslog import AccessLine, encode_line, gaps_us, read_access_log


def line(chunk_ns: list[int], chunk_tokens: tuple[int, ...] = ()) -> AccessLine:
    return AccessLine(
        method="POST",
        path="/v1/completions",
        client="127.0.0.1:1",
        arrival_ns=0,
        end_ns=1,
        first_token_ns=chunk_ns[0] if chunk_ns else None,
        gaps_us=gaps_us(chunk_ns),
        chunk_tokens=chunk_tokens,
    )


@given(st.lists(st.integers(0, 10**12), max_size=50).map(sorted))
def test_send_times_are_true_to_a_microsecond_however_many(chunk_ns: list[int]) -> None:
    told = line(chunk_ns).chunk_ns
    assert len(told) == len(chunk_ns)
    assert all(0 <= at - back < 1000 for at, back in zip(chunk_ns, told, strict=True))


def test_tokens_of_one_chunk_share_its_time() -> None:
    assert line([1000, 5000], (1, 3)).token_ns == [1000, 5000, 5000, 5000]


def test_lines_come_back_and_a_half_one_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(encode_line(line([1000, 2000])) + encode_line(line([]))[:-10])
    assert read_access_log(log) == [line([1000, 2000])]


def test_a_corrupt_line_is_named(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(encode_line(line([])) + b"{}\n")
    with pytest.raises(UserError, match="log:2: "):
        read_access_log(log)
