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
from fyrehose.records import column_of


def short(packets: list[Any]) -> list[tuple[str, int | None]]:
    return [(packet.kind.name, packet.number) for packet in packets]


def accept(got: ReceiveChannel, *payloads: bytes) -> int:
    run = column_of(payloads)
    return got.accept(run, len(run.payload) + OVERHEAD * len(run), run.sizes)


def test_messages_that_are_not_kept_take_no_memory_in_any_number() -> None:
    got = ReceiveChannel(0, True, 0)
    tracemalloc.start()
    try:
        for _ in range(2_000):
            got.accept_dropped(1, DropReason.COUNT)
        assert tracemalloc.get_traced_memory()[0] < 10_000
    finally:
        tracemalloc.stop()


def test_number_of_dropped_messages_is_limited() -> None:
    got = ReceiveChannel(0, True, 0)
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
    closing: bool = False
    leaving: bool = False  #: snapshots leave it out
    pinged: bool = False  #: whether a ping is under way, whose pong shows that the peer knows all results
    trimming: bool = False  #: whether a ping is under way, whose pong shows that the peer knows earlier results
    unconfirmed: int = 0  #: the results that went out since that ping
    why: DropReason | None = None  #: why messages that nothing has decided were not kept
    receipt: int | None = None  #: what `received` said last on this connection
    said: tuple[Ack, int] | None = None  #: the result that went out last on this connection, and of which message
    forgotten: int = -1  #: the last message whose result the peer is known to have

    @property
    def decided(self) -> int:
        return self.dec if self.transactional else len(self.all) - 1

    @property
    def exhausted(self) -> bool:
        return self.closing and self.consumed + 1 == len(self.all)

    @property
    def mode(self) -> Receiving:
        if self.pinged:
            return Receiving.BARRIER
        return Receiving.CLOSING if self.closing else Receiving.OPEN

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
            self.unconfirmed += last - begin + 1
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
        rare = ("unstage", "forget", "trim", "close", "ping", "reconnect", "rewind")
        getattr(self, self.random.choice(names + rare))()
        got, diary = self.channel, self.diary
        assert (got.next, got.done, got.consumed) == (len(diary.all), diary.done, diary.consumed)
        assert got.waiting == diary.decided - diary.consumed
        assert got.undecided == len(diary.all) - 1 - diary.decided
        waits = diary.decided == diary.done == diary.consumed
        assert got.resumable == (diary.transactional and waits and not diary.leaving)
        assert (got.mode, got.exhausted) == (diary.mode, diary.exhausted and not diary.pinged)
        assert got.unconfirmed == diary.unconfirmed
        assert [(run.result, run.first, run.last) for run in got.results] == diary.results(0, diary.done)

    def between(self, low: int, high: int) -> int:
        """Return a number that may be too large by one, and often is the last one that is not."""
        if low < high and self.random.random() < 0.4:
            return high - 1
        return self.random.randint(low, high) if low <= high else high + 1

    def come(self) -> None:
        sizes = self.random.choices((0, 1, 5), k=self.random.choice((1, 1, 2, 4)))
        payloads = list(map(self.random.randbytes, sizes))
        if self.diary.closing:
            for late in (lambda: accept(self.channel, *payloads), lambda: self.drop_new(1)):
                with pytest.raises(RemoteProtocolError, match="message-after-close"):
                    late()
            return
        kept = not self.diary.dropping and (not self.diary.transactional or self.random.random() < 0.9)
        if not kept:
            self.diary.why = self.diary.why if self.diary.dropping else DropReason.COUNT
            self.drop_new(len(payloads))
        elif self.random.random() < 0.5:
            assert accept(self.channel, *payloads) == len(self.diary.all)
        else:
            cost = sum(sizes) + OVERHEAD * len(sizes)
            assert self.channel.accept(tuple((one,) for one in payloads), cost, sizes) == len(self.diary.all)
        self.diary.all += [Came(one, kept) for one in payloads]

    def drop_new(self, count: int) -> None:
        self.channel.accept_dropped(count, DropReason.COUNT)

    def close(self) -> None:
        if not self.diary.closing and self.random.random() < 0.3:
            self.channel.advance(ChannelEvent.CLOSE)
            self.diary.closing = True

    def ping(self) -> None:
        if self.diary.exhausted and not self.diary.pinged:
            self.channel.advance(ChannelEvent.PING)
            self.channel.barrier = 1
            self.channel.leaving = self.diary.leaving = self.diary.pinged = True

    def trim(self) -> None:
        if not self.diary.trimming:
            self.channel.trim_barrier, self.channel.unconfirmed = (1, self.diary.consumed), 0
            self.diary.trimming, self.diary.unconfirmed = True, 0

    def drop(self) -> None:
        first = self.diary.decided + 1
        assert self.channel.drop_undecided() == self.diary.cost(first, len(self.diary.all) - 1)
        for one in self.diary.all[first:]:
            one.kept, self.diary.why = False, DropReason.MEMORY

    def decide(self) -> None:
        diary = self.diary
        first = diary.dec + 1
        last = self.between(max(first - 2, -1), len(diary.all))
        number = None if last == first and self.random.random() < 0.5 else last & 0xFFFFFFFF
        if not diary.transactional or last >= len(diary.all):
            cause = "operation-on-unreceived" if diary.transactional else "operation-not-transactional"
            with pytest.raises(RemoteProtocolError, match=cause):
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
                assert found[2] is diary.why

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
        diary = self.diary
        self.channel.detach()
        if diary.trimming:
            diary.unconfirmed = sum(last - first + 1 for _, first, last in diary.results(0, diary.done))
        diary.trimming = diary.pinged = False
        assert (self.channel.barrier, self.channel.trim_barrier) == (None, None)
        assert short(self.channel.report()) == self.diary.report()

    def rewind(self) -> None:
        if self.random.random() < 0.7:
            return
        diary = self.diary
        self.reconnect()
        assert self.channel.rewind() == diary.cost(diary.consumed + 1, len(diary.all) - 1)
        del diary.all[diary.consumed + 1 :]
        diary.done = diary.consumed
        diary.dec = min(diary.dec, diary.consumed)
        diary.closing = diary.leaving = False
        self.reconnect()


@pytest.mark.parametrize("seed", range(0, 60, 6))
def test_channel_agrees_with_a_model_of_each_message(seed: int) -> None:
    for one in range(seed, seed + 6):
        history = History(one)
        for _ in range(80):
            history.step()
