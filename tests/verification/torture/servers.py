"""Start, watch, measure and kill the real server: ``twistd -n fyrehose`` in a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from fyrehose.testing import ports as testing_ports

TWISTD = Path(sys.executable).with_name("twistd")
PATIENCE = 60.0
LOOPBACK = "interface=127.0.0.1"
#: The listeners, and the kind of endpoint of each.
LISTENERS = {"figg": "tcp", "backbone": "udp", "lumberjack": "tcp", "relink": "tcp", "eventbus": "tcp"}


def directory(name: str) -> Path:
    """Return the directory of an option, and create it if it does not exist."""
    made = Path(name)
    made.mkdir(parents=True, exist_ok=True)
    return made


def verdict(failed: bool, root: Path) -> int:
    """Keep the directory *root* if something *failed*, otherwise remove it; return the exit status."""
    if failed:
        print(f"the directory is kept: {root}")
        return 1
    shutil.rmtree(root)
    return 0


def listens(ports: dict[str, int], only: bool = False) -> list[str]:
    """Return the options that open every listener and those of ``ports``, or *only* those of ``ports``."""
    every = {name: kind for name, kind in LISTENERS.items() if not only or name in ports}
    kinds = {**every, **{name: "tcp" for name in ports if name not in LISTENERS}}
    return [
        word for name, kind in kinds.items() for word in ("--listen", f"{name}={kind}:{ports.get(name, 0)}:{LOOPBACK}")
    ]


def free_ports(listeners: Sequence[str]) -> dict[str, int]:
    """Return a free port for each of *listeners*, with two free ones behind it, as the event bus needs them."""
    return dict(zip(listeners, testing_ports.free_ports(len(listeners), 3), strict=True))


def is_ready(page: int, question: str = "") -> bool:
    """Return whether the status page at the port *page* answers *question*, by default whether its server leads."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/ready{question}", timeout=2):
            return True
    except OSError:
        return False


class ServerEnded(Exception):
    """The server ended before it was ready."""


class Server:
    """One run of the server, with its journal in ``directory / "data"``."""

    def __init__(
        self,
        directory: Path,
        *words: str,
        before: tuple[str, ...] = (),
        ports: dict[str, int] | None = None,
        only: bool = False,
    ) -> None:
        """Start the server.

        :param ports: the ports of listeners that must have a certain port; the others get any
        :param only: whether these are all listeners, so that they share the descriptors of the process
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.log_path = directory / "log"
        self.log_path.write_bytes(b"")
        self.started = time.monotonic()
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *before,
                    str(TWISTD),
                    "--pidfile=",
                    "-n",
                    "fyrehose",
                    "--data-dir",
                    str(directory / "data"),
                    *listens(ports or {}, only),
                    *words,
                ],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_until(self, words: str) -> None:
        """Wait until the server has logged *words*.

        :raises ServerEnded: the server has ended without logging them
        """
        deadline = time.monotonic() + PATIENCE
        while words not in self.log:
            if self.process.poll() is not None and words not in self.log:
                raise ServerEnded(f"status {self.process.returncode}:\n{self.log}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {words!r} in:\n{self.log}")
            time.sleep(0.005)

    def wait_until_serving(self) -> None:
        self.wait_until("#info] serving\n")

    def port(self, name: str) -> int:
        found = re.findall(rf"{name} \(\S+\) listens on \S+:(\d+)\n", self.log)
        return int(found[-1])

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Send the server a signal, wait for its end, and return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


class Usage:
    """The memory, CPU time and descriptors that a process uses."""

    def __init__(self, pid: int) -> None:
        status = Path(f"/proc/{pid}/status").read_text()
        found, most = (re.search(rf"{name}:\s+(\d+) kB", status) for name in ("VmRSS", "VmHWM"))
        self.resident = int(found[1]) if found else 0
        self.largest = int(most[1]) if most else 0
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        self.cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        self.descriptors = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - only how many
