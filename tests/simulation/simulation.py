"""One simulation: a server, clients of some protocols, and everything that may happen to them, from one seed."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from backbone import Backbone
from figg import Figg
from history import History
from lumberjack import Lumberjack
from server import Server
from twisted.logger import LogEvent, LogLevel, formatEvent, globalLogPublisher
from world import Violation, World

#: How many steps a simulation has before it is left alone, and how long everything may take to come right then.
STEPS = 150
CALM = 240.0

PROTOCOLS: dict[str, tuple[Any, ...]] = {
    "backbone": (Backbone,),
    "figg": (Figg,),
    "lumberjack": (Lumberjack,),
    # Figg's clients read what the others publish: one order for all.
    "mixture": (Backbone, Lumberjack, partial(Figg, topics=(*Backbone.topics, *Lumberjack.topics))),
}


@attrs.frozen
class Outcome:
    """What a simulation has come to.

    :ivar digest: of everything that happened: the same for the same seed
    """

    seed: int
    messages: int
    stored: int
    crashes: int
    lives: int
    digest: str


class Simulation:
    """The simulation of ``seed``."""

    def __init__(self, seed: int, protocol: str, root: Path) -> None:
        self.world = World(seed)
        self.history = History()
        self.server = Server(self.world, self.history, root)
        self.errors: list[str] = []
        self.sides = [side(self.world, self.server, self.history) for side in PROTOCOLS[protocol]]
        self.server.start()

    def step(self) -> None:
        """Something happens, and then some time passes."""
        world, dice = self.world, self.world.random
        what = dice.random()
        if what < 0.6:
            dice.choice(self.sides).step()
        elif what < 0.62 and self.server.up:
            self.server.crash()
        elif what < 0.63:
            self.server.restart()
        elif what < 0.65 and world.links:
            world.note("cut")
            dice.choice(world.links).cut()
        elif what < 0.66 and world.links:
            link = dice.choice(world.links)
            link.slow = not link.slow
        elif what < 0.67 and world.links:
            world.note("partition")
            world.partition(dice.choice(world.links).host, dice.random() * 12)
        elif what < 0.68:
            world.wall_offset += dice.choice((-1, 1)) * dice.choice((1_000, 3_600_000_000))
        self.pass_time(dice.choice((0.0, 0.001, 0.01, 0.05, 0.05, 0.3)))
        if dice.random() < 0.02:
            self.pass_time(dice.choice((3.0, 8.0)))

    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)
        if self.errors:
            raise Violation(f"an error was logged: {self.errors[0]}")
        self.server.check()

    def calm(self) -> None:
        """Nothing bad happens any more: everything has to come right."""
        world = self.world
        for host in sorted(world.partitioned):
            world.heal(host)
        for link in world.links:
            link.slow = False
        for side in self.sides:
            side.calm()
        until = world.clock.seconds() + CALM
        while owed := ("the server is down" if not self.server.up else self.owed()):
            if world.clock.seconds() > until:
                raise Violation(f"{CALM:g} s later: {owed}")
            self.pass_time(0.25)

    def owed(self) -> str:
        return next(filter(None, (side.settled() for side in self.sides)), "")

    def observe(self, event: LogEvent) -> None:
        if event.get("log_failure") is not None or event.get("log_level") in (LogLevel.error, LogLevel.critical):
            self.errors.append(f"{formatEvent(event)} {event.get('log_failure', '')}")

    def outcome(self) -> Outcome:
        history, trace = self.history, hashlib.sha256("\n".join(self.world.trace).encode())
        for stream, truth in sorted(history.truth.items()):
            trace.update(stream.encode() + b"".join(truth))
        return Outcome(
            self.world.seed,
            sum(side.counts() for side in self.sides),
            sum(map(len, history.truth.values())),
            self.server.crashes,
            self.server.lives,
            trace.hexdigest(),
        )

    def close(self) -> None:
        for side in self.sides:
            side.close()
        self.world.pass_time(0)
        self.server.close()


def simulate(seed: int, protocol: str, steps: int = STEPS, trace: list[str] | None = None) -> Outcome:
    """Run the simulation of ``seed``.

    :param trace: takes what happens
    :raises Violation: something was not as it must be
    """
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
    root = Path(tempfile.mkdtemp(prefix="fyrehose-simulation-", dir=base))
    simulation = Simulation(seed, protocol, root)
    if trace is not None:
        simulation.world.trace = trace
    globalLogPublisher.addObserver(simulation.observe)
    try:
        for _ in range(steps):
            simulation.step()
        simulation.calm()
        outcome = simulation.outcome()
        simulation.close()
        return outcome
    except Violation as violation:
        raise Violation(f"seed {seed} of {protocol}: {violation}") from None
    finally:
        globalLogPublisher.removeObserver(simulation.observe)
        simulation.server.close()
        shutil.rmtree(root)
