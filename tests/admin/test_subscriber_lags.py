"""Lags of subscribers: computed on request for few, in rounds of batches for many."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from fyrehose.admin import subscriber_lags
from fyrehose.admin.subscriber_lags import SubscriberLags
from tests.doubles.steps import finished

#: The size of a batch, and how many of the subscribers that are furthest behind are listed.
BATCH, LISTED = 4, 2


def made(watched: Any) -> SubscriberLags:
    return SubscriberLags(watched.broker, watched.clock.seconds, BATCH, LISTED)


@pytest.mark.parametrize("batch", [4, 100], ids=["in rounds", "on request"])
@pytest.mark.parametrize("seed", range(5))
def test_lags_are_the_largest_of_each_stream_and_protocol(seed: int, batch: int, make_watched: Any) -> None:
    dice, watched = Random(seed), make_watched()
    streams, protocols, lags = Counter[str](), Counter[str](), list[int]()
    for stream in "stu":
        watched.publish(*[b"x"] * 100, stream=stream)
    for _ in range(50):
        stream, protocol, lag = dice.choice("stu"), dice.choice(("figg", "http")), dice.choice((0, dice.randrange(101)))
        watched.subscribe(stream, 100 - lag, resumed=False, protocol=protocol)
        lags.append(lag)
        streams |= Counter({stream: lag})
        protocols |= Counter({protocol: lag})
    counted = SubscriberLags(watched.broker, watched.clock.seconds, batch, LISTED)
    for _ in range(13):
        counted.step()
    found = counted.lags()
    assert (found.streams, found.protocols, found.largest) == (streams, protocols, max(lags))
    assert [cursor.lag for cursor in found.furthest_behind(LISTED)] == sorted(lags)[: -LISTED - 1 : -1]
    assert len(found.furthest) <= (LISTED * 2 + batch if batch == 4 else 50), "few of many are remembered"
    watched.publish(*[b"x"] * 100)
    assert (counted.lags().largest > found.largest) == (batch == 100), "few are examined anew, many in a round"
    watched.broker.table.close()


def test_lags_of_many_subscribers_are_those_of_the_last_complete_round(watched: Any) -> None:
    watched.publish(*[b"x"] * 10)
    subscriptions = [watched.subscribe(after=after, resumed=False) for after in (9, 9, 9, 9, 0, 9, 9, 9, 5)]
    counted = made(watched)
    counted.step()
    assert counted.lags().largest == 1, "it has not come to the furthest yet"
    counted.step()
    counted.step()
    assert counted.lags().largest == 10
    began = counted.lags().started
    watched.clock.advance(1)
    subscriptions[4].stopProducing()
    counted.step()
    counted.step()
    assert (counted.lags().largest, counted.lags().started) == (10, began), "as of the last whole round"
    assert [cursor.lag for cursor in counted.lags().furthest_behind(2)] == [5, 1], "but those that left are not listed"
    counted.step()
    assert counted.lags().largest == 5
    assert counted.lags().started > began


def test_lags_are_exact_again_when_few_subscribers_are_left(watched: Any) -> None:
    watched.publish(b"x")
    subscriptions = [watched.subscribe(resumed=False) for _ in range(6)]
    counted = made(watched)
    counted.step()
    for subscription in subscriptions[1:]:
        subscription.stopProducing()
    subscriptions[0].resumeProducing()
    watched.clock.advance(0)
    counted.step()
    assert counted.lags().largest == 0


def test_round_is_complete_when_the_last_batch_is_full(watched: Any) -> None:
    watched.publish(b"x")
    for _ in range(8):
        watched.subscribe(resumed=False)
    counted = made(watched)
    answers = []
    for _ in range(9):
        counted.step()
        answers.append(counted.lags())
    assert len(set(map(id, answers))) == 3


def test_sampler_examines_at_most_one_batch_per_turn(watched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    look = subscriber_lags.Lags.include
    monkeypatch.setattr(
        subscriber_lags.Lags, "include", lambda lags, cursors: (looked.append(len(cursors)), look(lags, cursors))[1]
    )
    watched.sampler.subscriber_lags = made(watched)
    watched.publish(b"x", b"y")
    for _ in range(10):
        watched.subscribe(resumed=False)
    watched.pass_time(2)
    assert finished(watched.status.complete())["subscribers"]["lag"] == 2
    assert len(looked) > 10
    assert max(looked) == 4
