import math

import numpy as np
import pytest

from loadcell.tune.parameters import Parameter, Place
from loadcell.tune.sampler.compute import Compute, bits_of
from loadcell.tune.sampler.facts import Facts
from loadcell.tune.space import Space

METHOD = Parameter("method", "categorical", Place(flag="--quantization"), choices=("none", "fp8", "awq", "gptq"), default="none")
RANKS = Parameter("tp", "int", Place(flag="--tensor-parallel-size"), ladder=(1, 2, 4), default=1)
DRAFTS = Parameter("drafts", "int", Place(flag="--speculative-config", path="speculative-config.num_speculative_tokens"), low=0, high=5)
BLOCK = Parameter("block", "int", Place(flag="--block-size"), ladder=(8, 16), default=16)
SEQS = Parameter("seqs", "int", Place(flag="--max-num-seqs"), low=8, high=512, log=True)


@pytest.mark.parametrize(
    ("method", "bits"),
    [
        ("none", (16, 16)), (False, (16, 16)), ("FP8", (8, 8)), ("awq_marlin", (4, 16)), ("gptq", (4, 16)), ("w8a8_int8", (8, 8)), ("w8a8s", (8, 8)),
        ("W4A16", (4, 16)), ("w4afp8", (4, 8)), ("w0a0", None), ("compressed-tensors", None), ("gguf", None), (3, None),
    ],
)  # fmt: skip
def test_bits_of_methods(method: str | bool | int, bits: tuple[int, int] | None) -> None:
    assert bits_of(method) == bits


def test_methods_of_equal_bits_are_alike() -> None:
    compute = Compute(Space((METHOD, RANKS)))
    none, awq, gptq, fp8 = compute.of([{"method": method, "tp": 2} for method in ("none", "awq", "gptq", "fp8")])
    assert awq == pytest.approx(gptq)
    assert none[0] > fp8[0] > awq[0]
    assert fp8[1] > none[1] == awq[1]


def test_a_column_that_nothing_moves_is_left_out() -> None:
    assert Compute(Space((METHOD, BLOCK))).columns == ("weight_bits*", "compute_bits*")
    assert Compute(Space((RANKS, DRAFTS))).columns == ("step_tokens*",)
    assert Compute(Space((RANKS, BLOCK))).columns == ()
    one = Parameter("quantization", "categorical", Place(flag="--quantization"), choices=("fp8",))
    assert Compute(Space((one, RANKS))).columns == ()


def test_where_one_method_is_not_understood_nothing_is_said_of_any() -> None:
    odd = Parameter("method", "categorical", Place(flag="--quantization"), choices=("none", "fp8", "gguf"))
    assert Compute(Space((odd, RANKS))).columns == ()


def test_a_default_that_is_no_choice_is_what_its_name_means() -> None:
    outside = Parameter("method", "categorical", Place(flag="--quantization"), choices=("awq", "gptq"), default="fp8")
    awq, given, absent = Compute(Space((outside,))).of([{"method": "awq"}, {"method": "fp8"}, {}])
    assert awq[0] < given[0] < absent[0] == 0


def test_drafts_make_a_step_of_so_many_tokens_more() -> None:
    compute = Compute(Space((DRAFTS,)))
    steps = np.exp(2 * compute.of([{"drafts": 0}, {"drafts": 3}, {}])[:, 0])
    assert steps == pytest.approx([1, 4, 1])


def test_facts_are_of_both_and_assume_no_effect_of_what_a_device_is_asked() -> None:
    facts = Facts(Space((SEQS, METHOD, RANKS)), concurrency=64)
    assert facts.columns == ("running*", "each*", "queue*", "weight_bits*", "compute_bits*")
    assert facts.of([{"seqs": 32, "method": "fp8", "tp": 4}] * 3).shape == (3, 5)
    assert facts.trend(None)[0] > 0
    assert not facts.trend(None)[3:].any()


def test_where_a_trial_looks_for_its_load_only_what_is_admitted_is_known() -> None:
    ranks = Parameter("dp", "int", Place(flag="--data-parallel-size"), ladder=(1, 2, 4), default=1)
    facts = Facts(Space((SEQS, ranks)))
    assert facts.columns == ("admitted*",)
    admitted = [math.exp(5.5 * value) for value in facts.of([{"seqs": 32, "dp": 1}, {"seqs": 32, "dp": 4}, {"dp": 2}])[:, 0]]
    assert admitted == pytest.approx([32, 128, 1024])
    assert not facts.trend(None).any()
