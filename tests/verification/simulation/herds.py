"""Simulate herds: hundreds of clients at one address that lose their server together, beside hostile peers at another.

The server has default options.  All clients publish; the server is stopped or crashes; all clients publish again, and
BACK seconds after its start no client may still wait for anything.  The rules of every other simulation are checked,
too.  The seed decides what happens, and what each hostile peer does (hostile.py).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import simulation
from hostile import PEERS
from simulation import Outcome, Simulation

#: How long a herd may take to recover, in seconds: a client pauses for up to 3 s, and some connect twice.
BACK = 30.0
#: The number of hostile peers of each protocol.
HOSTILE = 25


class HerdSimulation(Simulation):
    """A simulation with ``herd`` clients of each protocol of ``protocol``."""

    def __init__(self, seed: int, protocol: str, root: Path, herd: int) -> None:
        super().__init__(seed, protocol, root, herd)
        self.hostile = [
            PEERS[type(side).__name__](self.world, side, number) for side in self.sides for number in range(HOSTILE)
        ]

    def run(self, steps: int | None) -> None:
        """Let the clients connect, then crash or stop the server once or several times."""
        dice = self.world.random
        self.settle(BACK)
        for _ in range(dice.choice((1, 2)) if steps is None else steps):
            self._publish()
            self.pass_time(dice.random())
            (self.server.crash if dice.random() < 0.5 else self.server.restart)()
            self._publish()
            while not self.server.up:
                self.pass_time(0.1)
            self.settle(BACK)
        for peer in self.hostile:
            peer.check(self.history)

    def _publish(self) -> None:
        for side in self.sides:
            side.everybody()

    def close(self) -> None:
        for peer in self.hostile:
            peer.close()
        super().close()


def simulate(seed: int, protocol: str, herd: int, trace: list[str] | None = None) -> Outcome:
    """Run the simulation of ``seed`` with ``herd`` clients of each protocol.

    :raises Violation: a rule was broken
    """
    return simulation.simulate(seed, protocol, None, trace, partial(HerdSimulation, herd=herd))
