"""Fixtures that start real servers: twistd in a process of its own, on free ports, in a directory of its own.

The functions before them are for the programs that tests run beside a server.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from twisted.internet.task import deferLater

from benchmarks.nats_servers import program as nats_server

TWISTD = Path(sys.executable).with_name("twistd")
FYREHOSE = str(Path(sys.executable).with_name("fyrehose"))
#: Where programs of the system are, which the path of a user may lack.
SBIN = "/usr/sbin:/usr/local/sbin"
#: How long anything may take on a busy machine before the test fails, in seconds.
PATIENCE = 150.0

#: Options with which Chromium makes no requests of its own, stores nothing, and takes names in test for this machine.
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-extensions",
    "--host-resolver-rules=MAP *.test 127.0.0.1",
)


def with_nats(seconds: int) -> list[pytest.MarkDecorator]:
    """Return the marks of a file whose tests start NATS servers, and may take so many seconds each."""
    missing = nats_server() is None
    reason = "a server of others is not installed: nats-server"
    marks = pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(seconds)
    return [*marks, pytest.mark.skipif(missing, reason=reason)]


def until(condition: Callable[[], Any], what: Callable[[], object] | str = "") -> Any:
    """Wait until *condition* returns something true, and return it; *what* describes a failure."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.01)
    return found


async def eventually(condition: Callable[[], Any], what: Callable[[], object] | str = "") -> None:
    """Wait like :func:`until`, while the reactor runs."""
    from twisted.internet import reactor  # pytest-twisted installs it after this file is read

    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what() if callable(what) else what
        await deferLater(reactor, 0.02)  # type: ignore[arg-type]


def program(name: str) -> str:
    """Return the path of a program of others, or skip the test."""
    found = shutil.which(name) or shutil.which(name, path=SBIN)
    if found is None:
        pytest.skip(f"a program of others is not installed: {name}")
    return found


def listening(*names: str) -> list[str]:
    """Return the options of a server with a listener of each of these protocols, on free ports."""
    return [word for name in names for word in ("--listen", f"{name}=tcp:0:interface=127.0.0.1")]


def ran(
    *words: object, status: int | None = 0, text: bool = True, timeout: float | None = PATIENCE, **more: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a program until it ends, which must be with *status* (None: with any); return its output and its errors."""
    command = [str(word) for word in words]
    done = subprocess.run(command, capture_output=True, text=text, timeout=timeout, check=False, **more)
    assert status in (None, done.returncode), (
        f"status {done.returncode}, not {status}, of {command}: {done.stdout}{done.stderr}"
    )
    return done


def fyrehose(*words: object, **more: Any) -> subprocess.CompletedProcess[Any]:
    """Run a command of ``fyrehose`` as `ran` does."""
    return ran(FYREHOSE, *words, **more)


def stored(directory: Path, stream: str) -> list[dict[str, Any]]:
    """Return the records of a stream of the journal in *directory*."""
    dumped = fyrehose("journal", "dump", directory, "--stream", stream, "--format", "json").stdout
    return [json.loads(line) for line in dumped.splitlines()]


def resident(pid: int, most: bool = False) -> int:
    """Return the present memory of a process, or with *most* the largest that it ever had, in bytes."""
    found = re.search(rf"{'VmHWM' if most else 'VmRSS'}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


@contextmanager
def haproxy(config: str, folder: Path) -> Iterator[None]:
    """Run HAProxy with this configuration."""
    (folder / "haproxy.cfg").write_text(config)
    with (folder / "haproxy.log").open("wb") as log:
        words = [program("haproxy"), "-db", "-f", str(folder / "haproxy.cfg")]
        process = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()


@attrs.define(eq=False)
class TwistdServer:
    """A running ``twistd -n fyrehose``.

    :ivar directory: its working directory; its journal is in ``data`` there
    """

    process: subprocess.Popen[bytes]
    directory: Path

    @property
    def log(self) -> str:
        return self.directory.joinpath("log").read_text()

    @property
    def errors(self) -> str:
        """Return what the server has written to standard error."""
        return self.directory.joinpath("errors").read_text()

    def wait_for(self, words: str) -> None:
        """Wait until ``words`` are in the log."""

        def found() -> bool:
            ended = self.process.poll()
            assert words in self.log or ended is None, f"the server ended with {ended}: {self.errors}{self.log}"
            return words in self.log

        until(found, lambda: f"no {words!r} in: {self.log}{self.errors}")

    def port(self, name: str) -> int:
        """Return the port of the listener ``name``."""
        found = re.findall(rf"{re.escape(name)} \(\S+\) listens on \S+:(\d+)\n", self.log)
        assert found, self.log
        return int(found[-1])

    def reload(self) -> None:
        """Let the server read its files again, and wait until it has done so."""
        before = self._reloads()
        self.process.send_signal(signal.SIGHUP)
        until(lambda: self._reloads() > before, lambda: f"the files are not reloaded: {self.log}{self.errors}")

    def _reloads(self) -> int:
        """Return how many reloads have succeeded or failed."""
        return len(re.findall(r"\] (?:reloaded|reload: nothing was changed: .*)$", self.log, re.MULTILINE))

    def ended(self) -> int:
        """Wait until the server has ended by itself; return its exit status."""
        return self.process.wait(PATIENCE)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the server a signal, and wait for its end; return its exit status."""
        self.process.send_signal(number)
        return self.ended()


Start = Callable[..., TwistdServer]


@pytest.fixture
def start(tmp_path: Path, lines_path: list[Path]) -> Iterator[Start]:
    """Return a function that starts servers: ``start("--listen", "figg=tcp:0:interface=127.0.0.1")``.

    All of them end with the test.  ``ready=False`` does not wait until the server is ready; ``command`` runs instead of
    twistd, or before it.
    """
    servers: list[TwistdServer] = []

    def starter(
        *words: str,
        ready: bool = True,
        command: tuple[str, ...] = (),
        before: tuple[str, ...] = ("-n",),
        name: tuple[str, ...] = ("fyrehose",),
    ) -> TwistdServer:
        root = Path(__file__).parents[2]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (root, *lines_path)))}
        log = tmp_path / "log"
        log.write_bytes(b"")
        with log.open("ab") as out, tmp_path.joinpath("errors").open("wb") as errors:
            process = subprocess.Popen(
                [*command, str(TWISTD), *before, *name, *words],
                cwd=tmp_path,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
            )
        server = TwistdServer(process, tmp_path)
        servers.append(server)
        if ready:
            server.wait_for("#info] serving\n")
        return server

    yield starter
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()


@pytest.fixture
def run() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a function that starts programs, which end with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def starter(*words: Any, **more: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([str(word) for word in words], stderr=subprocess.DEVNULL, **more))
        return started[-1]

    yield starter
    for process in started:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no Chromium to look at the page with: apt-get install chromium chromium-driver")
    options = Options()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}", "--window-size=1400,1600"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    yield started
    started.quit()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A request handler that serves files, and logs nothing."""

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Iterator[str]:
    """Serve the directory that the test's module names as SITE; return the origin."""
    handler = functools.partial(Quiet, directory=str(request.module.SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
