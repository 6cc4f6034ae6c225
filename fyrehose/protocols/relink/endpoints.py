"""Endpoints that a connector can ask for: publish to a stream, or subscribe to one (names.py has the names).

    Publishing    messages -> runs -> the journal, together with the link's cursors -> consumed, committed
    Subscribing   the journal -> messages on channel 0, as far as the window that the peer's consumed holds open

Each is one connection's part in it; what outlives the connection is in its registry entry.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import PublishError, RemoteProtocolError
from fyrehose.interfaces import IBroker, ISink, ISubscription
from fyrehose.protocols.relink import events
from fyrehose.protocols.relink.frames import Ack
from fyrehose.protocols.relink.linklog import Anchors
from fyrehose.protocols.relink.messages import Column, Messages, Parts, Piece, piece_of
from fyrehose.protocols.relink.names import SEQ_SIZE, Place
from fyrehose.protocols.relink.registry import Entry
from fyrehose.protocols.relink.sending import SendChannel
from fyrehose.protocols.relink.tables import Sending
from fyrehose.records import Delivery, Run

if TYPE_CHECKING:
    from fyrehose.protocols.relink.server import RelinkProtocol

PROTOCOL = "relink"
#: How many gaps of a stream may lie in what a subscriber has not consumed.
MOST_ANCHORS = 1_000


def first_anchor(broker: IBroker, place: Place) -> Anchors:
    """Where a new subscriber's channel begins in its stream."""
    if not place.subscribe:
        return []
    oldest, last = broker.bounds(place.stream)
    after = last if place.after is None else min(max(place.after, oldest - 1), last)
    return [(int(place.seqs), after + 1)]  # what comes before it says where it begins


def stream_seq(anchors: Anchors, channel_seq: int) -> int:
    """The number in the stream of the record that is number ``channel_seq`` on the channel."""
    begin, seq = next(anchor for anchor in reversed(anchors) if anchor[0] <= channel_seq)
    return seq + channel_seq - begin


class Endpoint:
    """What a connection does with its link's events."""

    def __init__(self, protocol: RelinkProtocol, entry: Entry, place: Place) -> None:
        self.protocol = protocol
        self.entry = entry
        self.link = entry.link
        self.place = place
        self.registry = protocol.registry

    def begin(self) -> None:
        """Messaging may begin: the link is new."""

    def end(self) -> None:
        """The connection is gone."""

    def after_read(self) -> None:
        """Everything that came in together has been dealt with."""

    def received(self, event: events.Received) -> None:
        """A message of the peer."""
        raise NotImplementedError

    def decided(self, event: events.Decided) -> None:
        """A commit or a rollback of the peer."""
        raise NotImplementedError

    def finished(self, event: events.Finished) -> None:
        """A channel of the peer is closed."""
        raise NotImplementedError

    def consumed(self, event: events.Consumed) -> None:
        """The peer has consumed."""

    def rewound(self, event: events.Rewound) -> None:
        """The peer says what it has of ours."""

    def peer_shutdown(self) -> None:
        """The peer wants to end the link."""


class Publishing(Endpoint):
    """Takes what the peer sends into a stream."""

    def __init__(self, protocol: RelinkProtocol, entry: Entry, place: Place) -> None:
        super().__init__(protocol, entry, place)
        #: messages of plain channels that came in together: channel -> first number, messages
        self._plain: dict[int, tuple[int, list[Piece]]] = {}
        #: what was decided together, in order, and is staged
        self._decided: list[events.Decided] = []
        #: why a message of a plain channel can never be written
        self._refusal: PublishError | None = None

    def received(self, event: events.Received) -> None:
        self._plain.setdefault(event.channel, (event.first, []))[1].extend(event.messages.pieces)

    def decided(self, event: events.Decided) -> None:
        if event.commit and event.dropped:
            self.protocol.count_too_large(event.last - event.first + 1)
        self._stage(event)
        self._decided.append(event)

    def _stage(self, event: events.Decided) -> None:
        result = Ack.UNCOMMITTED if event.dropped else Ack.COMMITTED
        self.link.stage(event.channel, event.last, result if event.commit else None)

    def after_read(self) -> None:
        """All that came together is one write: the messages, and once the cursors of each channel."""
        if self._plain:
            plain = [(channel, first, Messages(tuple(pieces))) for channel, (first, pieces) in self._plain.items()]
            self._plain = {}
            self._write_plain(plain)
            if self._refusal is not None:
                self.protocol.end_link(self._refusal)
        if self._decided:
            decided, self._decided = self._decided, []
            runs = self._committed(decided)
            staged = {event.channel: event.last for event in decided}
            self.protocol.write(runs, staged, partial(self._apart, decided) if runs else None)

    def _write_plain(self, plain: list[tuple[int, int, Messages]]) -> None:
        """Write messages of plain channels: for each channel the number of the first, and the messages."""
        runs: list[Run] = []
        staged: dict[int, int | None] = {}
        for channel, first, messages in plain:
            runs += self._runs(channel, first, messages)
            last = staged[channel] = first + len(messages) - 1
            self.link.stage(channel, last)
        self.protocol.write(runs, staged, partial(self._plain_apart, plain))

    def _plain_apart(self, plain: list[tuple[int, int, Messages]], error: PublishError) -> bool:
        """Write what the stream takes of *plain*, which it refuses as a whole.

        Of each channel that is all before the first message that is refused.  There is no way to refuse a message of a
        plain channel but to end the link.
        """
        for channel, first, _ in plain:
            self.link.unstage(channel, first - 1)
        if len(plain) > 1:
            for one in plain:
                self._write_plain([one])
            return True
        channel, first, messages = plain[0]
        if len(messages) == 1:
            refusal = f"message {first} of channel {channel} is refused, so the link ends: {error}"
            self._refusal = type(error)(f"{refusal}; in a transaction it alone would be refused")
            return True
        head, tail = messages.cut(len(messages) // 2)
        self._write_plain([(channel, first, head)])
        if self.link.receiving[channel].done == first + len(head) - 1:
            self._write_plain([(channel, first + len(head), tail)])
        return True

    def _committed(self, decided: list[events.Decided]) -> list[Run]:
        """The runs of what was committed; commits that follow on are written as one."""
        found: list[tuple[int, int, list[Piece]]] = []
        expected: tuple[int, int] | None = None
        for event in decided:
            if not event.commit or event.dropped:
                continue
            if expected != (event.channel, event.first):
                found.append((event.channel, event.first, []))
            found[-1][2].extend(event.messages.pieces)
            expected = (event.channel, event.last + 1)
        return [run for channel, first, pieces in found for run in self._runs(channel, first, Messages(tuple(pieces)))]

    def _apart(self, decided: list[events.Decided], error: PublishError) -> bool:
        """One of the commits can never be written; the others, which it kept from it, are written by themselves."""
        if len(decided) == 1:
            return self._uncommit(decided[0], error)
        for event in reversed(decided):
            self.link.unstage(event.channel, event.first - 1)
        for event in decided:
            self._stage(event)
            runs = self._committed([event])
            self.protocol.write(runs, {event.channel: event.last}, partial(self._apart, [event]) if runs else None)
        return True

    def _uncommit(self, event: events.Decided, error: PublishError) -> bool:
        """The commit can never be written: that is its result."""
        link = self.link
        if event.channel not in link.receiving or link.receiving[event.channel].done != event.last:
            return False
        self.protocol.count_refusal(error)
        link.unstage(event.channel, event.first - 1)
        link.stage(event.channel, event.last, Ack.UNCOMMITTED)
        self.protocol.write([], {event.channel: event.last})
        return True

    def _runs(self, channel: int, first: int, messages: Messages) -> list[Run]:
        # A channel may be opened again and begin at 0 again: its ordinal keeps (producer, producer_seq) unique.
        ordinal = self.link.receiving[channel].ordinal
        producer = f"{self.entry.label}.{ordinal}"
        return messages.runs(first, self.place.stream, source=PROTOCOL, producer=producer, topic=str(channel))

    def finished(self, event: events.Finished) -> None:
        if self.link.receiving[event.channel].leaving:
            return
        self.link.leave(event.channel)
        self.protocol.write([], {event.channel: None})

    def peer_shutdown(self) -> None:
        self.protocol.handle_events(self.link.shutdown())


def _said(seq: int) -> bytes:
    """A record's number, as a part of a message."""
    return seq.to_bytes(SEQ_SIZE, "little")


@attrs.frozen
class _Gap:
    """What follows begins at this number of the stream."""

    seq: int


@implementer(ISink)
class Subscribing(Endpoint):
    """Sends what a stream holds, from where the peer is."""

    def __init__(self, protocol: RelinkProtocol, entry: Entry, place: Place) -> None:
        super().__init__(protocol, entry, place)
        self._subscription: Windowed | None = None
        #: what was read and is not sent: messages of one part each by the run, the others one by one
        self._pending: deque[Column | Parts | _Gap] = deque()
        self._writing = False

    # What the session says.

    def begin(self) -> None:
        # The pong shows that the peer knows the link, which is then kept for long, even if no record comes.
        self.link.ping()
        self._subscribe(0)

    def rewound(self, event: events.Rewound) -> None:
        if self.link.shutdown_received:
            self._leave()
        else:
            self._subscribe(event.next)

    def consumed(self, event: events.Consumed) -> None:
        anchors = self.entry.anchors
        while len(anchors) > 1 and anchors[1][0] <= event.last + 1:
            del anchors[0]
        self._pump()

    def received(self, event: events.Received) -> None:
        self._not_asked()

    def decided(self, event: events.Decided) -> None:
        self._not_asked()

    def finished(self, event: events.Finished) -> None:
        self.protocol.handle_events(self.link.forget(event.channel))

    def peer_shutdown(self) -> None:
        """It wants no more: after a restart it need not be known, and now what was sent is still to be consumed."""
        self.end()
        self.registry.forget(self.entry)
        self._leave()

    def _leave(self) -> None:
        link = self.link
        channel = link.sending.get(0)
        if channel is not None and link.may_send:  # else the peer's report says what it holds: see rewound
            if not channel.next:
                del link.sending[0]  # nothing was sent on it, so the peer never saw it open
            elif channel.mode is Sending.OPEN:
                link.close(0)
        self.protocol.handle_events(link.shutdown())

    def end(self) -> None:
        self._pending.clear()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            self.protocol.detach(subscription)

    # What the broker says.

    @property
    def subscriber(self) -> tuple[str, str]:
        return self.protocol.subscriber

    def deliver(self, delivery: Delivery) -> None:
        seqs = self.place.seqs
        most = self.link.limits.parts - seqs
        for run in delivery.runs:
            piece = piece_of(run, most)
            if seqs:
                self._pending.extend((_said(seq), *parts) for seq, parts in enumerate(piece, run.first_seq))
            else:
                self._pending.extend([piece] if isinstance(piece, Column) else piece)
        self._pump()
        self.protocol.flush()

    def skipped(self, first: int, last: int) -> None:
        self._pending.append(_Gap(last + 1))
        self.protocol.broker.counters.add(PROTOCOL, "skipped", last - first + 1)

    def ended(self, reason: Exception) -> None:
        self.protocol.finish()

    # Inside.

    def _subscribe(self, channel_seq: int) -> None:
        """Go on with the record that is number ``channel_seq`` on the channel."""
        if self.place.seqs and not channel_seq:
            self._pending.append((b"", _said(self.entry.anchors[0][1] - 1)))
            channel_seq = 1
        wanted = stream_seq(self.entry.anchors, channel_seq)
        subscription = self.protocol.broker.subscribe(self.place.stream, wanted - 1, self)
        if subscription.position < wanted - 1:
            self.protocol.reject(RemoteProtocolError("acknowledged-unsent", f"message {channel_seq - 1}"))
            return
        if subscription.position >= wanted:
            self.skipped(wanted, subscription.position)
        self._subscription = Windowed(subscription, self)
        self.protocol.attach(self._subscription)
        self._pump()

    @property
    def full(self) -> bool:
        """Whether the window has no room for more."""
        return bool(self._pending)

    def _pump(self) -> None:
        """Send what the window has room for.  It goes out when whatever led to it is dealt with."""
        channel = self.link.sending.get(0)
        if self._writing or channel is None or not self.link.may_send:
            return
        while self._pending and channel.room > 0:
            one = self._pending.popleft()
            if isinstance(one, _Gap):
                self._write_anchor(channel.next, one.seq)
                break
            self._send(channel, one)
        if self._subscription is not None:
            self._subscription.update()

    def _send(self, channel: SendChannel, one: Column | Parts) -> None:
        if not isinstance(one, Column):
            self.link.send((channel.id,), one)
            return
        if len(one) > channel.room:
            one, rest = one.cut(channel.room)
            self._pending.appendleft(rest)
        self.link.send_run(channel.id, one)

    def _write_anchor(self, channel_seq: int, seq: int) -> None:
        """What follows a gap is sent when it is durable where it lies: a later connection has to find it again."""
        entry = self.entry
        entry.anchors = [*(anchor for anchor in entry.anchors if anchor[0] < channel_seq), (channel_seq, seq)]
        if len(entry.anchors) > MOST_ANCHORS:
            self.protocol.reject(RemoteProtocolError("too-many-gaps"))
            return
        self._writing = True
        self.registry.write_entry(entry, self._anchored)

    def _anchored(self, result: Any) -> None:
        self._writing = False
        if isinstance(result, Failure):
            result.trap(PublishError)
            self.protocol.reject(RemoteProtocolError("gap-not-written", result.getErrorMessage()))
        else:
            self._pump()
            self.protocol.flush_soon()

    def _not_asked(self) -> None:
        self.protocol.reject(RemoteProtocolError("message-to-subscription"))


@implementer(ISubscription)
class Windowed:
    """A subscription that goes on when its transport and the peer's window both have room."""

    def __init__(self, subscription: ISubscription, endpoint: Subscribing) -> None:
        self._subscription = subscription
        self._endpoint = endpoint
        self._wanted = False

    @property
    def position(self) -> int:
        """See :class:`~fyrehose.interfaces.ISubscription`."""
        position: int = self._subscription.position
        return position

    def pauseProducing(self) -> None:
        self._wanted = False
        self._subscription.pauseProducing()

    def resumeProducing(self) -> None:
        self._wanted = True
        self.update()

    def update(self) -> None:
        """The window has changed."""
        if self._wanted and not self._endpoint.full:
            self._subscription.resumeProducing()
        else:
            self._subscription.pauseProducing()

    def stopProducing(self) -> None:
        self._subscription.stopProducing()
