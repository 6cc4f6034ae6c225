"""The sink: what is committed is durable, in the stream that was named (the wire: test_publisher.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from fyrehose.errors import ConfigError
from fyrehose.spark.showing import own_error
from fyrehose.spark.sink import SinkTarget, first_number

Opener = Callable[..., Any]


def schema(text: str) -> StructType:
    made = StructType()
    for column in text.split(", "):
        made.add(*column.split())
    return made


def test_options() -> None:
    assert SinkTarget.of({"to": "h:1", "stream": "s"}, schema("payload binary")) == SinkTarget("h", 1, "s", 0.0)
    assert SinkTarget.of({"to": "h:1", "rate": "5"}, schema("payload string, stream string")) == SinkTarget(
        "h", 1, None, 5.0
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
