"""``dedup``: records that are in a stream twice, because whoever sent them heard no answer and sent them again.

At least once means that this happens; nothing is lost by it, and here it is found.  Two records are the same message if
their stream, their source, the host of their producer, the producer's own number and event id, and their payload are
the same, and the second was accepted within ``within`` of the first.  The host counts and not the port, because who
sends again has reconnected; the payload counts, because some protocols number from 1 again.  What comes by the same
connection (the same port) is no double, unless an id says so: a log may have equal lines, and lumberjack numbers each
window from 1.

What has neither a number nor an id of its producer cannot be told from a message that happens to say the same: it is
never called a double.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: How long after the first a double is looked for: no client tries again for longer.
WITHIN = "10 minutes"


def doubles(records: DataFrame, within: str = WITHIN) -> DataFrame:
    """The doubles among ``records``: stream, seq, and the number of the first that says the same (``first_seq``)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    same = Window.partitionBy("stream", "source", "who", "producer_seq", "event_id", "size", "digest").orderBy("seq")
    keyed = records.where("producer_seq is not null or event_id is not null").select(
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
    # Each is compared with the one before it: of a chain of resends every one but the first is a double.
    late = f.col("time") > f.lag("time").over(same) + f.expr(f"interval {within}")
    port_known = f.col("who") != f.col("producer")
    repeated = f.col("event_id").isNull() & port_known & (f.lag("producer").over(same) == f.col("producer"))
    begins = f.when(f.lag("seq").over(same).isNull() | late | f.coalesce(repeated, f.lit(False)), f.col("seq"))
    found = keyed.withColumn("first_seq", f.last(begins, ignorenulls=True).over(same))
    return found.where("first_seq <> seq").select("stream", "seq", "first_seq", "time", "source", "producer")


def without_doubles(records: DataFrame, within: str = WITHIN) -> DataFrame:
    """``records`` but for the doubles among them: for tables."""
    return records.join(doubles(records, within).select("stream", "seq"), ["stream", "seq"], "left_anti")


def without_doubles_live(records: DataFrame, within: str = WITHIN) -> DataFrame:
    """The same for streams: what was seen is remembered for ``within``.

    It does not tell connections of one host apart, so it also leaves out what a host says twice under one number: for
    lumberjack, whose windows are numbered from 1, only where no two events are alike (Beats have the time in them).
    """
    from pyspark.sql import functions as f

    with_keys = records.withColumns({"_who": who(), "_digest": f.xxhash64("payload")}).withWatermark("time", within)
    # Without a number or an id of the producer a record is only the same as itself.
    with_keys = with_keys.withColumn(
        "_itself", f.when(f.expr("producer_seq is null and event_id is null"), f.col("seq"))
    )
    keys = ["stream", "source", "_who", "producer_seq", "event_id", "_digest", "_itself"]
    return with_keys.dropDuplicatesWithinWatermark(keys).drop("_who", "_digest", "_itself")


def who() -> Column:
    """The producer without its port."""
    from pyspark.sql import functions as f

    return f.regexp_replace(f.col("producer"), r":\d{1,5}$", "")
