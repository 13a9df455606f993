"""ShareGPT: questions, the answers' lengths, vLLM's pruning, and exact errors."""

import json
from pathlib import Path

import pytest

from loadcell.errors import UserError
from loadcell.workload import WordTokenizer, WorkloadSpec, open_workload

LONG = "a " * 500


def conversation(*turns: tuple[str, str]) -> dict:
    return {"id": "x", "conversations": [{"from": who, "value": text} for who, text in turns]}


def pair(question: int, answer: int) -> dict:
    return conversation(("human", "q " * question), ("gpt", "a " * answer))


@pytest.fixture
def opened(tmp_path: Path):
    def open_content(content, **fields):
        path = tmp_path / "share.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content, indent=1).encode())
        spec = WorkloadSpec(**{"dataset": "sharegpt", "dataset_path": str(path), "output_len": None, **fields})
        return open_workload(spec, WordTokenizer(), chat=True)

    return open_content


def test_the_first_question_and_the_length_of_its_answer(opened):
    workload = opened([conversation(("system", "be kind"), ("human", "one two three four"), ("gpt", "a b c d e"), ("human", "more"))])
    prompt = workload.prompt(0, "measure")
    assert (prompt.text, prompt.input_tokens, prompt.output_len) == ("one two three four", 4, 5)


def test_an_output_length_that_is_asked_for_replaces_the_answers(opened):
    assert opened([pair(10, 2)], output_len=7).prompt(0, "measure").output_len == 7


def test_turns_without_a_speaker_are_question_and_answer(opened):
    entry = {"conversations": [{"value": "one two three four"}, {"value": "a b c d"}]}
    assert opened([entry]).prompt(0, "measure").output_len == 4


def test_pruned_as_vllm_prunes_and_counted(opened):
    entries = [
        pair(10, 10),
        pair(3, 10),
        pair(10, 3),
        pair(1025, 10),
        pair(1024, 1025),
        pair(1024, 1024),
        conversation(("human", "alone")),
        conversation(("gpt", "a"), ("human", "b")),
        {"id": "no conversation"},
    ]
    workload = opened(entries)
    assert [workload.prompt(i, "measure").input_tokens for i in range(workload.size)] == [10, 1024]
    assert workload.report().skipped == {
        "no question with an answer": 3,
        "prompt under 4 tokens": 1,
        "answer under 4 tokens": 1,
        "prompt over 1024 tokens": 1,
        "prompt and output over 2048 tokens": 1,
    }


def test_a_stated_context_takes_the_place_of_vllms_limits(opened):
    workload = opened([pair(3000, 500), pair(4000, 500)], max_model_len=4096)
    assert workload.size == 1
    assert workload.prompt(0, "measure").input_tokens == 3000
    assert workload.report().skipped == {"longer than the model's context": 1}


@pytest.mark.parametrize(
    ("content", "line", "what"),
    [
        (b"{}", 1, "not a JSON array of conversations"),
        (b'[\n{"conversations": []},\n{"conversations": [}]', 3, "not a JSON array of conversations"),
        (b'[\n{"conversations": []},\n\n"text"\n]', 4, "expected an object whose 'conversations'"),
        (b'[\n{"conversations": []},\n{"conversations": [{"from": "human", "value": 5}]}]', 3, "each with a text 'value'"),
        (b'[\n{"conversations": []},\n{"a": "caf\xe9"}]', 3, "not UTF-8 (byte 0xe9 at column 11)"),
        (b"", 1, "not a JSON array"),
    ],
)
def test_what_is_not_of_the_form_is_named_by_line(opened, content, line, what):
    with pytest.raises(UserError) as refusal:
        opened(content)
    assert f"share.json:{line}: " in str(refusal.value)
    assert what in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_nothing_usable_is_refused(opened):
    with pytest.raises(UserError, match="no conversation with a question and an answer"):
        opened([])
    with pytest.raises(UserError, match=r"none of 1 rows can be sent \(1 prompt under 4 tokens\)"):
        opened([pair(1, 10)])


def test_a_byte_order_mark_is_no_part_of_it(opened):
    assert opened(b"\xef\xbb\xbf" + json.dumps([pair(5, 5)]).encode()).size == 1
