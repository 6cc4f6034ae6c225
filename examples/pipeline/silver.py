"""Silver: one row for each event of bronze, with a column for each of its fields.

    in: the records of the lake that silver does not have      out: rows, and how far each stream was read

Events that a producer sent twice are left out.  An event is ``late`` if it is older than the watermark: the time of the
newest event of all rounds before, less LATENESS.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import pyarrow as pa
from fields import with_fields
from pyarrow import compute
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tables import Table

from fyrehose.spark import table
from fyrehose.spark.jobs.dedup import doubles

#: Columns that are not fields of events.
SCHEMA = pa.schema(
    [
        ("server", pa.string()),
        ("stream", pa.string()),
        ("seq", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("event_time", pa.timestamp("us", "UTC")),
        ("late", pa.bool_()),
        ("rescued", pa.binary()),
    ]
)
#: How much older than the newest event an event may be.
LATENESS = timedelta(hours=1)
#: Time within which a producer sends an event again.
AGAIN = timedelta(minutes=10)
#: Name under which the watermark is committed, in microseconds since 1970.
WATERMARK = "watermark"
_MICRO = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KEY = ["server", "stream"]
#: Server, stream, and the first and the last number.
Span = tuple[str, str, int, int]


@attrs.define(eq=False)
class Silver:
    """Fills the table silver from the lake.

    :ivar rows: most records of a round
    :ivar ends: the last number of each server and stream that was read
    """

    spark: SparkSession
    lake: Path
    table: Table
    streams: Sequence[str] | None = None
    rows: int = 500_000
    ends: dict[tuple[str, str], int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        streams = self.table.read(self.spark).select(*_KEY).distinct().collect()
        self.ends = {(row.server, row.stream): self.table.progress(f"{row.server}/{row.stream}") for row in streams}

    def round(self) -> int | None:
        """Add the next events, and return how many they are; None if there are no new records."""
        new, spans, oldest = self._next()
        if not spans:
            return None
        frame = self.spark.createDataFrame(spans, "server string, stream string, first bigint, last bigint")
        new = new.join(f.broadcast(frame), _KEY).where("seq between first and last")
        since = (oldest - AGAIN).strftime("%Y-%m-%dT%H:%M:%S")
        before = self._bronze(since).join(f.broadcast(frame), _KEY).where("seq < first")
        sent_again = doubles(before.unionByName(new, True), f"{AGAIN // timedelta(seconds=1)} seconds")
        watermark = self.table.progress(WATERMARK)
        known = {name: kind for name, kind in self.table.columns().items() if name not in SCHEMA.names}
        new = new.join(sent_again.select(*_KEY, "seq"), [*_KEY, "seq"], "left_anti")
        records = new.select(*_KEY, "seq", "time", "event_time", "payload")
        rows = _timed(with_fields(records, known, set(SCHEMA.names)), watermark).sort(*_KEY, "seq").toArrow()
        ends = {(server, stream): last for server, stream, _, last in spans}
        progress = {f"{server}/{stream}": last for (server, stream), last in ends.items()}
        self.table.append(rows, progress | {WATERMARK: max(watermark, _watermark(rows))})
        self.ends |= ends
        return int(rows.num_rows)

    def _starts(self) -> dict[str, int]:
        """Return the first new number of each stream, over all servers."""
        starts: dict[str, int] = {"*": 1}
        for (_, stream), end in self.ends.items():
            starts[stream] = min(end + 1, starts.get(stream, end + 1))
        return starts

    def _bronze(self, start: str) -> DataFrame:
        return table(self.spark, self.lake, streams=self.streams, start=start)

    def _next(self) -> tuple[DataFrame, list[Span], datetime]:
        """Return the new records, the next ones of them for each server and stream, and the time of the oldest."""
        ends = [(*key, end) for key, end in self.ends.items()]
        known = self.spark.createDataFrame(ends, "server string, stream string, end bigint")
        new = self._bronze(json.dumps(self._starts())).join(f.broadcast(known), _KEY, "left")
        new = new.where("end is null or seq > end")
        new = new.withColumn("at", f.unix_micros("time"))
        grouped = new.groupBy(*_KEY).agg(f.min("seq"), f.max("seq"), f.count("*"), f.min("at")).collect()
        spans = [(row[0], row[1], row[2], row[3]) for row in grouped]
        oldest = _EPOCH + min((row[5] for row in grouped), default=0) * _MICRO
        total = sum(row[4] for row in grouped)
        if total > self.rows:
            # Read all streams up to the same time, so that none runs ahead and moves the watermark.
            until = new.agg(f.percentile_approx("at", self.rows / total)).collect()[0][0]
            later = new.where(f.col("at") > until).groupBy(*_KEY).agg(f.min("seq"))
            stops = {(row[0], row[1]): row[2] - 1 for row in later.collect()}
            cut = [(server, stream, first, stops.get((server, stream), last)) for server, stream, first, last in spans]
            # If the server's clock was set back, this may be nothing; then read everything.
            spans = [span for span in cut if span[2] <= span[3]] or spans
        return new, spans, oldest


def _timed(events: DataFrame, watermark: int) -> DataFrame:
    """Set the time of each event, and whether it is late; its producer knows the time better than the server."""
    when = f.col("event_time")
    if "@timestamp" in events.columns:
        when = f.coalesce(when, f.try_to_timestamp(f.col("`@timestamp`").cast("string")))
    # Python has no other years, and a time before 1970 is a clock that was not set.
    when = f.when(f.year(when).between(1970, 9998), when)
    timed = events.withColumn("event_time", f.coalesce(when, "time"))
    timed = timed.withColumn("late", f.unix_micros("event_time") < watermark)
    others = [f"`{name}`" for name in timed.columns if name not in SCHEMA.names]
    return timed.select(*SCHEMA.names[:-1], *others, "rescued")


def _watermark(rows: pa.Table) -> int:
    """Return the watermark behind these rows; a clock that is ahead of the server's does not move it."""
    if not rows.num_rows:
        return 0
    newest = min(compute.max(rows[name]).as_py() for name in ("event_time", "time"))
    return max(0, int((newest - LATENESS - _EPOCH) // _MICRO))
