"""Lags of subscribers: computed on request for few, in rounds of batches for many."""

from __future__ import annotations

from typing import Any

import pytest

from fyrehose.admin import subscriber_lags
from fyrehose.admin.subscriber_lags import SubscriberLags
from tests.doubles.steps import finished

#: The size of a batch, and how many of the subscribers that are furthest behind are listed.
BATCH, LISTED = 4, 2


def made(watched: Any) -> SubscriberLags:
    return SubscriberLags(watched.broker, watched.clock.seconds, BATCH, LISTED)


def test_lags_of_few_subscribers_are_computed_on_request(watched: Any) -> None:
    watched.publish(*[b"x"] * 10)
    for after in (10, 4, 7, 0):
        watched.subscribe(after=after, resumed=False)
    lags = made(watched).lags()
    assert (lags.largest, lags.protocols, lags.streams) == (10, {"figg": 10}, {"s": 10})
    assert [cursor.lag for cursor in lags.furthest_behind(9)] == [10, 6, 3, 0]
    watched.publish(b"x")
    assert made(watched).lags().largest == 11


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


def test_subscribers_furthest_behind_are_found_in_any_order(watched: Any) -> None:
    watched.publish(*[b"x"] * 100)
    for n in range(50):
        watched.subscribe(after=100 - n * 37 % 50, resumed=False)
    counted = made(watched)
    for _ in range(13):
        counted.step()
    assert [cursor.lag for cursor in counted.lags().furthest_behind(2)] == [49, 48]
    assert len(counted.lags().furthest) <= 4 + subscriber_lags.BATCH


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
