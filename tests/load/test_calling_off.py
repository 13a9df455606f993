"""Who watches a run may end it before its time: what it saw is told, what was in flight is cancelled, and all is reported."""

from pathlib import Path

import pytest

from loadcell.experiment.measure import measure
from loadcell.flags.resolve import scenario_from_flags
from loadcell.load.runner import Run, Watcher
from loadcell.load.snapshot import Snapshot
from loadcell.recordlog import decode_records, encode_record, read_log
from loadcell.testing.replies import HANG, chat_event, chat_stream, sse
from loadcell.testing.scripted_server import ScriptedServer

from .running import counting

pytestmark = pytest.mark.timeout(60)


class CallsOff(Watcher):
    """When `when` says so."""

    def __init__(self, when) -> None:
        self.when, self.of, self.seen = when, None, []

    def run(self, run) -> None:
        self.of = run

    def show(self, snapshot: Snapshot) -> None:
        self.seen.append(snapshot)
        if self.when(snapshot):
            self.of.call_off("enough was seen")


def called_off(tmp_path: Path, server: ScriptedServer, watcher: CallsOff, **flags):
    given = {"base_url": [server.base_url], "model": "m", "tokenizer": "words", "input_len": 8, "output_len": 3, "health_check_interval": 0}
    folder = tmp_path / "run"
    folder.mkdir()
    run = Run(scenario_from_flags(given | flags)[0], folder, "r", watcher)
    return measure(run.execute, folder)


def test_a_silent_service_is_seen_and_the_run_ends_with_what_it_had(tmp_path):
    watcher = CallsOff(lambda snapshot: snapshot.silent_s > 1)
    with counting(6, sse(chat_event("a"), HANG)) as (server, _):
        measured = called_off(tmp_path, server, watcher, concurrency=6)
    assert (measured.summary.stop_reason, measured.summary.stop_detail) == ("called_off", "enough was seen")
    assert measured.summary.whole.counts.by_outcome == {"cancelled": 6}
    assert watcher.seen[-1].waiting == 0
    assert watcher.seen[-1].dispatched == 6


def test_requests_that_wait_for_a_first_token_are_counted(tmp_path):
    watcher = CallsOff(lambda snapshot: snapshot.waiting == 4)
    with counting(4, sse(HANG)) as (server, _):
        measured = called_off(tmp_path, server, watcher, concurrency=4)
    assert measured.summary.whole.counts.cancelled == 4


def test_flowing_tokens_are_no_silence(tmp_path):
    watcher = CallsOff(lambda _: False)
    with counting(12, chat_stream(*["a"] * 20, first_ms=20, every_ms=50)) as (server, _):
        called_off(tmp_path, server, watcher, concurrency=2, num_prompts=6)
    assert max(snapshot.silent_s for snapshot in watcher.seen) < 0.6


def test_called_off_before_its_first_request(tmp_path):
    class AtOnce(CallsOff):
        def started(self) -> None:
            self.of.call_off("never mind")

    with counting(1, sse(chat_event("a"), HANG)) as (server, _):
        measured = called_off(tmp_path, server, AtOnce(lambda _: False), concurrency=1, num_prompts=500)
    assert measured.summary.stop_reason == "called_off"
    records = list(read_log(tmp_path / "run" / "records.jsonl"))
    assert decode_records([b'{"half', *map(encode_record, records)]) == records
