"""Lists of streams: a long one is looked up in several turns of the reactor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.broker.stream_statistics import READS, Ends
from fyrehose.net.lifecycle import Timers
from fyrehose.patterns import Pattern
from fyrehose.protocols.http.listing import MOST_COMPARED, described, matching
from fyrehose.records import Run
from fyrehose.testing import MemoryJournal


class CountedTurns(Ends):
    turns = 0

    def begin(self) -> None:
        self.turns += 1
        super().begin()


def broker_with(count: int) -> Broker:
    broker = Broker(Clock(), MemoryJournal(), Sequencer())
    broker.open()
    for number in range(count):
        broker.publish([Run.of(f"s{number}", [b"abc"] * 2, source="test")])
    return broker


@pytest.mark.parametrize(
    ("count", "turns"), [(0, 1), (1, 1), (MOST_COMPARED, 1), (MOST_COMPARED + 1, 2), (10 * MOST_COMPARED, 10)]
)
def test_many_names_are_compared_with_a_pattern_in_several_turns(count: int, turns: int) -> None:
    clock, names = Clock(), [f"{number}.{number % 3}" for number in range(count)]
    compared: list[int] = []

    class Counted(Pattern):
        def covers(self, stream: str) -> bool:
            compared[-1] += 1
            return super().covers(stream)

    class Turns(Timers):
        def start(self, seconds: float, call: Callable[[], object]) -> None:
            compared.append(0)
            super().start(seconds, call)

    compared.append(0)
    found = Deferred.fromCoroutine(matching(Turns(clock), Counted("*.1"), names))
    clock.pump([0] * turns)
    assert found.result == [name for name in names if name.endswith(".1")]
    assert (len(compared), sum(compared)) == (turns, count)
    assert max(compared) <= MOST_COMPARED


def test_a_long_list_is_looked_up_in_several_turns_and_is_complete() -> None:
    clock, broker = Clock(), broker_with(3 * READS)
    names = [f"s{number}" for number in range(3 * READS)]
    found: list[Any] = []
    ends = CountedTurns(broker)
    listed = described(broker, Timers(clock), ends, names, lambda: 2.5)
    Deferred.fromCoroutine(listed).addCallback(found.extend)
    assert (ends.turns, found) == (1, [])
    clock.pump([0] * 5)
    assert ends.turns == 6
    assert [each["name"] for each in found] == names
    assert {(each["bytes"], each["oldest_age"], each["newest_age"]) for each in found} == {(6, 1.5, 1.5)}


def test_streams_whose_ends_are_in_memory_are_listed_in_one_turn() -> None:
    clock, broker = Clock(), broker_with(2 * READS)
    names, ends = [f"s{number}" for number in range(2 * READS)], Ends(broker)
    Deferred.fromCoroutine(described(broker, Timers(clock), ends, names, lambda: 0.0))
    clock.pump([0] * 10)
    assert len(Deferred.fromCoroutine(described(broker, Timers(clock), ends, names, lambda: 0.0)).result) == len(names)


def test_an_empty_stream_has_no_bytes_and_no_ages() -> None:
    broker = broker_with(1)
    broker.journal.empty("s0")
    [each] = Deferred.fromCoroutine(described(broker, Timers(Clock()), Ends(broker), ["s0"], lambda: 0.0)).result
    assert each == {"name": "s0", "first": 3, "last": 2, "bytes": 0, "oldest_age": None, "newest_age": None}


def test_an_empty_list_is_answered_at_once() -> None:
    broker = broker_with(0)
    assert Deferred.fromCoroutine(described(broker, Timers(Clock()), Ends(broker), [], lambda: 0.0)).result == []
