"""Test the common part of exclusive and shared subscriptions."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import InvalidPosition, SubscriptionConflict, SubscriptionGone
from fyrehose.net.turns import STEPS_S, SteppedWork
from fyrehose.records import Run
from fyrehose.subscriptions.lane import Draft
from fyrehose.subscriptions.progress import SubscriptionOptions
from fyrehose.subscriptions.subscription import NamedSubscription
from fyrehose.testing import MemoryJournal
from tests.doubles.steps import advance_until

KINDS = ("all", "each")


def make(ack: str, stream: str = "s") -> tuple[Broker, NamedSubscription]:
    broker = Broker(Clock(), MemoryJournal(), Sequencer())
    broker.open()
    for name in ("s", "logs.a", "logs.b"):
        broker.publish([Run.of(name, [b"x"] * 10, source="test")])
    options = SubscriptionOptions(stream=stream, pattern="*" in stream, ack=ack)
    return broker, broker.table.create("n", options).result


@pytest.mark.parametrize("ack", KINDS)
def test_rewind_is_durable_before_its_answer_and_raises_the_epoch(ack: str) -> None:
    broker, named = make(ack)
    before = named.epoch
    broker.journal.auto = False
    rewound = broker.named.rewind(named, 7)
    assert (rewound.called, named.places) == (False, {"s": 0})
    broker.journal.commit()
    assert (rewound.called, named.places, named.epoch) == (True, {"s": 7}, before + 1)


@pytest.mark.parametrize("ack", KINDS)
def test_pattern_without_streams_is_rewound_and_used(ack: str) -> None:
    broker, named = make(ack, "none.*")
    for _ in range(3):
        assert broker.named.rewind(named, None).result is named
    broker.publish([Run.of("none.a", [b"x"], source="test")])
    if ack == "each":
        assert [part.run.first_seq for part in named.lease("w", None, 1, 0).result] == [1]
    else:
        assert broker.named.acknowledge(named, {"none.a": 1}).result.places == {"none.a": 1}


class SlowClock(Clock):
    """A clock with which each turn takes one step of a work, and each second is one turn of the reactor."""

    def seconds(self) -> float:
        self.rightNow += STEPS_S
        return super().seconds()

    def callLater(self, delay: float, *args: Any, **kw: Any) -> Any:
        return super().callLater(delay or 1.0, *args, **kw)


def adding(ack: str) -> tuple[Clock, Broker, list[Any]]:
    """Return a broker with a new subscription of a pattern, which two create at once, and which lacks streams yet."""
    clock, created = SlowClock(), list[Any]()
    broker = Broker(clock, MemoryJournal(), Sequencer())
    broker.open()
    for number in range(20):
        broker.publish([Run.of(f"logs.{number}", [b"x"] * 10, source="test")])
    options = SubscriptionOptions(stream="logs.*", pattern=True, ack=ack)
    for _ in range(2):
        broker.table.create("n", options).addCallback(created.append)
    advance_until(lambda: "n" in broker.table.entries, clock)
    return clock, broker, created


@pytest.mark.parametrize("since", [None, 1 << 60])
@pytest.mark.parametrize("ack", KINDS)
def test_rewind_before_a_new_pattern_has_all_its_streams_covers_all_of_them(ack: str, since: int | None) -> None:
    clock, broker, answered = adding(ack)
    named = broker.named.find("n")
    broker.named.rewind(named, None, since).addCallback(answered.append)
    assert answered == [], "it does not have all its streams"
    advance_until(lambda: len(answered) == 3, clock)
    assert named.places == {f"logs.{number}": 10 for number in range(20)}
    assert all(each is named for each in answered), "one of the two was created in place of the other"


@pytest.mark.parametrize("ack", KINDS)
def test_rewind_of_a_new_pattern_that_is_deleted_meanwhile_is_refused(ack: str) -> None:
    clock, broker, _ = adding(ack)
    named, refused = broker.named.find("n"), list[Any]()
    broker.named.rewind(named, None).addErrback(refused.append)
    broker.named.delete(named)
    advance_until(lambda: refused, clock)
    assert refused[0].check(SubscriptionGone)


@pytest.mark.parametrize("ack", KINDS)
def test_a_pattern_of_many_streams_is_shown_in_short_turns(ack: str) -> None:
    clock, broker, created = adding(ack)
    advance_until(lambda: created, clock)
    shown = SteppedWork(broker.turns, broker.named.show(created[0])).begin()
    assert not shown.called, "after a step"
    advance_until(lambda: shown.called, clock)
    each: Any = shown.result["floor" if ack == "each" else "positions"]
    assert (shown.result["streams"], each.keys()) == (20, created[0].tracks.keys())


@pytest.mark.parametrize("ack", KINDS)
@pytest.mark.parametrize(("seq", "why"), [(11, "ends at 10"), ({"logs.a": 1}, "is not one of")])
def test_position_that_the_streams_cannot_have_is_refused(ack: str, seq: Any, why: str) -> None:
    _, named = make(ack)
    with pytest.raises(InvalidPosition, match=why):
        named.numbers(seq)


@pytest.mark.parametrize("ack", KINDS)
def test_pattern_needs_a_number_for_each_stream_except_for_its_start_and_end(ack: str) -> None:
    _, named = make(ack, "logs.*")
    assert named.numbers(0) == {"logs.a": 0, "logs.b": 0}
    assert named.numbers(None) == {"logs.a": 10, "logs.b": 10}
    with pytest.raises(InvalidPosition, match="for each stream"):
        named.numbers(3)


def test_changes_are_answered_in_their_order() -> None:
    broker, named = make("all")
    broker.journal.auto = False
    first, second = named.append(Draft()), named.append(Draft())
    later = named.when_durable()
    first_alone, broker.journal.pending = broker.journal.pending[:1], broker.journal.pending[1:]
    rest, broker.journal.pending = broker.journal.pending, first_alone
    broker.journal.commit()
    assert (first.called, second.called, later.called) == (True, False, False)
    broker.journal.pending = rest
    broker.journal.commit()
    assert (second.called, later.called, named.when_durable().called) == (True, True, True)
    first, second = named.acknowledge(1), named.acknowledge(2)
    later = broker.named.open("n", "s", 0)
    broker.journal.commit()
    assert (first.called, second.called, later.called) == (True, False, True), "the second waits for another change"


@pytest.mark.parametrize("ack", KINDS)
def test_subscription_of_one_kind_is_not_used_as_the_other(ack: str) -> None:
    broker, _ = make(ack)
    wrong = broker.named.shared if ack == "all" else broker.named.exclusive
    with pytest.raises(SubscriptionConflict):
        wrong("n")
    other = SubscriptionOptions(stream="s", ack="each" if ack == "all" else "all")
    refused: list[Any] = []
    broker.table.create("n", other).addErrback(refused.append)
    assert refused[0].check(SubscriptionConflict)
