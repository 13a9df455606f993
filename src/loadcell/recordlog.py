"""The record log on disk: records <-> lines of JSON. Appended as requests end, readable whatever killed the writer.

`records.jsonl` holds one `LogHeader` line, then one `RequestRecord` per line. While a run lasts each worker appends to a part of its own
(the same layout); `join_parts` makes the one file of them. Knows nothing of figures.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import sub
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from loadcell.clock import Anchor
from loadcell.errors import EnvironmentFailure, UserError
from loadcell.records import Endpoint, Event, RequestRecord

SCHEMA: Final = "loadcell.records/1"
_BOM: Final = b"\xef\xbb\xbf"
_JOIN_BUFFER: Final = 1 << 20
_TAIL_STEP: Final = 1 << 16
_CODED: Final = 2  # a list of this many arrivals or fewer is written as it is


class LogHeader(Struct, frozen=True):
    """The first line of a log. `origin` is the zero of every stamp in it; `created` is ISO 8601 UTC; `spec` is redacted."""

    run_id: str
    name: str
    created: str
    origin: Anchor
    schema: str = SCHEMA
    host: dict[str, Any] = {}
    versions: dict[str, str] = {}
    spec: dict[str, Any] = {}
    endpoints: list[Endpoint] = []
    client: dict[str, Any] = {}


class _Schema(Struct):
    schema: str


class _Key(Struct):
    index: int
    phase: str = "measure"


class JoinResult(Struct, frozen=True):
    """What a join wrote: `records` lines; `dropped_fragments` half-written last lines; `unreadable` parts that had no header yet."""

    records: int
    dropped_fragments: int
    unreadable: list[str]


_T = TypeVar("_T")
_encoder: Final = msgspec.json.Encoder()
_record_decoder: Final = msgspec.json.Decoder(RequestRecord)
_event_decoder: Final = msgspec.json.Decoder(Event)
_header_decoder: Final = msgspec.json.Decoder(LogHeader)
_schema_decoder: Final = msgspec.json.Decoder(_Schema)
_key_decoder: Final = msgspec.json.Decoder(_Key)
# Bytes that are not UTF-8 surface as UnicodeDecodeError, everything else that is wrong with a line as msgspec's own error.
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError)


def encode_header(header: LogHeader) -> bytes:
    """One line, newline included."""
    return _encoder.encode(header) + b"\n"


def encode_record(record: RequestRecord) -> bytes:
    """One line, newline included.

    `chunk_us` is written as its first element, the first gap, and then how each gap differs from the one before: tokens come at a pace, so
    that most cost four bytes.
    """
    if any(len(attempt.chunk_us) > _CODED for attempt in record.attempts):
        attempts = [replace(attempt, chunk_us=_paced(attempt.chunk_us)) for attempt in record.attempts]
        record = replace(record, attempts=attempts)
    return _encoder.encode(record) + b"\n"


def decode_records(lines: Iterable[bytes]) -> list[RequestRecord]:
    """Whole lines as `encode_record` made them; those of a part that is still written (its header is no such line). Unreadable ones are skipped."""
    records = []
    for line in lines:
        try:
            records.append(_unpaced(_record_decoder.decode(line)))
        except _UNREADABLE:
            continue
    return records


def _paced(chunk_us: list[int]) -> list[int]:
    """First arrival, first gap, then the differences of gap to gap."""
    return [*chunk_us[:2], *map(sub, chunk_us[2:], chunk_us[1:-1])]


def _unpaced(record: RequestRecord) -> RequestRecord:
    """A record as it was decoded, its gaps made whole again (in place: it is nobody else's yet)."""
    for attempt in record.attempts:
        if len(attempt.chunk_us) > _CODED:
            attempt.chunk_us[1:] = accumulate(attempt.chunk_us[1:])
    return record


def encode_events(events: Iterable[Event]) -> bytes:
    """One line per event."""
    return b"".join(_encoder.encode(event) + b"\n" for event in events)


class Appender:
    """Appends whole lines to a file of its own, each in one write, so that a killed process loses at most the line it was writing.

    The file is created; one that exists is refused (UserError). A full disk raises EnvironmentFailure and leaves the file ending
    in a whole line.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._fd = os.open(self.path, flags, 0o644)
        except FileExistsError:
            raise UserError(f"{self.path} exists and records are never overwritten: choose another --output-dir") from None
        except OSError as error:
            raise EnvironmentFailure(f"cannot create {self.path}: {error.strerror}") from None
        self._size = 0

    def write(self, lines: bytes) -> None:
        """Append `lines` (whole lines, newlines included)."""
        left = memoryview(lines)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            os.ftruncate(self._fd, self._size)
            raise EnvironmentFailure(f"cannot write {self.path}: {error.strerror}; {self._size} bytes before it are kept") from None
        self._size += len(lines)

    def sync(self) -> None:
        """Return when the bytes are on the disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Log:
    """A log, opened for reading. Iterating streams its records, any number of times, as the file stood when it was opened.

    `dropped_fragments` is 1 when the last line was cut (by a kill or a full disk, also inside a character), else 0.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.header, self._start = _open_header(self.path)
        self._end, self.dropped_fragments = _whole_lines_end(self.path, _record_decoder, self._start)

    def __iter__(self) -> Iterator[RequestRecord]:
        for _offset, _length, record in _lines(self.path, _record_decoder, self._start, self._end, first_line=2):
            yield _unpaced(record)


def read_log(path: Path | str) -> Log:
    """Open a log. UserError names the file when it is missing, has no header, or was written in another schema version."""
    return Log(path)


def read_header(path: Path | str) -> LogHeader:
    """The first line only; errors as `read_log`."""
    return _open_header(Path(path))[0]


def read_records(path: Path | str) -> Iterable[RequestRecord]:
    """The records, streamed; can be iterated again. A corrupt line other than a cut last one raises UserError with path and line."""
    return Log(path)


def read_events(path: Path | str) -> list[Event]:
    """All events; none when the file does not exist yet. A cut last line is dropped."""
    path = Path(path)
    if not path.exists():
        return []
    end, _dropped = _whole_lines_end(path, _event_decoder, 0)
    return [event for _offset, _length, event in _lines(path, _event_decoder, 0, end, first_line=1)]


def join_parts(parts: Sequence[Path], out: Path) -> JoinResult:
    """Write the first part's header and the records of all parts, warm-up first, then by index, to `out`; then remove the parts.

    `out` appears whole or not at all; an existing one is refused (UserError) and the parts stay. A part that holds no whole header (its
    worker died first) is listed and removed. Memory: some 50 bytes a record, whatever its size.
    """
    if out.exists():
        raise UserError(f"{out} exists and records are never overwritten: choose another --output-dir")
    readable = [part for part in parts if _has_header(part)]
    if not readable:
        raise EnvironmentFailure(f"no part of {out} holds a header: nothing was recorded")
    keys: list[tuple[bool, int, int, int, int]] = []
    dropped = 0
    for number, part in enumerate(readable):
        _header, start = _open_header(part)
        end, fragments = _whole_lines_end(part, _record_decoder, start)
        dropped += fragments
        for offset, length, key in _lines(part, _key_decoder, start, end, first_line=2):
            keys.append((key.phase != "warmup", key.index, number, offset, length))
    keys.sort()
    joining = out.with_name(f".{out.name}.joining")
    try:
        _write_joined(read_header(readable[0]), readable, keys, joining)
        _publish(joining, out)
    except OSError as error:
        raise EnvironmentFailure(f"cannot write {out}: {error.strerror}; the parts beside it are kept") from None
    finally:
        joining.unlink(missing_ok=True)
    for part in parts:
        part.unlink(missing_ok=True)
    return JoinResult(records=len(keys), dropped_fragments=dropped, unreadable=[part.name for part in parts if part not in readable])


def _write_joined(header: LogHeader, parts: Sequence[Path], keys: Sequence[tuple[bool, int, int, int, int]], joining: Path) -> None:
    sources = [os.open(part, os.O_RDONLY | os.O_CLOEXEC) for part in parts]
    try:
        with joining.open("wb", buffering=_JOIN_BUFFER) as target:
            target.write(encode_header(header))
            for _phase, _index, number, offset, length in keys:
                target.write(os.pread(sources[number], length, offset).rstrip(b"\r\n") + b"\n")
            target.flush()
            os.fsync(target.fileno())
    finally:
        for source in sources:
            os.close(source)


def _publish(joining: Path, out: Path) -> None:
    """Give the finished file its name, never over another's: link() fails where rename() would replace."""
    try:
        os.link(joining, out)
    except FileExistsError:
        raise UserError(f"{out} exists and records are never overwritten: choose another --output-dir") from None
    folder = os.open(out.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _has_header(path: Path) -> bool:
    """The part exists and its first line was written to the end."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        return file.readline().endswith(b"\n")


def _open_header(path: Path) -> tuple[LogHeader, int]:
    """The header and the offset of the line after it."""
    try:
        with path.open("rb") as file:
            line = file.readline()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    text = line.removeprefix(_BOM)
    if not text.strip():
        raise UserError(f"{path} is empty: a record log starts with a header line")
    try:
        schema = _schema_decoder.decode(text).schema
    except _UNREADABLE as error:
        raise UserError(f"{path}:1 is not the header of a record log ({error})") from None
    if schema != SCHEMA:
        raise UserError(f"{path} has schema {schema!r}; this version reads {SCHEMA!r}")
    try:
        return _header_decoder.decode(text), len(line)
    except _UNREADABLE as error:
        raise UserError(f"{path}:1 is not a whole header ({error})") from None


def _whole_lines_end(path: Path, decoder: "msgspec.json.Decoder[Any]", floor: int) -> tuple[int, int]:
    """(offset where whole lines after `floor` end, fragments dropped after it). A last line that lacks only its newline is whole."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start, step, tail = size, _TAIL_STEP, b""
        while start > floor and b"\n" not in tail:
            start = max(floor, start - step)
            file.seek(start)
            tail = file.read(size - start)
            step *= 4
    fragment = tail[tail.rfind(b"\n") + 1 :]
    if not fragment.strip():
        return size, 0
    try:
        decoder.decode(fragment)
    except _UNREADABLE:
        return size - len(fragment), 1
    return size, 0


def _lines(path: Path, decoder: "msgspec.json.Decoder[_T]", start: int, end: int, first_line: int) -> Iterator[tuple[int, int, _T]]:
    """(offset, length, value) of every line in [start, end); blank lines are skipped."""
    offset, number = start, first_line
    with path.open("rb") as file:
        file.seek(start)
        while offset < end:
            line = file.readline(end - offset)
            text = line.removeprefix(_BOM) if offset == 0 else line
            if text.strip():
                try:
                    value = decoder.decode(text)
                except _UNREADABLE as error:
                    raise UserError(f"{path}:{number} cannot be read ({error}); remove that line or restore the file") from None
                yield offset, len(line), value
            offset += len(line)
            number += 1
            if not line:
                return
