"""The interfaces through which :class:`fyrehose.protocols.eventbus.server.EventBusServer` uses its sockets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import attrs

from fyrehose.protocols.eventbus.laggards import Subscriber
from fyrehose.protocols.eventbus.lent import Account, Lent
from fyrehose.records import Buffer


class Port(Protocol):
    """The part of :class:`fyrehose.protocols.eventbus.zmqport.ZMQPort` that the server uses."""

    #: name of the port in log lines
    name: str
    #: address and file descriptor of the connection that sent the message being processed
    origin: tuple[str, int]

    def start(self) -> None: ...

    def pause(self) -> None: ...

    def schedule_turn(self) -> None: ...

    def process_commands(self) -> None: ...

    def drained(self) -> bool: ...

    def send(self, frames: Sequence[Buffer], lent: Lent | Account | None = None) -> None: ...


def _nobody(host: str, descriptor: int) -> None:
    """Close no connection; the default of :class:`Peers`."""


@attrs.frozen
class Peers:
    """Functions to list and close connections, which are named by address and file descriptor.

    :ivar subscribers: returns the connections of PUBLISHER
    :ivar end_subscriber: closes a connection of PUBLISHER
    :ivar end_snapshot: closes a connection of SNAPSHOT
    """

    subscribers: Callable[[], Collection[Subscriber]] = tuple
    end_subscriber: Callable[[str, int], object] = _nobody
    end_snapshot: Callable[[str, int], object] = _nobody
