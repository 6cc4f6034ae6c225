#!/usr/bin/env python3
"""Draw the aggregates of filebeat.toml: requests for each minute and status, errors for each minute and host.

plot.py tables gold.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import pandas
from deltalake import DeltaTable

#: The tables, and the columns by which each is drawn.
TABLES = {"requests": "status", "errors": "host"}


def draw(tables: Path, file: Path) -> None:
    """Draw the tables into a file."""
    matplotlib.use("Agg")
    from matplotlib import dates, pyplot

    figure, axes = pyplot.subplots(len(TABLES), 1, figsize=(10, 7), sharex=True, layout="constrained")
    for axis, (name, by) in zip(axes, TABLES.items(), strict=True):
        rows = DeltaTable(tables / name).to_pandas()
        wide = rows.pivot_table(index="window", columns=by, values=name, aggfunc="sum", fill_value=0)
        axis.xaxis.set_major_formatter(dates.ConciseDateFormatter(axis.xaxis.get_major_locator()))
        axis.set_title(f"{name} per minute, by {by}")
        if len(wide):
            end = wide.index[-1] + pandas.Timedelta(minutes=1)  # so that the last minute has a width
            wide = wide.reindex(pandas.date_range(wide.index[0], end, freq="min"), fill_value=0)
            axis.stackplot(wide.index, wide.to_numpy().T, labels=[str(label) for label in wide.columns], step="post")
            axis.legend(loc="upper left")
    figure.savefig(file)
    pyplot.close(figure)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
