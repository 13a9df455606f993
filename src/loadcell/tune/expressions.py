"""A text such as `devices // (tp * pp)` -> a function of parameters' values. Pure; nothing but arithmetic can happen.

The text is parsed by Python's own parser, and every node of its tree must be one of those below: numbers, texts, names of parameters,
+ - * / // %, comparisons (also `in (16, 32)`), and / or / not, `a if b else c`, and the functions of `FUNCTIONS`. No attribute, no index, no
power (a short text could ask for hours), no call of anything else. It becomes closures, and Python's `eval` is never reached.
"""

import ast
import math
import operator
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any, Final

from loadcell.errors import UserError
from loadcell.tune.parameters import Value

Values = Mapping[str, Value]
_Term = Callable[[Values], Any]
_LONGEST: Final = 1000
FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "min": min,
    "max": max,
    "ceil": math.ceil,
    "floor": math.floor,
    "abs": abs,
    "round": round,
}
_ARITHMETIC: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip
_ORDER: Final[dict[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_NOT_HERE: Final[dict[type[ast.AST], str]] = {
    ast.Pow: "** is not known here: write a product",
    ast.Attribute: "a dot after a name leads nowhere here: use names of parameters",
    ast.Subscript: "[...] is not known here: use names of parameters",
    ast.BitAnd: "& is not known here: write `and`",
    ast.BitOr: "| is not known here: write `or`",
    ast.Invert: "~ is not known here: write `not`",
}


class ExpressionError(UserError):
    """The text cannot be used. Says the column, from 1, and shows the place."""


class NotComputable(Exception):  # the caller says what follows from it
    """With these values the expression has no value: a division by zero, a text where a number is needed."""


class Unset(Exception):
    """The expression needs a parameter that has no value here: it is inactive, or left to the engine."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Expression:
    """`names`: the parameters that it speaks of. Equal texts are equal expressions."""

    def __init__(self, text: str, names: frozenset[str], term: _Term) -> None:
        self.text, self.names, self._term = text, names, term

    def value(self, values: Values) -> Value:
        """Raises NotComputable, or Unset where a value that it needs is missing; what `and`, `or` and `if` pass by is not needed."""
        try:
            out: Value = self._term(values)
        except ZeroDivisionError:
            raise NotComputable("a division by zero") from None
        except (OverflowError, ValueError) as error:
            raise NotComputable(str(error)) from None
        if isinstance(out, float) and not math.isfinite(out):
            raise NotComputable("not a finite number")
        return out

    def holds(self, values: Values) -> bool:
        return bool(self.value(values))

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def parse(text: str, known: Collection[str] | None = None) -> Expression:
    """`known`: the names that it may use; null: any. Raises ExpressionError naming the place in the text and what to write instead."""
    if len(text) > _LONGEST:
        raise ExpressionError(f"an expression of {len(text)} characters: at most {_LONGEST}")
    stripped = text.strip()
    try:
        tree = ast.parse(stripped, mode="eval")
    except SyntaxError as error:
        at = (error.offset or len(stripped) + 1) - 1
        raise _wrong(stripped, at, _said(error, stripped[at : at + 2])) from None
    except (ValueError, RecursionError, MemoryError):
        raise ExpressionError(f"{text!r}: not an expression") from None
    reader = _Reader(stripped, known)
    try:
        term = reader.term(tree.body)
    except RecursionError:
        raise ExpressionError(f"{text!r}: too deeply nested") from None
    return Expression(stripped, frozenset(reader.names), term)


def _said(error: SyntaxError, here: str) -> str:
    if not (error.text or "").strip():
        return "an expression is expected, such as tp * pp <= devices"
    return "write == to compare" if here.startswith("=") or "maybe you meant '=='" in error.msg else error.msg


def _wrong(text: str, at: int, why: str) -> ExpressionError:
    at = max(0, min(at, len(text)))
    return ExpressionError(f"{text[:at]} ⟨here⟩ {text[at:]}".strip() + f", column {at + 1}: {why}")


class _Reader:
    """Nodes -> closures. `names` collects what is spoken of."""

    def __init__(self, text: str, known: Collection[str] | None) -> None:
        self._text, self._known = text, known
        self.names: set[str] = set()

    def term(self, node: ast.expr) -> _Term:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as constant):
                return lambda _: constant
            case ast.Name(id=name):
                return self._name(name, node)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self.term(operand)
                return lambda values: not inner(values)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                inner, factor = self.term(operand), -1 if isinstance(sign, ast.USub) else 1
                return lambda values: factor * _number(inner(values))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                first, act, second = self.term(left), _ARITHMETIC[type(op)], self.term(right)
                return lambda values: act(_number(first(values)), _number(second(values)))
            case ast.BoolOp(op=op, values=parts):
                terms, every = [self.term(part) for part in parts], isinstance(op, ast.And)
                if every:
                    return lambda values: all(term(values) for term in terms)
                return lambda values: any(term(values) for term in terms)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                when, then, instead = self.term(test), self.term(body), self.term(orelse)
                return lambda values: then(values) if when(values) else instead(values)
            case ast.Compare():
                return self._comparison(node)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
                return self._call(name, args, node)
        raise self._refusal(node)

    def _name(self, name: str, node: ast.expr) -> _Term:
        if self._known is not None and name not in self._known:
            near = get_close_matches(name, [*self._known, *FUNCTIONS], n=1)
            instead = f"did you mean {near[0]}?" if near else f"known are {', '.join(self._known) or 'none'}"
            raise _wrong(self._text, self._at(node), f"{name} is no parameter: {instead}")
        self.names.add(name)

        def look_up(values: Values) -> Value:
            try:
                return values[name]
            except KeyError:
                raise Unset(name) from None

        return look_up

    def _comparison(self, node: ast.Compare) -> _Term:
        pairs: list[Callable[[Values, Any], tuple[bool, Any]]] = []
        for op, right in zip(node.ops, node.comparators, strict=True):
            pairs.append(self._pair(op, right))
        first = self.term(node.left)

        def compare(values: Values) -> bool:
            here = first(values)
            for pair in pairs:
                true, here = pair(values, here)
                if not true:
                    return False
            return True

        return compare

    def _pair(self, op: ast.cmpop, right: ast.expr) -> Callable[[Values, Any], tuple[bool, Any]]:
        """One comparison of a chain: (values, what stands left) -> (holds, what stands right)."""
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(right, ast.Tuple | ast.List):
                raise _wrong(self._text, self._at(right), "after `in` a list is expected, such as (16, 32)")
            among, inside = [self.term(item) for item in right.elts], isinstance(op, ast.In)
            return lambda values, left: (any(_same(left, item(values)) for item in among) is inside, left)
        if isinstance(op, ast.Eq | ast.NotEq):
            other, alike = self.term(right), isinstance(op, ast.Eq)

            def equal(values: Values, left: Any) -> tuple[bool, Any]:
                value = other(values)
                return _same(left, value) is alike, value

            return equal
        if type(op) not in _ORDER:
            raise _wrong(self._text, self._at(right), "write == or != to compare")
        second, act = self.term(right), _ORDER[type(op)]

        def ordered(values: Values, left: Any) -> tuple[bool, Any]:
            value = second(values)
            return act(_number(left), _number(value)), value

        return ordered

    def _call(self, name: str, args: list[ast.expr], node: ast.expr) -> _Term:
        terms, act = [self.term(arg) for arg in args], FUNCTIONS[name]
        several = name in ("min", "max")
        if len(terms) < 2 if several else len(terms) != 1:
            raise _wrong(self._text, self._at(node), f"{name} takes {'two values or more' if several else 'one value'}")
        return lambda values: act(*(_number(term(values)) for term in terms))

    def _refusal(self, node: ast.expr) -> ExpressionError:
        kind: type[ast.AST] = type(node.op) if isinstance(node, ast.BinOp | ast.UnaryOp) else type(node)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute | ast.Subscript):
                return self._refusal(node.func)
            called = node.func.id if isinstance(node.func, ast.Name) else "this"
            why = f"{called}(...) is no function here: there are {', '.join(FUNCTIONS)}"
        else:
            why = _NOT_HERE.get(kind, "only numbers, texts, names of parameters, arithmetic, comparisons, and / or / not are known here")
        return _wrong(self._text, self._at(node), why)

    def _at(self, node: ast.expr) -> int:
        """The column in characters; the parser counts bytes, and lines."""
        lines = self._text.split("\n")
        before = lines[node.lineno - 1].encode()[: node.col_offset].decode(errors="replace")
        return sum(len(line) + 1 for line in lines[: node.lineno - 1]) + len(before)


def _number(value: Any) -> Any:
    if isinstance(value, str):
        raise NotComputable(f"{value!r} is a text where a number is needed")
    return value


def _same(left: Any, right: Any) -> bool:
    """`"16" == 16` is no: a text equals texts only."""
    return isinstance(left, str) is isinstance(right, str) and bool(left == right)
