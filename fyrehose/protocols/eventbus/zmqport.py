"""ZeroMQ sockets on Twisted's reactor: a reader for the file descriptor (FD) of a socket.

    doRead   messages until the socket is empty or the turn is over -> receive(frames) ... -> turn_over()
    send     frames -> the socket; raises Full or Gone; nothing is queued here

The FD is edge-triggered, and does not mean that there is a message: it becomes readable when ZeroMQ's thread has sent
commands to the socket.  *Any* call on the socket processes those and makes the FD unreadable again, even a send, and
even a send that fails.  So this class schedules a turn itself after each successful send, after a failed send if the
socket has events, and after a turn that ends before the socket is empty.

in: calls of the reactor and the owner      out: messages as lists of bytes
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from twisted.internet.interfaces import IDelayedCall, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.protocols.eventbus.messages import NOWHERE, Fastest, Origin
from fyrehose.protocols.eventbus.queued_memory import Full, QueuedMessages
from fyrehose.records import Buffer

log = Logger()

#: Upper bounds of one turn: frames and bytes.
FRAMES_TURN = 4_096
BYTES_TURN = 256 << 10
#: Frames of a message that are kept; further frames are only counted.
MOST_FRAMES = 16

#: Events of a monitor.
CONNECTED = zmq.Event.HANDSHAKE_SUCCEEDED
DISCONNECTED = zmq.Event.DISCONNECTED
#: libzmq could not connect, and tries again.
RETRIED = zmq.Event.CONNECT_RETRIED
ACCEPTED = zmq.Event.ACCEPTED
FAILED = zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
FAILED_PROTOCOL = zmq.Event.HANDSHAKE_FAILED_PROTOCOL
FAILED_AUTH = zmq.Event.HANDSHAKE_FAILED_AUTH
#: All events that a server needs.
ALL = ACCEPTED | DISCONNECTED | CONNECTED | FAILED | FAILED_PROTOCOL | FAILED_AUTH

Message = list[bytes]


class Gone(Exception):
    """The peer is no longer connected; no part of the message was sent."""


def _nothing(*_: object) -> None:
    """Ignore the call; the default of the callbacks."""


@implementer(IReadDescriptor)
class ZMQPort:
    """One ZeroMQ socket in a reactor.

    :param receive: called with each message: its first MOST_FRAMES frames, and its number of frames
    :param turn_over: called after the last message of a turn, and whenever the socket may have room again
    :param name: name of the port in log lines
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
        self._wanted = zmq.POLLIN if kind in (zmq.ROUTER, zmq.XPUB) else zmq.POLLIN | zmq.POLLOUT
        #: Frames that are read at a time: one for XPUB, because a subscription there is made for the sender of the last
        #: message read.
        self._at_once = 1 if kind == zmq.XPUB else FRAMES_TURN
        self._again: IDelayedCall | None = None
        self._reading = False
        self._closed = False
        #: origin of the message that is passed to `receive`
        self.origin: Origin = NOWHERE
        self._messages = Fastest(socket, MOST_FRAMES)
        self._monitor: Monitor | None = None

    def watch(self, events: int, happened: Callable[[int, int], None]) -> None:
        """Report the connection events of the socket.

        :param events: the events to report, for example CONNECTED | DISCONNECTED
        :param happened: called with each event and its value: an error number, or a file descriptor
        """
        self._monitor = Monitor(self._reactor, self.socket, events, happened)

    def process_events(self) -> None:
        """Report the connection events that are pending."""
        if self._monitor is not None:
            self._monitor.doRead()

    def start(self) -> None:
        """Start, or continue, to read."""
        if not self._reading and not self._closed:
            self._reading = True
            self._reactor.addReader(self)
            self.schedule_turn()

    def pause(self) -> None:
        """Stop reading: messages wait in the socket, and then at their senders."""
        if self._reading:
            self._reading = False
            self._reactor.removeReader(self)
            self._cancel()

    def schedule_turn(self) -> None:
        """Schedule a turn, without waiting for the FD."""
        if self._again is None and self._reading:
            self._again = self._reactor.callLater(0, self.doRead)

    def send(self, frames: Sequence[Buffer], account: QueuedMessages | None = None) -> None:
        """Send one message, completely or not at all.

        :param account: accounts for the memory of those messages that are tracked; None: no message is tracked
        :raises MemoryFull: *account* has no room for the message
        :raises Full: the queue of the peer (ROUTER), or the queues of all peers (DEALER), are full
        :raises Gone: no such peer is connected to the ROUTER
        """
        data = frames[-1]
        size = len(data)
        # Most messages are small and need no tracking, so this comparison saves a call.
        tracked = account is not None and size >= account.free and account.tracks(size)
        try:
            if account is not None and tracked:
                self._messages.send(frames[:-1], True)
                # Copy the data, because a view would keep the whole piece of the journal in memory.
                frame = zmq.Frame(bytes(data), track=True, copy=False, copy_threshold=0)
                account.add(self.socket.send(frame, zmq.NOBLOCK, copy=False, track=True), size)
            else:
                self._messages.send(frames)
                if account is not None:
                    account.skip(size)
        except zmq.Again:
            self._check_events()
            raise Full from None
        except zmq.ZMQError as error:
            self._check_events()
            if error.errno == zmq.EHOSTUNREACH:
                raise Gone from None
            raise
        if self._again is None:
            self.schedule_turn()

    def lend(self, frames: Sequence[Buffer]) -> None:
        """Send one message to the subscribers of a XPUB socket; :meth:`held` counts it until the socket releases it."""
        self._messages.lend(frames)
        if self._again is None:
            self.schedule_turn()

    def lend_by_key(self, key: bytes, frames: Sequence[Buffer]) -> None:
        """Send one message to subscribers whose subscription is a prefix of *key*; *key* is as long as the first frame.

        An empty key sends it to all subscribers; the socket of a subscriber drops a message to which it has not
        subscribed.

        ZeroMQ chooses the receivers by the first frame, but sends nothing before it has the last frame.  In between,
        this method overwrites the first frame with the topic.  ``tests/protocols/eventbus/test_zmqport.py`` fails if a
        later version copies frames earlier.
        """
        first = bytearray(key)
        frame = zmq.Frame(first, copy=False, copy_threshold=0)
        if not key:
            self.socket.setsockopt(zmq.INVERT_MATCHING, 1)
        self.socket.send(frame, zmq.NOBLOCK | zmq.SNDMORE, copy=False)
        if not key:
            self.socket.setsockopt(zmq.INVERT_MATCHING, 0)
        first[:] = frames[0]
        self.lend(frames[1:])

    def resubscribe(self, added: Sequence[bytes], removed: Sequence[bytes]) -> None:
        """Change what the sender of the message that is being received is subscribed to; for XPUB in manual mode."""
        self._messages.set_all(zmq.UNSUBSCRIBE, removed)
        self._messages.set_all(zmq.SUBSCRIBE, added)

    def held(self) -> tuple[int, int]:
        """Return the number of lent messages that the socket still holds, and the bytes of their frames."""
        return self._messages.held()

    def process_commands(self) -> None:
        """Let the socket process connections, subscriptions and disconnections that are pending."""
        if self._at_once == 1 and self._reading:
            self._read()
        elif not self._closed:
            self.socket.getsockopt(zmq.EVENTS)

    def drained(self) -> bool:
        """Return whether no message waits to be read."""
        return self._closed or not int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN

    def close(self, linger: int = 0) -> None:
        """Close the socket; queued messages are sent for up to *linger* milliseconds."""
        if not self._closed:
            if self._monitor is not None:
                self._monitor.close()
            self.pause()
            self._closed = True
            self.socket.close(linger)

    # Called by the reactor.

    def fileno(self) -> int:
        return -1 if self._closed else self._fd

    def logPrefix(self) -> str:
        return "eventbus"

    def connectionLost(self, reason: Failure) -> None:
        """Handle that the reactor has removed this reader, because it stops or the FD is bad."""
        self._reading = False
        self._cancel()

    def doRead(self) -> None:
        """Run a turn, which replaces one that is scheduled."""
        self._cancel()
        if not self._reading:
            return
        self._read()
        if not self._closed:
            self._turn_over()

    def _check_events(self) -> None:
        """Schedule a turn if the socket has events, which a failed send may have hidden from the FD.

        A ROUTER is checked for messages only, because it is writable while any peer has room: a turn for that would
        fail to send again, and keep the reactor busy until the full peer reads.
        """
        if self._again is None and int(self.socket.getsockopt(zmq.EVENTS)) & self._wanted:
            self.schedule_turn()

    def _cancel(self) -> None:
        if self._again is not None and self._again.active():
            self._again.cancel()
        self._again = None

    def _read(self) -> None:
        frames, size = FRAMES_TURN, BYTES_TURN
        while self._reading:
            asked = min(frames, self._at_once)
            messages, left, size = self._messages.receive(asked, size)
            frames -= asked - left
            for message, count, self.origin in messages:
                self._hand_out(message, count)
            if frames <= 0 or size <= 0:
                self.schedule_turn()
                return
            if not messages and left > 0:
                return
            # Read again, because more messages may have arrived in the meantime; they belong to the same turn.

    def _hand_out(self, frames: Message, count: int) -> None:
        if self._closed:  # by the handler of an earlier message that was read in the same call
            return
        try:
            self.receive(frames, count)
        except Exception:
            # A bug that one message triggers must not affect the messages of other peers.
            log.failure("processing a message of the event bus failed; please report this bug")


_monitors = itertools.count()


class Monitor(ZMQPort):
    """The port at which ZeroMQ reports the connection events of *watched*; see :meth:`ZMQPort.watch`."""

    def __init__(
        self, reactor: Any, watched: zmq.Socket[bytes], events: int, happened: Callable[[int, int], None]
    ) -> None:
        def receive(frames: Message, count: int) -> None:
            happened(int.from_bytes(frames[0][:2], "little"), int.from_bytes(frames[0][2:6], "little"))

        self._watched = watched
        # Do not make the address from id(self), because ZeroMQ frees an address some time after its monitor was closed
        # and forgotten.
        address = f"inproc://monitor-{next(_monitors)}"
        watched.monitor(address, events)
        pair = watched.context.socket(zmq.PAIR)
        pair.connect(address)
        super().__init__(reactor, pair, receive)
        self.start()

    def close(self, linger: int = 0) -> None:
        """Stop reporting; call this before the watched socket is closed."""
        self._watched.disable_monitor()
        super().close(linger)
