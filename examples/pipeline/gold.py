"""Gold: requests for each minute and status, and errors for each minute and host.

A round counts only the minutes again that new events can belong to, those since the watermark, and replaces them in one
commit.  Events that are late are not counted.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from silver import WATERMARK
from tables import Table

_MINUTE = pa.timestamp("us", "UTC")
SCHEMAS = {
    "requests": pa.schema([("minute", _MINUTE), ("status", pa.int64()), ("requests", pa.int64())]),
    "errors": pa.schema([("minute", _MINUTE), ("host", pa.string()), ("errors", pa.int64())]),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@attrs.define(eq=False)
class Gold:
    """Fills the tables of gold from silver."""

    spark: SparkSession
    silver: Table
    tables: dict[str, Table]

    @classmethod
    def at(cls, directory: Path, spark: SparkSession, silver: Table) -> Gold:
        """Return the tables in a directory."""
        return cls(spark, silver, {name: Table(directory / name, schema) for name, schema in SCHEMAS.items()})

    def round(self) -> None:
        """Count the events that silver has beyond the last round."""
        version = self.silver.delta.version()
        for name, table in self.tables.items():
            if table.progress("silver") == version:
                continue
            since = _EPOCH + timedelta(microseconds=table.progress(WATERMARK))
            since = since.replace(second=0, microsecond=0)
            counted = COUNTS[name](self.silver.read(self.spark, "event_time", since).where("not late"))
            rows = counted.sort(*SCHEMAS[name].names).toArrow().cast(SCHEMAS[name])
            # No later round changes a minute before this watermark, because events for it are late then.
            progress = {"silver": version, WATERMARK: self.silver.progress(WATERMARK)}
            table.replace(rows, f"minute >= '{since:%Y-%m-%dT%H:%M:%SZ}'", progress)


def _requests(events: DataFrame) -> DataFrame:
    status = _field(events, "http.response.status_code", "bigint")
    found = events.select(_minute(), status.alias("status")).where("status is not null")
    return found.groupBy("minute", "status").agg(f.count("*").alias("requests"))


def _errors(events: DataFrame) -> DataFrame:
    failed = _field(events, "http.response.status_code", "bigint") >= 500
    severe = f.lower(_field(events, "log.level", "string")).isin("error", "critical", "fatal")
    host = f.coalesce(_field(events, "host.name", "string"), f.lit("unknown"))
    found = events.where(f.coalesce(failed, f.lit(False)) | f.coalesce(severe, f.lit(False)))
    return found.select(_minute(), host.alias("host")).groupBy("minute", "host").agg(f.count("*").alias("errors"))


COUNTS = {"requests": _requests, "errors": _errors}


def _minute() -> Column:
    return f.date_trunc("minute", "event_time").alias("minute")


def _field(events: DataFrame, name: str, kind: str) -> Column:
    """Return a field of the events; null if no event had it yet."""
    column = f.col(f"`{name}`") if name in events.columns else f.lit(None)
    return column.try_cast(kind)
