"""``replay``: publish records of a table again to a running server, in order and at a limited rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def replay(records: DataFrame, to: str, stream: str | None = None, rate: float = 0.0) -> int:
    """Publish ``records`` to the Figg listener at ``to``; return their number when all are durable.

    The records keep their order within each stream, but are new records on that server, with other numbers and times,
    and another producer. A second run publishes them a second time: repetitions are recognized only within one run, by
    their numbers.

    :param stream: the stream to publish to; None: each record goes to the stream that it came from, except records of
        streams whose names begin with a dot, because these are about the server itself, and no listener accepts them
    :param rate: the limit of records a second; 0: as fast as the server accepts them
    :raises PublishError: the server cannot be reached, or refuses
    """
    if stream is None:
        records = records.where("stream not like '.%'")
    chosen = records.select("stream", "seq", "payload")
    # Each stream is published by one task, so that its records stay in order; with a rate, one task publishes all
    # streams.
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
