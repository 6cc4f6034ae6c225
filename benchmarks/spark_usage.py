"""Measure the CPU seconds and the peak memory of a process and its descendants.

Memory is the sum of the proportional set sizes (PSS): what processes share, as Spark's forked Python workers do, is
counted once.  It is looked at a few times a second, so a shorter peak may be missed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import Popen

import attrs

#: Interval at which memory is sampled, in seconds.
INTERVAL = 0.25
_TICK = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> dict[int, float]:
    """Return the process ``pid`` and its descendants, with the CPU seconds of each and of its ended children."""
    found: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[int(path.name)] = int(fields[1]), sum(map(int, fields[11:15])) / _TICK

    def below(parent: int) -> Iterator[int]:
        yield parent
        for child, (its_parent, _) in found.items():
            if its_parent == parent:
                yield from below(child)

    return {one: found[one][1] for one in below(pid) if one in found}


def cpu_seconds(pid: int | None = None) -> float:
    """Return the CPU seconds of ``pid`` (by default this process) and its descendants."""
    return sum(tree(pid or os.getpid()).values())


def memory(pids: Sequence[int]) -> int:
    """Return the memory of these processes in bytes; shared memory counts once."""
    return sum(_pss(pid) for pid in pids)


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it has ended
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)


@attrs.frozen(kw_only=True)
class Used:
    """Resources that a command has used.

    :ivar wall, cpu: seconds
    :ivar peak: bytes at the most, all processes together; ``parts``: what each kind of them had at that moment
    """

    status: int
    output: str
    wall: float
    cpu: float
    peak: int
    parts: Mapping[str, int]

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size >> 20}" for name, size in self.parts.items())
        return f"{self.wall:.1f} s wall, {self.cpu:.1f} s CPU, {self.peak >> 20} MiB at the most ({parts})"


def run(words: Sequence[str], environ: Mapping[str, str] | None = None) -> Used:
    """Run a command to its end, and measure its resources."""
    began = time.monotonic()
    with Popen(words, stdout=-1, text=True, env=environ) as process:
        done = threading.Event()
        cpu, peak, parts = 0.0, 0, dict[str, int]()

        def watch() -> None:
            nonlocal cpu, peak, parts
            while not done.wait(INTERVAL):
                found = tree(process.pid)
                cpu = max(cpu, sum(found.values()))
                sizes = {pid: memory([pid]) for pid in found}
                if sum(sizes.values()) > peak:
                    peak, parts = sum(sizes.values()), _by_kind(process.pid, sizes)

        watching = threading.Thread(target=watch)
        watching.start()
        output = process.communicate()[0]
        done.set()
        watching.join()
    return Used(
        status=process.returncode, output=output, wall=time.monotonic() - began, cpu=cpu, peak=peak, parts=parts
    )


def _by_kind(driver: int, sizes: Mapping[int, int]) -> dict[str, int]:
    parts = {"driver": 0, "JVM": 0, "workers": 0}
    for pid, size in sizes.items():
        try:
            java = (Path(f"/proc/{pid}") / "comm").read_text().strip() == "java"
        except OSError:
            java = False
        parts["driver" if pid == driver else "JVM" if java else "workers"] += size
    return parts
