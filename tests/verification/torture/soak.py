#!/usr/bin/env python3
"""Run mixed load with random faults for any time, and watch memory, descriptors, and losses.

    soak.py [--minutes M | --attacks N] [--seed S] [--every SECONDS] [--kills] [--directory DIR]

The clients of kill9.py publish and read through all five listeners, while other clients connect, send invalid data, and
disconnect (attacker.py); retention deletes.  About every --every seconds all clients are disconnected, acknowledged and
delivered messages are checked, and the memory and descriptors of the server are measured.  With --kills the server is
killed in between, at random; without it, one process runs from the beginning to the end, so that the growth of its
memory is meaningful.  With --attacks there are so many attacks without pauses, one check, and no retention.

The exit status is 1 if a rule was broken, or if the server grew by more than 32 descriptors, or by more than 256 MiB
between two checks, or by more than --slope MiB an hour over the second half of a run of at least 20 checks.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import attacker
import kill9
import kills
import servers

#: How many clients send invalid data in a second.
STRANGERS = 20
#: How much the server may grow during attacks, in KiB, including the memory for its honest clients.
GROWTH = 256 << 10


class Soak:
    """A journal, which one server at a time opens."""

    def __init__(self, root: Path, arguments: argparse.Namespace) -> None:
        self.arguments, self.dice = arguments, random.Random(arguments.seed)
        self.life = kill9.Life(root, self.dice, "batch", strangers=True)
        self.life.segment_size, self.life.keep = 4 << 20, 0 if arguments.attacks else 32 << 20
        #: (seconds, KiB, descriptors) at each check of the present server
        self.taken: list[tuple[float, int, int]] = []
        self.strangers = self.kills = self.checks = 0
        self.began = time.monotonic()

    def run(self) -> None:
        server = self._start()
        try:
            while not self.is_over and not self.life.problems:
                self._load(server)
                if self.arguments.kills and self.dice.random() < 0.5:
                    server.kill()
                    self.life.bus.hang_up()
                    self.kills += 1
                    server = self._start()
                self._check(server)
            if not self.life.problems and (status := server.kill(servers.signal.SIGTERM)):
                self.life.problems.append(f"status {status} after SIGTERM")
        finally:
            server.process.kill()
            server.process.wait()
            self.life.bus.hang_up()
        self.life.problems += [line for line in server.log.splitlines() if "Traceback" in line or "#critical]" in line][
            :3
        ]

    @property
    def is_over(self) -> bool:
        """Return whether all attacks were made, or, without a number of attacks, whether the minutes are over."""
        if self.arguments.attacks:
            return self.strangers >= self.arguments.attacks
        return time.monotonic() - self.began >= 60 * self.arguments.minutes

    def _start(self) -> servers.Server:
        server = self.life.start()
        server.wait_until_serving()
        self.taken.clear()
        return server

    def _load(self, server: servers.Server) -> None:
        self.life.load(server)
        time.sleep(1)
        before = servers.Usage(server.process.pid).resident
        ports = {listener: server.port(listener) for listener in servers.LISTENERS}
        stranger = attacker.Attacker(ports, self.dice.randrange(1 << 30))
        deadline = time.monotonic() + self.dice.uniform(0.5, 2) * self.arguments.every
        while not self.is_over if self.arguments.attacks else time.monotonic() < deadline:
            stranger.attack()
            self.strangers += 1
            time.sleep(0 if self.arguments.attacks else 1 / STRANGERS)
        grown = servers.Usage(server.process.pid).resident - before
        if grown > GROWTH:
            self.life.problems.append(f"the server grew by {grown} KiB")
        for peer in stranger.open:
            peer.close()

    def _check(self, server: servers.Server) -> None:
        self.life.check(server)
        self.checks += 1
        time.sleep(1)
        usage = servers.Usage(server.process.pid)
        self.taken.append((time.monotonic() - self.began, usage.resident, usage.descriptors))
        print(
            f"{self.taken[-1][0]:.0f} s: {sum(self.life.acked.values())} acknowledged, {self.life.kept} kept, "
            f"{usage.resident >> 10} MiB, {usage.descriptors} descriptors, {self.strangers} strangers, "
            f"{self.kills} kills, {len(self.life.problems)} violations",
            flush=True,
        )

    def slope(self) -> float | None:
        """Return how the memory grew in the second half, in MiB an hour; None if there were too few checks."""
        half = self.taken[len(self.taken) // 2 :]
        if len(self.taken) < 20:
            return None
        line = statistics.linear_regression([at for at, _, _ in half], [float(size) for _, size, _ in half])
        return line.slope * 3600 / 1024


def main() -> int:
    parser = kills.parser_of(__doc__, attacks=0)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two checks, about")
    parser.add_argument("--kills", action="store_true")
    parser.add_argument("--slope", type=float, default=1.0, help="MiB an hour that the memory may grow")
    arguments = parser.parse_args()
    root = kills.root_of(arguments, "soak")
    soak = Soak(root, arguments)
    problems = soak.life.problems
    try:
        soak.run()
    except (servers.ServerEnded, OSError, ValueError) as error:
        problems.append(f"{type(error).__name__}: {error}")
    finally:
        soak.life.close()
    slope = soak.slope()
    if slope is not None and slope > arguments.slope and soak.taken[-1][0] >= 3600:
        problems.append(f"the memory grows by {slope:.1f} MiB an hour")
    if soak.taken and soak.taken[-1][2] > soak.taken[0][2] + 32:
        problems.append(f"{soak.taken[0][2]} descriptors at first, {soak.taken[-1][2]} at last")
    said = "too short to say how its memory grows" if slope is None else f"memory {slope:+.1f} MiB an hour"
    listeners = ", ".join(f"{listener} {count}" for listener, count in soak.life.by_listener().items())
    print(
        f"{(time.monotonic() - soak.began) / 60:.1f} minutes, {soak.checks} checks, {soak.kills} kills, "
        f"{soak.strangers} strangers (seed {arguments.seed}): acknowledged {listeners}; {said}; "
        f"{len(problems)} violations"
    )
    for problem in problems[:20]:
        print(f"VIOLATION: {problem}")
    return servers.verdict(bool(problems), root)


if __name__ == "__main__":
    sys.exit(main())
