"""Tables over a lake and its journal: everything that is durable, at the speed of Parquet.

table(spark, lake, journal)    the lake, and of the journal what lies behind it
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fyrehose.spark.lake import Commit, Lake

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: What a table has: the columns of a record, and the day on which it was accepted.
COLUMNS = (
    "stream",
    "seq",
    "time",
    "source",
    "producer",
    "topic",
    "content_type",
    "producer_seq",
    "event_id",
    "event_time",
    "payload",
    "date",
)
#: The same as Spark writes it, and what only the files of a lake have.
_LAKE = (
    "stream string, seq bigint, time timestamp, source string, producer string, topic string, content_type string, "
    "producer_seq bigint, event_id binary, event_time timestamp, payload binary, "
    "round string, stream_key string, date date"
)


def table(
    spark: SparkSession,
    lake: str | Path | None,
    journal: str | None = None,
    *,
    streams: Iterable[str] | None = None,
    gaps: str = "error",
) -> DataFrame:
    """Every record that is durable: those of the lake, then those of the journal that the lake does not have yet.

    Streams whose names begin with a dot are the server's own books, and are in it only if ``streams`` names them.

    :param lake: None: of the journal alone; beside a journal it need not be there yet
    :param journal: a directory or http://HOST:PORT; None: of the lake alone
    :param streams: of these streams only, of which alone files are opened
    :param gaps: ``error``, or ``skip`` numbers that the journal declares as lost
    :raises JournalError: there is no lake there, or its log is damaged
    """
    wanted = None if streams is None else sorted(set(streams))
    if wanted == []:
        raise ValueError("streams names none; leave it out for all of them")
    commits = [] if lake is None else (Lake.existing(lake) if journal is None else Lake.at(lake)).commits()
    parts = []
    if lake is not None:
        parts.append(of_lake(spark, Lake.at(lake), commits, wanted))
    if journal is not None:
        start = commits[-1].end if commits else None
        parts.append(of_journal(spark, journal, start=start, streams=wanted, gaps=gaps))
    if not parts:
        raise ValueError("a table is of a lake, of a journal, or of both")
    found = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
    return found.where("stream not like '.%'") if wanted is None else found


def of_lake(
    spark: SparkSession, lake: Lake, commits: Sequence[Commit], streams: Sequence[str] | None = None
) -> DataFrame:
    """What the commits have."""
    from pyspark.sql import functions as f

    if streams is None:
        paths = [str(lake.data / commit.directory) for commit in commits if commit.files]
    else:
        # A file of several streams is not named by one.
        paths = sorted(
            str((lake.data / commit.directory / file.path).parent)
            for commit in commits
            for file in commit.files
            if file.stream is None or file.stream in streams
        )
        paths = list(dict.fromkeys(paths))
    if not paths:
        return spark.createDataFrame([], _LAKE).select(*COLUMNS)
    reader = spark.read.schema(_LAKE).option("basePath", str(lake.data)).option("datetimeRebaseMode", "CORRECTED")
    found = reader.parquet(*paths)
    if streams is not None:
        found = found.where(f.col("stream").isin(list(streams)))
    return found.select(*COLUMNS)


def of_journal(
    spark: SparkSession,
    journal: str,
    *,
    start: int | None = None,
    stop: int | None = None,
    streams: Sequence[str] | None = None,
    gaps: str = "error",
) -> DataFrame:
    """What the journal has between two positions."""
    reader = spark.read.format("fyrehose").option("gaps", gaps)
    if start is not None:
        reader = reader.option("startPosition", start)
    if stop is not None:
        reader = reader.option("endPosition", stop)
    if streams is not None:
        reader = reader.option("streams", json.dumps([escaped(stream) for stream in streams]))
    return reader.load(journal).withColumn("date", day("time")).select(*COLUMNS)


def day(time: str) -> Column:
    """The day of a time in UTC, whatever the session's own zone is."""
    from pyspark.sql import functions as f

    return f.expr(f"date_from_unix_date(cast(unix_micros(`{time}`) div 86400000000 as int))")


def escaped(stream: str) -> str:
    """A pattern that matches this name and no other."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in stream)
