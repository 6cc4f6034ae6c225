"""The interfaces between the server and its sockets.

in: nothing      out: what :class:`fyrehose.protocols.eventbus.server.EventBusServer` calls
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import attrs

from fyrehose.protocols.eventbus.laggards import Subscriber
from fyrehose.protocols.eventbus.lent import Account, Lent
from fyrehose.records import Buffer


class Port(Protocol):
    """The part of :class:`fyrehose.protocols.eventbus.zmqport.ZMQPort` that the server uses."""

    #: what log lines call it
    name: str
    #: the address and the file descriptor that the message came from which is being handed out
    origin: tuple[str, int]

    def start(self) -> None: ...

    def pause(self) -> None: ...

    def poke(self) -> None: ...

    def take_in(self) -> None: ...

    def drained(self) -> bool: ...

    def send(self, frames: Sequence[Buffer], lent: Lent | Account | None = None) -> None: ...


def _nobody(host: str, descriptor: int) -> None:
    """End no connection."""


@attrs.frozen
class Peers:
    """Lookups of connections that the server needs, by address and file descriptor.

    :ivar subscribers: returns the connections of PUBLISHER
    :ivar end_subscriber: ends one of them
    :ivar end_snapshot: ends one of SNAPSHOT
    """

    subscribers: Callable[[], Collection[Subscriber]] = tuple
    end_subscriber: Callable[[str, int], object] = _nobody
    end_snapshot: Callable[[str, int], object] = _nobody
