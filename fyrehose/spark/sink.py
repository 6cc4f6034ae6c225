"""The sink ``fyrehose``: ``df.write.format("fyrehose")`` and ``df.writeStream.format("fyrehose")``.

    to        HOST:PORT of a server's Figg listener
    stream    where to; or a column ``stream`` says so for each row
    rate      rows a second at the most, of each task

The rows' column ``payload`` (binary or string) is what is published.  A task ends when the server has acknowledged all
of its rows, so a job or a micro-batch that is committed is durable.  At least once: a task that is run again publishes
again, with the same numbers, so that ``dedup`` finds it.
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
from fyrehose.spark.publisher import Publisher, parse_place

#: The number of a message: 20 bits for the job or micro-batch, 16 for the partition, 27 for the row.
_PARTITION, _ROW = 16, 27


@attrs.frozen
class Target:
    """Where rows go: the options of the sink, understood."""

    host: str
    port: int
    stream: str | None
    rate: float

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType) -> Target:
        """
        :raises ConfigError: an option is wrong, or a column is missing
        """
        host, port = parse_place(options.get("to", ""))
        types = {field.name: field.dataType for field in schema.fields}
        if not isinstance(types.get("payload"), BinaryType | StringType):
            raise ConfigError("what is published is the column payload, binary or string; select it, or name one so")
        stream = options.get("stream")
        if stream is None and not isinstance(types.get("stream"), StringType):
            raise ConfigError(".option('stream', NAME) says where to, or a column stream does")
        try:
            rate = float(options.get("rate", "0"))
        except ValueError:
            rate = -1.0
        if not 0 <= rate < inf:
            raise ConfigError(f"rate is {options['rate']!r}, and should be rows a second; 0: as fast as they are taken")
        return cls(host, port, stream, rate)


@attrs.frozen
class Published(WriterCommitMessage):
    """What a task published, all of it durable."""

    rows: int


class BatchWriter(DataSourceArrowWriter):
    """Publishes the rows of a table."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.run = uuid.uuid4().int  # of the job: a task that is run again has the same

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return published(self.target, self.run, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Publishes the rows of each micro-batch."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "a task writes"
        # A micro-batch that is run again after a crash has the same rows, and gets the same numbers.
        names = "sql.streaming.queryId", "streaming.sql.batchId"
        which = " ".join(context.getLocalProperty(name) or "" for name in names)
        return published(self.target, zlib.crc32(which.encode()), iterator)


def published(target: Target, run: int, batches: Iterator[pa.RecordBatch]) -> Published:
    """Publish a task's rows; returns when all are acknowledged.

    :raises PublishError: the server is not there, or refuses
    """
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    publisher = Publisher(target.host, target.port, first_number(run, partition), target.rate)
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
    return Published(rows)


def first_number(run: int, partition: int) -> int:
    """The number of the first message of a partition; those of different jobs and partitions hardly ever meet."""
    return (run & 0xFFFFF) << (_PARTITION + _ROW) | (partition & 0xFFFF) << _ROW | 1
