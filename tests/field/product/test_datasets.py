"""Data sets as they lie on people's disks: blank lines, byte-order marks, too few rows, rows too long for the model."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadcell.api import BenchResult
from loadcell.errors import UserError
from loadcell.testing.replies import Script, chat_stream, error_reply
from loadcell.testing.scripted_server import Received, ScriptedServer

Serve = Callable[..., ScriptedServer]
Bench = Callable[..., BenchResult]
Command = Callable[..., "subprocess.CompletedProcess[str]"]

ANSWER = chat_stream("a", "b")
BOM = b"\xef\xbb\xbf"
CJK = "請用繁體中文回答這個問題 – 你好"


def _prompts(server: ScriptedServer) -> list[str]:
    return [json.loads(request.body)["messages"][-1]["content"] for request in server.requests if request.method == "POST"]


def _row(text: str, **more: Any) -> bytes:
    return json.dumps({"prompt": text, "output_len": 2, **more}, ensure_ascii=False).encode()


def _file(folder: Path, content: bytes) -> str:
    path = folder / "data.jsonl"
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize(
    ("content", "blanks"),
    [
        (b"%s\n\n   \n%s", 2),
        (b"%s\n\n   \n%s\n", 2),
        (b"\n%s\n%s\n\n\n", 3),
        (b"%s\n\n%s\n", 1),
        (b"%s\r\n\r\n\t\r\n%s\r\n", 2),
        (BOM + b"\r\n%s\r\n%s", 1),
        (b"%s\n%s\n", 0),
    ],
)
def test_blank_lines_are_skipped_and_counted(serve: Serve, bench: Bench, tmp_path: Path, content: bytes, blanks: int) -> None:
    server = serve(ANSWER)
    result = bench(
        server, dataset_name="custom", dataset_path=_file(tmp_path, content % (_row("one"), _row("two"))), num_prompts=2, concurrency=1
    )
    assert _prompts(server) == ["one", "two"]
    assert result.summary.prompts.skipped_rows == 0
    assert result.summary.prompts.reused == 0
    assert result.summary.prompts.blank_lines == blanks
    assert [notice for notice in result.summary.notices if "blank" in notice] == (
        [f"{blanks} blank lines of the data set were skipped"] if blanks else []
    )


@pytest.mark.parametrize("bom", [b"", BOM])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_text_reaches_the_server_as_it_stands_in_the_file(serve: Serve, bench: Bench, tmp_path: Path, bom: bytes, newline: bytes) -> None:
    texts = [CJK, "a\u2028b\u2029c\x85d", "tab\there, \\n and \\u00e9", "🙂👩‍👩‍👧", "  spaces around  ", "line\nbreak\r\n"]
    server = serve(ANSWER)
    result = bench(
        server,
        dataset_name="custom",
        dataset_path=_file(tmp_path, bom + newline.join(_row(text) for text in texts)),
        num_prompts=6,
        concurrency=1,
    )
    assert _prompts(server) == texts
    assert result.summary.whole.counts.ok == 6


def test_the_other_kinds_of_data_take_the_mark_too(serve: Serve, bench: Bench, tmp_path: Path) -> None:
    server = serve(ANSWER)
    talk = [{"conversations": [{"from": "human", "value": f"{CJK} one two three four"}, {"from": "gpt", "value": "five six seven eight"}]}]
    bench(
        server, dataset_name="sharegpt", dataset_path=_file(tmp_path, BOM + json.dumps(talk, indent=2).replace("\n", "\r\n").encode()),
        num_prompts=1, concurrency=1,
    )  # fmt: skip
    assert _prompts(server) == [f"{CJK} one two three four"]
    times = tmp_path / "times.txt"
    times.write_bytes(BOM + b"0\r\n0.05\r\n\r\n0.1")
    result = bench(server, trace=str(times))
    planned = [record.scheduled_ns for record in result.records]
    assert planned[2] - planned[0] == 100_000_000
    mooncake = BOM + b"\r\n".join(
        json.dumps({"timestamp": at * 40, "input_length": 20, "output_length": 2, "hash_ids": [at]}).encode() for at in range(3)
    )
    replayed = bench(server, dataset_name="mooncake", dataset_path=_file(tmp_path, mooncake))
    assert replayed.summary.whole.counts.ok == 3
    assert replayed.summary.open_loop


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{broken", "JSON"),
        (b'["a list"]', "object"),
        (b'{"text": "wrong key"}', "prompt"),
        (b'{"prompt": ""}', "prompt"),
        (b'{"prompt": 7}', "prompt"),
        (b'{"prompt": "x", "output_len": 0}', "output_len"),
        (b'{"prompt": "x", "output_len": "many"}', "output_len"),
        (b'{"messages": []}', "messages"),
        (b'{"messages": [{"content": "no role"}]}', "role"),
        (b'{"prompt": "\xff\xfe"}', "UTF-8"),
    ],
)
def test_a_bad_row_is_named_by_line_before_any_request(serve: Serve, bench: Bench, tmp_path: Path, line: bytes, words: str) -> None:
    """The last row of a hundred: a run that needs only three must not find it out by chance, or not at all."""
    server = serve(ANSWER)
    path = _file(tmp_path, b"\n".join([*[_row(f"row {at}") for at in range(98)], b"", line]))
    with pytest.raises(UserError) as refused:
        bench(server, dataset_name="custom", dataset_path=path, num_prompts=3, concurrency=1)
    assert f"{path}:100:" in str(refused.value)
    assert words in str(refused.value)
    assert not any(request.method == "POST" for request in server.requests)
    assert not (tmp_path / "run-1").exists()


@pytest.mark.parametrize("content", [b"", b"\n \n", BOM, b"\xff\xfea\x00"])
def test_a_file_without_rows_is_refused(serve: Serve, bench: Bench, tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UserError):
        bench(serve(ANSWER), dataset_name="custom", dataset_path=_file(tmp_path, content), num_prompts=3)
    with pytest.raises(UserError, match="cannot be read"):
        bench(serve(ANSWER), dataset_name="custom", dataset_path=str(tmp_path / "absent"), num_prompts=3)


@pytest.mark.parametrize(
    ("rows", "requests", "load"),
    [(3, 10, {"concurrency": 2}), (3, 10, {"request_rate": 200}), (1, 4, {}), (10, 11, {"concurrency": 2})],
)
def test_too_few_rows_are_sent_again_and_said(
    serve: Serve, bench: Bench, tmp_path: Path, load: dict[str, Any], rows: int, requests: int
) -> None:
    server = serve(ANSWER)
    path = _file(tmp_path, b"\n".join(_row(f"row {at}") for at in range(rows)))
    result = bench(server, dataset_name="custom", dataset_path=path, num_prompts=requests, **load)
    assert len(_prompts(server)) == requests
    assert len(set(_prompts(server))) == rows
    assert result.summary.prompts.reused == requests - rows
    assert any("more than once" in notice and "cache" in notice for notice in result.summary.notices)
    assert "more than once" in result.report.read_text()


def test_too_few_rows_are_refused_where_none_may_be_sent_again(serve: Serve, bench: Bench, command: Command, tmp_path: Path) -> None:
    server = serve(ANSWER)
    path = _file(tmp_path, b"\n".join(_row(f"row {at}") for at in range(3)))
    with pytest.raises(UserError, match="3 usable rows for 10 requests"):
        bench(server, dataset_name="custom", dataset_path=path, num_prompts=10, reuse=False)
    done = command(
        "bench",
        "--base-url",
        server.base_url,
        "--model",
        "m",
        "--dataset-name",
        "custom",
        "--dataset-path",
        path,
        "--num-prompts",
        "10",
        "--no-reuse",
    )
    assert done.returncode == 2
    assert "3 usable rows" in done.stderr
    assert server.paths().count("/v1/chat/completions") == 0
    enough = bench(server, dataset_name="custom", dataset_path=path, num_prompts=3, reuse=False, concurrency=1)
    assert enough.summary.whole.counts.ok == 3


def _context(limit: int) -> Callable[[Received], Script]:
    def reply(request: Received) -> Script:
        body = json.loads(request.body)
        asked = len(body["messages"][-1]["content"].split()) + body["max_tokens"]
        if asked > limit:
            said = f"This model's maximum context length is {limit} tokens. However, you requested {asked} tokens."
            return [(0.0, error_reply(400, said, code="context_length_exceeded"))]
        return ANSWER

    return reply


_LENGTHS = [100, 3000, 4000, 4090, 4095, 4096, 6000, 8000]


def _lengths_file(folder: Path) -> str:
    return _file(folder, b"\n".join(_row("w " * length, output_len=100) for length in _LENGTHS))


@pytest.mark.parametrize(
    ("policy", "sent", "skipped", "capped"),
    [("skip", [100, 3000], 6, 0), (None, [100, 3000], 6, 0), ("cap", [100, 3000, 4000, 4090, 4095], 3, 3)],
)
def test_rows_that_exceed_the_context_follow_the_stated_policy(
    serve: Serve, bench: Bench, tmp_path: Path, policy: str | None, sent: list[int], skipped: int, capped: int
) -> None:
    server = serve(_context(4096))
    result = bench(
        server,
        dataset_name="custom",
        dataset_path=_lengths_file(tmp_path),
        max_model_len=4096,
        oversize=policy,
        duration=0.5,
        concurrency=1,
    )
    assert set(result.summary.whole.counts.by_outcome) == {"ok"}
    lengths = {len(prompt.split()) for prompt in _prompts(server)}
    assert lengths == set(sent)
    assert result.summary.prompts.skipped_rows == skipped
    assert result.summary.prompts.capped_rows == capped
    assert any(f"{skipped} rows of the data set were skipped" in notice and "context" in notice for notice in result.summary.notices)
    assert any("shortened" in notice for notice in result.summary.notices) == bool(capped)


@pytest.mark.parametrize("flags", [{}, {"max_model_len": 4096, "oversize": "keep"}])
def test_oversized_requests_are_the_clients_errors_and_harm_no_endpoint(
    serve: Serve, bench: Bench, tmp_path: Path, flags: dict[str, Any]
) -> None:
    servers = [serve(_context(4096)), serve(_context(4096))]
    result = bench(*servers, dataset_name="custom", dataset_path=_lengths_file(tmp_path), num_prompts=16, concurrency=1, **flags)
    assert result.summary.whole.counts.by_outcome == {"ok": 4, "http_4xx": 12}
    assert result.summary.whole.counts.attempts == 16
    assert "maximum context length" in result.summary.errors["http_4xx"]
    assert result.summary.healthy_at_end == [server.name for server in servers]
    assert not any(endpoint.ejections for endpoint in result.summary.endpoints)


def test_random_lengths_that_cannot_fit_are_refused_before_any_request(serve: Serve, bench: Bench) -> None:
    server = serve(ANSWER)
    with pytest.raises(UserError, match="--max-model-len"):
        bench(server, input_len=4000, output_len=200, max_model_len=4096, num_prompts=3)
    assert not any(request.method == "POST" for request in server.requests)
