"""What is measured: servers, started in an empty directory, each a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs

from fyrehose import __version__, kernels
from fyrehose.errors import FyrehoseError

#: Seconds in which a server has to begin, or to end.
PATIENCE = 60.0


class CannotStart(FyrehoseError):
    """A server that was to be measured is not there, or does not start."""


@attrs.define
class Running:
    """A server that serves."""

    process: subprocess.Popen[bytes]
    #: where to publish, where to hear what comes, and where to ask for what was there
    port: int
    live_port: int
    past_port: int
    #: what its load makers have to know
    extra: dict[str, Any] = attrs.field(factory=dict)
    #: where its metrics are scraped; 0: nowhere
    metrics_port: int = 0
    #: whether there is a server whose CPU and memory mean something
    serves: bool = True

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it, however long that takes."""
        self.process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE)
        self.process.kill()
        self.process.wait()


#: Starts a server in a directory, for a wire.
Start = Callable[[Path, str, str], Running]


class Durable(Enum):
    """What an acknowledgement means: only servers that promise the same are compared."""

    SYNCED = "synced"  #: it is on the disk
    LATER = "later"  #: it will be
    NEVER = "memory"  #: it is in memory


@attrs.frozen(kw_only=True)
class Contestant:
    """A server as it is measured: with one set of options."""

    name: str
    #: what load makers speak to it; empty: the protocol of the case
    wire: str = ""
    durable: Durable
    #: which part of a case's messages it gets, so that slow servers do not take all day
    share: float = 1.0
    #: settings of the wire
    extra: dict[str, Any] = attrs.field(factory=dict)
    #: (directory, protocol, durability) -> the server
    start: Start
    #: which version that is; raises CannotStart if there is none
    version: Callable[[], str]


def spawn(directory: Path, words: Sequence[str], *, environment: dict[str, str] | None = None) -> Spawned:
    """Run ``words`` in ``directory``, with what it says in the file ``log``.

    :raises CannotStart: there is no such program
    """
    directory.mkdir(parents=True, exist_ok=True)
    with directory.joinpath("log").open("wb") as log:
        try:
            process = subprocess.Popen(
                words,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )
        except OSError as error:
            raise CannotStart(f"{shlex.join(words)} cannot be run: {error.strerror}") from error
    return Spawned(process, directory / "log")


@attrs.define
class Spawned:
    """A process that may serve soon."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait_for(self, done: Callable[[str], bool]) -> str:
        """What it has said when ``done`` says that this will do.

        :raises CannotStart: it ended before, or takes too long
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            ended = self.process.poll() is not None
            said = self.log.read_text(errors="replace")
            if done(said):
                return said
            if ended or time.monotonic() > deadline:
                self.process.kill()
                self.process.wait()
                raise CannotStart(f"{shlex.join(map(str, self.process.args))} does not serve:\n{said[-2000:]}")  # type: ignore[arg-type]
            time.sleep(0.01)


def twistd() -> str:
    """The program that serves.

    :raises CannotStart: it is not there
    """
    beside = Path(sys.executable).with_name("twistd")
    found = str(beside) if beside.exists() else shutil.which("twistd")
    if found is None:
        raise CannotStart("twistd is not installed beside this Python: pip install fyrehose")
    return found


#: What the server is told for each protocol: limits that are there for strangers, and would be what is measured here.
OPTIONS = {
    "figg": ("figg.max-per-host=20000", "figg.max-connections=20000"),
    "lumberjack": ("lumberjack.max-per-host=20000",),
    "relink": ("relink.max-per-host=20000",),
    "backbone": (
        "backbone.push-rate=100000000",
        "backbone.request-rate=100000",
        "backbone.destination-rate=100G",
        "backbone.receive-buffer=16M",
    ),
    "eventbus": (),
}
_LOOPBACK = "tcp:0:interface=127.0.0.1"
_ENDPOINTS = {"backbone": "udp:0:interface=127.0.0.1"}


def fyrehose_words(directory: Path, protocol: str, durability: str, *more: str) -> list[str]:
    """The command line of the server that ``protocol`` is measured with."""
    endpoint = _ENDPOINTS.get(protocol, _LOOPBACK)
    words = [twistd(), "--pidfile=", "-n", "fyrehose", "--data-dir", str(directory / "data")]
    words += ["--durability", durability, "--listen", f"{protocol}={endpoint}", *more]
    for option in OPTIONS.get(protocol, ()):
        words += ["--option", option]
    return words


def start_nothing(directory: Path, protocol: str, durability: str) -> Running:
    """There is no server, and load makers write into ``directory``."""
    spawned = spawn(directory, ["sleep", "86400"])
    return Running(spawned.process, 0, 0, 0, extra={"directory": str(directory)}, serves=False)


def start_fyrehose(directory: Path, protocol: str, durability: str, metrics: bool = False) -> Running:
    """``twistd -n fyrehose`` with one listener, and with that of the metrics where they are wanted."""
    if protocol == "journal":
        return start_nothing(directory, protocol, durability)
    more = ("--listen", f"admin={_LOOPBACK}") if metrics else ()
    spawned = spawn(directory, fyrehose_words(directory, protocol, durability, *more))
    said = spawned.wait_for(lambda text: "#info] serving\n" in text)

    def port_of(protocol: str) -> int:
        return int(re.findall(rf"{protocol} \(\S+\) listens on \S+?:(\d+)\n", said)[-1])

    port = port_of(protocol)
    live, past = (port + 1, port) if protocol == "eventbus" else (port, port)
    publish = port + 2 if protocol == "eventbus" else port
    return Running(spawned.process, publish, live, past, metrics_port=port_of("admin") if metrics else 0)


def fyrehose_version() -> str:
    """Ours, and which kernels it has."""
    return f"{__version__}, {'native' if kernels.NATIVE else 'pure'} kernels"


def metrics_version() -> str:
    """The same, where metrics can be had.

    :raises CannotStart: prometheus-client is not installed
    """
    if find_spec("prometheus_client") is None:
        raise CannotStart("prometheus-client is not installed: pip install 'fyrehose[admin]'")
    return fyrehose_version()


FYREHOSE = Contestant(name="fyrehose", durable=Durable.SYNCED, start=start_fyrehose, version=fyrehose_version)
#: The same as others sync by default: a second later.
FYREHOSE_LATER = Contestant(
    name="fyrehose-later",
    durable=Durable.LATER,
    start=lambda directory, protocol, _: start_fyrehose(directory, protocol, "interval:1000"),
    version=fyrehose_version,
)
#: The same with metrics that somebody scrapes: what they cost.
FYREHOSE_METRICS = Contestant(
    name="fyrehose-metrics",
    durable=Durable.SYNCED,
    start=partial(start_fyrehose, metrics=True),
    version=metrics_version,
)
OURS = {contestant.name: contestant for contestant in (FYREHOSE, FYREHOSE_LATER)}
