import math

import msgspec
import pytest

from loadcell.errors import UserError
from loadcell.tune.optix.fields import Field, fields_from
from loadcell.tune.parameters import Place
from loadcell.tune.space import Space


def made(*rows):
    fields = [msgspec.convert(row, Field) for row in rows]
    return fields_from(fields, lambda field: Place(path=field.config_position) if field.config_position != "env" else Place(env=field.name))


def space(*rows):
    found = made(*rows)
    return Space(found.parameters, found.constraints)


def row(name, dtype, low=0.0, high=100.0, **more):
    return {"name": name, "config_position": "env", "dtype": dtype, "min": low, "max": high, **more}


TP = row("tp", "enum", 0, 1, dtype_param=[1, 2, 4, 8])
PP = row("pp", "enum", 0, 1, dtype_param=[1, 2, 3])


@pytest.mark.parametrize(
    ("field", "values"),
    [
        (row("a", "int", 1, 4), [1, 2, 3, 4]),
        (row("a", "int", 0.5, 3.7), [1, 2, 3]),
        (row("a", "bool", 0, 1), [False, True]),
        (row("a", "enum", dtype_param=[4, 1, 2]), [1, 2, 4]),
        (row("a", "enum", dtype_param=["", "x y"]), ["", "x y"]),
        (row("a", "range", 0, 30, dtype_param=10), [0, 10, 20, 30]),
        (row("a", "range", 0, 35, dtype_param=10), [0, 10, 20, 30]),
        (row("a", "int", 7, 7), [7]),
        (row("a", "int", 0, 100, constant=9), [9]),
        (row("a", "float", 16, 16), [16]),
        (row("a", "float", 0, 1, constant=0.5), [0.5]),
        (row("a", "str", value="text"), ["text"]),
        (row("a", "bool", 1, 1), [True]),
        (row("a", "enum", 0, 0, dtype_param=[4, 8], value=8), [8]),
    ],
)
def test_values_of_one_field(field, values):
    assert [one["a"] for one in space(field).enumerate()] == values


def test_a_float_and_its_scale():
    found = made(row("a", "float", 0.1, 0.7), row("b", "int", 10, 1000), row("c", "int", 0, 1000)).parameters
    assert [(one.low, one.high, one.log) for one in found] == [(0.1, 0.7, False), (10, 1000, True), (0, 1000, False)]


def test_a_ratio_is_searched_and_its_product_is_set():
    of = row("batch", "int", 10, 1000, value=200)
    ratio = {**row("prefill", "ratio", 0.1, 0.7, dtype_param="batch", value=50), "config_position": "a.maxPrefillBatchSize"}
    both = space(of, ratio)
    assert both.searched == ("batch", "prefill_ratio")
    assert both.default() == {"batch": 200, "prefill_ratio": 0.25, "prefill": 50}
    assert both.complete({"batch": 100, "prefill_ratio": 0.29})["prefill"] == 29  # 0.29 * 100 is 28.999999999999996
    assert both.complete({"batch": 2, "prefill_ratio": 0.1})["prefill"] == 1  # never 0
    assert space(of, row("other", "ratio", 0, 0.3, dtype_param="batch")).complete({"batch": 2, "other_ratio": 0.3})["other"] == 0


@pytest.mark.parametrize(
    ("dtype", "param", "values", "derived"),
    [
        ("share", "a", {"a": 3}, 17 - 3),
        ("factories", {"target_name": "a", "product": 16, "dtype": "int"}, {"a": 3}, 5),
        ("factories", {"target_name": "a", "product": 16, "dtype": "float"}, {"a": 5}, 3.2),
        ("times", {"target_name": "a", "product": 1.5, "dtype": "int"}, {"a": 3}, 4),
        ("ternary_times", {"target_names": ["a", "b"], "product": 2}, {"a": 3, "b": 4}, 24),
    ],
)
def test_what_is_derived(dtype, param, values, derived):
    both = space(row("a", "int", 1, 16), row("b", "int", 1, 16), row("c", dtype, 0, 0, dtype_param=param))
    whole = both.complete({"a": 1, "b": 1, **values})
    assert whole["c"] == derived
    assert both.legal(whole) is None


def test_ternary_factories_keeps_one_and_moves_the_other():
    dp = row("dp", "ternary_factories", 0, 0, dtype_param={"target_names": ["tp", "pp"], "product": 16, "dtype": "int"})
    balanced = space(TP, PP, dp)
    whole = balanced.complete({"tp": 4, "pp": 2})
    assert whole["dp"] == 2
    assert balanced.legal(whole) is None
    wrong = balanced.complete({"tp": 4, "pp": 3})
    assert "no whole number" in (balanced.legal(wrong) or "")
    assert balanced.repair(wrong) == ({"tp": 4, "pp": 2, "dp": 2}, ("pp",))
    fixed = {"target_names": ["tp", "pp"], "product": 24, "dtype": "int", "priority_policy": "fixed"}
    keeps_pp = space(TP, PP, {**dp, "dtype_param": {**fixed, "max_value": 4, "priority": ["pp", "tp"]}})
    assert keeps_pp.repair(keeps_pp.complete({"tp": 1, "pp": 3})) == ({"tp": 2, "pp": 3, "dp": 4}, ("tp",))
    keeps_tp = space(TP, PP, {**dp, "dtype_param": {**fixed, "max_value": 4, "priority": ["tp", "pp"]}})
    repaired = keeps_tp.repair(keeps_tp.complete({"tp": 1, "pp": 3}))
    assert repaired is not None
    assert keeps_tp.legal(repaired[0]) is None
    assert repaired[1] == ("tp",)  # with tp = 1 no pp gives at most 4: both may move
    assert all(one["tp"] * one["pp"] * one["dp"] == 24 and one["dp"] <= 4 for one in keeps_tp.enumerate())


def test_the_balanced_policy_alternates():
    dp = row("dp", "ternary_factories", 0, 0, dtype_param={"target_names": ["a", "b"], "product": 12, "dtype": "int", "min_value": 1})
    both = space(row("a", "int", 1, 12), row("b", "int", 1, 12), dp)
    moved = [both.repair(both.complete({"a": 5, "b": 5})) for _ in range(2)]
    assert [one[1] for one in moved if one] == [("a", "b")] * 2  # neither is a divisor
    moved = [both.repair(both.complete({"a": 4, "b": 6})) for _ in range(2)]
    assert {one[1] for one in moved if one} == {("a",), ("b",)}


def test_what_can_never_be_repaired_is_clamped_and_said():
    dp = row("dp", "ternary_factories", 0, 0, dtype_param={"target_names": ["a", "b"], "product": 16, "dtype": "int", "max_value": 4})
    found = made(row("a", "enum", dtype_param=[1, 2]), row("b", "int", 1, 1), dp)
    assert "clamped" in found.notes[0]
    both = Space(found.parameters, found.constraints)
    assert {one["dp"] for one in both.enumerate()} == {4}
    three = made(row("a", "enum", dtype_param=[3, 5]), row("b", "int", 1, 1), {**dp, "dtype_param": {**dp["dtype_param"], "max_value": 16}})
    assert Space(three.parameters, three.constraints).size() == 0  # it has to divide


def test_entries_up_to_another_field():
    found = space(row("a", "int", 1, 16), row("b", "le_enum", 0, 0, dtype_param={"target_name": "a", "values": [1, 2, 4, 8, 16]}))
    assert {one["b"] for one in found.enumerate() if one["a"] == 5} == {1, 2, 4}
    assert found.repair({"a": 5, "b": 16}) == ({"a": 5, "b": 4}, ("b",))


def test_times_count_only_where_batches_are_selected():
    when = {**row("t", "int", 0, 10, value=3), "config_position": "a.prefillTimeMsPerReq"}
    switch = {**row("s", "bool", 0, 1), "config_position": "a.supportSelectBatch"}
    both = space(when, switch)
    assert both.complete({"t": 3, "s": False}) == {"s": False}
    assert both.complete({"t": 3, "s": True}) == {"t": 3, "s": True}


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([row("a", "int", 5, 1)], "above max"),
        ([row("a", "enum")], "needs the list"),
        ([row("a", "range", dtype_param=0)], "needs its step"),
        ([row("a", "ratio", dtype_param="b")], "there are"),
        ([row("a", "factories", 0, 0, dtype_param="b")], "needs dtype_param"),
        ([row("a", "factories", 0, 0, dtype_param={"target_name": "a", "product": 1})], "is none"),
        ([TP, PP, row("a", "ternary_factories", 0, 0, dtype_param={"target_names": ["tp"], "product": 1})], "target_names = [a, b]"),
        (
            [TP, PP, row("a", "ternary_factories", 0, 0, dtype_param={"target_names": ["tp", "pp"], "priority_policy": "x"})],
            "balanced or fixed",
        ),
        ([row("a", "str")], "no value"),
        ([row("a", "int"), row("a", "int")], "stands twice"),
        ([row("a", "int", value="x")], "no number"),
    ],
)
def test_fields_that_cannot_be_used(rows, why):
    with pytest.raises(UserError) as refused:
        made(*rows)
    assert why in str(refused.value)


def test_the_fitness():
    from loadcell.tune.optix.fitness import fitness_of
    from loadcell.tune.spec import FitnessTable

    at_limits = {"throughput": 5000.0, "ttft_mean": 2.0, "tpot_mean": 0.05, "success_rate": 1.0}
    assert fitness_of(FitnessTable(), at_limits) == pytest.approx(1.0)
    assert fitness_of(FitnessTable(ttft_penalty=3), {**at_limits, "ttft_mean": 4.0}) == pytest.approx(0.8 + 0.2 * math.exp(3))
    assert fitness_of(FitnessTable(), {**at_limits, "throughput": None}) is None
    assert math.isfinite(fitness_of(FitnessTable(success_rate_penalty=1000), {**at_limits, "success_rate": 0.001}) or math.inf)
