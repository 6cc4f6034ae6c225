"""Latencies of messages that are due at a rate, or one after the other."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from fyrehose.bench.latencies import Latencies
from fyrehose.bench.results import PERCENTILES


@pytest.mark.parametrize("rate", [0.0, 10.0])
def test_latency_counts_from_when_a_message_was_due_or_sent_and_once(rate: float) -> None:
    """Arrivals are told several times, and those of a connection that is behind another one late."""
    dice = Random(1)
    for _ in range(50):
        found, now, sent = Latencies(20, rate), 100.0, 0
        found.begin(now)
        due = [now + number / rate for number in range(20)] if rate else []
        took = list[float]()
        while len(took) < 20:
            now += dice.choice((0.05, 0.5))
            if rate:
                assert found.due(now) == sum(each <= now for each in due)
                assert found.when(sent % 20) == pytest.approx(due[sent % 20])
            sent = min(20, sent + dice.randint(0, 3))
            due += [now] * (sent - len(due))
            found.sent(sent, now)
            now += dice.choice((0.05, 0.5))
            upto = dice.randint(0, sent)
            found.done(upto, now)
            took += [now - each for each in due[len(took) : upto]]
            expected = np.percentile(took, PERCENTILES) if took else []
            assert found.percentiles == pytest.approx(list(expected)), f"latencies of {took}"
