"""Services that run already: where they are, what they answer, and that nothing of theirs is started or stopped."""

from pathlib import Path
from typing import Any

import pytest

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.experiment.choose import running_urls
from loadcell.experiment.services import RunningServices
from loadcell.experiment.spec import ExperimentSpec, TargetUrls
from loadcell.fleet.registry import Entry, Registry, this_process
from loadcell.fleet.spec import FleetSpec, HostSpec
from loadcell.sim.inprocess import running_engine
from loadcell.testing.replies import Script
from loadcell.testing.scripted_server import Received, ScriptedServer

from .running import BENCH, run

HERE = "http://127.0.0.1"


def fleet(**changes: Any) -> ExperimentSpec:
    return ExperimentSpec(name="exp", fleet=FleetSpec(**({"engine": "simulated", "replicas": 2} | changes)))


def entry(service: str, port: int, **changes: Any) -> Entry:
    given = {
        "host": HostSpec("local"),
        "owner": this_process(),
        "made_by": "up",
        "spec_name": "exp",
        "folder": "",
        "created": "t",
        "port": port,
    }
    return Entry(marker=service, service=service, **(given | changes))


@pytest.mark.parametrize(
    ("spec", "urls"),
    [
        (ExperimentSpec(name="exp", target=TargetUrls(("http://a:1", "http://b:2"))), ("http://a:1", "http://b:2")),
        (fleet(port=30005), (f"{HERE}:30005", f"{HERE}:30006")),
        (
            fleet(port=30005, host=(HostSpec("a", address="10.0.0.1"), HostSpec("b", address="10.0.0.2"))),
            ("http://10.0.0.1:30005", "http://10.0.0.2:30005"),
        ),
    ],
)
def test_where_they_are_by_the_specification(tmp_path: Path, spec: ExperimentSpec, urls: tuple[str, ...]) -> None:
    assert running_urls(spec, Registry(tmp_path)) == urls


def test_where_they_are_by_the_records_of_fleet_up(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    for given in (
        entry("replica-10", 5010),
        entry("replica-2", 5002, address="::1"),
        entry("replica-0", 1, spec_name="other"),
        entry("replica-3", 3, made_by="run"),
    ):
        registry.add(given)
    assert running_urls(fleet(port="auto"), registry) == ("http://[::1]:5002", f"{HERE}:5010")


def test_two_fleets_of_one_name_are_not_taken_for_one(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    registry.add(entry("replica-0", 1, folder="/a"))
    registry.add(entry("replica-1", 2, folder="/b"))
    with pytest.raises(UserError, match="several fleets named exp are up"):
        running_urls(fleet(port="auto"), registry)


def test_where_nobody_can_know_it_is_refused_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"give their addresses as \[target\] base_url"):
        running_urls(fleet(port="auto"), Registry(tmp_path))


def test_a_run_on_them_starts_and_stops_nothing(tmp_path: Path) -> None:
    with running_engine(ttft_ms=1.0, itl_ms=1.0, model="m") as engine:
        spec = f"name = 'exp'\n[fleet]\nengine = 'simulated'\nmodel = 'm'\nport = {engine.port}\n[bench]\n{BENCH}[[scenario]]\nname = 'a'\n"
        results = run(tmp_path, spec, skip_fleet=True)
        assert engine.process.poll() is None
    assert (results.state, results.fleet.managed, results.fleet.engine) == ("complete", False, "simulated")
    assert results.cells[0].raw_output == "raw_outputs/simulated_a.jsonl"
    assert not (tmp_path / "run" / "fleet_events.jsonl").exists()
    assert not (tmp_path / "state" / "services").exists()


def test_health_is_one_light_get_each_and_a_service_without_a_health_path_is_well() -> None:
    asked = []

    def reply(request: Received) -> Script:
        asked.append((request.method, request.path))
        status = (
            b"503 Service Unavailable"
            if request.path.startswith("/bad")
            else b"404 Not Found"
            if request.path.startswith("/none")
            else b"200 OK"
        )
        return [(0.0, b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")]

    with ScriptedServer(reply) as server:
        root = server.base_url.removesuffix("/v1")
        found = RunningServices([f"{root}/good", f"{root}/bad", f"{root}/none", "http://127.0.0.1:9"]).health()
    assert (len(found.healthy), len(found.unhealthy)) == (2, 2)
    assert found.reasons == ("HTTP 503", "connection refused")
    assert sorted(asked) == [("GET", "/bad/health"), ("GET", "/good/health"), ("GET", "/none/health")]
    assert found.warning is not None
    assert found.warning.startswith("WARNING: 2 service(s) unhealthy: ")


DEAD = "http://127.0.0.1:9"


def down(bench: str = "") -> str:
    return f"name = 'exp'\n[target]\nbase_url = ['http://127.0.0.1:9', 'http://127.0.0.1:11']\n[bench]\n{BENCH}{bench}\n[[scenario]]\nname = 'a'\n"


def test_services_that_are_down_are_refused_at_once_by_name_and_leave_no_folder(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"no answer from http://127\.0\.0\.1:9 \(connection refused\), http://127\.0\.0\.1:11 \("):
        run(tmp_path, down())
    assert not (tmp_path / "run").exists()
    spec = f"name = 'exp'\n[fleet]\nengine = 'simulated'\nport = 9\n[bench]\n{BENCH}[[scenario]]\nname = 'a'\n"
    with pytest.raises(EnvironmentFailure, match=r"no answer from http://127\.0\.0\.1:9"):
        run(tmp_path, spec, skip_fleet=True)


def test_unless_they_are_to_be_waited_for(tmp_path: Path) -> None:
    results = run(tmp_path, down("ready-check-timeout-sec = 0.2\n"))
    assert results.cells[0].state == "failed"
    assert "0.2" in (results.cells[0].cause or "")


def test_one_that_loads_or_has_no_such_path_is_there() -> None:
    with ScriptedServer(lambda _: [(0.0, b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")]) as server:
        root = server.base_url.removesuffix("/v1")
        assert RunningServices([root, DEAD]).silent() == (f"{DEAD} (connection refused)",)


def test_a_run_that_has_nothing_left_to_do_asks_nobody(tmp_path: Path) -> None:
    with running_engine(ttft_ms=1.0, itl_ms=1.0, model="m") as engine:
        spec = f"name = 'exp'\n[target]\nbase_url = ['{engine.root_url}']\n[bench]\n{BENCH}[[scenario]]\nname = 'a'\n"
        run(tmp_path, spec)
    assert run(tmp_path, None, resume=tmp_path / "run").state == "complete"


def test_a_specification_with_a_byte_order_mark(tmp_path: Path) -> None:
    with running_engine(ttft_ms=1.0, itl_ms=1.0, model="m") as engine:
        spec = f"name = 'exp'\n[target]\nbase_url = ['{engine.root_url}']\n[bench]\n{BENCH}[[scenario]]\nname = 'a'\n"
        assert run(tmp_path, "\ufeff" + spec).state == "complete"
    assert (tmp_path / "run" / "experiment.toml").read_text(encoding="utf-8").startswith("name")


@pytest.mark.parametrize("said", ["served-model-name = 'm'\n[fleet.args]", "[fleet.args]\nserved-model-name = 'm'", "[fleet.args]"])
def test_they_are_asked_by_the_name_that_they_serve_and_it_is_in_the_report(tmp_path: Path, said: str) -> None:
    """Also where only the engine's own option says it, or nothing does."""
    path = "" if said == "[fleet.args]" else "model = '/data/models/M'\n"
    with running_engine(ttft_ms=1.0, itl_ms=1.0, model="m") as engine:
        spec = (
            f"name = 'exp'\n[fleet]\nengine = 'simulated'\nport = {engine.port}\n{path}{said}\n[bench]\n{BENCH}[[scenario]]\nname = 'a'\n"
        )
        results = run(tmp_path, spec, skip_fleet=True)
    assert (results.cells[0].state, results.fleet.model) == ("done", "m")
    assert "Engine simulated, model m." in (tmp_path / "run" / "report.md").read_text()


def test_a_gate_for_cells_without_limits_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    spec = f"name = 'exp'\n[target]\nbase_url = 'http://127.0.0.1:9'\n[bench]\n{BENCH}[[scenario]]\nname = 'a'\n"
    with pytest.raises(UserError, match=r"--gate: .* has no limit to hold these cells to"):
        run(tmp_path, spec, gate=True)
    assert not (tmp_path / "run").exists()
