"""Request bodies -> what is asked, or the 4xx that vLLM gives in its own words. Pure."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from loadcell.sim import tokens
from loadcell.sim.spec import SimSpec

PROMPT_HEAD: Final = 40
_COMPLETIONS_DEFAULT: Final = 16  # OpenAI's default of max_tokens in /v1/completions


class RefusalError(Exception):
    """An answer of the API's error shape; `kind` is its `type`."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param


class Ask(Struct, frozen=True, gc=False):
    """A valid generation request. `prompt_head` is the start of the prompt's text (the last message's, in chat)."""

    chat: bool
    model: str
    prompt_ids: list[int]
    prompt_head: str
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    seed: int | None


def bad_request(message: str, param: str | None = None) -> RefusalError:
    return RefusalError(400, "BadRequestError", message, param)


def decode_body(body: bytes) -> dict[str, Any]:
    """The JSON object of a body; raises RefusalError."""
    try:
        fields = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise bad_request(
            f"[{{'type': 'json_invalid', 'loc': ('body', 0), 'msg': 'JSON decode error', 'ctx': {{'error': '{error}'}}}}]"
        ) from error
    if not isinstance(fields, dict):
        raise bad_request("[{'type': 'model_attributes_type', 'loc': ('body',), 'msg': 'Input should be a valid dictionary'}]")
    return fields


def model_names(spec: SimSpec, profile_model: str) -> tuple[str, ...]:
    """Names under which the model answers, the first being the one it calls itself."""
    return spec.served_model_name or (spec.model or profile_model,)


def parse(fields: Mapping[str, Any], *, chat: bool, spec: SimSpec, names: tuple[str, ...], max_model_len: int) -> Ask:
    """Check a body of /v1/chat/completions or /v1/completions as vLLM does; raises RefusalError."""
    for refused in spec.refuse_field:
        if refused in fields:
            raise bad_request(f"Unrecognized request argument supplied: {refused}", refused)
    model = check_model(fields, names)
    prompt_ids, prompt_head = chat_prompt(fields) if chat else _completion_prompt(fields)
    stream = _boolean(fields, "stream")
    options = fields.get("stream_options")
    if options is not None and not stream:
        raise bad_request("Stream options can only be defined when `stream=True`.")
    if options is not None and not isinstance(options, dict):
        raise _wrong_type("stream_options", "a valid dictionary")
    options = options or {}
    if fields.get("n") not in (None, 1):
        raise bad_request("This engine gives one answer per request: n must be 1.", "n")
    temperature = fields.get("temperature")
    if temperature is not None:
        if isinstance(temperature, bool) or not isinstance(temperature, int | float):
            raise _wrong_type("temperature", "a valid number")
        if temperature < 0:
            raise bad_request(f"temperature must be non-negative, got {temperature}.", "temperature")
    max_tokens, min_tokens = _lengths(fields, chat=chat, prompt_tokens=len(prompt_ids), max_model_len=max_model_len)
    return Ask(
        chat=chat,
        model=model,
        prompt_ids=prompt_ids,
        prompt_head=prompt_head[:PROMPT_HEAD],
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=_boolean(fields, "ignore_eos"),
        stream=stream,
        include_usage=_boolean(options, "include_usage"),
        continuous_usage=_boolean(options, "include_usage") and _boolean(options, "continuous_usage_stats"),
        seed=_integer(fields, "seed"),
    )


def check_model(fields: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """The model asked for, the served one where none is named; raises the 404 for another."""
    model = fields.get("model")
    if model is None or model == "":
        return names[0]
    if model not in names:
        raise RefusalError(404, "NotFoundError", f"The model `{model}` does not exist.", "model")
    return str(model)


def chat_prompt(fields: Mapping[str, Any]) -> tuple[list[int], str]:
    """Ids of `messages` under the chat template, and the last message's text."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad_request("[{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required'}]", "messages")
    pairs: list[tuple[str, str]] = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _wrong_type("messages", "a list of messages, each with a role")
        pairs.append((message["role"], _content(message.get("content"))))
    generation_prompt = fields.get("add_generation_prompt")
    return tokens.encode_chat(pairs, generation_prompt is not False), pairs[-1][1]


def _content(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    raise _wrong_type("messages", "content that is a string or a list of parts")


def _completion_prompt(fields: Mapping[str, Any]) -> tuple[list[int], str]:
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        ids = tokens.encode(prompt)
        if not ids:
            raise bad_request("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
        return ids, prompt
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        if not all(0 <= token < tokens.VOCABULARY for token in prompt):
            raise bad_request(f"Token id {max(prompt)} is out of vocabulary", "prompt")
        return prompt, tokens.decode(prompt[:PROMPT_HEAD])
    if isinstance(prompt, list) and len(prompt) > 1 and isinstance(prompt[0], str | list):
        raise bad_request("This engine takes one prompt per request.", "prompt")
    raise bad_request("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")


def _lengths(fields: Mapping[str, Any], *, chat: bool, prompt_tokens: int, max_model_len: int) -> tuple[int, int]:
    room = max_model_len - prompt_tokens
    if room < 1:
        raise bad_request(
            f"This model's maximum context length is {max_model_len} tokens. However, your request has {prompt_tokens} input tokens. "
            "Please reduce the length of the input messages.",
            "input_tokens",
        )
    asked = _integer(fields, "max_tokens")
    if chat and _integer(fields, "max_completion_tokens") is not None:
        asked = _integer(fields, "max_completion_tokens")
    if asked is None:
        asked = room if chat else min(_COMPLETIONS_DEFAULT, room)
    if asked < 1:
        raise bad_request(f"max_tokens must be at least 1, got {asked}.", "max_tokens")
    if asked > room:
        raise bad_request(
            f"'max_tokens' or 'max_completion_tokens' is too large: {asked}. This model's maximum context length is {max_model_len} tokens "
            f"and your request has {prompt_tokens} input tokens ({asked} > {max_model_len} - {prompt_tokens}).",
            "max_tokens",
        )
    least = _integer(fields, "min_tokens") or 0
    if least < 0:
        raise bad_request(f"min_tokens must be greater than or equal to 0, got {least}.", "min_tokens")
    if least > asked:
        raise bad_request(f"min_tokens must be less than or equal to max_tokens={asked}, got {least}.", "min_tokens")
    return asked, least


def _boolean(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise _wrong_type(name, "a valid boolean")


def _integer(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise _wrong_type(name, "a valid integer")


def _wrong_type(name: str, wanted: str) -> RefusalError:
    return bad_request(f"[{{'type': 'type_error', 'loc': ('body', '{name}'), 'msg': 'Input should be {wanted}'}}]", name)
