"""Streams in segments and snapshots: many streams, retired streams, missing and damaged files."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal import scan, snapshots
from fyrehose.journal.files import Files
from fyrehose.journal.format import Entry
from fyrehose.journal.recovery import recover
from fyrehose.journal.streams import StreamLimits, Streams, referenced_snapshot, streams_at_start
from fyrehose.offline.verify import verify
from tests.doubles.files import flip

names = st.text(min_size=1, max_size=20).filter(lambda name: len(name.encode()) <= 80)


#: Limits with which few streams are many.
FEW = StreamLimits(inline=4)


@pytest.fixture
def open_journal(open_journal: Any) -> Any:
    """Return a function that opens a journal in which few streams are many."""
    return partial(open_journal, stream_limits=FEW)


@pytest.fixture
def bench(open_journal: Any) -> Any:
    """Return a journal of twenty streams and several segments: one of them takes almost all records."""
    bench = open_journal(segment_size=4 << 10)
    for i in range(20):
        bench.append(b"x", stream=f"quiet-{i}")
    for i in range(60):
        bench.append(b"%d" % i * 100)
    return bench


def first_batches(directory: Path) -> list[tuple[fmt.BatchHeader, list[fmt.Entry]]]:
    found = []
    for segment in scan.segments(directory):
        with scan.SegmentReader(segment.path, segment.base) as reader:
            header, body = reader.batch(segment.base + fmt.SEGMENT_HEADER.size)
        found.append((header, fmt.entries(body, header.parts)))
    return found


def sealed(snapshot: bytes, changes: dict[int, int]) -> bytes:
    """Return the snapshot with some bytes replaced, and a matching checksum."""
    data = bytearray(snapshot[:-4])
    for at, value in changes.items():
        data[at] = value
    return bytes(data) + crc32c(bytes(data)).to_bytes(4, "little")


def retire(bench: Any, *names: str) -> Any:
    done: list[Any] = []
    bench.journal.retire(names).addBoth(done.append)
    for name in names:
        bench.next.pop(name, None)
    return done[0]


def everything(bench: Any) -> dict[str, list[tuple[int, bytes]]]:
    return {
        stream: [(record.seq, bytes(record.payload)) for record in bench.records(stream)]
        for stream in sorted(bench.journal.ends())
    }


class TestManyStreams:
    def test_a_segment_begins_with_the_streams_that_changed_since_the_snapshot(self, bench: Any) -> None:
        header, entries = first_batches(bench.directory)[-1]
        assert header.kind is fmt.Kind.STREAMS
        assert [entry.stream for entry in entries if entry.stream] == ["s"]
        assert referenced_snapshot(entries) in scan.snapshots(bench.directory)

    def test_retention_deletes_snapshots_that_no_segment_refers_to(self, open_journal: Any) -> None:
        bench = open_journal(segment_size=4 << 10, keep_bytes=12 << 10)
        for i in range(200):
            bench.append(b"%d" % i * 100, stream=f"s{i % 20}")
        needed = {referenced_snapshot(entries) for _, entries in first_batches(bench.directory)}
        kept = scan.snapshots(bench.directory)
        assert 0 not in needed
        assert set(kept) - needed <= {kept[-1]}, "the last one may be for the next segment"
        assert needed <= set(kept)
        assert {bench.journal.bounds(f"s{i}")[1] for i in range(20)} == {10}

    def test_a_snapshot_that_no_segment_refers_to_yet_is_deleted_by_the_next_start(
        self, bench: Any, open_journal: Any
    ) -> None:
        bench.close()
        end = scan.segments(bench.directory)[-1].end
        stray = scan.snapshot_path_of(bench.directory, end)
        stray.write_bytes(b"".join(snapshots.pieces(Streams(), end, bytes(16))))
        open_journal(segment_size=4 << 10)
        assert not stray.exists()

    def test_a_newer_snapshot_is_refused_as_newer_and_not_as_damaged(self, bench: Any) -> None:
        bench.close()
        path = scan.snapshot_path_of(bench.directory, scan.snapshots(bench.directory)[-1])
        path.write_bytes(sealed(path.read_bytes(), {8: 2}))
        with pytest.raises(JournalCorrupt, match=r"newer Fyrehose \(snapshot version 2; .*serve it with that version"):
            recover(bench.directory, Files())

    def test_snapshots_of_older_segments_are_kept_once_few_streams_are_left_and_none_is_needed(
        self, bench: Any, open_journal: Any
    ) -> None:
        retire(bench, *(f"quiet-{i}" for i in range(20)))
        bench.close()
        bench = open_journal(segment_size=4 << 10, stream_limits=StreamLimits(inline=100))
        for i in range(60):
            bench.append(b"%d" % i * 100)
        bench.close()
        referred = [referenced_snapshot(entries) for _, entries in first_batches(bench.directory)]
        assert referred[-1] == 0 < max(referred)
        again = open_journal(segment_size=4 << 10)
        assert {*referred} - {0} <= {*scan.snapshots(bench.directory)}
        assert not verify(again.directory).problems

    def test_a_start_deletes_snapshots_before_that_of_the_oldest_segment_and_no_other(self, bench: Any) -> None:
        for i in range(120):
            bench.append(b"%d" % i * 100, stream=f"s{i % 20}")
        bench.close()
        bench.directory.joinpath("MARK").unlink()
        referred = [referenced_snapshot(entries) for _, entries in first_batches(bench.directory)]
        which = next(at for at in range(1, len(referred)) if referred[at] > referred[at - 1] > 0)
        for segment in scan.segments(bench.directory)[:which]:
            segment.path.unlink()
        kept = sorted(set(referred[which:]))
        for position in (8, kept[0] - 8):
            scan.snapshot_path_of(bench.directory, position).write_bytes(b"of segments that are gone")
        recover(bench.directory, Files())
        assert scan.snapshots(bench.directory) == kept

    def test_a_start_keeps_all_snapshots_while_the_oldest_segment_does_not_say_which_it_needs(self, bench: Any) -> None:
        bench.close()
        oldest = scan.segments(bench.directory)[0].path
        flip(oldest, fmt.SEGMENT_HEADER.size + 30)
        stray = scan.snapshot_path_of(bench.directory, 8)
        stray.write_bytes(b"perhaps of the oldest segment")
        assert recover(bench.directory, Files()).streams.ends == bench.journal.ends()
        assert stray.exists()


class TestDamage:
    def harm(self, bench: Any, how: str) -> Path:
        bench.close()
        path = scan.snapshot_path_of(bench.directory, scan.snapshots(bench.directory)[-1])
        data = bytearray(path.read_bytes())
        if how == "missing":
            path.unlink()
            return path
        if how == "flipped":
            data[len(data) // 2] ^= 1
        elif how == "cut":
            del data[-10:]
        else:  # a snapshot of another position
            data = bytearray(b"".join(snapshots.pieces(Streams({"a": 1}), 8, bytes(16))))
        path.write_bytes(data)
        return path

    @pytest.mark.parametrize("how", ["missing", "flipped", "cut", "another"])
    def test_damaged_snapshot_is_refused_by_name_and_nothing_is_changed(self, bench: Any, how: str) -> None:
        path = self.harm(bench, how)
        before = sorted(bench.directory.iterdir())
        with pytest.raises(JournalCorrupt, match=path.name):
            recover(bench.directory, Files())
        assert sorted(bench.directory.iterdir()) == before
        assert any(path.name in str(problem) for problem in verify(bench.directory).problems)

    @pytest.mark.parametrize("how", ["missing", "flipped", "cut", "another"])
    def test_quarantine_rebuilds_a_snapshot_from_the_segments(self, bench: Any, open_journal: Any, how: str) -> None:
        before = everything(bench)
        path = self.harm(bench, how)
        damaged = path.read_bytes() if path.exists() else None
        again = open_journal(segment_size=4 << 10, quarantine=True)
        assert everything(again) == before
        aside = [each.read_bytes() for each in again.directory.glob("quarantine-*.streams.bytes")]
        assert aside == ([] if damaged is None else [damaged])
        assert any("replaced by a snapshot of the" in note for note in again.journal.report.notes)
        again.append(b"new", stream="never seen")
        assert again.records("never seen")[0].seq > 1  # above every number that a stream without a trace can have had
        assert not verify(again.directory).problems

    def test_quarantine_mends_the_beginning_of_a_segment(self, bench: Any, open_journal: Any) -> None:
        before = everything(bench)
        bench.close()
        last = scan.segments(bench.directory)[-1].path
        flip(last, 140)  # the first batch, which has no room for all streams
        again = open_journal(segment_size=4 << 10, quarantine=True)
        assert everything(again) == before
        assert not verify(again.directory).problems


@pytest.mark.parametrize("seed", range(16))
def test_random_streams_agree_with_a_plain_table_over_restarts(open_journal: Any, seed: int) -> None:
    """Streams are written, retired, forgotten and created again, in segments that begin with a list or a snapshot."""
    random = Random(seed)
    limits = StreamLimits(inline=random.choice((0, 4, 100)), retired=random.choice((0, 1, 3, 100)))
    settings = {"segment_size": 4 << 10, "stream_limits": limits, "keep_bytes": random.choice((0, 12 << 10))}
    records: dict[str, list[tuple[int, bytes]]] = {}  #: of the streams that are not retired
    retired: dict[str, int] = {}
    floor, bench = 0, open_journal(**settings)
    for step in range(120):
        what, name = random.choice(("append", "append", "append", "retire", "restart")), f"s{random.randrange(9)}"
        if what == "append":
            first = records[name][-1][0] + 1 if name in records else retired.pop(name, floor) + 1
            payloads = [b"%d" % step * random.choice((1, 100))] * random.choice((1, 2, 5))
            bench.next[name] = first
            bench.append(*payloads, stream=name)
            records.setdefault(name, []).extend(enumerate(payloads, first))
        elif what == "retire":
            names = random.choice(((name,), (name, "s1", "unknown")))
            known = [each for each in dict.fromkeys(names) if each in records]
            forgotten = list(retired)[: max(0, len(retired) + len(known) - limits.retired)]
            floor = max([floor, *(retired.pop(each) for each in forgotten)])
            retired |= {each: records.pop(each)[-1][0] for each in known}
            assert retire(bench, *names) is None
            assert all(bench.journal.read(each, 1, 1000) == () for each in retired), "a retired stream is served"
        elif random.random() < 0.3:
            random.choice((bench.close, bench.crash))()
            for index in bench.directory.glob("*.index") if random.random() < 0.3 else ():
                index.unlink()
            bench = open_journal(**settings)
        assert dict(bench.journal.ends()) == {each: found[-1][0] for each, found in records.items()}
        assert (dict(bench.journal.retired()), bench.journal.floor) == (retired, floor)
        for each, last in retired.items():
            assert bench.journal.bounds(each) == (last + 1, last)
    found = everything(bench)
    for each, wrote in records.items():
        assert found[each] == wrote[len(wrote) - len(found[each]) :], "other records than were written"
        assert len(found[each]) == len(wrote) or settings["keep_bytes"]
        assert bench.journal.bounds(each) == (found[each][0][0] if found[each] else wrote[-1][0] + 1, wrote[-1][0])
    assert not verify(bench.directory).problems


def test_new_segment_does_not_list_short_lived_streams(open_journal: Any) -> None:
    bench = open_journal(segment_size=4 << 10)
    for i in range(40):
        bench.append(b"x", stream=f"short-lived-{i}")
    retire(bench, *(f"short-lived-{i}" for i in range(40)))
    for i in range(100):
        bench.append(b"%d" % i * 100)
    _, entries = first_batches(bench.directory)[-1]
    assert [entry.stream for entry in entries if entry.stream] == ["s"]


@given(
    st.dictionaries(names, st.integers(1, 1 << 48), max_size=30),
    st.dictionaries(names, st.integers(1, 1 << 48), max_size=30),
    st.integers(0, 1 << 48),
)
def test_streams_survive_a_round_trip_through_a_snapshot(
    live: dict[str, int], retired: dict[str, int], floor: int
) -> None:
    retired = {name: last for name, last in retired.items() if name not in live}
    reserved = {name: last + 7 for name, last in list(live.items())[::3]}
    put = Streams(live, retired, dict.fromkeys(list(live)[::2], 1), reserved, floor=floor)
    found = snapshots.Snapshot.of(b"".join(snapshots.pieces(put, 77, bytes(range(16)))), 77)
    got = found.streams()
    assert (got.ends, got.retired, got.starts, got.floor, got.reserved) == (live, retired, put.starts, floor, reserved)
    assert (found.position, found.identity) == (77, bytes(range(16)))
    assert {name: found.last(name) for name in live | retired} == live | retired
    assert found.last("\x00 not there") == floor


def test_every_flipped_bit_of_a_snapshot_is_detected() -> None:
    data = b"".join(snapshots.pieces(Streams({"a": 1, "bb": 2}), 77, bytes(range(16))))
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(fmt.Damage):
            snapshots.Snapshot.of(bytes(changed), 77)


@pytest.mark.parametrize("at", [48, 52], ids=["rows", "size of the names"])
def test_lengths_of_a_snapshot_that_contradict_each_other_are_damage(at: int) -> None:
    """Lengths are checked even if the checksum is right, because a writer may have a bug."""
    data = b"".join(snapshots.pieces(Streams({"a": 1, "bb": 2}), 77, bytes(range(16))))
    assert snapshots.Snapshot.of(sealed(data, {}), 77).rows == 2
    with pytest.raises(fmt.Damage, match="contradict"):
        snapshots.Snapshot.of(sealed(data, {at: data[at] + 1}), 77)


def change(of: Streams, dice: Random) -> str:
    """Change *of* as a batch of the log does; return what was done."""
    stream = f"s{dice.randrange(12)}"
    end = of.ends.get(stream, of.retired.get(stream, of.floor))
    did = dice.choice(["wrote", "wrote", "wrote", "reserve", "skip", "retire", "close"])
    if did == "wrote":
        of.wrote(stream, end + 1, end + dice.randrange(1, 9))
    elif did == "reserve":
        if stream in of.ends:
            of.replay(fmt.Kind.RESERVED, [Entry(stream, end + dice.randrange(1, 50), 0)])
    elif did == "skip":
        of.replay(fmt.Kind.GAP, [Entry(stream, end + 1, end + 3), Entry("", 1, of.floor + dice.randrange(2))])
    elif did == "retire":
        of.replay(fmt.Kind.STREAMS, of.retiring(dice.sample([*of.ends, "unknown"], 1)))
    elif dice.random() < 0.3:
        of.replay(fmt.Kind.CLOSED, [])
    return did


def loaded(files: dict[int, Streams], position: int) -> Streams:
    return files[position].copy()


def state(of: Streams) -> tuple[object, ...]:
    reserved = {stream: last for stream, last in of.reserved.items() if last > of.ends.get(stream, 0)}
    return of.ends, of.retired, of.starts, of.floor, reserved


@pytest.mark.parametrize("kept", [10, 2, 1, 0])
def test_a_segment_begins_with_the_streams_of_the_snapshot_and_all_that_changed_since(kept: int) -> None:
    """This also holds if so many streams were retired since that some of them are forgotten."""
    ran = Counter[str]()
    for seed in range(200):
        dice = Random(seed)
        of = Streams(limits=StreamLimits(inline=3, retired=kept))
        files: dict[int, Streams] = {}
        captured: Streams | None = None
        for position in range(1, 60):
            ran[change(of, dice)] += 1
            assert len(of.retired) <= max(kept, 1)
            if captured is None and dice.random() < 0.2:
                captured = of.capture()
            elif captured is not None and dice.random() < 0.3:
                files[position], captured = captured, None
                of.adopt(position)
                ran["adopted"] += 1
            elif captured is not None and dice.random() < 0.1:
                captured = None
                of.abandon()
            if dice.random() < 0.2:
                kind, entries = of.beginning()
                again = streams_at_start(entries, partial(loaded, files))
                assert state(again) == state(of), f"seed {seed}, position {position}: {kind}"
                ran["begins with a snapshot" if of.snapshot else "lists all"] += 1
    assert min(ran.values()) > 100, f"each happens often: {ran}"


def test_entries_of_a_returned_stream_have_the_last_number_that_is_not_served() -> None:
    of = Streams({"s": 9}, starts={"s": 4})
    assert of.since(0, ["s"])[:2] == [Entry("s", 9, 9), Entry("s", 0, 4, fmt.StreamState.BACK)]


def test_a_journal_that_was_closed_in_order_has_given_out_no_more_than_it_wrote() -> None:
    """Closing releases reserved numbers; otherwise the next kill would leave a gap of a million numbers."""
    of = Streams({"idle": 5, "busy": 9}, reserved={"idle": 1000, "busy": 2000})
    assert of.unwritten() == [Entry("idle", 6, 1000), Entry("busy", 10, 2000)]
    of.replay(fmt.Kind.CLOSED, [])
    assert of.unwritten() == []


def test_more_retired_streams_than_are_remembered_are_forgotten_with_a_floor() -> None:
    found = Streams({"a": 5, "b": 2}, {"c": 7, "d": 3}, floor=4, limits=StreamLimits(retired=2))
    retired, forgotten, live = fmt.StreamState.RETIRED, fmt.StreamState.FORGOTTEN, fmt.StreamState.LIVE
    assert found.retiring(["a", "unknown", "a"]) == [
        fmt.Entry("a", 0, 5, retired),
        fmt.Entry("c", 0, 7, forgotten),
        fmt.Entry("", 0, 7, live),
    ]
    assert found.retiring(["unknown"]) == []
    found.apply(found.retiring(["a"]))
    assert (found.ends, found.retired, found.floor) == ({"b": 2}, {"d": 3, "a": 5}, 7)


def test_numbers_that_were_reserved_and_not_written_are_gaps() -> None:
    found = Streams({"some": 2, "all": 4}, reserved={"none": 9, "some": 3, "all": 4})
    assert found.unwritten() == [fmt.Entry("none", 1, 9), fmt.Entry("some", 3, 3)]


def test_retention_deletes_all_snapshots_before_a_segment_that_lists_all_streams(open_journal: Any) -> None:
    bench = open_journal(segment_size=4 << 10, keep_bytes=12 << 10)
    stray = scan.snapshot_path_of(bench.directory, 64)
    stray.write_bytes(b"".join(snapshots.pieces(Streams(), 64, bytes(16))))
    for i in range(60):
        bench.append(b"%d" % i * 200)
    assert not stray.exists()
