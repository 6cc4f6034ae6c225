"""``dedup``: find duplicate records, which a producer sent again because it received no acknowledgement.

Two records are duplicates if their server, stream, source, producer's host, producer_seq, event_id and payload are
equal, and the second was accepted within ``within`` of the first.  The producer's port is ignored, because a producer
that sends again has reconnected; the payload is compared, because some protocols start again from 1.  Records of one
connection (the same port) are not duplicates unless they have the same event_id: a log may have equal lines, and
lumberjack numbers each window from 1.

A record without producer_seq and event_id is never a duplicate, because two messages may have the same payload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Longest time between duplicates; no client retries for longer.
WITHIN = "10 minutes"


def doubles(records: DataFrame, within: str = WITHIN) -> DataFrame:
    """Return the duplicates among ``records``: their stream and seq, and the seq of the original as ``first_seq``."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    same = Window.partitionBy(
        "server", "stream", "source", "who", "producer_seq", "event_id", "size", "digest"
    ).orderBy("seq")
    keyed = records.where("producer_seq is not null or event_id is not null").select(
        "server",
        "stream",
        "seq",
        "time",
        "source",
        who().alias("who"),
        "producer",
        "producer_seq",
        "event_id",
        f.length("payload").alias("size"),
        f.xxhash64("payload").alias("digest"),
    )
    # Each record is compared with the previous one, so that all copies except the first are duplicates.
    late = f.col("time") > f.lag("time").over(same) + f.expr(f"interval {within}")
    port_known = f.col("who") != f.col("producer")
    repeated = f.col("event_id").isNull() & port_known & (f.lag("producer").over(same) == f.col("producer"))
    begins = f.when(f.lag("seq").over(same).isNull() | late | f.coalesce(repeated, f.lit(False)), f.col("seq"))
    found = keyed.withColumn("first_seq", f.last(begins, ignorenulls=True).over(same))
    return found.where("first_seq <> seq").select("server", "stream", "seq", "first_seq", "time", "source", "producer")


def without_doubles(records: DataFrame, within: str = WITHIN) -> DataFrame:
    """Return ``records`` without duplicates, for a batch DataFrame."""
    key = ["server", "stream", "seq"]
    return records.join(doubles(records, within).select(*key), key, "left_anti")


def without_doubles_live(records: DataFrame, within: str = WITHIN) -> DataFrame:
    """Return ``records`` without duplicates, for a streaming DataFrame; Spark keeps the keys for ``within``.

    This function does not distinguish the connections of a host, and so also drops equal events with equal numbers of
    several connections.  Lumberjack numbers each window from 1: use the function for Lumberjack only if no two events
    are equal (events of Beats have a time).
    """
    from pyspark.sql import functions as f

    with_keys = records.withColumns({"_who": who(), "_digest": f.xxhash64("payload")}).withWatermark("time", within)
    # A record without producer_seq and event_id is equal only to itself.
    with_keys = with_keys.withColumn(
        "_itself", f.when(f.expr("producer_seq is null and event_id is null"), f.col("seq"))
    )
    keys = ["stream", "source", "_who", "producer_seq", "event_id", "_digest", "_itself"]
    return with_keys.dropDuplicatesWithinWatermark(keys).drop("_who", "_digest", "_itself")


def who() -> Column:
    """Return a column with the producer's host, without the port."""
    from pyspark.sql import functions as f

    return f.regexp_replace(f.col("producer"), r":\d{1,5}$", "")
