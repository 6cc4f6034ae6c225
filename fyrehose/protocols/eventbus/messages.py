"""Read and write whole messages of a ZeroMQ socket.

:class:`Messages` uses pyzmq, one call per frame.  ``zeromq.pyx`` has the same class, which calls libzmq directly; its
docstring says what it relies on.

in: a socket      out: lists of frames; nothing is queued here
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import zmq
from twisted.logger import Logger
from zmq.backend import Socket as Backend

from fyrehose import kernels
from fyrehose.records import Buffer

log = Logger()

#: The connection that a message came by: the peer's address, the file descriptor, and the number that the ZAP handler
#: gave the connection (see ``zap.py``); -1 and 0 if it gave none.  Another connection may have the descriptor by now;
#: none ever has the same number.
Origin = tuple[str, int, int]
#: A message: the frames that were kept, the number of frames that it had, and its origin.
Message = tuple[list[bytes], int, Origin]

#: The origin of a message from within the process (inproc).
NOWHERE: Origin = ("", -1, 0)

_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
# Use the calls of pyzmq's backend directly, because the wrappers around them double the cost.
_recv: Any = Backend.recv
_send: Any = Backend.send


class Messages:
    """A reader and writer of the messages of one socket, with pyzmq; not thread-safe.

    :param kept: number of frames of a message that are kept; further frames are only counted
    """

    def __init__(self, socket: zmq.Socket[bytes], kept: int) -> None:
        self._socket = socket
        self._unwritten = kept
        self._frames: list[bytes] = []
        self._count = 0
        self._origin = NOWHERE
        self._lent: deque[tuple[zmq.MessageTracker, int]] = deque()
        self._held = 0

    def receive(self, frames: int, size: int) -> tuple[list[Message], int, int]:
        """Read messages until the socket is empty or a limit is reached.

        If the limit is reached within a message, the next call continues with it.

        :param frames: maximum number of frames to read
        :param size: maximum number of bytes to keep; the last frame may exceed it
        :return: messages, remaining frames and remaining bytes; one of these is 0 or less if it ended the call.
            The socket is empty if there are no messages and neither limit is reached
        :raises zmq.ZMQError: the socket cannot be read, and no message was read before
        """
        messages: list[Message] = []
        while frames > 0 and size > 0:
            try:
                frame: zmq.Frame = _recv(self._socket, _LAST, False)
            except zmq.Again:
                break
            except zmq.ZMQError:
                if messages:  # the next call raises the error again, unless a REP socket has answered by then
                    break
                raise
            if not self._count:
                self._origin = _origin(frame)
            if self._count < self._unwritten:
                self._frames.append(frame.bytes)
                size -= len(self._frames[-1])
            self._count += 1
            frames -= 1
            if not frame.more:
                messages.append((self._frames, self._count, self._origin))
                self._frames, self._count = [], 0
        return messages, frames, size

    def send(self, frames: Sequence[Buffer], more: bool = False) -> None:
        """Send a copy of *frames*.

        :param more: whether *frames* lack the last frame of the message, which the caller sends later
        :raises zmq.Again: the socket is full; if *frames* begin a message, none of it was sent
        :raises zmq.ZMQError: the socket refuses the message
        """
        last = len(frames) - 1
        for at, frame in enumerate(frames):
            _send(self._socket, frame, _MORE if more or at < last else _LAST)

    def lend(self, frames: Sequence[Buffer]) -> None:
        """Send a copy of *frames*; :meth:`held` counts this message until the socket has released the last frame.

        :raises zmq.ZMQError: the socket refuses the message
        """
        self.send(frames[:-1], True)
        frame = zmq.Frame(bytes(frames[-1]), track=True, copy=False, copy_threshold=0)
        tracker: zmq.MessageTracker = self._socket.send(frame, zmq.NOBLOCK, copy=False, track=True)
        size = sum(map(len, frames))
        self._lent.append((tracker, size))
        self._held += size

    def set_all(self, option: int, values: Iterable[bytes]) -> None:
        """Set *option* of the socket once for each of *values*, for example to make many subscriptions.

        :raises zmq.ZMQError: the socket refuses one of the values
        """
        for value in values:
            self._socket.setsockopt(option, value)

    def held(self) -> tuple[int, int]:
        """Return the number of lent messages that the socket still holds, and the bytes of their frames."""
        # A released message behind one that is still held counts here as held; the native kernel counts exactly.
        while self._lent and self._lent[0][0].done:
            self._held -= self._lent.popleft()[1]
        return len(self._lent), self._held


def _origin(frame: zmq.Frame) -> Origin:
    try:
        host = str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return NOWHERE
    try:
        number = int(frame.get("User-Id") or 0)
    except zmq.ZMQError:  # the connection was given no number, or the socket asks no ZAP handler
        number = 0
    return host, int(frame.get(zmq.SRCFD)) if number else -1, number


def _fastest() -> type[Messages]:
    if not kernels.NATIVE:
        return Messages
    try:
        from fyrehose.protocols.eventbus.zeromq import Messages as Native
    except ImportError as reason:  # zeromq.pyx was not built, or does not fit this pyzmq
        log.warn("eventbus: using pyzmq for ZeroMQ's messages, which is slower: {reason}", reason=str(reason))
        return Messages
    native: type[Messages] = Native
    return native


#: The implementation that is used: native if the native kernels are, otherwise :class:`Messages`.
Fastest = _fastest()
