"""``verify``: compare a lake with its journal, column by column.

Both sides are counted in blocks of numbers, with a checksum over every column of every record; blocks that differ are
told with their stream and their numbers.  Only what both have can be compared: numbers that retention has deleted are
counted as unchecked.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from fyrehose.journal.offline.places import place
from fyrehose.spark import tables
from fyrehose.spark.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: How many numbers are a block.
BLOCK = 1 << 16


@attrs.frozen(slots=True, kw_only=True)
class Difference:
    """A block of numbers that differs, with the number of its records on each side."""

    stream: str
    first: int
    last: int
    in_lake: int
    in_journal: int


@attrs.frozen(slots=True, kw_only=True)
class Verified:
    """Result of a comparison.

    :ivar checked: records that both have, in the same way
    :ivar unchecked: records that only the lake has, because the journal does not keep them any more
    """

    checked: int
    unchecked: int
    differences: tuple[Difference, ...]


def verify(spark: SparkSession, journal: str, lake: str | Path) -> Verified:
    """Compare the records that both the lake and the journal have.

    :raises JournalCorrupt: the journal is damaged
    """
    target = Lake.existing(lake)
    commits = target.commits()
    if not commits:
        return Verified(checked=0, unchecked=0, differences=())
    # The lake's rounds from the oldest on that the journal has whole.
    kept = place(journal).view().start
    both = [commit for commit in commits if commit.start >= kept]
    only_lake = sum(commit.rows for commit in commits if commit.start < kept)
    if not both:
        return Verified(checked=0, unchecked=only_lake, differences=())
    ours = _blocks(tables.of_lake(spark, target, both))
    theirs = _blocks(tables.of_journal(spark, journal, start=both[0].start, stop=both[-1].end, gaps="skip"))
    joined = ours.alias("l").join(theirs.alias("j"), ["stream", "block"], "full_outer")
    checked, differences = 0, []
    for row in joined.selectExpr("stream", "block", "l.rows", "l.sum", "j.rows", "j.sum").toLocalIterator():
        stream, block, in_lake, lake_sum, in_journal, journal_sum = row
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
    return Verified(checked=checked, unchecked=only_lake, differences=tuple(differences))


def _blocks(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    # Nulls are no values to a hash, so which columns are null is one more.
    nulls = f.concat(*(f.col(name).isNull().cast("int").cast("string") for name in tables.COLUMNS))
    digest = f.xxhash64(*tables.COLUMNS, nulls)
    # A sum, because two equal records would cancel each other out of an exclusive or; without overflow.
    return records.groupBy("stream", f.expr(f"seq div {BLOCK}").alias("block")).agg(
        f.count("*").alias("rows"), f.sum(digest.cast("decimal(20,0)")).alias("sum")
    )
