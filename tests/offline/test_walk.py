"""Walking through a journal: batches in order, nothing beyond the mark, and damage in between."""

from __future__ import annotations

import os
from pathlib import Path

import attrs
import pytest
from crc32c import crc32c

from fyrehose.errors import JournalCorrupt, JournalError
from fyrehose.journal import scan
from fyrehose.offline.walk import Batch, Damaged, Log, SegmentStart, walk


def fill(bench, count: int = 60) -> list[bytes]:  # type: ignore[no-untyped-def]
    wrote = [b"%04d" % i * 20 for i in range(count)]
    for payload in wrote:
        bench.append(payload)
    return wrote


def payloads(directory: Path, everything: bool = False) -> list[bytes]:
    return [
        record.payload
        for found in walk(Log.of(directory), everything)
        if isinstance(found, Batch)
        for run in found.runs()
        for record in run.records()
    ]


@pytest.mark.parametrize("everything", [False, True])
def test_walk_yields_all_batches_in_order_while_the_server_writes(open_journal, everything: bool) -> None:
    bench = open_journal(segment_size=4096)
    wrote = []
    for i in range(100):
        wrote.append(b"%04d" % i * 20)
        bench.append(wrote[-1])
        if i % 10 == 0:
            assert payloads(bench.directory, everything) == wrote
    found = list(walk(Log.of(bench.directory)))
    assert [part.segment.base for part in found if isinstance(part, SegmentStart)] == [
        segment.base for segment in scan.segments(bench.directory)
    ]
    assert not [part for part in found if isinstance(part, Damaged)]


def test_nothing_beyond_the_durable_mark_is_read(open_journal) -> None:
    bench = open_journal()
    wrote = fill(bench, 10)
    mark = scan.read_mark(bench.directory)
    bench.append(b"beyond")
    (bench.directory / "MARK").write_bytes(scan.pack_mark(mark))
    assert payloads(bench.directory) == wrote
    assert payloads(bench.directory, everything=True) == [*wrote, b"beyond"]


def test_a_torn_tail_does_not_count_as_damage(open_journal) -> None:
    bench = open_journal()
    wrote = fill(bench, 10)
    end = bench.journal.writer.position
    bench.crash()
    with scan.segments(bench.directory)[-1].path.open("r+b") as file:
        file.seek(end)
        file.write(b"FYB\x01 that was being written")
    for everything in (False, True):
        assert payloads(bench.directory, everything) == wrote
        assert not [part for part in walk(Log.of(bench.directory), everything) if isinstance(part, Damaged)]


def test_without_a_mark_file_the_batches_tell_how_far_to_walk(open_journal) -> None:
    bench = open_journal(segment_size=4096)
    wrote = fill(bench)
    bench.close()
    (bench.directory / "MARK").unlink()
    assert payloads(bench.directory) == wrote, "the batch that closed the journal says so"
    assert payloads(bench.directory, everything=True) == wrote


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("flip", "damaged"),
        ("header", "header of the segment"),
        ("missing", "missing or truncated"),
        ("cut", "missing or truncated"),
        ("last missing", "end of the log is missing"),
        ("unreadable", "cannot be read"),
    ],
)
def test_damage_is_yielded_and_the_walk_continues(open_journal, what: str, reason: str, monkeypatch) -> None:
    bench = open_journal(segment_size=4096)
    wrote = fill(bench)
    bench.close()
    found = scan.segments(bench.directory)
    path = found[-1 if what == "last missing" else 1].path
    if what in ("flip", "header"):
        with path.open("r+b") as file:
            file.seek(1000 if what == "flip" else 10)
            file.write(b"\xff\xff")
    elif what == "cut":
        os.truncate(path, 1500)
    elif what == "unreadable":
        batch = scan.SegmentReader.batch

        def refuse(self: scan.SegmentReader, position: int) -> object:
            if self.base == found[1].base:
                raise OSError(5, "Input/output error")
            return batch(self, position)

        monkeypatch.setattr(scan.SegmentReader, "batch", refuse)
    else:
        path.unlink()
    damage = [part for part in walk(Log.of(bench.directory)) if isinstance(part, Damaged)]
    assert [part for part in damage if reason in part.reason]
    assert isinstance(damage[0].error(), JournalCorrupt)
    left = payloads(bench.directory)
    assert left == [payload for payload in wrote if payload in left]
    if what == "header":
        assert left == wrote
    else:
        assert len(left) < len(wrote)
        assert (left[-1] == wrote[-1]) == (what != "last missing")


def test_batch_with_another_chain_is_reported(open_journal) -> None:
    bench = open_journal()
    fill(bench, 3)
    bench.append(b"x")
    bench.close()
    last = [found for found in walk(Log.of(bench.directory)) if isinstance(found, Batch)][-1]
    at, chain = last.header.position, last.header.chain ^ 1
    checksum = crc32c(last.body, chain)
    with last.segment.path.open("r+b") as file:
        file.seek(at - last.segment.base)
        file.write(attrs.evolve(last.header, chain=chain, checksum=checksum).pack())
    (damage,) = [part for part in walk(Log.of(bench.directory)) if isinstance(part, Damaged)]
    assert damage.start == damage.stop == at


def test_segments_deleted_meanwhile_are_left_out(open_journal) -> None:
    bench = open_journal(segment_size=4096)
    wrote = fill(bench)
    log = Log.of(bench.directory)
    for segment in log.segments[:2]:
        segment.path.unlink()
    left = [r.payload for part in walk(log) if isinstance(part, Batch) for run in part.runs() for r in run.records()]
    assert left == wrote[-len(left) :]


def test_directory_without_a_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="is no journal"):
        Log.of(tmp_path)
    (tmp_path / "MARK").write_bytes(scan.pack_mark(9))
    with pytest.raises(JournalCorrupt, match="has no segments"):
        Log.of(tmp_path)
