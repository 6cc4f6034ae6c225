"""Reading a log batch by batch for a backup: every byte is checked, and the end is found."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from fyrehose.errors import JournalCorrupt, JournalUnreachable
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.offline.mirror import batches, begin, reach, tail_of
from fyrehose.offline.places import Directory
from fyrehose.offline.view import differ
from fyrehose.offline.walk import Batch, Log, walk


@pytest.fixture
def source(open_journal: Any) -> Any:
    bench = open_journal(segment_size=4096)
    for number in range(30):
        bench.append(b"%03d" % number + b"." * 300)
    return bench


def opened(directory: Path, which: int) -> scan.SegmentReader:
    segment = scan.segments(directory)[which]
    return scan.SegmentReader(segment.path, segment.base)


def test_batches_yield_the_bytes_of_the_segment(source: Any) -> None:
    reader = opened(source.directory, 1)
    end = scan.segments(source.directory)[2].base
    head, tail = begin(reader, None)
    data = head + b"".join(bytes(piece) for _, pieces in batches(reader, tail, end) for piece in pieces)
    reader.close()
    assert data == reader.path.read_bytes()
    assert tail.position == end
    assert tail.index.pack() == scan.index_path_of(source.directory, reader.base).read_bytes()
    following = opened(source.directory, 2)
    begin(following, tail.chain)
    with pytest.raises(fmt.Damage, match="does not continue"):
        begin(following, 7)
    following.close()


def test_batch_beyond_the_durable_end_is_damage(source: Any) -> None:
    reader = opened(source.directory, 0)
    _, tail = begin(reader, None)
    with pytest.raises(fmt.Damage, match="the batch reaches beyond position 500"):
        list(batches(reader, tail, 500))
    assert tail.position <= 500
    reader.close()


def test_batch_of_another_chain_is_damage(source: Any) -> None:
    reader = opened(source.directory, 0)
    _, tail = begin(reader, None)
    tail.chain = 7
    with pytest.raises(fmt.Damage, match="does not continue from the previous one"):
        list(batches(reader, tail, 500))
    reader.close()


def test_file_with_another_segment_is_damage(source: Any, tmp_path: Path) -> None:
    reader = opened(source.directory, 1)
    other = scan.SegmentReader(reader.path, 4096 * 7)
    with pytest.raises(fmt.Damage, match=f"begins at position {reader.base}"):
        begin(other, None)
    for each in (reader, other):
        each.close()


def test_unreadable_disk_is_damage(source: Any) -> None:
    class Failing(scan.SegmentReader):
        def read(self, position: int, size: int) -> memoryview:
            raise OSError(5, "Input/output error")

    segment = scan.segments(source.directory)[0]
    reader = Failing(segment.path, segment.base)
    with pytest.raises(fmt.Damage, match="cannot be read: Input/output error"):
        begin(reader, None)
    reader.close()


def test_the_end_of_a_log_is_found_by_the_mark_or_the_last_whole_batch(source: Any) -> None:
    mark = scan.read_mark(source.directory)
    source.crash()
    found = tail_of(source.directory)
    assert found is not None
    assert found.position == mark
    (source.directory / "MARK").unlink()
    found = tail_of(source.directory)
    assert found is not None
    assert found.position == mark
    last = scan.segments(source.directory)[-1]
    os.truncate(last.path, found.position - last.base - 1)
    found = tail_of(source.directory)
    assert found is not None
    assert mark - 500 < found.position < mark
    os.truncate(last.path, 70)
    found = tail_of(source.directory)
    assert found is not None
    assert found.position == last.base, "the end of the segment before"


def test_directory_without_a_log_has_no_tail(tmp_path: Path) -> None:
    assert tail_of(tmp_path) is None


def test_identities_differ_only_if_both_are_known() -> None:
    known, other, unknown = b"a" * 16, b"b" * 16, bytes(16)
    assert differ(known, other)
    assert not any(differ(*pair) for pair in ((known, known), (known, unknown), (unknown, other), (unknown, unknown)))


@pytest.mark.parametrize(
    ("which", "at", "zeros", "refused"),
    [
        (2, 70, 0, False),
        (1, 70, 0, True),
        (1, 70, 4096, False),
        (1, 70, 4096 - 80, False),
        (1, 70, 60, True),
        (2, 4000, 4096, False),
    ],
)
def test_a_copied_journal_is_read_up_to_the_batch_that_was_being_written(
    open_journal: Any, tmp_path: Path, which: int, at: int, zeros: int, refused: bool
) -> None:
    """Damage before a durable batch is refused, unless many zeros show that the copy was made during a write."""
    bench = open_journal()
    for i in range(3):
        bench.append(b"%d" % i * 9000)
    found = [part.header for part in walk(Log.of(bench.directory)) if isinstance(part, Batch)]
    bench.crash()
    copy = tmp_path / "copy"
    shutil.copytree(bench.directory, copy)
    batch = found[1 + which]
    path = scan.path_of(copy, 0)
    data = bytearray(path.read_bytes())
    data[batch.position + at] ^= 1
    if zeros:
        page = (batch.position // 4096 + 1) * 4096
        data[page : page + zeros] = bytes(zeros)
    path.write_bytes(data)
    if refused:
        with pytest.raises(JournalCorrupt, match=f"damaged at byte {batch.position} "):
            reach(Directory(copy))
        return
    view = reach(Directory(copy))
    assert (view.mark, [(log.base, log.end) for log in view.segments]) == (
        batch.position,
        [(0, batch.position)],
    )


def test_unreadable_source_is_unreachable(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(directory: Path) -> list[scan.Segment]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(scan, "segments", unreadable)
    with pytest.raises(JournalUnreachable, match="cannot be read: Permission denied"):
        reach(Directory(source.directory))
