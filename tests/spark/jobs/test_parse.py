"""JSON payloads, and what is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fyrehose.spark.jobs.parse import parse, parsed

PAYLOADS = [b'{"level": "info", "ms": 1.5}', b'{"level": 7}', b"no json", b'{"level": "\xff"}', b"", b"[1]"]


@pytest.mark.slow
def test_parsing(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame(list(enumerate(PAYLOADS)), "seq bigint, payload binary")
    for _ in range(2):  # twice is as good as once
        assert parse(frame, tmp_path) == (3, 3)
    good = spark.read.parquet(str(tmp_path / "parsed")).selectExpr("seq", "to_json(value) value").sort("seq").collect()
    assert [tuple(row) for row in good] == [(0, '{"level":"info","ms":1.5}'), (1, '{"level":7}'), (5, "[1]")]
    bad = spark.read.parquet(str(tmp_path / "unparsed")).sort("seq").collect()
    assert [bytes(row.payload) for row in bad] == [PAYLOADS[2], PAYLOADS[3], PAYLOADS[4]]


@pytest.mark.slow
def test_a_schema(spark: Any) -> None:
    frame = spark.createDataFrame(list(enumerate(PAYLOADS)), "seq bigint, payload binary")
    found = parsed(frame, "level string, ms double").sort("seq").collect()
    assert [None if row.value is None else tuple(row.value) for row in found[:5]] == [
        ("info", 1.5),
        ("7", None),
        None,
        None,
        None,
    ]
