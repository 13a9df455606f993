"""ShareGPT's JSON: one array of conversations -> the first question of each, and the length of the answer it got.

Pruned as by `vllm bench serve`: conversations under two turns, prompts or answers under 4 tokens, prompts over 1024, and prompt and
output over 2048 together. A stated context length takes the place of the last two.
"""

import re
from itertools import pairwise
from typing import Any, Final

import msgspec

from loadcell.errors import UserError
from loadcell.workload.lines import check_utf8, read_file
from loadcell.workload.rows import Bounds, Row
from loadcell.workload.spec import WorkloadSpec

NO_PAIR: Final = "no question with an answer"
_ASKS: Final = frozenset({"human", "user"})
_ANSWERS: Final = frozenset({"gpt", "chatgpt", "assistant", "bing", "bard", "model"})


def bounds(spec: WorkloadSpec) -> Bounds:
    """vLLM's limits; an output length that is asked for may be short."""
    least_output = 0 if spec.output_len is not None else 4
    if spec.max_model_len is not None:
        return Bounds(least_input=4, least_output=least_output)
    return Bounds(least_input=4, least_output=least_output, most_input=1024, most_total=2048)


def read_sharegpt(path: str, output_len: int | None) -> tuple[list[Row], int]:
    """A row for each conversation that has a question with an answer, and how many have none.

    UserError `path:line: what` for the first that is not of the form.
    """
    content = read_file(path)
    check_utf8(path, 1, content)
    try:
        entries = msgspec.json.decode(content, type=list[msgspec.Raw])
    except msgspec.DecodeError as error:
        raise UserError(f"{path}:{_line_of(error, content)}: not a JSON array of conversations ({error})") from error
    rows = []
    at = 0
    for raw in entries:
        at = content.index(raw, at)
        try:
            entry = msgspec.json.decode(raw)
        except RecursionError as error:
            line = content.count(b"\n", 0, at) + 1
            raise UserError(f"{path}:{line}: not valid JSON ({error})") from error
        row = _row(path, content, at, entry, output_len)
        if row is not None:
            rows.append(row)
        at += len(bytes(raw))
    if not rows:
        raise UserError(f"--dataset-path {path}: holds no conversation with a question and an answer")
    return rows, len(entries) - len(rows)


def _row(path: str, content: bytes, at: int, entry: Any, output_len: int | None) -> Row | None:
    turns = entry.get("conversations", []) if isinstance(entry, dict) else None
    if not isinstance(turns, list) or not all(isinstance(turn, dict) and isinstance(turn.get("value"), str) for turn in turns):
        line = content.count(b"\n", 0, at) + 1
        raise UserError(f"{path}:{line}: expected an object whose 'conversations' is a list of turns, each with a text 'value'")
    for asked, answered in pairwise(turns):
        if asked.get("from", "human") in _ASKS and answered.get("from", "gpt") in _ANSWERS:
            if output_len is not None:
                return Row(text=asked["value"], output_len=output_len)
            return Row(text=asked["value"], answer=answered["value"])
    return None


def _line_of(error: msgspec.DecodeError, content: bytes) -> int:
    """The line of the byte that msgspec names; 1 where it names none."""
    found = re.search(r"byte (\d+)", str(error))
    return content.count(b"\n", 0, int(found[1])) + 1 if found else 1
