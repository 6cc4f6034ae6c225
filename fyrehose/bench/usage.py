"""Measure a process as Linux counts it: the CPU time of all its threads, and its memory."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import time
from pathlib import Path

import attrs
import numpy as np

_TICK = 1 / os.sysconf("SC_CLK_TCK")
#: The clock of another process's CPU, all threads, in nanoseconds (include/linux/posix-timers.h).
_CPUCLOCK_SCHED = 2
#: The files with the limits of a container, as it sees them itself.
_CGROUP = Path("/sys/fs/cgroup")
#: Bytes that :func:`touch` allocates at once.
_PIECE = 1 << 28


@attrs.frozen
class Cpu:
    """The CPU seconds of a process since its start."""

    total: float
    #: the seconds that the process itself spent (user time); the kernel spent the rest for it
    user: float
    system: float

    def since(self, before: Cpu) -> Cpu:
        return Cpu(self.total - before.total, self.user - before.user, self.system - before.system)


def cpu(pid: int) -> Cpu:
    """Return the CPU time of process ``pid``; the total is exact to the nanosecond, its parts to 10 ms."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = int(words[11]) * _TICK, int(words[12]) * _TICK
    return Cpu(time.clock_gettime(((~pid) << 3) | _CPUCLOCK_SCHED), user, system)


def memory(pid: int) -> tuple[int, int]:
    """Return the memory of process ``pid`` now, and the largest it ever had, in bytes."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmHWM"):
            found[name] = int(value.split()[0]) << 10
    return found["VmRSS"], found["VmHWM"]


def free_memory() -> int:
    """Return the bytes of memory that a program can get by dropping caches only; less in a container."""
    words = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(words["MemAvailable"].split()[0]) << 10
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max": no limit
        limit = int((_CGROUP / "memory.max").read_text())
        free = min(free, limit - int((_CGROUP / "memory.current").read_text()))
    return max(0, free)


def touch(size: int) -> int:
    """Allocate *size* bytes of memory, write to all of it, and free it; return the number of bytes.

    A new virtual machine gets each page of its memory when it is first used.  Until then, filling the page cache takes
    several times as long.
    """
    pieces = [np.ones(min(_PIECE, size - at), dtype=np.uint8) for at in range(0, size, _PIECE)]
    return sum(piece.nbytes for piece in pieces)


def machine(disk: str) -> str:
    """Describe this machine in one line.

    :param disk: the type of the file system that is measured; on tmpfs a sync costs nothing
    """
    names = re.findall(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    processor = names[0].strip() if names else platform.machine()
    return f"{os.cpu_count()} cores ({processor}), Linux {platform.release()}, disk: {disk}"


def load() -> tuple[float, float, float]:
    """Return the load averages of the machine, as ``uptime`` shows them."""
    return os.getloadavg()
