"""Rates by window of time, and their plot."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fyrehose.spark.jobs.rates import LINES, WINDOWS, plot, rates, windows

AT = datetime(2026, 1, 1)


@pytest.mark.slow
def test_records_bytes_and_lag_are_counted_by_window(spark: Any) -> None:
    rows = [
        ("s", AT + timedelta(seconds=10), "figg", None, AT + timedelta(seconds=8), b"abc"),
        ("s", AT + timedelta(seconds=50), "figg", None, AT + timedelta(seconds=46), b"d"),
        ("s", AT + timedelta(seconds=61), "figg", "t", None, b""),
    ]
    schema = "stream string, time timestamp, source string, topic string, event_time timestamp, payload binary"
    found = [tuple(row) for row in rates(spark.createDataFrame(rows, schema)).collect()]
    assert found == [
        (AT, "s", "figg", None, 2, 4, 3.0, 4.0),
        (AT + timedelta(minutes=1), "s", "figg", "t", 1, 0, None, None),
    ]


@pytest.mark.parametrize("streams", [0, 1, LINES + 3])
def test_plot_of_rates_is_written_as_png(tmp_path: Path, streams: int) -> None:
    rows = [
        {"start": AT + timedelta(minutes=i), "stream": f"$s{k}_", "records": 60 * k}
        for i in range(5)
        for k in range(streams)
    ]
    plot(rows, 60.0, tmp_path / "rates.png")
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")


def test_plot_includes_windows_without_records() -> None:
    minute = timedelta(minutes=1)
    assert windows({AT + 3 * minute, AT}, 60.0) == [AT + i * minute for i in range(4)]
    assert windows(set(), 60.0) == []
    assert windows({AT, AT + 2 * WINDOWS * minute}, 60.0) == [AT, AT + 2 * WINDOWS * minute]
    odd = {AT, AT + timedelta(days=31), AT + timedelta(days=59)}
    assert odd <= set(windows(odd, 30 * 86_400.0))
