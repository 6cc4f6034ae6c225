"""Receive and send trains of datagrams over any UDP transport: the base of the server and of the client.

UDPPort                  datagrams_received(train) ... turn_over()      send -> write_train, flush -> flush
any other IUDPTransport  datagramReceived(datagram), a timer for        send -> write, once for each datagram
                         turn_over()
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from twisted.internet.error import MessageLengthError
from twisted.internet.protocol import DatagramProtocol
from twisted.logger import Logger
from zope.interface import Attribute, Interface

from fyrehose.net.lifecycle import Timers
from fyrehose.observe.counters import Counters
from fyrehose.protocols.backbone.frames import HEADER, MAX_DATA, Address
from fyrehose.protocols.backbone.trains import Train

log = Logger()


class ITrainTransport(Interface):
    """A UDP transport that sends several datagrams to one address with one system call."""

    waiting = Attribute("The number of trains that wait to be sent.")

    def write_train(train: Train, destination: Address) -> None:
        """Send *train* at the next :meth:`flush` at the latest."""

    def flush() -> None:
        """Send waiting trains until the kernel accepts no more."""


class TrainProtocol(DatagramProtocol):
    """A UDP protocol of trains of datagrams, over a :class:`~.udp.UDPPort` or any other UDP transport of Twisted.

    :ivar timers: the timers, which are cancelled when the port is closed
    :ivar name: the name in counters and log lines
    :ivar counters: counts errors, and what was dropped
    """

    noisy = False
    name: str
    counters: Counters
    transport: Any
    #: Send a train to an address, at the next :attr:`flush` at the latest.
    send: Callable[[Train, Address], None]
    #: Send waiting trains until the kernel accepts no more.
    flush: Callable[[], None]
    timers: Timers

    # For subclasses.

    def datagrams_received(self, data: memoryview, segment: int, source: Address) -> None:
        """Process datagrams of *segment* bytes each (the last may be shorter); *data* is reused after the call."""
        raise NotImplementedError

    def turn_over(self) -> None:
        """Act on the datagrams of this turn of the reactor: all were passed to :meth:`datagrams_received`."""
        raise NotImplementedError

    def congested(self) -> None:
        """Stop sending, except for answers, because the socket is full and trains wait to be sent."""

    def relieved(self) -> None:
        """Send further datagrams, because the socket has taken all earlier ones."""

    @property
    def waiting(self) -> int:
        """Return the number of trains that wait to be sent; only a :class:`~.udp.UDPPort` lets trains wait."""
        return self.transport.waiting if ITrainTransport.providedBy(self.transport) else 0

    # Called by the port.

    def makeConnection(self, transport: Any) -> None:
        if ITrainTransport.providedBy(transport):
            self.send, self.flush = transport.write_train, transport.flush
        else:
            self.send, self.flush = self._write_each, lambda: None
        transport.maxPacketSize = HEADER + MAX_DATA  # Twisted's default truncates datagrams above 8,192 bytes
        super().makeConnection(transport)

    def stopProtocol(self) -> None:
        self.timers.clear()

    def datagramReceived(self, datagram: bytes, addr: Address) -> None:
        """Process one datagram; all datagrams that arrive before the next call of the timer make one turn."""
        self.timers.start(0, self.turn_over)
        self.datagrams_received(memoryview(datagram), max(len(datagram), 1), addr)

    def _write_each(self, train: Train, destination: Address) -> None:
        for datagram in train.datagrams():
            try:
                self.transport.write(datagram, destination)
            except (OSError, MessageLengthError) as error:
                self.send_failed(error, destination)

    def send_failed(self, error: Exception, destination: Address) -> None:
        """Count a datagram that could not be sent, which affects no other destination."""
        number = error.errno if isinstance(error, OSError) else None
        if isinstance(error, MessageLengthError):
            number = errno.EMSGSIZE
        cause = f"send-{errno.errorcode.get(number or 0, 'error')}"
        self.counters.refuse(log, self.name, cause, "{}:{}".format(*destination))
