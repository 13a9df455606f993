"""Is this service ready? Asked over HTTP before any clock starts: light GETs, the model list, and once a real inference.

Endpoint -> `Reply`. Each question tells apart what a person would do about it: wait (refused, 503), name the model, give a key, look at the
engine (healthy by its /health, and no answer). Knows nothing of processes; nothing here is ever called while a load runs.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, Protocol

import msgspec
from msgspec import Struct

from loadcell.client.client import Client
from loadcell.client.limits import Timeouts
from loadcell.client.resolve import resolve
from loadcell.clock import NS_PER_S, MonotonicClock
from loadcell.probe import Get, Headers, get, list_models
from loadcell.records import Endpoint, Outcome, Request
from loadcell.wire.url import Api, parse_endpoint

if TYPE_CHECKING:
    import ssl

HEALTH_TIMEOUT_S: Final = 10.0
_SCAN_NS: Final = NS_PER_S // 10
_TOKENS: Final = 4
_NO_SUCH_PATH: Final = (404, 405, 501)
_UNAUTHORISED: Final = (401, 403)
_NOT_YET_OUTCOMES: Final[tuple[Outcome, ...]] = ("connect_error", "http_429")


class Reply(Struct, frozen=True):
    """`wait`: ask again, `text` says what is missing. `refused`: asking again will not help. `model`: the name that answered."""

    kind: Literal["ready", "wait", "refused"]
    text: str
    model: str | None = None


class Question(Struct, frozen=True):
    """What is asked. `health_path` null: the engine has none. `model` null: any; else the name that it must list and answer to."""

    base_url: str
    api: Api
    health_path: str | None
    model: str | None
    request_timeout_s: float
    headers: tuple[tuple[str, str], ...] = ()


class Inference(Struct, frozen=True):
    """How the one real request ended; `status` null: no answer."""

    outcome: Outcome
    status: int | None
    error: str | None


class Infer(Protocol):
    """The seam: `infer` below, or a fake."""

    def __call__(self, endpoint: Endpoint, body: bytes, timeout_s: float, headers: Headers) -> Inference: ...


def endpoint_of(question: Question) -> Endpoint:
    return resolve(parse_endpoint(question.base_url, question.api, None, 0))


def inquire(question: Question, *, ask: Get = get, request: "Infer | None" = None) -> Reply:
    """Health, models, one inference, in this order; the first that is not well is the reply."""
    endpoint = endpoint_of(question)
    model = question.model
    reply = _health(question, endpoint, ask)
    if reply is None:
        reply, model = _models(question, endpoint, ask)
    return reply or _inference(question, endpoint, model, request or infer)


def light_get(question: Question, *, timeout_s: float = 5.0, ask: Get = get) -> str | None:
    """Null when the service is well by its health (by its models where it has no health); else what is wrong."""
    endpoint = endpoint_of(question)
    path = endpoint.models_target if question.health_path is None else endpoint.root + question.health_path
    result = ask(endpoint, path, timeout_s, question.headers, _tls(endpoint))
    if result.status in _NO_SUCH_PATH and question.health_path is not None:
        result = ask(endpoint, endpoint.models_target, timeout_s, question.headers, _tls(endpoint))
    if result.status is None:
        return result.error
    return None if result.status < 500 else f"status {result.status}"


def _health(question: Question, endpoint: Endpoint, ask: Get) -> Reply | None:
    if question.health_path is None:
        return None
    result = ask(endpoint, endpoint.root + question.health_path, HEALTH_TIMEOUT_S, question.headers, _tls(endpoint))
    where = f"GET {endpoint.root}{question.health_path}"
    if result.status is None:
        return Reply("wait", f"{where}: {result.error}")
    if result.status in _UNAUTHORISED:
        return _unauthorised(where, result.status)
    if result.status in _NO_SUCH_PATH or 200 <= result.status < 300:
        return None
    return Reply("wait", f"{where}: status {result.status}" + (", still loading" if result.status == 503 else ""))


def _models(question: Question, endpoint: Endpoint, ask: Get) -> tuple[Reply | None, str | None]:
    """(what is not well, the model to ask)."""
    listed = list_models(endpoint, HEALTH_TIMEOUT_S, question.headers, _tls(endpoint), ask)
    where = f"GET {endpoint.models_target}"
    if listed.status in _UNAUTHORISED:
        return _unauthorised(where, listed.status), None
    if listed.ids:
        if question.model is not None and question.model not in listed.ids:
            return Reply("refused", f"wrong model: it serves {', '.join(listed.ids)}, not {question.model}"), None
        return None, question.model or listed.ids[0]
    if listed.status in _NO_SUCH_PATH and question.model is not None:
        return None, question.model  # an engine without a list: the inference will tell
    if listed.status in _NO_SUCH_PATH:
        return Reply("refused", f"{where}: status {listed.status}, so that nothing tells the model's name: give served_model_name"), None
    return Reply("wait", f"{where}: {listed.error}"), None


def _inference(question: Question, endpoint: Endpoint, model: str | None, request: Infer) -> Reply:
    body = msgspec.json.encode(_body(question.api, model))
    end = request(endpoint, body, question.request_timeout_s, question.headers)
    if end.outcome == "ok":
        return Reply("ready", "answered", model)
    said = f"{end.outcome}" + (f" ({end.error})" if end.error else "")
    if end.status in _UNAUTHORISED:
        return _unauthorised(f"POST {endpoint.target}", end.status)
    if end.outcome in _NOT_YET_OUTCOMES or end.status == 503:
        return Reply("wait", f"POST {endpoint.target}: {said}")
    if end.outcome == "http_4xx":
        return Reply("refused", f"the service refuses a request for {model}: status {end.status}, {end.error}")
    limit = f" within {question.request_timeout_s:g} s (ready_request_timeout)" if end.outcome.endswith("_timeout") else ""
    return Reply(
        "refused", f"the engine is dead behind a healthy {question.health_path or 'port'}: one real request got no answer{limit}: {said}"
    )


def _unauthorised(where: str, status: int) -> Reply:
    told = "the service wants a key: give it as the engine's api-key in [fleet.args], or as VLLM_API_KEY in [fleet.env], or send --header"
    return Reply("refused", f"unauthorised: {where} answers {status}; {told}")


def _tls(endpoint: Endpoint) -> "ssl.SSLContext | None":
    """A service of ours is known by its process, not by its certificate, which nobody need have signed."""
    if endpoint.scheme != "https":
        return None
    from loadcell.client import tls  # OpenSSL takes a while to load

    return tls.context(None, insecure=True)


def _body(api: Api, model: str | None) -> dict[str, object]:
    asked: dict[str, object] = {"messages": [{"role": "user", "content": "Hello"}]} if api == "chat" else {"prompt": "Hello"}
    return {"model": model, **asked, "max_tokens": _TOKENS, "stream": True, "temperature": 0}


def infer(endpoint: Endpoint, body: bytes, timeout_s: float, headers: Headers) -> Inference:
    """One request by the client that will also carry the load, to its end or `timeout_s` (0: a day)."""
    clock = MonotonicClock()
    limit_s = timeout_s or 86_400.0
    sent: Sequence[tuple[str, str]] = (("Content-Type", "application/json"), *headers)
    client = Client([endpoint], Timeouts(10.0, limit_s, limit_s, limit_s), sent, _tls(endpoint), kernel_stamps=False)
    try:
        client.start(Request(0, body), 0, body, clock.now_ns())
        while True:
            finished = client.poll(clock.now_ns() + _SCAN_NS)
            if finished:
                answer = finished[0].answer()
                # The timeout's text names a flag of `bench`, which is not this one's.
                error = answer.error if answer.error is not None else finished[0].error
                return Inference(answer.outcome, answer.status, None if answer.outcome.endswith("_timeout") else error)
            client.scan(clock.now_ns())
    finally:
        client.close()
