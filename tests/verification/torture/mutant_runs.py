"""Run tests in forked child processes, to learn which lines each test executes, and whether a test notices a mutant.

    Farm(root) -> learn(test file) -> {test: Learned}, names of failed tests
               -> judge(mutation, rounds) -> Verdict

A child is forked from a process that has imported everything but fyrehose and its tests, so that it starts at once and
imports the mutated module like any other.  Hypothesis tries few examples, always the same ones.  The pure Python
kernels are used, so that mutants of them have an effect.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
import coverage
import hypothesis
import pytest
from mutations import Mutation

#: Modules that children need not import again; none of them may start a reactor, which cannot be forked.
_PRELOADED = (
    "_pytest.assertion.rewrite",
    "cryptography.x509",
    "hypothesis.stateful",
    "hypothesis.strategies",
    "twisted.application.internet",
    "twisted.application.service",
    "twisted.internet.endpoints",
    "twisted.internet.ssl",
    "twisted.internet.task",
    "twisted.internet.testing",
    "twisted.python.usage",
    "twisted.web.client",
    "twisted.web.server",
    "unittest.mock",
    "zmq",
)
#: How many examples a Hypothesis test tries, and steps of each; more examples rarely notice more mutants.
EXAMPLES, STEPS = 60, 40
#: A test may use ten times the CPU and clock time that it used before, and so many seconds more.
GRACE_CPU, GRACE = 1.0, 30.0
#: Tests that need more CPU seconds are not used, because each mutant would wait for them.
LONGEST = 10.0
#: How many bytes of memory a child may allocate, so that a mutant in an endless loop does not exhaust the machine.
MEMORY = 4 << 30


@attrs.define
class Learned:
    """A test that passed without any bug.

    :ivar seconds: its CPU time, which depends less on other load than the clock
    :ivar lines: the lines that it executed, by the path of the module
    """

    seconds: float
    lines: dict[str, list[int]]


@attrs.frozen
class Verdict:
    """The result for a mutant: ``outcome`` is killed, timed out, alive or uncovered; ``by`` names the test."""

    outcome: str
    by: str
    seconds: float
    tests: int


def preload() -> None:
    """Import what all children need.

    :raises RuntimeError: the imports have started a reactor
    """
    os.environ["FYREHOSE_PURE"] = "1"
    for name in _PRELOADED:
        importlib.import_module(name)
    if "twisted.internet.reactor" in sys.modules:
        raise RuntimeError("a preloaded module installs the reactor; take it out of _PRELOADED")


def scratch_of(child: int) -> Path:
    """Return the directory for files of the tests that the process *child* runs."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    return Path(base, f"fyrehose-mutants-{child}")


def in_child(work: Callable[[Callable[[dict[str, Any]], None]], None], seconds: float) -> list[dict[str, Any]]:
    """Run *work* in a forked child; return what it reported before it ended or *seconds* were over.

    :param work: called with a function that reports a dictionary
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        os.close(reading)
        # Set MUTANTS_OUTPUT=/tmp/output.txt to read what pytest prints.
        null = os.open(os.environ.get("MUTANTS_OUTPUT", os.devnull), os.O_RDWR | os.O_CREAT | os.O_APPEND)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        try:
            work(lambda what: os.writev(writing, [json.dumps(what).encode() + b"\n"]) and None)
        finally:
            os._exit(0)
    os.close(writing)
    data, deadline = b"", time.monotonic() + seconds
    while select.select([reading], [], [], max(0, deadline - time.monotonic()))[0]:
        more = os.read(reading, 1 << 20)
        if not more:
            break
        data += more
    os.close(reading)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass  # the child has ended before it had its own process group
    os.waitpid(child, 0)
    shutil.rmtree(scratch_of(child), ignore_errors=True)
    return [json.loads(line) for line in data.split(b"\n") if line.endswith(b"}")]


class Farm:
    """Runs tests of the tree at *root*."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def learn(self, path: str) -> tuple[dict[str, Learned], list[str]]:
        """Run the tests of a file; return those that passed, and the names of those that failed.

        Lines that are executed when the file is imported are returned under an empty name.

        :param path: relative to the root
        """

        learned: dict[str, Learned] = {}
        failed: list[str] = []
        slow: set[str] = set()

        def work(report: Callable[[dict[str, Any]], None]) -> None:
            self._pytest([path], _Learning(report, self.root, slow))

        known = -1
        while known < len(slow):  # a test that takes too long ends the child; the other tests run in another one
            known = len(slow)
            learned, failed = {}, []
            reports = in_child(work, 600)
            for said in reports:
                if "file" in said:
                    for test in learned.keys() & said["lines"].keys():
                        learned[test].lines[said["file"]] = said["lines"][test]
                    continue
                if said["outcome"] == "slow":
                    slow.add(said["test"])
                elif said["outcome"] == "passed":
                    learned[said["test"]] = Learned(said["seconds"], {})
                elif said["outcome"] == "failed":
                    failed.append(said["test"])
            if not reports:
                failed = [path]
        return learned, failed

    def judge(self, mutation: Mutation, rounds: Iterable[Sequence[tuple[str, float]]]) -> Verdict:
        """Run tests with the bug until one fails.

        :param rounds: lists of (test, seconds); each round runs in one child, in its order
        """
        began, count = time.monotonic(), 0
        for tests in rounds:
            count += len(tests)
            if not tests:
                continue
            limits = dict(tests)
            patience = 2 * GRACE + 10 * sum(limits.values())
            said = in_child(lambda report, limits=limits: self._plant(mutation, limits, report), patience)
            if not said:
                return Verdict("timed out", "all of them", time.monotonic() - began, count)
            if said[-1]["outcome"] != "alive":
                return Verdict(said[-1]["outcome"], said[-1]["by"], time.monotonic() - began, count)
        return Verdict("alive" if count else "uncovered", "", time.monotonic() - began, count)

    def _plant(self, mutation: Mutation, limits: dict[str, float], report: Callable[[dict[str, Any]], None]) -> None:
        source = (self.root / mutation.file).read_text()
        sys.meta_path.insert(0, _Planted(mutation.file, mutation.applied(source), self.root))
        plugin = _Judging(report, limits)
        files = dict.fromkeys(test.partition("::")[0] for test in limits)
        status = self._pytest(list(files), plugin)
        if status == pytest.ExitCode.OK:
            report({"outcome": "alive", "by": ""})
        else:
            report({"outcome": "killed", "by": f"pytest: {status!r}"})

    def _pytest(self, paths: list[str], plugin: object) -> int | pytest.ExitCode:
        os.chdir(self.root)
        warnings.simplefilter("ignore")
        return pytest.main(
            [
                "-q",
                "--no-header",
                "-p",
                "no:cacheprovider",
                "-W",
                "ignore:Module already imported:pytest.PytestAssertRewriteWarning",
                "--timeout=0",
                "-m",
                "not live",
                f"--basetemp={scratch_of(os.getpid())}",
                *paths,
            ],
            plugins=[_FewExamples(), plugin],
        )


class _Planted(importlib.abc.MetaPathFinder):
    """An import hook that loads one module from another source text."""

    def __init__(self, file: str, source: str, root: Path) -> None:
        self._name = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        self._path = str(root / file)
        self._source = source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        loader = _PlantedLoader(fullname, self._path)
        loader.source = self._source
        return importlib.machinery.ModuleSpec(fullname, loader, origin=self._path, is_package=False)


class _PlantedLoader(importlib.machinery.SourceFileLoader):
    source = ""

    def get_code(self, fullname: str) -> types.CodeType:
        return compile(self.source, self.path, "exec")

    def exec_module(self, module: types.ModuleType) -> None:
        module.__file__ = self.path
        super().exec_module(module)


class _FewExamples:
    """A pytest plugin that lets Hypothesis try few examples, the same ones each time."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            test = getattr(item, "obj", None)
            own = getattr(test, "_hypothesis_internal_use_settings", None)
            if own is not None:
                test = getattr(test, "__func__", test)
                test._hypothesis_internal_use_settings = _few(own)
            case = getattr(item, "cls", None)
            if case is not None and isinstance(getattr(case, "settings", None), hypothesis.settings):
                case.settings = _few(case.settings)


def _few(own: hypothesis.settings) -> hypothesis.settings:
    return hypothesis.settings(
        own,
        max_examples=min(own.max_examples, EXAMPLES),
        stateful_step_count=min(own.stateful_step_count, STEPS),
        derandomize=True,
        database=None,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        suppress_health_check=list(hypothesis.HealthCheck),
    )


class _Learning:
    """A pytest plugin that reports the time of each test and, at the end, the lines that each has executed."""

    def __init__(self, report: Callable[[dict[str, Any]], None], root: Path, slow: set[str]) -> None:
        self._report, self._root, self._slow = report, root, slow
        self._outcome, self._current = "passed", ""
        self._watch = coverage.Coverage(data_file=None, source=[str(root / "fyrehose")], config_file=False)
        self._watch.set_option("run:disable_warnings", ["no-data-collected"])
        self._watch.start()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid not in self._slow]

    def pytest_collection_finish(self) -> None:
        signal.signal(signal.SIGALRM, self._out_of_time)
        signal.signal(signal.SIGPROF, self._out_of_time)
        self._report({"test": "", "outcome": "passed", "seconds": 0.0})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Any:
        self._outcome, self._current = "passed", item.nodeid
        self._watch.switch_context(item.nodeid)
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, LONGEST)
        signal.setitimer(signal.ITIMER_REAL, 5 * LONGEST)
        result = yield
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        seconds = round(time.process_time() - began, 4)
        self._report({"test": item.nodeid, "outcome": self._outcome, "seconds": seconds})
        return result

    def pytest_sessionfinish(self) -> None:
        self._report_lines()

    def _out_of_time(self, number: int, frame: object) -> None:
        # End at once without cleaning up: interrupted code, such as coverage, may hold a lock.
        self._report({"test": self._current, "outcome": "slow"})
        os._exit(0)

    def _report_lines(self) -> None:
        self._watch.stop()
        data = self._watch.get_data()
        for file in data.measured_files():
            lines: dict[str, list[int]] = {}
            for line, tests in data.contexts_by_lineno(file).items():
                for test in tests:
                    lines.setdefault(test, []).append(line)
            self._report({"file": str(Path(file).relative_to(self._root)), "lines": lines})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._outcome = "failed"
        elif report.skipped and self._outcome == "passed":
            self._outcome = "skipped"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._report({"test": report.nodeid, "outcome": "failed"})


class _Judging:
    """A pytest plugin that runs only the tests of the round, in its order, and reports the first that fails."""

    def __init__(self, report: Callable[[dict[str, Any]], None], limits: dict[str, float]) -> None:
        self._report, self._limits = report, limits
        self._current = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        order = {test: at for at, test in enumerate(self._limits)}
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])
        signal.signal(signal.SIGPROF, self._out_of_time)
        signal.signal(signal.SIGALRM, self._out_of_time)

    def _out_of_time(self, number: int, frame: object) -> None:
        self._end("timed out", self._current)

    def _end(self, outcome: str, by: str) -> None:
        self._report({"outcome": outcome, "by": by})
        os._exit(0)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._current = nodeid
        signal.setitimer(signal.ITIMER_PROF, GRACE_CPU + 10 * self._limits[nodeid])
        signal.setitimer(signal.ITIMER_REAL, GRACE + 10 * self._limits[nodeid])

    def pytest_runtest_logfinish(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._end("killed", report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._end("killed", f"importing {report.nodeid}")


def digest(paths: Iterable[Path]) -> str:
    """Return a digest of the contents of the files."""
    total = hashlib.blake2b(digest_size=16)
    for path in paths:
        total.update(path.read_bytes())
    return total.hexdigest()
