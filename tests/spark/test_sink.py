"""The sink: what is committed is durable, in the stream that was named (the wire: test_publisher.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from fyrehose.errors import ConfigError
from fyrehose.spark.failures import own_error
from fyrehose.spark.sink import SinkTarget, first_number
from tests.verification.torture.plain_reader import records

Opener = Callable[..., Any]


def schema(text: str) -> StructType:
    made = StructType()
    for column in text.split(", "):
        made.add(*column.split())
    return made


def test_options_of_the_sink_are_parsed() -> None:
    assert SinkTarget.of({"to": "h:1", "stream": "s"}, schema("payload binary")) == SinkTarget(("h", 1), "s", 0.0)
    assert SinkTarget.of({"to": "h:1", "rate": "5"}, schema("payload string, stream string")) == SinkTarget(
        ("h", 1), None, 5.0
    )
    for options, columns in (
        ({"stream": "s"}, "payload binary"),
        ({"to": "h:1", "stream": "s", "rates": "5"}, "payload binary"),
        ({"to": "h:1"}, "payload binary"),
        ({"to": "h:1", "stream": "s"}, "value binary"),
        ({"to": "h:1", "stream": "s"}, "payload integer"),
        ({"to": "h:1", "stream": "s", "rate": "fast"}, "payload binary"),
        ({"to": "h:1", "stream": "s", "rate": "-1"}, "payload binary"),
        ({"to": "h:1", "stream": "s", "rate": "nan"}, "payload binary"),
    ):
        with pytest.raises(ConfigError):
            SinkTarget.of(options, schema(columns))


ONCE = {"to": "http://h:1", "stream": "s", "exactlyOnce": "true"}


def test_options_of_exactly_once_are_checked(tmp_path: Path) -> None:
    payload, token = schema("payload binary"), tmp_path / "token"
    token.write_text("x" * 20)
    target = SinkTarget.of(ONCE | {"id": "a-1", "tokenFile": str(token)}, payload)
    assert target == SinkTarget("http://h:1", "s", 0.0, "a-1", "x" * 20)
    assert "xxx" not in repr(target)
    assert SinkTarget.of(ONCE, payload, streaming=True) == SinkTarget("http://h:1", "s", 0.0)
    for options, streaming, error in (
        (ONCE, False, "exactlyOnce needs an id"),
        (ONCE | {"id": "a/b"}, False, "invalid option id 'a/b'"),
        (ONCE | {"id": "x" * 129}, False, "invalid option id"),
        (ONCE | {"id": "a"}, True, "the option id is for batch jobs"),
        (ONCE | {"to": "h:1", "id": "a"}, False, r"exactlyOnce publishes by HTTP, expected http://HOST:PORT"),
        (ONCE | {"exactlyOnce": "yes"}, True, "invalid option exactlyOnce 'yes': expected true or false"),
        ({"to": "h:1", "stream": "s", "id": "a"}, False, "the option id needs exactlyOnce"),
        (ONCE | {"exactlyOnce": "false", "tokenFile": "x"}, False, "the option tokenFile needs exactlyOnce"),
        ({"to": "http://h:1", "stream": "s"}, True, "of a Figg listener"),
        (ONCE | {"tokenFile": str(tmp_path / "none")}, True, "cannot read the token file"),
    ):
        with pytest.raises(ConfigError, match=error):
            SinkTarget.of(options, payload, streaming=streaming)


def test_numbers_of_partitions_do_not_overlap() -> None:
    numbers = {first_number(run, partition) for run in range(40) for partition in range(40)}
    assert len(numbers) == 1600
    assert max(numbers) < 1 << 63
    assert first_number(1 << 127, 1 << 40) == 1


@pytest.mark.slow
@pytest.mark.live
def test_a_table_is_published(spark: Any, server: tuple[str, Path]) -> None:
    to, journal = server
    frame = spark.range(1000).selectExpr("concat('s', id % 2) stream", "concat('row ', id) payload").repartition(2)
    frame.write.format("fyrehose").mode("append").option("to", to).save()
    found = spark.read.format("fyrehose").load(str(journal))
    assert sorted((row.stream, bytes(row.payload).decode()) for row in found.collect()) == sorted(
        map(tuple, frame.collect())
    )
    numbers = found.select("producer_seq").distinct().count()
    assert numbers == 1000, "each row has a number of its own, by which a double can be told"
    with pytest.raises(PySparkException) as raised:
        frame.selectExpr("stream", "cast(null as binary) payload").write.format("fyrehose").mode("append").option(
            "to", to
        ).save()
    assert "a payload is null" in str(own_error(raised.value))
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        frame.write.format("fyrehose").mode("overwrite").option("to", to).save()


@pytest.mark.slow
@pytest.mark.live
def test_a_stream_is_published(spark: Any, server: tuple[str, Path], written: Opener, tmp_path: Path) -> None:
    to, target = server
    journal = written()
    journal.fill(60, size=20)
    query = (
        spark.readStream.format("fyrehose")
        .option("maxRowsPerBatch", "80")
        .load(str(journal.directory))
        .writeStream.format("fyrehose")
        .options(to=to, stream="copy", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = spark.read.format("fyrehose").option("streams", "copy").load(str(target)).collect()
    assert sorted(bytes(row.payload) for row in found) == sorted(record.payload for record in journal.records)
    assert sorted(row.seq for row in found) == list(range(1, len(found) + 1))


def records_of(journal: Path, stream: str) -> list[bytes]:
    """Return the payloads of a stream by a reader that is not the package's."""
    return [record.payload for record in records(journal) if record.stream == stream]


@pytest.mark.slow
@pytest.mark.live
def test_batch_job_that_runs_again_publishes_nothing_twice(spark: Any, http_server: tuple[str, Path]) -> None:
    url, journal = http_server
    frame = spark.range(0, 3000, 1, 3).selectExpr("concat('s', id % 2) stream", "concat('row\n', id) payload")
    once = {"to": url, "exactlyOnce": "true", "id": "job"}

    def save(rows: Any, **options: str) -> None:
        rows.write.format("fyrehose").mode("append").options(**(once | options)).save()

    expected = [sorted(b"row\n%d" % n for n in range(3000) if n % 2 == odd) for odd in (0, 1)]
    for _ in range(2):
        save(frame)
        assert [sorted(records_of(journal, f"s{odd}")) for odd in (0, 1)] == expected
    with pytest.raises(PySparkException) as raised:
        save(spark.range(0, 3000, 1, 3).selectExpr("'s0' stream", "concat('other ', id) payload"))
    assert "exactlyOnce needs the same rows in the same order" in str(own_error(raised.value))
    assert sorted(records_of(journal, "s0")) == expected[0]
    save(frame, id="another")
    assert len(records_of(journal, "s0")) == 3000


@pytest.mark.slow
@pytest.mark.live
def test_micro_batches_that_run_again_publish_nothing_twice(
    spark: Any, http_server: tuple[str, Path], written: Opener, tmp_path: Path
) -> None:
    """The commit of the last micro-batch is removed, as if the driver was killed before it."""
    url, target = http_server
    journal, checkpoint = written(), tmp_path / "checkpoint"
    journal.fill(60, size=20)

    def run() -> None:
        source = spark.readStream.format("fyrehose").options(maxRowsPerBatch="80", partitionBytes="1K")
        query = (
            source.load(str(journal.directory))
            .writeStream.format("fyrehose")
            .options(to=url, stream="copy", exactlyOnce="true", checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    for number in range(3):
        run()
        assert sorted(records_of(target, "copy")) == sorted(record.payload for record in journal.records)
        last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
        if number == 1:
            journal.fill(20, size=20)
