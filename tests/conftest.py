"""Fixtures of all tests: unhandled failures, logged errors, and timers that are left fail the test."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from twisted.internet import reactor
from twisted.logger import LogEvent, LogLevel, formatEvent, globalLogPublisher

# The duration of an example depends mainly on the machine.
settings.register_profile("fyrehose", deadline=None)
settings.load_profile("fyrehose")


#: Spark's JVMs, also those of processes that tests start, begin sooner and compute more slowly.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

#: True after the reactor was stopped, which nothing but a signal does before the end of the run.
stopped: list[bool] = []
reactor.addSystemEventTrigger("before", "shutdown", stopped.append, True)  # type: ignore[attr-defined]


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


def pytest_collection_finish() -> None:
    # Imported modules stay alive, so the collection after each test can skip them.
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file in one worker, and all tests of the Spark session in one, too.

    The groups that take longest begin first, so that no worker waits for another one in the end.
    """
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        name = "spark" if "spark" in fixtures else str(item.path)
        item.add_marker(pytest.mark.xdist_group(name))
        if "ladder" in fixtures:
            item.add_marker(pytest.mark.ladder)
        if "spark" in fixtures and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))  # The first one waits until Spark has started.
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """Return 0 for the tests of the Spark session, 1 for those that start processes, 2 for all others."""
    if "spark" in getattr(item, "fixturenames", ()):
        return 0
    return 1 if item.get_closest_marker("live") else 2


class LoggedErrors(list[LogEvent]):
    """Collects logged errors; a test that expects some removes them with :meth:`take`."""

    def __call__(self, event: LogEvent) -> None:
        if event.get("log_level") in (LogLevel.error, LogLevel.critical) or event.get("log_failure") is not None:
            self.append(event)

    def take(self) -> list[LogEvent]:
        taken = list(self)
        self.clear()
        return taken


@pytest.fixture(autouse=True)
def logged_errors() -> Iterator[LoggedErrors]:
    """Fail the test if it leaves logged errors, or drops a failed Deferred."""
    errors = LoggedErrors()
    globalLogPublisher.addObserver(errors)
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
    left = [str(call) for call in reactor.getDelayedCalls() if call.active()]  # type: ignore[attr-defined]
    for call in reactor.getDelayedCalls():  # type: ignore[attr-defined]
        call.cancel()
    after = set(reactor.getReaders()) | set(reactor.getWriters())  # type: ignore[attr-defined]
    ours = [str(r) for r in after - before if "Waker" not in type(r).__name__]
    assert not left, f"timers were left: {left}"
    assert not ours, f"sockets were left: {ours}"


@pytest.fixture
def log_lines() -> Iterator[list[str]]:
    """Collect the log lines of the test, as people read them."""
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
        command = [sys.executable, "-c", "from fyrehose.cli import main; main()", "journal", "serve", "--listen"]
        words = [*command, "127.0.0.1:0", *options, str(directory)]
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
