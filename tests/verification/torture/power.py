#!/usr/bin/env python3
"""Cut the power of a journal's disk, thousands of times, and check what is left.

    power.py [--count N] [--seed S] [--fs ext4|xfs] [--options O] [--durability MODE] [--directory DIR] [--sabotage]

A *cycle*: a process opens the journal and checks everything in it; it appends to several streams as fast as the disk
syncs; the power is cut; the disk is mounted again.  The process runs the real journal (`FileJournal`: group commits,
rolling, retention, indexes), but no server, so that a cycle takes some milliseconds; faults.py cuts the power of whole
servers.  The power is cut right before or after the Nth system call of the process, which may be one of recovery, or at
a random time; then the process is killed, or continues on a disk that fails.

The process reports through a pipe, which outlives it.  Checked in each cycle:

  - what was acknowledged is there, unchanged (not with --durability never or interval);
  - a number that was ever acknowledged or read always has the same message;
  - an append is there completely or not at all, and appends are in order;
  - numbers follow on, nothing else is there, and the journal opens.

Needs root; if it cannot run, it prints why, with exit status 0.  The exit status is 1 if a rule was broken.  With
--sabotage the journal's syncs do nothing, to test that this program notices it.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
from twisted.logger import globalLogBeginner

sys.path.insert(0, str(Path(__file__).parent))

import disks
import power_model
import power_writer
import servers

from fyrehose.journal.files import SteppedFiles
from fyrehose.journal.settings import JournalSettings, durability

#: How often a process appends before it closes the journal in order.
TURNS = 40
#: After how many cycles a new journal begins.
LIFE = 20


@attrs.define(slots=False)
class CutFiles(SteppedFiles):
    """Files that cut the power before or after the ``nth`` system call."""

    where: Path
    nth: int
    before: bool
    sabotage: bool
    calls: int = 0

    def _call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        self.calls += 1
        if self.calls == self.nth and self.before:
            disks.cut_power(self.where)
        result = call(*arguments)
        if self.calls == self.nth and not self.before:
            disks.cut_power(self.where)
        return result

    def open(self, path: Path, flags: int) -> int:
        return int(self._call(super().open, path, flags))

    def write(self, fd: int, data: bytes, offset: int) -> None:
        self._call(super().write, fd, data, offset)

    def sync(self, fd: int) -> None:
        self._call((lambda fd: None) if self.sabotage else super().sync, fd)

    def allocate(self, fd: int, offset: int, size: int) -> None:
        self._call(super().allocate, fd, offset, size)

    def truncate(self, fd: int, size: int) -> None:
        self._call(super().truncate, fd, size)

    def rename(self, old: Path, new: Path) -> None:
        self._call(super().rename, old, new)

    def unlink(self, path: Path) -> None:
        self._call(super().unlink, path)

    def sync_directory(self, directory: Path) -> None:
        self._call((lambda directory: None) if self.sabotage else super().sync_directory, directory)


class Bench:
    """The disk, the journal on it, and the problems that were found."""

    def __init__(self, disk: disks.LoopDisk, arguments: argparse.Namespace) -> None:
        self.disk, self.arguments, self.dice = disk, arguments, random.Random(arguments.seed)
        self.problems: list[str] = []
        self.acked = self.kept = self.lost = self.cuts = 0
        self.new_life()

    def new_life(self) -> None:
        if self.cuts:
            shutil.rmtree(self.model.directory)
        mode = durability(self.arguments.durability)
        self.model = power_model.Model(self.disk.where / f"life-{self.cuts}", mode.mode == "batch")
        self.settings = JournalSettings(
            durability=mode,
            min_free=0,
            segment_size=self.dice.choice((4 << 10, 16 << 10, 64 << 10, 1 << 20)),
            keep_bytes=self.dice.choice((0, 0, 40 << 10)),
        )

    def cycle(self) -> None:
        """Run one process, and cut the power once."""
        dice = self.dice
        timed = dice.random() < 0.3
        nth = 0 if timed else dice.randrange(1, dice.choice((30, 100, 250)))
        files = CutFiles(self.disk.where, nth, dice.random() < 0.5, self.arguments.sabotage)
        ours, theirs = os.pipe()
        seed = dice.randrange(1 << 30)
        pid = os.fork()
        if not pid:
            self._in_child(ours, theirs, files, seed)
        os.close(theirs)
        said = _listen(ours, self.disk if timed else None, dice.uniform(0, 0.06))
        if dice.random() < 0.5:
            os.kill(pid, signal.SIGKILL)
        said += _listen(ours, None, None)
        os.close(ours)
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) not in (0, -signal.SIGKILL):
            self.problems.append(f"cycle {self.cuts}: the process ended with status {status}")
        self.disk.cut()  # in case the process has ended before its power was cut
        self.disk.restart()
        self.cuts += 1
        self.problems += [f"cycle {self.cuts} (seed {self.arguments.seed}): {p}" for p in self.model.hear(said)]

    def _in_child(self, ours: int, theirs: int, files: CutFiles, seed: int, turns: int = TURNS) -> None:
        status = 1
        try:
            os.close(ours)

            def tell(*words: Any) -> None:
                os.write(theirs, f"{words!r}\n".encode())

            child = power_writer.Writer(self.model, files, self.settings, tell, seed)
            try:
                child.live(turns)
            except Exception as error:
                child.wrong(f"{type(error).__name__}: {error}")
            status = 0
        finally:
            os._exit(status)

    def last_look(self) -> None:
        """Check what the last power cut has left, without another one."""
        ours, theirs = os.pipe()
        if not (pid := os.fork()):
            self._in_child(ours, theirs, CutFiles(self.disk.where, 0, False, False), 1, turns=0)
        os.close(theirs)
        said = _listen(ours, None, None)
        os.close(ours)
        os.waitpid(pid, 0)
        self.problems += [f"the last look: {p}" for p in self.model.hear(said)]
        self.acked, self.kept = self.acked + self.model.acknowledged, self.kept + self.model.kept
        self.lost += self.model.lost


def _listen(pipe: int, disk: disks.LoopDisk | None, seconds: float | None) -> bytes:
    """Return what *pipe* yields until it is closed; after ``seconds`` cut the power of ``disk``, and stop reading."""
    said, deadline = [], None if seconds is None else time.monotonic() + seconds
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not select.select([pipe], [], [], left)[0]:
            break
        piece = os.read(pipe, 1 << 16)
        said.append(piece)
        if not piece:
            break
    if disk is not None:
        disk.cut()
    return b"".join(said)


def run(arguments: argparse.Namespace, directory: Path) -> Bench:
    disk = disks.LoopDisk(directory, arguments.fs, arguments.options)
    try:
        bench = Bench(disk, arguments)
        times = []
        for n in range(arguments.count):
            began = time.monotonic()
            bench.cycle()
            times.append(time.monotonic() - began)
            if (n + 1) % LIFE == 0 or bench.problems or n + 1 == arguments.count:
                bench.last_look()
                if bench.problems:
                    break
                bench.new_life()
            if (n + 1) % 1000 == 0:
                print(f"{n + 1} cuts, {bench.acked} appends acknowledged", flush=True)
        spread = statistics.quantiles(times, n=20) if len(times) > 1 else times * 20
        print(
            f"{bench.cuts} power cuts, {arguments.fs} {arguments.options}, durability {arguments.durability}, seed "
            f"{arguments.seed}: {bench.acked} appends acknowledged, {bench.kept} kept, {bench.lost} acknowledged ones "
            f"gone, {len(bench.problems)} violations; ms a cycle: median {1000 * statistics.median(times):.0f}, "
            f"5% {1000 * spread[0]:.0f}, 95% {1000 * spread[-1]:.0f}"
        )
        return bench
    finally:
        disk.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="power cuts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fs", choices=disks.SIZES, default="ext4")
    parser.add_argument("--options", default="", help="mount options, such as data=writeback")
    parser.add_argument("--durability", default="batch")
    parser.add_argument("--directory", type=servers.directory, help="for the disk's image; in memory by default")
    parser.add_argument("--sabotage", action="store_true")
    arguments = parser.parse_args()
    base = arguments.directory or (Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None)
    root = Path(tempfile.mkdtemp(prefix="fyrehose-power-", dir=base))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # SIGTERM must unmount the disk, too
    globalLogBeginner.beginLoggingTo([], discardBuffer=True, redirectStandardIO=False)
    try:
        bench = run(arguments, root)
    except disks.NotHere as reason:
        print(f"skipped: {reason}")
        return 0
    finally:
        shutil.rmtree(root)
    for problem in bench.problems[:20]:
        print(f"VIOLATION: {problem}")
    return 1 if bench.problems else 0


if __name__ == "__main__":
    sys.exit(main())
