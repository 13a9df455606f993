"""Custom data sets: JSONL with `prompt` or `messages`, and optionally how long the answer may be and whose session it is."""

from typing import Any, Final

from loadcell.errors import UserError
from loadcell.workload.lines import JsonLines, tokens
from loadcell.workload.rows import Row

_OUTPUT_KEYS: Final = ("output_len", "output_tokens", "max_tokens")


def read_custom(path: str, chat: bool) -> tuple[list[Row], int]:
    """All rows, and the number of blank lines. UserError `path:line: what` for the first row that cannot be sent."""
    lines = JsonLines(path)
    rows = [_row(lines.place(number), value, chat) for number, value in lines]
    if not rows:
        raise UserError(f"--dataset-path {path}: holds no rows; give one JSON object a line, with 'prompt' or 'messages'")
    return rows, lines.blanks


def _row(place: str, value: dict[str, Any], chat: bool) -> Row:
    prompt, messages = value.get("prompt"), value.get("messages")
    if prompt is not None and messages is not None:
        raise UserError(f"{place}: has both 'prompt' and 'messages'; keep one")
    if messages is not None:
        _check_messages(place, messages, chat)
    elif prompt is None:
        raise UserError(f"{place}: has neither 'prompt' nor 'messages' (keys: {', '.join(value) or 'none'})")
    elif not isinstance(prompt, str) or not prompt:
        raise UserError(f"{place}: 'prompt' must be a text that is not empty")
    return Row(text=prompt, messages=messages, output_len=_output_len(place, value), session=_session(place, value.get("session_id")))


def _check_messages(place: str, messages: Any, chat: bool) -> None:
    if not chat:
        raise UserError(f"{place}: has 'messages', which completions cannot take; use --endpoint-type chat, or 'prompt'")
    if not isinstance(messages, list) or not messages:
        raise UserError(f"{place}: 'messages' must be a list with at least one message")
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise UserError(f"{place}: message {number} must be an object with a 'role'")
        content = message.get("content")
        if content is not None and not isinstance(content, str | list):
            raise UserError(f"{place}: the 'content' of message {number} must be a text or a list of parts")


def _output_len(place: str, value: dict[str, Any]) -> int | None:
    for key in _OUTPUT_KEYS:
        if value.get(key) is not None:
            return tokens(place, key, value[key])
    return None


def _session(place: str, session: Any) -> str | None:
    if session is not None and (isinstance(session, bool) or not isinstance(session, str | int)):
        raise UserError(f"{place}: 'session_id' must be a text or a number")
    return None if session is None else str(session)
