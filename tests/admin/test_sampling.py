"""Samples and rates of streams: their values, and the limits of their history."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import pytest
from twisted.logger import formatEvent

from fyrehose.admin.history import Sample
from fyrehose.admin.sampling import RECENT, TICK, StreamRates
from fyrehose.records import Run
from tests.doubles.references import references


def test_rates_are_messages_and_bytes_per_second(watched: Any) -> None:
    watched.subscribe()
    watched.publish(b"abc", b"de")
    watched.clock.advance(0)
    watched.pass_time(1)
    (sample,) = watched.sampler.samples
    assert sample.published["http"] == pytest.approx((2, 5), rel=0.2)
    assert sample.delivered["figg"] == pytest.approx((2, 5), rel=0.2)
    assert sample.time == pytest.approx(1001, abs=0.1)
    watched.pass_time(1)
    assert watched.sampler.samples[-1].published["http"] == (0, 0)


def test_only_the_latest_samples_are_kept(watched: Any) -> None:
    watched.pass_time(320)
    assert len(watched.sampler.samples) == 300


def test_watcher_receives_samples_until_it_unsubscribes(watched: Any) -> None:
    seen: list[Sample] = []
    enough = watched.sampler.watch(seen.append)
    watched.pass_time(3)
    enough()
    enough()
    watched.pass_time(3)
    assert seen == list(watched.sampler.samples)[: len(seen)]
    assert 2 <= len(seen) <= 3


def test_watcher_that_fails_is_logged_once_and_the_others_receive_samples(watched: Any, logged_errors: Any) -> None:
    seen: list[Sample] = []

    def failing(sample: Sample) -> None:
        raise RuntimeError("bug")

    ends = [watched.sampler.watch(each) for each in (failing, seen.append)]
    watched.pass_time(3)
    assert seen == list(watched.sampler.samples)[: len(seen)]
    assert len(seen) >= 2
    for end in ends:
        end()
    (event,) = logged_errors.take()
    assert formatEvent(event).startswith("checking watcher <function test_watcher_that_fails")


def test_lag_of_the_reactor_is_measured(watched: Any) -> None:
    watched.pass_time(1)
    watched.clock.advance(TICK + 0.7)
    watched.pass_time(1)
    assert max(sample.lag for sample in watched.sampler.samples) == pytest.approx(0.7, abs=0.06)
    assert watched.sampler.recent_quantile(3, 1.0) == 1.0, "the bound above it"
    watched.pass_time(RECENT + 5)
    assert max(watched.sampler.recent_quantile(3, 1.0), watched.sampler.samples[-1].lag) < 0.25, "that was long ago"


def test_publishes_before_the_first_sample_count_for_the_quantiles(watched: Any) -> None:
    watched.publish(b"a")
    watched.pass_time(3)
    (source,) = watched.broker.published
    assert watched.sampler.recent_quantile(source, 0.5) is not None
    watched.pass_time(RECENT + 5)
    assert watched.sampler.recent_quantile(source, 0.5) is None, "that was long ago"


@pytest.mark.parametrize("seed", range(3))
def test_publishers_are_the_producers_of_this_minute_and_of_the_one_before(seed: int, watched: Any) -> None:
    dice, published = Random(seed), defaultdict[int, set[str]](set)
    for _ in range(250):
        watched.pass_time(1)
        minute, second = divmod(watched.clock.seconds(), 60)
        if 2 < second < 58:
            if dice.random() < 0.05:
                producer = dice.choice("abcdef")
                watched.broker.publish([Run.of("s", [b"x"], source="http", producer=producer)])
                published[minute].add(producer)
            wanted = published[minute] | published[minute - 1]
            assert watched.sampler.publishers("http") == len(wanted), f"{wanted} at {minute} min {second} s"


def test_journal_without_meters_has_no_quantiles(watched: Any) -> None:
    assert [watched.sampler.recent_quantile(which, 0.5) for which in range(3)] == [None, None, None]


def test_stopping_is_immediate_and_idempotent(watched: Any) -> None:
    watched.sampler.stop()
    watched.sampler.stop()
    watched.pass_time(3)
    assert not watched.sampler.samples


def test_stream_rates_cover_the_time_since_the_last_update(watched: Any) -> None:
    rates = StreamRates(watched.clock.seconds, watched.broker)
    watched.publish(*[b"x"] * 10, stream="a")
    assert rates.current()("a") is None
    watched.publish(*[b"x"] * 20, stream="a")
    watched.publish(*[b"x"] * 4, stream="b")
    watched.clock.advance(2)
    rate = rates.current()
    assert (rate("a"), rate("b"), rate("c")) == (10, 2, 0)
    assert rates.growth == {"a": 20, "b": 4}
    watched.clock.advance(0.4)
    watched.publish(b"x", stream="a")
    assert rates.current()("a") == 10, "two who look at once see the same"
    watched.clock.advance(0.6)
    assert rates.current()("a") == 1
    watched.clock.advance(100)
    assert rates.current()("a") is None, "nobody has looked for long"
    assert rates.growth == {}
    watched.clock.advance(1)
    assert rates.current()("a") == 0


def test_rate_of_a_stream_created_again_counts_new_records_only(watched: Any) -> None:
    watched.publish(*[b"x"] * 10, stream="a")
    watched.broker.retire(["a"])
    rates = StreamRates(watched.clock.seconds, watched.broker, spare=1)
    assert rates.current()("a") is None
    watched.publish(*[b"x"] * 4, stream="a")
    watched.publish(*[b"x"] * 2, stream="b")
    watched.clock.advance(2)
    assert rates.current()("a") == 2.0
    watched.broker.retire(["a", "b"])
    watched.publish(b"x", stream="c")
    watched.clock.advance(2)
    assert (rates.current()("c"), rates.current()("a")) == (0.5, 0.0)
    watched.publish(*[b"x"] * 6, stream="a")
    watched.clock.advance(2)
    assert rates.current()("a") == 3.0
    before = references(rates, watched.broker, watched.clock)
    for i in range(50):
        watched.publish(b"x", stream=f"s{i}")
        watched.clock.advance(2)
        rates.current()
        watched.broker.retire([f"s{i}"])
    assert references(rates, watched.broker, watched.clock) < before + 50, "retired streams are forgotten"
