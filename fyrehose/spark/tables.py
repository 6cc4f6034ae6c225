"""DataFrames of all durable records: those of a lake, and those of its journal that are not archived yet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import pyarrow as pa

from fyrehose.offline.offsets import Offset
from fyrehose.spark.columns import TABLE
from fyrehose.spark.selection import EVERY, Selection, selection

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from fyrehose.spark.lake import File, Lake
    from fyrehose.spark.stores import LakeStore

#: The largest integer that Spark has.
_LARGEST = (1 << 63) - 1


def table(
    spark: SparkSession,
    lake: str | Path | Lake | None,
    journal: str | None = None,
    *,
    streams: Iterable[str] | None = None,
    start: str | None = None,
    end: str | None = None,
    gaps: str = "error",
) -> DataFrame:
    """Return every durable record of a lake, and those of the journal that the lake does not have yet.

    Streams whose names begin with a dot belong to the server, and are included only if ``streams`` names them.

    :param lake: the lake's directory or URL, which need not exist yet if there is a journal; None for the journal
        alone
    :param journal: a directory or http://HOST:PORT; None for the lake alone
    :param streams: include only these streams, and open only their files
    :param start: the first number, or a time, as in the options of the source; only files that may have records from
        there on are opened
    :param end: the last number, or the time before which records are included
    :param gaps: ``error``, or ``skip`` to ignore numbers that are missing from the journal
    :raises JournalError: the lake does not exist, or its log is damaged
    :raises ValueError: neither a lake nor a journal is given, or ``streams`` is empty
    """
    # Delta is imported here, because Spark's workers import this package, and do not need Delta.
    from fyrehose.spark.lake import lake_of

    wanted = None if streams is None else sorted(set(streams))
    if wanted == []:
        raise ValueError("streams is empty; leave it out for all streams")
    target = lake_of(lake, journal)
    sources = []
    if target is not None:
        chosen = attrs.evolve(selection(None, start, end), streams=None if wanted is None else frozenset(wanted))
        sources.append(of_lake(spark, target, chosen))
    if journal is not None:
        # Its tasks come first, because retention may delete a segment at any time.
        sources.insert(0, of_rest(spark, target, journal, start=start, end=end, streams=wanted, gaps=gaps))
    found = sources[0] if len(sources) == 1 else sources[0].unionByName(sources[1])
    if wanted is None:
        found = found.where("stream not like '.%'")
    return found


def of_rest(
    spark: SparkSession,
    lake: Lake | None,
    journal: str,
    *,
    start: str | None = None,
    end: str | None = None,
    streams: Sequence[str] | None = None,
    gaps: str = "error",
) -> DataFrame:
    """Return the records of a journal that a lake does not have yet."""
    from fyrehose.spark.lake import beyond

    _, begin, server = beyond(lake, journal)
    options = {name: value for name, value in (("start", start), ("end", end)) if value is not None}
    return _with_hours(lake, of_journal(spark, journal, server, options, start=begin, streams=streams, gaps=gaps))


@attrs.define(eq=False)
class Views:
    """DataFrames of single streams, which share what is slow to get: the lists of files and the journal's end."""

    spark: SparkSession
    lake: Lake | None
    journal: str | None
    gaps: str
    _bases: dict[tuple[str, ...], DataFrame] = attrs.field(factory=dict, init=False)
    _end: DataFrame | None = attrs.field(default=None, init=False)

    def of(self, stream: str) -> DataFrame:
        """Return the records of one stream, as :func:`table` does."""
        from pyspark.sql import functions as f

        if self.lake is None or self.lake.store.remote:
            return table(self.spark, self.lake, self.journal, streams=[stream], gaps=self.gaps)
        files = self.lake.files(Selection(streams=frozenset([stream])))
        key = tuple(file.path for file in files)
        found = self._bases.get(key)
        if found is None:
            found = self._bases[key] = of_files(self.spark, self.lake, files)
        if self.journal is not None:
            if self._end is None:
                self._end = of_rest(self.spark, self.lake, self.journal, gaps=self.gaps)
            found = self._end.union(found)
        return found.where(f.col("stream") == stream)


def of_lake(spark: SparkSession, lake: Lake, chosen: Selection | None = None, server: str | None = None) -> DataFrame:
    """Return the selected records of the files that a lake's log names, at the version that ``lake`` has loaded.

    :param chosen: streams, and bounds by number and time; its patterns are not used

    :raises JournalCorrupt: a file is missing or was changed
    """
    from pyspark.sql import functions as f

    found = of_files(spark, lake, lake.files(chosen, server), chosen)
    if server is not None:
        found = found.where(f.col("server") == server)
    return found if chosen is None else _within(found, chosen)


def of_files(spark: SparkSession, lake: Lake, files: Sequence[File], chosen: Selection | None = None) -> DataFrame:
    """Return the records of files of a lake.

    :param chosen: a selection that the caller applies, too; row groups without its streams need not be read
    :raises JournalCorrupt: a file is missing or was changed
    """
    lake.check(files)
    if not files:
        return _with_hours(lake, spark.createDataFrame([], _schema()))
    if lake.store.remote:
        return _with_hours(lake, _of_store(spark, lake.store, files, chosen, lake.vectors()))
    return _of_directory(spark, lake, files)


def _schema(*more: pa.Field) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(pa.schema([*TABLE, *more]))


def _with_hours(lake: Lake | None, records: DataFrame) -> DataFrame:
    """Return *records* with the column ``hour``, if the lake has a partition for each hour."""
    from pyspark.sql import functions as f

    if lake is None or "hour" not in lake.partitions():
        return records
    return records.withColumn("hour", f.expr("unix_micros(time) div 3600000000 % 24"))


def _of_directory(spark: SparkSession, lake: Lake, files: Sequence[File]) -> DataFrame:
    """Return the records of files in a directory, which Spark itself reads, without deleted rows."""
    from pyspark.sql import DataFrame

    parts, directory, deleted = [], lake.store.directory, lake.vectors()
    schema = _schema(*(pa.field(name, pa.int64()) for name in lake.partitions() if name not in TABLE.names))
    for without in (False, True):
        some = [file.path for file in files if (file.path in deleted) == without]
        if some:
            reader = spark.read.schema(schema).option("basePath", str(directory))
            found = reader.option("datetimeRebaseMode", "CORRECTED").parquet(*(str(directory / path) for path in some))
            if without:
                found = _without(found, {path: deleted[path] for path in some}).select(*schema.names)
            parts.append(found)
    return reduce(DataFrame.union, parts)


def _without(records: DataFrame, deleted: Mapping[str, Any]) -> DataFrame:
    """Return *records* without the rows whose index in their file is among *deleted*."""
    from pyspark.sql import functions as f

    # The end of a path identifies a file of a lake, however Spark writes the beginning of the path.
    names = ["/".join(path.split("/")[-2:]) for path, rows in deleted.items() for _ in rows]
    indexes = pa.array(np.concatenate(list(deleted.values())), pa.int64())
    gone = records.sparkSession.createDataFrame(pa.table({"_name": names, "_row": indexes}))
    name = f.regexp_extract("_metadata.file_path", "([^/]+/[^/]+)$", 1)
    keyed = records.withColumns({"_name": name, "_row": f.col("_metadata.row_index")})
    return keyed.join(f.broadcast(gone), ["_name", "_row"], "left_anti")


def _of_store(
    spark: SparkSession,
    store: LakeStore,
    files: Sequence[File],
    chosen: Selection | None,
    deleted: Mapping[str, Any],
) -> DataFrame:
    """Return the records of files in an object store, which Python tasks read.

    Spark's own reader would need jars, and a separate configuration for the store.
    """
    from fyrehose.spark.fetching import fetch

    here = {file.path: deleted[file.path] for file in files if file.path in deleted}
    read = partial(fetch, store, [file.path for file in files], chosen, deleted=here)
    tasks = spark.range(0, len(files), 1, len(files))
    return tasks.mapInArrow(read, _schema())


def _within(records: DataFrame, chosen: Selection) -> DataFrame:
    """Return the records of the selected streams, within the selected numbers and times."""
    from pyspark.sql import Column
    from pyspark.sql import functions as f

    if chosen.streams is not None:
        records = records.where(f.col("stream").isin(sorted(chosen.streams)))
    for bounds, index, fits in ((chosen.start, 0, Column.__ge__), (chosen.end, 1, Column.__le__)):
        if bounds.time is not None:
            records = records.where(fits(f.col("time"), f.timestamp_micros(f.lit(bounds.time))))
        if bounds.seqs:
            limit = f.lit(min(chosen.seqs(EVERY)[index], _LARGEST))
            for stream in bounds.seqs.keys() - {EVERY}:
                limit = f.when(f.col("stream") == stream, min(chosen.seqs(stream)[index], _LARGEST)).otherwise(limit)
            records = records.where(fits(f.col("seq"), limit))
    return records


def of_journal(
    spark: SparkSession,
    journal: str,
    server: str,
    options: Mapping[str, str] | None = None,
    *,
    start: int | Offset | None = None,
    stop: int | None = None,
    streams: Sequence[str] | None = None,
    gaps: str = "error",
) -> DataFrame:
    """Return the records of a journal between two positions, with the name of its server.

    :param options: further options of the data source
    :param start: an offset; if it belongs to another journal, reading the records fails
    """
    from pyspark.sql import functions as f

    reader = spark.read.format("fyrehose").option("gaps", gaps).options(**(options or {}))
    if start is not None:
        reader = reader.option("startPosition", json.dumps(start.fields) if isinstance(start, Offset) else start)
    if stop is not None:
        reader = reader.option("endPosition", stop)
    if streams is not None:
        reader = reader.option("streams", json.dumps(streams))
    found = reader.load(journal).withColumns({"server": f.lit(server), "date": day("time")}).select(*TABLE.names)
    # A star in the name of a stream is a wildcard in a pattern, so further streams may match.
    return found.where(f.col("stream").isin(list(streams))) if streams and "*" in "".join(streams) else found


def day(time: str) -> Column:
    """Return a column with the day in UTC of the column ``time``, independent of the session's time zone."""
    from pyspark.sql import functions as f

    return f.expr(f"date_from_unix_date(cast(unix_micros(`{time}`) div 86400000000 as int))")
