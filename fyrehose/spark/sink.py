"""The sink ``fyrehose``: ``df.write.format("fyrehose")`` and ``df.writeStream.format("fyrehose")``.

    to           HOST:PORT of a server's Figg listener; with exactlyOnce http://HOST:PORT of its HTTP listener
    stream       stream to publish to; by default, the column ``stream`` of each row
    rate         limit of rows a second, for each task
    exactlyOnce  ``true``: a task that runs again publishes nothing twice (spark/keyed.py)
    id           with exactlyOnce in a batch job: identifies the job, also when it is run again
    tokenFile    with exactlyOnce: a file with a token, if the server's access policy requires one

The column ``payload`` (binary or string) is published.  A task ends when the server has acknowledged all of its rows,
so a committed job or micro-batch is durable.  Without exactlyOnce, delivery is at least once: a task that runs again
publishes again, with the same numbers, so that ``dedup`` finds the duplicates.
"""

from __future__ import annotations

import re
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
from fyrehose.spark.keyed import KeyedPublisher, parse_url
from fyrehose.spark.publisher import SparkPublisher, parse_place
from fyrehose.web.tokens import read_token

#: Layout of a message's number: 20 bits for the job or micro-batch, 16 for the partition, 27 for the row.
_PARTITION, _ROW = 16, 27


#: The options of the sink, and those that Spark passes to every sink.
OPTIONS = (
    *("to", "stream", "rate", "exactlyOnce", "id", "tokenFile"),
    *("path", "checkpointLocation", "queryName"),
)
#: The ids that a batch job may have; they are restricted because the id becomes a part of keys.
_ID = re.compile(r"[A-Za-z0-9._:@+=-]{1,128}")


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
    """Parsed options of the sink.

    :ivar to: (host, port) of a Figg listener; for exactly-once delivery, the URL of an HTTP listener
    :ivar job: the id of a batch job with exactly-once delivery
    """

    to: tuple[str, int] | str
    stream: str | None
    rate: float
    job: str | None = None
    token: str | None = attrs.field(default=None, repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType, *, streaming: bool = False) -> SinkTarget:
        """Parse the options, and check the columns of the rows.

        :param streaming: whether the rows come in micro-batches
        :raises ConfigError: an option is invalid, or a column is missing
        """
        refuse_unknown(options, OPTIONS, "sink")
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
        if not _exactly_once(options):
            return cls(parse_place(options.get("to", "")), stream, rate)
        url, token = parse_url(options.get("to", "")), read_token(options.get("tokenFile", ""), "the token file")
        return cls(url, stream, rate, _job(options, streaming), token)

    def publisher(self, key: str, run: int, partition: int) -> SparkPublisher | KeyedPublisher:
        """Return the publisher of a task.

        :param key: identifies the job or the micro-batch for ever
        :param run: the number of the job or the micro-batch, for publishers without keys
        """
        if isinstance(self.to, str):
            return KeyedPublisher(self.to, f"spark/{key}/{partition}", self.token, self.rate)
        host, port = self.to
        return SparkPublisher(host, port, first_number(run, partition), self.rate)


def _exactly_once(options: Mapping[str, str]) -> bool:
    """Return whether the option exactlyOnce is set.

    :raises ConfigError: an option is invalid, or needs exactlyOnce
    """
    value = options.get("exactlyOnce", "false").lower()
    if value not in ("true", "false"):
        raise ConfigError(f"invalid option exactlyOnce {options['exactlyOnce']!r}: expected true or false")
    if value == "false":
        for name in ("id", "tokenFile"):
            if name in options:
                raise ConfigError(f"the option {name} needs exactlyOnce: add .option('exactlyOnce', 'true')")
    return value == "true"


def _job(options: Mapping[str, str], streaming: bool) -> str | None:
    """Return the id of a batch job; None for a stream, which is identified by its query.

    :raises ConfigError: the id is missing or invalid, or is given for a stream
    """
    job = options.get("id")
    if streaming:
        if job is not None:
            raise ConfigError("the option id is for batch jobs; a stream is identified by its checkpoint")
        return None
    if job is None:
        raise ConfigError(
            "exactlyOnce needs an id, by which a batch job is known when it runs again: .option('id', "
            "'orders-2026-01-31'); give each job another one"
        )
    if not _ID.fullmatch(job):
        raise ConfigError(f"invalid option id {job[:80]!r}: expected 1 to 128 letters, digits, or any of ._:@+=-")
    return job


class BatchWriter(DataSourceArrowWriter):
    """A writer that publishes the rows of a batch DataFrame."""

    def __init__(self, target: SinkTarget) -> None:
        self.target = target
        self.run = uuid.uuid4().int  # identifies the job; a task that runs again has the same number

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return published(self.target, f"batch/{self.target.job}", self.run, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """A writer that publishes the rows of each micro-batch."""

    def __init__(self, target: SinkTarget) -> None:
        self.target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of one task; a micro-batch that runs again publishes none of them twice.

        :raises PublishError: Spark does not name the query and the micro-batch
        """
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        # A micro-batch that runs again after a crash has the same rows, and gets the same numbers and keys.
        names = "sql.streaming.queryId", "streaming.sql.batchId"
        query, batch = (context.getLocalProperty(name) or "" for name in names)
        if not (query and batch):
            raise PublishError("Spark does not say which query and micro-batch a task belongs to; use another version")
        return published(self.target, f"{query}/{batch}", zlib.crc32(f"{query} {batch}".encode()), iterator)


def published(target: SinkTarget, key: str, run: int, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    """Publish the rows of a task, and return when all are acknowledged.

    :param key, run: identify the job or the micro-batch
    :raises PublishError: the server cannot be reached or refuses, or a payload is null
    """
    context = TaskContext.get()
    publisher = target.publisher(key, run, context.partitionId() if context is not None else 0)
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
        publisher.flush()
    finally:
        publisher.close()
    return WriterCommitMessage()


def first_number(run: int, partition: int) -> int:
    """Return the number of a partition's first message; numbers of different jobs and partitions rarely overlap."""
    return (run & 0xFFFFF) << (_PARTITION + _ROW) | (partition & 0xFFFF) << _ROW | 1
