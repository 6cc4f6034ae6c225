"""Our own channels: checks, cursors, and resending."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise
from random import Random
from typing import Any

import attrs
import pytest

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.options import build
from fyrehose.protocols.relink.channels import MAX_WINDOW, ChannelEvent, SendChannel, Sending
from fyrehose.protocols.relink.events import MessageOutcome
from fyrehose.protocols.relink.frames import Ack, Message, Op, nearest
from fyrehose.protocols.relink.settings import RelinkSettings


def test_channel_without_payloads_continues_where_the_peer_reports() -> None:
    sent = SendChannel(0, False, 10, kept=False)
    sent.add(((b"x",),) * 5)
    sent.advance(ChannelEvent.CLOSE)
    sent.attach()
    sent.received(2)
    assert list(sent.resend()) == []
    assert (sent.next, sent.mode) == (3, Sending.OPEN)
    sent.unsure = True
    sent.attach()
    assert sent.consumed(41) == (0, 41)
    list(sent.resend())
    assert (sent.next, sent.base, sent.unsure) == (42, 42, False)


def test_sequence_numbers_wrap() -> None:
    sent = SendChannel(0, False, 10)
    sent.next = sent.base = 1 << 32
    sent.recv = (1 << 32) - 1
    sent.add(((b"x",),))
    assert sent.consumed(0) == (1 << 32, 1 << 32)


@attrs.define
class Went:
    """One sent message, its decision and its result."""

    payload: bytes
    decision: Op | None = None
    result: Ack | None = None


WINDOW = 10


class History:
    """Does at random what an owner and a peer do, and compares everything with a list of all messages."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.transactional = self.random.random() < 0.8
        self.channel = SendChannel(0, self.transactional, WINDOW)
        self.all: list[Went] = []
        self.dec = self.received = self.consumed = self.settled = -1
        self.reported = -1  # the last message that the peer has said on this connection to have consumed
        self.mode = Sending.OPEN
        self.said: tuple[Op, int] | None = None  # the decision that went out last on this connection, and of which

    def step(self) -> None:
        names = ("add", "add", "decide", "decide", "receive", "consume", "consume", "result", "result", "reconnect")
        getattr(self, self.random.choice((*names, "advance")))()
        sent = self.channel
        assert (sent.next, sent.base, sent.recv) == (len(self.all), self.consumed + 1, self.received)
        assert (sent.mode, sent.room) == (self.mode, self.room)
        assert sent.undecided == (len(self.all) - 1 - self.dec if self.transactional else 0)
        unsettled = [
            (0, seq, (one.payload,), self.outcome(one))
            for seq, one in self.pending()
            if one.decision is not Op.ROLLBACK and one.result is None
        ]
        assert [(one.channel, one.seq, one.parts, one.outcome) for one in sent.unsettled()] == unsettled

    @property
    def room(self) -> int:
        return WINDOW - len(self.pending()) if self.mode is Sending.OPEN else 0

    def outcome(self, one: Went) -> MessageOutcome:
        return MessageOutcome.NOT_PROCESSED if self.transactional and one.decision is None else MessageOutcome.UNKNOWN

    def pending(self) -> list[tuple[int, Went]]:
        return list(enumerate(self.all))[self.consumed + 1 :]

    def number(self, plain: int) -> tuple[int | None, int]:
        """Return the number in an acknowledgement, if any, and the message that it is about (*plain* without one)."""
        last = self.random.randint(max(0, plain - 2), max(len(self.all), plain))
        return (None, plain) if self.random.random() < 0.4 else (last, last)

    def refused(self, cause: str, do: Any, *said: Any) -> None:
        with pytest.raises(RemoteProtocolError, match=cause):
            do(*said)

    def add(self) -> None:
        payloads = [b"%d" % (len(self.all) + at) for at in range(self.random.choice((1, 1, 2, 4)))]
        if len(payloads) > self.room:
            full = f"room for {self.room} messages, not {len(payloads)}"
            with pytest.raises(LocalProtocolError, match=full if self.mode is Sending.OPEN else "is being closed"):
                self.channel.add(tuple((one,) for one in payloads))
            return
        assert self.channel.add(tuple((one,) for one in payloads)) == len(self.all)
        self.all += map(Went, payloads)

    def advance(self) -> None:
        """Close the channel, which goes on until the peer has consumed everything."""
        if self.mode is Sending.OPEN and self.random.random() < 0.3:
            self.channel.advance(ChannelEvent.CLOSE)
            self.mode = Sending.DRAINING
        elif self.mode is Sending.DRAINING and not self.pending():
            self.channel.advance(ChannelEvent.DRAINED)
            self.mode = Sending.CLOSING

    def decide(self) -> None:
        op, through = self.random.choice((Op.COMMIT, Op.ROLLBACK)), self.random.randint(self.dec, len(self.all))
        if not self.transactional or not self.dec < through < len(self.all):
            with pytest.raises(LocalProtocolError, match="no undecided"):
                self.channel.decide(op, through)
            return
        first = self.dec + 1
        assert self.channel.decide(op, through) == (first, through)
        plain = first == through and self.said == (op, first - 1)
        packet = self.channel.decision(op, first, through)
        assert (packet.kind, packet.channels, packet.number) == (op, (0,), None if plain else through)
        for one in self.all[first : through + 1]:
            one.decision = op
        self.dec, self.said = through, (op, through)

    def receive(self) -> None:
        number, last = self.number(self.received + 1)
        if last >= len(self.all):
            self.refused(f"acknowledged-unsent: .* message {last} ", self.channel.received, number)
            return
        self.channel.received(number)
        self.received = max(self.received, last)

    def consume(self) -> None:
        number, last = self.number(self.consumed + 1)
        first = self.consumed + 1
        some = self.all[first : last + 1]
        if last >= len(self.all):
            self.refused(f"acknowledged-unsent: .* message {last} ", self.channel.consumed, number)
        elif self.transactional and any(one.decision is not Op.ROLLBACK and one.result is None for one in some):
            wrong = next(one for one in some if one.decision is not Op.ROLLBACK and one.result is None)
            cause = "consumed-undecided" if wrong.decision is None else "consumed-before-result"
            self.refused(cause, deepcopy(self.channel).consumed, number)  # which ends the link
        else:
            assert self.channel.consumed(number) == ((first, last) if some else None)
            self.consumed, self.reported = max(self.consumed, last), max(self.reported, last)
            self.received, self.settled = max(self.received, self.consumed), max(self.settled, self.consumed)

    def result(self) -> None:
        ack = self.random.choice((Ack.COMMITTED, Ack.UNCOMMITTED))
        waiting = [seq for seq, one in self.pending() if seq > self.settled and one.decision is not Op.ROLLBACK]
        number, last = self.number(waiting[0] if waiting else len(self.all))
        if not self.transactional:
            self.refused("result-not-transactional", self.channel.resulted, ack, number)
            return
        if last > self.dec:
            self.refused(f"result-unasked: .* message {last},", self.channel.resulted, ack, number)
            return
        first = max(self.settled, self.consumed) + 1
        new = [seq for seq in range(first, last + 1) if self.all[seq].decision is Op.COMMIT]
        runs = self.channel.resulted(ack, number)
        assert [seq for begin, end in runs for seq in range(begin, end + 1)] == new
        assert all(end + 1 < begin for (_, end), (begin, _) in pairwise(runs)), "runs are whole"
        for seq in new:
            self.all[seq].result = ack
        self.settled = max(self.settled, last)

    def reconnect(self) -> None:
        if self.random.random() < 0.6:
            return
        self.channel.attach()
        self.received, self.reported, self.said = self.consumed, -1, None
        for report in self.random.choices((self.receive, self.consume), k=2):
            report()
        if self.mode is not Sending.CLOSING and self.reported < self.consumed:
            behind = f"report-behind: .* consumed {self.reported + 1} .* acknowledged {self.consumed + 1} before"
            self.refused(behind, self.channel.check_report)
        else:
            self.channel.check_report()
        wanted: list[Any] = [one.payload for one in self.all[self.received + 1 :]]
        decided = [
            (seq, one.decision) for seq, one in self.pending() if one.decision is not None and one.result is None
        ]
        for at, (seq, op) in enumerate(decided):
            if at + 1 == len(decided) or decided[at + 1][1] is not op:
                wanted.append((op.name, seq))
                self.said = (op, seq)
        if self.mode is Sending.CLOSING:
            wanted.append(("CLOSE", None))
        found = [
            packet.parts[0] if isinstance(packet, Message) else (packet.kind.name, packet.number)
            for packet in self.channel.resend()
        ]
        assert found == wanted


@pytest.mark.parametrize("seed", range(0, 60, 6))
def test_channel_agrees_with_a_model_of_each_message(seed: int) -> None:
    for one in range(seed, seed + 6):
        history = History(one)
        for _ in range(80):
            history.step()


def test_window_may_span_half_of_the_sequence_numbers() -> None:
    assert build(RelinkSettings, "relink", {"window": "2147483647"}).limits.window == MAX_WINDOW == 2_147_483_647
    for first in (0, 1 << 31, (1 << 32) - 1):
        assert nearest(first + MAX_WINDOW & 0xFFFFFFFF, first) == first + MAX_WINDOW
        assert nearest(first + MAX_WINDOW + 1 & 0xFFFFFFFF, first) != first + MAX_WINDOW + 1
