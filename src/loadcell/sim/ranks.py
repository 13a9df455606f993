"""Data-parallel ranks on other machines, as processes: a head that waits for them before it serves, and headless ones that join it.

Spec -> a rendezvous at --data-parallel-address and --data-parallel-rpc-port. Only the head computes (for every rank): a headless rank is there to be
started, watched, killed and stopped. As with vLLM, the head does not care when a rank is lost once all have joined, and a rank whose head is lost stays.
"""

import asyncio
import contextlib
import socket
from typing import Final

from loadcell.errors import EnvironmentFailure
from loadcell.sim.spec import SimSpec

LEAVE: Final = b"leave\n"
_AGAIN_S: Final = 0.2


def has_remote_ranks(spec: SimSpec) -> bool:
    return not spec.headless and (spec.data_parallel_size_local or spec.data_parallel_size) < spec.data_parallel_size


class Rendezvous:
    """The head's side. `complete` is set when every remote rank has joined. Raises EnvironmentFailure where it cannot listen."""

    def __init__(self, spec: SimSpec) -> None:
        assert spec.data_parallel_size_local is not None
        self._missing = set(range(spec.data_parallel_size_local, spec.data_parallel_size))
        self._joined: list[asyncio.StreamWriter] = []
        self._address, self._port = spec.data_parallel_address, spec.data_parallel_rpc_port
        self._server: asyncio.Server | None = None
        self.complete = asyncio.Event()

    async def open(self) -> None:
        try:
            self._server = await asyncio.start_server(self._greet, self._address, self._port, family=socket.AF_UNSPEC)
        except OSError as error:
            flags = f"--data-parallel-address {self._address} --data-parallel-rpc-port {self._port}"
            raise EnvironmentFailure(f"{flags}: cannot listen there: {error.strerror}") from error
        print(f"loadcell simulate: waiting for {len(self._missing)} remote ranks at {self._address}:{self._port}", flush=True)

    def dismiss(self) -> None:
        """Tell the ranks to leave."""
        for writer in self._joined:
            writer.write(LEAVE)
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ranks = _ranks_of(await reader.readline())
        if not ranks or not ranks <= self._missing:
            print(f"loadcell simulate: refused ranks {sorted(ranks)}: missing are {sorted(self._missing)}", flush=True)
            writer.close()
            return
        self._missing -= ranks
        self._joined.append(writer)
        if not self._missing:
            assert self._server is not None
            self._server.close()  # as vLLM's: who comes later comes too late
            self.complete.set()
        with contextlib.suppress(OSError):
            await reader.read()
        print(f"loadcell simulate: ranks {sorted(ranks)} are gone; serving goes on", flush=True)


def _ranks_of(line: bytes) -> set[int]:
    """`b"2 1"` (first rank, how many) -> {2}; empty for what is no greeting."""
    words = line.split()
    if len(words) != 2 or not all(word.isdigit() for word in words):
        return set()
    return set(range(int(words[0]), int(words[0]) + int(words[1])))


async def follow(spec: SimSpec, ended: "asyncio.Future[int]") -> None:
    """A headless rank's life: join the head, whenever it comes, and stay until it says so. Sets `ended` then."""
    start, local = spec.data_parallel_start_rank, spec.data_parallel_size_local
    while True:
        try:
            reader, writer = await asyncio.open_connection(spec.data_parallel_address, spec.data_parallel_rpc_port)
            break
        except OSError:
            await asyncio.sleep(_AGAIN_S)
    writer.write(f"{start} {local}\n".encode())
    where = f"{spec.data_parallel_address}:{spec.data_parallel_rpc_port}"
    print(f"loadcell simulate: headless, {local} ranks from {start}, joined {where}", flush=True)
    said = b""
    with contextlib.suppress(OSError):
        said = await reader.read()
    if said == LEAVE:
        print("loadcell simulate: the head says to leave", flush=True)
        if not ended.done():
            ended.set_result(0)
    else:
        print(f"loadcell simulate: the head at {where} is gone", flush=True)
