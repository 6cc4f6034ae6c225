"""The sink ``fyrehose``: ``df.write.format("fyrehose")`` and ``df.writeStream.format("fyrehose")``.

    to        HOST:PORT of a server's Figg listener
    stream    stream to publish to; by default, the column ``stream`` of each row
    rate      most rows a second, for each task

The column ``payload`` (binary or string) is published.  A task ends when the server has acknowledged all of its rows,
so a committed job or micro-batch is durable.  Delivery is at least once: a task that runs again publishes again, with
the same numbers, so that ``dedup`` finds the duplicates.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from math import inf

import attrs
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from fyrehose.errors import ConfigError, PublishError
from fyrehose.options import suggestion
from fyrehose.spark.publisher import SparkPublisher, parse_place

#: Layout of a message's number: 20 bits for the job or micro-batch, 16 for the partition, 27 for the row.
_PARTITION, _ROW = 16, 27


#: The options of the sink, and those that Spark passes to every sink.
OPTIONS = ("to", "stream", "rate", "path", "checkpointLocation", "queryName")


def refuse_unknown(options: Mapping[str, str], known: Sequence[str], what: str) -> None:
    """Check the names of options; Spark does not distinguish upper and lower case in them.

    :raises ConfigError: an option does not exist
    """
    names = {name.lower() for name in known}
    for option in options:
        if option.lower() not in names:
            advice = suggestion(option, known) or f"; available options: {', '.join(known)}"
            raise ConfigError(f"unknown option {option!r} of the {what} fyrehose{advice}")


@attrs.frozen
class SinkTarget:
    """Parsed options of the sink."""

    host: str
    port: int
    stream: str | None
    rate: float

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType) -> SinkTarget:
        """Parse the options, and check the columns of the rows.

        :raises ConfigError: an option is invalid, or a column is missing
        """
        refuse_unknown(options, OPTIONS, "sink")
        host, port = parse_place(options.get("to", ""))
        types = {field.name: field.dataType for field in schema.fields}
        if not isinstance(types.get("payload"), BinaryType | StringType):
            raise ConfigError("no column payload of type binary or string; select one under this name")
        stream = options.get("stream")
        if stream is None and not isinstance(types.get("stream"), StringType):
            raise ConfigError("no stream to publish to: pass .option('stream', NAME), or select a column stream")
        try:
            rate = float(options.get("rate", "0"))
        except ValueError:
            rate = -1.0
        if not 0 <= rate < inf:
            raise ConfigError(f"invalid option rate {options['rate']!r}: expected rows a second, or 0 for no limit")
        return cls(host, port, stream, rate)


@attrs.frozen
class PublishedRows(WriterCommitMessage):
    """Number of rows that a task published; all are durable."""

    rows: int


class BatchWriter(DataSourceArrowWriter):
    """Publishes the rows of a table."""

    def __init__(self, target: SinkTarget) -> None:
        self.target = target
        self.run = uuid.uuid4().int  # Identifies the job; a task that runs again has the same one.

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return published(self.target, self.run, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Publishes the rows of each micro-batch."""

    def __init__(self, target: SinkTarget) -> None:
        self.target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        # A micro-batch that runs again after a crash has the same rows, and gets the same numbers.
        names = "sql.streaming.queryId", "streaming.sql.batchId"
        batch = " ".join(context.getLocalProperty(name) or "" for name in names)
        return published(self.target, zlib.crc32(batch.encode()), iterator)


def published(target: SinkTarget, run: int, batches: Iterator[pa.RecordBatch]) -> PublishedRows:
    """Publish the rows of a task, and return when all are acknowledged.

    :param run: identifies the job or the micro-batch
    :raises PublishError: the server cannot be reached or refuses, or a payload is null
    """
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    publisher = SparkPublisher(target.host, target.port, first_number(run, partition), target.rate)
    rows = 0
    try:
        for batch in batches:
            payloads = batch.column("payload").cast(pa.binary())
            streams: Sequence[str | None] = (
                [target.stream] * batch.num_rows if target.stream is not None else batch.column("stream").to_pylist()
            )
            if payloads.null_count:
                raise PublishError("a payload is null; leave such rows out: .where('payload is not null')")
            for stream, payload in zip(streams, payloads, strict=True):
                publisher.publish(stream or "", payload.as_buffer())
            rows += batch.num_rows
        publisher.flush()
    finally:
        publisher.close()
    return PublishedRows(rows)


def first_number(run: int, partition: int) -> int:
    """Return the number of a partition's first message; numbers of different jobs and partitions rarely overlap."""
    return (run & 0xFFFFF) << (_PARTITION + _ROW) | (partition & 0xFFFF) << _ROW | 1
