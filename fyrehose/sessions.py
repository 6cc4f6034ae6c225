"""The contract of the sans-I/O sessions, which turn the bytes of a peer into events, and calls into bytes for the peer.

Use::

    for event in events_of(session, data):
        ...
    transport.write(b"".join(session.data_to_send()))

A session has no socket, reactor or clock.  It never raises for what a peer sends: if the peer breaks the protocol, the
last event is :class:`fyrehose.errors.Broken`, and nothing follows it.  The events do not depend on how the bytes were
divided into reads, except that messages which follow each other may be joined in one event.  The output for a peer is
cut into pieces
of at most :data:`PIECE` bytes.

One read may hold more events than a server wants to handle before it serves other peers.  So a session may stop in the
middle of its bytes, and its attribute *more* then says that further events follow.  :func:`events_of` continues until
no more follow.

The sessions of the backbone receive datagrams, which are always complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from fyrehose.errors import Broken, RemoteProtocolError
from fyrehose.records import Buffer, Run

#: Limit of the bytes that are written for a peer at once, so that 250 peers that do not read take only 32 MiB.
PIECE = 128 << 10


class ByteSession:
    """The base class of sessions that receive a stream of bytes.

    A session processes all bytes at once, unless it overrides :attr:`more` and :meth:`next_events`.

    :ivar out: the pending output; the connection that writes it clears the list
    """

    __slots__ = ()
    out: list[bytes]

    def receive_data(self, data: bytes) -> list[Any]:
        """Return the events that *data* completes, but only as many as one turn permits; see :attr:`more`."""
        raise NotImplementedError

    def data_to_send(self) -> list[bytes]:
        """Return the pending output, and clear it."""
        data = self.out.copy()
        self.out.clear()
        return data

    @property
    def more(self) -> bool:
        """Return whether :meth:`next_events` can return events of bytes that were received already.

        A call of the session's owner can also make this true, for example a call that acknowledges messages.
        """
        return False

    def next_events(self) -> list[Any]:
        """Return the events of the next turn; no events if there are no more."""
        return []


class FramedSession(ByteSession):
    """A session that parses frames where they arrive, and copies only an incomplete frame.

    :cvar frame: the protocol's word for its frames
    :ivar expected: the size of the incomplete frame in bytes, as far as it is known; 0 between frames
    :ivar more: whether the last turn stopped before the end of the received bytes
    """

    frame: ClassVar[str] = "frame"
    more: bool = False

    def __init__(self) -> None:
        self.expected = 0
        self.out: list[bytes] = []
        self._buffer = bytearray()
        self._parse_at = 0  # size of the buffer at which parsing can make progress
        self._broken = False

    @property
    def buffered(self) -> int:
        """Return how many bytes of the incomplete frame are in memory."""
        return len(self._buffer)

    def receive_data(self, data: bytes) -> list[Any]:
        """Return the events of one turn that *data* completes, in order; after ``Broken`` always an empty list."""
        if self._broken:
            return []
        source: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            source = self._buffer
            if len(source) < self._parse_at and not self.more:
                return []
        events: list[Any] = []
        self.more = False
        self.expected = self._parse_at = 0
        try:
            position = self._parse_frames(source, events)
        except RemoteProtocolError as error:
            events.append(self._break(error))
            return events
        if source is self._buffer:
            del self._buffer[:position]
        elif position < len(data):
            self._buffer += data[position:]
        return events

    def next_events(self) -> list[Any]:
        return self.receive_data(b"") if self.more else []

    def receive_eof(self) -> list[Any]:
        """Handle the end of the peer's data: return ``Broken`` if the data ends within a frame, otherwise no event."""
        if self._broken or not self.expected:
            return []
        detail = f"the connection ended within a {self.frame}"
        return [self._break(RemoteProtocolError(f"truncated-{self.frame}", detail))]

    def _parse_frames(self, source: bytes | bytearray, events: list[Any]) -> int:
        """Parse the frames of one turn in *source*, and add their events to *events*.

        The method sets ``expected``, ``more`` and ``_parse_at``.

        :return: the position of the bytes that were not parsed
        :raises RemoteProtocolError: the peer breaks the protocol
        """
        raise NotImplementedError

    def _break(self, error: RemoteProtocolError) -> Broken:
        self._broken, self.more, self.expected = True, False, 0
        self._buffer.clear()
        return Broken(error=error)


def events_of(session: ByteSession, data: bytes) -> Iterator[Any]:
    """Pass *data* to *session*, and yield its events until there are no more.

    Handle each event before the next one is taken: some sessions continue only when earlier messages are acknowledged.
    """
    yield from session.receive_data(data)
    while session.more:
        yield from session.next_events()


# Pieces of output, which is cut after it was encoded.


class Encoded(NamedTuple):
    """The encoded first records of a delivery, as many as fit into a piece.

    :ivar data: the records, as the peer receives them; empty if the first one is larger than a piece
    :ivar last: the number of the last record that is included
    :ivar records: how many records are included
    """

    data: bytes
    last: int
    records: int


def fitting(run: Run, extra: int, room: int) -> int:
    """Return how many of the first records of *run* fit into *room* bytes.

    :param extra: limit of the bytes that the protocol adds to each record
    """
    count = len(run)
    size = len(run.payload) + count * extra
    if size <= room:
        return count
    if run.sizes[0] + extra > room:
        return 0
    # Guess the number from the average size, so that at most that many lengths are added up below.
    count = max(1, room * count // size)
    return min(count, run.fitting(room - count * extra))


def piece_of(segments: Sequence[Buffer], begin: int) -> tuple[bytes, int | None]:
    """Return the piece that begins at byte *begin* of the joined *segments*, and its end; None after the last piece."""
    found: list[Buffer] = []
    start, room = begin, PIECE
    for segment in segments:
        part = memoryview(segment)[start : start + room]
        start = max(0, start - len(segment))
        room -= len(part)
        found.append(part)
    end = begin + PIECE - room
    return b"".join(found), end if end < sum(map(len, segments)) else None
