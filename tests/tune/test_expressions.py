import pytest

from loadcell.tune.expressions import ExpressionError, NotComputable, Unset, parse

VALUES = {"tp": 2, "pp": 4, "devices": 8, "dtype": "fp8", "x": 0.5, "on": True, "zero": 0}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("devices // (tp * pp)", 1),
        ("devices / (tp * pp)", 1.0),
        ("tp * pp <= devices", True),
        ("1 < tp < 3", True),
        ("1 < tp < 2", False),
        ("dtype == 'fp8' and not zero", True),
        ("dtype == 8", False),
        ("dtype != 8", True),
        ("tp in (2, 4) or zero / zero > 1", True),
        ("tp not in [1, 3]", True),
        ("min(tp, pp) + max(tp, pp, 9) - ceil(x) + floor(x) + abs(-1) + round(1.6)", 13),
        ("-tp + +pp", 2),
        ("pp if on else 0", 4),
        ("devices % 3", 2),
        ("True", True),
        ("zero and zero / zero", False),
    ],
)
def test_values(text, value):
    assert parse(text, VALUES).value(VALUES) == value


@pytest.mark.parametrize(
    ("text", "column", "why"),
    [
        ("tp * ppp", 6, "did you mean pp?"),
        ("tp ** 99999999", 1, "write a product"),
        ("__import__('os').system('x')", 1, "a dot after a name"),
        ("().__class__", 1, "a dot after a name"),
        ("open('x')", 1, "open(...) is no function"),
        ("tp[0]", 1, "[...] is not known"),
        ("(lambda: 1)()", 1, "is no function"),
        ("[tp for tp in (1, 2)]", 1, "only numbers"),
        ("tp & pp", 1, "write `and`"),
        ("tp is pp", 7, "write == or !="),
        ("tp in pp", 7, "a list is expected"),
        ("max(tp)", 1, "two values or more"),
        ("floor(tp, pp)", 1, "one value"),
        ("f'{tp}'", 1, "only numbers"),
        ("tp = 2", 4, "write == to compare"),
        ("tp + ", None, "invalid syntax"),
        ("", 1, "an expression is expected"),
        ("1j", 1, "only numbers"),
        ("min(tp, key=pp)", 1, "is no function"),
        ("(y := 3)", 2, "only numbers"),
    ],
)
def test_refusals_show_the_place(text, column, why):
    with pytest.raises(ExpressionError) as refused:
        parse(text, VALUES)
    assert why in str(refused.value)
    if column is not None:
        assert f"column {column}:" in str(refused.value)


def test_a_bomb_is_refused():
    with pytest.raises(ExpressionError):
        parse("(" * 400 + "1" + ")" * 400)
    with pytest.raises(ExpressionError, match="at most"):
        parse("1+" * 600 + "1")


@pytest.mark.parametrize("text", ["tp / zero", "dtype * 3", "dtype < 3", "-dtype", "1e308 * 1e308 * tp", "max(dtype, 1)"])
def test_no_value(text):
    with pytest.raises(NotComputable):
        parse(text).value(VALUES)


def test_a_missing_parameter_is_told_only_where_it_is_needed():
    assert parse("on or gone > 1").value(VALUES) is True
    with pytest.raises(Unset, match="gone"):
        parse("not on or gone > 1").value(VALUES)
    assert parse("tp + gone").names == {"tp", "gone"}
