"""A folder for a run: made where it can be, refused in one line where not, and never one that holds anything."""

from pathlib import Path

import pytest

from loadcell.cli.main import main
from loadcell.errors import UserError
from loadcell.experiment.new_folder import new_folder


@pytest.mark.parametrize("name", ["mine", "new/deep/er", "a b/ä", "-x", "trail/"])
def test_it_is_made_with_what_is_above_it(tmp_path: Path, name: str) -> None:
    made = new_folder(str(tmp_path / name), "exp")
    assert made == tmp_path / name
    assert list(made.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("full", "is not empty, and records are never overwritten"),
        ("file", "is a file: choose a folder"),
        ("file/below", "Not a directory"),
        ("dangling", "a link that leads nowhere"),
        ("dangling/below", "a link that leads nowhere"),
        ("loop", "a link that leads nowhere"),
        ("x" * 300, "File name too long"),
    ],
)
def test_what_cannot_be_one_is_refused(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").touch()
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("/nowhere/at/all")
    (tmp_path / "loop").symlink_to("loop")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=said) as refused:
        new_folder(str(tmp_path / name), "exp")
    assert str(refused.value).startswith(f"--output-dir {tmp_path / name}")
    assert sorted(tmp_path.rglob("*")) == before


def test_the_home_folder_is_meant_by_its_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A specification's text goes through no shell, and a folder named ~ is a trap."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert new_folder("~/runs/a", "exp") == tmp_path / "runs" / "a"
    assert new_folder("a~b", "exp") == Path("a~b")
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize("words", [["report"], ["run", "--resume"], ["check"], ["fleet", "status"], ["study", "show"]])
def test_a_path_that_cannot_be_looked_at_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "x" * 300]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert "File name too long" in line or "does not exist" in line
