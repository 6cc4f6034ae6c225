#!/usr/bin/env python3
"""Put one bug after the other into a copy of the tree, and check that the tests notice it.

    mutants.py [NAME...] [--jobs J] [--list] [--tests 'PATH...'] [--patience S]

A mutant is an entry of the table in mutants_table.py: a file, a text in it, the text that replaces it, and the tests
that have to fail then.  Tests that take longer than --patience prove nothing.  The exit status is 1 if a mutant was not
noticed.  If the text of any mutant does not occur exactly once in its file, nothing runs: fix the table first.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import attrs

sys.path.insert(0, str(Path(__file__).parent))

from mutants_table import MUTANTS, Mutant

ROOT = Path(__file__).parents[3]
#: The files that a copy of the tree needs.
PARTS = ("fyrehose", "tests", "docs", "pyproject.toml", "setup.cfg", "setup.py")


def copy_tree(to: Path) -> Path:
    """Copy the parts of the tree that tests need to the directory *to*, and return it."""
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, to / part, ignore=shutil.ignore_patterns("__pycache__", "corpus"))
        else:
            shutil.copy2(source, to / part)
    return to


def tests(tree: Path, mutant: Mutant, patience: float) -> str:
    """Run the tests of ``mutant`` in ``tree``; return the verdict."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    if "/pure/" in mutant.file:
        environment["FYREHOSE_PURE"] = "1"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests.split()]
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=patience)
    except subprocess.TimeoutExpired:
        return f"TIMED OUT after {patience:.0f} s"
    if done.returncode == 0:
        return "SURVIVED"
    if done.returncode != 1:  # pytest itself has failed, not a test
        return f"BROKEN: {done.stdout[-300:]}"
    said = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return f"caught: {said[0].split(' - ')[0] if said else '?'}"


def broken(mutants: Sequence[Mutant]) -> list[str]:
    """Return a message for each mutant that does not fit the tree as it is."""
    found = []
    for mutant in mutants:
        path = ROOT / mutant.file
        times = path.read_text().count(mutant.old) if path.exists() else 0
        if times != 1:
            found.append(f"{mutant.name}: {mutant.old!r} stands {times} times in {mutant.file}, not once")
    return found


def judge(mutant: Mutant, trees: SimpleQueue[Path], patience: float) -> str:
    """Put ``mutant`` into a free tree, run its tests, and remove it again; return the verdict."""
    tree = trees.get()
    path = tree / mutant.file
    whole = path.read_text()
    try:
        path.write_text(whole.replace(mutant.old, mutant.new))
        return tests(tree, mutant, patience)
    finally:
        path.write_text(whole)
        trees.put(tree)


def main(table: Sequence[Mutant] = MUTANTS, words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tests", help="run these tests instead of those of the table")
    parser.add_argument(
        "--patience", type=float, default=60, help="how long the tests of one mutant may take, in seconds"
    )
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    arguments = parser.parse_args(words)
    chosen = [mutant for mutant in table if not arguments.names or mutant.name in arguments.names]
    if arguments.tests:
        chosen = [attrs.evolve(mutant, tests=arguments.tests) for mutant in chosen]
    if arguments.list:
        print(*(f"{mutant.name}: {mutant.file}" for mutant in chosen), sep="\n")
        return 0
    if wrong := broken(table):
        print(*wrong, sep="\n")
        print(f"{len(wrong)} of {len(table)} mutants do not fit the sources any more: fix mutants_table.py")
        return 1
    os.nice(5)
    began, verdicts = time.monotonic(), []
    root = Path(tempfile.mkdtemp(prefix="fyrehose-mutants-"))
    try:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(arguments.jobs):
            trees.put(copy_tree(root / str(number)))
        with ThreadPoolExecutor(arguments.jobs) as pool:
            judged = pool.map(lambda one: judge(one, trees, arguments.patience), chosen)
            for mutant, verdict in zip(chosen, judged, strict=True):
                verdicts.append(verdict)
                print(f"{mutant.name}: {verdict}", flush=True)
    finally:
        shutil.rmtree(root)
    caught = sum(verdict.startswith("caught") for verdict in verdicts)
    print(f"{caught} of {len(verdicts)} mutants caught, {time.monotonic() - began:.0f} s")
    return int(caught != len(verdicts))


if __name__ == "__main__":
    sys.exit(main())
