"""One of our own channels: what was sent, what was decided, and what the peer said of it (RELINK S1-S7).

       consumed        result known     decided        sent
    ---------------|----------------|--------------|------------|  ->
                  base            settled         dec          next        recv: the highest that the peer holds

A message is kept until it is consumed.  Of a channel that is not ``kept`` only the cursors are: its owner can make the
messages again from their numbers (the server reads them from the journal).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import attrs

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.protocols.relink.events import Unknown
from fyrehose.protocols.relink.frames import Ack, Message, Op, Operation
from fyrehose.protocols.relink.messages import Piece
from fyrehose.protocols.relink.numbers import nearest
from fyrehose.protocols.relink.tables import SENDING, Event, Sending

#: Numbers are compared within a window of half their range.
MAX_WINDOW = (1 << 31) - 1


@attrs.define(eq=False)
class Sent:
    """A message that is not consumed."""

    parts: tuple[bytes, ...]
    decision: Op | None = None
    result: Ack | None = None


@attrs.define(eq=False)
class SendChannel:
    """The cursors of one channel, and the messages that they are about."""

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
    #: restored, so that only the peer's report says how much was sent
    unsure: bool = attrs.field(default=False, init=False)
    _messages: deque[Sent] = attrs.field(factory=deque, init=False)
    #: the last decision that went out on this connection
    _emitted: tuple[Op, int] | None = attrs.field(default=None, init=False)

    @property
    def room(self) -> int:
        """How many more messages the window has room for."""
        return self.window - (self.next - self.base) if self.mode is Sending.OPEN else 0

    @property
    def undecided(self) -> int:
        """How many messages wait for commit or rollback."""
        return self.next - 1 - self.dec if self.transactional else 0

    def message(self, seq: int) -> Sent:
        """The message number ``seq``, which is not consumed."""
        return self._messages[seq - self.base]

    def advance(self, event: Event) -> None:
        """Go on to the next mode."""
        self.mode = SENDING[self.mode, event]

    # What we do.

    def add(self, messages: Piece) -> int:
        """Messages more; the number of the first.

        :raises LocalProtocolError: the channel is closing, or the window has no room for all of them
        """
        if self.mode is not Sending.OPEN:
            raise LocalProtocolError(f"channel {self.id} is being closed")
        if self.room < len(messages):
            raise LocalProtocolError(
                f"the window of channel {self.id} is full: it has room for {self.room} messages, not {len(messages)}"
            )
        if self.kept:
            self._messages.extend(map(Sent, messages))
        first = self.next
        self.next += len(messages)
        return first

    def decide(self, op: Op, through: int) -> tuple[int, int]:
        """Commit or roll back what is undecided up to number ``through``; the first and the last of them.

        :raises LocalProtocolError: there is nothing to decide
        """
        first = self.dec + 1
        if not self.transactional or not first <= through < self.next:
            raise LocalProtocolError(f"channel {self.id} has no undecided message up to number {through}")
        for seq in range(first, through + 1):
            self.message(seq).decision = op
        self.dec = through
        return first, through

    def decision(self, op: Op, first: int, last: int) -> Operation:
        """The packet that says so: without a number only behind the same decision on this connection (S5)."""
        plain = first == last and self._emitted == (op, first - 1)
        self._emitted = (op, last)
        return Operation(kind=op, channels=(self.id,), number=None if plain else last)

    def unknown(self) -> Iterator[Unknown]:
        """Messages whose fate nobody knows when the link is lost (S7); none of a channel that is not kept."""
        for seq, message in enumerate(self._messages, self.base):
            if message.decision is not Op.ROLLBACK and message.result is None:
                decided = message.decision is not None
                yield Unknown(channel=self.id, seq=seq, parts=message.parts, decided=decided)

    # What the peer says.

    def received(self, number: int | None) -> None:
        """The peer holds everything up to ``number``.

        :raises RemoteProtocolError: that was not sent
        """
        self.recv = max(self.recv, self._sent(self.recv + 1 if number is None else nearest(number, self.recv)))

    def consumed(self, number: int | None) -> tuple[int, int] | None:
        """The peer is done with everything up to ``number``; the first and the last that are new.

        :raises RemoteProtocolError: that was not sent, or is not decided, or its result was not said before (R3)
        """
        last = self._sent(self.base if number is None else nearest(number, self.base - 1))
        if last < self.base:
            return None
        first = self.base
        while self._messages and self.base <= last:
            message = self._messages[0]
            if self.transactional and message.decision is None:
                raise RemoteProtocolError("consumed-undecided", f"message {self.base}")
            if message.decision is Op.COMMIT and message.result is None:
                raise RemoteProtocolError("consumed-before-result", f"message {self.base}")
            self._messages.popleft()
            self.base += 1
        self.base = last + 1
        self.recv = max(self.recv, last)
        self.settled = max(self.settled, last)
        return first, last

    def resulted(self, ack: Ack, number: int | None) -> list[tuple[int, int]]:
        """Commits up to ``number`` have the result ``ack``; the first and the last of each run of them that are new.

        :raises RemoteProtocolError: it was not committed, or the channel has no transactions
        """
        if not self.transactional:
            raise RemoteProtocolError("result-not-transactional")
        first = max(self.settled + 1, self.base)
        if number is None:
            while first <= self.dec and self.message(first).decision is Op.ROLLBACK:
                first += 1
            last = first
        else:
            last = nearest(number, self.settled)
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
        if self.unsure and last < self.base + MAX_WINDOW:
            self.next = max(self.next, last + 1)
        if last >= self.next:
            raise RemoteProtocolError("acknowledged-unsent", f"message {last}")
        return last

    # Connections.

    def attach(self) -> None:
        """A new connection: what was said on the old one counts no more; the peer's report says what it holds."""
        self._emitted = None
        self.recv = self.base - 1

    def resend(self) -> Iterator[Message | Operation]:
        """What the peer may not have got, when its report is complete (S2, S4): messages, decisions, close."""
        if not self.kept:
            self.next = self.recv + 1
            self.unsure = False
            if self.mode is Sending.DRAINING:
                self.advance(Event.REWOUND)
        else:
            for seq in range(self.recv + 1, self.next):
                yield Message(channels=(self.id,), parts=self.message(seq).parts)
        yield from self.resend_decisions()
        if self.mode is Sending.CLOSING:
            yield Operation(kind=Op.CLOSE, channels=(self.id,))

    def resend_decisions(self) -> Iterator[Operation]:
        """Every commit without a result and every rollback that is not consumed, as runs (S4)."""
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
