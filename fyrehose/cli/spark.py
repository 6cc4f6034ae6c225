"""The command ``fyrehose-spark``: each job, with a bar while it runs and a table when it is done."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fyrehose import __version__
from fyrehose.cli import spark_showing as showing
from fyrehose.cli.client.values import DURATION, SIZE
from fyrehose.cli.console import bar
from fyrehose.cli.program import Program
from fyrehose.errors import FyrehoseError
from fyrehose.offline.places import TOKEN_FILE
from fyrehose.options import counted, shown_size

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fyrehose.spark.jobs.tables import TableState
    from fyrehose.spark.metrics import StateMetrics

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

#: The formats in which a time may be typed.
_TIMES = ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S")
#: Exit status of a job that found missing, duplicate or different records.
FOUND = 3


class SparkProgram(Program):
    """The outermost group of commands, which also reports an error of a Spark task as one line and an exit status."""

    program = "fyrehose-spark"

    def explained(self, error: Exception) -> FyrehoseError | None:
        """Return *error* as a FyrehoseError with a text for the user; None for a bug, whose traceback is shown."""
        return showing.in_a_line(error)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; suppress PySpark's log of errors, which is one very long line for each error."""
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
        return super().invoke(ctx)


def _name_token(ctx: click.Context, param: click.Parameter, file: str | None) -> None:
    """Put the token file's name into the environment, where Spark's workers find it, too."""
    if file is not None:
        os.environ[TOKEN_FILE] = file


def _spark(command: F) -> F:
    for option in (
        click.option(
            "--token-file",
            metavar="FILE",
            callback=_name_token,
            expose_value=False,
            help="File with the journal's token.",
        ),
        click.option("--memory", default="2g", show_default=True, help="Memory of Spark's driver."),
        click.option("--master", metavar="URL", help="Spark's master.  [default: this machine]"),
    ):
        command = option(command)
    return command


def _records(command: F) -> F:
    for option in (
        click.option("--skip-gaps", is_flag=True, help="Ignore numbers that are missing from the journal."),
        click.option("--where", metavar="SQL", help="Only records that match, such as \"topic = 'web'\"."),
        click.option("--end", metavar="NUMBER|TIME", help="Only records up to this number, or before this time."),
        click.option("--start", metavar="NUMBER|TIME", help="Only records from this number or time on."),
        click.option("--stream", "streams", multiple=True, metavar="NAME", help="Only this stream; may be repeated."),
        click.option("--journal", metavar="DIR|URL", help="Journal; with --lake, for records that the lake lacks."),
        click.option("--lake", metavar="DIR|URL", help="Lake with archived records."),
    ):
        command = option(command)
    return _spark(command)


def _rounds(every: str, size: str) -> Callable[[F], F]:
    """Return the options of a command that copies a journal in rounds.

    :param every: the default interval of rounds
    :param size: the default size of a round
    """

    def add(command: F) -> F:
        for option in (
            click.option(
                "--engine",
                type=click.Choice(["spark", "local"]),
                default="spark",
                show_default=True,
                help="What writes.",
            ),
            click.option("--metrics", metavar="FILE|HOST:PORT", help="Metrics for Prometheus, in FILE.prom."),
            click.option(
                "--optimize",
                "optimize_every",
                type=DURATION,
                default="1h",
                show_default=True,
                help="Merge files so often.",
            ),
            click.option("--round", "round_bytes", type=SIZE, default=size, show_default=True, help="Size of a round."),
            click.option("--every", type=DURATION, default=every, show_default=True, help="Interval of rounds."),
            click.option("--follow", is_flag=True, help="Continue with new records until Ctrl-C."),
        ):
            command = option(command)
        return _spark(command)

    return add


def _open(master: str | None, memory: str, *, quick: bool = False) -> SparkSession:
    """Start Spark under the name of the command that runs."""
    from fyrehose.spark.spark_session import session

    # PySpark hands out times in the zone of the process.
    os.environ["TZ"] = "UTC"
    time.tzset()
    with bar("starting Spark"):
        return session(f"fyrehose {click.get_current_context().info_name}", master, memory=memory, quick=quick)


def _table(
    *,
    master: str | None,
    memory: str,
    lake: str | None,
    journal: str | None,
    streams: tuple[str, ...],
    start: str | None,
    end: str | None,
    where: str | None,
    skip_gaps: bool,
) -> DataFrame:
    """Start Spark, and return the records that the options of the command select."""
    from fyrehose.spark.tables import table as of

    if lake is None and journal is None:
        raise click.UsageError("no records given; pass --lake DIR, --journal DIR, or both")
    gaps = "skip" if skip_gaps else "error"
    spark = _open(master, memory)
    found = of(spark, lake, journal, streams=streams or None, start=start, end=end, gaps=gaps)
    return found if where is None else found.where(where)


@click.group(cls=SparkProgram, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="fyrehose %(version)s")
def main() -> None:
    """Archive a journal, and query its durable records with Spark.

    \b
        fyrehose-spark table --journal data
    """


@contextmanager
def _monitored(metrics: StateMetrics[T] | None) -> Iterator[Callable[[T], object] | None]:
    """Publish the metrics of a command, and at its end the exit status; yield the function to call with its state."""
    if metrics is None:
        yield None
        return
    metrics.start()
    status = 1
    try:
        yield metrics.update
        status = 0
    except Exception as error:
        ours = showing.in_a_line(error)
        status = status if ours is None else ours.exit_status
        raise
    finally:
        metrics.ended(status)
        metrics.stop()


def _quicken() -> None:
    """Set environment variables that make writing Parquet files faster; the workers of Spark inherit them."""
    # Parquet's buffers then come from the allocator that keeps memory (memory.py); numpy starts no threads for algebra.
    for name, value in (("ARROW_DEFAULT_MEMORY_POOL", "system"), ("OPENBLAS_NUM_THREADS", "1")):
        os.environ.setdefault(name, value)


def _stopped() -> Callable[[], bool]:
    """Return a function that says whether a signal has asked to stop; a second signal ends the process at once."""
    signals: list[int] = []

    def stop(number: int, frame: object) -> None:
        if signals:
            os._exit(128 + number)  # The current round is not committed; the next run repeats it.
        signals.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return lambda: bool(signals)


@contextmanager
def _copying(
    title: str,
    metrics: StateMetrics[T] | None,
    engine: str,
    master: str | None,
    memory: str,
    round_bytes: int,
) -> Iterator[tuple[SparkSession | None, dict[str, Any]]]:
    """Yield the session and the arguments of a job that copies a journal in rounds, with a bar and metrics."""
    with _monitored(metrics) as monitor:
        # Start Spark quickly: no record passes through the JVM, so compiling its code would not pay.
        spark = _open(master, memory, quick=True) if engine == "spark" else None
        stop = _stopped()
        with showing.rounds_of(spark, title, round_bytes) as draw:
            yield (
                spark,
                {
                    "round_bytes": round_bytes,
                    "progress": lambda done, view: draw(done.position, view.mark),
                    "monitor": monitor,
                    "stop": stop,
                },
            )


@main.command(short_help="Archive a journal as Parquet files, exactly once.")
@_rounds("60s", "1G")
@click.option("--subscription", metavar="NAME", help="Subscription for which retention waits.")
@click.option("--keep", type=DURATION, help="Delete days that ended longer ago.")
@click.option("--server", metavar="NAME", help="Name of this journal.  [default: its host]")
@click.option("--accept-loss", is_flag=True, help="Continue behind records that were deleted.")
@click.option("--by-hour", is_flag=True, help="Give a new lake partitions of an hour, not a day.")
@click.argument("journal")
@click.argument("lake")
def archive(
    journal: str,
    lake: str,
    round_bytes: int,
    metrics: str | None,
    engine: str,
    master: str | None,
    memory: str,
    **options: Any,
) -> None:
    """Archive JOURNAL, a directory or a URL, into LAKE, a directory or s3:// URL.

    Ctrl-C stops after the current round.  The next archive resumes.

    \b
        fyrehose-spark archive data lake --follow --subscription lake
    """
    _quicken()
    from fyrehose.spark.jobs.archive import archive as run
    from fyrehose.spark.jobs.archive import check_free
    from fyrehose.spark.metrics import ArchiveMetrics

    began = time.monotonic()
    check_free(journal, lake, options["server"], options["by_hour"])  # Check before Spark starts, which takes seconds.
    shown = None if metrics is None else ArchiveMetrics(metrics)
    with _copying(f"archiving {journal}", shown, engine, master, memory, round_bytes) as (spark, more):
        done = run(spark, journal, lake, **more, **options)
    rows = [(done.rounds, done.rows, shown_size(done.size), done.position, done.gaps, time.monotonic() - began)]
    columns = ("rounds", "records", "Parquet", "position", "lost", "seconds")
    showing.table(f"archived {journal} into {lake}", columns, rows)


@main.command(short_help="Fill typed tables from JSON events, exactly once.")
@_rounds("10s", "256M")
@click.option("--backfill", metavar="TABLE", help="Replace the rows between --start and --end.")
@click.option("--start", type=click.DateTime(_TIMES), metavar="TIME", help="When the first was accepted.")
@click.option("--end", type=click.DateTime(_TIMES), metavar="TIME", help="Behind the last one.")
@click.option("--check", is_flag=True, help="Check CONFIG, and do nothing else.")
@click.argument("config")
def tables(
    config: str,
    round_bytes: int,
    backfill: str | None,
    start: datetime | None,
    end: datetime | None,
    check: bool,
    metrics: str | None,
    engine: str,
    master: str | None,
    memory: str,
    **options: Any,
) -> None:
    """Fill the typed tables of CONFIG, a TOML file; the next run resumes.

    \b
        fyrehose-spark tables examples/pipeline/filebeat.toml --follow
    """
    from fyrehose.spark.jobs.tables import fill_tables, opened
    from fyrehose.spark.metrics import TablesMetrics
    from fyrehose.spark.typed.config import read_config

    if (backfill is None) != (start is None) or (backfill is None) != (end is None):
        raise click.UsageError("--backfill TABLE, --start TIME and --end TIME belong together")
    chosen = read_config(config)
    if check:
        names = [table.name for table in chosen.tables] + [each.name for each in chosen.aggregates]
        showing.table(f"{config} is valid", ("table",), [(name,) for name in names])
        return
    if backfill is not None and metrics is not None:
        raise click.UsageError("--metrics are those of rounds; leave it out with --backfill")
    found: list[TableState]
    if backfill is not None and start is not None and end is not None:
        spark = _open(master, memory, quick=True) if engine == "spark" else None
        with bar(f"filling {backfill}"), opened(spark, chosen) as run:
            found = [run.backfill(backfill, start.replace(tzinfo=UTC), end.replace(tzinfo=UTC))]
    else:
        shown = None if metrics is None else TablesMetrics(metrics)
        with _copying(f"filling {chosen.output}", shown, engine, master, memory, round_bytes) as (spark, more):
            found = fill_tables(spark, chosen, **more, **options)
    columns = ("table", "new rows", "rows", "rescued", "dropped", "quarantined", "duplicates", "not as expected")
    showing.table(f"filled {chosen.output}", columns, [_state(each) for each in found])


def _state(state: TableState) -> tuple[Any, ...]:
    """Return the counts of a table over all runs, as a row."""
    failed = [(name.partition("/")[2], n) for name, n in state.counts.items() if name.startswith("failed/") and n]
    numbers = [state.counts.get(name) for name in ("rows", "rescued", "dropped", "quarantined", "duplicates")]
    return state.name, state.rows, *numbers, ", ".join(f"{name} {n:,}" for name, n in sorted(failed)) or None


@main.command(short_help="Count the records of each stream.")
@click.option("--sql", metavar="QUERY", help="Run this query instead, on the table records.")
@_records
def table(sql: str | None, **which: Any) -> None:
    """Count the records of each stream in a lake and its journal.

    \b
        fyrehose-spark table --lake lake --journal data
    """
    from pyspark.sql import functions as f

    records = _table(**which)
    spark = records.sparkSession
    if sql is not None:
        records.createOrReplaceTempView("records")
        answer = spark.sql(sql)
    else:
        answer = records.groupBy("stream").agg(
            f.count("*").alias("records"),
            f.min("seq").alias("first"),
            f.max("seq").alias("last"),
            f.sum(f.length("payload")).alias("size"),
            f.date_trunc("second", f.min("time")).alias("from"),
            f.date_trunc("second", f.max("time")).alias("to"),
        )
        answer = answer.sort("stream")
    with showing.tasks_of(spark, "counting"):
        rows = [tuple(row) for row in answer.collect()]
    if sql is None:
        rows = [(*row[:4], shown_size(row[4]), *row[5:]) for row in rows]
    title = "records" if sql is None else sql
    showing.table(title if rows else "no records", answer.columns, rows)


@main.command(short_help="Find records that were sent twice.")
@click.option("--within", default="10 minutes", show_default=True, help="Longest time between duplicates.")
@click.option("--output", metavar="DIR", help="Write the duplicates to DIR as Parquet, replacing its contents.")
@_records
def dedup(within: str, output: str | None, **which: Any) -> None:
    """Find records that a producer sent twice.

    \b
        fyrehose-spark dedup --lake lake --within "1 hour"
    """
    from fyrehose.spark.jobs.dedup import doubles

    found = doubles(_table(**which), within)
    spark = found.sparkSession
    with showing.tasks_of(spark, "looking for duplicates"):
        if output is not None:
            found.write.mode("overwrite").parquet(output)
            found = spark.read.parquet(output)
        rows = found.groupBy("stream", "source").count().sort("stream", "source").collect()
    showing.table("duplicates" if rows else "no duplicates", ("stream", "source", "duplicates"), rows)


@main.command(short_help="Find missing and duplicate numbers.")
@click.option("--producers", is_flag=True, help="Check the producers' numbers instead of the streams'.")
@_records
def gaps(producers: bool, **which: Any) -> None:
    """Find missing and duplicate numbers; the status is 3 if the journal does not declare all of them lost.

    \b
        fyrehose-spark gaps --lake lake --journal data
    """
    from fyrehose.offline.places import place
    from fyrehose.spark.jobs.gaps import PRODUCER
    from fyrehose.spark.jobs.gaps import gaps as find
    from fyrehose.spark.lake import Lake, host_of

    # Skip gaps while reading, because this command lists them itself.
    records = _table(**(which | {"skip_gaps": True}))
    spark = records.sparkSession
    lake = Lake.at(which["lake"]) if which["lake"] else None
    declared = [] if lake is None else lake.lost()
    with showing.tasks_of(spark, "looking for gaps"):
        if which["journal"]:
            lost = spark.read.format("fyrehose").option("table", "gaps").load(which["journal"])
            rows = lost.where("kind = 'declared'").select("stream", "first_seq", "last_seq").collect()
            server = host_of(which["journal"])
            if lake is not None:
                server = lake.server_of(place(which["journal"]).view().identity, server)
            declared += [(server, *row) for row in rows]
        found = find(records, keys=PRODUCER, number="producer_seq") if producers else find(records, declared)
    title = "no gaps" if not found else f"{len(found)} gaps"
    shown = [(" ".join(map(str, gap.key)), gap.kind, gap.first, gap.last, gap.count) for gap in found]
    showing.table(title, ("producer" if producers else "server and stream", "kind", "first", "last", "numbers"), shown)
    if any(gap.kind != "declared" for gap in found):
        sys.exit(FOUND)


@main.command(short_help="Count records, bytes and lag by window of time.")
@click.option("--window", default="1 minute", show_default=True, help="Length of a window.")
@click.option("--plot", metavar="FILE.png", type=click.Path(path_type=Path), help="Also plot the rates.")
@click.option("--output", metavar="DIR", help="Write the counts to DIR as Parquet, replacing its contents.")
@_records
def rates(window: str, plot: Path | None, output: str | None, **which: Any) -> None:
    """Count records, bytes and lag by window of time, stream, source and topic.

    \b
        fyrehose-spark rates --journal data --window "5 minutes" --plot rates.png
    """
    from fyrehose.spark.jobs import rates as job

    counted = job.rates(_table(**which), window)
    spark = counted.sparkSession
    with showing.tasks_of(spark, "counting"):
        if output is not None:
            counted.write.mode("overwrite").parquet(output)
            counted = spark.read.parquet(output).sort("start", "stream", "source", "topic")
        rows = counted.collect()
        seconds = spark.sql(f"select unix_seconds(timestamp_seconds(0) + interval {window})").collect()[0][0]
    if plot is not None:
        job.plot(rows, seconds, plot)
    showing.table(f"by {window}" if rows else "no records", counted.columns, rows)


@main.command(short_help="Parse JSON payloads into columns.")
@click.option("--output", required=True, metavar="DIR", help="Directory to write, replacing its contents.")
@click.option("--schema", metavar="DDL", help='Columns instead of VARIANT, such as "level string, ms double".')
@_records
def parse(output: str, schema: str | None, **which: Any) -> None:
    """Parse JSON payloads into columns; payloads that do not fit are kept in the column ``rescued``.

    \b
        fyrehose-spark parse --lake lake --output parsed
    """
    from fyrehose.spark.jobs.parse import parse as run

    records = _table(**which)
    with showing.tasks_of(records.sparkSession, "parsing"):
        good, bad = run(records, output, schema)
    showing.table(f"parsed into {output}", ("parsed", "rescued"), [(good, bad)])


@main.command(short_help="Publish records again, in their order.")
@click.option("--to", required=True, metavar="HOST:PORT", help="Figg listener of the server.")
@click.option("--into", metavar="NAME", help="Stream to publish to; default: the stream of each record.")
@click.option("--rate", type=click.FloatRange(min=0), default=0.0, help="Most records a second.")
@_records
def replay(to: str, into: str | None, rate: float, **which: Any) -> None:
    """Publish records again, in their order, to a running server.

    \b
        fyrehose-spark replay --lake lake --to 127.0.0.1:8119 --into again
    """
    from fyrehose.spark.jobs.replay import replay as run

    records = _table(**which)
    with showing.tasks_of(records.sparkSession, "publishing"):
        count = run(records, to, into, rate)
    showing.table(f"published to {to}", ("records",), [(count,)])


@main.command(short_help="Compare a lake with its journal.")
@_spark
@click.argument("journal")
@click.argument("lake")
def verify(journal: str, lake: str, master: str | None, memory: str) -> None:
    """Compare every column of the records in both LAKE and JOURNAL; the status is 3 if any differ.

    \b
        fyrehose-spark verify data lake
    """
    from fyrehose.spark.jobs.verify import verify as run

    spark = _open(master, memory)
    with showing.tasks_of(spark, "comparing"):
        found = run(spark, journal, lake)
    rows = [(one.stream, one.first, one.last, one.in_lake, one.in_journal) for one in found.differences]
    showing.table(
        f"{counted(found.checked, 'record')} compared and the same, {found.unchecked:,} only in the lake",
        ("stream", "from", "to", "in the lake", "in the journal"),
        rows,
    )
    if found.differences:
        sys.exit(FOUND)


@main.command(short_help="Merge small files of a lake, and remove unused ones.")
@click.option("--keep", type=DURATION, help="Delete days that ended longer ago, such as 90d.")
@click.argument("lake")
def optimize(lake: str, keep: float | None) -> None:
    """Merge the small files of LAKE, and remove files that are not used any more; archives may run meanwhile.

    \b
        fyrehose-spark optimize lake --keep 90d
    """
    from fyrehose.spark.jobs.optimize import optimize as run

    with bar("merging files"):
        done = run(lake, keep=keep)
    showing.table(f"optimized {lake}", ("days merged", "files", "removed"), [(done.days, done.files, done.removed)])


@main.command(short_help="List the numbers that are declared lost.")
@click.option("--take-back", metavar="SQL", help="Remove the ranges that match, such as \"stream = 'web'\".")
@click.argument("lake")
def lost(take_back: str | None, lake: str) -> None:
    """List the numbers that were declared lost in LAKE, by `archive --accept-loss` or by the journal.

    \b
        fyrehose-spark lost lake --take-back "stream = 'web' and first >= 1000"
    """
    from fyrehose.spark.lake import Lake

    target = Lake.existing(lake)
    if take_back is not None:
        showing.table(f"taken back in {lake}", ("ranges",), [(target.take_back(take_back),)])
    rows = [(server, stream, first, last, last - first + 1) for server, stream, first, last in target.lost()]
    title = f"declared lost in {lake}" if rows else "nothing is declared lost"
    showing.table(title, ("server", "stream", "first", "last", "numbers"), rows)


@main.command(short_help="Print statements that name a lake in other engines.")
@click.option(
    "--for",
    "engine",
    type=click.Choice(["duckdb", "trino", "athena", "snowflake", "unity", "dbt"]),
    required=True,
    help="The engine.",
)
@click.option("--match", metavar="PATTERN", default="*", show_default=True, help="These streams or tables only.")
@click.argument("lake", metavar="LAKE|CONFIG")
def catalog(engine: str, match: str, lake: str) -> None:
    """Print the statements by which an engine names LAKE as a table, and each stream as a view.

    CONFIG, a TOML file, stands for the typed tables that it declares.

    \b
        fyrehose-spark catalog s3://bucket/lake --for trino
    """
    from fyrehose.patterns import Pattern
    from fyrehose.spark.lake import Lake
    from fyrehose.spark.statements import statements, statements_of_tables
    from fyrehose.spark.typed.config import read_config

    wanted = Pattern(match).covers
    if lake.endswith(".toml"):
        tables = {name: place for name, place in read_config(lake).places().items() if wanted(name)}
        made = statements_of_tables(engine, tables)
    else:
        target = Lake.existing(lake)
        target.check_records()
        made = statements(engine, str(target), [*filter(wanted, target.streams())])
    for statement in made:
        click.echo(statement)


@main.command(short_help="Delete records from a lake.")
@click.option("--where", required=True, metavar="SQL", help="Records to delete, such as \"stream = 'web'\".")
@click.argument("lake")
def delete(lake: str, where: str) -> None:
    """Delete records from LAKE.  Queries do not see them any more; `optimize` removes their bytes after a day.

    \b
        fyrehose-spark delete lake --where "stream = 'web' and seq <= 1000"
    """
    from fyrehose.spark.jobs.optimize import delete as run

    with bar("deleting"):
        count = run(lake, where)
    showing.table(f"deleted from {lake}", ("records",), [(count,)])
