"""Only records that a producer sent again are duplicates."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fyrehose.spark.jobs.dedup import doubles, without_doubles, without_doubles_live

SCHEMA = (
    "server string, stream string, seq bigint, time timestamp, source string, producer string, producer_seq bigint, "
    "event_id binary, payload binary"
)


def rows() -> list[tuple[Any, ...]]:
    at = datetime(2026, 1, 1)

    def row(seq: int, seconds: int, producer: str, number: int | None, event: bytes | None, payload: bytes) -> Any:
        return ("one", "s", seq, at + timedelta(seconds=seconds), "figg", producer, number, event, payload)

    return [
        row(1, 0, "h:1", 1, None, b"a"),
        row(2, 1, "h:1", 2, None, b"b"),
        row(3, 2, "h:2", 2, None, b"b"),  # sent again by another connection
        row(4, 3, "h:3", 2, None, b"b"),  # and again
        row(5, 4, "other:1", 2, None, b"b"),  # somebody else
        row(6, 5, "h:1", 2, None, b"c"),  # the same number, and something else
        row(7, 6, "h:1", None, None, b"a"),  # nothing to tell it by
        row(8, 7, "h:1", None, None, b"a"),
        row(9, 8, "h:1", None, b"i" * 16, b"e"),
        row(10, 9, "h:1", None, b"i" * 16, b"e"),  # the same event
        row(11, 3600, "h:4", 1, None, b"a"),  # nobody tries for so long
        row(13, 3601, "h:5", 1, None, b"line"),  # two equal lines, each the first of its window
        row(14, 3602, "h:5", 1, None, b"line"),
        row(15, 3603, "h:6", 1, None, b"line"),  # the second of them again
        row(16, 3604, "name", 1, None, b"line 2"),  # a name, of any connection
        row(17, 3605, "name", 1, None, b"line 2"),
        ("one", "t", 12, at, "figg", "h:1", 1, None, b"a"),  # another stream
        ("two", "s", 18, at, "figg", "h:1", 1, None, b"a"),  # another server
    ]


@pytest.mark.slow
def test_only_duplicates_are_found(spark: Any) -> None:
    frame = spark.createDataFrame(rows(), SCHEMA)
    found = sorted((row.stream, row.seq, row.first_seq) for row in doubles(frame).collect())
    assert found == [("s", 3, 2), ("s", 4, 2), ("s", 10, 9), ("s", 15, 14), ("s", 17, 16)]
    assert sorted(row.seq for row in without_doubles(frame).collect()) == [1, 2, 5, 6, 7, 8, 9, 11, 12, 13, 14, 16, 18]
    assert (11, 1) in {(row.seq, row.first_seq) for row in doubles(frame, "2 hours").collect()}


@pytest.mark.slow
def test_duplicates_of_a_live_stream_are_dropped(spark: Any, tmp_path: Path) -> None:
    spark.createDataFrame(rows(), SCHEMA).coalesce(1).write.parquet(str(tmp_path / "in"))
    query = (
        without_doubles_live(spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in")))
        .writeStream.format("parquet")
        .options(path=str(tmp_path / "out"), checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    left = sorted(row.seq for row in spark.read.parquet(str(tmp_path / "out")).collect())
    # Which of the equal ones stays is for Spark to choose.
    assert len(left) == 10
    assert {1, 11} & set(left)
    assert {5, 6, 7, 8, 12} <= set(left)
    assert len({13, 14, 15} & set(left)) == 1  # connections of a host are not told apart
