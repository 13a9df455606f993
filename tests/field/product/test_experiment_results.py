"""A matrix on the disk: nothing overwritten, nothing kept in memory alone, nothing lost to a kill, and each figure divided by what it should be."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadcell.clock import MonotonicClock
from loadcell.testing.replies import Script, chat_stream
from loadcell.testing.scripted_server import Received, ScriptedServer

pytestmark = pytest.mark.slow

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Serve = Callable[..., ScriptedServer]
StrictJson = Callable[[str | bytes], Any]
BENCH = "[bench]\nmodel = 'm'\nnum-prompts = 4\nconcurrency = 2\ninput-len = 8\noutput-len = 2\ntokenizer = 'words'\nhealth-check-interval = 0\n"


def write(tmp_path: Path, server: ScriptedServer, names: str, more: str = "") -> None:
    rows = "".join(f"[[scenario]]\nname = '{name}'\n" for name in names)
    (tmp_path / "exp.toml").write_text(f"name = 'exp'\n[target]\nbase_url = ['{server.base_url}']\n{BENCH}{more}{rows}")


def bytes_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def states(run: Path) -> dict[str, str]:
    found = json.loads((run / "results.json").read_bytes())
    return {cell["name"]: cell["state"] for scenario in found["scenarios"] for cell in scenario["cells"]}


class Gate:
    """Answers `free` requests, and then holds all until `open`."""

    def __init__(self, free: int) -> None:
        self.free, self.count, self.open = free, 0, False

    def __call__(self, request: Received) -> Script:
        self.count += request.method == "POST"
        return chat_stream("你好", "世界") if self.open or self.count <= self.free else [(3600.0, b"")]

    def wait(self) -> None:
        clock = MonotonicClock()
        give_up = clock.now_ns() + 60 * 10**9
        while self.count <= self.free:
            assert clock.now_ns() < give_up
            clock.sleep_until(clock.now_ns() + 10**7)


def started(tmp_path: Path, *words: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "loadcell", "run", *words],
        cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_every_scenario_keeps_its_own_files_and_no_run_touches_anothers(serve: Serve, command: Command, tmp_path: Path) -> None:
    server = serve(chat_stream("a", "b"))
    write(tmp_path, server, "abc")
    command("run", "exp.toml", "--output-dir", "run", "--quiet")
    assert states(tmp_path / "run") == dict.fromkeys("abc", "done")
    assert len(list((tmp_path / "run" / "raw_outputs").iterdir())) == 3
    assert len(list((tmp_path / "run" / "cells").glob("*/records.jsonl"))) == 3
    before, sent = bytes_below(tmp_path / "run"), len(server.requests)
    refused = command("run", "exp.toml", "--output-dir", "run")
    assert refused.returncode == 2
    assert "not empty" in refused.stderr
    assert bytes_below(tmp_path / "run") == before
    assert len(server.requests) == sent
    for _ in range(2):  # within one second, of one name
        command("run", "exp.toml", "--only", "a", "--quiet")
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_names_that_would_share_a_file_are_refused(serve: Serve, command: Command, tmp_path: Path) -> None:
    write(tmp_path, serve(chat_stream("a")), "aa")
    refused = command("run", "exp.toml", "--output-dir", "run")
    assert refused.returncode == 2
    assert "two scenarios are called a" in refused.stderr
    for name in ("../up", "a/b", ".", ""):
        write(tmp_path, serve(chat_stream("a")), [name])  # type: ignore[arg-type]
        assert command("run", "exp.toml", "--output-dir", "run").returncode == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_kill_in_the_fourth_of_five_costs_the_fourth(serve: Serve, command: Command, tmp_path: Path) -> None:
    gate = Gate(3 * 4 + 1)
    server = serve(gate)
    write(tmp_path, server, "abcde")
    process = started(tmp_path, "exp.toml", "--output-dir", "run")
    gate.wait()
    process.kill()
    process.wait()
    kept = {name: body for name, body in bytes_below(tmp_path / "run").items() if name.split("/")[0] in ("cells", "raw_outputs")}
    kept = {name: body for name, body in kept.items() if not name.startswith("cells/d/")}  # its workers may be about to leave
    assert [states(tmp_path / "run")[name] for name in "abc"] == ["done"] * 3
    gate.open, sent = True, gate.count
    command("run", "--resume", "run", "--quiet")
    assert states(tmp_path / "run") == dict.fromkeys("abcde", "done")
    assert gate.count - sent == 2 * 4
    after = bytes_below(tmp_path / "run")
    assert {name: after[name] for name in kept} == kept
    results = json.loads(after["results.json"])
    assert [cell["reused"] for scenario in results["scenarios"] for cell in scenario["cells"]] == [True] * 3 + [False] * 2
    # Another resume finds all of it, and sends nothing.
    command("run", "--resume", "run", "--quiet")
    assert gate.count - sent == 2 * 4


@pytest.mark.slow
@pytest.mark.parametrize("changed", ["concurrency = 1", "output-len = 3", "temperature = 0.5"])
def test_what_was_measured_under_other_settings_is_not_reused(serve: Serve, command: Command, tmp_path: Path, changed: str) -> None:
    server = serve(chat_stream("a", "b"))
    write(tmp_path, server, "ab")
    command("run", "exp.toml", "--output-dir", "run", "--quiet")
    kept = {name: body for name, body in bytes_below(tmp_path / "run").items() if name.startswith("cells/")}
    text = (tmp_path / "exp.toml").read_text()
    (tmp_path / "exp.toml").write_text(text + changed + "\n")  # of the last scenario
    sent = sum(request.method == "POST" for request in server.requests)
    command("run", "--resume", "run", "--quiet")
    assert sum(request.method == "POST" for request in server.requests) - sent == 4
    after = bytes_below(tmp_path / "run")
    assert {name: after[name] for name in kept} == kept
    assert "cells/b.2/records.jsonl" in after


@pytest.mark.slow
@pytest.mark.parametrize("file", ["state.jsonl", "cells/b/records.jsonl", "results.json", "spec.json"])
@pytest.mark.parametrize("cut", [1, 2, 20, "half"])
def test_a_torn_file_costs_at_most_its_item(serve: Serve, command: Command, tmp_path: Path, file: str, cut: int | str) -> None:
    """Torn as a machine that goes down leaves it."""
    server = serve(chat_stream("你好", "世界"))
    write(tmp_path, server, "ab", "save-text = true\n")
    command("run", "exp.toml", "--output-dir", "run", "--quiet")
    path = tmp_path / "run" / file
    body = path.read_bytes()
    path.write_bytes(body[: len(body) // 2] if cut == "half" else body[: -int(cut)])
    first = (tmp_path / "run" / "cells" / "a" / "records.jsonl").read_bytes()
    again = command("report", "run")
    assert "Traceback" not in again.stderr
    assert again.returncode in (0, 1, 2), again.stderr
    resumed = command("run", "--resume", "run", "--quiet")
    assert resumed.returncode in (0, 1), resumed.stderr
    assert "Traceback" not in resumed.stderr
    assert states(tmp_path / "run") == {"a": "done", "b": "done"}
    assert (tmp_path / "run" / "cells" / "a" / "records.jsonl").read_bytes() == first
    assert command("report", "run").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signals", "code"),
    [((signal.SIGINT,), 130), ((signal.SIGTERM,), 143), ((signal.SIGINT, signal.SIGINT), 130), ((signal.SIGTERM, signal.SIGINT), 143)],
)
def test_a_matrix_that_is_stopped_by_hand_tells_what_it_saw(
    serve: Serve, tmp_path: Path, strict_json: StrictJson, signals: tuple[int, ...], code: int
) -> None:
    gate = Gate(4 + 2)
    write(tmp_path, serve(gate), "abc", "drain-timeout = 1\n")
    process = started(tmp_path, "exp.toml", "--output-dir", "run")
    gate.wait()
    clock = MonotonicClock()
    for at, number in enumerate(signals):
        if at:
            clock.sleep_until(clock.now_ns() + 10**8)
        process.send_signal(number)
    assert process.wait(timeout=30) == code
    assert states(tmp_path / "run") == {"a": "done", "b": "interrupted", "c": "not_run"}
    results = strict_json((tmp_path / "run" / "results.json").read_bytes())
    assert results["state"] == "interrupted"
    second = results["scenarios"][1]["cells"][0]
    assert second["partial"] is True
    assert second["figures"]["all"]["ok"] >= 1
    assert "INTERRUPTED" in (tmp_path / "run" / "report.md").read_text().upper()
    for path in (tmp_path / "run").rglob("*.jsonl"):
        body = path.read_bytes()
        assert body.endswith(b"\n") or not body, path
        assert all(strict_json(line) for line in body.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "replicas", "devices"),
    [
        ("tensor-parallel-size = 1\ndata-parallel-size = 8", 1, 8),
        ("tensor-parallel-size = 4", 2, 8),
        ("tensor_parallel_size = 2\ndata_parallel_size = 2", 2, 8),
        ("max-num-seqs = 64", 2, None),
    ],
)
def test_figures_per_device_count_every_parallel_device(
    command: Command, tmp_path: Path, args: str, replicas: int, devices: int | None
) -> None:
    """As the configuration of the services tells them; one that tells nothing gives null, not one."""
    (tmp_path / "exp.toml").write_text(
        f"name = 'd'\n[fleet]\nengine = 'simulated'\nreplicas = {replicas}\nstop-timeout = 5\n[fleet.args]\nttft-ms = 2\nitl-ms = 1\n{args}\n"
        + BENCH.replace("model = 'm'\n", "")
        + "[[scenario]]\nname = 'a'\n"
    )
    done = command("run", "exp.toml", "--output-dir", "run", "--quiet", env={"XDG_STATE_HOME": str(tmp_path / "state")})
    assert "loadcell: error" not in done.stderr, done.stderr
    figures = json.loads((tmp_path / "run" / "results.json").read_bytes())["scenarios"][0]["cells"][0]["figures"]
    assert figures["devices"] == devices
    each = figures["output_tokens_per_s_per_device"]
    assert each == (None if devices is None else pytest.approx(figures["all"]["output_tokens_per_s"] / devices))


@pytest.mark.slow
def test_only_light_questions_are_asked_while_a_fleet_is_measured(command: Command, tmp_path: Path) -> None:
    """By the engine's own access log: one generation for readiness, before; then ours, to the last one; GETs apart."""
    log = tmp_path / "access.jsonl"
    (tmp_path / "exp.toml").write_text(
        f"name = 'p'\n[fleet]\nengine = 'simulated'\nmodel = 'm'\nstop-timeout = 5\n[fleet.args]\nttft-ms = 5\nitl-ms = 5\naccess-log = '{log}'\n"
        + BENCH.replace("health-check-interval = 0", "health-check-interval = 0.5").replace("output-len = 2", "output-len = 200")
        + "[[scenario]]\nname = 'a'\nnum-prompts = 8\n"
    )
    done = command("run", "exp.toml", "--output-dir", "run", "--quiet", env={"XDG_STATE_HOME": str(tmp_path / "state")})
    assert "loadcell: error" not in done.stderr, done.stderr
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    generations = [line for line in lines if line["method"] == "POST"]
    assert len(generations) == 1 + 8
    others = {(line["method"], line["path"]) for line in lines if line["method"] != "POST"}
    assert others <= {("GET", "/health"), ("GET", "/v1/models"), ("GET", "/metrics")}
    cell = json.loads((tmp_path / "run" / "results.json").read_bytes())["scenarios"][0]["cells"][0]
    assert cell["figures"]["all"]["requests"] == 8
    assert cell["purity"]["state"] == "pure"
