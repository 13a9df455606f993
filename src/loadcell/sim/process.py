"""The engine's process: from a spec to an exit code. Start-up, signals, and the end."""

import asyncio
import gc
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from typing import Final

import uvloop

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.sim.connection import Connection
from loadcell.sim.drive import Drive
from loadcell.sim.faults import FaultPlan, parse_fault
from loadcell.sim.logwriter import LogWriter
from loadcell.sim.memory import StartError, out_of_memory
from loadcell.sim.profile import find_profile
from loadcell.sim.ranks import Rendezvous, follow, has_remote_ranks
from loadcell.sim.server import Server
from loadcell.sim.spec import SimSpec
from loadcell.sim.startup import Engine, start_engine

_BACKLOG: Final = 16384


def run(spec: SimSpec) -> int:
    """Serve until a signal or a fault; returns the exit code. Raises LoadcellError before anything is served.

    A start that fails as a real engine's would prints vLLM's words on standard error and returns 1.
    """
    faults = FaultPlan(tuple(map(parse_fault, spec.fault)), spec.seed)
    try:
        if faults.oom_at_start:
            device, _ = find_profile(spec.profile)
            raise out_of_memory(device, device.memory / 64, device.memory / 128)
        engine = start_engine(spec)
    except StartError as failure:
        print(failure, file=sys.stderr, flush=True)
        return 1
    tls = _tls(spec)
    _raise_descriptor_limit()
    loop = uvloop.new_event_loop()
    try:
        return loop.run_until_complete(_follow(spec, loop) if spec.headless else _serve(spec, engine, faults, tls, loop))
    finally:
        loop.close()


async def _follow(spec: SimSpec, loop: asyncio.AbstractEventLoop) -> int:
    """A headless rank, to its end."""
    ended: asyncio.Future[int] = loop.create_future()

    def leave() -> None:
        if not ended.done():
            ended.set_result(0)

    _on_end(spec, loop, leave)
    following = loop.create_task(follow(spec, ended))
    try:
        return await ended
    finally:
        following.cancel()


async def _serve(spec: SimSpec, engine: Engine, faults: FaultPlan, tls: ssl.SSLContext | None, loop: asyncio.AbstractEventLoop) -> int:
    ended: asyncio.Future[int] = loop.create_future()

    def stop(code: int) -> None:
        log.close()
        if code < 0:
            if -code != signal.SIGKILL:
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        elif not graceful:
            os._exit(code)  # a crash does not say goodbye: the kernel resets what is open
        if not ended.done():
            ended.set_result(code)

    graceful = False
    log = LogWriter(spec.access_log, loop)
    drive = Drive(engine.timelines, log, loop, stop)
    server = Server(spec, drive, names=engine.names, max_model_len=engine.max_model_len, faults=faults, log=log, loop=loop)

    ranks = Rendezvous(spec) if has_remote_ranks(spec) else None

    def leave() -> None:
        nonlocal graceful
        graceful = True
        drive.shut("aborted", "abort")
        if ranks is not None:
            ranks.dismiss()
        stop(0)

    _on_end(spec, loop, leave)
    sock = _bound_socket(spec)
    if ranks is not None:
        await ranks.open()
        joining = loop.create_task(ranks.complete.wait())
        await asyncio.wait((ended, joining), return_when=asyncio.FIRST_COMPLETED)
        joining.cancel()
    slow = faults.slow_start
    loading_s = 0.0 if slow is None else 10.0 if slow.delay is None else slow.delay
    if slow is not None and slow.how == "refused":
        await asyncio.wait((ended,), timeout=loading_s)
        loading_s = 0.0
    if not ended.done():
        await _listen(spec, server, sock, tls, loop, loading_s)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    return await ended


async def _listen(
    spec: SimSpec, server: Server, sock: socket.socket, tls: ssl.SSLContext | None, loop: asyncio.AbstractEventLoop, loading_s: float
) -> None:
    """Accept, start the faults' clock, and say so on standard output."""
    await loop.create_server(lambda: Connection(server), sock=sock, backlog=_BACKLOG, ssl=tls)
    server.ready(loading_s)
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"loadcell simulate: serving {server.model} on {'https' if tls else 'http'}://{shown}:{port}{spec.root_path}/v1", flush=True)


def _bound_socket(spec: SimSpec) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(spec.host, spec.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        raise EnvironmentFailure(f"--host {spec.host} --port {spec.port}: cannot listen there: {error.strerror}") from error
    sock.setblocking(False)  # noqa: FBT003  (the library's own signature)
    return sock


def _tls(spec: SimSpec) -> ssl.SSLContext | None:
    if spec.ssl_certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(spec.ssl_certfile, spec.ssl_keyfile)
    except OSError as error:  # ssl.SSLError is one
        raise UserError(f"--ssl-certfile {spec.ssl_certfile}: cannot be used: {error}") from error
    return context


def _on_end(spec: SimSpec, loop: asyncio.AbstractEventLoop, leave: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave)
    if spec.exit_on_stdin_eof:
        _watch_stdin(loop, leave)


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _watch_stdin(loop: asyncio.AbstractEventLoop, leave: Callable[[], None]) -> None:
    def readable() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            leave()

    loop.add_reader(0, readable)
