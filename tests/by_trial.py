"""The tests that need no fixture and are not slow, under Twisted's own runner: ``trial tests/by_trial.py``.

Trial is stricter in its own way: an error that is logged, a selectable that is left, a failure that nobody took.  It
finds here each test function without arguments as a method of a case that is named after its module.
"""

from __future__ import annotations

import inspect
import sys
import unittest
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

HERE = Path(__file__).parent
#: Real sockets and processes are pytest's; so is what depends on its plugins and its messages. Spark's side does not
#: use Twisted, nor do the tests of imports and names, which read files and take a third of the time.
ELSEWHERE = {"live", "spark", "test_interfaces.py", "test_layers.py", "test_imports.py", "test_differences.py"}


def load(path: Path) -> ModuleType:
    """Return the test module at ``path``, under a name of its own as pytest gives it."""
    name = ".".join(["tests", *path.relative_to(HERE).with_suffix("").parts])
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def functions(module: ModuleType) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The tests of ``module`` that pytest would call without arguments and without marks; no search by Hypothesis."""
    for name, value in vars(module).items():
        if not (name.startswith("test_") and inspect.isfunction(value)):
            continue
        plain = not getattr(value, "pytestmark", None) and not getattr(value, "is_hypothesis_test", False)
        if plain and not inspect.signature(value).parameters:
            yield name, value


def testSuite() -> unittest.TestSuite:
    """Return what trial runs."""
    suite = unittest.TestSuite()
    for path in sorted(HERE.rglob("test_*.py")):
        where = path.relative_to(HERE)
        if {where.parts[0], where.name} & ELSEWHERE or "autouse=True" in path.read_text():
            continue
        found = dict(functions(load(path)))
        if found:
            methods = {name: _method(function) for name, function in found.items()}
            case = type(path.stem, (SynchronousTestCase,), methods)
            suite.addTests(case(name) for name in found)
    assert suite.countTestCases(), "no test without a fixture was found"
    return suite


def _method(function: Callable[[], Any]) -> Callable[[SynchronousTestCase], None]:
    def method(self: SynchronousTestCase) -> None:
        function()

    return method
