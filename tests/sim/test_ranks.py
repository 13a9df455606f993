"""A head and its headless ranks, as processes."""

import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.load.running import until

from loadcell.errors import UserError
from loadcell.sim.spec import SimSpec
from loadcell.sim.startup import start_engine

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "loadcell.sim", "--ttft-ms=1", "--itl-ms=1", *words]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip().removeprefix("loadcell simulate: ")


def of_three(port: int) -> tuple[str, ...]:
    return "--data-parallel-size=3", "--data-parallel-size-local=1", f"--data-parallel-rpc-port={port}"


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url.removesuffix('/v1')}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.URLError:
        return False


def fleet_of_three(start: Start, port: int) -> tuple[list["subprocess.Popen[str]"], str]:
    """Head and two ranks that have joined, and the head's URL."""
    processes = [start(*of_three(port), "--port=0")]
    assert line(processes[0]) == f"waiting for 2 remote ranks at 127.0.0.1:{port}"
    for rank in (1, 2):
        processes.append(start(*of_three(port), "--headless", f"--data-parallel-start-rank={rank}"))
        assert line(processes[-1]) == f"headless, 1 ranks from {rank}, joined 127.0.0.1:{port}"
    said = line(processes[0])
    found = re.search(r"http://\S+", said)
    assert found is not None, said
    return processes, found[0]


def test_the_head_serves_when_all_have_joined_and_its_end_ends_them(start: Start, unused_port: int) -> None:
    processes, url = fleet_of_three(start, unused_port)
    assert healthy(url)
    processes[0].send_signal(signal.SIGTERM)
    assert [process.wait(10) for process in processes] == [0, 0, 0]
    assert line(processes[1]) == "the head says to leave"


def test_the_head_serves_on_when_a_rank_is_lost(start: Start, unused_port: int) -> None:
    processes, url = fleet_of_three(start, unused_port)
    processes[2].kill()
    assert line(processes[0]) == "ranks [2] are gone; serving goes on"
    assert healthy(url)


def test_ranks_stay_when_the_head_is_lost(start: Start, unused_port: int) -> None:
    processes, _ = fleet_of_three(start, unused_port)
    processes[0].kill()
    assert line(processes[1]) == f"the head at 127.0.0.1:{unused_port} is gone"
    assert processes[1].poll() is None
    processes[1].send_signal(signal.SIGTERM)
    assert processes[1].wait(10) == 0


def test_a_rank_waits_for_a_head_that_comes_later_and_the_head_refuses_one_that_it_has(start: Start, unused_port: int) -> None:
    rank = start(*of_three(unused_port), "--headless", "--data-parallel-start-rank=1")
    head = start(*of_three(unused_port), "--port=0")
    assert line(rank).startswith("headless, 1 ranks from 1, joined")
    start(*of_three(unused_port), "--headless", "--data-parallel-start-rank=1")
    assert line(head).startswith("waiting for 2")
    assert line(head) == "refused ranks [1]: missing are [2]"
    head.send_signal(signal.SIGTERM)
    assert head.wait(10) == 0
    until(lambda: rank.poll() == 0)


def test_a_port_that_somebody_has(start: Start, unused_port: int) -> None:
    start(*of_three(unused_port), "--port=0").stdout.readline()  # type: ignore[union-attr]
    late = start(*of_three(unused_port), "--port=0")
    assert "--data-parallel-rpc-port" in line(late)
    assert late.wait(10) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data_parallel_size_local": 3}, "--data-parallel-size-local 3: must be from 1 to --data-parallel-size (2)"),
        ({"data_parallel_start_rank": 1}, "goes with --headless"),
        ({"headless": True}, "say which ranks it has"),
        ({"headless": True, "data_parallel_size_local": 1, "data_parallel_start_rank": 2}, "from 1 to 1 is possible"),
        ({"headless": True, "data_parallel_size_local": 1, "data_parallel_start_rank": 0}, "from 1 to 1 is possible"),
    ],
)
def test_ranks_that_cannot_be_counted(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        start_engine(SimSpec(data_parallel_size=2, **given))
    assert said in str(refused.value)
