"""Herds: hundreds of clients of one address that lose their server together, beside hostile peers of another address.

The server has default options.  Everybody publishes; the server is stopped, or crashes; everybody publishes again, and
within BACK seconds of its start nobody may be owed anything.  What has to be true in every simulation is checked here,
too.  A seed decides what happens, and what each hostile peer does (hostile.py).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import simulation
from hostile import PEERS
from simulation import Outcome, Simulation

#: How long a herd may take to be back, in seconds: the longest pause of a client is 3 s, and some connect twice.
BACK = 30.0
#: Hostile peers of each protocol.
HOSTILE = 25


class HerdSimulation(Simulation):
    """``herd`` clients of each protocol of ``protocol``."""

    def __init__(self, seed: int, protocol: str, root: Path, herd: int) -> None:
        super().__init__(seed, protocol, root, herd)
        self.hostile = [
            PEERS[type(side).__name__](self.world, side, number) for side in self.sides for number in range(HOSTILE)
        ]

    def run(self, steps: int | None) -> None:
        """Let the clients begin, and lose the server once or several times."""
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

    :raises Violation: something was not as it must be
    """
    return simulation.simulate(seed, protocol, None, trace, partial(HerdSimulation, herd=herd))
