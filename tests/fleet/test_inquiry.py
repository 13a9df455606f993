"""The questions of readiness against real sockets: what each kind of server is told to be."""

import json

import pytest

from loadcell.fleet.inquiry import Question, inquire, light_get
from loadcell.testing.replies import HANG, chat_stream, error_reply, json_reply, plain
from loadcell.testing.scripted_server import Received, Reply, ScriptedServer, by_path

OK = [(0.0, plain(b"ok"))]
MODELS = [(0.0, json_reply({"data": [{"id": "m"}, {"id": "n"}]}))]
ANSWER = chat_stream("a", "b")
ROUTES = {"/health": OK, "/v1/models": MODELS, "/v1/chat/completions": ANSWER}


def question(
    server: ScriptedServer, model: str | None = "m", *, limit_s: float = 5.0, health: str | None = "/health", key: str = ""
) -> Question:
    headers = (("Authorization", f"Bearer {key}"),) if key else ()
    return Question(server.base_url, "chat", health, model, limit_s, headers)


def reply_of(changes: dict[str, object], model: str | None = "m", **how: object) -> tuple[str, str]:
    with ScriptedServer(by_path({**ROUTES, **changes})) as server:  # type: ignore[dict-item]
        reply = inquire(question(server, model, **how))  # type: ignore[arg-type]
        return reply.kind, reply.text


def status(code: int) -> list[tuple[float, bytes]]:
    return [(0.0, error_reply(code, "scripted"))]


def test_a_service_that_is_well_is_asked_once_for_a_few_tokens() -> None:
    with ScriptedServer(by_path(ROUTES)) as server:
        reply = inquire(question(server))
        assert (reply.kind, reply.model) == ("ready", "m")
        posts = [request for request in server.requests if request.method == "POST"]
    body = json.loads(posts[0].body)
    assert len(posts) == 1
    assert (body["model"], body["stream"]) == ("m", True)
    assert 1 <= body["max_tokens"] <= 8


def test_without_a_name_the_first_model_that_is_listed_is_asked() -> None:
    with ScriptedServer(by_path(ROUTES)) as server:
        assert inquire(question(server, None)).model == "m"


def test_nobody_listens() -> None:
    with ScriptedServer(OK) as server:
        asked = question(server)
    reply = inquire(asked)
    assert reply.kind == "wait"
    assert "refused" in reply.text


@pytest.mark.parametrize("code", [500, 502, 503])
def test_loading_is_not_ready_and_nothing_more_is_asked(code: int) -> None:
    with ScriptedServer(by_path({**ROUTES, "/health": status(code)})) as server:
        assert inquire(question(server)).kind == "wait"
        assert [request.path for request in server.requests] == ["/health"]


def test_a_slow_health_is_fine() -> None:
    assert reply_of({"/health": [(1200.0, plain(b"ok"))]})[0] == "ready"


def test_no_health_path_and_one_that_is_not_there() -> None:
    assert reply_of({"/health": status(404)})[0] == "ready"
    assert reply_of({"/health": status(503)}, health=None)[0] == "ready"


def test_wrong_model() -> None:
    kind, text = reply_of({}, model="other")
    assert kind == "refused"
    assert text == "wrong model: it serves m, n, not other"


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/chat/completions"])
@pytest.mark.parametrize("code", [401, 403])
def test_unauthorised_names_what_to_give(path: str, code: int) -> None:
    kind, text = reply_of({path: status(code)})
    assert kind == "refused"
    assert "unauthorised" in text
    assert path in text
    assert "api-key" in text


def test_a_key_goes_with_every_question() -> None:
    def guarded(script: object) -> Reply:
        def reply(request: Received) -> object:
            return script if request.headers.get("authorization") == "Bearer secret" else status(401)

        return reply  # type: ignore[return-value]

    assert reply_of({path: guarded(script) for path, script in ROUTES.items()}, key="secret")[0] == "ready"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([(0.0, HANG)], "within 0.5 s (ready_request_timeout)"),
        (status(500), "http_5xx"),
        ([(0.0, json_reply({"choices": []}))], "one real request got no answer"),
        ([(0.0, json_reply({"error": {"message": "EngineCore died", "code": 500}}))], "EngineCore died"),
    ],
)
def test_an_engine_that_is_dead_behind_a_healthy_health(answer: object, said: str) -> None:
    kind, text = reply_of({"/v1/chat/completions": answer}, limit_s=0.5)
    assert kind == "refused"
    assert "the engine is dead behind a healthy /health" in text
    assert said in text


def test_an_engine_that_still_loads_behind_a_healthy_health_is_waited_for() -> None:
    assert reply_of({"/v1/chat/completions": status(503)})[0] == "wait"


def test_a_request_that_is_refused_is_said_in_the_servers_words() -> None:
    kind, text = reply_of({"/v1/chat/completions": status(400)})
    assert kind == "refused"
    assert "status 400, scripted" in text


def test_an_engine_without_a_model_list() -> None:
    assert reply_of({"/v1/models": status(404)})[0] == "ready"
    kind, text = reply_of({"/v1/models": status(404)}, model=None)
    assert kind == "refused"
    assert "served_model_name" in text


def test_light_get() -> None:
    with ScriptedServer(by_path(ROUTES)) as server:
        assert light_get(question(server)) is None
        assert [request.method for request in server.requests] == ["GET"]
    assert "refused" in (light_get(question(server)) or "")
    with ScriptedServer(by_path({"/health": status(503)})) as server:
        assert light_get(question(server)) == "status 503"
    with ScriptedServer(by_path({"/v1/models": MODELS})) as server:
        assert light_get(question(server)) is None
        assert light_get(question(server, health=None)) is None
