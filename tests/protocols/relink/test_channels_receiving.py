"""The peer's channels: checks, staging and settling, and reports."""

from __future__ import annotations

import tracemalloc
from itertools import groupby
from random import Random
from typing import Any

import attrs
import pytest

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.protocols.relink.channels import MAX_WINDOW as MAX_UNDECIDED
from fyrehose.protocols.relink.channels import OVERHEAD, ChannelEvent, ReceiveChannel, Receiving
from fyrehose.protocols.relink.events import DropReason
from fyrehose.protocols.relink.frames import Ack
from fyrehose.protocols.relink.messages import MessageSequence
from fyrehose.records import Column, column_of


def channel(count: int = 0, transactional: bool = True, decided: int = 0) -> ReceiveChannel:
    made = ReceiveChannel(0, transactional, 0)
    for number in range(count):
        made.accept(((b"%d" % number,),), 10, (1,))
    if decided:
        made.decide(decided - 1)
    return made


def short(packets: list[Any]) -> list[tuple[str, int | None]]:
    return [(packet.kind.name, packet.number) for packet in packets]


def test_decide_returns_messages_in_order() -> None:
    got = channel(4)
    assert got.undecided == 4
    assert got.decide(None) == (0, 0, MessageSequence.of((b"0",)))
    assert got.decide(2) == (1, 2, MessageSequence.of((b"1",), (b"2",)))
    assert got.decide(1) is None
    assert (got.waiting, got.undecided) == (3, 1)
    with pytest.raises(RemoteProtocolError, match="operation-on-unreceived"):
        got.decide(4)
    with pytest.raises(RemoteProtocolError, match="operation-not-transactional"):
        channel(1, transactional=False).decide(0)


def test_results_precede_consumed_and_are_numbered_when_needed() -> None:
    got = channel(8, decided=8)
    got.stage(1, Ack.COMMITTED)
    got.stage(2, None)
    got.stage(3, Ack.COMMITTED)
    got.stage(4, Ack.COMMITTED)
    got.stage(5, Ack.UNCOMMITTED)
    assert (short(got.settle(1)[0]), short(got.settle(2)[0])) == (
        [("COMMITTED", 1), ("CONSUMED", 1)],
        [("CONSUMED", None)],
    )
    assert short(got.settle(3)[0]) == [("COMMITTED", 3), ("CONSUMED", None)]
    assert short(got.settle(4)[0]) == [("COMMITTED", None), ("CONSUMED", None)]
    packets, freed = got.settle(5)
    assert (short(packets), freed) == ([("UNCOMMITTED", 5), ("CONSUMED", None)], 10)


def test_channel_whose_messages_only_wait_for_decisions_is_resumable() -> None:
    got = channel(3)
    assert got.resumable
    got.decide(0)
    assert not got.resumable
    got.stage(0, Ack.COMMITTED)
    assert not got.resumable
    got.settle(0)
    assert got.resumable
    got.leaving = True
    assert not got.resumable
    assert not channel(3, transactional=False).resumable


def test_results_are_unconfirmed_until_forgotten() -> None:
    got = channel(5, decided=5)
    got.stage(2, Ack.COMMITTED)
    got.stage(4, Ack.UNCOMMITTED)
    got.settle(4)
    assert got.unconfirmed == 5
    got.forget_results(1)
    assert [(run.first, run.last) for run in got.results] == [(2, 2), (3, 4)]
    got.detach()
    assert got.unconfirmed == 5, "no ping was outstanding"
    got.trim_barrier = (1, 4)
    got.detach()
    assert (got.unconfirmed, got.trim_barrier) == (3, None)
    got.forget_results(4)
    assert got.results == []


def test_only_consecutive_results_share_a_run() -> None:
    got = channel(6, decided=6)
    got.stage(0, Ack.COMMITTED)
    got.stage(1, Ack.COMMITTED)
    got.stage(2, None)
    got.stage(3, Ack.COMMITTED)
    got.stage(5, Ack.UNCOMMITTED)
    assert [(run.first, run.last) for run in got.results] == [(0, 1), (3, 3), (4, 5)]
    assert short(got.settle(4)[0]) == [("COMMITTED", 1), ("COMMITTED", 3), ("UNCOMMITTED", 4), ("CONSUMED", 4)]
    assert short(got.settle(5)[0]) == [("UNCOMMITTED", None), ("CONSUMED", None)]


def test_invalid_staging_is_refused() -> None:
    got = channel(3, decided=2)
    for wrong in (lambda: got.stage(2, None), lambda: got.stage(-1, None), lambda: got.settle(0)):
        with pytest.raises(LocalProtocolError):
            wrong()


def test_unstage_restores_cursor_and_results() -> None:
    got = channel(6, decided=6)
    got.stage(1, Ack.COMMITTED)
    got.settle(1)
    got.stage(3, Ack.COMMITTED)
    got.stage(4, Ack.UNCOMMITTED)
    got.unstage(2)
    assert (got.done, [(r.result, r.first, r.last) for r in got.results]) == (2, [(Ack.COMMITTED, 0, 2)])
    got.unstage(4)
    assert got.done == 2, "unstage never stages"
    got.unstage(-1)
    assert got.done == 1, "durable messages stay staged"
    got.stage(2, Ack.UNCOMMITTED)
    got.unstage(1)
    assert [(r.result, r.first, r.last) for r in got.results] == [(Ack.COMMITTED, 0, 1)]


def test_report_lists_received_results_and_consumed() -> None:
    got = channel(8, decided=6)
    assert short(got.report()) == [("RECEIVED", 7)]
    got.stage(1, Ack.COMMITTED)
    got.stage(2, None)
    got.stage(3, Ack.UNCOMMITTED)
    got.settle(2)
    assert short(got.report()) == [("RECEIVED", 7), ("COMMITTED", 1), ("CONSUMED", 2)]
    got.settle(3)
    got.forget_results(0)
    assert short(got.report()) == [("RECEIVED", 7), ("COMMITTED", 1), ("UNCOMMITTED", 3), ("CONSUMED", 3)]
    got.forget_results(1)
    assert short(got.report()) == [("RECEIVED", 7), ("UNCOMMITTED", 3), ("CONSUMED", 3)]


def test_received_covers_all_new_messages() -> None:
    got = channel(1, transactional=False)
    packets = [got.acknowledge_received(False)]
    got.accept(((),), 1, (0,))
    packets.append(got.acknowledge_received(False))
    got.accept(((),), 1, (0,))
    got.accept(((),), 1, (0,))
    packets.append(got.acknowledge_received(False))
    assert [packet.number for packet in packets if packet] == [0, None, 3]
    assert got.acknowledge_received(False) is None
    got.stage(3, None)
    got.settle(3)
    got.accept(((),), 1, (0,))
    got.stage(4, None)
    got.settle(4)
    assert got.acknowledge_received(False) is None, "consumed implies received"
    got.accept(((),), 1, (0,))
    last = got.acknowledge_received(False)
    assert last is not None
    assert last.number == 5, "read to the letter, a packet without a number would target another message"


def test_received_is_not_repeated_after_consumed() -> None:
    got = channel(4, transactional=False)
    packet = got.acknowledge_received(False)
    assert packet is not None
    assert packet.number == 3
    got.stage(1, None)
    got.settle(1)
    assert got.acknowledge_received(False) is None


def test_rewind_forgets_messages_that_are_not_durable() -> None:
    got = channel(6, decided=4)
    got.stage(1, Ack.COMMITTED)
    got.settle(0)
    got.advance(ChannelEvent.CLOSE)
    got.leaving = True
    assert got.rewind() == 50
    assert (got.next, got.dec, got.done, got.consumed, got.mode) == (1, 0, 0, 0, Receiving.OPEN)
    assert not got.leaving
    assert got.accept(((b"again",),), 1, (5,)) == 1


def column(*payloads: bytes) -> Column:
    return column_of(payloads)


def accept(got: ReceiveChannel, *payloads: bytes) -> int:
    run = column(*payloads)
    return got.accept(run, len(run.payload) + OVERHEAD * len(run), run.sizes)


def test_runs_are_split_at_decisions() -> None:
    got = channel()
    assert accept(got, b"a", b"bc", b"") == 0
    assert accept(got, b"d", b"efg") == 3
    assert got.decide(1) == (0, 1, MessageSequence((column(b"a", b"bc"),)))
    assert got.decide(3) == (2, 3, MessageSequence((column(b""), column(b"d"))))
    assert got.decide(None) == (4, 4, MessageSequence.of((b"efg",)))
    assert got.undecided == 0


@pytest.mark.parametrize("cuts", [(4,), (0, 4), (0, 1, 2, 3, 4), (1, 4), (2, 3, 4)])
def test_cost_of_runs_is_released_exactly(cuts: tuple[int, ...]) -> None:
    got = channel(transactional=False)
    accept(got, b"a", b"bc", b"")
    accept(got, b"d", b"efg")
    sizes, freed = [1, 2, 0, 1, 3], []
    for last in cuts:
        got.stage(last, None)
        freed.append(got.settle(last)[1])
    begins = [0, *(last + 1 for last in cuts)]
    assert freed == [
        sum(sizes[begin : last + 1]) + OVERHEAD * (last + 1 - begin) for begin, last in zip(begins, cuts, strict=False)
    ]
    assert got.rewind() == 0


def test_closing_channel_refuses_messages() -> None:
    got = channel(1, transactional=False)
    got.advance(ChannelEvent.CLOSE)
    assert not got.exhausted
    for late in (lambda: got.accept(((),), 1, (0,)), lambda: got.accept_dropped(1, DropReason.COUNT)):
        with pytest.raises(RemoteProtocolError, match="message-after-close"):
            late()
    got.stage(0, None)
    got.settle(0)
    assert got.exhausted
    got.advance(ChannelEvent.PING)
    got.detach()
    assert got.exhausted, "the barrier ping has to be sent again"


def test_received_is_numbered_on_request() -> None:
    got = channel(1, transactional=False)
    got.acknowledge_received(True)
    got.accept(((),), 1, (0,))
    packet = got.acknowledge_received(True)
    assert packet is not None
    assert packet.number == 1


def test_dropped_messages_are_numbered_and_cost_nothing() -> None:
    got = channel(0)
    got.accept(((b"a",), (b"b",), (b"c",)), 3 * OVERHEAD + 3, (1, 1, 1))
    got.accept_dropped(2, DropReason.COUNT)
    got.accept_dropped(4, DropReason.COUNT)
    assert (got.next, got.undecided, got.dropped) == (9, 9, 3)
    first, last, messages = got.decide(1)  # type: ignore[misc]
    assert (first, last, messages) == (0, 1, MessageSequence.of((b"a",), (b"b",)))
    assert got.decide(4) == (2, 4, DropReason.COUNT), "one message was dropped, so none of them can be committed"
    got.stage(1, Ack.COMMITTED)
    got.stage(4, Ack.UNCOMMITTED)
    assert got.settle(1)[1] == 2 * OVERHEAD + 2
    assert got.settle(4)[1] == OVERHEAD + 1
    assert got.decide(8) == (5, 8, DropReason.COUNT)
    got.stage(8, None)
    assert got.settle(8)[1] == 0
    got.accept(((b"d",),), OVERHEAD + 1, (1,))
    assert got.decide(None) == (9, 9, MessageSequence.of((b"d",)))


def test_messages_that_are_not_kept_take_no_memory_in_any_number() -> None:
    got = channel(0)
    tracemalloc.start()
    try:
        for _ in range(2_000):
            got.accept_dropped(1, DropReason.COUNT)
        assert tracemalloc.get_traced_memory()[0] < 10_000
    finally:
        tracemalloc.stop()


def test_undecided_messages_can_be_dropped_later() -> None:
    got = channel(0)
    got.accept(((b"a",), (b"b",), (b"c",)), 3 * OVERHEAD + 3, (1, 1, 1))
    got.accept(((b"d",),), OVERHEAD + 1, (1,))
    got.decide(0)
    assert got.drop_undecided() == 3 * OVERHEAD + 3
    assert got.drop_undecided() == 0
    assert got.decide(3) == (1, 3, DropReason.MEMORY)
    got.stage(0, Ack.COMMITTED)
    got.stage(3, Ack.UNCOMMITTED)
    assert got.settle(3)[1] == OVERHEAD + 1


def test_number_of_dropped_messages_is_limited() -> None:
    got = channel(0)
    got.accept_dropped(MAX_UNDECIDED, DropReason.COUNT)
    with pytest.raises(RemoteProtocolError, match="backlog-too-large"):
        got.accept_dropped(1, DropReason.COUNT)


@attrs.define
class Came:
    """One received message, its decision and its result."""

    payload: bytes
    kept: bool
    result: Ack | None = None

    @property
    def cost(self) -> int:
        return OVERHEAD + len(self.payload) if self.kept else 0


@attrs.define
class Diary:
    """Every message of a channel, one by one: a history of a :class:`ReceiveChannel` is checked against it."""

    transactional: bool
    all: list[Came] = attrs.field(factory=list)
    dec: int = -1
    done: int = -1
    consumed: int = -1
    told: int = -1
    receipt: int | None = None  #: what `received` said last on this connection
    said: tuple[Ack, int] | None = None  #: the result that went out last on this connection, and of which message
    forgotten: int = -1  #: the last message whose result the peer is known to have

    @property
    def decided(self) -> int:
        return self.dec if self.transactional else len(self.all) - 1

    @property
    def dropping(self) -> bool:
        return not all(one.kept for one in self.all[self.decided + 1 :])

    def cost(self, first: int, through: int) -> int:
        return sum(one.cost for one in self.all[first : through + 1])

    def results(self, first: int, through: int) -> list[tuple[Ack, int, int]]:
        """Return each run of equal results, with the numbers of its first and last message."""
        numbers = range(max(first, self.forgotten + 1), through + 1)
        runs = [(result, list(run)) for result, run in groupby(numbers, lambda number: self.all[number].result)]
        return [(result, run[0], run[-1]) for result, run in runs if result is not None]

    def settle(self, through: int) -> tuple[list[tuple[str, int | None]], int]:
        first, packets = self.consumed + 1, []
        for result, begin, last in self.results(first, through):
            plain = begin == last and self.said == (result, begin - 1)
            packets.append((result.name, None if plain else last))
            self.said = (result, last)
        packets.append(("CONSUMED", None if through == first else through))
        self.consumed, self.told = through, max(self.told, through)
        return packets, self.cost(first, through)

    def acknowledge(self, numbered: bool) -> list[tuple[str, int | None]]:
        last = len(self.all) - 1
        if self.told >= last:
            return []
        plain = self.receipt == last - 1 and not numbered
        self.told = self.receipt = last
        return [("RECEIVED", None if plain else last)]

    def report(self) -> list[tuple[str, int | None]]:
        self.told = len(self.all) - 1
        self.said = None
        self.receipt = self.told if self.told > self.consumed else None
        packets: list[tuple[str, int | None]] = [] if self.receipt is None else [("RECEIVED", self.receipt)]
        packets += [(result.name, last) for result, _, last in self.results(0, self.consumed)]
        return packets + ([("CONSUMED", self.consumed)] if self.consumed >= 0 else [])


class History:
    """Does at random what a peer and an owner do, and compares everything that can be seen."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.diary = Diary(self.random.random() < 0.8)
        self.channel = ReceiveChannel(0, self.diary.transactional, 0)

    def step(self) -> None:
        names = ("come", "come", "drop", "decide", "decide", "stage", "stage", "settle", "settle", "acknowledge")
        getattr(self, self.random.choice((*names, "unstage", "forget", "reconnect", "rewind")))()
        got, diary = self.channel, self.diary
        assert (got.next, got.done, got.consumed) == (len(diary.all), diary.done, diary.consumed)
        assert got.waiting == diary.decided - diary.consumed
        assert got.undecided == len(diary.all) - 1 - diary.decided
        assert got.resumable == (diary.transactional and diary.decided == diary.done == diary.consumed)
        assert [(run.result, run.first, run.last) for run in got.results] == diary.results(0, diary.done)

    def between(self, low: int, high: int) -> int:
        return self.random.randint(low, high) if low <= high else high + 1

    def come(self) -> None:
        payloads = [b"x" * self.random.choice((0, 1, 5)) for _ in range(self.random.choice((1, 1, 2, 4)))]
        kept = not self.diary.dropping and (not self.diary.transactional or self.random.random() < 0.9)
        if not kept:
            self.channel.accept_dropped(len(payloads), DropReason.COUNT)
        elif self.random.random() < 0.5:
            assert accept(self.channel, *payloads) == len(self.diary.all)
        else:
            cost, sizes = sum(OVERHEAD + len(one) for one in payloads), [len(one) for one in payloads]
            assert self.channel.accept(tuple((one,) for one in payloads), cost, sizes) == len(self.diary.all)
        self.diary.all += [Came(one, kept) for one in payloads]

    def drop(self) -> None:
        first = self.diary.decided + 1
        assert self.channel.drop_undecided() == self.diary.cost(first, len(self.diary.all) - 1)
        for one in self.diary.all[first:]:
            one.kept = False

    def decide(self) -> None:
        diary = self.diary
        first = diary.dec + 1
        last = self.between(max(first - 2, -1), len(diary.all))
        number = None if last == first and self.random.random() < 0.5 else last & 0xFFFFFFFF
        if not diary.transactional or last >= len(diary.all):
            with pytest.raises(RemoteProtocolError, match="operation-"):
                self.channel.decide(number)
            return
        found = self.channel.decide(number)
        diary.dec = max(last, diary.dec)
        decided = diary.all[first : last + 1]
        if not decided:
            assert found is None
        else:
            assert found is not None
            assert found[:2] == (first, last)
            if all(one.kept for one in decided):
                assert found[2] == MessageSequence.of(*((one.payload,) for one in decided))
            else:
                assert isinstance(found[2], DropReason)

    def stage(self) -> None:
        result = self.random.choice((Ack.COMMITTED, Ack.UNCOMMITTED, None)) if self.diary.transactional else None
        through = self.between(self.diary.done, self.diary.decided + 1)
        if not self.diary.done < through <= self.diary.decided:
            with pytest.raises(LocalProtocolError):
                self.channel.stage(through, result)
            return
        self.channel.stage(through, result)
        for one in self.diary.all[self.diary.done + 1 : through + 1]:
            one.result = result
        self.diary.done = through

    def unstage(self) -> None:
        through = self.random.randint(-1, self.diary.done + 1)
        self.channel.unstage(through)
        self.diary.done = max(self.diary.consumed, min(self.diary.done, through))

    def settle(self) -> None:
        through = self.between(self.diary.consumed, self.diary.done + 1)
        if not self.diary.consumed < through <= self.diary.done:
            with pytest.raises(LocalProtocolError):
                self.channel.settle(through)
            return
        packets, freed = self.channel.settle(through)
        assert (short(packets), freed) == self.diary.settle(through)

    def acknowledge(self) -> None:
        numbered = self.random.random() < 0.3
        receipt = self.channel.acknowledge_received(numbered)
        assert short([] if receipt is None else [receipt]) == self.diary.acknowledge(numbered)

    def forget(self) -> None:
        through = self.random.randint(-1, self.diary.consumed)
        self.channel.forget_results(through)
        self.diary.forgotten = max(self.diary.forgotten, through)

    def reconnect(self) -> None:
        self.channel.detach()
        assert short(self.channel.report()) == self.diary.report()

    def rewind(self) -> None:
        if self.random.random() < 0.7:
            return
        diary = self.diary
        assert self.channel.rewind() == diary.cost(diary.consumed + 1, len(diary.all) - 1)
        del diary.all[diary.consumed + 1 :]
        diary.done = diary.consumed
        diary.dec = min(diary.dec, diary.consumed)
        self.reconnect()


@pytest.mark.parametrize("seed", range(0, 60, 6))
def test_channel_agrees_with_a_model_of_each_message(seed: int) -> None:
    for one in range(seed, seed + 6):
        history = History(one)
        for _ in range(80):
            history.step()
