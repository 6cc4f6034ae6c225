"""``replay``: publish records of a table again to a running server, in order and at a limited rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def replay(records: DataFrame, to: str, stream: str | None = None, rate: float = 0.0) -> int:
    """Publish ``records`` to the Figg listener at ``to``; return how many, all of which are durable.

    They keep their order within each stream.  They are new records there: with numbers, times and a producer of their
    own.  If you run it twice, the stream has them twice: repetitions are recognized, by
    their numbers, only within one run.

    :param stream: where to; None: each into the stream that it came from, but for the server's own, whose names begin
        with a dot: they are about that server, and no listener takes them
    :param rate: records a second at the most; 0: as fast as they are taken
    :raises PublishError: the server is not there, or refuses
    """
    if stream is None:
        records = records.where("stream not like '.%'")
    chosen = records.select("stream", "seq", "payload")
    # Each stream is published by one task, so that its records arrive in their order; a rate is that of one task.
    chosen = chosen.coalesce(1) if rate else chosen.repartition("stream")
    chosen = chosen.sortWithinPartitions("stream", "seq").cache()
    try:
        count = chosen.count()
        writer = (
            chosen.select("stream", "payload")
            .write.format("fyrehose")
            .mode("append")
            .option("to", to)
            .option("rate", str(rate))
        )
        if stream is not None:
            writer = writer.option("stream", stream)
        writer.save()
    finally:
        chosen.unpersist()
    return count
