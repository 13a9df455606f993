"""Request bodies of the OpenAI API: fields -> JSON bytes. Made before the request is due, never while it is."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct


class Sampling(Struct, frozen=True):
    """Fields beside model and prompt; a null one is left out. `extra` wins over everything; its `stream_options` are added to ours."""

    max_tokens: int | None = None
    max_tokens_field: str = "max_tokens"
    temperature: float | None = None
    top_p: float | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    stream: bool = True
    include_usage: bool = True
    extra: dict[str, Any] = {}


def chat_body(model: str, messages: str | Sequence[Mapping[str, Any]], sampling: Sampling) -> bytes:
    """Body of /chat/completions. A plain prompt becomes one user message."""
    turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    return _body({"model": model, "messages": turns}, sampling)


def completions_body(model: str, prompt: str | Sequence[int], sampling: Sampling) -> bytes:
    """Body of /completions. The prompt is text or token ids."""
    return _body({"model": model, "prompt": prompt if isinstance(prompt, str) else list(prompt)}, sampling)


def drop_fields(body: bytes, fields: Iterable[str]) -> bytes:
    """`body` (made here) without its top-level `fields`; absent ones are no fault."""
    obj = msgspec.json.decode(body, type=dict[str, Any])
    for field in fields:
        obj.pop(field, None)
    return msgspec.json.encode(obj)


def _body(obj: dict[str, Any], sampling: Sampling) -> bytes:
    further = sampling.extra.get("stream_options")
    # A server may refuse `stream_options` in an answer that is not streamed.
    usage = {"include_usage": True} if sampling.stream and sampling.include_usage else None
    optional: dict[str, Any] = {
        sampling.max_tokens_field: sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "ignore_eos": sampling.ignore_eos,
        "min_tokens": sampling.min_tokens,
        "stream_options": usage,
    }
    obj |= {name: value for name, value in optional.items() if value is not None}
    obj["stream"] = sampling.stream
    obj |= sampling.extra
    if usage is not None and isinstance(further, dict):
        obj["stream_options"] = usage | further
    return msgspec.json.encode(obj)
