"""Producers take turns, and one turn of the reactor produces a bounded number of bytes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from fyrehose.broker.rounds import INPUT_S, LEAST, ROUND, ROUND_S, Intake, Rounds


class Reactor(Clock):
    """A clock that makes one turn of the reactor out of each second."""

    def callLater(self, delay: float, *args: Any, **kw: Any) -> Any:
        return super().callLater(max(delay, 1), *args, **kw)


@attrs.define(eq=False)
class Endless:
    """A producer with more to send than anybody reads.

    :ivar seconds: how long each of its turns takes
    """

    rounds: Rounds
    size: int
    seconds: float = 0.0
    turns: int = 0
    failure: Failure | None = None

    def failed(self, failure: Failure) -> None:
        self.failure = failure

    def take_turn(self) -> int:
        self.turns += 1
        if self.seconds:
            self.rounds.clock.rightNow += self.seconds  # type: ignore[attr-defined]
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


def test_a_round_also_ends_after_many_turns_that_produce_nothing() -> None:
    clock = Reactor()
    rounds = Rounds(clock)
    idle = Endless(rounds, 0)
    rounds.ready(idle)
    clock.advance(1)
    assert idle.turns == ROUND // LEAST


def test_a_round_ends_when_its_time_is_over_however_little_it_has_produced() -> None:
    clock = Reactor()
    rounds = Rounds(clock)
    slow = [Endless(rounds, 100, ROUND_S / 2) for _ in range(100)]
    rounds.run(slow)
    assert sum(producer.turns for producer in slow) == 3, "the first turn of a round is not counted"
    clock.advance(1)
    assert sum(producer.turns for producer in slow) == 6
    assert max(producer.turns for producer in slow) == 1


def test_closing_forgets_all_producers() -> None:
    clock = Reactor()
    rounds = Rounds(clock)
    producer = Endless(rounds, 1)
    rounds.ready(producer)
    rounds.close()
    clock.advance(1)
    assert (producer.turns, clock.getDelayedCalls()) == (0, [])


def test_a_producer_whose_turn_fails_is_ended_and_does_not_stop_the_others() -> None:
    clock = Reactor()
    rounds = Rounds(clock)
    broken, other = Endless(rounds, ROUND), Endless(rounds, ROUND)
    broken.rounds = None  # type: ignore[assignment]
    rounds.run([broken, other])
    assert (broken.turns, other.turns) == (1, 1)
    assert broken.failure is not None
    assert broken.failure.check(AttributeError)
    assert other.failure is None


@attrs.define(eq=False)
class Busy:
    """A connection that has received more than it ever handles.

    :ivar seconds: how long each of its turns takes
    """

    intake: Intake
    clock: Clock
    network: str
    seconds: float = 0.0
    turns: int = 0
    more: bool = True
    failure: Failure | None = None

    def handle_more(self) -> None:
        self.turns += 1
        self.clock.rightNow += self.seconds
        if self.more:
            self.intake.wait(self)

    def failed(self, failure: Failure) -> None:
        self.failure = failure


def test_each_network_handles_input_before_any_has_a_second_turn() -> None:
    clock, intake = Reactor(), Intake()
    many = [Busy(intake, clock, "many") for _ in range(100)]
    few = [Busy(intake, clock, f"few {number}") for number in range(3)]
    for receiver in (*many, *few):
        intake.wait(receiver)
    clock.advance(1)
    turns = [receiver.turns for receiver in few]
    assert max(turns) - min(turns) <= 1
    assert abs(sum(receiver.turns for receiver in many) - turns[0]) <= 1
    assert {receiver.turns for receiver in many} <= {0, 1}, "and so do the connections of one network"


def test_a_round_of_input_ends_when_its_time_is_over() -> None:
    clock, intake = Reactor(), Intake()
    receivers = [Busy(intake, clock, f"{number}", INPUT_S / 3) for number in range(10)]
    for receiver in receivers:
        intake.wait(receiver)
    clock.advance(1)
    assert sum(receiver.turns for receiver in receivers) in (3, 4)


def test_input_is_handled_at_once_until_its_time_is_over() -> None:
    clock, intake = Reactor(), Intake()
    assert intake.left > 0
    intake.left -= INPUT_S
    assert intake.left <= 0
    receiver = Busy(intake, clock, "late", more=False)
    intake.wait(receiver)
    clock.advance(1)
    assert intake.left > 0


def test_a_connection_whose_input_fails_ends_alone() -> None:
    clock, intake = Reactor(), Intake()
    broken, other = Busy(intake, clock, "broken"), Busy(intake, clock, "other")
    broken.intake = None  # type: ignore[assignment]
    intake.wait(broken)
    intake.wait(other)
    clock.advance(1)
    assert broken.failure is not None
    assert broken.failure.check(AttributeError)
    assert other.failure is None
    assert other.turns
