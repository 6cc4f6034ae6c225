"""Check that mutants of every kind are generated, and that the runner tells noticed from unnoticed ones."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
mutations = import_module("mutations")
generated = import_module("generated")

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

    def move(self, other: Box) -> None:
        self.held, other.held = [], [thing for thing in self.held]
        for thing in other.held:
            log.info("moved {thing}", thing=thing)

    def full(self) -> bool:
        return len(self.held) == MOST

    async def send(self, thing: int, to: Box) -> None:
        if thing in self.held:
            await to.receive(thing, self, first=True)
            self.held.remove(thing)
        if to.full():
            to.add(thing)
            log.info("it is full")
            self.add(to.least(1))
            to.add(2)

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
        ("drop", "if len(self.held) >= MOST or thing == 0:", "if (len(self.held) >= MOST):"),
        ("drop", "if len(self.held) >= MOST or thing == 0:", "if (thing == 0):"),
        ("omit", "for thing in other.held:", "for thing in list(other.held)[1:]:"),
        (
            "omit",
            "self.held, other.held = [], [thing for thing in self.held]",
            "self.held, other.held = [], [thing for thing in list(self.held)[1:]]",
        ),
        ("delete", "self.held, other.held = [], [thing for thing in self.held]", "self.held = []"),
        ("negate", "if len(self.held) >= MOST or thing == 0:", "if not (len(self.held) >= MOST or thing == 0):"),
        ("arith", "return min(self.held[start:]) + 1", "return max(self.held[start:]) + 1"),
        ("arith", "return min(self.held[start:]) + 1", "return (min(self.held[start:]) - 1)"),
        ("return", "return len(self.held) == MOST", "return not (len(self.held) == MOST)"),
        ("return", "return min(self.held[start:]) + 1", "return None"),
        ("empty", "def add: ...", "def add: return"),
        ("except", "return 0", "raise"),
        (
            "argument",
            "await to.receive(thing, self, first=True)",
            "await to.receive(self, thing, first=True)",
        ),
        ("argument", "await to.receive(thing, self, first=True)", "await to.receive(thing, self)"),
        ("condition", "if thing in self.held:", "if (thing in self.held) and (to.full()):"),
        ("condition", "if to.full():", "if (to.full()) and (not (thing in self.held)):"),
        (
            "await",
            "await to.receive(thing, self, first=True) self.held.remove(thing)",
            "self.held.remove(thing) await to.receive(thing, self, first=True)",
        ),
        ("order", "self.add(to.least(1)) to.add(2)", "to.add(2) self.add(to.least(1))"),
    ):
        assert expected in found
    assert not [old for _, old, _ in found if "log." in old], "the order of lines of the log does not matter"
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
        "x = attrs.field(factory=list, init=False, kw_only=True)",
        'x: Final[Literal[3]]\ny = f"{z + 1}"',
    ],
)
def test_code_that_needs_no_test_is_not_mutated(source: str) -> None:
    assert made(source) == []


def test_mutant_is_named_by_its_text_and_not_by_its_line() -> None:
    (first, *_) = mutations.mutations("m.py", "def f(x):\n    return x < 1\n")
    (moved, *_) = mutations.mutations("m.py", "import a\n\n\ndef f(x):\n    return x < 1\n")
    assert (first.function, first.kind, first.old, first.new) == (moved.function, moved.kind, moved.old, moved.new)
    assert moved.line == first.line + 3


def test_every_planted_bug_fits_the_sources() -> None:
    bugs = generated.planted(generated.ROOT, generated.PLANTED)
    for bug in bugs:
        ast.parse(bug.applied(generated.ROOT.joinpath(bug.file).read_text()))
    assert bugs


def test_planted_bugs_whose_text_is_gone_or_ambiguous_are_named_and_nothing_runs(tmp_path: Path) -> None:
    tmp_path.joinpath("m.py").write_text("def f(x):\n    y = x\n    return x\n")
    fitting = ("fitting", "    y = x\n    return x", "    y = x\n    return y")
    (made,) = generated.planted(tmp_path, {"m.py": [fitting]})
    assert (made.lines, made.applied("def f(x):\n    y = x\n    return x\n")) == (
        range(3, 4),
        "def f(x):\n    y = x\n    return y\n",
    )
    table = {
        "m.py": [("gone", "this stands nowhere", ""), fitting, ("ambiguous", "x", "")],
        "n.py": [("no file", "x", "")],
    }
    with pytest.raises(SystemExit) as refused:
        generated.planted(tmp_path, table)
    assert [line.partition(":")[0] for line in str(refused.value).splitlines()] == [
        *("gone", "ambiguous", "no file"),
        "3 bugs do not fit the sources",
    ]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree with a tested function, one that is only called, one that is neither, and a constant."""
    for folder in ("fyrehose", "tests"):
        tmp_path.joinpath(folder).mkdir()
    tmp_path.joinpath("pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\nmarkers = ["live: x"]\n'
    )
    tmp_path.joinpath("fyrehose/__init__.py").write_text("")
    functions = [f"def {name}(x):\n    return x\n" for name in ("checked", "called", "alone")]
    tmp_path.joinpath("fyrehose/sums.py").write_text("\n\n".join(["MOST = 5\n", *functions]))
    tmp_path.joinpath("tests/test_sums.py").write_text(
        "from fyrehose.sums import called, checked\n\n\ndef test_it():\n    assert checked(2) == 2\n    called(1)\n"
    )
    return tmp_path


def run(tree: Path, *words: str, explained: str = "") -> tuple[int, str]:
    tree.joinpath("explained.toml").write_text(explained)
    command = [sys.executable, str(HERE / "generated.py"), "fyrehose/sums.py", "--root", str(tree), "--count", "0"]
    command += ["--bare", "--explained", str(tree / "explained.toml"), *words, "--tests", "tests/test_sums.py"]
    environment = {"PYTHONPATH": str(tree), "PATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=280)
    return ended.returncode, ended.stdout + ended.stderr


EXPLAINED = """
[[explained]]
file = "fyrehose/sums.py"
function = ""
kind = "constant"
old = "MOST = 5"
why = "unused"
"""


def test_a_constant_is_left_to_the_tests_of_its_module_although_they_execute_no_line_of_it() -> None:
    (mutant,) = mutations.mutations("fyrehose/sums.py", "MOST = True\n")
    names = ("tests/test_sums.py::test_it", "tests/test_other.py::test_it")
    tests = {name: generated.Learned(0.1, {}) for name in names}
    known = generated.Knowledge(tests, {"fyrehose/sums.py": {1}})
    assert known.noticing(mutant) == [("tests/test_sums.py::test_it", 0.1)]


@pytest.mark.slow
def test_runner_distinguishes_killed_unnoticed_and_uncovered_mutants(tree: Path) -> None:
    status, said = run(tree, "--alive", "40", "--json", str(tree / "alive.json"), explained=EXPLAINED)
    assert status == 0, said
    alive = json.loads((tree / "alive.json").read_text())["alive"]
    assert [key[1] for key in alive] == ["called", "alone"], said
    assert "5 mutants: 1 killed, 0 timed out, 2 explained, 2 alive (1 of them in lines that no test executes)" in said
    assert "ALIVE after 1 tests: fyrehose/sums.py:9 called [return]\n    - return x\n    + return None" in said
    assert "UNCOVERED after 0 tests: fyrehose/sums.py:13 alone" in said


def test_too_many_unnoticed_mutants_fail_the_run() -> None:
    mutant = mutations.mutations("m.py", "def f(x):\n    return x\n")[0]
    noticed, alive = (generated.Verdict(outcome, "", 0.1, 1) for outcome in ("killed", "alive"))
    assert generated.report([(mutant, noticed)] * 18 + [(mutant, alive)], 1, 1.0) == 5.0
    assert generated.status(5.0, 5.0, trouble=False) == 0
    assert generated.status(5.1, 5.0, trouble=False) == 1
    assert generated.status(0.0, 5.0, trouble=True) == 1


@pytest.mark.slow
def test_every_explanation_of_the_package_still_fits_a_mutant() -> None:
    known = generated.explanations(generated.EXPLAINED)
    explained = sorted({each.file for each in known if generated.ROOT.joinpath(each.file).exists()})
    everything = Namespace(root=generated.ROOT, modules=explained, again=None, planted=False, count=0, seed=0)
    _, _, stale = generated.draw(everything, known)
    assert [f"{each.file} {each.function} {each.old!r}" for each in stale] == []


@pytest.mark.slow
def test_explanation_that_fits_no_mutant_and_test_that_fails_without_any_bug_fail_the_run(tree: Path) -> None:
    with tree.joinpath("tests/test_sums.py").open("a") as tests:
        tests.write("\n\ndef test_wrong():\n    assert False\n")
    status, said = run(tree, "--alive", "100", explained=EXPLAINED.replace("MOST = 5", "MOST = 6"))
    assert status == 1
    assert "STALE: no mutant fits the explanation fyrehose/sums.py  [constant] 'MOST = 6'" in said
    assert "FAILED without any bug: tests/test_sums.py::test_wrong" in said


@pytest.mark.parametrize(
    ("test", "far"),
    [
        ("net/test_link", 0),
        ("net/test_link_inbound", 0),
        ("net/test_links", 1),
        ("net/test_other", 1),
        ("web/test_link", 2),
    ],
)
def test_tests_of_the_module_come_first_in_however_many_files_they_are(test: str, far: int) -> None:
    assert generated.distance(f"tests/{test}.py::test_it", "fyrehose/net/link.py") == far
