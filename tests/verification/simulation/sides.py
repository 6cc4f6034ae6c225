"""The common part of the sides of a simulation."""

from __future__ import annotations

from typing import Any

from world import World


class Side:
    """All clients of one protocol.

    :ivar clients: each has ``publish()``, ``close()``, ``published`` (how many messages), and ``owed()``, which returns
        what it still waits for, or an empty string
    """

    #: whether its clients cope with records that were lost or deleted
    gaps = True
    #: how many messages were published by clients that are gone
    _published = 0
    world: World
    clients: list[Any]

    def step(self) -> None:
        """Let a client publish, half of the time."""
        if self.world.random.random() < 0.5:
            self.world.random.choice(self.clients).publish()

    def everybody(self) -> None:
        """Let every client of a herd publish."""
        for client in self.clients:
            client.publish()

    def calm(self) -> None:
        """Do nothing: most clients continue by themselves."""

    def settled(self) -> str:
        """Return what a client still waits for, or an empty string."""
        return next(filter(None, (client.owed() for client in self.clients)), "")

    def counts(self) -> int:
        return self._published + sum(client.published for client in self.clients)

    def close(self) -> None:
        for client in self.clients:
            client.close()
