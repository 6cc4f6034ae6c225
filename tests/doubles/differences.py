"""Say in words which parts of two tuples, or of two lists of booleans, differ that an assertion compares.

assert (box.size, box.open) == (3, True)        ->        box.size is 2, expected 3
assert durable(first, second) == [True, True]   ->        durable(first, second)[1] is False, expected True
"""

from __future__ import annotations

import ast
import linecache
from types import FrameType


def differences(left: object, right: object, frame: FrameType | None) -> list[str]:
    """Return the parts that differ of an assertion which is executed in *frame* or in one of its callers.

    :return: nothing if *left* and *right* have no such parts, or if the source of the assertion does not name them
    """
    booleans = isinstance(left, list) and isinstance(right, list) and all(type(part) is bool for part in left + right)
    tuples = isinstance(left, tuple) and isinstance(right, tuple)
    if not (booleans or tuples) or len(left) != len(right):  # type: ignore[arg-type]
        return []
    while frame is not None:
        asserted = _assertion(frame.f_code.co_filename, frame.f_lineno)
        if asserted is not None:
            compared = asserted.test.left if isinstance(asserted.test, ast.Compare) else None
            parts = zip(_names(compared, len(left), booleans), left, right, strict=False)  # type: ignore[arg-type,call-overload]
            return [f"{name} is {found!r}, expected {wanted!r}" for name, found, wanted in parts if found != wanted]
        frame = frame.f_back
    return []


def _names(compared: ast.expr | None, count: int, booleans: bool) -> list[str]:
    """Return how the source of the left side names its parts; nothing if it does not.

    :param booleans: whether the parts say nothing themselves, so that their places are better than no names
    """
    match compared:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            starred = any(isinstance(each, ast.Starred) for each in parts)
            return [] if starred or len(parts) != count else [ast.unparse(each) for each in parts]
        case ast.ListComp(elt=part, generators=[ast.comprehension(target=each, iter=values, ifs=[])]):
            of = values.elts if isinstance(values, ast.Tuple | ast.List) and len(values.elts) == count else None
            where = [f"[{at}] of {ast.unparse(values)}" for at in range(count)] if of is None else map(ast.unparse, of)
            return [f"{ast.unparse(part)}, where {ast.unparse(each)} is {which}," for which in where]
        case ast.Call() | ast.Name() | ast.Attribute() if booleans:
            return [f"{ast.unparse(compared)}[{at}]" for at in range(count)]
    return []


def _assertion(file: str, line: int) -> ast.Assert | None:
    """Return the assertion that begins at *line* of a file; None if there is none."""
    tree = ast.parse("".join(linecache.getlines(file)) if "assert" in linecache.getline(file, line) else "")
    return next((node for node in ast.walk(tree) if isinstance(node, ast.Assert) and node.lineno == line), None)
