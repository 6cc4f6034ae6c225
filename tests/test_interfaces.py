"""No code looks up attributes that an interface does not declare: optional abilities are interfaces of their own."""

from __future__ import annotations

import ast
from pathlib import Path

import fyrehose

PACKAGE = Path(fyrehose.__file__).parent
#: The modules that look up names only known at run time, and why this bypasses no interface.
ALLOWED = {
    "imports.py": "the names of a package are looked up in the module that defines them",
    "spark/columns.py": "a batch has a method for each column, and each kind of record its values, named after it",
    "spark/failures.py": "a worker of Spark sends the name of an error, which stands in fyrehose.errors",
    "allocator.py": "the C library is no object of Python: it has a function or has not",
}
ASKING = {"getattr", "hasattr", "__getattr__", "__getattribute__"}


def asking(source: str) -> list[str]:
    """Return the calls in *source* that look up an attribute which the object may not have."""
    if not any(name in source for name in ASKING):
        return []
    nodes = list(ast.walk(ast.parse(source)))
    return [
        ast.unparse(node)
        for node in nodes
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id in ASKING)
            or (isinstance(node.func, ast.Attribute) and node.func.attr in ASKING)
        )
    ] + [f"def {node.name}" for node in nodes if isinstance(node, ast.FunctionDef) and node.name in ASKING]


def test_lookups_of_attributes_are_found() -> None:
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


#: The only module that may use private names of Twisted; and names without an underscore that are private, too.
PRIVATE = "net/twisted_private.py"
UNPROMISED = {"dataBuffer", "numberAccepts", "SEND_LIMIT"}
#: Private names of other packages that may be used, and why.
FOREIGN = {
    "_current_frames": "sys._current_frames is documented: it returns the frame that each thread executes",
}


def nodes_of(source: str) -> list[ast.AST]:
    """Return all nodes of the syntax tree of *source*."""
    return list(ast.walk(ast.parse(source)))


def attributes(nodes: list[ast.AST]) -> set[str]:
    """Return the names of all attributes that *nodes* use, and the names that they import."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("twisted"):
            found |= {name.name for name in node.names} | set((node.module or "").split("."))
    return found


def own_names(nodes: list[ast.AST]) -> set[str]:
    """Return the names that *nodes* define: functions, classes, fields, and attributes of ``self``."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)  # __slots__
    return found


def private(names: set[str]) -> set[str]:
    return {name for name in names if name.startswith("_") and not name.startswith("__")} | names & UNPROMISED


def test_private_names_are_found() -> None:
    assert private(attributes(nodes_of("from twisted.internet._x import _y\na._z = b.dataBuffer"))) == {
        "_x",
        "_y",
        "_z",
        "dataBuffer",
    }
    assert own_names(nodes_of("class A:\n    b = 1\n    def c(self): self._d = e.f = 1")) == {"A", "b", "c", "_d"}


def test_private_names_of_twisted_are_used_in_one_module() -> None:
    """A private name that Fyrehose defines somewhere counts as its own everywhere, so not every use is found."""
    own, foreign = set[str](), {}
    for path in PACKAGE.rglob("*.py"):
        nodes = nodes_of(path.read_text(encoding="utf-8"))  # the trees of all files are large, so they are not kept
        own |= own_names(nodes)
        foreign[path.relative_to(PACKAGE).as_posix()] = private(attributes(nodes))
    foreign = {path: names - (own - UNPROMISED) for path, names in foreign.items()}
    used = foreign.pop(PRIVATE)
    assert {"_writeDisconnected", "dataBuffer"} <= used
    assert {path: names - set(FOREIGN) for path, names in foreign.items() if names - set(FOREIGN)} == {}
    assert set().union(*foreign.values()) == set(FOREIGN), "an exception that nothing needs any more is removed"
