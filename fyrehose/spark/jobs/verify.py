"""``verify``: compare the records of a lake with those of its journal, column by column, and check the lake's files.

The records of both are counted in blocks of numbers, with a checksum over every column of every record; blocks that
differ are reported with their stream and their numbers.  Only records that both have can be compared; records that
retention has deleted are counted as unchecked.  The checksums of the pages in Parquet files are verified, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from pyarrow import ArrowException, parquet

from fyrehose.errors import JournalCorrupt
from fyrehose.offline.places import place
from fyrehose.spark import tables
from fyrehose.spark.columns import TABLE
from fyrehose.spark.lake import Lake
from fyrehose.spark.stores import LakeStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

#: The number of seqs in a block.
BLOCK = 1 << 16
#: Matches the name of the file in Spark's error about an unreadable file.
_UNREADABLE = re.compile(r"FAILED_READ_FILE\S* .*?file:?/*(/\S+\.parquet)")
_COPY = "put it back from a copy, or archive into a new lake"


@attrs.frozen(slots=True, kw_only=True)
class Difference:
    """A block of numbers whose records differ, with the number of records in the lake and in the journal."""

    stream: str
    first: int
    last: int
    in_lake: int
    in_journal: int


@attrs.frozen(slots=True, kw_only=True)
class Verified:
    """Result of a comparison.

    :ivar checked: number of records that are equal on both sides
    :ivar unchecked: records that only the lake has, because the journal does not keep them any more
    """

    checked: int
    unchecked: int
    differences: tuple[Difference, ...]


def verify(spark: SparkSession, journal: str, lake: str | Path) -> Verified:
    """Compare the records that both the lake and the journal have, and check every file of the lake.

    :raises JournalCorrupt: the journal is damaged, or a file of the lake is damaged, missing or changed
    """
    from pyspark.sql import functions as f

    target, view = Lake.existing(lake), place(journal).view()
    known = target.progress(view.identity)
    files = target.files()
    if files:
        target.check(files)
        paths = [file.path for file in files]
        look = partial(damage_of, target.store)
        damaged = spark.sparkContext.parallelize(paths, len(paths)).map(look).filter(bool).collect()
        if damaged:
            raise JournalCorrupt(f"{damaged[0]}; {_COPY}")
    if known is None:
        return Verified(checked=0, unchecked=0, differences=())
    # The range to compare depends on the positions of the journal and of the lake, not on the lake's records.
    stop = max(known.position, view.start)
    server = target.server_of(view.identity)
    theirs = tables.of_journal(spark, journal, server, start=view.start, stop=stop, gaps="skip")
    ours = tables.of_lake(spark, target, server=server)
    kept = theirs.groupBy("stream").agg(f.min("seq").alias("kept"))
    both = ours.join(f.broadcast(kept), "stream").where("seq >= kept").drop("kept")
    joined = _blocks(both).alias("l").join(_blocks(theirs).alias("j"), ["stream", "block"], "full_outer")
    checked, in_both, differences = 0, 0, []
    compared = joined.selectExpr("stream", "block", "l.rows", "l.sum", "j.rows", "j.sum")
    for row in _rows(compared):
        stream, block, in_lake, lake_sum, in_journal, journal_sum = row
        in_both += in_lake or 0
        if (in_lake, lake_sum) == (in_journal, journal_sum):
            checked += in_lake
        else:
            first = block * BLOCK
            differences.append(
                Difference(
                    stream=stream,
                    first=first,
                    last=first + BLOCK - 1,
                    in_lake=in_lake or 0,
                    in_journal=in_journal or 0,
                )
            )
    differences.sort(key=lambda one: (one.stream, one.first))
    return Verified(checked=checked, unchecked=ours.count() - in_both, differences=tuple(differences))


def damage_of(store: LakeStore, path: str) -> str | None:
    """Return the damage of a Parquet file of a lake, found by the checksums of its pages; None if there is none.

    :raises JournalError: the object store cannot be reached
    """
    try:
        with (
            store.explained(),
            store.files().open_input_file(path) as opened,
            parquet.ParquetFile(opened, page_checksum_verification=True) as file,
        ):
            for _ in file.iter_batches(columns=None):
                pass
    except (OSError, ArrowException) as error:
        return f"{store.below(path)} is damaged: {str(error).splitlines()[0]}"
    return None


def _rows(frame: DataFrame) -> Iterator[Row]:
    """Return the rows of *frame*.

    :raises JournalCorrupt: Spark cannot read a file, although the checksums of its pages are right: they do not cover
        the headers of the pages
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        yield from frame.toLocalIterator()
    except Py4JJavaError as error:
        found = _UNREADABLE.search(str(error))
        if found is None:
            raise
        raise JournalCorrupt(f"{found[1]} is damaged: {_COPY}") from error


def _blocks(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    # Hashes skip nulls, so a mask of the null columns is hashed as one more value.
    nulls = f.concat(*(f.col(name).isNull().cast("int").cast("string") for name in TABLE.names))
    digest = f.xxhash64(*TABLE.names, nulls)
    # Add the hashes, without overflow, because with an exclusive or, two equal records would cancel each other out.
    return records.groupBy("stream", f.expr(f"seq div {BLOCK}").alias("block")).agg(
        f.count("*").alias("rows"), f.sum(digest.cast("decimal(20,0)")).alias("sum")
    )
