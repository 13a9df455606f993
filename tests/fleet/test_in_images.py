"""Services in containers of their own, from check to stop, over the stand-in for `docker`, which runs them as plain processes of this machine."""

import json
import sys
from pathlib import Path

import pytest

from loadcell.cli.main import main
from loadcell.errors import UserError
from loadcell.fleet.registry import Registry
from loadcell.fleet.spec import DockerSpec, HostSpec

from .conftest import QUICK, MakeFleet, command, simulated

PATHLESS = "no-such-program-on-any-machine"


def in_image(*args: str, image: str = "img") -> tuple[HostSpec, ...]:
    return (HostSpec("box", docker=DockerSpec(image=image, args=args)),)


def told(fleet: object) -> str:
    return "\n".join(fleet.notes)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("state")
def test_the_program_is_the_images_and_is_not_looked_for_outside(make_fleet: MakeFleet) -> None:
    with pytest.raises(UserError, match=f"'{PATHLESS}' is no program on host local"):
        make_fleet(command(PATHLESS)).check()
    fleet = make_fleet(command(PATHLESS, host=in_image()))
    (plan,) = fleet.check()
    assert plan.launch.argv[0] == PATHLESS
    assert f"the program {PATHLESS} is not looked for: it is in image img, or not" in told(fleet)
    fleet.check()
    assert told(fleet).count("is not looked for") == 1


@pytest.mark.usefixtures("state")
def test_an_image_that_is_not_there_and_a_model_that_is_not_mounted(make_fleet: MakeFleet, tmp_path: Path) -> None:
    fleet = make_fleet(command("x", model="/models/m", host=in_image("-v", "named:/models", image="no-such-image")))
    fleet.check()
    assert "image no-such-image is not there yet: `docker run` will pull it" in told(fleet)
    assert "the model /models/m is not looked for" in told(fleet)
    mount = ("-v", f"{tmp_path}/data:/models:ro")
    with pytest.raises(UserError, match=f"mount {tmp_path}/data/m there, and there is no such path"):
        make_fleet(command("x", model="/models/m", host=in_image(*mount))).check()
    (tmp_path / "data" / "m").mkdir(parents=True)
    fleet = make_fleet(command("x", model="/models/m", host=in_image(*mount)))
    fleet.check()
    assert "the model" not in told(fleet)


def test_from_check_to_stop_with_a_file_in_its_folder(make_fleet: MakeFleet, state: Path, registry: Registry) -> None:
    """Nobody writes files there before the start; the engine does."""
    spec = simulated(host=in_image(), args={**QUICK, "access-log": "{folder}/access.jsonl"}, stop_timeout=10)
    fleet = make_fleet(spec)
    fleet.start()
    folder = Path(fleet.plans[0].replica.folder)
    assert (folder / "access.jsonl").stat().st_size > 0
    assert fleet.stop() == ()
    (words,) = (found for line in (state / "words").read_text().splitlines() if (found := json.loads(line))[0] == "run")
    assert f"{folder}:{folder}" in words
    assert words[words.index("--entrypoint") :][:3] == ["--entrypoint", sys.executable, "img"]
    assert registry.entries() == ()


@pytest.mark.usefixtures("home", "state")
def test_check_shows_the_words_of_docker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "e.toml").write_text(
        f'[fleet]\nengine = "vllm"\nexecutable = "{PATHLESS}"\nmodel = "org/name"\nport = 21873\n'
        '[[fleet.host]]\nname = "box"\ndocker = { image = "img", args = ["--shm-size", "16g"] }\n[bench]\nconcurrency = 1\n'
    )
    assert main(["check", str(tmp_path / "e.toml")]) == 0
    said = capsys.readouterr()
    assert "$ docker run -d --init --label loadcell.service=replica-0 " in said.out
    assert f"--shm-size 16g --entrypoint {PATHLESS} img serve org/name --host 127.0.0.1 --port 21873" in said.out
    assert f"the program {PATHLESS} is not looked for" in said.err
