"""The sessions of the event bus without I/O: one connection to one of the three ports, on either side.

    SNAPSHOT    Joined, then Requested for each SYNCSTART               sends SYNC, SYNCEND
    PUBLISHER   Joined, then PrefixChanged for each subscription        sends BROADCAST
    COLLECTOR   Joined, then PubsReceived for runs of PUBs              sends nothing
    client      Joined, then BusMessage for each message, Ponged        sends PUB, SYNCSTART, subscriptions

A message that is invalid is refused (MessageRefused) and changes nothing else; a violation of ZMTP ends the connection:
the last event is then ``Broken``.  A session of the server knows what its client wants: its :class:`.Encoder`.

Specification: event-bus.md, "Ports and Connections", "State Synchronization" and "Client-to-Server Updates".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import attrs

from fyrehose.errors import RemoteProtocolError
from fyrehose.kernels import eventbus as kernel
from fyrehose.protocols.eventbus.columns import PROTOCOL, Encoder, run_of
from fyrehose.protocols.eventbus.frames import (
    EVENT_FRAMES,
    MAX_SUBTREE,
    MAX_SUBTREES,
    SYNC,
    Dialect,
    SyncEnd,
    SyncStart,
    is_subtree,
    parse_sequence,
    without_delimiter,
)
from fyrehose.protocols.eventbus.labels import CONTENT_TYPE
from fyrehose.protocols.eventbus.zmtp import COMMAND, Mechanism, MessageRefused, Null, ZmtpSession, encode
from fyrehose.records import MAX_NAME, MAX_PAYLOAD, Buffer, Run

#: Largest data of the runs of one PubsReceived, in bytes, so that a large read is no large write to the disk.
MAX_RUN = 1 << 20
#: Largest prefix of a subscription, in bytes, and how many subscriptions one connection may have.
MAX_PREFIX, MAX_PREFIXES = 4 << 10, 10_000
#: The option that an operator sets for clients of the reference program that do not show their dialect.
FOR_REFERENCE = "--option eventbus.dialect=decimal"
#: Subscriptions by which a client names its dialect.
MARKS = {b"\0binary": Dialect.BINARY, b"\0decimal": Dialect.DECIMAL}
#: The empty frame that a REQ socket sends in front of a message, and expects in front of the answer.
_DELIMITER = encode((b"",), more=True)


@attrs.frozen(slots=True)
class PubsReceived:
    """PUBs arrived, in this order.

    :ivar last: None, because the bus does not acknowledge
    """

    runs: list[Run]
    last: None = None


@attrs.frozen(slots=True, kw_only=True)
class Requested:
    """A client has sent SYNCSTART.

    :ivar dialect: the encoding of sequences in the answer
    :ivar delimiter: whether an empty frame precedes each message of the answer
    """

    request: SyncStart
    dialect: Dialect
    delimiter: bool

    @property
    def head(self) -> bytes:
        """Return the frames that precede each event of the answer, encoded."""
        return (_DELIMITER if self.delimiter else b"") + encode((SYNC,), more=True)

    @property
    def encoder(self) -> Encoder:
        """Return the encoder of the SYNCs of the answer."""
        prefixes = self.request.subtrees.prefixes or ("",)
        return Encoder(frozenset(map(str.encode, prefixes)), self.dialect, self.head)

    def end(self, sequence: int) -> bytes:
        """Return the SYNCEND of the answer, encoded."""
        end = SyncEnd(subtrees=self.request.subtrees.spec, sequence=sequence, dialect=self.dialect)
        return (_DELIMITER if self.delimiter else b"") + encode(end.serialize())


@attrs.frozen(slots=True)
class PrefixChanged:
    """The subscription to a prefix begins (``on``) or ends."""

    prefix: bytes
    on: bool


@attrs.frozen(slots=True)
class BusMessage:
    """A message arrived at a client."""

    frames: list[bytes]


@attrs.frozen(slots=True)
class Ponged:
    """The server has answered a PING, so it has handled everything that was sent before."""


class CollectorSession(ZmtpSession):
    """The server's side of a connection to COLLECTOR.

    Events: Joined, PubsReceived, MessageRefused, Broken.

    :param stream: the stream of the runs
    :param largest: the largest data of an event, in bytes
    """

    socket_type: ClassVar[bytes] = b"ROUTER"
    peers: ClassVar[frozenset[bytes]] = frozenset({b"DEALER", b"ROUTER"})
    most_frames: ClassVar[int] = 1 + EVENT_FRAMES
    largest_label: ClassVar[int] = 4 << 10

    def __init__(self, mechanism: Mechanism, largest: int, stream: str) -> None:
        super().__init__(mechanism, largest)
        self._stream = stream

    def _gather(self, source: bytes | bytearray, position: int) -> tuple[int, Any, int]:
        end, found = kernel.gather(source, position, self.largest, MAX_RUN)
        if not found:
            return end, None, 0
        runs, stream = [], self._stream
        for topic, producer, event_ids, event_times, lengths, payload in found:
            run = Run(
                stream=stream,
                source=PROTOCOL,
                topic=topic,
                producer=producer,
                content_type=CONTENT_TYPE,
                event_ids=event_ids,
                event_times=event_times,
                lengths=lengths,
                payload=payload,
            )
            runs.append(run)
        return end, PubsReceived(runs), len(runs)

    def _message(self, frames: list[bytes], events: list[Any]) -> None:
        try:
            found, _ = without_delimiter(frames, counts=(EVENT_FRAMES,))
            events.append(PubsReceived([run_of(found, self._stream)]))
        except RemoteProtocolError as error:
            events.append(MessageRefused(error))


class SnapshotSession(ZmtpSession):
    """The server's side of a connection to SNAPSHOT.

    Events: Joined, Requested, MessageRefused, Broken.

    :param dialect: the dialect of clients that do not show theirs
    """

    socket_type: ClassVar[bytes] = b"ROUTER"
    peers: ClassVar[frozenset[bytes]] = frozenset({b"DEALER", b"REQ", b"ROUTER"})
    most_frames: ClassVar[int] = 4
    #: more than the largest number of the largest subtrees with their separators
    largest_label: ClassVar[int] = 2 * MAX_SUBTREES * MAX_SUBTREE

    def __init__(self, mechanism: Mechanism, dialect: Dialect) -> None:
        super().__init__(mechanism, self.largest_label)
        self._dialect = dialect

    def _message(self, frames: list[bytes], events: list[Any]) -> None:
        try:
            found, delimiter = without_delimiter(frames, counts=(2, 3))
            request = self._parse(found)
        except RemoteProtocolError as error:
            events.append(MessageRefused(error))
            return
        dialect = request.dialect or self._dialect
        events.append(Requested(request=request, dialect=dialect, delimiter=delimiter))

    def _parse(self, frames: Sequence[bytes]) -> SyncStart:
        """Parse a SYNCSTART; an error about its subtrees names the option that would accept them.

        A decimal sequence, which only the reference program sends, means that the subtrees have its syntax, too.
        """
        dialect = parse_sequence(frames[2])[1] if len(frames) == 3 else None
        lenient = (dialect or self._dialect) is Dialect.DECIMAL
        try:
            return SyncStart.parse(frames, lenient=lenient)
        except RemoteProtocolError as error:
            if error.cause != "bad-subtree" or dialect is not None:
                raise
            detail = str(error).removeprefix(f"{error.cause}: ")
            advice = f"for clients of the reference program (Node) pass {FOR_REFERENCE}"
            raise RemoteProtocolError(error.cause, f"{detail}; {advice}") from None


class PublisherSession(ZmtpSession):
    """The server's side of a connection to PUBLISHER.

    Events: Joined, PrefixChanged, MessageRefused, Broken.

    Nothing else than its subscriptions shows the dialect of a subscriber.  It is the usual one, unless one of the
    subscriptions is no subtree as specified, as only the reference program has them, or is one of :data:`MARKS`, which
    name the dialect whatever the other subscriptions are.  Like a XPUB socket, a connection has a set of prefixes.

    :param usual: the dialect of subscribers whose subscriptions do not show a dialect
    :ivar dialect: the dialect of the subscriber
    """

    socket_type: ClassVar[bytes] = b"PUB"
    peers: ClassVar[frozenset[bytes]] = frozenset({b"SUB", b"XSUB"})
    most_frames: ClassVar[int] = 1
    largest_label: ClassVar[int] = MAX_PREFIX

    def __init__(self, mechanism: Mechanism, usual: Dialect) -> None:
        super().__init__(mechanism, 1 + MAX_PREFIX)
        self.dialect = usual
        self._marked = False
        self._prefixes: set[bytes] = set()
        self._encoder: Encoder | None = None

    @property
    def subscribed(self) -> bool:
        """Return whether the subscriber has any subscription."""
        return bool(self._prefixes)

    @property
    def encoder(self) -> Encoder:
        """Return the encoder of the events to which the peer is subscribed."""
        if self._encoder is None:
            prefixes = frozenset({b""}) if b"" in self._prefixes else frozenset(self._prefixes)
            self._encoder = Encoder(prefixes, self.dialect)
        return self._encoder

    def _message(self, frames: list[bytes], events: list[Any]) -> None:
        (body,) = frames
        if body[:1] in (b"\0", b"\1"):
            self._subscribe(body[1:], body[0] == 1, events)
        else:
            events.append(MessageRefused(RemoteProtocolError("unknown-command", "a message that is no subscription")))

    def _command(self, name: bytes, data: bytes, events: list[Any]) -> None:
        if name in (b"SUBSCRIBE", b"CANCEL"):
            self._subscribe(data, name == b"SUBSCRIBE", events)
        else:
            super()._command(name, data, events)

    def _subscribe(self, prefix: bytes, on: bool, events: list[Any]) -> None:
        mark = MARKS.get(prefix)
        if mark is not None:
            if on and not self._marked:
                self._marked, self.dialect, self._encoder = True, mark, None
            return
        if (prefix in self._prefixes) is on:
            return
        if on and len(self._prefixes) >= MAX_PREFIXES:
            raise RemoteProtocolError("too-many-subscriptions", f"more than {MAX_PREFIXES} of one connection")
        (self._prefixes.add if on else self._prefixes.remove)(prefix)
        if on and not self._marked and not is_subtree(prefix):
            self.dialect = Dialect.DECIMAL
        self._encoder = None
        events.append(PrefixChanged(prefix, on))


class _ClientSession(ZmtpSession):
    """The client's side of a connection.

    Events: Joined, BusMessage, Ponged, Broken.
    """

    #: SYNC and the six frames of an event
    most_frames: ClassVar[int] = 1 + EVENT_FRAMES
    largest_label: ClassVar[int] = max(MAX_NAME, 2 * MAX_SUBTREES * MAX_SUBTREE)

    def __init__(self, mechanism: Mechanism | None = None) -> None:
        # Records of other protocols grow by the header of a msgpack byte string.
        super().__init__(Null() if mechanism is None else mechanism, MAX_PAYLOAD + 5)

    @property
    def pings(self) -> bool:
        """Return whether the server answers PING."""
        return self._pings and self.linked

    def _message(self, frames: list[bytes], events: list[Any]) -> None:
        events.append(BusMessage(frames))

    def _command(self, name: bytes, data: bytes, events: list[Any]) -> None:
        if name == b"PONG":
            events.append(Ponged())
        super()._command(name, data, events)


class DealerSession(_ClientSession):
    """The client's side of a connection to SNAPSHOT or COLLECTOR."""

    socket_type: ClassVar[bytes] = b"DEALER"
    peers: ClassVar[frozenset[bytes]] = frozenset({b"ROUTER", b"REP", b"DEALER"})


class SubscriberSession(_ClientSession):
    """The client's side of a connection to PUBLISHER."""

    socket_type: ClassVar[bytes] = b"SUB"
    peers: ClassVar[frozenset[bytes]] = frozenset({b"PUB", b"XPUB"})

    def send_subscribe(self, prefix: bytes) -> None:
        """Subscribe to the topics that begin with *prefix*."""
        if self._pings:
            body: Buffer = b"\x09SUBSCRIBE" + prefix
            self.out.append(self._mechanism.seal(body, COMMAND))
        else:
            self.out.append(self._mechanism.seal(b"\1" + prefix, 0))
