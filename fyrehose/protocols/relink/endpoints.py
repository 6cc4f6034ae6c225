"""The two endpoints of the server: publish to a stream, or subscribe to a stream (names.py defines the endpoint names).

    Publishing    messages -> runs -> journal, in one batch with the link's cursors -> consumed, committed
    Subscribing   journal -> messages on channel 0, limited by the window

An endpoint object belongs to one connection; the link's entry in the registry keeps what outlives the connection.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import attrs
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import FyrehoseError, PublishError, RemoteProtocolError
from fyrehose.interfaces import IConnectedSink, ISubscription
from fyrehose.net.outgoing import LargeRecord
from fyrehose.options import shown_size
from fyrehose.protocols.relink import events
from fyrehose.protocols.relink.channels import Sending
from fyrehose.protocols.relink.events import DropReason
from fyrehose.protocols.relink.frames import PROTOCOL, Ack
from fyrehose.protocols.relink.linklog import Anchors
from fyrehose.protocols.relink.messages import CONTENT_TYPE, MessageSequence, Parts, Piece, views
from fyrehose.protocols.relink.names import SEQ_SIZE, EndpointName
from fyrehose.protocols.relink.registry import LinkEntry
from fyrehose.protocols.relink.server import Endpoint, RelinkProtocol, Staged
from fyrehose.records import Buffer, Delivery, Run
from fyrehose.sessions import PIECE, fitting, piece_of
from fyrehose.subscriptions import letters

#: Delay before the server tries again to move the position of a named subscription, in seconds.
RETRY = 1.0
#: Upper bound of the bytes for head, size and padding that a message of one part needs besides its part, and that each
#: further part needs besides its data.
HEAD = 32
#: Largest number of gaps in the part of a stream that a subscriber has not consumed.
MAX_ANCHORS = 1_000


def stream_seq(anchors: Anchors, channel_seq: int) -> int:
    """Return the seq, in the stream, of the record that message *channel_seq* of the channel carries."""
    begin, seq = next(anchor for anchor in reversed(anchors) if anchor[0] <= channel_seq)
    return seq + channel_seq - begin


class Publishing(Endpoint):
    """The endpoint that publishes the peer's messages to a stream."""

    def __init__(self, connection: RelinkProtocol, entry: LinkEntry, place: EndpointName) -> None:
        super().__init__(connection, entry, place)
        #: messages of channels without transactions (plain channels) from the current read: channel -> first sequence
        #: number, messages
        self._plain: dict[int, tuple[int, list[Piece]]] = {}
        #: commits and rollbacks of the current read, in order; the link has recorded them as decided (staged)
        self._decided: list[events.Decided] = []
        #: why the stream has permanently refused a message without a transaction; None: it has refused none
        self._refusal: PublishError | None = None

    def handle(self, event: events.Event) -> None:
        """Collect the messages and decisions of a peer that publishes; close a channel that it has finished."""
        match event:
            case events.Received():
                self._plain.setdefault(event.channel, (event.first, []))[1].extend(event.messages.pieces)
            case events.Decided():
                self.decided(event)
            case events.Finished():
                # If a channel is closed twice in one read, the first write may have removed it already.
                channel = self.link.receiving.get(event.channel)
                if channel is not None and not channel.leaving:
                    self.connection.write([], [Staged(event.channel, channel.next, None)])
            case events.PeerShutdown():
                self.connection.handle_events(self.link.shutdown())

    def decided(self, event: events.Decided) -> None:
        """Record a commit or rollback in the link's state, to be written with the other messages of this read."""
        if event.commit and event.dropped is not None:
            self._count_dropped(event, event.dropped)
        self._decided.append(event)

    def _count_dropped(self, event: events.Decided, why: DropReason) -> None:
        """Count and log a transaction that is refused because its messages were not kept."""
        many = f"a transaction of {event.last - event.first + 1} messages on channel {event.channel} is refused"
        if why is DropReason.FORGOTTEN:
            detail = "the server has forgotten its messages, by a restart or while it could not write; send them again"
            self.connection.count_refusal("transactions-forgotten", f"{many}: {detail}; commit more often")
            return
        limits = self.link.limits
        size = shown_size(2 * limits.backlog_size)
        detail = {
            DropReason.COUNT: f"more than {2 * limits.backlog} messages of the channel were undecided",
            DropReason.SIZE: f"more than {size} of the link were undecided",
            DropReason.MEMORY: "the links used more than half of the option server.memory",
        }[why]
        self.connection.count_refusal("transactions-too-large", f"{many}: {detail}; commit more often")

    def after_read(self) -> None:
        """Write in one batch what one read has brought: the messages, and the cursors of each channel."""
        if self._plain:
            plain = [
                (channel, first, MessageSequence(tuple(pieces))) for channel, (first, pieces) in self._plain.items()
            ]
            self._plain = {}
            self._write_plain(plain)
            if self._refusal is not None:
                self.connection.end_link(self._refusal)
        if self._decided:
            decided, self._decided = self._decided, []
            self._write_decided(decided)

    def _write_plain(self, plain: list[tuple[int, int, MessageSequence]]) -> None:
        """Write messages of channels without transactions.

        :param plain: channel, first sequence number and messages of each channel
        """
        runs: list[Run] = []
        stages = []
        for channel, first, messages in plain:
            runs += self._runs(channel, first, messages)
            stages.append(Staged(channel, first, first + len(messages) - 1))
        refusal = self.connection.write(runs, stages)
        if refusal is not None:
            self._write_plain_separately(plain, refusal)

    def _write_plain_separately(self, plain: list[tuple[int, int, MessageSequence]], error: PublishError) -> None:
        """Write the messages of *plain* that the stream accepts, after it has refused the batch.

        On each channel, messages are written up to the first refused one.  A channel without transactions has no way to
        refuse a message, so that message ends the link, unless it is kept as a dead letter.
        """
        if len(plain) > 1:
            for one in plain:
                self._write_plain([one])
            return
        channel, first, messages = plain[0]
        if len(messages) == 1:
            if letters.keeps(self.connection.settings.refused, error):
                (run,) = self._runs(channel, first, messages)
                letter = letters.letter(PROTOCOL, run, error)
                if self.connection.write([], [Staged(channel, first, first)], [letter]) is None:
                    self.connection.count_refusal("dead-letters", str(error))
                    return
            refusal = f"message {first} of channel {channel} was refused, so the link ends: {error}"
            self._refusal = type(error)(f"{refusal}; send it in a transaction to have only the transaction refused")
            return
        head, tail = messages.cut(len(messages) // 2)
        self._write_plain([(channel, first, head)])
        if self.link.receiving[channel].done == first + len(head) - 1:
            self._write_plain([(channel, first + len(head), tail)])

    def _committed_runs(self, decided: list[events.Decided]) -> list[Run]:
        """Return the runs of all committed messages; join consecutive commits of a channel."""
        found: list[tuple[int, int, list[Piece]]] = []
        expected: tuple[int, int] | None = None
        for event in decided:
            if not event.commit or event.dropped is not None:
                continue
            if expected != (event.channel, event.first):
                found.append((event.channel, event.first, []))
            found[-1][2].extend(event.messages.pieces)
            expected = (event.channel, event.last + 1)
        runs: list[Run] = []
        for channel, first, pieces in found:
            runs += self._runs(channel, first, MessageSequence(tuple(pieces)))
        return runs

    def _write_decided(self, decided: list[events.Decided]) -> None:
        """Write commits and rollbacks, each separately if the stream refuses all of them for one.

        A commit that the stream refuses permanently is answered with "uncommitted".
        """
        stages = []
        for event in decided:
            result = Ack.COMMITTED if event.dropped is None else Ack.UNCOMMITTED
            stages.append(Staged(event.channel, event.first, event.last, result if event.commit else None))
        refusal = self.connection.write(self._committed_runs(decided), stages)
        if refusal is None:
            return
        if len(decided) > 1:
            for event in decided:
                self._write_decided([event])
            return
        self.connection.count_refusal(type(refusal).__name__, str(refusal))
        self.connection.write([], [attrs.evolve(stages[0], result=Ack.UNCOMMITTED)])

    def _runs(self, channel: int, first: int, messages: MessageSequence) -> list[Run]:
        # A reopened channel begins at number 0 again, so the ordinal is needed to keep (producer, producer_seq) unique.
        """Return messages of a channel as runs for the journal; *first* is the sequence number of the first message."""
        ordinal = self.link.receiving[channel].ordinal
        producer = f"{self.entry.label}.{ordinal}"
        return messages.runs(first, self.place.stream, source=PROTOCOL, producer=producer, topic=str(channel))


def _pack_seq(seq: int) -> bytes:
    """Return a record's number as the eight bytes of a message part."""
    return seq.to_bytes(SEQ_SIZE, "little")


@attrs.frozen
class _Gap:
    """A gap in the queue of messages to send: the next record has number ``seq`` in the stream."""

    seq: int


@implementer(IConnectedSink, ISubscription)
class Subscribing(Endpoint):
    """The endpoint that sends the records of a stream on channel 0, from the first one that the peer has not received.

    The connection treats this object as its subscription: the records flow only while both the transport and the peer's
    window have room.
    """

    def __init__(self, connection: RelinkProtocol, entry: LinkEntry, place: EndpointName) -> None:
        super().__init__(connection, entry, place)
        self._subscription: ISubscription | None = None
        self._transport_ready = False
        #: messages to send before the next record, as soon as the window has room: where the channel begins, and gaps
        self._pending: deque[Parts | _Gap] = deque()
        self._writing_anchor = False
        self._named = connection.named

    # Events of the session.

    def begin(self) -> None:
        # Send a ping, because its pong shows that the peer knows the link; then the link is kept for its full
        # retention, even without records.
        self.link.ping()
        self._subscribe(0)

    def handle(self, event: events.Event) -> None:
        """Note what a subscriber has consumed, and send it the records that follow."""
        match event:
            case events.Consumed():
                anchors = self.entry.anchors
                if self._named is not None and event.last >= anchors[0][0]:
                    self.entry.consumed = stream_seq(anchors, event.last)
                    self._acknowledge()
                while len(anchors) > 1 and anchors[1][0] <= event.last + 1:
                    del anchors[0]
                self._pump()
            case events.Rewound():
                if self.link.shutdown_received:
                    self._shut_down()
                else:
                    self._acknowledge()  # moving the position may have failed before the connection was lost
                    self._subscribe(event.next)
            case events.Received() | events.Decided():
                self.connection.reject(RemoteProtocolError("message-to-subscription"))
            case events.Finished():
                self.connection.handle_events(self.link.forget(event.channel))
            case events.PeerShutdown():
                # The link ends when the peer has consumed all sent messages, and is not kept over a restart from now
                # on.  The peer forgets a closed channel: if the server crashed then, and still had the link, it would
                # send everything again.
                self.end()
                self.connection.registry.forget(self.entry, self._shut_down)

    def _shut_down(self) -> None:
        """Close channel 0 if the peer's report has arrived, and shut down the link."""
        link = self.link
        channel = link.sending.get(0)
        if channel is not None and link.may_send:  # Otherwise the channel is closed after the peer's report.
            if not channel.next:
                del link.sending[0]  # Nothing was sent on the channel, so the peer never saw it open.
            elif channel.mode is Sending.OPEN:
                link.close(0)
        self.connection.handle_events(link.shutdown())

    def end(self) -> None:
        self._pending.clear()
        self.connection.timers.stop(self._acknowledge)
        if self._subscription is not None:
            self.connection.detach(self)

    # Called by the connection, as for any subscription.

    @property
    def position(self) -> int:
        """The number of the last record that was delivered or skipped."""
        return 0 if self._subscription is None else int(self._subscription.position)

    def pauseProducing(self) -> None:
        self._transport_ready = False
        self._update()

    def resumeProducing(self) -> None:
        self._transport_ready = True
        self._update()

    def stopProducing(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.stopProducing()

    # Called by the broker.

    def deliver(self, delivery: Delivery) -> int:
        """Send as many records as fit into a piece and into the window of the peer; return the number of the last."""
        self._pump()
        room, last = PIECE, delivery.first_seq - 1
        for run in delivery.runs:
            if run.first_seq != last + 1:  # the gap is reported before the next delivery
                break
            count, size = self._send_records(run, min(len(run), self._room), room)
            room -= size
            last += count
            if count < len(run):
                break
        if last < delivery.first_seq and self._room:
            last = delivery.first_seq
            self._send_large(delivery.runs[0])
        self._update()
        self.connection.flush()
        return last

    def skipped(self, first: int, last: int) -> None:
        self._pending.append(_Gap(last + 1))
        self.connection.broker.counters.add(PROTOCOL, "skipped", last - first + 1)

    def ended(self, reason: Exception) -> None:
        self.connection.finish()

    # Private.

    def _acknowledge(self) -> None:
        """Move the position of the named subscription to what the peer has consumed; retry after a refusal."""
        if self._named is not None and self.entry.consumed:
            moved = self.connection.broker.named.acknowledge(self._named, self.entry.consumed)
            moved.addErrback(self._not_acknowledged)

    def _not_acknowledged(self, failure: Failure) -> None:
        if failure.check(PublishError):
            self.connection.timers.start(RETRY, self._acknowledge)
        else:
            failure.trap(FyrehoseError)
            self.connection.refuse_subscription(failure)

    def _subscribe(self, channel_seq: int) -> None:
        """Subscribe to the stream, beginning with the record that message *channel_seq* of the channel carries."""
        if self.place.seqs and not channel_seq:
            broker, rewinds = self.connection.broker, 0 if self._named is None else self._named.saved.rewinds
            numbers = (self.entry.anchors[0][1] - 1, rewinds, broker.bounds(self.place.stream)[1])
            self._pending.append((b"", *map(_pack_seq, numbers), broker.epoch.encode()))
            channel_seq = 1
        wanted = stream_seq(self.entry.anchors, channel_seq)
        subscription = self.connection.broker.subscribe(self.place.stream, wanted - 1, self)
        if subscription.position < wanted - 1:
            self.connection.reject(
                RemoteProtocolError(
                    "acknowledged-unsent", f"the peer has message {channel_seq - 1}, which was not sent to it"
                )
            )
            return
        if subscription.position >= wanted:
            self.skipped(wanted, subscription.position)
        self._subscription = subscription
        self.connection.attach(self)
        self._pump()

    @property
    def _room(self) -> int:
        """Return how many records the peer's window has room for; 0 if other messages have to precede them."""
        channel = self.link.sending.get(0)
        if self._pending or self._writing_anchor or channel is None or not self.link.may_send:
            return 0
        return channel.room

    def _update(self) -> None:
        """Resume or pause the subscription after the window or the transport has changed."""
        if self._subscription is None:
            return
        if self._transport_ready and self._room > 0:
            self._subscription.resumeProducing()
        else:
            self._subscription.pauseProducing()

    def _pump(self) -> None:
        """Send the messages that precede the next record, while the window has room; the caller flushes."""
        channel = self.link.sending.get(0)
        if self._writing_anchor or channel is None or not self.link.may_send:
            return
        while self._pending and channel.room > 0:
            item = self._pending.popleft()
            if isinstance(item, _Gap):
                self._write_anchor(channel.next, item.seq)
                break
            self.link.send((channel.id,), item)
        self._update()

    def _send_records(self, run: Run, most: int, room: int) -> tuple[int, int]:
        """Send the first records of *run*: as many as fit into *room* bytes, and at most *most*.

        :return: how many records were sent, and an upper bound of the bytes that they take
        """
        if not self.place.seqs and run.content_type != CONTENT_TYPE:
            count = min(fitting(run, HEAD, room), most)
            part = run.part(0, count)
            if count:
                self.link.send_run(0, part)
            return count, len(part.payload) + count * HEAD
        count, left = 0, room
        for seq, payload in enumerate(run.payloads(), run.first_seq):
            if count == most or len(payload) > left:
                break
            parts = self._parts(run, seq, payload)
            size = HEAD * (1 + len(parts)) + sum(map(len, parts))
            if size > left:
                break
            self.link.send((0,), tuple(map(bytes, parts)))
            left -= size
            count += 1
        return count, room - left

    def _send_large(self, run: Run) -> None:
        """Send the first record of *run*, which is larger than a piece."""
        seq, link = run.first_seq, self.link
        link.begin(0, self._parts(run, seq, next(run.payloads())))

        def cut(one: Run, position: int) -> tuple[bytes, int | None]:
            return piece_of(link.packet(0, self._parts(one, seq, next(one.payloads()))), position)

        self.connection.send_record(LargeRecord(run.stream, seq, cut, run.slice(0, 1)))

    def _parts(self, run: Run, seq: int, payload: memoryview) -> tuple[Buffer, ...]:
        """Return the parts of the message that carries a record of *run*, without copying the payload."""
        parts: tuple[Buffer, ...] = (payload,)
        if run.content_type == CONTENT_TYPE:
            parts = views(payload, self.link.limits.parts - self.place.seqs)
        return (_pack_seq(seq), *parts) if self.place.seqs else parts

    def _write_anchor(self, channel_seq: int, seq: int) -> None:
        """Write an anchor, which says at which record the channel continues after a gap.

        Sending continues when the anchor is durable, because a later connection needs it to find the record again.
        """
        entry = self.entry
        entry.anchors = [*(anchor for anchor in entry.anchors if anchor[0] < channel_seq), (channel_seq, seq)]
        if len(entry.anchors) > MAX_ANCHORS:
            self.connection.reject(RemoteProtocolError("too-many-gaps", f"more than {MAX_ANCHORS} unconsumed gaps"))
            return
        self._writing_anchor = True
        self.connection.registry.write_entry(entry, self._anchor_written)

    def _anchor_written(self, result: Any) -> None:
        self._writing_anchor = False
        if isinstance(result, Failure):
            result.trap(PublishError)
            self.connection.reject(RemoteProtocolError("gap-not-written", result.getErrorMessage()))
        else:
            self._pump()
            self.connection.flush_soon()
