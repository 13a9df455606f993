"""The end of a run: the workers' parts become one log, answers without usage get their tokens counted, and what control knows becomes facts."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from loadcell.recordlog import Log, encode_header, encode_record, join_parts
from loadcell.records import Attempt, RequestRecord
from loadcell.workload import Tokenizer

_WRITE: Final = 1 << 20


def count_tokens(parts: Sequence[Path], tokenizer: Tokenizer, keep_text: bool, failed: Callable[[str], object]) -> None:
    """Count the output tokens of answers whose server told none, in the log's parts. What cannot be counted keeps its chunk count."""
    for part in parts:
        log = Log(part)
        beside = part.with_name(part.name + ".counting")
        with beside.open("wb") as out:
            held = bytearray(encode_header(log.header))
            for record in log:
                held += encode_record(_counted(record, tokenizer, keep_text, failed))
                if len(held) >= _WRITE:
                    out.write(held)
                    held.clear()
            out.write(held)
            out.flush()
            os.fsync(out.fileno())
        beside.replace(part)


def _counted(record: RequestRecord, tokenizer: Tokenizer, keep_text: bool, failed: Callable[[str], object]) -> RequestRecord:
    if not any(attempt.text is not None and attempt.output_source == "chunks" for attempt in record.attempts):
        return record
    return replace(record, attempts=[_counted_attempt(attempt, tokenizer, keep_text, failed) for attempt in record.attempts])


def _counted_attempt(attempt: Attempt, tokenizer: Tokenizer, keep_text: bool, failed: Callable[[str], object]) -> Attempt:
    if attempt.text is None or attempt.output_source != "chunks":
        return attempt
    kept = attempt if keep_text else replace(attempt, text=None)
    try:
        return replace(kept, output_tokens=tokenizer.count(attempt.text), output_source="tokenizer")
    except Exception as error:  # noqa: BLE001 - whatever a tokenizer raises, the record stays
        failed(f"output tokens could not be counted: {error}")
        return kept


def join(parts: Sequence[Path], out: Path) -> list[str]:
    """One log of all parts; remarks on what was lost."""
    there = [part for part in parts if part.exists()]
    if not there:
        return ["no worker wrote records"]
    result = join_parts(there, out)
    remarks = [f"{name}: nothing in it could be read" for name in result.unreadable]
    if result.dropped_fragments:
        remarks.append(f"{result.dropped_fragments} half-written last line(s) were dropped")
    return remarks
