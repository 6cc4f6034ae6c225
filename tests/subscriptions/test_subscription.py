"""Test the common part of exclusive and shared subscriptions."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import InvalidPosition, SubscriptionConflict
from fyrehose.records import Run
from fyrehose.subscriptions.lane import Draft
from fyrehose.subscriptions.progress import SubscriptionOptions
from fyrehose.subscriptions.subscription import NamedSubscription
from fyrehose.testing import MemoryJournal

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
