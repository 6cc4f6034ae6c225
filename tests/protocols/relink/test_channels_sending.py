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
from fyrehose.protocols.relink.frames import Ack, Message, Op, Operation, nearest
from fyrehose.protocols.relink.settings import RelinkSettings


def channel(count: int = 0, transactional: bool = True, **more: Any) -> SendChannel:
    made = SendChannel(0, transactional, 10, **more)
    for number in range(count):
        made.add(((b"%d" % number,),))
    return made


def again(sent: SendChannel) -> list[Any]:
    """Return the packets of a resend in short: payloads, and (op, number)."""
    sent.attach()
    return [
        packet.parts[0] if isinstance(packet, Message) else (packet.kind.name, packet.number)
        for packet in sent.resend()
    ]


def test_window_limits_unconsumed_messages() -> None:
    sent = channel(10, transactional=False)
    assert sent.room == 0
    with pytest.raises(LocalProtocolError, match="full"):
        sent.add(((b"x",),))
    sent.consumed(3)
    assert sent.room == 4
    assert sent.add(((b"x",),) * 4) == 10
    assert sent.room == 0
    sent.consumed(4)
    with pytest.raises(LocalProtocolError, match="room for 1 messages, not 2"):
        sent.add(((b"x",),) * 2)
    sent.advance(ChannelEvent.CLOSE)
    assert sent.room == 0
    assert sent.undecided == 0, "plain messages are never undecided"


def test_decisions_are_made_in_order() -> None:
    sent = channel(4)
    assert sent.undecided == 4
    assert sent.decide(Op.COMMIT, 1) == (0, 1)
    assert sent.decide(Op.ROLLBACK, 3) == (2, 3)
    for through in (1, 3, 4):
        with pytest.raises(LocalProtocolError):
            sent.decide(Op.COMMIT, through)
    with pytest.raises(LocalProtocolError):
        channel(1, transactional=False).decide(Op.COMMIT, 0)


def test_decision_omits_its_number_only_after_the_same_decision() -> None:
    sent = channel(6)
    numbers = []
    for op, last in ((Op.COMMIT, 0), (Op.COMMIT, 1), (Op.ROLLBACK, 2), (Op.COMMIT, 3), (Op.COMMIT, 5)):
        numbers.append(sent.decision(op, *sent.decide(op, last)).number)
    assert numbers == [0, None, 2, 3, 5]
    sent.attach()
    sent.add(((b"x",),))
    assert sent.decision(Op.COMMIT, *sent.decide(Op.COMMIT, 6)).number == 6, (
        "the first decision on a connection has a number"
    )


def test_decision_omits_its_number_after_a_resent_decision() -> None:
    sent = channel(3)
    sent.decide(Op.COMMIT, 0)
    assert again(sent)[-1] == ("COMMIT", 0)
    assert sent.decision(Op.COMMIT, *sent.decide(Op.COMMIT, 1)).number is None


def test_messages_without_a_result_are_unknown_when_the_link_is_lost() -> None:
    sent = channel(5)
    for op, last in ((Op.COMMIT, 1), (Op.ROLLBACK, 2), (Op.COMMIT, 3)):
        sent.decide(op, last)
    sent.resulted(Ack.COMMITTED, 0)
    unsettled = [(each.channel, each.seq, each.parts, each.outcome) for each in sent.unsettled()]
    assert unsettled == [
        (0, 1, (b"1",), MessageOutcome.UNKNOWN),
        (0, 3, (b"3",), MessageOutcome.UNKNOWN),
        (0, 4, (b"4",), MessageOutcome.NOT_PROCESSED),
    ]
    plain = channel(3, transactional=False)
    plain.consumed(0)
    assert [(each.seq, each.outcome) for each in plain.unsettled()] == [
        (1, MessageOutcome.UNKNOWN),
        (2, MessageOutcome.UNKNOWN),
    ]


def test_received_and_consumed_messages_are_not_resent() -> None:
    sent = channel(6, transactional=False)
    sent.attach()
    sent.received(None)
    sent.received(None)
    assert [packet.parts for packet in sent.resend()] == [(b"%d" % i,) for i in (2, 3, 4, 5)]  # type: ignore[union-attr]
    sent.received(1)
    sent.received(0)
    sent.consumed(3)
    assert [packet.parts for packet in sent.resend()] == [(b"4",), (b"5",)]  # type: ignore[union-attr]
    assert sent.message(4).parts == (b"4",)


def test_results_skip_rolled_back_messages() -> None:
    sent = channel(6)
    for op, last in ((Op.ROLLBACK, 1), (Op.COMMIT, 2), (Op.ROLLBACK, 3), (Op.COMMIT, 4)):
        sent.decide(op, last)
    assert sent.consumed(1) == (0, 1)
    assert sent.resulted(Ack.COMMITTED, None) == [(2, 2)]
    assert sent.resulted(Ack.UNCOMMITTED, None) == [(4, 4)]
    assert sent.consumed(4) == (2, 4)
    with pytest.raises(
        RemoteProtocolError, match="result-unasked: the peer sent a result for message 5, which was not decided"
    ):
        sent.resulted(Ack.COMMITTED, None)


def test_resend_yields_messages_and_open_decisions() -> None:
    sent = channel(6)
    for op, last in ((Op.COMMIT, 0), (Op.ROLLBACK, 2), (Op.COMMIT, 4)):
        sent.decide(op, last)
    assert again(sent) == [*(b"%d" % i for i in range(6)), ("COMMIT", 0), ("ROLLBACK", 2), ("COMMIT", 4)]
    sent.attach()
    sent.resulted(Ack.COMMITTED, 0)
    sent.consumed(0)
    sent.received(4)
    rest = [p.number if isinstance(p, Operation) else p.parts[0] for p in sent.resend()]
    assert rest == [b"5", 2, 4]


def test_results_and_consumed_are_reported_once() -> None:
    sent = channel(5)
    for op, last in ((Op.COMMIT, 1), (Op.ROLLBACK, 2), (Op.COMMIT, 3)):
        sent.decide(op, last)
    assert sent.resulted(Ack.COMMITTED, None) == [(0, 0)]
    assert sent.resulted(Ack.UNCOMMITTED, 3) == [(1, 1), (3, 3)]
    assert sent.resulted(Ack.COMMITTED, 3) == [], "the first result stands"
    assert sent.consumed(None) == (0, 0)
    assert sent.consumed(3) == (1, 3)
    assert sent.consumed(2) is None
    with pytest.raises(RemoteProtocolError, match="consumed-undecided"):
        sent.consumed(4)


@pytest.mark.parametrize(
    ("do", "cause"),
    [
        (lambda c: c.consumed(None), "consumed-before-result"),
        (lambda c: c.consumed(5), "acknowledged-unsent"),
        (lambda c: c.received(5), "acknowledged-unsent"),
        (lambda c: c.resulted(Ack.COMMITTED, 2), "result-unasked"),
        (lambda c: (c.resulted(Ack.COMMITTED, 1), c.resulted(Ack.COMMITTED, None)), "result-unasked"),
    ],
)
def test_invalid_acknowledgements_are_refused(do: Any, cause: str) -> None:
    sent = channel(3)
    sent.decide(Op.COMMIT, 1)
    with pytest.raises(RemoteProtocolError, match=cause):
        do(sent)


def test_closing_channel_resends_close() -> None:
    sent = channel(1, transactional=False)
    sent.advance(ChannelEvent.CLOSE)
    with pytest.raises(LocalProtocolError, match="closed"):
        sent.add(((b"x",),))
    sent.consumed(None)
    sent.advance(ChannelEvent.DRAINED)
    assert again(sent) == [("CLOSE", None)]
    sent.advance(ChannelEvent.CLOSED)
    assert sent.mode is Sending.GONE


def test_channel_without_payloads_continues_where_the_peer_reports() -> None:
    sent = channel(5, transactional=False, kept=False)
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


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("reported", [None, 0, 1])
def test_report_below_what_was_consumed_proves_that_the_link_is_lost(transactional: bool, reported: int | None) -> None:
    sent = channel(5, transactional=transactional)
    sent.add(((b"x",),) * 5)
    if transactional:
        sent.decide(Op.ROLLBACK, 2)
    sent.consumed(2)
    sent.attach()
    if reported is not None:
        assert sent.consumed(reported) is None
    with pytest.raises(RemoteProtocolError, match=r"has consumed .* it had acknowledged 3") as raised:
        sent.check_report()
    assert raised.value.cause == "report-behind"
    sent.attach()
    sent.consumed(2)
    sent.check_report()


def test_report_of_a_peer_that_has_forgotten_a_closing_channel_is_accepted() -> None:
    sent = channel(5, transactional=False)
    sent.add(((b"x",),))
    sent.advance(ChannelEvent.CLOSE)
    sent.consumed(0)
    sent.advance(ChannelEvent.DRAINED)
    sent.attach()
    sent.check_report()


def test_report_of_a_peer_that_has_consumed_more_meanwhile_is_accepted() -> None:
    sent = channel(5, transactional=False)
    sent.add(((b"x",),) * 3)
    sent.consumed(0)
    sent.attach()
    assert sent.consumed(2) == (1, 2)
    sent.check_report()


def test_sequence_numbers_wrap() -> None:
    sent = channel(transactional=False)
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
        self.said: tuple[Op, int] | None = None  # the decision that went out last on this connection, and of which

    def step(self) -> None:
        names = ("add", "add", "decide", "decide", "receive", "consume", "consume", "result", "result", "reconnect")
        getattr(self, self.random.choice(names))()
        sent = self.channel
        assert (sent.next, sent.base, sent.recv) == (len(self.all), self.consumed + 1, self.received)
        assert sent.room == WINDOW - (len(self.all) - 1 - self.consumed)
        assert sent.undecided == (len(self.all) - 1 - self.dec if self.transactional else 0)
        unsettled = [
            (0, seq, (one.payload,), self.outcome(one))
            for seq, one in self.pending()
            if one.decision is not Op.ROLLBACK and one.result is None
        ]
        assert [(one.channel, one.seq, one.parts, one.outcome) for one in sent.unsettled()] == unsettled

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
        if len(self.all) - 1 - self.consumed + len(payloads) > WINDOW:
            with pytest.raises(LocalProtocolError, match="full"):
                self.channel.add(tuple((one,) for one in payloads))
            return
        assert self.channel.add(tuple((one,) for one in payloads)) == len(self.all)
        self.all += map(Went, payloads)

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
            self.refused("acknowledged-unsent", self.channel.received, number)
            return
        self.channel.received(number)
        self.received = max(self.received, last)

    def consume(self) -> None:
        number, last = self.number(self.consumed + 1)
        first = self.consumed + 1
        some = self.all[first : last + 1]
        if last >= len(self.all):
            self.refused("acknowledged-unsent", self.channel.consumed, number)
        elif self.transactional and any(one.decision is not Op.ROLLBACK and one.result is None for one in some):
            wrong = next(one for one in some if one.decision is not Op.ROLLBACK and one.result is None)
            cause = "consumed-undecided" if wrong.decision is None else "consumed-before-result"
            self.refused(cause, deepcopy(self.channel).consumed, number)  # which ends the link
        else:
            assert self.channel.consumed(number) == ((first, last) if some else None)
            self.consumed = max(self.consumed, last)
            self.received, self.settled = max(self.received, self.consumed), max(self.settled, self.consumed)

    def result(self) -> None:
        ack = self.random.choice((Ack.COMMITTED, Ack.UNCOMMITTED))
        waiting = [seq for seq, one in self.pending() if seq > self.settled and one.decision is not Op.ROLLBACK]
        number, last = self.number(waiting[0] if waiting else len(self.all))
        if not self.transactional:
            self.refused("result-not-transactional", self.channel.resulted, ack, number)
            return
        if last > self.dec:
            self.refused("result-unasked", self.channel.resulted, ack, number)
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
        self.received, self.said = self.consumed, None
        self.receive()
        wanted: list[Any] = [one.payload for one in self.all[self.received + 1 :]]
        decided = [
            (seq, one.decision) for seq, one in self.pending() if one.decision is not None and one.result is None
        ]
        for at, (seq, op) in enumerate(decided):
            if at + 1 == len(decided) or decided[at + 1][1] is not op:
                wanted.append((op.name, seq))
                self.said = (op, seq)
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
