"""The data source in a real session (the logic without one: test_reading.py, test_plan.py)."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from fyrehose.errors import ConfigError, JournalCorrupt
from fyrehose.journal.subscriptions import registered
from fyrehose.records import Run
from fyrehose.spark import source
from fyrehose.spark.columns import arrow_schema
from fyrehose.spark.failures import own_error
from fyrehose.spark.source import FyrehoseDataSource, SourceOptions, StreamReader, checked, with_holes

SEQ = arrow_schema(("seq",))
Opener = Callable[..., Any]


def brief(rows: list[Any]) -> list[tuple[str, int, bytes]]:
    return sorted((row.stream, row.seq, bytes(row.payload)) for row in rows)


# Without a session.


def test_options_of_the_source_are_parsed() -> None:
    options = SourceOptions.of({"path": "/j", "gaps": "skip", "partitionBytes": "8M", "maxRowsPerBatch": "10"})
    assert (options.skip_gaps, options.piece, options.max_rows, options.latest) == (True, 8 << 20, 10, False)
    for wrong in (
        {},
        {"path": "/j", "gaps": "ignore"},
        {"path": "/j", "table": "x"},
        {"path": "/j", "endPosition": "x"},
        {"path": "/j", "maxRowsPerBatch": "0"},
        {"path": "/j", "maxBytesPerBatch": "0"},
        {"path": "/j", "partitionBytes": "0"},
        {"path": "/j", "end": "earliest"},
    ):
        with pytest.raises(ConfigError):
            SourceOptions.of(wrong)
    for name in ("maxRowPerBatch", "stream", "filter"):
        with pytest.raises(ConfigError, match=f"unknown option {name!r} of the source fyrehose; (did you|available)"):
            SourceOptions.of({"path": "/j", name: "1"})
    with pytest.raises(ConfigError, match=r"did you mean maxRowsPerBatch\?"):
        SourceOptions.of({"path": "/j", "maxRowPerBatch": "1"})
    with pytest.raises(ConfigError, match="cannot be read as a stream"):
        FyrehoseDataSource({"path": "/j", "table": "gaps"}).streamReader(None)  # type: ignore[arg-type]


def test_checkpoint_of_another_journal_is_an_error(written: Opener) -> None:
    journal = written()
    journal.fill(5)
    options = SourceOptions.of({"path": str(journal.directory)})
    latest = StreamReader(options, SEQ).reportLatestOffset()
    beyond = latest | {"position": latest["position"] + 8}
    with pytest.raises(JournalCorrupt, match="this is another journal"):
        StreamReader(options, SEQ).latestOffset(beyond, ReadAllAvailable())
    assert StreamReader(options, SEQ).latestOffset(latest, ReadAllAvailable()) == latest


def test_subscription_of_a_stream_follows_its_checkpoint(written: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = written()
    journal.fill(60)
    clock = [1000.0]
    monkeypatch.setattr(source.time, "monotonic", lambda: clock[0])
    options = {"path": str(journal.directory), "subscription": "etl", "maxRowsPerBatch": "50"}

    def position() -> int:
        (one,) = registered(journal.directory)
        assert one.name == "etl"
        return one.position

    reader = StreamReader(SourceOptions.of(options), SEQ)
    start = reader.initialOffset()
    assert position() == start["position"]
    middle = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert position() == start["position"], "the batch has not ended"
    end = reader.latestOffset(middle, reader.getDefaultReadLimit())
    assert start["position"] < position() == middle["position"] < end["position"]
    reader.commit(end)
    assert position() == end["position"]
    # One that does not move is updated once a minute, so that it does not expire.
    before = registered(journal.directory)[0].time
    reader.latestOffset(end, ReadAllAvailable())
    assert registered(journal.directory)[0].time == before
    clock[0] += 61
    reader.latestOffset(end, ReadAllAvailable())
    assert registered(journal.directory)[0].time > before
    with pytest.raises(ConfigError, match="invalid name of a subscription"):
        SourceOptions.of(options | {"subscription": "a/b"})
    with pytest.raises(ConfigError, match=r"use spark\.readStream"):
        FyrehoseDataSource(options).reader(StructType())


def test_records_behind_the_end_of_availablenow_are_left_to_the_next_run(written: Opener) -> None:
    journal = written()
    journal.fill(5)
    reader = StreamReader(SourceOptions.of({"path": str(journal.directory)}), SEQ)
    reader.prepareForTriggerAvailableNow()
    target = reader.reportLatestOffset()
    journal.fill(5)
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == target
    assert reader.latestOffset(target, ReadAllAvailable()) == target
    latest = StreamReader(SourceOptions.of({"path": str(journal.directory), "start": "latest"}), SEQ)
    assert latest.initialOffset() == reader.reportLatestOffset() != target


def test_missing_segments_are_yielded_as_holes(written: Opener) -> None:
    journal = written()
    journal.fill(300)
    view = journal.place.view()
    whole = list(with_holes(view))
    journal.segments[1].path.unlink()
    found = list(with_holes(journal.place.view()))
    assert [extent for extent, _ in found] == [extent for extent, _ in whole]


# With one.


@pytest.mark.slow
def test_table_has_the_records_as_they_were_written(spark: Any, written: Opener) -> None:
    journal = written()
    journal.fill(200)
    frame = spark.read.format("fyrehose").option("partitionBytes", "100k").load(str(journal.directory))
    assert brief(frame.collect()) == journal.rows()
    assert frame.rdd.getNumPartitions() > 2
    narrow = spark.read.format("fyrehose").schema("seq bigint, stream string").load(str(journal.directory))
    assert sorted((row.stream, row.seq) for row in narrow.collect()) == [row[:2] for row in journal.rows()]


@pytest.mark.slow
def test_options_select_the_same_records_as_a_filter(spark: Any, written: Opener) -> None:
    journal = written()
    journal.fill(200)
    moment = sorted({record.time for record in journal.records})[100]
    expected = journal.rows(lambda r: r.stream != "s0" and r.seq > 10 and r.time < moment)
    frame = spark.read.format("fyrehose").load(str(journal.directory))
    assert (
        brief(frame.where(f"stream <> 's0' and seq > 10 and time < timestamp_micros({moment})").collect()) == expected
    )
    assert brief(frame.collect()) == journal.rows(), "what one query left out is there for the next"
    chosen = (
        spark.read.format("fyrehose")
        .options(streams='["s1", "s2"]', start="11", end=datetime.fromtimestamp(moment / 1e6, UTC).isoformat())
        .load(str(journal.directory))
    )
    assert brief(chosen.collect()) == expected
    assert chosen.rdd.getNumPartitions() < frame.rdd.getNumPartitions(), "what is not needed is not planned"


@pytest.mark.slow
def test_damage_is_an_error_that_says_what_is_lost(spark: Any, written: Opener) -> None:
    journal = written()
    journal.fill(200)
    path = journal.flip(journal.segments[0].size // 2)
    with pytest.raises(PySparkException) as raised:
        spark.read.format("fyrehose").load(str(journal.directory)).count()
    error = own_error(raised.value)
    assert error is not None
    assert error.exit_status == 3
    assert str(path) in str(error)
    assert "lost are 's" in str(error)
    lost = spark.read.format("fyrehose").option("table", "gaps").load(str(journal.directory)).collect()
    assert {(row.kind, row.file) for row in lost} == {("damaged", str(path))}


@pytest.mark.slow
def test_stream_has_existing_records_first_and_then_new_ones(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal = written()
    journal.fill(50)
    output, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")

    def run() -> None:
        query = (
            spark.readStream.format("fyrehose")
            .option("maxRowsPerBatch", "60")
            .load(str(journal.directory))
            .writeStream.format("parquet")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(output)
        )
        query.awaitTermination()

    run()
    assert brief(spark.read.parquet(output).collect()) == journal.rows()
    journal.fill(50)
    run()
    assert brief(spark.read.parquet(output).collect()) == journal.rows()


@pytest.mark.slow
def test_journal_is_read_while_it_is_written_rolled_over_and_deleted(spark: Any, written: Opener) -> None:
    journal = written(keep_bytes=2 << 20)
    journal.fill(100)
    # About a third of what is kept goes while one query runs, and all of it while three do, however long they take.
    turns, over = threading.Semaphore(0), threading.Event()

    def write() -> None:
        while turns.acquire() and not over.is_set():
            journal.fill(5, streams=1, size=500)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for _ in range(3):
            durable = journal.journal.ends()["s0"]
            turns.release(100)
            seqs = _numbers_of_what_is_left(spark, journal.directory)
            assert seqs == list(range(seqs[0], seqs[-1] + 1)), "none is missing in the middle"
            assert seqs[-1] >= durable
    finally:
        over.set()
        turns.release()
        writing.join()
    journal.append(Run.of("s0", [b"end"], source="test"))


def _numbers_of_what_is_left(spark: Any, directory: Path, tries: int = 5) -> list[int]:
    """Query again where a segment was deleted between planning and reading: that is an error, and never a gap."""
    for left in reversed(range(tries)):
        rows = spark.read.format("fyrehose").schema("stream string, seq bigint").load(str(directory))
        try:
            return sorted(row.seq for row in rows.where("stream = 's0'").collect())
        except Exception as error:
            if "was deleted after its reading was planned" not in str(error) or not left:
                raise
    raise AssertionError("unreachable")


@pytest.mark.slow
def test_active_session_is_returned(spark: Any) -> None:
    from fyrehose.spark import register, session

    assert session() is spark
    assert register(spark) is spark


def test_unsuitable_schemas_are_refused() -> None:
    for wrong in (("offset", "long"), ("seq", "integer"), ("topic", "string", False)):
        with pytest.raises(ConfigError):
            checked(StructType().add(*wrong))
    assert checked(StructType().add("topic", "string").add("seq", "long", False)).names == ["topic", "seq"]


def test_a_stream_of_a_copy_with_an_unknown_end_warns_once(written: Opener, tmp_path: Path, caplog: Any) -> None:
    """Also after a restart, when Spark takes the first offset from its checkpoint."""
    journal = written()
    journal.fill(10)
    copy = Path(shutil.copytree(journal.directory, tmp_path / "copy"))
    (copy / "MARK").unlink()
    options = SourceOptions.of({"path": str(copy)})
    offset = StreamReader(options, SEQ).initialOffset()
    caplog.clear()
    reader = StreamReader(options, SEQ)
    for _ in range(3):
        offset = reader.latestOffset(offset, ReadAllAvailable())
    assert ["nothing vouches for its end" in each.getMessage() for each in caplog.records] == [True]
