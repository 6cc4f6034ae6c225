"""Producers take turns, and one turn of the reactor produces a bounded number of bytes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
from twisted.internet.task import Clock

from fyrehose.broker.rounds import LEAST, ROUND, Rounds


class Reactor(Clock):
    """A clock that makes one turn of the reactor out of each second."""

    def callLater(self, delay: float, *args: Any, **kw: Any) -> Any:
        return super().callLater(max(delay, 1), *args, **kw)


@attrs.define(eq=False)
class Endless:
    """A producer with more to send than anybody reads."""

    rounds: Rounds
    size: int
    turns: int = 0

    def take_turn(self) -> int:
        self.turns += 1
        self.rounds.ready(self)
        return self.size


def test_a_turn_of_the_reactor_produces_about_one_round() -> None:
    clock = Reactor()
    rounds = Rounds(clock)
    producers = [Endless(rounds, ROUND // 4) for _ in range(250)]
    for producer in producers:
        rounds.ready(producer)
    clock.advance(1)
    assert sum(producer.turns for producer in producers) == 4


def test_every_producer_has_its_turn_before_one_has_its_second() -> None:
    clock = Reactor()
    rounds = Rounds(clock)
    producers = [Endless(rounds, size) for size in (ROUND, 100, ROUND // 3, 0) * 25]
    for producer in producers:
        rounds.ready(producer)
    seen = Counter[int]()
    while max(producer.turns for producer in producers) < 3:
        clock.advance(1)
        seen[max(producer.turns for producer in producers) - min(producer.turns for producer in producers)] += 1
    assert set(seen) <= {0, 1}


def test_turns_that_produce_nothing_end_a_round_as_well() -> None:
    clock = Reactor()
    rounds = Rounds(clock)
    idle = Endless(rounds, 0)
    rounds.ready(idle)
    clock.advance(1)
    assert idle.turns == ROUND // LEAST


def test_closing_forgets_all_producers() -> None:
    clock = Reactor()
    rounds = Rounds(clock)
    producer = Endless(rounds, 1)
    rounds.ready(producer)
    rounds.close()
    clock.advance(1)
    assert (producer.turns, clock.getDelayedCalls()) == (0, [])


def test_a_producer_that_fails_does_not_stop_the_others(logged_errors: Any) -> None:
    class Failing:
        def take_turn(self) -> int:
            raise RuntimeError("oops")

    clock = Reactor()
    rounds = Rounds(clock)
    other = Endless(rounds, ROUND)
    rounds.run([Failing(), other])
    assert other.turns == 1
    assert len(logged_errors.take()) == 1
