"""What ends a load before its time, from snapshots and records as they are appended."""

from pathlib import Path

import pytest
from tests.metrics.build import attempt, failed, record

from loadcell.load.runner import Watcher
from loadcell.load.snapshot import Snapshot
from loadcell.metrics.slo import parse_slo
from loadcell.recordlog import encode_record
from loadcell.tune.live import Judge, Live, Patience

TTFT = parse_slo("ttft p95 <= 200ms")
ENDLESS = Patience(0, 0, 0)


class Run:
    """Takes note of being called off."""

    def __init__(self) -> None:
        self.why: list[str] = []

    def call_off(self, why: str) -> None:
        self.why.append(why)


def live(folder: Path, judge: Judge | None = None, patience: Patience = ENDLESS, phases: list[str] | None = None) -> tuple[Live, Run]:
    found, run = Live(Watcher(), folder, patience, judge, (phases if phases is not None else []).append), Run()
    found.run(run)  # type: ignore[arg-type]
    return found, run


def at(second: float, phase="measure", **fields: object) -> Snapshot:
    given = {"elapsed_s": second, "phase": phase, "done": 0, "ok": 0, "failed": 0, "planned": None, "in_flight": 0}
    return Snapshot(**(given | fields))  # type: ignore[arg-type]


def append(folder: Path, first: int, count: int, ttft_ms: float = 50, ok: bool = True) -> None:
    with (folder / "records.part-0.jsonl").open("ab") as file:
        for index in range(first, first + count):
            one = attempt(index, [index + ttft_ms, index + ttft_ms + 10]) if ok else failed(index, index + 5, "http_5xx")
            file.write(encode_record(record(index, [one])))


@pytest.mark.parametrize(
    ("snapshots", "words"),
    [
        ([at(3, silent_s=4.9), at(4, silent_s=5.0, in_flight=7)], "no token of any of 7 requests in flight for 5 s"),
        ([at(29, "warmup"), at(30, "warmup")], "warmup.timeout"),
        ([at(30, "measure"), at(60, "measure")], "trial.timeout"),
        ([at(29, "warmup"), at(59, "measure", silent_s=4)], None),
        ([at(2, "warmup", silent_s=6)], "no token"),
    ],
)
def test_patience_ends(tmp_path: Path, snapshots: list[Snapshot], words: str | None) -> None:
    watched, run = live(tmp_path, patience=Patience(5, 30, 60))
    for snapshot in snapshots:
        watched.show(snapshot)
    assert (not run.why) if words is None else words in run.why[0]


def test_the_phase_is_told_once(tmp_path: Path) -> None:
    phases: list[str] = []
    watched, _ = live(tmp_path, phases=phases)
    for snapshot in (at(0, "warmup"), at(1, "warmup"), at(0), at(1), at(2, "drain")):
        watched.show(snapshot)
    assert phases == ["measure"]
    assert watched.phase == "measure"


def test_a_service_that_is_gone_ends_it(tmp_path: Path) -> None:
    watched, run = live(tmp_path)
    watched.service_gone("replica-0 died: exit code 1")
    assert run.why == ["the service is gone: replica-0 died: exit code 1"]


def played(folder: Path, judge: Judge, seconds: int, **how: object) -> tuple[Live, Run]:
    """Twenty requests a second."""
    watched, run = live(folder, judge)
    for second in range(seconds):
        append(folder, 20 * second, 20, **how)  # type: ignore[arg-type]
        watched.show(at(second + 1.0, done=20 * (second + 1), dispatched=20 * (second + 1)))
    return watched, run


def test_records_are_read_as_they_come_and_judged_by_the_second(tmp_path: Path) -> None:
    watched, run = played(tmp_path, Judge((TTFT,), "throughput"), 12, ttft_ms=400)
    assert watched.early is not None
    assert "ttft p95 <= 200ms is missed: 100%" in run.why[0]
    assert len(run.why) == 1


def test_a_load_within_its_limits_goes_on(tmp_path: Path) -> None:
    assert played(tmp_path, Judge((TTFT,), "throughput"), 30)[0].early is None


def test_the_first_wave_is_not_judged(tmp_path: Path) -> None:
    watched, run = played(tmp_path, Judge((TTFT,), "throughput", first_wave=220), 12, ttft_ms=400)
    assert watched.early is None
    assert run.why == []


def test_failures_count_against_a_success_rate(tmp_path: Path) -> None:
    slo = parse_slo("success_rate >= 99%")
    watched, _ = played(tmp_path, Judge((slo,), "throughput"), 12, ok=False)
    assert watched.early is not None


def test_a_half_written_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    watched, _ = live(tmp_path, Judge((TTFT,), "throughput"))
    line = encode_record(record(3, [attempt(1, [2, 3])]))
    part = tmp_path / "records.part-0.jsonl"
    part.write_bytes(b'{"schema":"loadcell.records/1"}\n' + line[:20])
    assert watched._new_records() == []
    part.write_bytes(b'{"schema":"loadcell.records/1"}\n' + line)
    assert [one.index for one in watched._new_records()] == [3]
    assert watched._new_records() == []


def test_who_waits_past_the_limit_is_known_by_counting(tmp_path: Path) -> None:
    """Twenty a second are sent and nothing is answered: after two seconds those of the first are overdue."""
    watched, run = live(tmp_path, Judge((TTFT,), "throughput", open_loop=True))
    for quarter in range(1, 60):
        sent = 5 * quarter
        watched.show(at(quarter / 4, dispatched=sent, in_flight=sent, waiting=sent))
    assert watched.early is not None
    assert watched.early.kind == "slo"
    assert run.why
