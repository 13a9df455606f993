"""Mooncake traces: shared blocks, exact lengths, times, and exact errors."""

import json
from pathlib import Path

import pytest

from loadcell.errors import UserError
from loadcell.workload import WordTokenizer, WorkloadSpec, local_tokenizer, open_workload

ROWS = [
    {"timestamp": 27482, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 48]},
    {"timestamp": 27482, "input_length": 1600, "output_length": 26, "hash_ids": [46, 47, 2353, 2354]},
    {"timestamp": 30535, "input_length": 1024, "output_length": 10, "hash_ids": [46, 47]},
    {"timestamp": 31000.5, "input_length": 700, "output_length": 1, "hash_ids": [5]},
    {"timestamp": 31000.5, "input_length": 3, "output_length": 1, "hash_ids": []},
]
LENGTHS = [row["input_length"] for row in ROWS]


@pytest.fixture
def trace(tmp_path: Path):
    def opened(rows=ROWS, tokenizer=None, chat=True, needed=None, **fields):
        path = tmp_path / "trace.jsonl"
        path.write_text(rows if isinstance(rows, str) else "\n".join(map(json.dumps, rows)))
        spec = WorkloadSpec(dataset="mooncake", dataset_path=str(path), **fields)
        return open_workload(spec, tokenizer or WordTokenizer(), chat, needed)

    return opened


def shared(a: list, b: list) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_times_are_taken_from_the_first_row(trace):
    workload = trace()
    assert workload.trace_s == pytest.approx((0.0, 0.0, 3.053, 3.5185, 3.5185))
    assert [workload.prompt(i, "measure").timestamp_s for i in range(5)] == list(workload.trace_s)
    assert [workload.prompt(i, "measure").output_len for i in range(5)] == [52, 26, 10, 1, 1]


@pytest.mark.parametrize("kind", [None, "english", "bos", "metaspace"])
def test_lengths_are_exact_and_equal_blocks_equal_tokens(trace, tokenizer_folder, kind):
    tokenizer = local_tokenizer(str(tokenizer_folder / kind)) if kind else None
    workload = trace(tokenizer=tokenizer)
    texts = [workload.prompt(i, "measure").text for i in range(5)]
    ids = [tokenizer.encode(text) if tokenizer else text.split() for text in texts]
    assert [len(i) for i in ids] == LENGTHS
    assert shared(ids[0], ids[1]) >= 1024
    assert shared(ids[0], ids[2]) >= 1008  # all but the end of a block that is the last here
    assert shared(ids[0], ids[1]) < 1040
    assert shared(ids[0], ids[3]) < 8
    assert workload.report().input.off_target == 0


def test_completions_leave_room_for_special_tokens(trace, tokenizer_folder):
    tokenizer = local_tokenizer(str(tokenizer_folder / "bos"))
    workload = trace(tokenizer=tokenizer, chat=False)
    prompts = [workload.prompt(i, "measure") for i in range(5)]
    assert [prompt.input_tokens for prompt in prompts] == LENGTHS
    assert [tokenizer.count(prompt.text) + 1 for prompt in prompts] == LENGTHS


def test_blocks_differ_between_purposes_cells_and_seeds(trace):
    text = trace().prompt(0, "measure").text.split()
    for other in (
        trace().prompt(0, "warmup"),
        trace(cell="b").prompt(0, "measure"),
        trace(seed=1).prompt(0, "measure"),
    ):
        assert shared(text, other.text.split()) < 8
    assert trace(cell="b", same_prompts=True).prompt(0, "measure") == trace(same_prompts=True).prompt(0, "measure")


def test_rows_are_sent_again_only_where_reuse_is_allowed(trace):
    workload = trace(needed=7)
    assert workload.prompt(5, "measure") == workload.prompt(0, "measure")
    assert workload.report().reused == 1
    with pytest.raises(UserError, match="5 usable rows for 7 requests"):
        trace(needed=7, reuse=False)


def test_rows_over_the_context(trace):
    skipping = trace(max_model_len=1120)
    assert (skipping.size, skipping.report().skipped) == (3, {"longer than the model's context": 2})
    assert len(skipping.trace_s) == 3
    capping = trace(max_model_len=1120, oversize="cap")
    assert (capping.size, capping.report().capped) == (4, 1)
    assert capping.prompt(0, "measure").output_len == 20
    with pytest.raises(UserError, match="--max-model-len 2: no row"):
        trace(max_model_len=2)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"timestamp": None}, "'timestamp' is None"),
        ({"timestamp": -1}, "'timestamp' is -1"),
        ({"timestamp": True}, "'timestamp' is True"),
        ({"timestamp": 5}, "'timestamp' 5 comes before 27482"),
        ({"input_length": 0}, "'input_length' is 0"),
        ({"input_length": 1.5}, "'input_length' is 1.5"),
        ({"output_length": "9"}, "'output_length' is '9'"),
        ({"hash_ids": 5}, "'hash_ids' must be a list"),
        ({"hash_ids": [-1]}, "'hash_ids' must be a list"),
        ({"hash_ids": [1, 2, 3, 4]}, "4 hash ids for 1100 tokens; each stands for a block of 512"),
    ],
)
def test_the_first_line_that_is_wrong_is_named(trace, change, what):
    with pytest.raises(UserError) as refusal:
        trace([ROWS[0], ROWS[0] | change])
    assert "trace.jsonl:2: " in str(refusal.value)
    assert what in str(refusal.value)


def test_an_empty_trace_is_refused_and_blanks_are_counted(trace):
    with pytest.raises(UserError, match="holds no rows"):
        trace("\n")
    assert trace(json.dumps(ROWS[0]) + "\n\n").report().blank_lines == 1
