"""Parse JSON payloads; payloads that are not JSON are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fyrehose.spark.jobs.parse import parse, parsed

PAYLOADS = [b'{"level": "info", "ms": 1.5}', b'{"level": 7}', b"no json", b'{"level": "\xff"}', b"", b"[1]"]


@pytest.mark.slow
def test_json_payloads_become_columns(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame(list(enumerate(PAYLOADS)), "seq bigint, payload binary")
    for _ in range(2):  # twice is as good as once
        assert parse(frame, tmp_path / "out") == (3, 3)
    found = spark.read.parquet(str(tmp_path / "out")).selectExpr("seq", "to_json(value) value", "rescued").sort("seq")
    values = ['{"level":"info","ms":1.5}', '{"level":7}', None, None, None, "[1]"]
    rescued = [None, None, *PAYLOADS[2:5], None]
    rows = [(row.seq, row.value, None if row.rescued is None else bytes(row.rescued)) for row in found.collect()]
    assert rows == list(zip(range(6), values, rescued, strict=True))


@pytest.mark.slow
def test_payload_that_does_not_fit_the_schema_is_rescued(spark: Any) -> None:
    payloads = [*PAYLOADS[:5], b'{"level": "info", "ms": "fast"}']
    frame = spark.createDataFrame(list(enumerate(payloads)), "seq bigint, payload binary")
    found = parsed(frame, "level string, ms double").sort("seq").collect()
    assert [None if row.value is None else tuple(row.value) for row in found] == [
        ("info", 1.5),
        ("7", None),
        *[None] * 3,
        ("info", None),
    ]
    assert [row.seq for row in found if row.rescued is not None] == [2, 3, 4, 5]


@pytest.mark.slow
def test_document_is_parsed_once_for_all_columns(spark: Any) -> None:
    frame = spark.createDataFrame([(1, b"{}")], "seq bigint, payload binary")
    for schema in ("a0 int", ", ".join(f"a{i} int" for i in range(12))):
        plan = parsed(frame, schema)._jdf.queryExecution().executedPlan().toString()
        assert plan.count("from_json(") == 1
    assert parsed(frame)._jdf.queryExecution().optimizedPlan().toString().count("try_parse_json(") <= 1
