"""Test the metrics of ``fyrehose forward``, and the rows that ``--status`` makes of them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from twisted.internet.task import Clock

from fyrehose.forward.destination import ForwardTable, place
from fyrehose.forward.engine import ForwardCounts
from fyrehose.forward.metrics import ForwardMetrics, rows
from fyrehose.forward.service import RunningForward


def test_rows_have_what_the_metrics_say() -> None:
    table = ForwardTable(name="n", streams="s", to=(place("lumberjack://h:1"),))
    running = RunningForward(Clock(), table, ForwardCounts(1234, 99, 1, 2, 3))
    running.lag, running.age, running.error = 5, 7.0, "no route"
    registry = CollectorRegistry()
    registry.register(ForwardMetrics("x.prom", {"n": running}))
    assert rows(generate_latest(registry).decode()) == [
        {
            "subscription": "n",
            "destination": "lumberjack",
            "problem": "no route",
            "up": "0",
            "records": "1,234",
            "bytes": "99",
            "dead": "1",
            "retries": "2",
            "lost": "3",
            "lag_records": "5",
            "lag_seconds": "7",
        }
    ]


def test_lag_that_is_not_known_is_no_metric() -> None:
    table = ForwardTable(name="n", streams="s", to=(place("lumberjack://h:1"),))
    registry = CollectorRegistry()
    registry.register(ForwardMetrics("x.prom", {"n": RunningForward(Clock(), table)}))
    text = generate_latest(registry).decode()
    assert "fyrehose_forward_lag_records{" not in text
    assert 'fyrehose_forward_up{destination="lumberjack",problem="",subscription="n"} 1.0' in text
