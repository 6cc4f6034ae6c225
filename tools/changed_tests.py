"""List the tests of what changed: ``python tools/changed_tests.py [BASE]`` for ``make check``.

A change is a file that differs from the commit where this branch left BASE (main, by default), committed or not.  The
tests of a module are all of the folder that mirrors its package, because its neighbours often notice what its own tests
do not.  The tests of imports, of the pages and of awkward values are always among them, because they take only seconds.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
#: Tests that run after every change.
ALWAYS = ("tests/test_layers.py", "tests/conformance/test_awkward.py", "tests/docs")
#: Folders whose tests take minutes, or need real processes.
LONG = ("tests/live/", "tests/verification/", "tests/spark/")
_RESENT = "tests/verification/resent/test_resent_schedules.py"
#: Random schedules over a whole package, which notice in seconds what examples do not.
SCHEDULES = {
    "subscriptions": (
        "tests/verification/consumers/test_exclusives.py::test_random_schedules_of_exclusive_subscriptions_break_no_rule",
        "tests/verification/consumers/test_tables.py::test_random_schedules_of_whole_tables_break_no_rule",
    ),
    "protocols/lumberjack": (
        f"{_RESENT}::test_random_schedules_lose_nothing_and_store_no_event_with_an_identity_twice",
    ),
}
#: Tests of another folder that notice what those of the module's own package do not.
ELSEWHERE = {
    "fyrehose/offline/mirror.py": "tests/journal/test_ends.py",
    "fyrehose/broker/consuming.py": "tests/subscriptions/test_subscription.py",
}
#: The tests of Spark's code that start no Spark session, and take seconds.  The tests of the changed module itself are
#: among those that run, without those that need a session, which are slow.
SPARK = (
    *(f"tests/spark/test_{name}.py" for name in ("plan", "reading", "layout", "rounds", "merging", "selection")),
    *(f"tests/spark/test_{name}.py" for name in ("columns", "counting", "deltalog", "footers", "gaps", "union")),
    "tests/spark/typed",
)


def changes(base: str) -> list[str]:
    """Return the paths of all files that differ from where this branch left *base*, new files included."""
    fork = _git("merge-base", "HEAD", base)[0]
    return sorted({*_git("diff", "--name-only", fork), *_git("ls-files", "--others", "--exclude-standard")})


def of_file(path: str, root: Path = ROOT) -> list[str]:
    """Return the tests of the changed file *path*, as files and folders below *root*."""
    parts = PurePosixPath(path).parts
    match parts:
        case ("tests", *_) if parts[-1].startswith("test_"):
            found = [path]
        case ("tests", *_):
            found = [str(PurePosixPath(path).parent)]  # a fixture
        case ("fyrehose", "kernels", "native" | "pure", name):
            stem = PurePosixPath(name).stem
            found = [f"tests/kernels/test_{stem}.py", f"tests/protocols/{stem}"]
        case ("fyrehose", "spark", *folders, name) if name.endswith(".py"):
            own = str(PurePosixPath("tests", "spark", *folders, f"test_{name}"))
            return [each for each in dict.fromkeys((*SPARK, own)) if (root / each).exists()]
        case ("fyrehose", *folders, name) if name.endswith(".py") and (folder := "/".join(folders)) in SCHEDULES:
            schedules = [each for each in SCHEDULES[folder] if (root / each.partition("::")[0]).exists()]
            return [each for each in (f"tests/{folder}",) if (root / each).exists()] + schedules
        case ("fyrehose", name) if name.endswith(".py"):
            found = sorted(str(each.relative_to(root)) for each in root.glob("tests/test_*.py"))
        case ("fyrehose", *folders, name) if name.endswith((".py", ".pyx")):
            found = [str(PurePosixPath("tests", *folders))]
        case ("benchmarks", *folders, name) if name.endswith(".py"):
            found = [str(PurePosixPath("tests/benchmarks", *folders))]
        case _:
            found = []
    found += [ELSEWHERE[path]] if path in ELSEWHERE else []
    return [each for each in found if (root / each).exists() and each != "tests" and not f"{each}/".startswith(LONG)]


def selection(paths: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the tests of all changed *paths* and those that always run, none of them twice."""
    found = {*ALWAYS, *(test for path in paths for test in of_file(path, root))}
    folders = {each for each in found if not each.endswith(".py")}
    return sorted(each for each in found if not folders & {str(parent) for parent in PurePosixPath(each).parents})


def _git(*words: str) -> list[str]:
    found = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        why = found.stderr.strip()
        sys.exit(f"changed_tests: git {' '.join(words)} failed: {why}; name what to compare with: make check BASE=REF")
    return found.stdout.splitlines()


if __name__ == "__main__":
    print("\n".join(selection(changes(sys.argv[1] if len(sys.argv) > 1 else "main"))))
