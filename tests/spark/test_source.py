"""The data source in a real session (the logic without one: test_reading.py, test_plan.py)."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType

from fyrehose.errors import ConfigError, JournalCorrupt, JournalUnreachable
from fyrehose.journal.format import UNKNOWN
from fyrehose.journal.subscriptions import registered
from fyrehose.offline.places import Directory
from fyrehose.offline.walk import Batch, Log, walk
from fyrehose.records import Run
from fyrehose.spark.columns import arrow_schema
from fyrehose.spark.failures import own_error
from fyrehose.spark.plan import headers
from fyrehose.spark.source import HEARTBEAT, FyrehoseDataSource, SourceOptions, StreamReader, checked, with_holes

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


@attrs.frozen
class Flickering(Directory):
    """A journal's directory that takes note of the updates of its subscription, and refuses the next ones *away*."""

    updates: list[int] = attrs.field(factory=list)
    away: list[str] = attrs.field(factory=list)

    def update_subscription(self, name: str, position: int, identity: bytes = UNKNOWN) -> None:
        assert (name, identity) == ("etl", self.view().identity)
        if self.away:
            raise JournalUnreachable(self.away.pop())
        self.updates.append(position)


@attrs.define
class Query:
    """The offsets of a query and the updates of its subscription, in plain words."""

    place: Flickering
    limits: dict[str, int | None]
    end: int | None
    target: int | None = None
    kept: int = -1
    waited: float = 0.0  # seconds since the last update
    updates: list[int] = attrs.field(factory=list)

    def keep(self, position: int) -> bool:
        """Update the subscription if it moves forward or was idle; return whether the place refuses that."""
        if position <= self.kept and self.waited < HEARTBEAT:
            return False
        if not self.place.away:
            self.kept, self.waited = position, 0.0
            self.updates.append(position)
            return False
        return True

    def next(self, begin: int, limits: dict[str, int | None]) -> int:
        """Return where the longest micro-batch within *limits* ends; it has at least one batch of the journal."""
        view = self.place.view()
        ends = [each for each in (self.end, view.mark if self.target is None else self.target) if each is not None]
        if begin >= min(ends) or not any(limits.values()):
            return max(begin, min(ends))
        position, count = begin, 0
        for extent in view.segments:
            for header in headers(self.place, extent, extent.base + 64, min(extent.end, view.mark)):
                if begin <= header.position < min(ends):
                    count += header.records
                    size = header.end - begin
                    if position > begin and (count > (limits["rows"] or count) or size > (limits["size"] or size)):
                        return position
                    position = header.end
        return position


STEPS = (*["plan"] * 4, "commit", *["append"] * 3, *["half a minute"] * 5, "away", "restart", "delete", "now")
#: What Spark may pass to latestOffset() besides the limit of the options, and which limits it replaces.
LIMITS: dict[str, tuple[ReadLimit, dict[str, int | None]]] = {
    "all": (ReadAllAvailable(), {"rows": None, "size": None}),
    "rows": (ReadMaxRows(9), {"rows": 9}),
    "size": (ReadMaxBytes(30_000), {"size": 30_000}),
}


def random_query(dice: Random, journal: Any) -> tuple[SourceOptions, Query]:
    """Return random options, and the model of a query with them."""
    ends = [found.header.end for found in walk(Log.of(journal.directory)) if isinstance(found, Batch)]
    rows, size = dice.choice((None, 1, 7, 20)), dice.choice((None, 1, 9_000, 60_000))
    end = dice.choice((None, None, dice.choice(ends), 1 << 40))
    words = {"path": journal.directory, "subscription": "etl", "gaps": "skip", "endPosition": end}
    words |= {"maxRowsPerBatch": rows, "maxBytesPerBatch": size}
    words |= dice.choice(({}, {}, {"start": "latest"}, {"startPosition": dice.choice(ends[:3])}))
    options = SourceOptions.of({name: str(word) for name, word in words.items() if word is not None})
    place = Flickering(journal.directory)
    return attrs.evolve(options, place=place), Query(place, {"rows": rows, "size": size}, end)


def plan(reader: StreamReader, query: Query, at: dict[str, Any], kind: str) -> dict[str, Any]:
    """Plan the next micro-batch from *at* on, and compare its end; return the offset of its end."""
    limit, replaced = LIMITS.get(kind, (reader.getDefaultReadLimit(), {}))
    limits = query.limits | replaced
    start = max(at["position"], query.place.view().start)
    expected, refused = query.next(start, limits), query.keep(start)
    then = reader.latestOffset(at, limit)
    assert not refused, f"an update to {start} is left out"
    assert then["position"] == expected, f"end of a batch from {at} on with {limits} ({kind})"
    bases = {extent.base for extent in query.place.view().segments}
    assert then["chain"] is not None or then["position"] in bases, "the next query cannot tell a copy by its chain"
    return then


def numbers(journal: Any, begin: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Return the numbers of the records that the journal still has between two offsets, in its order."""
    batches = [found for found in walk(Log.of(journal.directory)) if isinstance(found, Batch)]
    between = [found for found in batches if begin["position"] <= found.header.position < end["position"]]
    return [record.seq for found in between for run in found.runs() for record in run.records()]


def test_random_schedules_of_a_stream_have_the_offsets_and_updates_of_a_model(written: Opener) -> None:
    dice, happened = Random(7), Counter[str]()
    for number in range(30):
        journal = written(f"j{number}", segment_size=64 << 10)
        journal.fill(dice.randint(1, 40))
        options, query = random_query(dice, journal)
        place, reader, at = query.place, StreamReader(options, SEQ), None
        for _ in range(40):
            step, view, refused = dice.choice(STEPS), place.view(), bool(place.away)
            try:
                if step == "append":
                    journal.fill(dice.randint(1, 5))
                elif step == "away":
                    place.away.append("gone")
                elif step == "delete" and len(view.segments) > 1:
                    journal.segments[0].path.unlink()
                elif step in ("restart", "now"):
                    reader, query = StreamReader(options, SEQ), attrs.evolve(query, kept=-1, target=None)
                    if step == "now":
                        reader.prepareForTriggerAvailableNow()
                        query.target = view.mark
                elif step == "half a minute":
                    reader.kept = reader.kept[0], reader.kept[1] - HEARTBEAT / 2
                    query.waited += HEARTBEAT / 2
                elif at is None:
                    begin = view.start if options.start_position is None else options.start_position.position
                    begin = view.mark if options.latest else begin
                    query.keep(begin)
                    at = reader.initialOffset()
                    assert at["position"] == begin, f"a query with {options} begins elsewhere"
                elif step == "commit":
                    query.keep(at["position"])
                    reader.commit(at)
                else:
                    then = plan(reader, query, at, kind := dice.choice(("default", *LIMITS)))
                    if len(view.segments) > 1 and dice.random() < 0.2:
                        journal.segments[0].path.unlink()
                        happened["deleted meanwhile"] += 1
                    for each in (reader, StreamReader(options, SEQ)):  # a query may be restarted before it reads
                        parts = each.partitions(at, then) if at != then else []
                        rows = [seq.as_py() for part in parts for batch in each.read(part) for seq in batch[0]]
                        assert rows == numbers(journal, at, then), f"other records from {at} to {then}"
                    happened.update({kind: 1, "some rows": len(rows) > 0, "skipped": at["position"] < view.start})
                    at = then
            except JournalUnreachable:
                assert refused, f"{step} updates the subscription, which has neither moved nor been idle"
                happened["refused"] += 1
            happened[step] += 1
            assert place.updates == query.updates, f"other updates of the subscription after {step}"
    expected = {*STEPS, *LIMITS, "default", "refused", "some rows", "skipped", "deleted meanwhile"}
    assert (+happened).keys() == expected, f"not all happened: {happened}"


def test_subscription_is_that_of_a_stream_with_a_valid_name(written: Opener) -> None:
    journal = written()
    journal.fill(1)
    options = {"path": str(journal.directory), "subscription": "etl"}
    start = StreamReader(SourceOptions.of(options), SEQ).initialOffset()
    assert [(each.name, each.position) for each in registered(journal.directory)] == [("etl", start["position"])]
    with pytest.raises(ConfigError, match="invalid name of a subscription"):
        SourceOptions.of(options | {"subscription": "a/b"})
    with pytest.raises(ConfigError, match=r"use spark\.readStream"):
        FyrehoseDataSource(options).reader(StructType())


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
