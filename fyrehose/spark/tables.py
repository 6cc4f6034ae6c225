"""DataFrames of all durable records: those of a lake, and those of its journal that are not archived yet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fyrehose.spark.lake import Commit, Lake

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Columns of a table: those of a record, and the day on which it was accepted.
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
#: Schema of a lake's files: the same columns, and the keys of its directories.
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
    """Return every durable record of a lake, and those of the journal that the lake does not have yet.

    Streams whose names begin with a dot belong to the server, and are included only if ``streams`` names them.

    :param lake: the lake's directory, which need not exist yet if there is a journal; None for the journal alone
    :param journal: a directory or http://HOST:PORT; None for the lake alone
    :param streams: include only these streams, and open only their files
    :param gaps: ``error``, or ``skip`` to ignore numbers that are missing from the journal
    :raises JournalError: the lake does not exist, or its log is damaged
    :raises ValueError: neither a lake nor a journal is given, or ``streams`` is empty
    """
    wanted = None if streams is None else sorted(set(streams))
    if wanted == []:
        raise ValueError("streams is empty; leave it out for all streams")
    commits = [] if lake is None else (Lake.existing(lake) if journal is None else Lake.at(lake)).commits()
    parts = []
    if lake is not None:
        parts.append(of_lake(spark, Lake.at(lake), commits, wanted))
    if journal is not None:
        start = commits[-1].end if commits else None
        parts.append(of_journal(spark, journal, start=start, streams=wanted, gaps=gaps))
    if not parts:
        raise ValueError("neither a lake nor a journal is given")
    found = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
    return found.where("stream not like '.%'") if wanted is None else found


def of_lake(
    spark: SparkSession, lake: Lake, commits: Sequence[Commit], streams: Sequence[str] | None = None
) -> DataFrame:
    """Return the records of a lake's commits."""
    from pyspark.sql import functions as f

    if streams is None:
        paths = [str(lake.data / commit.directory) for commit in commits if commit.files]
    else:
        # A file of several streams has no stream of its own.
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
    """Return the records of a journal between two positions."""
    reader = spark.read.format("fyrehose").option("gaps", gaps)
    if start is not None:
        reader = reader.option("startPosition", start)
    if stop is not None:
        reader = reader.option("endPosition", stop)
    if streams is not None:
        reader = reader.option("streams", json.dumps([escaped(stream) for stream in streams]))
    return reader.load(journal).withColumn("date", day("time")).select(*COLUMNS)


def day(time: str) -> Column:
    """Return a column with the day in UTC of the column ``time``, independent of the session's time zone."""
    from pyspark.sql import functions as f

    return f.expr(f"date_from_unix_date(cast(unix_micros(`{time}`) div 86400000000 as int))")


def escaped(stream: str) -> str:
    """Return a pattern that matches this name and no other."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in stream)
