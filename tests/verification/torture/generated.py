#!/usr/bin/env python3
"""Put generated bugs (mutants) into modules, one at a time, and report those that no test notices.

    generated.py [MODULE...] [--count N] [--seed S] [--jobs J] [--budget SECONDS] [--json FILE] [--again FILE] [--list]
                 [--planted]

--count mutants of the modules are drawn at random (mutations.py lists their kinds); 0 takes all of them.  First every
test file runs once without a bug, to learn which tests execute which lines; the result is cached in --cache until the
test or a module that it imports changes.  Then, for each mutant, the tests that execute its line run until one fails,
up to --budget seconds; tests of the module and quick tests come first.  If the line is executed when its module is
imported, such as a constant, all tests of the module and all that execute any of its lines run.  A mutant that makes a
test run ten times as long counts as noticed.

The bugs of mutants_table.py in these modules are planted, too; with --planted only they.  If the text of one does not
occur exactly once in its file, nothing runs: fix the table first.

Equivalent and harmless mutants are listed in explained.toml with a reason, and are not tried.  The exit status is 1 if
any planted bug, or more than --alive percent of all, was not noticed, if an explanation no longer matches a mutant of
its module, or if a test fails without a bug.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import attrs

sys.path.insert(0, str(Path(__file__).parent))

import mutant_runs
from mutant_runs import Farm, Learned, Verdict
from mutants_table import PLANTED
from mutations import Mutation, mutations, replacing

ROOT = Path(__file__).parents[3]
EXPLAINED = Path(__file__).with_name("explained.toml")
#: The modules that are mutated by default; the modules that change most often come last.
MODULES = (
    "fyrehose/broker/broker.py",
    "fyrehose/broker/fanout.py",
    "fyrehose/net/turns.py",
    "fyrehose/broker/sequencer.py",
    "fyrehose/net/slots.py",
    "fyrehose/net/inflight.py",
    "fyrehose/broker/quotas.py",
    "fyrehose/kernels/pure/*.py",
    "fyrehose/sessions.py",
    "fyrehose/protocols/figg/session.py",
    "fyrehose/protocols/backbone/session.py",
    "fyrehose/protocols/backbone/repair.py",
    "fyrehose/protocols/backbone/subscribers.py",
    "fyrehose/protocols/lumberjack/session.py",
    "fyrehose/protocols/lumberjack/windows.py",
    "fyrehose/protocols/eventbus/zmtp.py",
    "fyrehose/protocols/eventbus/session.py",
    "fyrehose/protocols/eventbus/client_session.py",
    "fyrehose/protocols/relink/*.py",
    "fyrehose/protocols/http/*.py",
    "fyrehose/net/*.py",
    "fyrehose/subscriptions/*.py",
    "fyrehose/cluster/*.py",
    "fyrehose/server/*.py",
    "fyrehose/journal/*.py",
    "fyrehose/offline/*.py",
)
#: The tests that may notice mutants: quick ones that run in one process.
TESTS = (
    *(
        f"tests/{folder}test_*.py"
        for folder in (
            "",
            "broker/",
            "net/",
            "journal/",
            "offline/",
            "subscriptions/",
            "kernels/",
            "cluster/",
            "server/",
            "conformance/",
            "protocols/*/",
        )
    ),
    "tests/spark/test_lake.py",
    "tests/verification/consumers/test_exclusives.py",
)
#: Other files on which the results of the tests depend.
HELPERS = (
    "tests/conftest.py",
    "tests/*/conftest.py",
    "tests/protocols/*/conftest.py",
    "tests/verification/simulation/*.py",
    "tests/verification/consumers/*.py",
)
#: How many seconds of tests run in the first round, in one process.
FIRST = 1.5
#: How many tests run for one mutant at most.
MOST_TESTS = 400
#: The outcomes of mutants that no test has noticed.
UNNOTICED = ("alive", "uncovered")
#: How many seconds of tests run for a planted bug, which has to be noticed.
PATIENCE = 60.0


@attrs.frozen
class Explanation:
    """The reason why no test notices the mutants of one kind, in one statement of one function.

    :ivar old: the statement without the bug
    :ivar new: the statement with the bug; empty if the reason applies to any
    """

    file: str
    function: str
    kind: str
    old: str
    why: str
    new: str = ""

    def fits(self, mutant: Mutation) -> bool:
        """Return whether this explanation applies to *mutant*."""
        return (
            (self.file, self.function, self.kind, self.old) == (mutant.file, mutant.function, mutant.kind, mutant.old)
        ) and self.new in ("", mutant.new)


@attrs.define
class Knowledge:
    """The lines that each test executes, and the lines of each module that its import executes."""

    tests: dict[str, Learned] = attrs.field(factory=dict)
    imported: dict[str, set[int]] = attrs.field(factory=dict)
    failed: list[str] = attrs.field(factory=list)

    def add(self, learned: dict[str, Learned], failed: list[str]) -> None:
        """Add the results of one test file."""
        for name, each in learned.items():
            if name:
                self.tests[name] = each
            else:
                for file, lines in each.lines.items():
                    self.imported.setdefault(file, set()).update(lines)
        self.failed += failed

    def noticing(self, mutant: Mutation) -> list[tuple[str, float]]:
        """Return the tests that may notice *mutant*, with seconds: tests of the module first, then the quickest."""
        wanted = set(mutant.lines)
        found = [name for name, each in self.tests.items() if wanted & set(each.lines.get(mutant.file, ()))]
        # the line may be a constant, which affects every user of the module
        if wanted & self.imported.get(mutant.file, set()):
            found = [
                name
                for name, each in self.tests.items()
                if mutant.file in each.lines or not distance(name, mutant.file)
            ]
        quick = [(name, self.tests[name].seconds) for name in found if self.tests[name].seconds <= mutant_runs.LONGEST]
        return sorted(quick, key=lambda one: (distance(one[0], mutant.file), one[1], one[0]))


def distance(test: str, module: str) -> int:
    """Return 0 if the file of *test*, or its part, tests *module*, 1 if it tests the same folder, else 2."""
    folder, _, name = module.removeprefix("fyrehose/").removesuffix(".py").rpartition("/")
    folder = folder.replace("kernels/pure", "kernels")
    path = test.partition("::")[0].removeprefix("tests/").removesuffix(".py")
    about, _, what = path.rpartition("/")
    if about == folder:
        return 0 if f"{what}_".startswith(f"test_{name}_") else 1
    return 1 if folder == "kernels" and about == f"protocols/{name}" else 2


def rounds(tests: Sequence[tuple[str, float]], budget: float) -> list[list[tuple[str, float]]]:
    """Divide *tests* into a short first round from one file and the rest, up to *budget* seconds in total."""
    first: list[tuple[str, float]] = []
    rest: list[tuple[str, float]] = []
    total = 0.0
    for test in tests[:MOST_TESTS]:
        total += test[1]
        if not first or (total <= FIRST and test[0].partition("::")[0] == tests[0][0].partition("::")[0]):
            first.append(test)
        elif total <= budget:
            rest.append(test)
        else:
            total -= test[1]
    return [first, rest]


def explanations(path: Path) -> list[Explanation]:
    """Return the entries of explained.toml.

    :raises TypeError: an entry has other fields than an Explanation
    """
    return [Explanation(**entry) for entry in tomllib.loads(path.read_text()).get("explained", [])]


def files(root: Path, patterns: Sequence[str], missing: bool = False) -> list[Path]:
    """Return the files below *root* that match the patterns.

    :param missing: whether a pattern may match no file
    :raises SystemExit: a pattern matches no file
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        named = sorted(root.glob(pattern.removeprefix(f"{root}/")))
        if not named and not missing:
            raise SystemExit(f"no file is named {pattern}: name modules below {root}, such as fyrehose/options.py")
        found.update(dict.fromkeys(named))
    return list(found)


_farm: Farm


def _begin(root: Path, bare: bool) -> None:
    global _farm
    if not bare:
        mutant_runs.preload()
    _farm = Farm(root)


def _learn(path: str) -> tuple[dict[str, Learned], list[str], float]:
    began = time.monotonic()
    return (*_farm.learn(path), time.monotonic() - began)


def _judge(work: tuple[Mutation, list[list[tuple[str, float]]]]) -> Verdict:
    return _farm.judge(*work)


def knowledge(root: Path, tests: Sequence[str], pool: ProcessPoolExecutor, cache: Path) -> Knowledge:
    """Run the *tests* to learn which lines they execute, or read this from *cache* if nothing changed."""
    helpers = mutant_runs.digest(files(root, HELPERS, missing=True))
    cache.mkdir(parents=True, exist_ok=True)
    known = Knowledge()
    wanted = {}
    for path in files(root, tests):
        name = str(path.relative_to(root))
        kept = cache / (name.replace("/", "-") + ".json")
        said = json.loads(kept.read_text()) if kept.exists() else {}
        key = helpers + mutant_runs.digest([path])
        if said.get("key") == key and said["modules"] == _digests(root, said["modules"]):
            known.add({test: Learned(*each) for test, each in said["learned"].items()}, said["failed"])
        else:
            wanted[name] = (kept, key)
    for number, (name, (learned, failed, seconds)) in enumerate(zip(wanted, pool.map(_learn, wanted), strict=True)):
        _progress(f"learning what tests execute: {number + 1} of {len(wanted)} files, {name} took {seconds:.0f} s")
        known.add(learned, failed)
        if learned and not failed:
            kept, key = wanted[name]
            modules = _digests(root, {file for each in learned.values() for file in each.lines})
            told = {test: attrs.astuple(each) for test, each in learned.items()}
            kept.write_text(json.dumps({"key": key, "modules": modules, "learned": told, "failed": failed}))
    return known


def _digests(root: Path, modules: Iterable[str]) -> dict[str, str]:
    """Return a digest of each module; of a deleted one, the digest of no file."""
    return {name: mutant_runs.digest([path] if (path := root / name).exists() else []) for name in sorted(modules)}


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text[:110]}", end="", file=sys.stderr, flush=True)


def verdicts(
    pool: ProcessPoolExecutor, chosen: Sequence[Mutation], known: Knowledge, budget: float
) -> Iterator[tuple[Mutation, Verdict]]:
    """Try one mutant after the other; yield each with its verdict."""
    work = [
        (mutant, rounds(known.noticing(mutant), PATIENCE if mutant.kind == "planted" else budget)) for mutant in chosen
    ]
    alive = 0
    for number, (mutant, verdict) in enumerate(zip(chosen, pool.map(_judge, work), strict=True), 1):
        alive += verdict.outcome in UNNOTICED
        if number % 100 == 0:
            print(f"{number} of {len(chosen)} mutants, {alive} alive", flush=True)
        _progress(f"{number} of {len(chosen)} mutants, {alive} alive: {mutant.file}:{mutant.line}")
        yield mutant, verdict


def report(results: Sequence[tuple[Mutation, Verdict]], explained: int, seconds: float) -> float:
    """Print the counts of each module; return the share of unexplained mutants that no test noticed, in percent."""
    outcomes = ("killed", "timed out", "alive", "uncovered")
    counts: dict[str, Counter[str]] = {}
    for mutant, verdict in results:
        counts.setdefault(mutant.file, Counter())[verdict.outcome] += 1
    total: Counter[str] = Counter()
    print(f"{'module':50}{'mutants':>9}" + "".join(f"{name:>11}" for name in outcomes))
    for file, of_file in counts.items():
        total.update(of_file)
        print(f"{file:50}{of_file.total():9}" + "".join(f"{of_file[name]:11}" for name in outcomes))
    alive = total["alive"] + total["uncovered"]
    count = total.total() + explained
    share = 100 * alive / count if count else 0.0
    print(
        f"{count} mutants: {total['killed']} killed, {total['timed out']} timed out, {explained} explained, "
        f"{alive} alive ({total['uncovered']} of them in lines that no test executes): {share:.1f} %; "
        f"{seconds:.0f} s, load {os.getloadavg()[0]:.1f}"
    )
    return share


def planted(root: Path, table: Mapping[str, Iterable[tuple[str, str, str]]]) -> list[Mutation]:
    """Return the bugs of *table*: by file, the name of each, a text in the file, and its replacement.

    :raises SystemExit: a text does not occur exactly once in its file, which each line of the message names
    """
    found, broken = [], []
    for file, bugs in table.items():
        source = (root / file).read_text() if (root / file).exists() else ""
        for name, old, new in bugs:
            if (times := source.count(old)) == 1:
                found.append(replacing(file, source, name, old, new))
            else:
                broken.append(f"{name}: {old!r} stands {times} times in {file}, not once")
    if broken:
        raise SystemExit("\n".join((*broken, f"{len(broken)} bugs do not fit the sources: fix mutants_table.py")))
    return found


def draw(
    arguments: argparse.Namespace, known_reasons: Sequence[Explanation]
) -> tuple[list[Mutation], int, list[Explanation]]:
    """Return the bugs to try, the number of explained ones, and the explanations that match no mutant any more."""
    named = [path for path in files(arguments.root, arguments.modules or MODULES) if path.name != "__init__.py"]
    names = {str(path.relative_to(arguments.root)) for path in named}
    bugs = planted(arguments.root, {f: each for f, each in PLANTED.items() if not arguments.modules or f in names})
    every = (
        []
        if arguments.planted
        else [one for path in named for one in mutations(str(path.relative_to(arguments.root)), path.read_text())]
    )
    mutated = {mutant.file for mutant in every}
    stale = [
        reason for reason in known_reasons if reason.file in mutated and not any(reason.fits(one) for one in every)
    ]
    stale += [reason for reason in known_reasons if not (arguments.root / reason.file).exists()]
    chosen = [*bugs, *every]
    if arguments.again:
        wanted = {tuple(key) for key in json.loads(arguments.again.read_text())["alive"]}
        chosen = [one for one in chosen if key_of(one) in wanted]
    elif 0 < arguments.count < len(every):
        places = sorted(random.Random(arguments.seed).sample(range(len(every)), arguments.count))
        chosen = [*bugs, *(every[at] for at in places)]
    tried = [one for one in chosen if not any(reason.fits(one) for reason in known_reasons)]
    return tried, len(chosen) - len(tried), stale


def status(share: float, most: float, trouble: bool) -> int:
    """Return the exit status: 1 if *share* exceeds *most* percent or there was *trouble*."""
    return int(share > most or trouble)


def key_of(mutant: Mutation) -> tuple[str, str, str, str, str, int]:
    """Return a key of a mutant that does not depend on its line numbers."""
    return mutant.file, mutant.function, mutant.kind, mutant.old, mutant.new, mutant.nth


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="paths or patterns below the root")
    parser.add_argument("--count", type=int, default=200, help="how many mutants to try; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--budget", type=float, default=12, help="seconds of tests for each mutant")
    parser.add_argument(
        "--alive", type=float, default=5, help="the largest share that may go unnoticed without a reason, in percent"
    )
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="PATTERN", help="files with the tests to run")
    parser.add_argument("--root", type=Path, default=ROOT, help="the directory with the modules and their tests")
    parser.add_argument("--cache", type=Path, help="where to cache which lines tests execute (build/mutants)")
    parser.add_argument("--json", type=Path, help="write the mutants that no test noticed to this file")
    parser.add_argument("--again", type=Path, help="try only the mutants in a file written by --json")
    parser.add_argument("--explained", type=Path, default=EXPLAINED)
    parser.add_argument("--planted", action="store_true", help="try only the bugs of mutants_table.py")
    parser.add_argument("--bare", action="store_true", help="import no packages ahead, for a small tree")
    parser.add_argument("--list", action="store_true", help="only print which mutants would be tried")
    arguments = parser.parse_args(words)
    arguments.root = arguments.root.resolve()
    arguments.cache = arguments.cache or arguments.root / "build" / "mutants"
    return arguments


def main(words: Sequence[str] | None = None) -> int:
    arguments = parsed(words)
    chosen, explained, stale = draw(arguments, explanations(arguments.explained))
    if arguments.list:
        print(*chosen, sep="\n")
        return 0
    began, results = time.monotonic(), []
    context = get_context("fork")
    with ProcessPoolExecutor(arguments.jobs, context, _begin, (arguments.root, arguments.bare)) as pool:
        known = knowledge(arguments.root, arguments.tests, pool, arguments.cache)
        print(f"{len(known.tests)} tests learned in {time.monotonic() - began:.0f} s", flush=True)
        for mutant, verdict in verdicts(pool, chosen, known, arguments.budget):
            results.append((mutant, verdict))
            if verdict.outcome in UNNOTICED:
                print(f"{verdict.outcome.upper()} after {verdict.tests} tests: {mutant}", flush=True)
    if arguments.json:
        lives = [key_of(mutant) for mutant, verdict in results if verdict.outcome in UNNOTICED]
        arguments.json.write_text(json.dumps({"alive": lives}, indent=1))
    missed = [mutant for mutant, verdict in results if mutant.kind == "planted" and verdict.outcome in UNNOTICED]
    share = report(results, explained, time.monotonic() - began)
    for mutant in missed:
        print(f"NOT NOTICED: {mutant.function}, which was planted in {mutant.file}")
    for reason in stale:
        print(f"STALE: no mutant fits the explanation {reason.file} {reason.function} [{reason.kind}] {reason.old!r}")
    for name in known.failed:
        print(f"FAILED without any bug: {name}")
    return status(share, arguments.alive, bool(stale or missed or known.failed) or not (results or explained))


if __name__ == "__main__":
    sys.exit(main())
