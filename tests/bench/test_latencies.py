"""Latencies of messages that are due at a rate, or one after the other."""

from __future__ import annotations

import pytest

from fyrehose.bench.latencies import Latencies


def test_latency_with_a_rate_includes_the_wait_during_a_stall() -> None:
    found = Latencies(4, rate=10.0)
    found.begin(100.0)
    assert [found.due(now) for now in (99.9, 100.0, 100.15, 105.0)] == [0, 1, 2, 4]
    assert found.when(3) == pytest.approx(100.3)
    found.sent(4, 105.0)
    found.done(4, 105.0)
    assert found.percentiles[0] == pytest.approx(4.85)


def test_latency_of_one_message_at_a_time_counts_from_its_sending() -> None:
    found = Latencies(2, rate=0.0)
    found.begin(1.0)
    assert found.percentiles == []
    for number, (sent, done) in enumerate([(10.0, 10.5), (20.0, 20.5)], 1):
        found.sent(number, sent)
        found.done(number, done)
    assert found.percentiles == pytest.approx([0.5, 0.5, 0.5])
