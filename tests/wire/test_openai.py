import json
from typing import Any

import pytest

from loadcell.wire.openai import MalformedError, Piece, Usage, choices_of, count_of, decode, sound_text, usage_of


@pytest.mark.parametrize(
    ("choice", "piece"),
    [
        ({"delta": {"role": "assistant", "content": ""}}, Piece()),
        ({"delta": {"content": None}}, Piece()),
        ({"delta": {}, "finish_reason": "stop"}, Piece(finish_reason="stop")),
        ({"delta": {"content": "a"}}, Piece(answer="a")),
        ({"delta": {"reasoning_content": "r"}}, Piece(reasoning="r")),
        ({"delta": {"reasoning": "r"}}, Piece(reasoning="r")),
        ({"delta": {"reasoning": "r", "reasoning_content": "r", "content": "a"}}, Piece(answer="a", reasoning="r")),
        ({"delta": {"refusal": "no"}}, Piece(answer="no")),
        (
            {"delta": {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{"}}, {"function": {"arguments": "}"}}]}},
            Piece(tool="f{}"),
        ),
        ({"delta": {"tool_calls": [{"index": 0, "id": "c", "type": "function"}]}}, Piece()),
        ({"delta": {"tool_calls": []}}, Piece()),
        ({"delta": {"function_call": {"name": "f", "arguments": "{}"}}}, Piece(tool="f{}")),
        ({"text": "a", "finish_reason": None}, Piece(answer="a")),
        ({"text": "", "finish_reason": "length"}, Piece(finish_reason="length")),
        (
            {"message": {"content": "a", "reasoning_content": "r"}, "finish_reason": "stop"},
            Piece(answer="a", reasoning="r", finish_reason="stop"),
        ),
        ({"index": 2, "delta": {"content": "a"}, "token_ids": [5, 6]}, Piece(index=2, answer="a", tokens=2)),
        ({"index": "x", "delta": [], "token_ids": None, "finish_reason": 7}, Piece()),
        (
            {"delta": {"content": [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": [{"text": "r"}]}, 3]}},
            Piece(answer="a", reasoning="r"),
        ),
        ({"finish_reason": {"type": "abort", "message": "m"}}, Piece(finish_reason="abort")),
        ({"finish_reason": ""}, Piece()),
    ],
)
def test_pieces(choice: dict[str, Any], piece: Piece) -> None:
    assert choices_of({"choices": [choice]}) == [piece]


@pytest.mark.parametrize("choices", [None, [], {}, "x", [1, None]])
def test_no_choices(choices: object) -> None:
    assert choices_of({"choices": choices}) == []


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 2}, Usage(output=2, input=3)),
        (
            {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 5}, "prompt_tokens_details": {"cached_tokens": 4}},
            Usage(output=9, reasoning=5, cached=4),
        ),
        ({"completion_tokens": 9, "reasoning_tokens": 5, "prompt_tokens_details": None}, Usage(output=9, reasoning=5)),
        ({"completion_tokens": -1, "prompt_tokens": "3"}, Usage()),
        ({"output_tokens": 9, "input_tokens": 4}, Usage(output=9, input=4)),
        ({"completion_tokens": 9, "output_tokens": 8, "prompt_tokens": 0, "input_tokens": 4}, Usage(output=9, input=0)),
        (
            {"output_tokens_details": {"reasoning_tokens": 5}, "input_tokens_details": {"cached_tokens": 2}},
            Usage(reasoning=5, cached=2),
        ),
        (None, None),
        ([], None),
    ],
)
def test_usage(usage: object, expected: Usage | None) -> None:
    assert usage_of({"usage": usage}) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, 3), (3.0, 3), (0, 0), (3.5, None), (True, None), (-1, None), (1e300, None), (float("nan"), None), ("3", None)],
)
def test_counts(value: object, expected: int | None) -> None:
    assert count_of(value) == expected


def test_running_totals_are_never_summed() -> None:
    assert Usage(output=3, input=1).largest(Usage(output=2, input=4)).largest(Usage()) == Usage(output=3, input=4)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [(b'{"a":1}', {"a": 1}), (b'{"a":"\xff"}', {"a": "\ufffd"}), (b'"\\ud83d"', "\ud83d"), (b"1", 1)],
)
def test_json_is_read_kindly(payload: bytes, expected: object) -> None:
    assert decode(payload) == expected


@pytest.mark.parametrize(
    ("payload", "cut"), [(b"{", True), (b'{"a":"b', True), (b"", True), (b"{]", False), (b"[" * 100_000, False), (b"nonsense", False)]
)
def test_what_is_no_json(payload: bytes, cut: bool) -> None:
    with pytest.raises(MalformedError) as caught:
        decode(payload)
    assert caught.value.cut is cut


def test_a_surrogate_pair_cut_between_events_is_joined() -> None:
    halves = [json.loads(r'"\ud83d"'), json.loads(r'"\ude00"')]
    assert sound_text("".join(halves)) == "\U0001f600"
    assert sound_text("a" + halves[0]) == "a\ufffd"
