#!/usr/bin/env python3
"""Bronze, silver and gold: from the journal of a server to tables that keep themselves up to date.

TABLES/bronze      every record, as it was received (fyrehose-spark archive)
TABLES/silver      one row for each event, with a column for each field of its JSON
TABLES/requests    gold: requests for each minute and status
TABLES/errors      gold: errors for each minute and host
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path

import attrs
import click
from gold import Gold
from pyspark.sql import SparkSession
from silver import SCHEMA, Silver
from tables import Table, alone

from fyrehose.options import duration
from fyrehose.spark import session
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.jobs.optimize import optimize

log = logging.getLogger("pipeline")
#: How often files are merged, in seconds, with --follow; otherwise at the end of each run.
MAINTAIN = 3600.0


@attrs.define(eq=False)
class Pipeline:
    """Tables in a directory, and the journal from which they are filled."""

    journal: str
    bronze: Path
    silver: Silver
    gold: Gold
    cluster: SparkSession | None
    subscription: str | None

    @classmethod
    def at(
        cls,
        spark: SparkSession,
        journal: str,
        tables: Path,
        streams: tuple[str, ...] = (),
        subscription: str | None = None,
        rows: int = 500_000,
        cluster: bool = False,
    ) -> Pipeline:
        """Open the tables; they are created if necessary.

        :param streams: read only these; by default, all but the server's own
        :param subscription: named subscription that keeps records which bronze does not have yet
        :param rows: most records of a round
        :param cluster: write bronze by tasks of Spark; in one process that is faster unless there are many workers
        """
        silver = Table(tables / "silver", SCHEMA)
        filling = Silver(spark, tables / "bronze", silver, streams or None, rows)
        gold = Gold.at(tables, spark, silver)
        return cls(journal, tables / "bronze", filling, gold, spark if cluster else None, subscription)

    def advance(self) -> int:
        """Read what is new in the journal, and return how many events were added to silver."""
        archive(self.cluster, self.journal, self.bronze, subscription=self.subscription)
        total = 0
        while (count := self.silver.round()) is not None:
            total += count
            self.gold.round()
        self.gold.round()  # A kill may have come between silver and gold.
        return total

    def maintain(self) -> None:
        """Merge small files, and remove those that nobody uses any more."""
        optimize(self.bronze)
        for table in (self.silver.table, *self.gold.tables.values()):
            table.compact()


def plot(gold: Gold, file: Path) -> None:
    """Draw requests for each minute and status, and errors for each minute and host."""
    import matplotlib
    import pandas

    matplotlib.use("Agg")
    from matplotlib import dates, pyplot

    figure, axes = pyplot.subplots(2, 1, figsize=(10, 7), sharex=True, layout="constrained")
    for axis, (name, table) in zip(axes, gold.tables.items(), strict=True):
        rows = table.delta.to_pandas()
        groups = rows.columns[1]
        wide = rows.pivot_table(index="minute", columns=groups, values=name, aggfunc="sum", fill_value=0)
        axis.xaxis.set_major_formatter(dates.ConciseDateFormatter(axis.xaxis.get_major_locator()))
        axis.set_title(f"{name} per minute, by {groups}")
        if len(wide):
            end = wide.index[-1] + pandas.Timedelta(minutes=1)  # so that the last minute has a width
            wide = wide.reindex(pandas.date_range(wide.index[0], end, freq="min"), fill_value=0)
            axis.stackplot(wide.index, wide.to_numpy().T, labels=[str(label) for label in wide.columns], step="post")
            axis.legend(loc="upper left")
    figure.savefig(file)
    pyplot.close(figure)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--stream", "streams", multiple=True, metavar="NAME", help="Only this stream; may be repeated.")
@click.option("--follow", is_flag=True, help="Continue until Ctrl-C.")
@click.option("--every", default="10s", show_default=True, help="Interval of rounds with --follow.")
@click.option(
    "--subscription",
    metavar="NAME",
    help="Named subscription that keeps records which bronze does not have yet.",
)
@click.option("--plot", "picture", type=click.Path(path_type=Path), metavar="FILE.png", help="Plot gold at the end.")
@click.option("--memory", default="2g", show_default=True, help="Memory of Spark's driver.")
@click.option("--master", metavar="URL", help="Spark's master.  [default: this machine]")
@click.argument("journal")
@click.argument("tables", type=click.Path(path_type=Path))
def main(
    journal: str,
    tables: Path,
    streams: tuple[str, ...],
    follow: bool,
    every: str,
    subscription: str | None,
    picture: Path | None,
    memory: str,
    master: str | None,
) -> None:
    """Fill TABLES from JOURNAL, a directory or http://HOST:PORT; each run continues where the last one ended.

    \b
        python examples/pipeline/pipeline.py data tables --plot gold.png
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, frame: os._exit(128 + received) if stopped else stopped.append(received))
    seconds = duration(every)
    try:
        with alone(tables):
            # Spark's default of 200 partitions is meant for clusters.
            spark = session("pipeline", master, memory=memory, conf={"spark.sql.shuffle.partitions": "8"})
            pipeline = Pipeline.at(spark, journal, tables, streams, subscription, cluster=master is not None)
            maintained = time.monotonic()
            while not stopped:
                began = time.monotonic()
                count = pipeline.advance()
                if count or not follow:
                    log.info("%d events in %.1f s", count, time.monotonic() - began)
                if not follow or began - maintained > MAINTAIN:
                    pipeline.maintain()
                    maintained = began
                if not follow:
                    break
                while not stopped and time.monotonic() < began + seconds:
                    time.sleep(0.1)
            if picture is not None:
                plot(pipeline.gold, picture)
    except BlockingIOError:
        sys.exit(f"another pipeline writes to {tables}; wait until it ends, or choose another directory")


if __name__ == "__main__":
    main()
