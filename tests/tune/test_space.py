import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadcell.experiment.spec import SpecError
from loadcell.tune.parameters import Constraint, Parameter, Place
from loadcell.tune.space import Space

FLAG = Place(flag="--x")


def number(name, low=1.0, high=100.0, **more):
    return Parameter(name, more.pop("kind", "int"), FLAG, low=low, high=high, default=more.pop("default", low), **more)


SEQS = number("seqs", 16, 2048, log=True, default=256)
TOKENS = number("tokens", 1024, 65536, log=True, default=8192)
MEMORY = Parameter("memory", "float", FLAG, low=0.7, high=0.97, default=0.9)
DTYPE = Parameter("dtype", "categorical", FLAG, choices=("auto", "fp8", "int8"), default="auto")
SPEC = Parameter("spec", "bool", FLAG, default=False)
DRAFT = Parameter("draft", "int", FLAG, low=1, high=5, default=3, when="spec")
TP = Parameter("tp", "categorical", FLAG, choices=(1, 2, 4, 8), default=1)
PP = Parameter("pp", "int", FLAG, ladder=(1, 2, 4), default=1)
DP = Parameter("dp", "int", FLAG, low=1, derived="devices / (tp * pp)")
ALL = Space(
    (SEQS, TOKENS, MEMORY, DTYPE, SPEC, DRAFT, TP, PP, DP),
    (Constraint("tokens >= seqs * 8", repair="tokens"), Constraint("tp * pp <= devices")),
    {"devices": 8},
)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_conditions_and_what_is_derived():
    whole = ALL.complete({"seqs": 64, "tokens": 8192, "memory": 0.9, "dtype": "fp8", "spec": False, "draft": 2, "tp": 2, "pp": 2})
    assert "draft" not in whole
    assert whole["dp"] == 2
    assert isinstance(whole["dp"], int)
    assert ALL.legal(whole) is None
    assert "draft" in ALL.active({**whole, "spec": True})
    assert "draft" not in ALL.active(whole)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"seqs": 2047, "tokens": 1024}, "tokens >= seqs * 8 is false with seqs = 2047, tokens = 1024"),
        ({"seqs": 9}, "outside its range"),
        ({"dtype": "fp4"}, "outside its range"),
        ({"memory": 1}, "outside its range"),
        ({"draft": 2}, "where spec is false"),
        ({"spec": True}, "draft has no value"),
        ({"tp": 8, "pp": 4, "dp": 1}, "dp is 1"),
        ({"dp": 3}, "dp is 3, where devices / (tp * pp) is 2"),
        ({"other": 1}, "no parameter"),
    ],
)
def test_why_a_configuration_may_not_run(change, why):
    whole = ALL.complete({"seqs": 64, "tokens": 8192, "memory": 0.9, "dtype": "fp8", "spec": False, "tp": 2, "pp": 2})
    assert why in (ALL.legal({**whole, **change}) or "")


def test_a_derived_value_that_is_no_whole_number_is_illegal():
    space = Space((TP, PP, DP), (), {"devices": 6})
    assert "no whole number" in (space.legal(space.complete({"tp": 4, "pp": 1})) or "")
    assert space.legal(space.complete({"tp": 2, "pp": 1})) is None
    zero = Space((number("a", 0, 3), Parameter("b", "float", FLAG, derived="1 / a")), ())
    assert "division by zero" in (zero.legal(zero.complete({"a": 0})) or "")
    assert zero.size() == 3


def test_repair_moves_to_the_nearest_value_and_says_what():
    whole = ALL.complete({"seqs": 1000, "tokens": 1024, "memory": 0.9, "dtype": "fp8", "spec": False, "tp": 2, "pp": 2})
    repaired = ALL.repair(whole)
    assert repaired is not None
    configuration, moved = repaired
    assert moved == ("tokens",)
    assert ALL.legal(configuration) is None
    assert 8000 <= configuration["tokens"] <= 8300
    assert ALL.repair({**whole, "tp": 8, "pp": 4}) is None  # its constraint names nothing to move


def test_a_repair_in_two_steps():
    a = Parameter("a", "categorical", FLAG, choices=(1, 2, 3, 4, 8), default=1)
    b = Parameter("b", "int", FLAG, low=1, high=6, default=1)
    rule = Constraint("16 % (a * b) == 0", repair=("b", "a"))
    fixed = Space((a, b), (rule,))
    assert fixed.repair({"a": 4, "b": 6}) == ({"a": 4, "b": 4}, ("b",))
    assert fixed.repair({"a": 3, "b": 6}) == ({"a": 2, "b": 4}, ("a", "b"))  # no b suffices: both move
    balanced = Space((a, b), (Constraint(rule.expression, rule.repair, alternate=True),))
    moved = [balanced.repair({"a": 8, "b": 4}) for _ in range(2)]
    assert {one[1] for one in moved if one} == {("a",), ("b",)}


def test_repair_brings_values_into_their_ranges():
    configuration, moved = ALL.repair({"seqs": 64.4, "tokens": 9e9, "memory": 3.0, "dtype": "what", "spec": True, "tp": 3, "pp": 1}) or (
        {},
        (),
    )
    assert ALL.legal(configuration) is None
    assert configuration["seqs"] == 64
    assert configuration["tokens"] == 65536
    assert configuration["memory"] == 0.97
    assert configuration["dtype"] == "auto"
    assert configuration["draft"] == 3
    assert set(moved) == {"seqs", "tokens", "memory", "dtype", "tp"}


@pytest.mark.parametrize("seed", range(5))
def test_candidates_are_legal_and_none_comes_twice(seed):
    near = [ALL.default()]
    found = ALL.candidates(rng(seed), 300, near)
    assert len(found) == 300
    assert all(ALL.legal(one) is None for one in found)
    assert len({ALL.key(one) for one in found}) == 300
    changed = [sum(one.get(name) != near[0].get(name) for name in ALL.searched) for one in found]
    assert sum(count <= 2 for count in changed) >= 40  # the neighbourhood is there
    assert max(changed) >= 5  # and the rest of the space


def test_candidates_are_the_same_for_the_same_seed():
    assert ALL.candidates(rng(3), 50, [ALL.default()]) == ALL.candidates(rng(3), 50, [ALL.default()])


def test_all_of_a_small_space():
    small = Space((TP, PP, DP, SPEC, DRAFT), (Constraint("tp * pp <= devices"),), {"devices": 8})
    # tp, pp: (1,1) (1,2) (1,4) (2,1) (2,2) (2,4) (4,1) (4,2) (8,1); without a draft, or with 1 to 5
    assert small.size() == 9 * 6
    assert len(list(small.enumerate())) == 54
    found = small.candidates(rng(), 1000)
    assert len(found) == 54
    assert len(small.candidates(rng(), 20)) == 20


def test_an_infinite_space_has_no_size():
    assert ALL.size() is None
    with pytest.raises(ValueError, match="draw"):
        ALL.enumerate()


def test_where_few_draws_are_legal_constraints_are_repaired():
    a, b = number("a", 1, 4000), number("b", 1, 4000)
    scarce = Space((a, b), (Constraint("a + b == 4000", repair="b"),))
    found = scarce.candidates(rng(), 64)
    assert len(found) >= 40
    assert all(one["a"] + one["b"] == 4000 for one in found)
    assert scarce.counts.repaired >= 40
    assert scarce.counts.rejected > 64


def test_encoding():
    space = Space((SEQS, DTYPE, SPEC, DRAFT, TP, number("fixed", 4, 4), number("unset", 0, 10, default=None)))
    assert space.columns == ("seqs", "dtype", "dtype", "dtype", "spec", "draft", "draft?", "tp", "unset", "unset?")
    low = space.complete({"seqs": 16, "dtype": "auto", "spec": False, "tp": 1, "unset": 0})
    high = space.complete({"seqs": 2048, "dtype": "int8", "spec": True, "draft": 5, "tp": 8, "unset": 10})
    middle = {**space.default(), "seqs": 181, "tp": 2}
    np.testing.assert_allclose(space.encode([low, high]), [[0, 1, 0, 0, 0, 0.5, 0, 0, 0, 1], [1, 0, 0, 1, 1, 1, 1, 1, 1, 1]])
    encoded = space.encode([middle])[0]
    assert encoded[0] == pytest.approx(0.5, abs=0.001)  # the middle of a logarithmic range
    assert encoded[7] == pytest.approx(1 / 3)  # the second of four
    assert list(encoded[8:]) == [0.5, 0]
    assert space.legal(space.default()) is None  # "unset" is left to the engine
    assert space.encode([]).shape == (0, 10)


def test_the_default_is_legal_outside_its_range():
    space = Space((number("a", 10, 20, default=64), TP))
    assert space.default() == {"a": 64, "tp": 1}
    assert space.legal(space.default()) is None
    assert space.encode([space.default()])[0][0] == 1


def test_keys():
    assert ALL.key({"b": 1.0, "a": "x"}) == ALL.key({"a": "x", "b": 1})
    assert ALL.key({"a": 1}) != ALL.key({"a": "1"})
    assert ALL.key({"a": True}) != ALL.key({"a": 1})


def test_uniform_places_give_each_value_its_share():
    space = Space((number("a", 1, 4), number("b", 1, 1024, log=True), TP))
    drawn = [space.from_unit(position) for position in rng(1).random((8000, 3))]
    for value in (1, 2, 3, 4):
        assert sum(one["a"] == value for one in drawn) == pytest.approx(2000, rel=0.1)
        assert sum(one["tp"] == 2 ** (value - 1) for one in drawn) == pytest.approx(2000, rel=0.1)
    assert sum(one["b"] <= 32 for one in drawn) == pytest.approx(4400, rel=0.1)  # half the decades, and half of one's own share


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=8, max_size=8))
def test_places_and_values_agree(position):
    drawn = ALL.from_unit(position)
    again = ALL.from_unit(ALL.to_unit(drawn)[:8])
    for name in ("dtype", "spec"):
        assert again[name] == drawn[name]
    assert again["memory"] == pytest.approx(drawn["memory"], abs=1e-3)
    assert again["seqs"] == pytest.approx(drawn["seqs"], abs=1, rel=0.03)
    repaired = ALL.repair(drawn)
    if repaired is not None:
        assert ALL.legal(repaired[0]) is None


@pytest.mark.parametrize(
    ("parameters", "constraints", "place", "why"),
    [
        ([number("a", 5, 2)], [], ("parameter", 0, "low"), "above high"),
        ([number("a-b")], [], ("parameter", 0, "name"), "letters"),
        ([number("a"), number("a")], [], ("parameter", 0, "name"), "taken"),
        ([number("a", 0, 5, log=True)], [], ("parameter", 0, "log"), "above 0"),
        ([number("a", 1.5, 5)], [], ("parameter", 0, "low"), "whole"),
        ([number("a", when="a > 1")], [], ("parameter", 0, "when"), "itself"),
        ([number("a", when="b > 1"), number("b", when="a > 1")], [], ("parameter", 0, "when"), "itself"),
        ([number("a", when="c > 1")], [], ("parameter", 0, "when"), "c is no parameter"),
        ([number("a")], [Constraint("a >")], ("constraint", 0, "expression"), "invalid syntax"),
        ([number("a")], [Constraint("a > 1", repair="b")], ("constraint", 0, "repair"), "searched: a"),
        ([Parameter("a", "categorical", FLAG)], [], ("parameter", 0, "choices"), "give the values"),
        ([Parameter("a", "bool", FLAG, default=1)], [], ("parameter", 0, "default"), "false or true"),
        ([Parameter("a", "int", FLAG, ladder=(4, 2))], [], ("parameter", 0, "ladder"), "ascending"),
        ([Parameter("a", "int", FLAG, low=1)], [], ("parameter", 0, "high"), "low and high"),
        ([Parameter("a", "int", FLAG, low=1, high=2, choices=(1,))], [], ("parameter", 0, "choices"), "leave choices out"),
    ],
)
def test_what_is_no_space(parameters, constraints, place, why):
    with pytest.raises(SpecError, match=why) as refused:
        Space(parameters, constraints)
    assert refused.value.place == place


@pytest.mark.parametrize(
    ("parameter", "values"),
    [
        (Parameter("a", "int", FLAG, low=1, high=10, step=4), (1, 5, 9)),
        (Parameter("a", "float", FLAG, low=0.1, high=0.4, step=0.1), (0.1, 0.2, 0.3, 0.4)),
        (Parameter("a", "float", FLAG, ladder=(0.5, 0.9, 0.95)), (0.5, 0.9, 0.95)),
        (Parameter("a", "int", FLAG, ladder=(16, 64)), (16, 64)),
    ],
)
def test_rows(parameter, values):
    space = Space([parameter])
    assert [one["a"] for one in space.enumerate()] == list(values)
    assert [type(one["a"]) for one in space.enumerate()] == [int if parameter.kind == "int" else float] * len(values)
