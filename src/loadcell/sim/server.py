"""The engine's HTTP side: routes, refusals, planned faults of requests and probes, and a log line for each request."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from loadcell.clock import MonotonicClock, anchor
from loadcell.seeds import derive
from loadcell.sim import asks, frames, tokens
from loadcell.sim.accesslog import AccessLine, Outcome
from loadcell.sim.answers import planned_answer, prompt_key
from loadcell.sim.asks import RefusalError
from loadcell.sim.connection import Connection, HttpRequest
from loadcell.sim.drive import Drive
from loadcell.sim.faults import Fault, FaultPlan
from loadcell.sim.generation import Generation
from loadcell.sim.logwriter import LogWriter
from loadcell.sim.sequence import Sequence
from loadcell.sim.spec import SimSpec

_now_ns: Final = MonotonicClock.now_ns
VERSION: Final = "0.11.0+loadcell.sim"  # the vLLM whose shapes are followed


class Server:
    """Application of all connections."""

    def __init__(
        self,
        spec: SimSpec,
        drive: Drive,
        *,
        names: tuple[str, ...],
        max_model_len: int,
        faults: FaultPlan,
        log: LogWriter,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._spec = spec
        self._drive = drive
        self._names = names
        self._max_model_len = max_model_len
        self._faults = faults
        self._log = log
        self._loop = loop
        self._connections: set[Connection] = set()
        self._held: dict[Connection, AccessLine] = {}
        self._closers: dict[Connection, asyncio.TimerHandle] = {}
        self._requests = 0
        self._probes = 0
        self._responses = 0
        self._ready_ns = _now_ns()
        self._loading_until_ns = 0
        self._created = anchor().wall_ns // 1_000_000_000
        drive.before_end = self._write_held
        drive.after_answer = self._answer_ended
        self._routes: Mapping[str, Mapping[str, Callable[[Connection, HttpRequest], None]]] = {
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._completion},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/metrics": {"GET": self._metrics},
            "/version": {"GET": self._version},
            "/reset_prefix_cache": {"POST": self._reset_prefix_cache},
        }

    @property
    def model(self) -> str:
        """The name that the model calls itself."""
        return self._names[0]

    def ready(self, loading_s: float = 0.0) -> None:
        """The clock of faults starts now; until `loading_s` from now every answer is a 503."""
        self._ready_ns = _now_ns()
        self._loading_until_ns = self._ready_ns + round(loading_s * 1e9)
        for fault in self._faults.ends():
            self._loop.call_later(fault.after or 0.0, self._drive.strike, fault)

    # --- connections
    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        closer = self._closers.pop(connection, None)
        if closer is not None:
            closer.cancel()

    def handle(self, connection: Connection, request: HttpRequest) -> None:
        closer = self._closers.pop(connection, None)
        if closer is not None:
            closer.cancel()
        path = self._route(request.path)
        methods = self._routes.get(path)
        try:
            if request.arrival_ns < self._loading_until_ns:
                raise RefusalError(503, "ServiceUnavailable", "Service Unavailable: the model is loading")
            if methods is None:
                self._answer(connection, request, 404, {"detail": "Not Found"})
            elif request.method not in methods:
                self._answer(connection, request, 405, {"detail": "Method Not Allowed"})
            elif self._spec.api_key and path.startswith("/v1") and request.header(b"authorization") != f"Bearer {self._spec.api_key}":
                self._answer(connection, request, 401, {"error": "Unauthorized"})
            else:
                methods[request.method](connection, request)
        except RefusalError as refusal:
            body = frames.error_body(refusal.message, refusal.kind, refusal.status, refusal.param)
            self._answer(connection, request, refusal.status, body)

    def _route(self, path: str) -> str:
        """The path below the root path; a gateway's /gw/chat/completions, without /v1, is understood too."""
        root = self._spec.root_path.rstrip("/")
        if root and path.startswith(root + "/"):
            path = path[len(root) :]
            return "/v1" + path if "/v1" + path in self._routes else path
        return path

    def _answer(
        self, connection: Connection, request: HttpRequest, status: int, payload: object, extra: str = "", fault: str | None = None
    ) -> None:
        self._raw(connection, request, status, frames.json_response(status, payload, keep_alive=request.keep_alive, extra=extra), fault)

    def _raw(self, connection: Connection, request: HttpRequest, status: int, data: bytes, fault: str | None = None) -> None:
        connection.send(data)
        if self._log.wanted:
            self._log.write(self._line(connection, request, status=status, fault=fault))
        self._finish(connection)

    def _finish(self, connection: Connection) -> None:
        """The answer is out; by plan, an idle connection is then closed without a word."""
        connection.answered()
        self._plan_close(connection)

    def _plan_close(self, connection: Connection) -> None:
        if self._faults.idle_close and connection.open and connection.idle:
            self._responses += 1
            delay_s = self._faults.closing(self._responses, self._elapsed_s())
            if delay_s is not None:
                self._closers[connection] = self._loop.call_later(delay_s, connection.close)

    @staticmethod
    def _line(
        connection: Connection, request: HttpRequest, *, status: int | None, outcome: Outcome = "finished", fault: str | None = None
    ) -> AccessLine:
        return AccessLine(
            method=request.method,
            path=request.path,
            client=connection.peer,
            arrival_ns=request.arrival_ns,
            end_ns=_now_ns(),
            status=status,
            outcome=outcome,
            request_id=request.header(b"x-request-id"),
            fault=fault,
        )

    # --- generation
    def _chat(self, connection: Connection, request: HttpRequest) -> None:
        self._generate(connection, request, chat=True)

    def _completion(self, connection: Connection, request: HttpRequest) -> None:
        self._generate(connection, request, chat=False)

    def _generate(self, connection: Connection, request: HttpRequest, *, chat: bool) -> None:
        self._requests += 1
        number = self._requests
        fault = self._faults.for_request(number, self._elapsed_s(), self._drive.running + 1)
        if fault is not None and self._struck_on_arrival(connection, request, fault):
            return
        fields = asks.decode_body(request.body)
        ask = asks.parse(fields, chat=chat, spec=self._spec, names=self._names, max_model_len=self._max_model_len)
        key = prompt_key(self._spec.seed, ask.prompt_ids, ask.seed)
        target, finish = planned_answer(self._spec, key, max_tokens=ask.max_tokens, min_tokens=ask.min_tokens, ignore_eos=ask.ignore_eos)
        seq = Sequence(number, ask.prompt_ids, target, request.arrival_ns, answer_start=key & 0xFFFF)
        name = request.header(b"x-request-id") or f"{derive(self._spec.seed, 'id', number):016x}{number:016x}"
        generation = Generation(
            owner=self._drive,
            connection=connection,
            request=request,
            ask=ask,
            seq=seq,
            finish=finish,
            fault=fault,
            spec=self._spec,
            response_id=f"{'chatcmpl' if chat else 'cmpl'}-{name}",
            created=self._created + int((request.arrival_ns - self._ready_ns) / 1e9),
        )
        generation.rank = self._drive.least_loaded()
        self._drive.submit(generation)

    def _struck_on_arrival(self, connection: Connection, request: HttpRequest, fault: Fault) -> bool:
        """Faults that come before any answer."""
        kind, at_once = fault.kind, not fault.tokens
        if kind == "reject":
            status = 503 if fault.status is None else fault.status
            retry = "" if fault.retry_after is None else f"retry-after: {fault.retry_after:g}\r\n"
            kinds = {429: "TooManyRequests", 500: "InternalServerError", 503: "ServiceUnavailable"}
            error = frames.error_body("The engine refuses this request by plan.", kinds.get(status, "Error"), status)
            self._answer(connection, request, status, error, retry, kind)
        elif kind == "hang":
            self._hold(connection, request, kind)
        elif kind == "reset" and at_once:
            self._log.write(self._line(connection, request, status=None, outcome="error", fault=kind))
            connection.reset()
        elif kind in ("crash", "exit", "oom_load") and at_once:
            self._log.write(self._line(connection, request, status=None, outcome="error", fault=kind))
            self._drive.strike(fault)
        else:
            return False
        return True

    def _hold(self, connection: Connection, request: HttpRequest, fault: str) -> None:
        """Never answer; the line is written when the client gives up, or at the end."""
        self._held[connection] = self._line(connection, request, status=None, outcome="aborted", fault=fault)

        def gone() -> None:
            held = self._held.pop(connection, None)
            if held is not None:
                self._log.write(self._line(connection, request, status=None, outcome="aborted", fault=fault))

        connection.on_gone = gone

    def _write_held(self) -> None:
        for held in self._held.values():
            self._log.write(held)
        self._held.clear()

    def _answer_ended(self, generation: Generation) -> None:
        if self._faults.idle_close:
            self._loop.call_soon(self._plan_close, generation.connection)

    def _elapsed_s(self) -> float:
        return (_now_ns() - self._ready_ns) / 1e9

    # --- the rest
    def _models(self, connection: Connection, request: HttpRequest) -> None:
        data: list[dict[str, Any]] = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "vllm",
                "root": self._spec.model or self._names[0],
                "parent": None,
                "max_model_len": self._max_model_len,
                "permission": [],
            }
            for name in self._names
        ]
        self._answer(connection, request, 200, {"object": "list", "data": data})

    def _tokenize(self, connection: Connection, request: HttpRequest) -> None:
        fields = asks.decode_body(request.body)
        asks.check_model(fields, self._names)
        if "messages" in fields:
            ids, _ = asks.chat_prompt(fields)
        elif isinstance(fields.get("prompt"), str):
            ids = tokens.encode(fields["prompt"])
        else:
            raise asks.bad_request("[{'type': 'missing', 'loc': ('body', 'prompt'), 'msg': 'Field required'}]", "prompt")
        answer: dict[str, Any] = {"count": len(ids), "max_model_len": self._max_model_len, "tokens": ids, "token_strs": None}
        self._answer(connection, request, 200, answer)

    def _detokenize(self, connection: Connection, request: HttpRequest) -> None:
        fields = asks.decode_body(request.body)
        asks.check_model(fields, self._names)
        ids = fields.get("tokens")
        if not isinstance(ids, list) or not all(type(token) is int for token in ids):
            raise asks.bad_request(
                "[{'type': 'list_type', 'loc': ('body', 'tokens'), 'msg': 'Input should be a valid list of integers'}]", "tokens"
            )
        try:
            text = tokens.decode(ids)
        except ValueError as error:
            raise asks.bad_request(str(error), "tokens") from error
        self._answer(connection, request, 200, {"prompt": text})

    def _health(self, connection: Connection, request: HttpRequest) -> None:
        self._probes += 1
        delay_s, status = self._faults.for_health(self._probes, self._elapsed_s())
        data = frames.head(status, "text/plain; charset=utf-8", length=0, keep_alive=request.keep_alive)
        fault = "fail_health" if status != 200 else "slow_health" if delay_s else None
        if not delay_s:
            self._raw(connection, request, status, data, fault)
            return
        later = self._loop.call_later(delay_s, self._raw, connection, request, status, data, fault)

        def gone() -> None:
            later.cancel()
            self._log.write(self._line(connection, request, status=None, outcome="aborted", fault=fault))

        connection.on_gone = gone

    def _metrics(self, connection: Connection, request: HttpRequest) -> None:
        body = self._drive.metrics(self._names[0], len(self._held))
        head = frames.head(200, "text/plain; version=0.0.4; charset=utf-8", length=len(body), keep_alive=request.keep_alive)
        self._raw(connection, request, 200, head + body)

    def _version(self, connection: Connection, request: HttpRequest) -> None:
        self._answer(connection, request, 200, {"version": VERSION})

    def _reset_prefix_cache(self, connection: Connection, request: HttpRequest) -> None:
        self._drive.forget_prefixes()
        self._raw(connection, request, 200, frames.head(200, "text/plain; charset=utf-8", length=0, keep_alive=request.keep_alive))
