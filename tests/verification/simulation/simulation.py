"""Run one simulation: a server, clients of some protocols, and faults that happen to them, all chosen by one seed."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from syslog import Syslog
from typing import Any
from unittest.mock import patch

import attrs
from backbone import Backbone
from beats import Beats
from eventbus import EventBus
from figg import TOPICS, Figg
from history import History
from lumberjack import Lumberjack
from relink import Relink
from server import RESERVE, Server
from twisted.logger import LogEvent, LogLevel, formatEvent, globalLogPublisher
from workers import Workers
from world import Violation, World

from fyrehose.journal import quarantine

#: How many steps a simulation may have before all faults end: many short ones find more than a few long ones.
STEPS = (5, 10, 10, 20, 20, 40)
#: One simulation in RARELY has LONG steps.
RARELY, LONG = 100, 150
#: How long clients may wait for missing messages after the last fault, in seconds.
CALM = 240.0

PROTOCOLS: dict[str, tuple[Any, ...]] = {
    "backbone": (Backbone,),
    "beats": (Beats,),
    "eventbus": (EventBus,),
    "figg": (Figg,),
    "lumberjack": (Lumberjack,),
    "relink": (Relink,),
    "syslog": (Syslog,),
    "workers": (Workers,),
    # The clients of Figg and Relink read also the streams that the other protocols' clients publish.
    "mixture": (
        Backbone,
        EventBus,
        Lumberjack,
        partial(Figg, topics=(*Backbone.topics, *EventBus.topics, *Lumberjack.topics, *Relink.topics)),
        partial(Relink, topics=(*Backbone.topics, *EventBus.topics, *Lumberjack.topics, *TOPICS)),
    ),
}

#: How long a server may take until it has noticed that every client has gone, in seconds.
LEAVE = 30.0
#: For how long a client may have begun to connect without that the server counts it, in seconds.
CONNECT = 3.0


@attrs.frozen
class Outcome:
    """The result of a simulation.

    :ivar digest: a checksum of everything that happened, the same in each run of a seed
    :ivar synced: records that were found to be synced when they were released
    :ivar damages: how often the files were damaged
    """

    seed: int
    messages: int
    stored: int
    crashes: int
    lives: int
    digest: str
    synced: int = 0
    damages: int = 0


class Simulation:
    """The simulation of ``seed``, which decides which kinds of faults happen, and how often."""

    def __init__(self, seed: int, protocol: str, root: Path, herd: int = 0) -> None:
        self.world = World(seed)
        dice = self.world.random
        self.history = self._make_history()
        gaps = all(getattr(side, "func", side).gaps for side in PROTOCOLS[protocol])
        self.server = self._make_server(root, gaps and not herd)
        if not herd and all(getattr(side, "retention", False) for side in PROTOCOLS[protocol]):
            self._retain()
        self.errors: list[str] = []
        crowd = {"herd": herd} if herd else {}
        self.sides = [side(self.world, self.server, self.history, **crowd) for side in PROTOCOLS[protocol]]
        self.steps = LONG if dice.random() < 1 / RARELY else dice.choice(STEPS)
        self.often = dice.choice((0.05, 0.1, 0.2, 0.3))
        kinds = self._kinds()
        self.troubles = dice.sample(kinds, dice.randint(1, len(kinds)))
        if self.world.large:
            self.troubles.append(self._damage)  # such simulations are rare, so each of them damages files, too
        self.server.start()

    def _make_history(self) -> History:
        return History()

    def _make_server(self, root: Path, gaps: bool) -> Any:
        return Server(self.world, self.history, root, gaps)

    def _retain(self) -> None:
        """Let retention delete old records, and jobs that were not settled in time."""
        self.server.retain(self.world.random)

    def _kinds(self) -> list[Callable[[], None]]:
        return [
            self._crash,
            self._crash,
            self._damage,
            self._restart,
            self._cut,
            self._cut,
            self._slow,
            self._partition,
            self._fill,
            self._turn_the_clock,
        ]

    def step(self) -> None:
        """Let one event happen, and then some time pass."""
        dice = self.world.random
        if dice.random() < self.often:
            dice.choice(self.troubles)()
        else:
            dice.choice(self.sides).step()
        self.pass_time(dice.choice((0.0, 0.001, 0.01, 0.05, 0.05, 0.3)))
        if dice.random() < 0.03:
            self.pass_time(dice.choice((3.0, 8.0)))

    def _crash(self) -> None:
        self.server.crash()

    def _damage(self) -> None:
        self.server.hurt()

    def _restart(self) -> None:
        self.server.restart()

    def _cut(self) -> None:
        if self.world.links:
            self.world.note("cut")
            self.world.random.choice(self.world.links).cut()

    def _slow(self) -> None:
        if self.world.links:
            link = self.world.random.choice(self.world.links)
            link.slow = not link.slow

    def _partition(self) -> None:
        if self.world.links:
            self.world.note("partition")
            self.world.partition(self.world.random.choice(self.world.links).host, self.world.random.random() * 12)

    def _fill(self) -> None:
        self.server.fill(self.world.random.random() * 6)

    def _turn_the_clock(self) -> None:
        """Step the wall clock by a millisecond to five years, or back to the right time."""
        world, dice = self.world, self.world.random
        if world.lie and dice.random() < 0.3:
            world.turn_clock(-world.lie)
        else:
            world.turn_clock(dice.choice((-1, 1)) * int(10 ** (3 + 11.2 * dice.random())))

    def pass_time(self, seconds: float) -> None:
        self.world.clock.pass_time(seconds)
        self.server.check()
        self.check_errors()

    def check_errors(self) -> None:
        if self.errors:
            raise Violation(f"an error was logged: {self.errors[0]}")

    def run(self, steps: int | None) -> None:
        """Run the simulation with ``steps`` steps, or as many as the seed decides."""
        for _ in range(self.steps if steps is None else steps):
            self.step()

    def calm(self) -> None:
        """Stop all faults, and check that every client gets what it waits for."""
        world = self.world
        self.server.full = False
        for host in sorted(world.partitioned):
            world.heal(host)
        for link in world.links:
            link.slow = False
        for side in self.sides:
            side.calm()
        self.settle(CALM)

    def settle(self, most: float) -> None:
        """Wait until no client waits for a message or an acknowledgement, for at most ``most`` seconds."""
        until = self.world.clock.seconds() + most
        while owed := ("the server is down" if not self.server.up else self.owed()):
            if self.world.clock.seconds() > until:
                raise Violation(f"{most:g} s after the last fault: {owed}")
            self.pass_time(0.25)

    def owed(self) -> str:
        return next(filter(None, (side.settled() for side in self.sides)), "")

    def observe(self, event: LogEvent) -> None:
        if event.get("log_failure") is not None or event.get("log_level") in (LogLevel.error, LogLevel.critical):
            self.errors.append(f"{formatEvent(event)} {event.get('log_failure', '')}")

    def outcome(self) -> Outcome:
        history, trace = self.history, hashlib.sha256("\n".join(self.world.trace).encode())
        for stream, truth in sorted(history.truth.items()):
            trace.update(stream.encode() + b"".join(filter(None, truth)))
        return Outcome(
            self.world.seed,
            sum(side.counts() for side in self.sides),
            sum(payload is not None for truth in history.truth.values() for payload in truth),
            self.server.crashes,
            self.server.lives,
            trace.hexdigest(),
            history.checked,
            self.server.damages,
        )

    def close(self) -> None:
        for side in self.sides:
            side.close()
        self._wait_until_left()
        for link in list(self.world.links):
            link.cut()  # those of clients that never leave by themselves
        if left := self._wait_until_left():
            raise Violation(left)
        self.server.close()

    def _wait_until_left(self) -> str:
        """Wait until the server counts nothing of clients any more; return what it counts after LEAVE seconds."""
        clock = self.world.clock
        until = clock.seconds() + LEAVE
        clock.pass_time(CONNECT)
        while (left := self.server.still_counted()) and clock.seconds() < until:
            clock.pass_time(1.0)
        return left


def simulate(
    seed: int,
    protocol: str,
    steps: int | None = None,
    trace: list[str] | None = None,
    make: Callable[[int, str, Path], Simulation] = Simulation,
) -> Outcome:
    """Run the simulation of ``seed``.

    :param steps: how many steps it has; None if the seed decides
    :param trace: a list that receives a line for each event
    :param make: the class of the simulation, such as those of herds.py
    :raises Violation: a rule was broken
    """
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
    root = Path(tempfile.mkdtemp(prefix="fyrehose-simulation-", dir=base))
    simulation = make(seed, protocol, root)
    if trace is not None:
        simulation.world.trace = trace
    globalLogPublisher.addObserver(simulation.observe)
    try:
        # With fewer reserved numbers, gaps are short enough for the checks to visit each number.
        with patch.object(quarantine, "RESERVE", RESERVE):
            simulation.run(steps)
            simulation.calm()
            outcome = simulation.outcome()
            simulation.close()
        gc.collect()  # a failed Deferred that nobody handled logs its error when it is collected
        simulation.check_errors()
        return outcome
    except Violation as violation:
        raise Violation(f"seed {seed} of {protocol}: {violation}") from None
    finally:
        globalLogPublisher.removeObserver(simulation.observe)
        simulation.server.close()
        shutil.rmtree(root)
