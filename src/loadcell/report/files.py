"""Where reports become files. Derived files may be made again; a file of the user's is never replaced unless asked; records are not touched.

Every file appears whole or not at all: it is written beside its name, then renamed.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.metrics.facts import RunFacts
from loadcell.metrics.summary import Summary
from loadcell.records import RequestRecord
from loadcell.report import experiment_markdown, markdown, seed, vllm
from loadcell.report.existing import is_stream
from loadcell.report.experiment import RESULTS_SCHEMA, ExperimentResults
from loadcell.report.vllm import VllmOptions

SUMMARY_NAME: Final = "summary.json"
REPORT_NAME: Final = "report.md"
_STATE_NAME: Final = "state.jsonl"  # of a folder that `loadcell run` made
RESULTS_NAME: Final = "results.json"
_FLUSH: Final = 1 << 20


def write_derived(run_dir: Path, summary: Summary) -> tuple[Path, Path]:
    """Write (or make again) summary.json and report.md in the run's folder; gives their paths. Both are rendered before either is written."""
    as_json = msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n"
    return _write_pair((run_dir / SUMMARY_NAME, as_json), (run_dir / REPORT_NAME, markdown.render(summary).encode()))


def write_results(folder: Path, results: ExperimentResults) -> tuple[Path, Path]:
    """Write (or make again) results.json and report.md of an experiment. Files of these names that are not ours are kept: ours then stand beside
    them as loadcell-results.json and loadcell-report.md.
    """
    as_json = msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n"
    before = "" if _is_ours(folder) else "loadcell-"
    as_markdown = experiment_markdown.render(results).encode()
    return _write_pair((folder / f"{before}{RESULTS_NAME}", as_json), (folder / f"{before}{REPORT_NAME}", as_markdown))


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write (or make again) derived files of a folder of ours, by their paths in it."""
    for name, body in files.items():
        path = folder / name
        with _failures_named(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_whole(path, [body])


def _is_ours(folder: Path) -> bool:
    """Whether both names are free, or hold what we wrote: in the folder of a run of ours whatever stands there, be it torn."""
    if (folder / _STATE_NAME).is_file():
        return True
    results = folder / RESULTS_NAME
    if not results.exists():
        return not (folder / REPORT_NAME).exists()
    return f'"schema": "{RESULTS_SCHEMA}"'.encode() in results.read_bytes()[-200:]


def _write_pair(one: tuple[Path, bytes], other: tuple[Path, bytes]) -> tuple[Path, Path]:
    for path, body in (one, other):
        with _failures_named(path):
            _write_whole(path, [body])
    return one[0], other[0]


def write_seed(path: str | Path, records: Iterable[RequestRecord], facts: RunFacts, *, overwrite: bool = False) -> None:
    """Write the multi-service client's JSONL to `path`, `-` for standard output."""
    _write_new(path, seed.encode(records, facts), "--output-file", "choose another name or add --overwrite", overwrite=overwrite)


def vllm_path(options: VllmOptions, result_dir: str | None, result_filename: str | None) -> Path:
    """Where `vllm bench serve` would put the result."""
    return Path(result_dir or ".") / (result_filename or vllm.file_name(options))


def write_vllm(path: str | Path, records: Iterable[RequestRecord], facts: RunFacts, options: VllmOptions, *, append: bool = False) -> None:
    """Write vLLM's result JSON to a new file; `append` adds it as a further line of one that may exist. `records`: as `vllm.encode`."""
    pieces = vllm.encode(records, facts, options)
    if append and not is_stream(path):
        _append_line(Path(path), pieces)
    else:
        _write_new(path, pieces, "--result-filename", "choose another --result-filename, or --append-result to add to it", overwrite=False)


def _write_new(path: str | Path, pieces: Iterable[bytes], flag: str, remedy: str, *, overwrite: bool) -> None:
    with _failures_named(path):
        if is_stream(path):
            _write_stream(path, pieces)
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if overwrite:
            _write_whole(target, pieces)
            return
        try:
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        except FileExistsError:
            raise UserError(f"{flag} {path}: the file exists and is not overwritten; {remedy}") from None
        try:
            _write_whole(target, pieces)
        except BaseException:
            target.unlink(missing_ok=True)  # only the empty file that held the name for us
            raise


def _write_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """Write beside `path`, then take its name."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as out:
            _write_pieces(out, pieces)
            os.fsync(out.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _append_line(path: Path, pieces: Iterable[bytes]) -> None:
    """As the tool does: a newline between results, none after the last. A failure leaves the file as it was."""
    with _failures_named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as out:
            size = out.tell()
            try:
                out.write(b"\n" if size else b"")
                _write_pieces(out, pieces)
                os.fsync(out.fileno())
            except BaseException:
                out.flush()
                os.ftruncate(out.fileno(), size)
                raise


def _write_pieces(out: BinaryIO, pieces: Iterable[bytes]) -> None:
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) >= _FLUSH:
            out.write(held)
            held.clear()
    out.write(held)
    out.flush()


def _write_stream(path: str | Path, pieces: Iterable[bytes]) -> None:
    if str(path) == "-":
        _write_pieces(sys.stdout.buffer, pieces)
        return
    with Path(path).open("wb") as out:
        _write_pieces(out, pieces)


@contextmanager
def _failures_named(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentFailure(f"cannot write {path}: {error.strerror or error}") from error
