"""The end of a log: parts are joined, and answers whose server told no usage get their tokens counted."""

from pathlib import Path

from loadcell.clock import Anchor
from loadcell.load.closing import count_tokens, join
from loadcell.recordlog import LogHeader, encode_header, encode_record, read_log
from loadcell.records import Attempt, RequestRecord


class Words:
    """Counts words; one text it cannot count."""

    name = "file"
    exact = True

    def count(self, text: str) -> int:
        if text == "bad":
            raise ValueError("no such token")
        return len(text.split())


def part(folder: Path, number: int, *records: RequestRecord, tail: bytes = b"") -> Path:
    path = folder / f"records.part-{number}.jsonl"
    header = LogHeader(run_id="r", name="bench", created="2026-01-01T00:00:00+00:00", origin=Anchor(monotonic_ns=1, wall_ns=2))
    path.write_bytes(encode_header(header) + b"".join(map(encode_record, records)) + tail)
    return path


def answered(index: int, text: str | None, source: str = "chunks") -> RequestRecord:
    attempt = Attempt(endpoint=0, outcome="ok", output_tokens=9, output_source=source, text=text)  # type: ignore[arg-type]
    return RequestRecord(index=index, scheduled_ns=0, outcome="ok", attempts=[attempt])


def counted(path: Path) -> list[tuple[int | None, str | None, str | None]]:
    return [(last.output_tokens, last.output_source, last.text) for last in (record.attempts[-1] for record in read_log(path))]


def test_only_what_no_server_told_is_counted_and_a_failure_keeps_the_chunks(tmp_path):
    path = part(tmp_path, 0, answered(0, "a b c"), answered(1, "a b", "usage"), answered(2, "bad"), answered(3, None))
    said: list[str] = []
    count_tokens([path], Words(), False, said.append)  # type: ignore[arg-type]
    assert counted(path) == [(3, "tokenizer", None), (9, "usage", "a b"), (9, "chunks", None), (9, "chunks", None)]
    assert said == ["output tokens could not be counted: no such token"]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_texts_stay_where_they_were_asked_for(tmp_path):
    path = part(tmp_path, 0, answered(0, "a b c"))
    count_tokens([path], Words(), True, print)  # type: ignore[arg-type]
    assert counted(path) == [(3, "tokenizer", "a b c")]


def test_parts_become_one_log_and_what_was_lost_is_said(tmp_path):
    parts = [part(tmp_path, 0, answered(1, None)), part(tmp_path, 1, answered(0, None), tail=b'{"index": 7, "sch')]
    (tmp_path / "records.part-2.jsonl").write_bytes(b"")
    parts.append(tmp_path / "records.part-2.jsonl")
    parts.append(tmp_path / "records.part-3.jsonl")
    remarks = join(parts, tmp_path / "records.jsonl")
    assert [record.index for record in read_log(tmp_path / "records.jsonl")] == [0, 1]
    assert remarks == ["records.part-2.jsonl: nothing in it could be read", "1 half-written last line(s) were dropped"]
    assert join([tmp_path / "none"], tmp_path / "other.jsonl") == ["no worker wrote records"]
