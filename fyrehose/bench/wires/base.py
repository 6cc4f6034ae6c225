"""One connection of a load maker, as bytes: the bytes that it sends, and how it counts the answers.

in: bytes that were received -> ``scan``      out: ``hello``, ``begin``, ``block``, ``answers``

All messages of a measurement have one size, so their frames are rows of one length, and numpy counts rows without an
object for each.
"""

from __future__ import annotations

import socket
from typing import Any

import attrs
import numpy as np

#: The letters and digits of payloads; no frame header that the wires search for contains them.
_LETTERS = b"abcdefghijklmnopqrstuvwxyz0123456789"


class Wrong(Exception):
    """The server sent something other than the protocol allows here."""


@attrs.frozen(kw_only=True)
class Job:
    """The task of one connection of a load maker."""

    stream: str
    #: bytes of each message
    size: int
    #: total number of messages to send, or to receive
    messages: int
    #: whether to subscribe when the measurement begins (to earlier messages), or before it (to live messages)
    late: bool = False
    #: settings of one protocol
    extra: dict[str, Any] = attrs.field(factory=dict)


@attrs.define(eq=False)
class WorkerPool:
    """Workers that share the messages of one stream, and the number of messages that they have settled."""

    done: int = 0


class Wire:
    """The base class for the protocols of connections; ``done`` counts the acknowledged, or received, messages."""

    #: number of messages that can only be sent together
    unit = 1
    #: messages that the request under way settles, see :class:`WorkerWire`
    settling = 0

    def __init__(self, job: Job) -> None:
        self.job = job
        self.done = 0
        #: bytes to send in answer to received bytes
        self.answers = bytearray()

    @property
    def done_by_all(self) -> int:
        """Return how many messages all connections that share the work have done."""
        return self.done

    def hello(self, sock: socket.socket) -> None:
        """Do all that the protocol requires before the first message, over the blocking socket ``sock``."""

    def begin(self) -> bytes:
        """Return the bytes that request messages; empty if the protocol needs none."""
        return b""

    def begun(self, sock: socket.socket) -> None:
        """Wait on the blocking socket ``sock`` until the server has processed the bytes of :meth:`begin`."""

    def block(self, count: int) -> memoryview:
        """Return the bytes of the next ``count`` messages, as they are sent."""
        raise NotImplementedError

    def scan(self, data: bytearray, size: int) -> int:
        """Count the messages in the first ``size`` bytes of ``data``, and return how many bytes were processed.

        :raises Wrong: the bytes are not those that the protocol requires here
        """
        raise NotImplementedError


class WorkerWire(Wire):
    """A wire that leases messages and settles them; :attr:`pool` counts the settled messages of all workers.

    :ivar most: how many messages it leases at a time
    """

    def __init__(self, job: Job, pool: WorkerPool) -> None:
        super().__init__(job)
        self.pool, self.most = pool, int(job.extra["leases"])

    @property
    def done_by_all(self) -> int:
        return self.pool.done

    def settled(self, count: int) -> None:
        """Count *count* of the messages that are being settled."""
        self.settling -= count
        self.done += count
        self.pool.done += count


def payload(size: int) -> bytes:
    """Return a message of ``size`` bytes, always the same; it compresses as text does."""
    return (_LETTERS * (size // len(_LETTERS) + 1))[:size]


def read_exactly(sock: socket.socket, size: int) -> bytes:
    """Return the next ``size`` bytes.

    :raises Wrong: the connection ends before
    """
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise Wrong(f"the server closed the connection, after {data!r}")
        data += more
    return data


def column(data: bytearray, at: int, row: int, rows: int, kind: str = ">u8") -> np.ndarray[Any, Any]:
    """Return the field at ``at`` of each of ``rows`` rows of ``row`` bytes, without a copy."""
    return np.ndarray(shape=(rows,), dtype=kind, buffer=data, offset=at, strides=(row,))


def leading(same: np.ndarray[Any, Any]) -> int:
    """Return the number of values before the first one that is false."""
    return len(same) if same.all() else int(same.argmin())


class Rows:
    """Blocks of equal frames, made once, with a running number in each.

    :param frame: one whole frame
    :param at: offset of the number in a frame (8 bytes, big-endian); -1: frames have no number
    :param most: the most frames of a block
    """

    def __init__(self, frame: bytes, at: int, most: int, first: int = 1) -> None:
        self.row = len(frame)
        self._data = bytearray(frame * most)
        self._view = memoryview(self._data)
        self._numbers = column(self._data, at, self.row, most) if at >= 0 else None
        self._steps = np.arange(most, dtype=np.uint64)
        self._next = first

    def turn(self, at: int, digits: int, names: int, count: int) -> None:
        """Write the numbers 0 to ``names`` - 1 in turn into the next ``count`` frames: ``digits`` digits at ``at``."""
        name = (self._steps[:count] + np.uint64(self._next)) % np.uint64(names)
        for digit in range(at + digits - 1, at - 1, -1):
            column(self._data, digit, self.row, count, "u1")[:] = name % np.uint64(10) + np.uint64(48)
            name //= np.uint64(10)

    def take(self, count: int) -> memoryview:
        """Return the next ``count`` frames; the result is valid until the next call."""
        if self._numbers is not None:
            np.add(self._steps[:count], np.uint64(self._next), out=self._numbers[:count])
            self._next += count
        return self._view[: count * self.row]
