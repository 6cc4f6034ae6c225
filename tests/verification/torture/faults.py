#!/usr/bin/env python3
"""Let the disk of the real server fail under load, and check all promises as in kill9.py.

    faults.py [--count N] [--seed S] [--part full|limit|power|unsynced ...]

    full      the disk fills up (a small tmpfs; needs root): the server must refuse messages, serve subscribers, and
              accept messages again when there is room
    limit     the same with RLIMIT_FSIZE, which gives EFBIG after a short write
    power     --count power cuts (ext4 on a loop device, EXT4_IOC_SHUTDOWN without flushing its log; needs root):
              unsynced data is lost, but no acknowledged message may be
    unsynced  the same with --durability never: acknowledged messages may be lost, but no number may be used twice

Prints a line for each part, with the reason if it cannot run here.  The exit status is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import disks
import kill9
import servers

FULL = "the journal is read-only"
AGAIN = "the journal is writable again"


class Bench:
    """A journal under load, and the problems that were found."""

    def __init__(self, root: Path, dice: random.Random, segment_size: int) -> None:
        self.life = kill9.Life(root, dice, "batch")
        self.life.segment_size = segment_size
        self.dice = dice

    @property
    def problems(self) -> list[str]:
        return self.life.problems

    @property
    def acked(self) -> int:
        return sum(self.life.acked.values())

    def expect(self, what: bool, said: str) -> None:
        if not what:
            self.problems.append(said)

    def serve(self) -> servers.Server:
        """Start a server without faults, and check that it has everything that was promised."""
        server = self.life.start()
        try:
            server.wait_until_serving()
            self.life.check(server)
        except BaseException:
            server.process.kill()
            server.process.wait()
            raise
        return server


def full(bench: Bench, count: int) -> str:
    data = bench.life.directory / "data"
    data.mkdir(parents=True)
    words = ["mount", "-t", "tmpfs", "-o", "size=64M", "tmpfs", str(data)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise disks.NotHere(f"{' '.join(words)}: {ended.stderr.strip()}")
    try:
        return _fill_up(bench, data)
    finally:
        subprocess.run(["umount", str(data)], check=True)


def _fill_up(bench: Bench, data: Path) -> str:
    filler = data / "filler"

    def take_room(server: servers.Server) -> None:
        # Only now, because no journal is made in a directory with other files.
        filler.write_bytes(bytes(max(0, shutil.disk_usage(data).free - (8 << 20))))

    def make_room(server: servers.Server) -> None:
        filler.unlink()

    return _stop_and_go(bench, make_room, take_room)


def limit(bench: Bench, count: int) -> str:
    def take_room(server: servers.Server) -> None:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (700_000, resource.RLIM_INFINITY))

    def make_room(server: servers.Server) -> None:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    return _stop_and_go(bench, make_room, take_room)


def _stop_and_go(
    bench: Bench,
    make_room: Callable[[servers.Server], None],
    take_room: Callable[[servers.Server], None],
) -> str:
    server = bench.serve()
    try:
        # First with room: on a busy machine the first commit may be larger than what is left afterwards.
        _load(bench, server)
        take_room(server)
        bench.life.load(server)
        server.wait_until(FULL)
        time.sleep(0.3)
        bench.life.check(server)  # reading everything shows that subscribers are served
        before = bench.acked
        bench.expect(before > 0, "nothing was acknowledged before the disk was full")
        bench.expect(server.process.poll() is None, "it ended when the disk was full")
        make_room(server)
        server.wait_until(AGAIN)
        _load(bench, server)
        after = bench.acked
        bench.expect(after > before, "nothing was acknowledged when there was room again")
        status = server.kill(signal.SIGTERM)
        bench.expect(status == 0, f"status {status} after SIGTERM:\n{server.log}")
    finally:
        server.process.kill()
        server.process.wait()
    bench.serve().kill()
    return f"{before} acknowledged before, {after - before} after there was room again"


def _load(bench: Bench, server: servers.Server) -> None:
    """Load the server until something is acknowledged, or for a minute, and check what is stored."""
    before, deadline = bench.acked, time.monotonic() + servers.PATIENCE
    while bench.acked == before and time.monotonic() < deadline:
        bench.life.load(server)
        time.sleep(0.2)
        bench.life.check(server)


def unsynced(bench: Bench, count: int) -> str:
    bench.life.durability, bench.life.may_lose = "never", True
    return power(bench, count)


def power(bench: Bench, count: int) -> str:
    disk = disks.LoopDisk(bench.life.directory, size=512 << 20)
    data = bench.life.directory / "data"
    data.symlink_to(disk.where)
    statuses: Counter[int] = Counter()
    try:
        for _ in range(count):
            status = _cut_power(bench, disk)
            statuses[status] += 1
            bench.expect(status in (-9, 4), f"status {status} after the disk had gone")
            if bench.problems:
                break
        bench.serve().kill()
    finally:
        disk.close()
    return (
        f"{statuses.total()} cuts; the server was killed with the disk {statuses[-9]} times, and ended itself with "
        f"status 4 {statuses[4]} times"
    )


def _cut_power(bench: Bench, disk: disks.LoopDisk) -> int:
    server = bench.serve()
    bench.life.load(server)
    time.sleep(bench.dice.uniform(0, 0.3))
    disk.cut()
    if bench.dice.random() < 0.5:
        server.process.kill()
    status = server.process.wait(servers.PATIENCE)
    disk.restart()
    return status


PARTS: dict[str, tuple[Callable[[Bench, int], str], int]] = {
    "full": (full, 256 << 10),
    "limit": (limit, 1 << 20),
    "power": (power, 256 << 10),
    "unsynced": (unsynced, 256 << 10),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5, help="how many power cuts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", choices=PARTS, action="append")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="fyrehose-faults-"))
    violations = 0
    for name in arguments.part or PARTS:
        part, segment_size = PARTS[name]
        bench = Bench(root / name, random.Random(arguments.seed), segment_size)
        began = time.monotonic()
        try:
            said = part(bench, arguments.count)
        except disks.NotHere as reason:
            print(f"{name}: skipped, {reason}", flush=True)
            continue
        except (servers.ServerEnded, OSError, ValueError) as error:
            said = "it came to an end"
            bench.problems.append(f"{type(error).__name__}: {error}")
        finally:
            bench.life.close()
        for problem in bench.problems[:20]:
            print(f"VIOLATION: {name}: {problem}")
        violations += len(bench.problems)
        seconds = time.monotonic() - began
        print(
            f"{name}: {said}; {bench.acked} acknowledged, {len(bench.problems)} violations, {seconds:.0f} s", flush=True
        )
    return servers.verdict(bool(violations), root)


if __name__ == "__main__":
    sys.exit(main())
