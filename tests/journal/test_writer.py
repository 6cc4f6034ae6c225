"""The writer: commits, roll-over, snapshots, zeros; after a failed sync it refuses everything."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from fyrehose.journal import scan
from fyrehose.journal.recovery import Recovered, recover
from fyrehose.journal.streams import RESERVE, StreamLimits
from fyrehose.journal.writer import AHEAD, PAGE, SMALL, NoRoom, SyncFailed, Writer
from fyrehose.records import LAST_SEQ, Run
from tests.doubles.files import FaultyFiles

#: The limits of a server.
LIMITS = StreamLimits()


def writer(
    directory: Path,
    files: FaultyFiles,
    sync_each: bool = False,
    segment_size: int = 1 << 16,
    limits: StreamLimits = LIMITS,
) -> Writer:
    made = Writer(directory, recover(directory, files), segment_size, sync_each, files, limits=limits)
    made.open(1)
    return made


def numbered(first: int, *payloads: bytes, stream: str = "s") -> list[list[Run]]:
    return [[Run.of(stream, payloads, source="t").numbered(first, 1)]]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("sync_each", [True, False])
def test_nothing_is_written_after_a_failed_sync(tmp_path: Path, sync_each: bool) -> None:
    """The kernel reports a lost page once: the next sync succeeds, and the mark would be wrong."""
    files = FaultyFiles()
    of = writer(tmp_path, files, sync_each)
    of.commit(numbered(1, b"kept"), 1, 1)
    of.sync()
    mark = scan.read_mark(tmp_path)
    files.name, files.nth = "sync", files.calls["sync"] + 1

    def commit() -> None:
        of.commit(numbered(2, b"lost"), 1, 1)
        of.sync()

    with pytest.raises(SyncFailed):
        commit()
    syncs, writes = files.calls["sync"], files.calls["write"]
    jobs = (
        of.sync,
        of.make_room,
        of.prepare,
        lambda: of.keep_from(0),
        lambda: of.retire(["s"]),
        lambda: of.commit(numbered(3, b"x" * 70_000), 1, 1),
        lambda: of.commit(numbered(3, b"x"), 1, 1),
        lambda: of.close(True),
    )
    for job in jobs:
        with pytest.raises(SyncFailed):
            job()
    assert of.streams.retired == {}
    assert (files.calls["sync"], files.calls["write"]) == (syncs, writes)
    assert scan.read_mark(tmp_path) == mark


@pytest.mark.parametrize(("name", "error"), [("rename", OSError), ("sync_directory", SyncFailed), ("sync", SyncFailed)])
def test_failed_roll_over_leaves_no_open_file(tmp_path: Path, name: str, error: type) -> None:
    files = FaultyFiles()
    before = descriptors()
    of = writer(tmp_path, files, sync_each=True)
    of.commit(numbered(1, b"x"), 1, 1)
    files.name, files.nth = name, files.calls[name] + 1
    with pytest.raises((error, NoRoom)):
        of.commit(numbered(2, b"y" * 70_000), 1, 1)
    of.close(in_order=False)
    assert descriptors() == before
    assert not list(tmp_path.glob("*.new"))


def test_reserved_numbers_end_at_the_largest_number(tmp_path: Path) -> None:
    of = writer(tmp_path, FaultyFiles())
    of.commit(numbered(1, b"x", stream="new"), 1, 1)
    of.commit(numbered(LAST_SEQ - 3, b"x"), 1, 1)
    of.close(in_order=False)
    found = recover(tmp_path, FaultyFiles())
    assert {gap.stream: (gap.first, gap.last) for gap in found.gaps} == {
        "new": (2, RESERVE + 1),
        "s": (LAST_SEQ - 2, LAST_SEQ),
    }


def test_commit_is_never_split_between_segments(tmp_path: Path) -> None:
    of = writer(tmp_path, FaultyFiles(), segment_size=4096)
    of.commit(numbered(1, b"x" * 3000), 1, 1)
    batches = [*numbered(2, b"y" * 3000), *numbered(3, b"z" * 3000)]
    committed = of.commit(batches, 1, 1)
    assert committed.rolled is not None
    assert {batch.position >= committed.rolled.base for batch in committed.batches} == {True}
    of.close(in_order=True)
    assert scan.path_of(tmp_path, committed.rolled.base).stat().st_size == of.position - of.base
    assert recover(tmp_path, FaultyFiles()).closed


def test_make_room_allocates_the_rest_of_the_segment_only(tmp_path: Path) -> None:
    files = FaultyFiles()
    of = writer(tmp_path, files, segment_size=8192)
    of.commit(numbered(1, b"x" * 3000), 1, 1)
    os.truncate(scan.path_of(tmp_path, 0), of.position)
    of.make_room()
    assert scan.path_of(tmp_path, 0).stat().st_size == 8192
    of.commit(numbered(2, b"x" * 9000), 1, 1)  # in a segment of its own, which is longer than segments are
    files.name, files.nth = "allocate", files.calls["allocate"] + 1
    of.make_room()
    files.name = ""
    of.commit(numbered(3, b"x" * 3000), 1, 1)
    os.truncate(scan.path_of(tmp_path, of.base), of.position - of.base)
    of.make_room()
    assert scan.path_of(tmp_path, of.base).stat().st_size == 8192
    of.close(in_order=True)


def test_writer_that_syncs_each_commit_reserves_no_numbers(tmp_path: Path) -> None:
    """The numbers that the last process had reserved become a gap."""
    of = writer(tmp_path, FaultyFiles(), segment_size=4096)
    of.commit(numbered(1, b"x"), 1, 1)
    of.close(in_order=False)
    of = writer(tmp_path, FaultyFiles(), sync_each=True, segment_size=4096)
    of.commit(numbered(RESERVE + 2, b"x" * 3000), 1, 1)
    rolled = of.commit(numbered(RESERVE + 3, b"x" * 3000), 1, 1).rolled
    assert rolled is not None
    assert {(entry.stream, entry.first, entry.last) for entry in rolled.entries if entry.stream} == {
        ("s", RESERVE + 2, RESERVE + 2)
    }
    of.close(in_order=False)
    assert recover(tmp_path, FaultyFiles()).gaps == []


def test_a_segment_that_was_deleted_is_noticed_before_the_next_is_begun(tmp_path: Path) -> None:
    of = writer(tmp_path, FaultyFiles(), segment_size=4096)
    of.commit(numbered(1, b"x" * 3000), 1, 1)
    scan.path_of(tmp_path, 0).unlink()
    with pytest.raises(SyncFailed, match="position 0 was deleted while it was being written"):
        of.commit(numbered(2, b"x" * 3000), 1, 1)
    of.close(in_order=False)
    assert scan.segments(tmp_path) == []


class TestSnapshots:
    few = StreamLimits(inline=2)

    def test_snapshot_is_due_once_per_nearly_full_segment(self, tmp_path: Path) -> None:
        of = writer(tmp_path, FaultyFiles(), segment_size=8192, limits=self.few)
        for name in "abc":
            of.commit(numbered(1, b"", stream=name), 1, 1)
        due = []
        for seq in range(1, 40):
            committed = of.commit(numbered(seq, b"x" * 400), 1, 1)
            if committed.many:
                due.append((of.base, of.position - of.base > 6000))
        assert of.base > 8192
        assert due == [(base, True) for base, _ in due]
        assert len({base for base, _ in due}) == len(due) >= 2
        of.close(in_order=True)

    @pytest.mark.parametrize("call", ["open", "write", "sync", "rename"])
    def test_snapshot_that_could_not_be_written_is_not_referenced(self, tmp_path: Path, call: str) -> None:
        files = FaultyFiles()
        of = writer(tmp_path, files, segment_size=4096, limits=self.few)
        for name in "abc":
            of.commit(numbered(1, b"", stream=name), 1, 1)
        files.name, files.nth = call, files.calls[call] + 1
        with pytest.raises(OSError, match="Input/output error"):
            list(of.snapshot())
        of.commit(numbered(1, b"x" * 4000), 1, 1)
        of.close(in_order=True)
        assert scan.snapshots(tmp_path) == []
        assert len(recover(tmp_path, FaultyFiles()).streams.ends) == 4

    @pytest.mark.parametrize("seed", range(20))
    def test_last_segment_and_its_snapshot_have_the_ends_of_all_streams(self, tmp_path: Path, seed: int) -> None:
        """Segments before the last are deleted, as retention does, so that a start cannot replay them."""
        dice, of = Random(seed), writer(tmp_path, FaultyFiles(), segment_size=4096, limits=self.few)
        ends: dict[str, int] = {}
        retired: dict[str, int] = {}
        writing: Iterator[None] | None = None
        for _ in range(dice.randint(20, 60)):
            stream = f"s{dice.randrange(8)}"
            if dice.random() < 0.1 and stream in ends:
                of.retire([stream])
                retired[stream] = ends.pop(stream)
            else:
                ends[stream] = retired.pop(stream, ends.get(stream, 0)) + 1
                of.commit(numbered(ends[stream], b"x" * 300, stream=stream), 1, 1)
            if writing is None and dice.random() < 0.05:
                writing = of.snapshot()
            if writing is not None and dice.random() < 0.3 and next(writing, of) is of:
                writing = None
        of.keep_from(of.base)
        of.close(in_order=True)
        for segment in scan.segments(tmp_path)[:-1]:
            segment.path.unlink()
        found = recover(tmp_path, FaultyFiles()).streams
        assert (found.ends, found.retired) == (ends, retired)


def test_a_new_journal_has_the_specified_positions(tmp_path: Path) -> None:
    of = Writer(tmp_path, Recovered(directory=tmp_path), 4096, True, FaultyFiles())
    of.open(5)
    assert of.base == 0
    assert of.durable == of.position > 64
    assert scan.read_mark(tmp_path) == of.position
    reader = scan.SegmentReader(scan.path_of(tmp_path, 0), 0)
    header, _ = reader.batch(64)
    reader.close()
    assert (header.time, header.clock, header.durable) == (5, 5, 0)
    assert scan.look_at_mark(tmp_path, FaultyFiles()).begin == 0
    of.close(in_order=True)


@pytest.mark.parametrize("nth", [1, 2])
def test_a_writer_that_failed_to_open_closes_only_its_own_files(tmp_path: Path, nth: int) -> None:
    before = descriptors()
    of = Writer(tmp_path, Recovered(directory=tmp_path), 4096, True, FaultyFiles(name="open", nth=nth))
    with pytest.raises(OSError, match="Input/output error"):
        of.open(5)
    of.close(in_order=False)
    assert descriptors() == before


class TestPreparing:
    """Zeros are written ahead where small commits go next; they only make syncs faster."""

    def test_zeros_are_written_ahead_for_small_commits(self, tmp_path: Path) -> None:
        of = writer(tmp_path, FaultyFiles(), sync_each=True, segment_size=4 * AHEAD)
        assert of.commit(numbered(1, b"x"), 1, 1).bare
        of.prepare()
        assert not of.commit(numbered(2, b"x"), 1, 1).bare
        assert not of.commit(numbered(3, b"x" * SMALL), 1, 1).bare, "it is large"
        for seq in range(4, 12):
            bare = of.commit(numbered(seq, b"x" * (SMALL - 1000)), 1, 1).bare
        assert bare, "it comes to the end of what was prepared"
        of.close(in_order=True)

    def test_zeros_are_not_written_ahead_if_commits_are_not_synced(self, tmp_path: Path) -> None:
        of = writer(tmp_path, FaultyFiles(), sync_each=False, segment_size=4 * AHEAD)
        assert not of.commit(numbered(1, b"x"), 1, 1).bare
        of.close(in_order=True)

    def test_zeros_are_written_ahead_in_a_later_segment(self, tmp_path: Path) -> None:
        of = writer(tmp_path, FaultyFiles(), sync_each=True, segment_size=3 * AHEAD)
        of.commit(numbered(1, b"x" * 2 * AHEAD), 1, 1)
        assert of.commit(numbered(2, b"x" * 2 * AHEAD), 1, 1).rolled is not None
        of.commit(numbered(3, b"x" * 2 * AHEAD), 1, 1)
        assert of.base > 3 * AHEAD
        of.close(in_order=True)
        of = writer(tmp_path, FaultyFiles(), sync_each=True, segment_size=4 * AHEAD)
        of.prepare()
        assert of.commit(numbered(4, b"x" * 1000), 1, 1).bare is False
        of.close(in_order=True)

    def test_prepare_writes_zeros_from_the_next_page_on(self, tmp_path: Path) -> None:
        files = FaultyFiles()
        of = writer(tmp_path, files, sync_each=True, segment_size=4 * AHEAD)
        of.commit(numbered(1, b"x"), 1, 1)
        end = of.position
        before = scan.path_of(tmp_path, 0).read_bytes()
        syncs = files.calls["sync"]
        of.prepare()
        assert files.calls["sync"] == syncs + 1
        assert of.position == of.durable == end
        assert scan.path_of(tmp_path, 0).read_bytes() == before, "they were zeros, but not written"
        writes = files.calls["write"]
        of.prepare()
        assert files.calls["write"] == writes, "there are enough"
        of.close(in_order=False)
        assert recover(tmp_path, FaultyFiles()).position == end

    def test_prepare_stays_within_the_segment(self, tmp_path: Path) -> None:
        of = writer(tmp_path, FaultyFiles(), sync_each=True, segment_size=3 * PAGE)
        of.commit(numbered(1, b"x"), 1, 1)
        of.prepare()
        assert scan.path_of(tmp_path, 0).stat().st_size == 3 * PAGE
        assert not of.commit(numbered(2, b"x"), 1, 1).bare
        of.close(in_order=False)

    def test_commits_continue_if_zeros_cannot_be_written(self, tmp_path: Path) -> None:
        files = FaultyFiles()
        of = writer(tmp_path, files, sync_each=True, segment_size=4 * AHEAD)
        of.commit(numbered(1, b"x"), 1, 1)
        files.name, files.nth, files.short = "write", files.calls["write"] + 1, 5000
        of.prepare()
        committed = of.commit(numbered(2, b"y"), 1, 1)
        assert not committed.bare, "it is not tried again and again"
        of.close(in_order=False)
        assert recover(tmp_path, FaultyFiles()).streams.ends == {"s": 2}

    def test_failed_sync_of_zeros_fails_the_writer(self, tmp_path: Path) -> None:
        files = FaultyFiles()
        of = writer(tmp_path, files, sync_each=True, segment_size=4 * AHEAD)
        of.commit(numbered(1, b"x"), 1, 1)
        files.name, files.nth = "sync", files.calls["sync"] + 1
        with pytest.raises(SyncFailed):
            of.prepare()
        with pytest.raises(SyncFailed):
            of.commit(numbered(2, b"y"), 1, 1)
        of.close(in_order=False)

    def test_zeros_are_written_ahead_again_after_a_truncation(self, tmp_path: Path) -> None:
        files = FaultyFiles()
        of = writer(tmp_path, files, sync_each=True, segment_size=4 * AHEAD)
        of.commit(numbered(1, b"x"), 1, 1)
        of.prepare()
        files.name, files.nth, files.short = "write", files.calls["write"] + 1, 10
        with pytest.raises((NoRoom, OSError)):
            of.commit(numbered(2, b"y"), 1, 1)
        assert of.commit(numbered(2, b"y"), 1, 1).bare, "the cut took the zeros away"
        of.close(in_order=False)


@pytest.mark.parametrize("segments", [1, 2])
def test_short_write_is_truncated(tmp_path: Path, segments: int) -> None:
    """No bytes remain behind the end of the log that look like a batch or a torn tail."""
    files = FaultyFiles()
    of = writer(tmp_path, files, sync_each=True)
    if segments == 2:
        of.commit(numbered(1, bytes(1 << 16), stream="t"), 1, 1)
    of.commit(numbered(1, b"kept"), 1, 1)
    assert len(scan.segments(tmp_path)) == segments
    end, before = of.position, of.durable
    files.name, files.nth, files.error, files.short = "write", files.calls["write"] + 1, errno.ENOSPC, 50
    with pytest.raises(NoRoom):
        of.commit(numbered(2, b"x" * 100), 1, 1)
    assert files.log[-3:] == ["write", "truncate", "sync"], "or a power cut brings the rest of the batch back"
    assert (of.position, of.durable) == (end, before)
    assert scan.path_of(tmp_path, of.base).stat().st_size == end - of.base
    of.commit(numbered(2, b"again"), 1, 1)
    of.close(in_order=True)
    found = recover(tmp_path, files)
    assert (found.streams.ends["s"], found.closed, found.notes) == (2, True, [])


def test_the_time_never_goes_back(tmp_path: Path) -> None:
    of = writer(tmp_path, FaultyFiles())
    batches = [of.commit(numbered(n, b"x"), time, time).batches[0] for n, time in enumerate((50, 30, 60), 1)]
    reader = scan.SegmentReader(scan.path_of(tmp_path, of.base), of.base)
    headers = [reader.batch_header(batch.position) for batch in batches]
    reader.close()
    assert [(header.time, header.clock) for header in headers] == [(50, 50), (50, 30), (60, 60)]
    of.close(in_order=True)


def test_commit_larger_than_a_segment_leaves_no_segment_empty(tmp_path: Path) -> None:
    of = writer(tmp_path, FaultyFiles(), segment_size=4096)
    for seq in (1, 2, 3):
        of.commit(numbered(seq, b"x" * 9000), 1, 1)
    of.close(in_order=True)
    assert len(scan.segments(tmp_path)) == 3


def test_nothing_is_synced_twice(tmp_path: Path) -> None:
    files = FaultyFiles()
    of = writer(tmp_path, files)
    of.commit(numbered(1, b"x"), 1, 1)
    of.sync()
    syncs = files.calls["sync"]
    of.sync()
    assert files.calls["sync"] == syncs
    of.close(in_order=True)


def test_numbers_are_reserved_again_when_all_were_used(tmp_path: Path) -> None:
    files = FaultyFiles()
    of = writer(tmp_path, files, limits=StreamLimits(reserve=3))
    synced = []
    for seq in range(1, 7):
        before = files.calls["sync"]
        of.commit(numbered(seq, b"x"), 1, 1)
        synced.append(files.calls["sync"] - before)
    assert synced == [1, 0, 0, 0, 1, 0]
    of.close(in_order=True)


def test_a_failed_disk_is_not_reported_as_full_when_streams_are_retired(tmp_path: Path) -> None:
    files = FaultyFiles()
    of = writer(tmp_path, files)
    of.commit(numbered(1, b"x"), 1, 1)
    files.name, files.nth, files.error = "write", files.calls["write"] + 1, errno.ENOSPC
    with pytest.raises(NoRoom):
        of.retire(["s"])
    assert of.streams.ends == {"s": 1}
    files.name, files.nth, files.error = "write", files.calls["write"] + 1, errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        of.retire(["s"])
    of.close(in_order=False)
