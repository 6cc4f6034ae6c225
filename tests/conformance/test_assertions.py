"""Every test asserts something, or calls a helper in its file, or in the conftest.py beside it, that does."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
#: Functions of pytest and of Twisted's TestCase that assert.
ASSERTING = {"raises", "fail", "warns", "failureResultOf", "successResultOf"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> list[Function]:
    """Return the functions and methods of *tree*."""
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def called(function: Function) -> set[str]:
    """Return the last part of the names that *function* calls."""
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return {node.attr if isinstance(node, ast.Attribute) else ast.unparse(node) for node in calls}


def asserts(function: Function) -> bool:
    """Return whether *function* itself asserts something."""
    found = called(function)
    return (
        any(isinstance(node, ast.Assert) for node in ast.walk(function))
        or bool(found & ASSERTING)
        or any(name.startswith("assert") for name in found)
    )


def without_assertion(source: str, shared: str = "") -> list[str]:
    """Return the names of the tests in *source* that assert nothing, and call no function that does.

    :param shared: the source of functions that tests of the folder share
    """
    found = functions(ast.parse(source))
    others = [each for each in [*found, *functions(ast.parse(shared))] if not each.name.startswith("test_")]
    helpers = {each.name for each in others if asserts(each)}
    tests = [each for each in found if each.name.startswith("test_")]
    return [each.name for each in tests if not asserts(each) and not called(each) & helpers]


def test_every_test_asserts() -> None:
    found = {}
    for path in TESTS.rglob("test_*.py"):
        shared = path.with_name("conftest.py")
        helpers = shared.read_text(encoding="utf-8") if shared.exists() else ""
        if names := without_assertion(path.read_text(encoding="utf-8"), helpers):
            found[path.name] = names
    # The test of the page runs scenarios, which are functions of embedding_page.py that assert.
    assert found == {"test_embedding_page.py": ["test_each_program_of_the_page_runs_as_the_page_says"]}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def test_a(): pass", ["test_a"]),
        ("def test_a():\n assert x", []),
        ("def test_a():\n with pytest.raises(ValueError): f()", []),
        ("def test_a():\n check(1)\ndef check(x):\n assert x", []),
        ("def test_a():\n check(1)\ndef check(x):\n pass", ["test_a"]),
        ("class TestA:\n async def test_a(self):\n  self.failureResultOf(d)", []),
        ("class TestA:\n def test_a(self):\n  self.run()", ["test_a"]),
    ],
)
def test_tests_without_assertion_are_found(source: str, found: list[str]) -> None:
    assert without_assertion(source) == found
