"""One of the peer's channels: what came in, what was decided, and what we have said of it (RELINK R1-R7).

       acknowledged       staged by the owner     decided       received
    -------------------|----------------------|-------------|-------------|  ->
                    consumed                done           dec           next

The owner finishes messages in two steps.  ``stage`` says how they end: from then on a snapshot of the channel has them
behind it, and goes to the disk together with what became of them.  ``settle``, when that is durable, tells the peer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence

import attrs

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.protocols.relink.frames import Ack, Acknowledgement
from fyrehose.protocols.relink.messages import Messages, Piece, cut
from fyrehose.protocols.relink.numbers import nearest
from fyrehose.protocols.relink.sending import MAX_WINDOW as MOST_UNDECIDED
from fyrehose.protocols.relink.tables import RECEIVING, Event, Receiving

#: What a message costs besides its payload, in bytes: so that a flood of empty ones is counted, too.
OVERHEAD = 64


@attrs.define(eq=False)
class ResultRun:
    """Consecutive messages with the same result, COMMITTED or UNCOMMITTED."""

    result: Ack
    first: int
    last: int


@attrs.define(eq=False)
class ReceiveChannel:
    """The cursors of one channel.

    :ivar ordinal: how many channels the peer had opened on its link before it
    """

    id: int
    transactional: bool
    ordinal: int
    mode: Receiving = attrs.field(default=Receiving.OPEN, init=False)
    next: int = attrs.field(default=0, init=False)
    dec: int = attrs.field(default=-1, init=False)
    done: int = attrs.field(default=-1, init=False)
    consumed: int = attrs.field(default=-1, init=False)
    #: up to where the peer knows that we hold its messages, by whatever was said on this connection
    told: int = attrs.field(default=-1, init=False)
    #: up to where ``received`` itself was said on this connection
    _receipt: int | None = attrs.field(default=None, init=False)
    results: list[ResultRun] = attrs.field(factory=list, init=False)
    #: the ping that is sent behind the last acknowledgement, as its place among all of this connection
    barrier: int | None = attrs.field(default=None, init=False)
    #: the ping whose pong lets results be forgotten, and up to where
    trim: tuple[int, int] | None = attrs.field(default=None, init=False)
    #: whether snapshots have it no more: it is finished, and forgotten as soon as that is durable
    leaving: bool = attrs.field(default=False, init=False)
    #: how many results went out since the last such ping
    unconfirmed: int = attrs.field(default=0, init=False)
    #: the first of the undecided messages that are not kept, because too much is undecided; None: all are kept
    dropped: int | None = attrs.field(default=None, init=False)
    #: what came together and is not consumed: its number of messages, what it costs in all, and the bytes of each
    #: message, or None where they are not kept
    _costs: deque[tuple[int, int, Sequence[int] | None]] = attrs.field(factory=deque, init=False)
    _undecided: deque[Piece] = attrs.field(factory=deque, init=False)
    #: the last result that went out on this connection
    _emitted: tuple[Ack, int] | None = attrs.field(default=None, init=False)

    @property
    def waiting(self) -> int:
        """How many messages wait for our owner."""
        return (self.dec if self.transactional else self.next - 1) - self.consumed

    @property
    def undecided(self) -> int:
        """How many messages wait for the peer's commit or rollback."""
        return self.next - 1 - self.dec if self.transactional else 0

    @property
    def held(self) -> bool:
        """Whether only the peer's decisions are missing: everything that came in is kept, or finished."""
        return self.transactional and not self.leaving and self.dec == self.done == self.consumed

    @property
    def exhausted(self) -> bool:
        """Whether it is closing, and everything is consumed."""
        return self.mode is Receiving.CLOSING and self.consumed + 1 == self.next

    def advance(self, event: Event) -> None:
        """Go on to the next mode."""
        self.mode = RECEIVING[self.mode, event]

    # What the peer does.

    def accept(self, messages: Piece, cost: int, sizes: Sequence[int]) -> int:
        """Messages more, which cost ``cost`` and have so many bytes each; the number of the first (R1).

        :raises RemoteProtocolError: close came before them
        """
        if self.mode is not Receiving.OPEN:
            raise RemoteProtocolError("message-after-close")
        self._costs.append((len(sizes), cost, sizes))
        if self.transactional:
            self._undecided.append(messages)
        first = self.next
        self.next += len(sizes)
        return first

    def accept_dropped(self, count: int) -> None:
        """Give *count* messages more their numbers without keeping them: the transaction they are in is too large.

        :raises RemoteProtocolError: close came before them, or more are undecided than numbers can tell apart
        """
        if self.mode is not Receiving.OPEN:
            raise RemoteProtocolError("message-after-close")
        if self.dropped is None:
            self.dropped = self.next
        self.next += count
        if self._costs and self._costs[-1][2] is None:
            count += self._costs.pop()[0]
        self._costs.append((count, 0, None))
        if self.undecided > MOST_UNDECIDED:
            raise RemoteProtocolError("backlog-too-large", f"more than {MOST_UNDECIDED} undecided messages")

    def drop_undecided(self) -> int:
        """Keep the numbers of all undecided messages, and not the messages; return the bytes let go."""
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
            self.dropped = self.dec + 1
        return freed

    def decide(self, number: int | None) -> tuple[int, int, Messages | None] | None:
        """Decide what is undecided up to *number*, and return the first, the last, and the messages.

        Returns None where that is nothing (R4), and None in the place of messages that were not kept.

        :raises RemoteProtocolError: that did not come in, or the channel has no transactions
        """
        if not self.transactional:
            raise RemoteProtocolError("operation-not-transactional")
        first = self.dec + 1
        last = first if number is None else nearest(number, self.dec)
        if last >= self.next:
            raise RemoteProtocolError("operation-on-unreceived", f"message {last}")
        if last < first:
            return None
        self.dec = last
        if self.dropped is not None and last >= self.dropped:
            self._undecided.clear()  # what is kept came before what is not
            self.dropped = None if last + 1 == self.next else last + 1
            return first, last, None
        return first, last, Messages(tuple(self._oldest_undecided(last - first + 1)))

    def _oldest_undecided(self, count: int) -> Iterator[Piece]:
        while count:
            piece = self._undecided.popleft()
            if len(piece) > count:
                piece, rest = cut(piece, count)
                self._undecided.appendleft(rest)
            count -= len(piece)
            yield piece

    # What the owner does.

    def stage(self, through: int, result: Ack | None) -> None:
        """Messages up to ``through`` end with ``result``; None: plain ones, or rolled back.

        :raises LocalProtocolError: they are staged already, not decided, or did not come in
        """
        first = self.done + 1
        if not first <= through <= (self.dec if self.transactional else self.next - 1):
            raise LocalProtocolError(f"channel {self.id} has nothing to finish up to number {through}")
        if result is not None:
            last = self.results[-1] if self.results else None
            if last is not None and last.result is result and last.last == first - 1:
                last.last = through
            else:
                self.results.append(ResultRun(result, first, through))
        self.done = through

    def unstage(self, through: int) -> None:
        """What was staged beyond ``through`` was not written after all."""
        self.done = max(self.consumed, min(self.done, through))
        while self.results and self.results[-1].last > self.done:
            if self.results[-1].first > self.done:
                self.results.pop()
            else:
                self.results[-1].last = self.done

    def settle(self, through: int) -> tuple[list[Acknowledgement], int]:
        """What was staged up to ``through`` is durable: what the peer is told, in order (R3), and the bytes let go.

        :raises LocalProtocolError: it is not staged
        """
        first = self.consumed + 1
        if not first <= through <= self.done:
            raise LocalProtocolError(f"channel {self.id} has nothing staged up to number {through}")
        # A peer that does not say that it knows them makes us keep many; only the last may be new.
        begin = bisect_left(self.results, first, key=lambda run: run.last)
        packets = [self._said(run, first, through) for run in self.results[begin:] if run.first <= through]
        packets.append(self._consumed(through))
        self.consumed, self.told = through, max(through, self.told)
        return packets, self._let_go(through - first + 1)

    def _let_go(self, count: int) -> int:
        """What the oldest ``count`` messages cost."""
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

    def _said(self, run: ResultRun, first: int, through: int) -> Acknowledgement:
        """A result: without a number only behind the same result on this connection (S5)."""
        first, last = max(run.first, first), min(run.last, through)
        plain = first == last and self._emitted == (run.result, first - 1)
        self._emitted = (run.result, last)
        self.unconfirmed += last - first + 1
        return Acknowledgement(kind=run.result, channels=(self.id,), number=None if plain else last)

    def _consumed(self, through: int) -> Acknowledgement:
        plain = through == self.consumed + 1
        return Acknowledgement(kind=Ack.CONSUMED, channels=(self.id,), number=None if plain else through)

    def receipt(self, numbered: bool) -> Acknowledgement | None:
        """``received``, for all that came in since the last time; without a number only behind another (S5).

        :param numbered: say the number in any case, because a later report may say less: to a peer that counts them,
            what follows it would mean other messages
        """
        last = self.next - 1
        if self.told >= last:
            return None
        plain = self._receipt == last - 1 and not numbered
        self.told = self._receipt = last
        return Acknowledgement(kind=Ack.RECEIVED, channels=(self.id,), number=None if plain else last)

    def forget_results(self, through: int) -> None:
        """The peer knows the results up to ``through`` (R6)."""
        while self.results and self.results[0].last <= through:
            del self.results[0]
        if self.results:
            self.results[0].first = max(self.results[0].first, through + 1)

    # Connections.

    def detach(self) -> None:
        """The connection is gone, and with it the pings."""
        if self.mode is Receiving.BARRIER:
            self.advance(Event.DETACHED)
        if self.trim is not None:
            self.unconfirmed = sum(run.last - run.first + 1 for run in self.results)
        self.barrier = self.trim = None

    def rewind(self) -> int:
        """Forget what is not durable: the peer will send it again.  The bytes let go."""
        self.next, self.dec = self.consumed + 1, self.consumed
        self.leaving = False
        self.unstage(self.consumed)
        self._undecided.clear()
        self.dropped = None
        freed = sum(cost for _, cost, _ in self._costs)
        self._costs.clear()
        if self.mode is Receiving.CLOSING:
            self.advance(Event.REWOUND)
        return freed

    def report(self) -> list[Acknowledgement]:
        """The resync report (R5)."""
        self._emitted = self._receipt = None
        self.told = self.next - 1
        packets: list[Acknowledgement] = []
        if self.next - 1 > self.consumed:
            self._receipt = self.next - 1
            packets.append(Acknowledgement(kind=Ack.RECEIVED, channels=(self.id,), number=self.next - 1))
        for run in self.results:
            if run.first <= self.consumed:
                last = min(run.last, self.consumed)
                packets.append(Acknowledgement(kind=run.result, channels=(self.id,), number=last))
        if self.consumed >= 0:
            packets.append(Acknowledgement(kind=Ack.CONSUMED, channels=(self.id,), number=self.consumed))
        return packets
