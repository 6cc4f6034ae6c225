"""Reading a part returns the selected records as they were written; missing ones are errors."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from random import Random
from struct import pack
from typing import Any

import attrs
import pytest

from fyrehose.errors import JournalCorrupt, JournalGap
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.offline.places import place
from fyrehose.records import Run
from fyrehose.spark.columns import COLUMNS, arrow_schema
from fyrehose.spark.plan import Planner
from fyrehose.spark.reading import PartReader
from fyrehose.spark.selection import Bounds, Selection

Opener = Callable[..., Any]


def every_kind(random: Random, stream: str) -> Run:
    """A run with any of the optional columns."""
    count = random.randint(1, 5)
    return Run.of(
        stream,
        [random.randbytes(random.choice([0, 1, 5, 700])) for _ in range(count)],
        source=random.choice(["figg", "relink"]),
        producer=random.choice([None, "", "127.0.0.1:9"]),
        topic=random.choice([None, "t", "ü" * 20]),
        content_type=random.choice([None, "application/json"]),
        producer_seq=random.choice([None, 7, (1 << 64) - 9, pack(f"<{count}Q", *random.sample(range(1 << 40), count))]),
        event_ids=random.choice([None, random.randbytes(16 * count)]),
        event_times=random.choice([None, pack(f"<{count}q", *random.sample(range(-9, 9), count))]),
    )


def test_every_column_is_read_as_it_was_written(written: Opener) -> None:
    journal, random = written(), Random(5)
    for _ in range(150):
        journal.append(*(every_kind(random, random.choice(["a", "b", "ü/ü", "c" * 255])) for _ in range(3)))
    assert len(journal.segments) > 1
    rows = {(row["stream"], row["seq"]): row for row in journal.read()}
    assert len(rows) == len(journal.records)
    for record in journal.records:
        row = rows[record.stream, record.seq]
        expected = attrs.asdict(record)
        if record.producer_seq is not None and record.producer_seq >= 1 << 63:
            expected["producer_seq"] = record.producer_seq - (1 << 64)
        for name in ("time", "event_time"):
            if row[name] is not None:
                row[name] = (row[name].timestamp() * 1_000_000).__round__()
        assert row == expected
    for name in COLUMNS:  # each by itself
        assert [row[name] for row in journal.read(columns=(name,))] == [row[name] for row in journal.read()]


def test_settings_of_the_garbage_collector_are_unchanged_after_reading(written: Opener) -> None:
    journal, before = written(), gc.get_threshold()
    journal.fill(20)
    part = Planner(journal.place).parts()[0]
    reading = PartReader(journal.place, part, Selection(), arrow_schema(("seq",))).read()
    assert sum(batch.num_rows for batch in reading) == len(journal.records)
    journal.flip(part.first + 100)
    with pytest.raises(JournalCorrupt):
        list(PartReader(journal.place, part, Selection(), arrow_schema(("seq",))).read())
    assert gc.get_threshold() == before


def test_a_journal_is_read_without_its_indexes(written: Opener) -> None:
    journal = written()
    journal.fill(300)
    for index in journal.directory.glob("*.index"):
        index.unlink()
    assert journal.brief(journal.read(Selection(patterns=("s1",)))) == journal.rows(lambda r: r.stream == "s1")


@pytest.mark.parametrize("seed", range(12))
def test_any_selection_equals_a_filter_of_all_records(written: Opener, seed: int) -> None:
    journal, random = written(segment_size=1 << (20 + 2 * (seed % 2))), Random(seed)
    for i in range(250):  # one stream is common, the others are rare, and some of them begin late
        stream = "common" if random.random() < 0.9 else f"rare{random.randint(1, 3) + 3 * (i // 100)}"
        journal.append(Run.of(stream, [bytes(12_000), b"%d" % i], source="test"))
    times = sorted({record.time for record in journal.records})
    for _ in range(6):
        first, last = sorted(random.sample(range(1, 60), 2))
        since, until = sorted(random.sample(times, 2))
        chosen = Selection(
            patterns=random.choice([("*",), ("rare*",), ("rare1", "rare3"), ("nothing",), ("common",)]),
            start=Bounds(random.choice([{}, {"*": first}, {"rare1": first}]), random.choice([None, since])),
            end=Bounds(random.choice([{}, {"*": last}]), random.choice([None, None, until])),
        )
        expected = journal.rows(
            lambda r, c=chosen: (
                c.wants(r.stream) and c.seqs(r.stream)[0] <= r.seq <= c.seqs(r.stream)[1] and c.accepts(r.time)
            )
        )
        assert journal.brief(journal.read(chosen, piece=random.choice([1 << 16, 1 << 30]))) == expected


def test_selection_of_rare_streams_reads_few_batches(written: Opener) -> None:
    journal = written(segment_size=4 << 20)
    for i in range(600):
        journal.append(Run.of("common" if i % 200 else "rare", [bytes(20_000)], source="test"))
    rare = Planner(journal.place, Selection(patterns=("rare",))).parts()
    sealed = [part for part in rare if part.base != journal.segments[-1].base]
    assert sealed
    assert sum(part.size for part in sealed) <= 4 * (64 << 10)
    everything = Planner(journal.place, Selection()).parts()
    assert sum(part.size for part in everything) > 10_000_000


def test_nothing_beyond_the_durable_mark_is_read(written: Opener) -> None:
    journal = written()
    journal.append(Run.of("s", [b"durable"], source="test"))
    mark = scan.read_mark(journal.directory)
    journal.append(Run.of("s", [b"not yet"], source="test"))
    journal.directory.joinpath("MARK").write_bytes(scan.pack_mark(mark))
    assert [row["payload"] for row in journal.read()] == [b"durable"]


def test_lost_durable_mark_is_found_from_the_log(written: Opener) -> None:
    journal = written()
    journal.fill(5)
    journal.directory.joinpath("MARK").unlink()
    # The last batch says nothing of itself: only those before it are known to be durable.
    assert journal.brief(journal.read()) == journal.rows(lambda r: r.time < journal.now[0])


def test_batch_larger_than_one_fetch_is_read(written: Opener) -> None:
    journal = written(segment_size=32 << 20)
    journal.fill(3)
    journal.append(Run.of("big", [bytes(9 << 20)], source="test"))
    journal.fill(3)
    assert journal.brief(journal.read()) == journal.rows()


def test_damage_of_any_byte_is_an_error(written: Opener) -> None:
    journal = written(segment_size=64 << 10)
    journal.fill(40)
    journal.close()
    mark, random = scan.read_mark(journal.directory), Random(3)
    for position in random.sample(range(mark), 120):
        segment = next(s for s in reversed(journal.segments) if s.base <= position)
        if position - segment.base < fmt.SEGMENT_HEADER.size:
            continue  # it says when the segment was begun, and is not needed to read it
        path = journal.flip(position)
        with pytest.raises(JournalCorrupt, match=re.escape(str(path))):
            journal.read()
        journal.flip(position)
    assert journal.brief(journal.read()) == journal.rows()


def test_damage_is_reported_with_file_stream_and_numbers(written: Opener) -> None:
    journal = written()
    for i in range(40):
        journal.append(Run.of("s", [b"%d" % i] * 10, source="test"), Run.of("t", [b"x"], source="test"))
    headers = [
        h for h, _ in scan.SegmentReader(journal.segments[0].path, 0).batches(64, scan.read_mark(journal.directory))
    ]
    path = journal.flip(headers[20].position + 100)
    with pytest.raises(JournalCorrupt) as error:
        journal.read()
    assert str(path) in str(error.value)
    assert "'s' 191-200" in str(error.value)
    assert "'t' 20-20" in str(error.value)
    with pytest.raises(JournalCorrupt):  # nobody asked for it to be read over
        journal.read(skip_gaps=True)


def test_segment_deleted_by_retention_after_planning_is_an_error(written: Opener) -> None:
    journal = written()
    journal.fill(300)
    parts = Planner(journal.place, Selection()).parts()
    gone = journal.segments[0]
    gone.path.unlink()
    with pytest.raises(JournalCorrupt, match=f"{gone.path} was deleted after its reading was planned.*'s0' 1-"):
        list(PartReader(journal.place, parts[0], Selection(), arrow_schema(("seq",))).read())


def test_an_open_segment_is_read_to_its_end_though_it_is_deleted(written: Opener) -> None:
    journal = written()
    journal.fill(300)
    part = Planner(journal.place, Selection(), piece=1 << 30).parts()[0]
    reader = PartReader(journal.place, part, Selection(), arrow_schema(("seq",)))
    batches = reader.read()
    # The file is opened with the first batch; columns.ROWS is larger than what the segment has, so open it by hand.
    opened = journal.place.open(part.base, part.limit)
    journal.segments[0].path.unlink()
    assert len(opened.read(part.first, 1000)) == 1000
    opened.close()
    with pytest.raises(JournalCorrupt):
        list(batches)


def test_batch_of_another_journal_is_reported_as_damage(written: Opener) -> None:
    journal, other = written("one"), written("two")
    for i in range(20):
        journal.append(Run.of("s", [b"%4d" % i], source="test"))
        other.append(Run.of("s", [b"%4d" % (i + 100)], source="test"))
    headers = [
        h for h, _ in scan.SegmentReader(journal.segments[0].path, 0).batches(64, scan.read_mark(journal.directory))
    ]
    at, end = headers[10].position, headers[10].end
    data = other.segments[0].path.read_bytes()[at:end]
    with journal.segments[0].path.open("r+b") as file:
        file.seek(at)
        file.write(data)
    with pytest.raises(JournalCorrupt, match="does not continue"):
        journal.read()


def declared(journal: Any) -> Any:
    """A journal that was not closed in order while numbers were set aside: it goes on behind a gap."""
    journal.append(Run.of("s", [b"1", b"2"], source="test"), Run.of("t", [b"1"], source="test"))
    journal.crash()
    return journal


def test_numbers_that_the_journal_declares_lost_are_an_error_or_skipped(written: Opener) -> None:
    from fyrehose.journal.settings import durability

    declared(written(durability=durability("interval:50")))
    journal = written(durability=durability("batch"))
    assert journal.next["s"] == 1 + (1 << 20) + 2
    journal.append(Run.of("s", [b"behind"], source="test"))
    with pytest.raises(JournalGap, match=r"the numbers 3-1048578 of 's' are not in the journal .*segment"):
        journal.read()
    assert [row["payload"] for row in journal.read(Selection(patterns=("s",)), skip_gaps=True)] == [
        b"1",
        b"2",
        b"behind",
    ]
    # Who does not ask for them is not told.
    assert len(journal.read(Selection(patterns=("s",), start=Bounds({"*": 2_000_000})))) == 0
    assert len(journal.read(Selection(patterns=("s",), end=Bounds({"*": 2})))) == 2


@pytest.mark.parametrize("offset", [9, 70], ids=["header", "body"])
def test_journal_is_read_around_a_batch_that_quarantine_has_replaced(written: Opener, offset: int) -> None:
    journal = written()
    journal.fill(40)
    journal.close()
    reader = scan.SegmentReader(journal.segments[0].path, 0)
    fifth = [header for header, _ in reader.batches(64, scan.read_mark(journal.directory))][5]
    journal.flip(fifth.position + offset)
    before = len(journal.rows())
    records, journal = journal.records, written(quarantine=True)
    journal.records[:0] = records
    journal.fill(5)
    rows = journal.brief(journal.read(skip_gaps=True))
    lost = journal.faults(rows)
    assert 0 < len(lost) < 10, f"one batch of 45 is lost: {lost}"
    assert all(fault.endswith("is missing") for fault in lost)
    assert len(rows) == len(journal.rows()) - len(lost) > before - 10


def test_numbers_missing_between_segments_are_an_error_or_skipped(written: Opener) -> None:
    journal = written(segment_size=1 << 20)
    for i in range(120):
        journal.append(Run.of("rare" if i % 40 == 0 else "common", [bytes(30_000)], source="test"))
    # As if a run had never been written: the server gave its numbers out, and the index of the next segment knows.
    journal.next["rare"] += 5
    journal.journal.writer.streams.ends["rare"] += 5
    for _ in range(120):
        journal.append(Run.of("common", [bytes(30_000)], source="test"))
    journal.append(Run.of("rare", [b"x"], source="test"))
    with pytest.raises(JournalGap, match="numbers 4-8 of 'rare'"):
        journal.read()
    for first in range(1, 11):
        for last in range(first, 11):
            chosen = Selection(patterns=("rare",), start=Bounds({"*": first}), end=Bounds({"rare": last}))
            asked = first <= 8 and last >= 4
            with pytest.raises(JournalGap, match="numbers 4-8 of 'rare'") if asked else nullcontext():
                numbers = [row["seq"] for row in journal.read(chosen, ("seq",))]
                assert not asked, f"{numbers} of {first} to {last} were read as if there were no gap"
                assert numbers == [seq for seq in range(first, last + 1) if seq in (1, 2, 3, 9)]
    assert len(journal.read(Selection(patterns=("common",)))) == 237


@pytest.mark.live
def test_a_served_journal_is_read_like_a_directory(written: Opener, serve: Callable[[Path], str]) -> None:
    journal = written()
    journal.fill(300)
    server, chosen = place(serve(journal.directory)), Selection(patterns=("s1",))
    parts = Planner(server, chosen).parts()
    assert parts == Planner(journal.place, chosen).parts()
    rows = [
        row
        for part in parts
        for batch in PartReader(server, part, chosen, arrow_schema(("stream", "seq", "payload"))).read()
        for row in batch.to_pylist()
    ]
    assert journal.brief(rows) == journal.rows(lambda r: r.stream == "s1")


@pytest.mark.live
def test_segment_that_the_server_has_deleted_is_an_error(written: Opener, serve: Callable[[Path], str]) -> None:
    journal = written()
    journal.fill(300)
    server = place(serve(journal.directory))
    parts = Planner(server, Selection()).parts()
    journal.segments[0].path.unlink()
    with pytest.raises(JournalCorrupt, match=f"{server}/segments/0000000000000000 was deleted after .*'s0' 1-"):
        list(PartReader(server, parts[0], Selection(), arrow_schema(("seq",))).read())
