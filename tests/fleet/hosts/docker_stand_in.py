"""A stand-in for `docker`: notes its words, and runs "containers" as plain processes. STATE is set by the test that writes it out."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(__file__).resolve().parent / "state"
NEXT = {"--label": 2, "-e": 2, "-v": 2, "-w": 2, "--network": 2, "--ipc": 2, "--log-driver": 2, "--gpus": 2, "--device": 2, "--group-add": 2, "--cpuset-cpus": 2, "--entrypoint": 2}  # fmt: skip


def record(number: str) -> Path:
    return STATE / f"{number}.json"


def load(number: str) -> dict:
    if not record(number).exists():
        sys.exit(f"Error: No such container: {number}")
    return json.loads(record(number).read_text())


def save(number: str, **changes: object) -> None:
    """Whole or not at all: others read it meanwhile, and a follower that reads half of it would be gone, or never see the end."""
    whole = json.dumps({**(json.loads(record(number).read_text()) if record(number).exists() else {}), **changes})
    half = record(number).with_suffix(f".{os.getpid()}")
    half.write_text(whole)
    half.replace(record(number))


def run(words: list[str]) -> None:
    labels, env, entry = {}, dict(os.environ), ""
    env.pop("LOADCELL_SERVICE", None)
    while words[0].startswith("-"):
        word, value = words[0], words[1]
        if word == "--label":
            labels.update([value.split("=", 1)])
        elif word == "-e":
            env.update([value.split("=", 1)])
        elif word == "--entrypoint":
            entry = value
        words = words[NEXT.get(word, 1) :]
    number = f"c{len(list(STATE.glob('*.json')))}" + "0" * 62
    save(number, labels=labels, code=None, paused=False, oom="oom" in words)
    if words[0] == "no-such-image":
        sys.exit("Unable to find image 'no-such-image' locally")
    # What keeps a container: waits for its process and notes how it ended.
    child = os.fork()
    if child == 0:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(nothing, handle)
        with (STATE / f"{number}.log").open("wb") as log:
            ran = subprocess.Popen([entry, *words[1:]], stdout=log, stderr=log, env=env, start_new_session=True)
            save(number, pid=ran.pid)
            code = ran.wait()
        save(number, code=128 - code if code < 0 else code)
        os._exit(0)
    while "pid" not in load(number):
        time.sleep(0.005)
    print(number)


def main(words: list[str]) -> None:
    with (STATE / "words").open("a") as said:
        said.write(json.dumps(words) + "\n")
    verb, *words = words
    if verb == "run":
        run(words)
    elif verb == "image":
        if words[-1].startswith("no-such-"):
            sys.exit(f"Error response from daemon: No such image: {words[-1]}:latest")
        print("sha256:0123")
    elif verb == "ps":
        wanted = words[-1].removeprefix("label=").split("=", 1)
        print("\n".join(p.stem for p in sorted(STATE.glob("*.json")) if json.loads(p.read_text())["labels"].get(wanted[0]) == wanted[1]))
    elif verb == "inspect":
        it = load(words[-1])
        state = {"Running": it["code"] is None, "Paused": it["paused"], "ExitCode": it["code"] or 0, "OOMKilled": it["oom"], "Status": "x"}
        print(json.dumps([{"Id": words[-1], "State": state, "Config": {"Labels": it["labels"]}}]))
    elif verb == "top":
        sys.exit(subprocess.run(["ps", "-ww", "-o", "pid,ppid,stat,args", "-s", str(load(words[0])["pid"])], check=False).returncode)
    elif verb == "kill":
        if load(words[2])["paused"]:
            sys.exit("Container is paused. Unpause the container before stopping or killing")
        os.killpg(load(words[2])["pid"], int(words[1]))
    elif verb in ("pause", "unpause"):
        os.killpg(load(words[0])["pid"], signal.SIGSTOP if verb == "pause" else signal.SIGCONT)
        save(words[0], paused=verb == "pause")
    elif verb == "logs":
        with (STATE / f"{words[1]}.log").open("rb") as log:
            ended = False
            while not ended:
                ended = load(words[1])["code"] is not None
                os.write(1, log.read())
                time.sleep(0.01)
    elif verb == "rm":
        record(words[-1]).unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
