"""The live view: what it prints, how often, and that it costs nothing until it is used."""

import io
import subprocess
import sys

from loadcell.cli.live import LiveView, plain_line
from loadcell.load.snapshot import Snapshot


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def snapshot(elapsed_s: float, done: int = 0, planned: int | None = 640) -> Snapshot:
    return Snapshot(
        elapsed_s=elapsed_s,
        phase="measure",
        done=done,
        ok=done,
        failed=1,
        planned=planned,
        in_flight=31,
        cap=32,
        rate_rps=51.876,
        tokens_per_s=13280.0,
        ttft_ms_p50=48.5,
        tpot_ms_p50=None,
        endpoints=[("127.0.0.1:30005", "healthy", 16), ("127.0.0.1:30006", "unhealthy", 15)],
        left_s=71.0,
    )


def test_a_plain_line_says_everything() -> None:
    assert plain_line(snapshot(10.2, 120)) == (
        "[   10 s] measure 120/640, 1 failed, 31/32 in flight, 51.88 req/s, 13,280 tok/s, TTFT p50 48.50 ms, TPOT p50 –, "
        "endpoints 1/2 healthy, 1:11 min left"
    )


def test_elsewhere_than_on_a_terminal_a_line_every_ten_seconds_and_the_first_and_the_last() -> None:
    out = io.StringIO()
    view = LiveView(out)
    view.start()
    for tick in range(251):
        view.show(snapshot(tick / 10, tick))
    view.stop()
    assert [line[:8] for line in out.getvalue().splitlines()] == ["[    0 s", "[   10 s", "[   20 s", "[   25 s"]


def test_the_last_line_is_not_said_twice() -> None:
    out = io.StringIO()
    view = LiveView(out)
    view.start()
    view.show(snapshot(0))
    view.stop()
    view.stop()
    assert len(out.getvalue().splitlines()) == 1


def test_a_terminal_is_drawn_at_most_four_times_a_second() -> None:
    out = Screen()
    view = LiveView(out)
    view.start()
    for tick in range(1001):
        view.show(snapshot(tick / 1000, tick))
    view.note("127.0.0.1:30006 is unhealthy")
    drawn = out.getvalue().count("127.0.0.1:30005")
    view.stop()
    assert 4 <= drawn <= 6
    assert "127.0.0.1:30006 is unhealthy" in out.getvalue()


def test_silence_shows_no_progress_but_says_what_must_be_said() -> None:
    for out in (io.StringIO(), Screen()):
        view = LiveView(out, silent=True)
        view.start()
        view.show(snapshot(0))
        view.show(snapshot(60))
        view.note("stopping")
        view.stop()
        assert out.getvalue() == "stopping\n"


def test_nothing_is_shown_before_the_start() -> None:
    out = io.StringIO()
    view = LiveView(out)
    view.show(snapshot(0))
    view.stop()
    assert out.getvalue() == ""


def test_many_endpoints_show_the_sick_first_and_no_markup_is_read() -> None:
    out = Screen()
    view = LiveView(out)
    view.start()
    states = [(f"h{i}:1", "healthy", 1) for i in range(30)] + [("[red]bad[/red]:1", "unhealthy", 0)]
    view.show(Snapshot(elapsed_s=1, phase="measure", done=1, ok=1, failed=0, planned=None, in_flight=1, endpoints=states, left_s=9))
    view.stop()
    assert "[red]bad[/red]:1" in out.getvalue()
    assert "and 23 more; 30/31 healthy" in out.getvalue()


def test_the_module_does_not_import_rich_or_numpy() -> None:
    """It is imported before the first request."""
    code = "import sys, loadcell.cli.live; sys.exit(any(name in sys.modules for name in ('rich', 'numpy', 'typer')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0
