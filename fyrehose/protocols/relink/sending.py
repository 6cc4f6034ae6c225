"""One of our own channels: its sent messages, their decisions and results (docs/protocols/relink-wire.md, rules S1-S7).

       consumed        result known     decided        sent
    ---------------|----------------|--------------|------------|  ->
                  base            settled         dec          next        recv: the last message that the peer holds

A message is kept until it is consumed.  A channel that is not ``kept`` stores only the cursors: its owner can produce
the messages again from their numbers (the server reads them from the journal).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import attrs

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.protocols.relink.events import MessageOutcome, Unsettled
from fyrehose.protocols.relink.frames import Ack, Message, Op, Operation, nearest
from fyrehose.protocols.relink.messages import Piece, parts_of
from fyrehose.protocols.relink.tables import SENDING, ChannelEvent, Sending

#: The largest window: 32-bit numbers that wrap can be compared only within half their range.
MAX_WINDOW = (1 << 31) - 1


@attrs.define(eq=False)
class Sent:
    """A message that is not consumed yet."""

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
        """Change the mode according to the table."""
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

        It has no number if the last decision on this connection was the same, for the message before (rule S5).
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
        """Record that the peer holds all messages up to *number* (None: one more).

        :raises RemoteProtocolError: that message was not sent
        """
        self.recv = max(self.recv, self._sent(self.recv + 1 if number is None else nearest(number, self.recv)))

    def consumed(self, number: int | None) -> tuple[int, int] | None:
        """Record that the peer has consumed all messages up to *number* (None: one more).

        :return: the numbers of the first and last newly consumed message; None if there is none
        :raises RemoteProtocolError: a message was not sent or not decided, or its result has not arrived before (R3)
        """
        last = self._sent(self.base if number is None else nearest(number, self.base - 1))
        if last < self.base:
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
            raise RemoteProtocolError("result-unasked", f"message {last} is not decided")
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
        """Return *last* if that message was sent.

        :raises RemoteProtocolError: it was not sent
        """
        if self.unsure and last < self.base + MAX_WINDOW:
            self.next = max(self.next, last + 1)
        if last >= self.next:
            raise RemoteProtocolError("acknowledged-unsent", f"message {last} of channel {self.id}")
        return last

    # Connections.

    def attach(self) -> None:
        """Begin a new connection: ``recv`` is reset, because the peer's report will say which messages it holds."""
        self._emitted = None
        self.recv = self.base - 1

    def resend(self) -> Iterator[Message | Operation]:
        """Yield the messages, decisions and ``close`` that the peer lacks by its complete report (rules S2, S4)."""
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
