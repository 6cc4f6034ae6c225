"""ZeroMQ sockets on Twisted's reactor: our own small descriptor over the socket's FD.

    doRead   messages until nothing is left or the turn is over -> receive(frames) ... -> turn_over()
    send     frames -> the socket; raises Full or Gone; nothing waits here

The FD does not say "there is a message": it becomes readable when the socket has been told something, and *any* call on
the socket takes that in and makes the FD silent again, also a send, and also a send that fails.  So a send that
succeeds schedules a turn, one that fails does so if there is something to be read, and so does a turn that ends before
the socket is empty.

in: what the reactor and the owner call      out: messages as lists of bytes
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import zmq
from twisted.internet.interfaces import IDelayedCall, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.protocols.eventbus.lent import OVERHEAD, Account, Lent
from fyrehose.protocols.eventbus.messages import NOWHERE, Fastest, Origin
from fyrehose.records import Buffer

log = Logger()

#: What one turn reads before others have theirs: frames and bytes.
FRAMES_TURN = 4_096
BYTES_TURN = 256 << 10
#: A message may have many frames; of those behind so many only the number is kept.
MOST_FRAMES = 16

#: What is looked for in what a monitor says.
CONNECTED = zmq.Event.HANDSHAKE_SUCCEEDED
DISCONNECTED = zmq.Event.DISCONNECTED
ACCEPTED = zmq.Event.ACCEPTED
FAILED = zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
FAILED_PROTOCOL = zmq.Event.HANDSHAKE_FAILED_PROTOCOL
FAILED_AUTH = zmq.Event.HANDSHAKE_FAILED_AUTH
#: All that a server looks for.
ALL = ACCEPTED | DISCONNECTED | CONNECTED | FAILED | FAILED_PROTOCOL | FAILED_AUTH

Message = list[bytes]


class Full(Exception):
    """The peer reads more slowly than we send; nothing of the message was taken."""


class Crowded(Full):
    """As much waits as may: for this peer, or for all of them together."""


class Gone(Exception):
    """The peer has left; nothing of the message was taken."""


def _nothing(*_: object) -> None:
    """Nobody wants to know."""


@implementer(IReadDescriptor)
class ZMQPort:
    """One socket in a reactor.

    :param receive: is called with each message: at most MOST_FRAMES frames, and how many there were
    :param name: what log lines call the port
    :param turn_over: is called when nothing more comes in this turn, and whenever the socket may take more than before
    """

    def __init__(
        self,
        reactor: Any,
        socket: zmq.Socket[bytes],
        receive: Callable[[Message, int], None] = _nothing,
        turn_over: Callable[[], None] = _nothing,
        name: str = "",
    ) -> None:
        self.name = name
        self.socket = socket
        self._reactor = reactor
        self.receive = receive
        self._turn_over = turn_over
        self._fd = int(socket.getsockopt(zmq.FD))
        kind = socket.getsockopt(zmq.TYPE)
        self._readable = kind != zmq.PUB
        self._wanted = zmq.POLLIN if kind == zmq.ROUTER else zmq.POLLIN | zmq.POLLOUT
        self._again: IDelayedCall | None = None
        self._reading = False
        self._closed = False
        #: where the message came from that is being handed out
        self.origin: Origin = NOWHERE
        self._messages = Fastest(socket, MOST_FRAMES)

    def start(self) -> None:
        """Read from now on."""
        if not self._reading and not self._closed:
            self._reading = True
            self._reactor.addReader(self)
            self.poke()

    def pause(self) -> None:
        """Read nothing more: what comes waits in the socket, then with those who send it."""
        if self._reading:
            self._reading = False
            self._reactor.removeReader(self)
            self._cancel()

    def poke(self) -> None:
        """Have a turn soon."""
        if self._again is None and self._reading:
            self._again = self._reactor.callLater(0, self._soon)

    def send(self, frames: Sequence[Buffer], lent: Lent | Account | None = None) -> None:
        """One message, whole or not at all.

        :param lent: accounts for what messages take; without it they are copied
        :raises Crowded: *lent* has no room for it
        :raises Full: a ROUTER's peer, or everybody of a DEALER, has as much as may wait
        :raises Gone: a ROUTER knows no such peer
        """
        data = frames[-1]
        size = len(data)
        small = lent is None or size < lent.free
        if lent is not None and not small and not lent.fits(size):
            raise Crowded
        try:
            if lent is None or small:
                self._messages.send(frames)
                if lent is not None:
                    lent.free -= (size + OVERHEAD) * lent.toll
            else:
                self._messages.send(frames[:-1], True)
                # Its own bytes: a view would keep the whole piece of the journal that it is a part of.
                frame = zmq.Frame(bytes(data), track=True, copy=False, copy_threshold=0)
                lent.add(self.socket.send(frame, zmq.NOBLOCK, copy=False, track=True), size)
        except zmq.Again:
            self._look()
            raise Full from None
        except zmq.ZMQError as error:
            self._look()
            if error.errno == zmq.EHOSTUNREACH:
                raise Gone from None
            raise
        if self._readable and self._again is None:
            self.poke()

    def take_in(self) -> None:
        """Let the socket take in what it was told: who has come, who subscribed, who has left."""
        if not self._closed:
            self.socket.getsockopt(zmq.EVENTS)

    def drained(self) -> bool:
        """Whether nothing waits to be read."""
        return self._closed or not int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN

    def close(self, linger: int = 0) -> None:
        """Close the socket; what was sent has ``linger`` milliseconds to go."""
        if not self._closed:
            self.pause()
            self._closed = True
            self.socket.close(linger)

    # What the reactor calls.

    def fileno(self) -> int:
        return -1 if self._closed else self._fd

    def logPrefix(self) -> str:
        return "eventbus"

    def connectionLost(self, reason: Failure) -> None:
        """The reactor has given the descriptor up: it is being stopped, or the FD is bad."""
        self._reading = False
        self._cancel()

    def doRead(self) -> None:
        if not self._reading:
            return
        if self._readable:
            self._read()
        else:
            self.take_in()
        if not self._closed:
            self._turn_over()

    # Inside.

    def _look(self) -> None:
        """Schedule a turn if there is something to do: a send that failed may have silenced the descriptor.

        A turn without anything to read would fail to send again, and keep the reactor busy for as long as the peer is
        full; so a ROUTER, which says that it can be written while any peer has room, is asked for messages only.
        """
        if self._readable and self._again is None and int(self.socket.getsockopt(zmq.EVENTS)) & self._wanted:
            self.poke()

    def _soon(self) -> None:
        self._again = None
        self.doRead()

    def _cancel(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _read(self) -> None:
        frames, size = FRAMES_TURN, BYTES_TURN
        while self._reading:
            messages, frames, size = self._messages.receive(frames, size)
            for message, count, self.origin in messages:
                self._hand_out(message, count)
            if frames <= 0 or size <= 0:
                self.poke()
                return
            if not messages:
                return
            # While those were handed out more may have come, and belongs to the same turn.

    def _hand_out(self, frames: Message, count: int) -> None:
        if self._closed:  # by what came before, and was read at the same time
            return
        try:
            self.receive(frames, count)
        except Exception:
            # Whatever a peer sends, the next message is another's.
            log.failure("a message of the event bus was not understood; please report this")


class Monitor:
    """What happens to the connections of a socket.

    :param happened: is called with each event and its value
    """

    def __init__(
        self,
        reactor: Any,
        context: zmq.Context[zmq.Socket[bytes]],
        socket: zmq.Socket[bytes],
        events: int,
        happened: Callable[[int, int], None],
    ) -> None:
        self._watched = socket
        self._happened = happened
        address = f"inproc://monitor-{id(self):x}"
        socket.monitor(address, events)
        pair = context.socket(zmq.PAIR)
        pair.setsockopt(zmq.LINGER, 0)
        pair.connect(address)
        self._port = ZMQPort(reactor, pair, self._receive)
        self._port.start()

    def take_in(self) -> None:
        """Report at once everything that has happened."""
        self._port.doRead()

    def close(self) -> None:
        """Hear nothing more; before the socket is closed."""
        if not self._watched.closed:
            self._watched.disable_monitor()
        self._port.close()

    def _receive(self, frames: Message, count: int) -> None:
        self._happened(int.from_bytes(frames[0][:2], "little"), int.from_bytes(frames[0][2:6], "little"))
