"""Say in words which parts of two tuples differ that an assertion compares, by how its source names them.

assert (box.size, box.open) == (3, True)        ->        box.size is 2, expected 3
"""

from __future__ import annotations

import ast
import linecache
from types import FrameType


def differences(left: object, right: object, frame: FrameType | None) -> list[str]:
    """Return the parts that differ of an assertion which is executed in *frame* or in one of its callers.

    :return: nothing if *left* and *right* are no tuples of the same length, or if its source names no parts
    """
    if not (isinstance(left, tuple) and isinstance(right, tuple) and len(left) == len(right)):
        return []
    while frame is not None:
        asserted = _assertion(frame.f_code.co_filename, frame.f_lineno)
        if asserted is not None:
            compared = asserted.test.left if isinstance(asserted.test, ast.Compare) else None
            names = compared.elts if isinstance(compared, ast.Tuple) else []
            if len(names) != len(left) or any(isinstance(each, ast.Starred) for each in names):
                return []
            parts = zip(map(ast.unparse, names), left, right, strict=True)
            return [f"{name} is {found!r}, expected {wanted!r}" for name, found, wanted in parts if found != wanted]
        frame = frame.f_back
    return []


def _assertion(file: str, line: int) -> ast.Assert | None:
    """Return the assertion that begins at *line* of a file; None if there is none."""
    tree = ast.parse("".join(linecache.getlines(file)) if "assert" in linecache.getline(file, line) else "")
    return next((node for node in ast.walk(tree) if isinstance(node, ast.Assert) and node.lineno == line), None)
