"""Servers to measure, each started as a process in an empty directory."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import attrs

from fyrehose import __version__, kernels
from fyrehose.errors import FyrehoseError

#: Timeout of starting or stopping a server, in seconds.
PATIENCE = 60.0


class CannotStart(FyrehoseError):
    """A server to measure is not installed, or does not start."""


@attrs.define
class Running:
    """A running server."""

    process: subprocess.Popen[bytes]
    #: the addresses for publishers, for live subscribers, and for requests of earlier messages
    port: int
    live_port: int
    past_port: int
    #: settings that its load makers need
    extra: dict[str, Any] = attrs.field(factory=dict)
    #: whether there is a server process whose CPU and memory are measured
    serves: bool = True

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop the server, and wait until it has ended."""
        self.process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE)
        self.process.kill()
        self.process.wait()


#: A function that starts a server in a directory, for a protocol.
Start = Callable[[Path, str, str], Running]


class Durable(Enum):
    """The guarantee of an acknowledgement; only servers with the same guarantee are compared."""

    SYNCED = "synced"  #: the message is on the disk
    LATER = "later"  #: the message will be on the disk soon
    NEVER = "memory"  #: the message is in memory


@attrs.frozen(kw_only=True)
class Contestant:
    """A server to measure, with one set of options."""

    name: str
    #: the protocol that load makers use with it; empty: the protocol of the case
    wire: str = ""
    durable: Durable
    #: the fraction of a case's messages that it gets, so that slow servers do not take all day
    share: float = 1.0
    #: settings of the wire
    extra: dict[str, Any] = attrs.field(factory=dict)
    #: starts the server; called with the directory, the protocol and the durability
    start: Start
    #: returns the version of the server; raises CannotStart if it is not installed
    version: Callable[[], str]


def spawn(
    directory: Path, words: Sequence[str], ready: Callable[[str], bool] = lambda said: True
) -> tuple[subprocess.Popen[bytes], str]:
    """Run the command ``words`` in ``directory``, and return the process and its output once it is ready.

    :param ready: returns whether a server with this output, which is also in the file ``log``, is ready
    :raises CannotStart: the program does not exist, ended before it was ready, or takes too long
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "log"
    with path.open("wb") as log:
        try:
            process = subprocess.Popen(
                words, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise CannotStart(f"{shlex.join(words)} cannot be run: {error.strerror}") from error
    deadline = time.monotonic() + PATIENCE
    while True:
        ended = process.poll() is not None
        said = path.read_text(errors="replace")
        if ready(said):
            return process, said
        if ended or time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise CannotStart(f"{shlex.join(words)} does not serve:\n{said[-2000:]}")
        time.sleep(0.01)


def twistd() -> str:
    """Return the path of ``twistd``.

    :raises CannotStart: twistd is not installed
    """
    beside = Path(sys.executable).with_name("twistd")
    found = str(beside) if beside.exists() else shutil.which("twistd")
    if found is None:
        raise CannotStart("twistd is not installed beside this Python: pip install fyrehose")
    return found


#: Options of each protocol that lift the limits for untrusted clients, so that limits are not measured.
OPTIONS = {
    "figg": ("figg.max-per-host=20000", "figg.max-connections=20000"),
    "http": ("http.max-per-host=20000",),
    "lumberjack": ("lumberjack.max-per-host=20000",),
    "relink": ("relink.max-per-host=20000",),
    "backbone": (
        "backbone.push-rate=500000000",
        "backbone.destination-rate=100G",
    ),
    "eventbus": (),
}
#: Options for all protocols: the limit of streams, because one load maker creates all streams.
SERVER_OPTIONS = tuple(
    f"server.{name}=200000" for name in ("max-streams", "streams-per-address", "subscriptions-per-address")
)
LOOPBACK = "tcp:0:interface=127.0.0.1"
_ENDPOINTS = {"backbone": "udp:0:interface=127.0.0.1"}


def fyrehose_words(directory: Path, protocol: str, durability: str, *more: str) -> list[str]:
    """Return the command line of the server for ``protocol``."""
    endpoint = _ENDPOINTS.get(protocol, LOOPBACK)
    words = [twistd(), "--pidfile=", "-n", "fyrehose", "--data-dir", str(directory / "data")]
    words += ["--durability", durability, "--listen", f"{protocol}={endpoint}", *more]
    for option in (*SERVER_OPTIONS, *OPTIONS.get(protocol, ())):
        words += ["--option", option]
    return words


def start_nothing(directory: Path, protocol: str, durability: str) -> Running:
    """Return a stand-in for a server, for load makers that need none because they write into ``directory``."""
    process, _ = spawn(directory, ["sleep", "86400"])
    return Running(process, 0, 0, 0, extra={"directory": str(directory)}, serves=False)


def start_fyrehose(directory: Path, protocol: str, durability: str, *more: str) -> Running:
    """Start ``twistd -n fyrehose`` with one listener.

    :param more: further words of the command line
    """
    if protocol == "journal":
        return start_nothing(directory, protocol, durability)
    words = fyrehose_words(directory, protocol, durability, *more)
    process, _ = spawn(directory, words, lambda said: "#info] serving\n" in said)
    port = port_of(directory, protocol)
    live, past = (port + 1, port) if protocol == "eventbus" else (port, port)
    return Running(process, port + 2 if protocol == "eventbus" else port, live, past)


def port_of(directory: Path, protocol: str) -> int:
    """Return the port of the last listener of *protocol* that the server in *directory* has logged."""
    said = directory.joinpath("log").read_text(errors="replace")
    return int(re.findall(rf"{protocol} \(\S+\) listens on \S+?:(\d+)\n", said)[-1])


def fyrehose_version() -> str:
    """Return the version of Fyrehose, and the kind of its kernels."""
    return f"{__version__}, {'native' if kernels.NATIVE else 'pure'} kernels"


FYREHOSE = Contestant(name="fyrehose", durable=Durable.SYNCED, start=start_fyrehose, version=fyrehose_version)
#: Fyrehose with syncs as other servers have them by default: a second later.
FYREHOSE_LATER = Contestant(
    name="fyrehose-later",
    durable=Durable.LATER,
    start=lambda directory, protocol, _: start_fyrehose(directory, protocol, "interval:1000"),
    version=fyrehose_version,
)
OURS = {contestant.name: contestant for contestant in (FYREHOSE, FYREHOSE_LATER)}
