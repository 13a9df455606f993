"""The run folder: one writer, nothing overwritten, readable after a kill."""

import subprocess
import sys
from pathlib import Path

import pytest

from loadcell.errors import UserError
from loadcell.experiment.folder import STATE, RunFolder, experiment_folder, in_use, is_experiment
from loadcell.experiment.state import Began, Ended, Opened

OPENED = Opened("t", "exp", 7, "/exp.toml", "spec.json")


def test_what_is_appended_is_read_back_and_a_torn_line_keeps_its_own(tmp_path: Path) -> None:
    with RunFolder.make(tmp_path) as folder:
        folder.append(OPENED)
        folder.append(Began("t", "a", "h", "cells/a"))
    with (tmp_path / STATE).open("ab") as state:
        state.write(b'{"event":"ended","cell":"a","ha')
    before = (tmp_path / STATE).read_bytes()
    with RunFolder.resume(tmp_path) as folder:
        folder.append(Ended("t", "a", "h", "cells/a", "done"))
        assert [one.state for one in folder.history().attempts["a"] if one.began.hash == "h"][-1] == "done"
        assert folder.history().remarks
    assert (tmp_path / STATE).read_bytes().startswith(before)


def test_a_cell_that_is_run_again_gets_a_new_folder(tmp_path: Path) -> None:
    with RunFolder.make(tmp_path) as folder:
        first = folder.cell_folder("a")
        assert folder.cell_folder("a").name == "a.2"
        first.rmdir()
        folder.append(Began("t", "a", "h", "cells/a"))
        assert folder.cell_folder("a").name == "a.3"  # what the state names is not named again, though it is gone


def test_a_copy_is_never_overwritten(tmp_path: Path) -> None:
    with RunFolder.make(tmp_path) as folder:
        assert folder.keep_copy("spec.json", b"1") == "spec.json"
        assert folder.keep_copy("spec.json", b"1") == "spec.json"
        assert folder.keep_copy("spec.json", b"2") == "spec.2.json"
        assert (tmp_path / "spec.json").read_bytes() == b"1"


def test_a_folder_that_holds_an_experiment_is_not_begun_again(tmp_path: Path) -> None:
    RunFolder.make(tmp_path).close()
    with pytest.raises(UserError, match="--resume"):
        RunFolder.make(tmp_path)


def test_another_process_cannot_take_it_up_and_a_child_does_not_hold_it(tmp_path: Path) -> None:
    take = [
        sys.executable,
        "-c",
        "import sys\nfrom pathlib import Path\nfrom loadcell.experiment.folder import RunFolder\nRunFolder.resume(Path(sys.argv[1]))",
    ]
    with RunFolder.make(tmp_path) as folder:
        folder.append(OPENED)
        refused = subprocess.run([*take, str(tmp_path)], capture_output=True, text=True, check=False)
        assert "another loadcell works on this experiment now" in refused.stderr
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    try:
        subprocess.run([*take, str(tmp_path)], check=True)
        assert not in_use(tmp_path)
    finally:
        child.communicate(b"\n")


def test_what_is_no_experiment_is_refused_with_what_to_give(tmp_path: Path) -> None:
    assert not is_experiment(tmp_path)
    with pytest.raises(UserError, match="give the one that `loadcell run` printed"):
        experiment_folder(tmp_path)
