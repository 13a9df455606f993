"""What a workload's spec refuses, before any file is read."""

import math

import pytest

from loadcell.errors import UserError
from loadcell.workload import WorkloadSpec, parse_range_ratio, validate


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"dataset": "sharegpt"}, "--dataset-path"),
        ({"dataset_path": "x.json"}, "--dataset-path x.json"),
        ({"dataset": "mooncake", "dataset_path": "x", "shuffle": True}, "--shuffle"),
        ({"dataset": "custom", "dataset_path": "x", "prefix_len": 5}, "--prefix-len 5"),
        ({"input_len": 0}, "--input-len 0"),
        ({"output_len": 0}, "--output-len 0"),
        ({"prefix_len": -1}, "--prefix-len -1"),
        ({"prefix_groups": 0, "prefix_len": 1}, "--prefix-groups 0"),
        ({"prefix_groups": 2}, "--prefix-len"),
        ({"range_ratio": 1.0}, "--range-ratio 1"),
        ({"range_ratio": -0.1}, "--range-ratio -0.1"),
        ({"range_ratio": math.nan}, "--range-ratio nan"),
        ({"output_range_ratio": 1.5}, "--range-ratio (output) 1.5"),
        ({"dist_spread": 0.0}, "--dist-spread 0"),
        ({"input_dist": "uniform"}, "--input-dist uniform"),
        ({"output_dist": "normal", "range_ratio": 0.5}, "--output-dist normal"),
        ({"max_model_len": 1}, "--max-model-len 1"),
        ({"max_model_len": 100, "input_len": 90, "output_len": 11}, "--max-model-len 100"),
        ({"max_model_len": 100, "prefix_len": 100, "oversize": "cap"}, "--max-model-len 100"),
    ],
)
def test_refused_with_the_flag_named(fields, flag):
    with pytest.raises(UserError) as refusal:
        validate(WorkloadSpec(**fields))
    assert flag in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"input_len": 0, "prefix_len": 1},
        {"range_ratio": 0.99},
        {"input_dist": "uniform", "range_ratio": 0.5},
        {"output_dist": "normal", "range_ratio": 0.5, "output_range_ratio": 0.0},
        {"max_model_len": 100, "input_len": 90, "output_len": 10},
        {"max_model_len": 10, "oversize": "keep"},
        {"dataset": "custom", "dataset_path": "x"},
    ],
)
def test_accepted(fields):
    validate(WorkloadSpec(**fields))


@pytest.mark.parametrize(
    ("text", "ratios"),
    [("0", (0.0, None)), ("0.5", (0.5, None)), ('{"input": 0.1, "output": 0}', (0.1, 0.0)), ("{'input':1}", None), ("1", None)]
    + [(text, None) for text in ("-0.1", "nan", "abc", "true", '{"input": 0.1}', '{"input": 0.1, "output": 2}', "[0.1]", "")],
)
def test_range_ratio_as_one_number_or_as_json(text, ratios):
    if ratios is None:
        with pytest.raises(UserError, match="--range-ratio"):
            parse_range_ratio(text)
    else:
        assert parse_range_ratio(text) == ratios
