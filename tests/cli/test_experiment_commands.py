"""`loadcell init` and `loadcell check`, as a person types them."""

from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit

import pytest

from loadcell.cli.main import main
from loadcell.fleet.hosts.local import LocalHost

SPEC = '[fleet]\nengine = "simulated"\nmodel = "${M}"\nport = 21871\n[target]\nbase-url = "http://127.0.0.1:21871"\n[bench]\nconcurrency = [1, 2]\n'


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SKIP_MANAGE_SERVER", raising=False)
    monkeypatch.chdir(tmp_path)


def written(folder: Path, text: str = SPEC) -> str:
    (folder / "e.toml").write_text(text)
    (folder / "config.env").write_text("M=${FROM_HERE:-demo}\n")
    return "e.toml"


def test_init_writes_a_file_that_check_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init"]) == 0
    assert "loadcell check experiment.toml" in capsys.readouterr().out
    assert main(["check", "experiment.toml", "--skip-fleet"]) == 0
    assert "4 scenarios, 4 cells, 180 requests" in capsys.readouterr().out


def test_init_replaces_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.toml").write_text("precious")
    assert main(["init", "mine.toml"]) == 2
    assert "not replaced" in capsys.readouterr().err
    assert (tmp_path / "mine.toml").read_text() == "precious"
    assert main(["init", "nowhere/mine.toml"]) == 1


def test_init_prints_for_an_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "-", "--engine", "vllm"]) == 0
    assert 'engine = "vllm"' in capsys.readouterr().out
    assert main(["init", "-", "--engine", "vlm"]) == 2
    assert "choose one of vllm, sglang" in capsys.readouterr().err


def test_check_shows_the_lines_that_would_start_the_services(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", written(tmp_path), "--env-file", "config.env", "--set", "fleet.replicas=2"]) == 0
    said = capsys.readouterr().out
    assert said.count(" simulate ") == 2
    assert "--port 21871" in said
    assert "--port 21872" in said
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "state") == ["config.env", "e.toml"]  # nothing is written


def test_check_says_which_cpus_the_services_and_the_client_get(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", written(tmp_path), "--env-file", "config.env"]
    assert main([*words, "--set", "fleet.cpus=apart"]) == 0
    services = capsys.readouterr().out.partition("Cells")[0]
    assert '  cpus = "apart": ' in services
    assert main(words) == 0
    assert "cpus" not in capsys.readouterr().out.partition("Cells")[0]


def test_check_refuses_what_a_start_would_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = SPEC.replace('"simulated"', '"vllm"').replace('"${M}"', '"/no/such/model"')
    assert main(["check", written(tmp_path, text)]) == 2
    said = capsys.readouterr()
    assert "/no/such/model" in said.err
    assert "Cells, in this order" in said.out
    assert "vllm serve /no/such/model" in said.out


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        pytest.param(
            "bench.concurrency=1000000000",
            "in scenario c1000000000: --concurrency 1000000000 needs",
            marks=pytest.mark.skipif(getrlimit(RLIMIT_NOFILE)[1] > 10**9, reason="this machine may open so many"),
        ),
        ("fleet.cpus=[0, 9999]", "fleet.cpus = [0, 9999]: this process may use the CPUs"),
    ],
)
def test_check_refuses_what_this_machine_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str], sets: str, says: str) -> None:
    words = [written(tmp_path), "--env-file", "config.env", "--set", sets]
    assert main(["check", *words]) == 2
    assert says in capsys.readouterr().err
    assert main(["run", *words]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "starting" not in said
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_a_plan_with_free_ports_is_shown_where_no_machine_told_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        SPEC.replace('"simulated"', '"vllm"')
        .replace('"${M}"', '"/no/such/model"')
        .replace("21871\n[target", '"auto"\nreplicas = 3\n[target')
    )
    assert main(["check", written(tmp_path, text)]) == 2
    said = capsys.readouterr().out
    assert said.count("vllm serve /no/such/model") == 3
    assert "0 stands for a free port, chosen at the start" in said


def test_check_warns_of_ports_that_outgoing_connections_may_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    port = next(one for one in range(first, last) if LocalHost().bindable("127.0.0.1", one))
    written(tmp_path)
    assert main(["check", "e.toml", "--env-file", "config.env", "--set", f"fleet.port={port}"]) == 0
    assert f"fleet.port: {port} on local may be taken by any outgoing connection" in capsys.readouterr().err
    assert main(["check", "e.toml", "--env-file", "config.env"]) == 0
    assert capsys.readouterr().err == ""


def test_check_of_running_services_looks_at_no_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SPEC.replace('"simulated"', '"vllm"').replace('"${M}"', '"/no/such/model"')
    monkeypatch.setenv("SKIP_MANAGE_SERVER", "1")
    assert main(["check", written(tmp_path, text)]) == 0
    assert "http://127.0.0.1:21871" in capsys.readouterr().out


def test_check_shows_only_what_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", written(tmp_path), "--env-file", "config.env", "--skip-fleet", "--only", "c2"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert " c2 " in said
    assert " c1 " not in said
    assert main([*words[:-1], "c9"]) == 2


def test_the_environment_reaches_a_file_through_the_env_file_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("M", "inherited")
    monkeypatch.setenv("FROM_HERE", "asked-for")
    assert main(["check", written(tmp_path), "--skip-fleet"]) == 2
    assert "e.toml:3: " in capsys.readouterr().err
    assert main(["check", written(tmp_path), "--env-file", "config.env", "--skip-fleet"]) == 0
    said = capsys.readouterr().out
    assert "asked-for" in said
    assert "inherited" not in said


def test_mistakes_are_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", written(tmp_path, SPEC + "concurency = 2\n")]) == 2
    assert main(["check", "none.toml"]) == 2
    assert main(["check"]) == 2
    assert "none.toml" in capsys.readouterr().err
