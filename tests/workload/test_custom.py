"""Custom JSONL: what is read, what is refused and where, and how rows become prompts."""

import json
from pathlib import Path

import pytest

from loadcell.errors import UserError
from loadcell.workload import WordTokenizer, WorkloadSpec, local_tokenizer, open_workload


@pytest.fixture
def write(tmp_path: Path):
    def written(content: bytes | str | list) -> str:
        path = tmp_path / "data.jsonl"
        if isinstance(content, list):
            content = "\n".join(json.dumps(row) for row in content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return written


def custom(path: str, chat: bool = True, needed: int | None = None, **fields):
    return open_workload(WorkloadSpec(dataset="custom", dataset_path=path, **fields), WordTokenizer(), chat, needed)


def test_blank_lines_are_skipped_and_counted_and_the_last_newline_may_be_missing(write):
    workload = custom(write('{"prompt": "one two"}\n\n   \n{"prompt": "three"}'))
    assert workload.size == 2
    assert workload.report().blank_lines == 2
    assert [workload.prompt(i, "measure").text for i in range(2)] == ["one two", "three"]


def test_a_byte_order_mark_crlf_and_cjk_text_are_read_as_meant(write):
    content = "\ufeff" + '{"prompt": "你好 世界"}\r\n{"prompt": "a\u2028b", "session_id": 7}\r\n'
    workload = custom(write(content))
    assert [workload.prompt(i, "measure").text for i in range(2)] == ["你好 世界", "a\u2028b"]
    assert workload.prompt(1, "measure").session == "7"
    assert workload.report().blank_lines == 0


@pytest.mark.parametrize("key", ["output_len", "output_tokens", "max_tokens"])
def test_the_rows_own_output_length_comes_first(write, key):
    workload = custom(write([{"prompt": "a", key: 9}, {"prompt": "b"}]), output_len=50)
    assert [workload.prompt(i, "measure").output_len for i in range(2)] == [9, 50]
    assert custom(write([{"prompt": "b"}]), output_len=None).prompt(0, "measure").output_len is None


def test_messages_are_sent_as_they_stand_and_counted(write):
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "what is this"}, {"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "assistant", "content": None, "tool_calls": []},
    ]
    prompt = custom(write([{"messages": messages}])).prompt(0, "measure")
    assert (prompt.text, prompt.messages, prompt.input_tokens, prompt.input_source) == (None, messages, 5, "estimated")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"{", "not valid JSON"),
        (b'{"prompt": "\\ud800"}', "not valid JSON"),
        (b'"text"', "expected a JSON object"),
        (b'[{"prompt": "a"}]', "JSONL holds one object a line"),
        (b'{"prompt": "caf\xe9"}', "not UTF-8 (byte 0xe9 at column 16)"),
        (b'{"text": "a", "id": 1}', "neither 'prompt' nor 'messages' (keys: text, id)"),
        (b"{}", "(keys: none)"),
        (b'{"prompt": ""}', "'prompt' must be a text"),
        (b'{"prompt": 5}', "'prompt' must be a text"),
        (b'{"prompt": "a", "messages": []}', "both"),
        (b'{"messages": []}', "at least one message"),
        (b'{"messages": [{"content": "a"}]}', "message 1 must be an object with a 'role'"),
        (b'{"messages": [{"role": "user", "content": 5}]}', "'content' of message 1"),
        (b'{"prompt": "a", "output_len": 0}', "'output_len' is 0"),
        (b'{"prompt": "a", "max_tokens": "9"}', "'max_tokens' is '9'"),
        (b'{"prompt": "a", "output_tokens": true}', "'output_tokens' is True"),
        (b'{"prompt": "a", "session_id": []}', "'session_id'"),
    ],
)
def test_the_first_row_that_cannot_be_sent_is_named_by_line(write, line, what):
    path = write(b'{"prompt": "fine"}\n\n' + line + b"\n")
    with pytest.raises(UserError) as refusal:
        custom(path)
    assert str(refusal.value).startswith(f"{path}:3: ")
    assert what in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_utf_16_is_named(write):
    with pytest.raises(UserError, match=":1: is UTF-16; save it as UTF-8"):
        custom(write('{"prompt": "a"}'.encode("utf-16")))


def test_messages_need_a_chat_endpoint(write):
    with pytest.raises(UserError, match=":1: has 'messages', which completions cannot take"):
        custom(write([{"messages": [{"role": "user", "content": "a"}]}]), chat=False)


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_file_without_rows_is_refused(write, content):
    with pytest.raises(UserError, match="holds no rows"):
        custom(write(content))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        custom(str(tmp_path / "missing.jsonl"))
    with pytest.raises(UserError, match="Is a directory"):
        custom(str(tmp_path))


def test_a_small_data_set_is_sent_again_and_counted(write):
    workload = custom(write([{"prompt": text} for text in "abc"]), needed=10)
    assert "".join(workload.prompt(i, "measure").text for i in range(10)) == "abcabcabca"
    assert workload.report().reused == 7


def test_or_refused_before_anything_is_sent(write):
    path = write([{"prompt": text} for text in "abc"])
    with pytest.raises(UserError, match="3 usable rows for 10 requests and no reuse; lower --num-prompts to 3"):
        custom(path, needed=10, reuse=False)
    workload = custom(path, reuse=False)
    workload.prompt(2, "measure")
    with pytest.raises(UserError, match="no reuse"):
        workload.prompt(3, "measure")


def test_a_warm_up_prompt_never_is_or_begins_as_a_measured_one(write):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "p"}]}]
    workload = custom(write([{"prompt": "text"}, {"messages": messages}, {"messages": parts}]))
    text, chat, listed = (workload.prompt(i, "warmup") for i in range(3))
    assert text.text.startswith("(warm-up ")
    assert text.text.endswith(") text")
    assert chat.messages[0]["content"].startswith("(warm-up ")
    assert chat.messages[1] == messages[1]
    assert listed.messages[0]["content"][0]["text"].startswith("(warm-up ")
    assert listed.messages[0]["content"][1:] == parts[0]["content"]
    assert text.input_tokens is None
    assert workload.prompt(1, "measure").messages == messages  # the row itself is untouched
    assert len({workload.prompt(i, "warmup").text for i in (0, 3, 6)}) == 3
    assert workload.report().reused == 0


@pytest.mark.parametrize("change", [{"cell": "b"}, {"repeat": 1}])
def test_cells_begin_elsewhere_in_the_data_set(write, change):
    path = write([{"prompt": str(n)} for n in range(100)])
    plain, other = custom(path), custom(path, **change)
    assert other.prompt(0, "measure") != plain.prompt(0, "measure")
    assert {other.prompt(i, "measure").text for i in range(100)} == {str(n) for n in range(100)}
    assert custom(path, same_prompts=True, **change).prompt(0, "measure") == plain.prompt(0, "measure")


def test_shuffling_follows_the_seed(write):
    path = write([{"prompt": str(n)} for n in range(100)])

    def order(**fields) -> list[str]:
        workload = custom(path, shuffle=True, **fields)
        return [workload.prompt(i, "measure").text for i in range(100)]

    assert order() == order()
    assert order() != order(seed=1)
    assert order() != order(cell="b")
    assert sorted(order(), key=int) == [str(n) for n in range(100)]


def test_rows_over_the_context_are_left_out_capped_or_kept(write):
    rows = [{"prompt": "a " * n, "output_len": 20} for n in (10, 85, 100, 80)]
    path = write(rows)

    def sent(**fields) -> list[tuple[int, int]]:
        workload = custom(path, max_model_len=100, **fields)
        return [(p.input_tokens, p.output_len) for p in (workload.prompt(i, "measure") for i in range(workload.size))]

    assert sent() == [(10, 20), (80, 20)]
    assert sent(oversize="cap") == [(10, 20), (85, 15), (80, 20)]
    assert sent(oversize="keep") == [(10, 20), (85, 20), (100, 20), (80, 20)]
    skipping, capping = custom(path, max_model_len=100).report(), custom(path, max_model_len=100, oversize="cap").report()
    assert (skipping.skipped, skipping.capped) == ({"longer than the model's context": 2}, 0)
    assert (capping.skipped, capping.capped) == ({"longer than the model's context": 1}, 1)


def test_a_data_set_of_which_nothing_fits_is_refused_with_the_reasons(write):
    with pytest.raises(UserError, match=r"none of 2 rows can be sent \(2 longer than the model's context\)"):
        custom(write([{"prompt": "a " * 200}] * 2), max_model_len=100)


def test_exact_counts_include_what_a_completions_server_adds(write, tokenizer_folder):
    tokenizer = local_tokenizer(str(tokenizer_folder / "bos"))
    path = write([{"prompt": "water under the bridge"}])
    spec = WorkloadSpec(dataset="custom", dataset_path=path)
    content = tokenizer.count("water under the bridge")
    assert open_workload(spec, tokenizer, chat=True).prompt(0, "measure").input_tokens == content
    completions = open_workload(spec, tokenizer, chat=False).prompt(0, "measure")
    assert (completions.input_tokens, completions.input_source) == (content + 1, "tokenizer")


def test_only_as_many_rows_are_counted_as_the_run_needs(write):
    workload = custom(write([{"prompt": str(n)} for n in range(1000)]), needed=10)
    assert workload.size == 10


@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"prompt": "a", "output_len": 99999999999999999999999}', '{"prompt": "a", "max_tokens": 1000000001}']
)
def test_what_no_request_could_hold_is_refused_by_line(write, line):
    path = write('{"prompt": "a"}\n' + line)
    with pytest.raises(UserError, match=r"data\.jsonl:2: "):
        custom(path)
