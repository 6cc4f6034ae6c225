"""Mutants are generated of every kind, and the runner tells those that a test notices from those that none does."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
mutations = import_module("mutations")

MODULE = '''
"""A module to mutate."""

import attrs

MOST = 8


class Box:
    """Holds a few things.  1 is not a number here."""

    def __init__(self) -> None:
        self.held: list[int] = []

    def add(self, thing: int) -> None:
        """Add a thing, if there is room for it and it is not 0."""
        log.info("adding {thing}, the {n}th", thing=thing, n=len(self.held) + 1)
        if len(self.held) >= MOST or thing == 0:
            raise ValueError(f"no room behind {MOST - 1}")
        self.held.append(thing)

    def least(self, start: int) -> int:
        try:
            return min(self.held[start:]) + 1
        except ValueError:
            return 0

    def full(self) -> bool:
        return len(self.held) == MOST

    def __repr__(self) -> str:
        return f"<Box of {len(self.held) + 1}>"
'''


def made(source: str) -> list[tuple[str, str, str]]:
    return [(mutant.kind, mutant.old, mutant.new) for mutant in mutations.mutations("module.py", source)]


def test_mutants_of_every_kind_are_made() -> None:
    found = made(MODULE)
    assert {kind for kind, _, _ in found} >= set(mutations.KINDS) - {"compare", "empty"}
    for expected in (
        ("constant", "MOST = 8", "MOST = 9"),
        ("delete", "self.held.append(thing)", "pass"),
        ("compare", "if len(self.held) >= MOST or thing == 0:", "if len(self.held) > MOST or thing == 0:"),
        ("logic", "if len(self.held) >= MOST or thing == 0:", "if (len(self.held) >= MOST and thing == 0):"),
        ("negate", "if len(self.held) >= MOST or thing == 0:", "if not (len(self.held) >= MOST or thing == 0):"),
        ("arith", "return min(self.held[start:]) + 1", "return max(self.held[start:]) + 1"),
        ("arith", "return min(self.held[start:]) + 1", "return (min(self.held[start:]) - 1)"),
        ("return", "return len(self.held) == MOST", "return not (len(self.held) == MOST)"),
        ("return", "return min(self.held[start:]) + 1", "return None"),
        ("empty", "def add: ...", "def add: return"),
        ("except", "return 0", "raise"),
    ):
        assert expected in found
    for mutant in mutations.mutations("module.py", MODULE):
        ast.parse(mutant.applied(MODULE))
        assert mutant.applied(MODULE) != MODULE


@pytest.mark.parametrize(
    "source",
    [
        '"""Text, and 1 of it."""',
        "def f(x: Literal[1]) -> Annotated[int, 2]:\n    ...",
        'class A:\n    def __repr__(self):\n        return f"{self.x + 1}"',
        "if TYPE_CHECKING:\n    x = 1",
        "class IThing(Interface):\n    def f(n=1):\n        return n",
        'def f():\n    log.warn("{n}", n=1 + 1)\n    self._log.info("x", n=2)',
        "assert x < 1",
        'x: Final[Literal[3]]\ny = f"{z + 1}"',
    ],
)
def test_what_nobody_would_test_is_left_alone(source: str) -> None:
    assert made(source) == []


def test_mutant_is_named_by_its_text_and_not_by_its_line() -> None:
    (first, *_) = mutations.mutations("m.py", "def f(x):\n    return x < 1\n")
    (moved, *_) = mutations.mutations("m.py", "import a\n\n\ndef f(x):\n    return x < 1\n")
    assert (first.function, first.kind, first.old, first.new) == (moved.function, moved.kind, moved.old, moved.new)
    assert moved.line == first.line + 3


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with a module of which one function is tested and one is only called, and the folders of a real one."""
    for folder in ("fyrehose", *(f"tests/{name}" for name in ("journal", "kernels", "conformance", "testing"))):
        tmp_path.joinpath(folder).mkdir(parents=True)
    for folder in ("tests/protocols/x", "tests/simulation"):
        tmp_path.joinpath(folder).mkdir(parents=True)
    empty = ("journal/conftest.py", "protocols/x/conftest.py", "simulation/s.py", "conftest.py")
    for name in (*empty, *(f"{f}/test_x.py" for f in ("journal", "kernels", "conformance", "protocols/x", "testing"))):
        tmp_path.joinpath("tests", name).write_text("")
    tmp_path.joinpath("pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\nmarkers = ["live: x"]\n'
    )
    tmp_path.joinpath("fyrehose/__init__.py").write_text("")
    tmp_path.joinpath("fyrehose/sums.py").write_text(
        "def checked(x):\n    return x < 3\n\n\ndef called(x):\n    return x < 5\n\n\ndef alone(x):\n    return x < 7\n"
    )
    tmp_path.joinpath("tests/test_sums.py").write_text(
        "from fyrehose.sums import called, checked\n\n\n"
        "def test_it():\n    assert [checked(n) for n in (2, 3)] == [True, False]\n    called(1)\n"
    )
    return tmp_path


def run(tree: Path, *words: str, explained: str = "") -> tuple[int, str, list[list[str]]]:
    tree.joinpath("explained.toml").write_text(explained)
    command = [
        sys.executable,
        str(HERE / "generated.py"),
        "fyrehose/sums.py",
        "--root",
        str(tree),
        "--count",
        "0",
        "--bare",
    ]
    command += ["--explained", str(tree / "explained.toml"), "--json", str(tree / "alive.json"), *words]
    environment = {"PYTHONPATH": str(tree), "PATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    alive = json.loads((tree / "alive.json").read_text())["alive"] if (tree / "alive.json").exists() else []
    return ended.returncode, ended.stdout + ended.stderr, alive


def test_runner_tells_killed_living_and_uncovered_mutants_apart(tree: Path) -> None:
    reason = '[[explained]]\nfile = "fyrehose/sums.py"\nfunction = "called"\nkind = "compare"\nold = "return x < 5"\n'
    reason += 'why = "nobody looks at it"\n'
    status, said, alive = run(tree, explained=reason)
    assert status == 1
    assert {key[1] for key in alive} == {"called", "alone"}, said
    assert "12 mutants: 4 killed, 0 timed out, 1 explained, 7 alive (4 of them in lines that no test executes)" in said
    assert "UNCOVERED after 0 tests: fyrehose/sums.py:10 alone" in said
    assert "ALIVE after 1 tests: fyrehose/sums.py:6 called" in said
    assert "STALE" not in said
    assert run(tree, "--alive", "100", explained=reason)[0] == 0


def test_explanation_that_fits_no_mutant_fails_the_run(tree: Path) -> None:
    reason = '[[explained]]\nfile = "fyrehose/sums.py"\nfunction = "called"\nkind = "compare"\nold = "return x < 6"\n'
    status, said, _ = run(tree, "--alive", "100", "--count", "1", explained=reason + 'why = "it was changed"\n')
    assert status == 1
    assert "STALE: no mutant fits the explanation fyrehose/sums.py called [compare] 'return x < 6'" in said


def test_test_that_fails_without_any_bug_fails_the_run(tree: Path) -> None:
    tree.joinpath("tests/test_sums.py").write_text("def test_it():\n    assert False\n")
    status, said, _ = run(tree, "--alive", "100")
    assert status == 1
    assert "FAILED without any bug: tests/test_sums.py::test_it" in said
