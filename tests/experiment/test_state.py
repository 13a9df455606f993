"""Lines of state.jsonl -> what is finished, what was cut short; also where a kill tore the last line."""

from loadcell.experiment.state import Began, Closed, Ended, Entry, Opened, encode, history

OPENED = Opened("t", "exp", 7, "/exp.toml", "spec.json")


def lines(*entries: Entry, tail: bytes = b"") -> list[bytes]:
    return [*(encode(entry) for entry in entries), tail]


def began(cell: str, folder: str, hash_: str = "h") -> Began:
    return Began("t", cell, hash_, folder)


def ended(cell: str, folder: str, state: str = "done", hash_: str = "h") -> Ended:
    return Ended("t", cell, hash_, folder, state)  # type: ignore[arg-type]


def test_a_cell_is_finished_by_its_hash_and_only_when_it_was_done() -> None:
    found = history(
        lines(
            OPENED,
            began("a", "cells/a"),
            ended("a", "cells/a"),
            began("b", "cells/b"),
            ended("b", "cells/b", "failed"),
            began("c", "cells/c"),
        )
    )
    assert [one.state for one in found.attempts["a"] if one.began.hash == "h"][-1] == "done"
    assert "done" not in [one.state for one in found.attempts.get("a", ()) if one.began.hash == "other"]
    assert "done" not in [one.state for one in found.attempts.get("b", ()) if one.began.hash == "h"]
    assert "done" not in [one.state for one in found.attempts.get("c", ()) if one.began.hash == "h"]
    assert [one.state for name in "abc" for one in found.attempts[name]] == ["done", "failed", "cut_off"]
    assert found.folders() == {"cells/a", "cells/b", "cells/c"}


def test_an_end_belongs_to_the_attempt_of_its_folder() -> None:
    found = history(lines(OPENED, began("a", "cells/a"), began("a", "cells/a.2"), ended("a", "cells/a.2")))
    assert [(one.began.folder, one.state) for one in found.attempts["a"]] == [("cells/a", "cut_off"), ("cells/a.2", "done")]


def test_a_torn_line_is_told_and_costs_no_other() -> None:
    torn = encode(ended("b", "cells/é"))[:-20]
    whole = encode(ended("a", "cells/a"))
    found = history([encode(OPENED), encode(began("a", "cells/a")), torn, whole, "é".encode()[:1], b""])
    assert [one.state for one in found.attempts["a"] if one.began.hash == "h"][-1] == "done"
    assert found.remarks == ["state.jsonl: 2 half-written line(s) were left out"]


def test_a_resumed_experiment_is_not_closed_any_more() -> None:
    assert history(lines(OPENED, Closed("t", "interrupted", "SIGINT came"))).closed is not None
    assert history(lines(OPENED, Closed("t", "interrupted"), OPENED)).closed is None
