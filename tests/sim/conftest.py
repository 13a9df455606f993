"""Plain HTTP against a simulated engine: no client of ours is needed to judge it."""

import http.client
import json
from collections.abc import Callable
from typing import Any

import pytest

from loadcell.sim.inprocess import RunningEngine


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """SSE data, each decoded; [DONE] as the text."""
        datas = [part.removeprefix("data: ") for part in self.body.decode().split("\n\n") if part]
        return [data if data == "[DONE]" else json.loads(data) for data in datas]


Talk = Callable[..., Answer]


@pytest.fixture
def talk() -> Talk:
    """(engine, method, path, body=None, headers={}) -> Answer, over a fresh connection."""

    def once(engine: RunningEngine, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=10)
        try:
            content = body if body is None or isinstance(body, bytes) else json.dumps(body)
            connection.request(method, path, content, headers or {})
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    return once


@pytest.fixture
def chat(talk: Talk) -> Talk:
    """(engine, **body fields) -> Answer of a chat request; streamed, five tokens, unless told otherwise."""

    def once(engine: RunningEngine, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
        body = {"messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 5, "ignore_eos": True, "stream": True, **fields}
        return talk(engine, "POST", "/v1/chat/completions", {k: v for k, v in body.items() if v is not None}, headers)

    return once
