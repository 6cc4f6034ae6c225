"""No code asks an object for more than its interface has: what only some can do is an interface of its own."""

from __future__ import annotations

import ast
from pathlib import Path

import fyrehose

PACKAGE = Path(fyrehose.__file__).parent
#: Where a name that is only known at run time is looked up, and why that goes past no interface.
ALLOWED = {
    "lazy.py": "the names of a package are looked up in the module that defines them",
    "broker/policy.py": "a rule has a field for each action, named after it",
    "spark/columns.py": "a batch has a method for each column, and each kind of record its values, named after it",
    "spark/showing.py": "a worker of Spark sends the name of an error, which stands in fyrehose.errors",
    "spark/memory.py": "the C library is no object of Python: it has a function or has not",
}
ASKING = {"getattr", "hasattr", "__getattr__", "__getattribute__"}


def asking(source: str) -> list[str]:
    """Return the calls in *source* that look up an attribute which the object may not have."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id in ASKING)
            or (isinstance(node.func, ast.Attribute) and node.func.attr in ASKING)
        )
    ] + [
        f"def {node.name}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name in ASKING
    ]


def test_lookups_are_found() -> None:
    assert asking("def f(a):\n    return getattr(a, 'b', None) or hasattr(a, 'c') or a.__getattribute__('d')") == [
        "getattr(a, 'b', None)",
        "hasattr(a, 'c')",
        "a.__getattribute__('d')",
    ]
    assert asking("class A:\n    def __getattr__(self, name): ...") == ["def __getattr__"]
    assert asking("a.b") == []


def test_nothing_is_looked_up_past_an_interface() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): calls
        for path in PACKAGE.rglob("*.py")
        if (calls := asking(path.read_text(encoding="utf-8")))
    }
    assert {path: calls for path, calls in found.items() if path not in ALLOWED} == {}
    assert sorted(found) == sorted(ALLOWED), "an exception that nothing needs any more is removed"
