"""Messages out of ZeroMQ's sockets and into them.

:class:`Messages` does it by pyzmq's calls, a frame at a time, and is the specification of ``kernels.native.zeromq``,
which calls the library under pyzmq.  It is not among the pure kernels, because they know nothing of sockets.

in: a socket      out: lists of frames; nothing waits here
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq
from zmq.backend import Socket as Backend

from fyrehose import kernels
from fyrehose.records import Buffer

#: The address that a message came from, and the file descriptor of its connection.
Origin = tuple[str, int]
#: The frames of one, how many it had, and where it came from.
Message = tuple[list[bytes], int, Origin]

#: Where a message came from that came by no connection: within the process.
NOWHERE: Origin = ("", -1)

_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
# The library's own calls: what pyzmq puts around them costs as much again.
_recv: Any = Backend.recv
_send: Any = Backend.send


class Messages:
    """The messages of one socket, by pyzmq; only one thread may call.

    :param kept: so many frames of a message are kept; of those behind them only the number
    """

    def __init__(self, socket: zmq.Socket[bytes], kept: int) -> None:
        self._socket = socket
        self._kept = kept
        self._frames: list[bytes] = []
        self._count = 0
        self._origin = NOWHERE

    def receive(self, frames: int, size: int) -> tuple[list[Message], int, int]:
        """What has come, until that was so many frames or so many bytes that are kept.

        A message that is not read to its end by then is gone on with by the next call.

        :return: messages, and how many frames and bytes are left, 0 or less where it ended by that; without messages
            and with both left, the socket is empty
        :raises zmq.ZMQError: the socket cannot be read; not before what was read is handed out
        """
        messages: list[Message] = []
        while frames > 0 and size > 0:
            try:
                frame: zmq.Frame = _recv(self._socket, _LAST, False)
            except zmq.Again:
                break
            except zmq.ZMQError:
                if messages:  # a REP is read again when it has answered; all else is said again by the next call
                    break
                raise
            if not self._count:
                self._origin = _origin(frame)
            if self._count < self._kept:
                self._frames.append(frame.bytes)
                size -= len(self._frames[-1])
            self._count += 1
            frames -= 1
            if not frame.more:
                messages.append((self._frames, self._count, self._origin))
                self._frames, self._count = [], 0
        return messages, frames, size

    def send(self, frames: Sequence[Buffer], more: bool = False) -> None:
        """Send ``frames``, which are copied: a message, or with ``more`` what is in front of its last frame.

        :raises zmq.Again: there is no room; if it is the beginning of a message, nothing of it was taken
        :raises zmq.ZMQError: the socket does not take it
        """
        last = len(frames) - 1
        for at, frame in enumerate(frames):
            _send(self._socket, frame, _MORE if more or at < last else _LAST)


def _origin(frame: zmq.Frame) -> Origin:
    try:
        return str(frame.get("Peer-Address")), int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return NOWHERE


def _fastest() -> type[Messages]:
    if kernels.NATIVE:
        try:
            from fyrehose.kernels.native.zeromq import Messages as Native
        except ImportError:  # pyzmq hides its library, or is built without Cython
            return Messages
        native: type[Messages] = Native
        return native
    return Messages


#: What serves.
Fastest = _fastest()
