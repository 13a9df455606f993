"""What stands in a specification arrives at the engine word by word: no shell takes part, nothing inherited beats what is said, nothing is ignored."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadcell.testing.replies import Script, chat_stream, sse
from loadcell.testing.scripted_server import ScriptedServer

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Serve = Callable[..., ScriptedServer]
ENGINE = str(Path(__file__).parents[2] / "faults" / "fake_engine.py")
BENCH = "[bench]\nnum-prompts = 2\nconcurrency = 1\ninput-len = 8\noutput-len = 2\ntokenizer = 'words'\nhealth-check-interval = 0\n"


@pytest.fixture
def launched(tmp_path: Path, command: Command) -> Callable[..., tuple[list[str], str]]:
    """The words that a service gets, as vLLM would, and what the command printed. `args`: TOML of [fleet.args]."""

    def run(args: str, *more: str, model: str = "m", top: str = "", env: dict[str, str] | None = None) -> tuple[list[str], str]:
        seen = tmp_path / "argv.json"
        program = [sys.executable, ENGINE, "--argv", str(seen), "--model", model]
        (tmp_path / "exp.toml").write_text(
            f"name = 'words'\n[fleet]\nengine = 'vllm'\nvendor = 'none'\nmodel = {json.dumps(model)}\nexecutable = {json.dumps(program)}\n"
            f"stop-timeout = 2\n{top}\n[fleet.args]\n{args}\n{BENCH}"
        )
        done = command("run", "exp.toml", "--quiet", *more, env={"XDG_STATE_HOME": str(tmp_path / "state"), **(env or {})})
        assert done.returncode in (0, 1), done.stderr
        assert "loadcell: error" not in done.stderr, done.stderr
        words: list[str] = json.loads(seen.read_text())
        return words[words.index("serve") :], done.stderr

    return run


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("enable-x = true", ["--enable-x"]),
        ("enable-x = false", []),
        ("'enable-x/no-enable-x' = false", ["--no-enable-x"]),
        ("'enable-x/no-enable-x' = true", ["--enable-x"]),
        ("enable_prefix_caching = false", ["--no-enable-prefix-caching"]),
        ("speculative-config = {method = 'mtp', n = 3, on = true}", '{"method": "mtp", "n": 3, "on": true}'),
        ('json = \'{"a": "b c"}\'', '{"a": "b c"}'),
        ('text = "it\'s $HOME `id` ; & | * \\\\ \\n ünï"', "it's $HOME `id` ; & | * \\ \n ünï"),
        ("empty = ''", ""),
        ("lora = [['a=/x y'], ['b=/z']]", ["--lora", "a=/x y", "--lora", "b=/z"]),
        ("several = ['a b', 2]", ["--several", "a b", "2"]),
        ("number = 0.95", "0.95"),
        ("minus = '-1,x'", ["--minus=-1,x"]),
    ],
)
def test_options_arrive_as_they_were_meant(launched: Any, said: str, words: Any) -> None:
    argv, _ = launched(said)
    flag = "--" + said.partition(" ")[0].strip("'").replace("_", "-")
    expected = words if isinstance(words, list) else [flag, words]
    assert argv[argv.index("--port") + 2 :] == expected
    if "speculative" in said:
        assert json.loads(argv[-1]) == {"method": "mtp", "n": 3, "on": True}


@pytest.mark.parametrize("value", ["true", "True", "false", "False"])
@pytest.mark.parametrize("way", ["set", "env file"])
def test_a_switch_that_is_swept_is_never_a_word(launched: Any, tmp_path: Path, value: str, way: str) -> None:
    """As scripts write it: on the command line, or in a config.env."""
    (tmp_path / "config.env").write_text(f"ENABLE_X={value}\n")
    given = ("--set", f"fleet.args.enable-x={value}") if way == "set" else ("--env-file", "config.env")
    argv, _ = launched("enable-x = true" if way == "set" else "enable-x = '${ENABLE_X}'", *given)
    assert argv[argv.index("--port") + 2 :] == (["--enable-x"] if value.lower() == "true" else [])


@pytest.mark.parametrize("said", ['{"method": "mtp", "n": 3}', '{method = "mtp", n = 3}'])
def test_json_on_the_command_line_arrives_whole(launched: Any, said: str) -> None:
    argv, _ = launched("", "--set", f"fleet.args.speculative-config={said}")
    assert json.loads(argv[argv.index("--speculative-config") + 1]) == {"method": "mtp", "n": 3}


@pytest.mark.parametrize("name", ["a b", "it's $HOME", 'quo"te', "sémi;colon & more", "-dash"])
def test_a_path_is_one_word_and_the_printed_command_says_the_same(launched: Any, tmp_path: Path, command: Command, name: str) -> None:
    model = tmp_path / "my models" / name
    model.mkdir(parents=True)
    argv, _ = launched("max-num-seqs = 8", model=str(model))
    assert argv[1] == str(model)
    told = command("check", "exp.toml", env={"XDG_STATE_HOME": str(tmp_path / "state")}).stdout
    line = next(line.strip()[2:] for line in told.splitlines() if line.strip().startswith("$ "))
    printed = line.replace(shlex.quote(ENGINE), "-c " + shlex.quote("import json, sys; print(json.dumps(sys.argv[1:]))"))
    words = json.loads(subprocess.run(["/bin/sh", "-c", printed], capture_output=True, text=True, check=True).stdout)
    assert words[words.index("serve") :][:2] == ["serve", str(model)]
    results = next(tmp_path.glob("runs/*/results.json"))
    stored = json.loads(results.read_text())["fleet"]["services"][0]["command"]
    assert shlex.split(stored)[-len(argv) :] == argv


def test_what_is_said_beats_what_is_inherited_and_its_origin_is_kept(launched: Any, tmp_path: Path) -> None:
    """Flag > file > env file; the environment alone says nothing. A service's variable: the specification's, else inherited, and named."""
    (tmp_path / "config.env").write_text('CONCURRENCY="${CONCURRENCY:-6}"\n')
    inherited = dict.fromkeys(("LOADCELL_CONCURRENCY", "CONCURRENCY", "NUM_PROMPTS", "MAX_CONCURRENCY"), "7")
    inherited |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_USE_V1": "0"}
    for given, expected, origin in (
        ((), 1, "exp.toml:"),
        (("--set", "bench.concurrency=2"), 2, "--set"),
    ):
        _, err = launched(
            "", "--env-file", "config.env", *given, "--output-dir", f"run{expected}", top="[fleet.env]\nVLLM_USE_V1 = 1", env=inherited
        )
        results = json.loads((tmp_path / f"run{expected}" / "results.json").read_text())
        assert results["scenarios"][0]["flags"]["concurrency"] == expected
        assert results["spec"]["origins"]["bench.concurrency"].startswith(origin)
        assert "VLLM_LOGGING_LEVEL" in err
        assert "VLLM_USE_V1" not in err
        assert "VLLM_USE_V1=1" in results["fleet"]["services"][0]["command"]


@pytest.mark.parametrize(("route", "path"), [("chat", "/v1/chat/completions"), ("completions", "/v1/completions")])
@pytest.mark.parametrize("way", ["bench", "scenario"])
def test_a_route_that_is_chosen_is_the_one_that_is_used(
    serve: Serve, command: Command, tmp_path: Path, route: str, path: str, way: str
) -> None:
    server = serve(chat_stream("a", "b"), {"/v1/completions": _completion()})
    row = "[[scenario]]\nname = 'one'\n" + (f"endpoint-type = '{route}'\n" if way == "scenario" else "")
    bench = BENCH + "model = 'm'\n" + (f"endpoint-type = '{route}'\n" if way == "bench" else "")
    (tmp_path / "exp.toml").write_text(f"name = 'r'\n[target]\nbase_url = ['{server.base_url}']\n{bench}{row}")
    done = command("run", "exp.toml", "--quiet", env={"XDG_STATE_HOME": str(tmp_path / "state")})
    assert "error" not in done.stderr
    assert {request.path for request in server.requests if request.method == "POST"} == {path}


def _completion() -> Script:
    events: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "text": "a"}]},
        {"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 2, "total_tokens": 10}},
    ]
    return sse(*(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events))


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("[bench]\nconcurency = 3\n", "concurrency"),
        ("[[scenario]]\noutptu-len = 3\n", "output_len"),
        ("[fleet]\nengine = 'simulated'\nreplica = 2\n", "replicas"),
        ("[[fleet.host]]\nname = 'a'\nadress = 'x'\n", "address"),
        ("[[slo]]\nmetrik = 'ttft'\nlimit = '1s'\n", "metric"),
        ("benhc = {}\n", "bench"),
    ],
)
def test_a_misspelt_key_is_refused_with_the_right_one(command: Command, tmp_path: Path, text: str, near: str) -> None:
    fleet = "" if "[fleet]" in text else "[fleet]\nengine = 'simulated'\n"
    (tmp_path / "exp.toml").write_text(text + fleet if text.startswith("benhc") else fleet + text)
    for verb in ("check", "run"):
        done = command(verb, "exp.toml", env={"XDG_STATE_HOME": str(tmp_path / "state")})
        assert done.returncode == 2
        assert f"did you mean {near}?" in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1
    done = command("run", "exp.toml", "--set", "bench.concurency=3", env={"XDG_STATE_HOME": str(tmp_path / "state")})
    assert done.returncode == 2
