"""``rates``: how much came in and how late, by window of time, stream, source and topic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: How many lines a plot has: more cannot be told apart.
LINES = 10


def rates(records: DataFrame, window: str = "1 minute", by: Sequence[str] = ("stream", "source", "topic")) -> DataFrame:
    """For each window and group: records, bytes, and the lag behind the producers' own clocks in seconds.

    The lag is null where producers send no time.
    """
    from pyspark.sql import functions as f

    lag = (f.unix_micros("time") - f.unix_micros("event_time")) / f.lit(1e6)
    return (
        records.groupBy(f.window("time", window).start.alias("start"), *by)
        .agg(
            f.count("*").alias("records"),
            f.sum(f.length("payload")).alias("bytes"),
            f.avg(lag).alias("lag"),
            f.max(lag).alias("max_lag"),
        )
        .sort("start", *by)
    )


def plot(rows: Sequence[Any], seconds: float, path: Path) -> None:
    """Draw records a second of each stream over time, those with most records each as a line, into ``path``.

    :param rows: of :func:`rates`, with ``start``, ``stream`` and ``records``
    :param seconds: how long a window is
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    totals: dict[str, int] = {}
    for row in rows:
        totals[row["stream"]] = totals.get(row["stream"], 0) + row["records"]
    shown = sorted(totals, key=lambda stream: -totals[stream])[:LINES]
    starts = sorted({row["start"] for row in rows})
    figure, axes = pyplot.subplots(figsize=(11, 5), layout="constrained")
    others = dict.fromkeys(starts, 0.0)
    for stream in shown:
        rate = dict.fromkeys(starts, 0.0)
        for row in rows:
            if row["stream"] == stream:
                rate[row["start"]] += row["records"] / seconds
        axes.plot(starts, list(rate.values()), marker=".", label=stream.replace("$", r"\$"))
    for row in rows:
        if row["stream"] not in shown:
            others[row["start"]] += row["records"] / seconds
    if len(totals) > len(shown):
        axes.plot(
            starts, list(others.values()), color="grey", linestyle=":", label=f"{len(totals) - len(shown)} others"
        )
    axes.set(xlabel="time (UTC)", ylabel="records a second", ylim=(0, None), title="Records accepted, by stream")
    axes.grid(alpha=0.3)
    if shown:
        axes.legend(loc="upper left", fontsize="small")
    figure.autofmt_xdate()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
