"""The channels of a link, one at a time: their states, messages, decisions and results.

SENDING and RECEIVING map the state of a channel and an event to the next state; any other combination is an error.
docs/protocols/relink-wire.md is drawn from these tables, and has the rules S1 to S8 and R1 to R7.  A channel without
transactions, and each of its messages, is *plain*.

One of our own channels (rules S1-S8):

       consumed        result known     decided        sent
    ---------------|----------------|--------------|------------|  ->
                  base            settled         dec          next        recv: the last message that the peer holds

A message is kept until it is consumed.  A channel that is not ``kept`` stores only the cursors: its owner can produce
the messages again from their numbers (the server reads them from the journal).

One of the peer's channels (rules R1-R7):

       acknowledged       staged by the owner     decided       received
    -------------------|----------------------|-------------|-------------|  ->
                    consumed                done           dec           next

The owner finishes messages in two steps.  ``stage`` records their result: from then on a snapshot of the channel counts
them as done, and is written in one batch with the messages.  ``settle`` acknowledges them to the peer when the batch is
durable.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from operator import attrgetter

import attrs

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.protocols.relink.events import DropReason, MessageOutcome, Unsettled
from fyrehose.protocols.relink.frames import Ack, Acknowledgement, Message, Op, Operation, nearest
from fyrehose.protocols.relink.messages import MessageSequence, Piece, cut, parts_of


class TableKey(Enum):
    """Base of the enumerations used as keys of the tables.

    The tables are consulted for each read, and Enum's own hash is slow, because it is a function in Python.  Each
    member
    exists once, so the fast hash of ``object`` suffices.
    """

    __hash__ = object.__hash__


class Sending(TableKey):
    """The states of one of our own channels, on which we send messages."""

    OPEN = "accepts messages"
    DRAINING = "accepts no more messages, and waits until all are consumed"
    CLOSING = "close was sent, and is sent again after each resume"
    GONE = "may be opened again, from number 0"


class Receiving(TableKey):
    """The states of a channel of the peer, on which we receive messages."""

    OPEN = "accepts messages"
    CLOSING = "close has arrived; not everything is consumed"
    BARRIER = "a ping was sent behind the last acknowledgement"
    FINISHED = "its pong has arrived, so the peer knows all results; the owner forgets the channel durably"
    GONE = "closed was sent"


class ChannelEvent(TableKey):
    """The events that change the state of a channel."""

    CLOSE = "close"
    DRAINED = "everything is decided and consumed"
    CLOSED = "closed"
    PING = "ping"
    PONG = "pong"
    DETACHED = "the connection is lost"
    REWOUND = "messages that are not durable, and close, will be sent again"
    FORGOTTEN = "forgotten"


SENDING: Mapping[tuple[Sending, ChannelEvent], Sending] = {
    (Sending.OPEN, ChannelEvent.CLOSE): Sending.DRAINING,
    (Sending.DRAINING, ChannelEvent.DRAINED): Sending.CLOSING,
    (Sending.DRAINING, ChannelEvent.REWOUND): Sending.OPEN,
    (Sending.CLOSING, ChannelEvent.CLOSED): Sending.GONE,
}

RECEIVING: Mapping[tuple[Receiving, ChannelEvent], Receiving] = {
    (Receiving.OPEN, ChannelEvent.CLOSE): Receiving.CLOSING,
    (Receiving.CLOSING, ChannelEvent.PING): Receiving.BARRIER,
    (Receiving.BARRIER, ChannelEvent.PONG): Receiving.FINISHED,
    (Receiving.BARRIER, ChannelEvent.DETACHED): Receiving.CLOSING,
    (Receiving.CLOSING, ChannelEvent.REWOUND): Receiving.OPEN,
    (Receiving.FINISHED, ChannelEvent.FORGOTTEN): Receiving.GONE,
}


#: The largest window: 32-bit numbers that wrap can be compared only within half their range.
MAX_WINDOW = (1 << 31) - 1


@attrs.define(eq=False)
class Sent:
    """A message that was sent, and that the peer has not consumed yet."""

    parts: tuple[bytes, ...]
    decision: Op | None = None
    result: Ack | None = None


@attrs.define(eq=False)
class SendChannel:
    """The cursors of one channel, as sequence numbers of messages, and the unconsumed messages."""

    id: int
    transactional: bool
    window: int
    kept: bool = True
    mode: Sending = attrs.field(default=Sending.OPEN, init=False)
    next: int = attrs.field(default=0, init=False)
    base: int = attrs.field(default=0, init=False)
    recv: int = attrs.field(default=-1, init=False)
    dec: int = attrs.field(default=-1, init=False)
    settled: int = attrs.field(default=-1, init=False)
    #: whether the channel was restored, so that only the peer's report says how many messages were sent
    unsure: bool = attrs.field(default=False, init=False)
    _messages: deque[Sent] = attrs.field(factory=deque, init=False)
    #: the last decision sent on this connection, and the number of the last message that it covers
    _emitted: tuple[Op, int] | None = attrs.field(default=None, init=False)
    #: ``base`` when the connection began, and the last message that the peer has said since then to have consumed, if
    #: it had said so of a later one before
    resumed: int = attrs.field(default=0, init=False)
    reported: int = attrs.field(default=-1, init=False)

    @property
    def room(self) -> int:
        """The number of messages that the window has room for; 0 if the channel is not open."""
        return self.window - (self.next - self.base) if self.mode is Sending.OPEN else 0

    @property
    def undecided(self) -> int:
        """The number of messages that wait for a commit or rollback."""
        return self.next - 1 - self.dec if self.transactional else 0

    def message(self, seq: int) -> Sent:
        """Return the unconsumed message with number *seq*."""
        return self._messages[seq - self.base]

    def advance(self, event: ChannelEvent) -> None:
        """Change the channel's state as the table SENDING says for *event*."""
        self.mode = SENDING[self.mode, event]

    # Called for our own messages and decisions.

    def add(self, messages: Piece) -> int:
        """Add messages behind the last one, and return the sequence number of the first.

        :raises LocalProtocolError: the channel is closing, or the window has no room for all of them
        """
        if self.mode is not Sending.OPEN:
            raise LocalProtocolError(f"channel {self.id} is being closed")
        if self.room < len(messages):
            raise LocalProtocolError(
                f"the window of channel {self.id} is full: it has room for {self.room} messages, not {len(messages)}"
            )
        if self.kept:
            self._messages.extend(map(Sent, parts_of(messages)))
        first = self.next
        self.next += len(messages)
        return first

    def decide(self, op: Op, through: int) -> tuple[int, int]:
        """Commit or roll back the undecided messages up to *through*, and return the numbers of the first and last.

        :raises LocalProtocolError: there is no such undecided message
        """
        first = self.dec + 1
        if not self.transactional or not first <= through < self.next:
            raise LocalProtocolError(f"channel {self.id} has no undecided message up to number {through}")
        for seq in range(first, through + 1):
            self.message(seq).decision = op
        self.dec = through
        return first, through

    def decision(self, op: Op, first: int, last: int) -> Operation:
        """Return the packet of a decision.

        The packet has no number if the last decision on this connection was the same, for the message before (rule S5).
        """
        plain = first == last and self._emitted == (op, first - 1)
        self._emitted = (op, last)
        return Operation(kind=op, channels=(self.id,), number=None if plain else last)

    def unsettled(self) -> Iterator[Unsettled]:
        """Yield the messages that are not acknowledged (S7); none if messages are not kept.

        Without transactions the peer processes a message as soon as it arrives, so the outcome of each message is
        unknown.
        """
        for seq, message in enumerate(self._messages, self.base):
            if message.decision is not Op.ROLLBACK and message.result is None:
                undecided = self.transactional and message.decision is None
                outcome = MessageOutcome.NOT_PROCESSED if undecided else MessageOutcome.UNKNOWN
                yield Unsettled(channel=self.id, seq=seq, parts=message.parts, outcome=outcome)

    # Called for the peer's acknowledgements.

    def received(self, number: int | None) -> None:
        """Record that the peer holds all messages up to *number* (None: one more message than before).

        :raises RemoteProtocolError: that message was not sent
        """
        self.recv = max(self.recv, self._sent(self.recv + 1 if number is None else nearest(number, self.recv)))

    def consumed(self, number: int | None) -> tuple[int, int] | None:
        """Record that the peer has consumed all messages up to *number* (None: one more message than before).

        :return: the numbers of the first and last newly consumed message; None if there is none
        :raises RemoteProtocolError: a message was not sent or not decided, or its result has not arrived before (R3)
        """
        last = self._sent(self.base if number is None else nearest(number, self.base - 1))
        if last < self.base:
            self.reported = max(self.reported, last)
            return None
        first = self.base
        while self._messages and self.base <= last:
            message = self._messages[0]
            if self.transactional and message.decision is None:
                raise RemoteProtocolError(
                    "consumed-undecided", f"message {self.base} of channel {self.id} was not decided yet"
                )
            if message.decision is Op.COMMIT and message.result is None:
                raise RemoteProtocolError(
                    "consumed-before-result", f"message {self.base} of channel {self.id} has no result yet"
                )
            self._messages.popleft()
            self.base += 1
        self.base = last + 1
        self.recv = max(self.recv, last)
        return first, last

    def resulted(self, ack: Ack, number: int | None) -> list[tuple[int, int]]:
        """Record *ack* as the result of the commits up to *number* (None: the next commit).

        :return: the numbers of the first and last message of each run of new results
        :raises RemoteProtocolError: a message is not decided, or the channel has no transactions
        """
        if not self.transactional:
            raise RemoteProtocolError("result-not-transactional")
        first = max(self.settled + 1, self.base)
        if number is None:
            while first <= self.dec and self.message(first).decision is Op.ROLLBACK:
                first += 1
            last = first
        else:
            last = nearest(number, first - 1)
        if last > self.dec:
            raise RemoteProtocolError(
                "result-unasked", f"the peer sent a result for message {last}, which was not decided"
            )
        runs: list[tuple[int, int]] = []
        for seq in range(first, last + 1):
            message = self.message(seq)
            if message.decision is Op.COMMIT:
                message.result = ack
                begin = runs.pop()[0] if runs and runs[-1][1] == seq - 1 else seq
                runs.append((begin, seq))
        self.settled = max(self.settled, last)
        return runs

    def _sent(self, last: int) -> int:
        """Check that message *last* was sent, and return *last*.

        :raises RemoteProtocolError: the message was not sent
        """
        if self.unsure and last < self.base + MAX_WINDOW:
            self.next = max(self.next, last + 1)
        if last >= self.next:
            detail = f"the peer acknowledged message {last} of channel {self.id}, which was not sent to it"
            raise RemoteProtocolError("acknowledged-unsent", detail)
        return last

    # Connections.

    def attach(self) -> None:
        """Begin a new connection: reset ``recv``, because the peer's report will say which messages the peer holds."""
        self._emitted = None
        self.recv = self.base - 1
        self.resumed, self.reported = self.base, -1

    def check_report(self) -> None:
        """Check that the peer's report, which is complete, has all messages that the peer had consumed before (S8).

        A peer that has forgotten some was restored from an older copy.  It numbers messages differently, so each would
        be stored again with every report.  A peer forgets a channel that is being closed, and reports nothing for it.

        :raises RemoteProtocolError: the report lacks such messages, so the link is lost
        """
        if not self.kept or self.mode is Sending.CLOSING or self.base > self.resumed:
            return
        if self.reported < self.base - 1:
            raise RemoteProtocolError(
                "report-behind",
                f"the peer says that it has consumed {self.reported + 1} messages of channel {self.id}, but it had "
                f"acknowledged {self.base} before: it was restored from an older copy, and the other messages are gone",
            )

    def resend(self) -> Iterator[Message | Operation]:
        """Yield the messages, decisions and ``close`` that the peer lacks according to its report (rules S2, S4)."""
        if not self.kept:
            self.next = self.recv + 1
            self.unsure = False
            if self.mode is Sending.DRAINING:
                self.advance(ChannelEvent.REWOUND)
        else:
            for seq in range(self.recv + 1, self.next):
                yield Message(channels=(self.id,), parts=self.message(seq).parts)
        yield from self.resend_decisions()
        if self.mode is Sending.CLOSING:
            yield Operation(kind=Op.CLOSE, channels=(self.id,))

    def resend_decisions(self) -> Iterator[Operation]:
        """Yield every commit without a result and every unconsumed rollback, as runs with numbers (rule S4)."""
        run: tuple[Op, int] | None = None
        for seq in range(self.base, self.dec + 1):
            message = self.message(seq)
            if message.decision is None or message.result is not None:
                continue
            if run is not None and run[0] is not message.decision:
                yield self._numbered(*run)
            run = (message.decision, seq)
        if run is not None:
            yield self._numbered(*run)

    def _numbered(self, op: Op, last: int) -> Operation:
        self._emitted = (op, last)
        return Operation(kind=op, channels=(self.id,), number=last)


#: Estimated memory of a message besides its payload, in bytes; it is charged for each message, even an empty one.
OVERHEAD = 64
_LAST = attrgetter("last")


@attrs.define(eq=False)
class ResultRun:
    """Consecutive messages with the same result, COMMITTED or UNCOMMITTED."""

    result: Ack
    first: int
    last: int


@attrs.define(eq=False)
class ReceiveChannel:
    """The state of one channel of the peer; the drawing at the top of this module shows its cursors.

    :ivar ordinal: number of channels that the peer had opened on its link before this one
    """

    id: int
    transactional: bool
    ordinal: int
    mode: Receiving = attrs.field(default=Receiving.OPEN, init=False)
    next: int = attrs.field(default=0, init=False)
    dec: int = attrs.field(default=-1, init=False)
    done: int = attrs.field(default=-1, init=False)
    consumed: int = attrs.field(default=-1, init=False)
    #: the last message of which the peer knows, by any acknowledgement on this connection, that we hold it
    acknowledged: int = attrs.field(default=-1, init=False)
    #: the last message covered by a received acknowledgement on this connection
    _received_through: int | None = attrs.field(default=None, init=False)
    results: list[ResultRun] = attrs.field(factory=list, init=False)
    #: ordinal of the ping that was sent after the last acknowledgement, among the pings of this connection
    barrier: int | None = attrs.field(default=None, init=False)
    #: ordinal of the ping whose pong shows that the peer knows our results, and the last message whose result it covers
    trim_barrier: tuple[int, int] | None = attrs.field(default=None, init=False)
    #: whether the channel is finished and excluded from snapshots; the channel is forgotten as soon as that is durable
    leaving: bool = attrs.field(default=False, init=False)
    #: number of results that were sent since the ping of ``trim_barrier``
    unconfirmed: int = attrs.field(default=0, init=False)
    #: number of the first undecided message that was not kept; None: all are kept
    dropped: int | None = attrs.field(default=None, init=False)
    #: why the message ``dropped`` was not kept
    why_dropped: DropReason = attrs.field(default=DropReason.COUNT, init=False)
    #: unconsumed messages, grouped as they arrived: their count, total cost in bytes, and the size of each message
    #: (None if the messages are not kept)
    _costs: deque[tuple[int, int, Sequence[int] | None]] = attrs.field(factory=deque, init=False)
    _undecided: deque[Piece] = attrs.field(factory=deque, init=False)
    #: the last result sent on this connection, and the number of the last message that it covers
    _emitted: tuple[Ack, int] | None = attrs.field(default=None, init=False)

    @property
    def waiting(self) -> int:
        """The number of messages, plain or decided, that wait until the owner of the link processes them."""
        return (self.dec if self.transactional else self.next - 1) - self.consumed

    @property
    def undecided(self) -> int:
        """The number of messages that wait for the peer's commit or rollback."""
        return self.next - 1 - self.dec if self.transactional else 0

    @property
    def resumable(self) -> bool:
        """Whether the channel has only undecided messages, so that they can be kept over a reconnection."""
        return self.transactional and not self.leaving and self.dec == self.done == self.consumed

    @property
    def exhausted(self) -> bool:
        """Whether the channel is closing, and all its messages are consumed."""
        return self.mode is Receiving.CLOSING and self.consumed + 1 == self.next

    def advance(self, event: ChannelEvent) -> None:
        """Change the channel's state as the table RECEIVING says for *event*."""
        self.mode = RECEIVING[self.mode, event]

    # Called for the peer's packets.

    def accept(self, messages: Piece, cost: int, sizes: Sequence[int]) -> int:
        """Add received messages, and return the sequence number of the first (R1).

        :param cost: the size of the messages in bytes, including OVERHEAD for each
        :param sizes: the size of each message in bytes
        :raises RemoteProtocolError: the peer has closed the channel
        """
        if self.mode is not Receiving.OPEN:
            raise RemoteProtocolError("message-after-close")
        self._costs.append((len(sizes), cost, sizes))
        if self.transactional:
            self._undecided.append(messages)
        first = self.next
        self.next += len(sizes)
        return first

    def accept_dropped(self, count: int, why: DropReason) -> None:
        """Number *count* more messages without keeping them.

        :raises RemoteProtocolError: the peer has closed the channel, or more than MAX_WINDOW messages are undecided
        """
        if self.mode is not Receiving.OPEN:
            raise RemoteProtocolError("message-after-close")
        if self.dropped is None:
            self.dropped, self.why_dropped = self.next, why
        self.next += count
        if self._costs and self._costs[-1][2] is None:
            count += self._costs.pop()[0]
        self._costs.append((count, 0, None))
        if self.undecided > MAX_WINDOW:
            raise RemoteProtocolError("backlog-too-large", f"more than {MAX_WINDOW} undecided messages")

    def accept_forgotten(self, number: int | None) -> None:
        """Count the messages up to *number* (None: the next one) as received, although this side has forgotten them."""
        last = self.dec + 1 if number is None else nearest(number, self.dec)
        if last >= self.next:
            self.accept_dropped(last + 1 - self.next, DropReason.FORGOTTEN)

    def drop_undecided(self) -> int:
        """Drop the payloads of all undecided messages, and return the bytes released; their numbers stay."""
        count, freed = self.undecided, 0
        left = count
        while left:
            n, cost, sizes = self._costs.pop()
            if n > left:
                assert sizes is not None or not cost
                part = 0 if sizes is None else sum(sizes[n - left :]) + OVERHEAD * left
                self._costs.append((n - left, cost - part, None if sizes is None else sizes[: n - left]))
                n, cost = left, part
            left -= n
            freed += cost
        if count:
            self._costs.append((count, 0, None))
            self._undecided.clear()
            self.dropped, self.why_dropped = self.dec + 1, DropReason.MEMORY
        return freed

    def decide(self, number: int | None) -> tuple[int, int, MessageSequence | DropReason] | None:
        """Decide the undecided messages up to *number* (None: only the next one).

        :return: the numbers of the first and the last message, and the messages, or why they were not kept; or None if
            there is nothing to decide (R4)
        :raises RemoteProtocolError: message *number* was not received, or the channel has no transactions
        """
        if not self.transactional:
            raise RemoteProtocolError("operation-not-transactional")
        first = self.dec + 1
        last = first if number is None else nearest(number, self.dec)
        if last >= self.next:
            detail = f"the peer decided message {last} of channel {self.id}, which it has not sent"
            raise RemoteProtocolError("operation-on-unreceived", detail)
        if last < first:
            return None
        self.dec = last
        if self.dropped is not None and last >= self.dropped:
            self._undecided.clear()  # Kept messages precede those that are not kept, so all of them are decided now.
            self.dropped = None if last + 1 == self.next else last + 1
            return first, last, self.why_dropped
        return first, last, MessageSequence(self._oldest_undecided(last - first + 1))

    def _oldest_undecided(self, count: int) -> tuple[Piece, ...]:
        """Remove and return the oldest *count* undecided messages."""
        pieces: list[Piece] = []
        while count:
            piece = self._undecided.popleft()
            size = len(piece)
            if size > count:
                piece, rest = cut(piece, count)
                self._undecided.appendleft(rest)
                size = count
            count -= size
            pieces.append(piece)
        return tuple(pieces)

    # Called by the owner.

    def stage(self, through: int, result: Ack | None) -> None:
        """Record *result* for the messages up to *through*; None: without a transaction, or rolled back.

        :raises LocalProtocolError: the messages are staged already, not decided, or not received
        """
        first = self.done + 1
        if not first <= through <= (self.dec if self.transactional else self.next - 1):
            raise LocalProtocolError(f"channel {self.id} has no message to stage up to number {through}")
        if result is not None:
            last = self.results[-1] if self.results else None
            if last is not None and last.result is result and last.last == first - 1:
                last.last = through
            else:
                self.results.append(ResultRun(result, first, through))
        self.done = through

    def unstage(self, through: int) -> None:
        """Undo :meth:`stage` for the messages beyond *through*, because they were not written."""
        self.done = max(self.consumed, min(self.done, through))
        while self.results and self.results[-1].last > self.done:
            if self.results[-1].first > self.done:
                self.results.pop()
            else:
                self.results[-1].last = self.done

    def settle(self, through: int) -> tuple[list[Acknowledgement], int]:
        """Mark the staged messages up to *through* as durable.

        :return: the acknowledgements for the peer in their order (R3), and the bytes released
        :raises LocalProtocolError: the messages are not staged
        """
        first = self.consumed + 1
        if not first <= through <= self.done:
            raise LocalProtocolError(f"channel {self.id} has no staged message up to number {through}")
        # Look for new results from the end, because many results may be kept until the peer confirms them.
        packets = []
        for run in self.results[bisect_left(self.results, first, key=_LAST) :]:
            if run.first <= through:
                packets.append(self._result_packet(run, first, through))
        number = None if through == first else through
        packets.append(Acknowledgement(kind=Ack.CONSUMED, channels=(self.id,), number=number))
        self.consumed, self.acknowledged = through, max(through, self.acknowledged)
        return packets, self._release(through - first + 1)

    def _release(self, count: int) -> int:
        """Remove the oldest *count* messages from ``_costs``, and return their cost in bytes."""
        freed = 0
        while count:
            n, cost, sizes = self._costs.popleft()
            if n > count:
                part = 0 if sizes is None else sum(sizes[:count]) + OVERHEAD * count
                self._costs.appendleft((n - count, cost - part, None if sizes is None else sizes[count:]))
                return freed + part
            count -= n
            freed += cost
        return freed

    def _result_packet(self, run: ResultRun, first: int, through: int) -> Acknowledgement:
        """Return the acknowledgement of *run*.

        The acknowledgement has no number if the last one on this connection was the same result for the message before
        (rule S5).
        """
        first, last = max(run.first, first), min(run.last, through)
        plain = first == last and self._emitted == (run.result, first - 1)
        self._emitted = (run.result, last)
        self.unconfirmed += last - first + 1
        return Acknowledgement(kind=run.result, channels=(self.id,), number=None if plain else last)

    def acknowledge_received(self, numbered: bool) -> Acknowledgement | None:
        """Return ``received`` for all new messages, or None if there are none.

        The packet has no number if the last ``received`` on this connection was for the message before (rule S5).

        :param numbered: whether to add the number in any case.  The report after a reconnection may say that fewer
            messages have arrived; a peer that counts acknowledgements without numbers would then apply the next ones to
            the wrong messages
        """
        last = self.next - 1
        if self.acknowledged >= last:
            return None
        plain = self._received_through == last - 1 and not numbered
        self.acknowledged = self._received_through = last
        return Acknowledgement(kind=Ack.RECEIVED, channels=(self.id,), number=None if plain else last)

    def forget_results(self, through: int) -> None:
        """Forget the results up to message *through*, because the peer knows these results (rule R6)."""
        while self.results and self.results[0].last <= through:
            del self.results[0]
        if self.results:
            self.results[0].first = max(self.results[0].first, through + 1)

    # Connections.

    def detach(self) -> None:
        """Forget the pings of a lost connection."""
        if self.mode is Receiving.BARRIER:
            self.advance(ChannelEvent.DETACHED)
        if self.trim_barrier is not None:
            self.unconfirmed = sum(run.last - run.first + 1 for run in self.results)
        self.barrier = self.trim_barrier = None

    def rewind(self) -> int:
        """Forget messages that are not durable, because the peer will send them again; return the bytes released."""
        self.next, self.dec = self.consumed + 1, self.consumed
        self.leaving = False
        self.unstage(self.consumed)
        self._undecided.clear()
        self.dropped = None
        freed = sum(cost for _, cost, _ in self._costs)
        self._costs.clear()
        if self.mode is Receiving.CLOSING:
            self.advance(ChannelEvent.REWOUND)
        return freed

    def report(self) -> list[Acknowledgement]:
        """Return the acknowledgements that report, on a resumed link, what has arrived, and all results (rule R5)."""
        self._emitted = self._received_through = None
        self.acknowledged = self.next - 1
        packets: list[Acknowledgement] = []
        if self.next - 1 > self.consumed:
            self._received_through = self.next - 1
            packets.append(Acknowledgement(kind=Ack.RECEIVED, channels=(self.id,), number=self.next - 1))
        for run in self.results:
            if run.first <= self.consumed:
                last = min(run.last, self.consumed)
                packets.append(Acknowledgement(kind=run.result, channels=(self.id,), number=last))
        if self.consumed >= 0:
            packets.append(Acknowledgement(kind=Ack.CONSUMED, channels=(self.id,), number=self.consumed))
        return packets


class PeerChannels(dict[int, ReceiveChannel]):
    """The channels of the peer, by id; ``channels[id]`` raises LocalProtocolError if that channel is not open."""

    def __missing__(self, channel: int) -> ReceiveChannel:
        raise LocalProtocolError(f"the peer has no channel {channel}")
