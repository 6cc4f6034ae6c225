"""Conditions on the columns of a table, which are parsed once and computed by PyArrow for whole columns.

    100 <= status < 600 and host is not null        level in ['error', 'fatal'] or matches(message, 'panic')

in: a condition, columns      out: a mask of the rows for which it is true

The syntax is a small part of Python's expressions, with ``null`` for a missing value.  Nothing of a condition is run as
a program: its syntax tree is translated.  A condition that compares a missing value is not true, as in SQL.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache, reduce
from typing import Any

import attrs
import pyarrow as pa
from pyarrow import compute

from fyrehose.options import suggestion

#: The longest condition, in characters.
LONGEST = 4096

_COMPARISONS: dict[type[ast.cmpop], Callable[..., Any]] = {
    ast.Eq: compute.equal,
    ast.NotEq: compute.not_equal,
    ast.Lt: compute.less,
    ast.LtE: compute.less_equal,
    ast.Gt: compute.greater,
    ast.GtE: compute.greater_equal,
}
#: The functions of conditions, and how many texts follow the column in their arguments.
_FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "length": (compute.utf8_length, 0),
    "lower": (compute.utf8_lower, 0),
    "matches": (compute.match_substring_regex, 1),
    "contains": (compute.match_substring, 1),
    "starts_with": (compute.starts_with, 1),
}
_SAMPLES = {pa.string(): "", pa.binary(): b"", pa.bool_(): False}
_WORDS = {"null": None, "true": True, "false": False}


@attrs.frozen
class Condition:
    """A condition on columns; can be pickled.

    :ivar text: the condition as the user wrote it
    """

    text: str

    def check(self, types: Mapping[str, pa.DataType]) -> None:
        """Check that the columns exist, and that their types permit the comparisons of the condition.

        :raises ValueError: the condition does not suit the columns; the error's text says why
        """
        for name in _names(_parsed(self.text)):
            if name not in types:
                raise ValueError(f"there is no column {name!r}{_instead(name, types)}")
        try:
            # Use a row with values, because PyArrow compiles a regular expression only for a value.
            row = {name: pa.array([_SAMPLES.get(kind, 0)], kind) for name, kind in types.items()}
            found = _computed(_parsed(self.text), row)
        except (pa.ArrowException, TypeError) as error:
            raise ValueError(f"{self.text!r} cannot be computed: {str(error).splitlines()[0]}") from error
        if not isinstance(found, pa.Array | pa.ChunkedArray) or found.type != pa.bool_():
            raise ValueError(f"{self.text!r} is not a condition that is true or false")

    def holds(self, columns: Mapping[str, pa.Array]) -> pa.BooleanArray:
        """Return a mask of the rows for which the condition is true."""
        return compute.fill_null(_computed(_parsed(self.text), columns), False)


@cache
def _parsed(text: str) -> ast.expr:
    if len(text) > LONGEST:
        raise ValueError(f"a condition has at most {LONGEST} characters")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        hint = "; compare with == instead of =" if "=" in text and "==" not in text else ""
        raise ValueError(f"{text!r} is not a condition such as status >= 100 and host is not null{hint}") from error


def _instead(name: str, known: Collection[str]) -> str:
    """Return the advice for an unknown name: a similar known name, or all known names."""
    return suggestion(name, known) or f"; there are {', '.join(known)}"


def _name(node: ast.expr) -> str | None:
    """Return the name of a column: ``status``, ``host.name``, or ``column('any name')``; None if it is no column."""
    match node:
        case ast.Name(id=name) if name.lower() not in _WORDS:
            return name
        case ast.Attribute(value=before, attr=name) if (prefix := _name(before)) is not None:
            return f"{prefix}.{name}"
        case ast.Call(func=ast.Name(id="column"), args=[ast.Constant(value=str(name))], keywords=[]):
            return name
    return None


def _constant(node: ast.expr) -> Any:
    """Return the value of a constant.

    :raises ValueError: the expression is no constant
    """
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.Name(id=name) if name.lower() in _WORDS:
            return _WORDS[name.lower()]
        case ast.UnaryOp(op=ast.USub(), operand=operand) if type(value := _constant(operand)) in (int, float):
            return -value
    raise ValueError(f"{ast.unparse(node)!r} is neither a column nor a constant")


def _names(node: ast.expr) -> Iterator[str]:
    """Yield the names of the columns in an expression, in their order."""
    name = _name(node)
    if name is not None:
        yield name
        return
    for child in node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield from _names(child)


def _computed(node: ast.expr, columns: Mapping[str, Any]) -> Any:
    """Return the column that an expression describes, or the value of a constant.

    :raises ValueError: the expression uses syntax that conditions do not have
    """
    name = _name(node)
    if name is not None:
        return columns[name]
    match node:
        case ast.BoolOp(op=op, values=values):
            join = compute.and_kleene if isinstance(op, ast.And) else compute.or_kleene
            return reduce(join, [_computed(each, columns) for each in values])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return compute.invert(_computed(operand, columns))
        case ast.Compare(left=left, ops=ops, comparators=others):
            pairs = zip(ops, [left, *others], others, strict=False)
            return reduce(compute.and_kleene, [_compared(op, one, other, columns) for op, one, other in pairs])
        case ast.Call():
            return _called(node, columns)
    return _constant(node)


def _compared(op: ast.cmpop, left: ast.expr, right: ast.expr, columns: Mapping[str, Any]) -> Any:
    if isinstance(op, ast.Is | ast.IsNot):
        negated = isinstance(op, ast.IsNot)
        if isinstance(right, ast.UnaryOp) and isinstance(right.op, ast.Not):
            negated, right = True, right.operand
        if _constant(right) is not None:
            raise ValueError("'is' compares with null only; use ==")
        return (compute.is_valid if negated else compute.is_null)(_computed(left, columns))
    if isinstance(op, ast.In | ast.NotIn):
        if not isinstance(right, ast.List | ast.Tuple | ast.Set):
            raise ValueError(f"expected a list behind 'in', such as ['a', 'b'], not {ast.unparse(right)!r}")
        value = _computed(left, columns)
        found = compute.is_in(value, pa.array([_constant(each) for each in right.elts]).cast(value.type))
        there = compute.is_valid(value)
        return compute.and_(compute.invert(found) if isinstance(op, ast.NotIn) else found, there)
    known = _COMPARISONS.get(type(op))
    if known is None:
        raise ValueError("conditions have the comparisons == != < <= > >= in, is null, is not null")
    one, other = _computed(left, columns), _computed(right, columns)
    return known(_alike(one, other), _alike(other, one))


def _alike(value: Any, other: Any) -> Any:
    """Return a constant as a value of the column's type, so that both can be compared: a text becomes a time."""
    if isinstance(value, str) and isinstance(other, pa.Array | pa.ChunkedArray) and not pa.types.is_string(other.type):
        if not pa.types.is_timestamp(other.type):
            return pa.scalar(value).cast(other.type)
        when = datetime.fromisoformat(value)
        return pa.scalar(when if when.tzinfo else when.replace(tzinfo=UTC), other.type)
    return pa.scalar(value) if not isinstance(value, pa.Array | pa.ChunkedArray) else value


def _called(node: ast.Call, columns: Mapping[str, Any]) -> Any:
    name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
    if name == "column":
        raise ValueError("column takes the name of a column as a text, such as column('any name')")
    if name not in _FUNCTIONS:
        raise ValueError(f"there is no function {name!r}{_instead(name, [*_FUNCTIONS, 'column'])}")
    function, texts = _FUNCTIONS[name]
    if node.keywords or len(node.args) != 1 + texts:
        raise ValueError(f"{name} takes a column{' and a text' if texts else ''}")
    words = [_constant(each) for each in node.args[1:]]
    if not all(isinstance(word, str) for word in words):
        raise ValueError(f"{name} takes a column and a text")
    return function(_computed(node.args[0], columns), *words)
