"""``rates``: count records, bytes and lag by window of time, stream, source and topic."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: The largest number of lines in a plot, because more lines could not be told apart.
LINES = 10
#: The largest number of windows in a plot, including windows without records.
WINDOWS = 10_000


def rates(records: DataFrame, window: str = "1 minute", by: Sequence[str] = ("stream", "source", "topic")) -> DataFrame:
    """Return for each window and group the records, the bytes, and the lag behind the producers' clocks in seconds.

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
    """Plot the records a second of the busiest streams over time, one line each, into the file at ``path``.

    :param rows: of :func:`rates`, with ``start``, ``stream`` and ``records``
    :param seconds: the length of a window
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import dates, pyplot, ticker

    totals: dict[str, int] = {}
    for row in rows:
        totals[row["stream"]] = totals.get(row["stream"], 0) + row["records"]
    shown = sorted(totals, key=lambda stream: -totals[stream])[:LINES]
    # matplotlib draws times, too, though its types do not say so.
    starts: Any = windows({row["start"] for row in rows}, seconds)
    figure, axes = pyplot.subplots(figsize=(11, 5), layout="constrained")
    for stream in shown:
        rate = _rate((row for row in rows if row["stream"] == stream), starts, seconds)
        axes.plot(starts, rate, marker=".", label=stream.replace("$", r"\$"))
    if len(totals) > len(shown):
        rate = _rate((row for row in rows if row["stream"] not in shown), starts, seconds)
        axes.plot(starts, rate, color="grey", linestyle=":", label=f"{len(totals) - len(shown)} others")
    axes.set(xlabel="time (UTC)", ylabel="records a second", ylim=(0, None), title="Records accepted, by stream")
    axes.grid(alpha=0.3)
    if shown:
        axes.legend(loc="upper left", fontsize="small")
        locator = dates.AutoDateLocator()
        axes.xaxis.set(major_locator=locator, major_formatter=dates.ConciseDateFormatter(locator))
    axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,g}"))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def windows(starts: Collection[datetime], seconds: float) -> list[datetime]:
    """Return the windows in order, including windows without records unless there are too many to plot."""
    if not starts:
        return []
    first, step = min(starts), timedelta(seconds=seconds)
    count = (max(starts) - first) // step + 1 if step else 0
    # Windows of months cannot be listed, because months differ in length.
    filled = [first + i * step for i in range(count)] if count <= WINDOWS else []
    return sorted({*starts, *filled})


def _rate(rows: Iterable[Any], starts: Sequence[datetime], seconds: float) -> list[float]:
    """Return the number of records a second in each window."""
    found = dict.fromkeys(starts, 0.0)
    for row in rows:
        found[row["start"]] += row["records"] / seconds
    return list(found.values())
