"""Fixtures of all tests; a test fails if it leaves unhandled failures, logged errors, timers or sockets."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from hypothesis import settings
from twisted.internet import reactor
from twisted.internet.task import deferLater
from twisted.logger import LogEvent, LogLevel, formatEvent, globalLogPublisher

from tests.doubles.differences import differences
from tests.doubles.programs import ForkedPopen, RealPopen, starts_alike

# How long a Hypothesis example takes depends mainly on the machine, so there is no deadline.
settings.register_profile("fyrehose", deadline=None)
settings.load_profile("fyrehose")


# Container images set this variable; each of the hundreds of Python processes that tests start would then compile all
# modules of Fyrehose again, which takes longer than running them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

#: Tests write to memory if it has this much room and nobody has chosen another directory: on a disk they and their
#: servers wait for thousands of syncs, up to five times as long as they compute.
MEMORY, ROOM = "/dev/shm", 4 << 30
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
    os.environ["TMPDIR"] = tempfile.tempdir = MEMORY

#: Spark's JVMs, also those of processes that tests start, begin sooner and compute more slowly, and do not verify again
#: the bytecode of the classes of Spark, which is a fifth of the CPU of a start.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
)
os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "spark" / "conf"))

#: Contains True once the reactor was stopped; only a signal does so before the end of the run.
stopped: list[bool] = []
reactor.addSystemEventTrigger("before", "shutdown", stopped.append, True)  # type: ignore[attr-defined]


# Programs of Fyrehose that tests start are forks of a process that has imported them.
subprocess.Popen = ForkedPopen  # type: ignore[misc]


@pytest.fixture
def real_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each program of Fyrehose by a new interpreter, for tests of what a process does at its start and end."""
    monkeypatch.setattr(subprocess, "Popen", RealPopen)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Explain a comparison of tuples by what their parts are."""
    return differences(left, right, sys._getframe()) or None if op == "==" else None


@pytest.fixture
def torture(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return a function that imports a module of tests/verification/torture."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "verification" / "torture"))
    return importlib.import_module


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run tests with the mark 'ladder' in their full size")


@pytest.fixture
def ladder(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """Return a function that chooses a size: the first for ``make test``, the second with ``--full``."""
    full = request.config.getoption("--full")
    return lambda small, large: large if full else small


def pytest_runtest_setup() -> None:
    """End the run after SIGTERM, for example of timeout(1): without a reactor all other tests would fail, too."""
    if stopped:
        pytest.exit("a signal has stopped the reactor", pytest.ExitCode.INTERRUPTED)


# Objects created by importing and collecting tests stay alive; searching them for garbage takes a quarter of the time.
gc.disable()


def pytest_collection_finish() -> None:
    # Imported modules stay alive, so the collection after each test can skip them.  The garbage of imports stays, too:
    # freeing it takes an eighth of the time in which each worker collects the tests.
    gc.freeze()
    gc.enable()


#: The group of the files whose tests share a Spark session, which takes half a minute to start.
SPARK = "tests/spark"
#: The groups that take longest start first, so that no worker has to wait for another one at the end: Spark, then files
#: whose tests wait for clusters, browsers and other programs, while other workers compute.
LONGEST = (
    SPARK,
    "tests/docs/test_tour.py",
    "tests/live/test_cluster_by_the_page.py",
    "tests/live/test_page.py",
    "tests/live/test_torture.py",
    "tests/live/test_relink_examples.py",
    "tests/live/test_restore.py",
    "tests/live/test_dead_peers.py",
    "tests/live/test_javascript.py",
    "tests/live/test_proxy.py",
    "tests/live/test_forward.py",
    "tests/live/test_cluster.py",
    "tests/live/test_pipeline.py",
    "tests/live/test_completion.py",
    "tests/live/test_lumberjack.py",
    "tests/live/test_bench_command.py",
    "tests/live/test_cluster_reopening.py",
    "tests/spark/typed/test_summaries.py",
    "tests/spark/test_pipeline.py",
    "tests/spark/test_storms.py",
    "tests/verification/simulation/",
    "tests/verification/consumers/",
    "tests/cluster/test_member.py",
)
ROOT = Path(__file__).parents[1]


@cache
def shares_spark(file: str) -> bool:
    """Return whether tests in *file* use the Spark session, by its text: the scheduler knows only the tests' names."""
    return file.startswith(f"{SPARK}/") and "spark: Any" in ROOT.joinpath(file).read_text(encoding="utf-8")


def group_of(nodeid: str) -> str:
    """Return the name of the group of a test: its file, or SPARK if tests in its file share the Spark session."""
    file = nodeid.partition("::")[0]
    return SPARK if shares_spark(file) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give all tests of a group to one worker, so that they share the fixtures of their module or session.

    Marks would do the same, but pytest-xdist 3.8 does not see them with pytest 9.2, and says nothing.
    """
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False  # The groups keep the order of the collection.
    return ByGroup(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the ladders, give tests with Spark more time, and sort the tests: the longest groups first."""
    _search_less(items, config.getoption("full"))
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "ladder" in fixtures:
            item.add_marker(pytest.mark.ladder)
        if item.get_closest_marker("timeout") is None and "spark" in fixtures:
            item.add_marker(pytest.mark.timeout(600))  # the first of these tests waits until Spark has started
    items.sort(key=_turn)


#: `make test` reduces tests with more Hypothesis examples than this to a third, but at least to this many.
EXAMPLES = 100


def _search_less(items: list[pytest.Item], full: bool) -> None:
    """Reduce the examples of long searches unless *full*, and mark them as ladders: `make torture` tries them all."""
    fewer: dict[Any, settings] = {}
    for item in items:
        test, name = getattr(item, "obj", None), "_hypothesis_internal_use_settings"
        test = getattr(test, "__func__", test)
        if isinstance(getattr(getattr(item, "cls", None), "settings", None), settings):  # a state machine
            test, name = item.cls, "settings"  # type: ignore[attr-defined]
        own = getattr(test, name, None)
        if own is None or (own.max_examples <= EXAMPLES and test not in fewer):
            continue
        item.add_marker(pytest.mark.ladder)
        if not full and test not in fewer:
            fewer[test] = settings(own, max_examples=max(EXAMPLES, own.max_examples // 3))
            setattr(test, name, fewer[test])


@cache
def _place(group: str) -> int:
    """Return the place of a group in LONGEST, or the length of LONGEST."""
    found = (at for at, name in enumerate(LONGEST) if group == name or (name[-1] == "/" and group.startswith(name)))
    return next(found, len(LONGEST))


def _turn(item: pytest.Item) -> int:
    """Return a test's sort key: the longest groups first, then other tests that start processes, then others."""
    place = _place(group_of(item.nodeid))
    return place + (place == len(LONGEST) and item.get_closest_marker("live") is None)


class LoggedErrors(list[LogEvent]):
    """Collects logged errors; a test that expects some removes them with :meth:`take`."""

    def __call__(self, event: LogEvent) -> None:
        if event.get("log_level") in (LogLevel.error, LogLevel.critical) or event.get("log_failure") is not None:
            self.append(event)

    def take(self) -> list[LogEvent]:
        taken = list(self)
        self.clear()
        return taken


#: The file of the previous test.
file_before: list[Path] = []


def _skip_what_stays(path: Path) -> None:
    """Let later garbage collections skip what is alive when a new file begins, mainly the modules imported so far.

    Without this, most of the time of a long run is spent in the collection after each test.
    """
    if file_before != [path]:
        # Let the reactor release the arguments of its last call, so that garbage of the last test is not skipped.
        pytest_twisted.blockon(deferLater(reactor, 0, lambda: None))  # type: ignore[arg-type]
        gc.collect()
        gc.freeze()
        file_before[:] = [path]


@pytest.fixture(autouse=True)
def logged_errors(request: pytest.FixtureRequest) -> Iterator[LoggedErrors]:
    """Fail the test if it leaves logged errors, or drops a failed Deferred."""
    errors = LoggedErrors()
    globalLogPublisher.addObserver(errors)
    _skip_what_stays(request.path)
    yield errors
    gc.collect()  # a dropped Deferred logs its failure when it is collected
    globalLogPublisher.removeObserver(errors)
    said = [str(e.get("log_failure") or e.get("log_format", "").format_map(e)) for e in errors]
    assert not said, "errors were logged: " + "; ".join(said)


@pytest.fixture(autouse=True)
def clean_reactor() -> Iterator[None]:
    """Fail the test if it leaves a timer or a port in the real reactor."""
    before = set(reactor.getReaders()) | set(reactor.getWriters())  # type: ignore[attr-defined]
    yield
    now = reactor.seconds()  # type: ignore[attr-defined]
    if any(call.getTime() <= now for call in reactor.getDelayedCalls()):  # type: ignore[attr-defined]
        # Twisted calls resolveAddress in the next turn, also for an attempt to connect that was cancelled in this one.
        pytest_twisted.blockon(deferLater(reactor, 0, lambda: None))  # type: ignore[arg-type]
    left = [str(call) for call in reactor.getDelayedCalls() if call.active()]  # type: ignore[attr-defined]
    for call in reactor.getDelayedCalls():  # type: ignore[attr-defined]
        call.cancel()
    after = set(reactor.getReaders()) | set(reactor.getWriters())  # type: ignore[attr-defined]
    ours = [str(r) for r in after - before if "Waker" not in type(r).__name__]
    assert not left, f"timers were left: {left}"
    assert not ours, f"sockets were left: {ours}"


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Fail the test if it leaves a variable with which the programs of later tests are not forked."""
    before = starts_alike(os.environ.items())
    yield
    assert starts_alike(os.environ.items()) == before, "the test has changed the environment of later ones"


@pytest.fixture
def log_lines() -> Iterator[list[str]]:
    """Collect the log lines of the test, formatted as in a log file."""
    lines: list[str] = []

    def observe(event: LogEvent) -> None:
        lines.append(formatEvent(event))

    globalLogPublisher.addObserver(observe)
    yield lines
    globalLogPublisher.removeObserver(observe)


#: The only valid reasons to skip a test in CI; any other would hide a missing test.
MAY_BE_SKIPPED: tuple[str, ...] = ("a server of others is not installed", "a program of others is not installed")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run in CI if a test was skipped for any other reason than MAY_BE_SKIPPED."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") != "true" or reporter is None:
        return
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(known in reason for known in MAY_BE_SKIPPED):
            reporter.write_line(f"UNEXPECTED SKIP {report.nodeid}: {reason}", red=True)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def lines_path(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the folders that have the example protocol of the docs on sys.path, and declare it as if installed."""
    examples = Path(__file__).parents[1] / "docs" / "examples"
    project = tomllib.loads((examples / "pyproject.toml").read_text())["project"]
    folder = tmp_path_factory.mktemp("installed")
    metadata = folder / f"fyrehose_lines-{project['version']}.dist-info"
    metadata.mkdir()
    metadata.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    sections = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    metadata.joinpath("entry_points.txt").write_text("".join(sections))
    return [examples, folder]


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Return a function that starts ``fyrehose journal serve`` as a process, and returns its address."""
    started: list[subprocess.Popen[str]] = []

    def start(directory: Path, *options: str) -> str:
        program = str(Path(sys.executable).with_name("fyrehose"))
        words = [program, "journal", "serve", "--listen", "127.0.0.1:0", *options, str(directory)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        said = process.stdout.readline()
        assert "serving" in said
        return said.split()[-1]

    yield start
    for process in started:
        process.terminate()
        assert process.wait(60) == 0
        assert process.stdout is not None
        process.stdout.close()
