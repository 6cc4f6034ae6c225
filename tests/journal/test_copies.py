"""Copies that were made file by file while the server wrote, and missing oldest segments."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.copies import WINDOW, WORD, written_while_copied
from fyrehose.journal.files import Files
from fyrehose.journal.quarantine import set_aside
from fyrehose.journal.recovery import recover
from fyrehose.offline.mirror import reach
from fyrehose.offline.places import Directory
from fyrehose.offline.verify import verify
from fyrehose.offline.view import look
from fyrehose.offline.walk import Batch, Log, walk
from tests.doubles.files import flip

#: The orders in which programs copy the files of a directory.
ORDERS = ("alphabetical", "reversed", "mark first", "by size", "newest first", *(f"shuffled {i}" for i in range(5)))


def in_order(order: str, names: list[Path], dice: Random) -> list[Path]:
    """Return the files in the order in which a program copies them."""
    if order == "alphabetical":
        return sorted(names)
    if order == "reversed":
        return sorted(names, reverse=True)
    if order == "mark first":
        return sorted(names, key=lambda path: (path.name != "MARK", path.name))
    if order == "by size":
        return sorted(names, key=lambda path: path.stat().st_size)
    if order == "newest first":
        return sorted(names, key=lambda path: -path.stat().st_mtime_ns)
    return dice.sample(sorted(names), len(names))


def copied(source: Path, target: Path, piece: int) -> Iterator[None]:
    """Copy one file piece by piece; the journal may write after each piece."""
    with source.open("rb") as read, target.open("wb") as written:
        while data := read.read(piece):
            written.write(data)
            yield


class Server:
    """A journal that is written between the steps of a copy."""

    def __init__(self, bench: Any, dice: Random) -> None:
        self.bench, self.dice, self.number = bench, dice, 0

    def write(self, most: int) -> None:
        for _ in range(self.dice.randint(0, most)):
            self.number += 1
            size = self.dice.choice((10, 10, 500, 5_000, 30_000))
            assert self.bench.append(b"%d." % self.number + bytes(self.dice.randbytes(8)) * (size // 8)).called


def recovered(open_journal: Any, directory: Path) -> list[int]:
    """Start a server in the copy; return the numbers of the messages that it serves."""
    bench = open_journal(directory=directory, segment_size=128 << 10, now=lambda: 1)
    try:
        return [int(record.payload.split(b".")[0]) for record in bench.records()]
    finally:
        bench.close()


def start(open_journal: Any, directory: Path, asked: list[str]) -> list[int] | None:
    """Start a server on a copy; if it asks for a file to be copied again, add that to *asked* and return None."""
    try:
        return recovered(open_journal, directory)
    except JournalCorrupt as error:
        match = re.search(r"(\w+\.segment)\b.*copy (?:it|this file) again", str(error))
        if match is None or match[1] in asked:
            raise
        asked.append(match[1])
        return None


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(10))
def test_a_copy_under_load_starts_with_everything_that_was_durable(
    open_journal: Any, tmp_path: Path, order: str, seed: int
) -> None:
    dice = Random(f"{order} {seed}")
    bench = open_journal(segment_size=128 << 10)
    server = Server(bench, dice)
    server.write(60)
    durable = server.number
    target = tmp_path / "copy"
    target.mkdir()
    piece = dice.choice((4096, 32768))
    for source in in_order(order, [path for path in bench.directory.iterdir() if path.is_file()], dice):
        for _ in copied(source, target / source.name, piece):
            server.write(2)
    found, asked = None, []
    while found is None:
        found = start(open_journal, target, asked)
        for name in asked[-1:] if found is None else ():
            shutil.copyfile(bench.directory / name, target / name)
    assert len(asked) <= 3
    assert found[:durable] == list(range(1, durable + 1))
    assert found == list(range(1, len(found) + 1)), "no hole, nothing twice"


def test_original_is_not_mistaken_for_a_copy(open_journal: Any, tmp_path: Path) -> None:
    bench = open_journal()
    bench.append(b"x")
    assert scan.look_at_mark(bench.directory, Files()).copied is False
    bench.close()
    bench.directory.rename(tmp_path / "moved")
    assert scan.look_at_mark(tmp_path / "moved", Files()).copied is False
    shutil.copytree(tmp_path / "moved", tmp_path / "copy")
    assert scan.look_at_mark(tmp_path / "copy", Files()).copied is True


def test_original_with_a_missing_end_is_not_mistaken_for_a_copy(open_journal: Any) -> None:
    bench = open_journal()
    bench.append(b"x" * 1000)
    bench.append(b"y" * 1000)
    bench.close()
    (segment,) = scan.segments(bench.directory)
    os.truncate(segment.path, segment.size - 1064)
    with pytest.raises(JournalCorrupt, match="damaged"):
        recover(bench.directory, Files())


@pytest.fixture
def copy(open_journal: Any, tmp_path: Path) -> Path:
    """Return a copy of a journal that was not being written."""
    bench = open_journal(segment_size=4096)
    for i in range(50):
        bench.append(bytes(Random(i).randbytes(300)))
    bench.close()
    return Path(shutil.copytree(bench.directory, tmp_path / "copy"))


def test_a_copied_journal_is_checked_as_a_copy_at_its_first_start_only(open_journal: Any, copy: Path) -> None:
    assert any("is a copy" in note for note in recover(copy, Files()).notes)
    open_journal(directory=copy).close()
    assert not any("is a copy" in note for note in recover(copy, Files()).notes)


def test_damage_in_any_segment_of_a_copy_is_found_at_its_first_start(copy: Path) -> None:
    segment = scan.segments(copy)[1]
    flip(segment.path, 2000)
    with pytest.raises(JournalCorrupt, match=segment.path.name):
        recover(copy, Files())


def batch_across(directory: Path, which: int, boundary: int) -> tuple[scan.Segment, fmt.BatchHeader]:
    """Return a segment, and its batch that lies across the *boundary*, an offset."""
    segment = scan.segments(directory)[which]
    with scan.SegmentReader(segment.path, segment.base) as reader:
        for header, _ in reader.batches(segment.base + 64, segment.end):
            if header.position < segment.base + boundary < header.end:
                return segment, header
    raise AssertionError("every page ends within a batch")


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    ("begin", "end", "torn"),
    [
        (-64, 0, True),
        (-63, 0, False),
        (-64, -1, False),
        (0, 500, True),
        (-200, 60, True),
        (4096 - 64, 4096, True),
        (100, 328, True),  # within a page, as cp reads it while the server writes it
        (100, 160, False),
    ],
)
def test_many_zeros_in_a_segment_mean_that_it_was_copied_while_it_was_written(
    open_journal: Any, tmp_path: Path, copy: bool, which: int, begin: int, end: int, torn: bool
) -> None:
    """In a copy, the last segment then ends at the zeros.  In an original they are damage."""
    bench = open_journal(segment_size=32 << 10)
    for i in range(6):
        bench.append(b"%d" % i * 9000)
    bench.close()
    assert len(scan.segments(bench.directory)) == 2
    directory = bench.directory
    if copy:
        shutil.copytree(bench.directory, tmp_path / "copy")
        directory = tmp_path / "copy"
    segment, batch = batch_across(directory, which, 12288)
    data = bytearray(segment.path.read_bytes())
    data[12288 + begin : 12288 + end] = bytes(end - begin)
    segment.path.write_bytes(data)
    said = f"{segment.path} is damaged at byte {batch.position - segment.base} "
    if copy and torn and which:
        assert recover(directory, Files()).position == batch.position
        return
    if copy and torn:
        said = (
            f"{segment.path} was being written while it was copied, and ends at position {batch.position} of "
            f"{segment.end}; copy this file again"
        )
    with pytest.raises(JournalCorrupt) as refused:
        recover(directory, Files(), verify=1 << 20)
    assert str(refused.value).startswith(said)
    assert ("put the copy into an empty directory" in str(refused.value)) == (torn and not copy)


def last_batch(copy: Path, which: int = -1) -> int:
    """Return the position of the last batch, or of one before it."""
    return int([found.header.position for found in walk(Log.of(copy)) if isinstance(found, Batch)][which])


class TestTheEndOfACopy:
    """MARK of a copy may be newer than its segments, but not everything can be explained by that."""

    @pytest.mark.parametrize("what", ["missing", "truncated", "flipped"])
    def test_a_last_segment_that_is_not_whole_is_damage(self, copy: Path, what: str) -> None:
        last = scan.segments(copy)[-1]
        if what == "missing":
            last.path.unlink()
        elif what == "truncated":
            os.truncate(last.path, last.size - 200)
        else:
            flip(last.path, last_batch(copy) - last.base + 40)
        with pytest.raises(
            JournalCorrupt, match="the end of the log is" if what == "missing" else "is damaged at byte"
        ):
            recover(copy, Files())
        assert verify(copy).problems
        set_aside(copy, Files())
        assert recover(copy, Files()).streams.ends["s"] > 50, "numbers are skipped"

    def test_mark_vouches_for_an_intact_copy_that_ends_where_it_says(self, copy: Path) -> None:
        report = verify(copy)
        assert (report.mark, report.records, report.problems) == (scan.read_mark(copy), 50, [])
        assert (look(copy).mark, look(copy).vouched) == (report.mark, True)
        assert "whether the original went on is unknown" in recover(copy, Files()).notes[-1]

    def test_a_copy_that_ends_between_two_batches_says_how_much_mark_knows_to_be_missing(self, copy: Path) -> None:
        """A file that was copied before MARK, while the server wrote, is the same as one that was truncated there."""
        last, mark = scan.segments(copy)[-1], scan.read_mark(copy)
        cut = last_batch(copy, -2)
        os.truncate(last.path, cut - last.base)
        report, view = verify(copy), reach(Directory(copy))
        assert (report.mark, report.end, report.problems, view.vouched) == (0, cut, [], False)
        for text in (report.notes[-1], view.doubt(copy)):
            assert f"reaches to position {cut}, and its MARK to {mark}: {mark - cut} bytes are missing" in text

    def test_mark_that_was_copied_before_the_segments_leaves_the_end_unknown(self, copy: Path) -> None:
        (copy / "MARK").write_bytes(scan.pack_mark(last_batch(copy, -2), 0, (1, 1)))
        assert (verify(copy).mark, verify(copy).records, look(copy).vouched) == (0, 50, False)


class TestMark:
    """A MARK that is not that of the segments never makes a start lose or repeat anything in silence."""

    @pytest.mark.parametrize("what", ["zeros", "another", "older", "newer"])
    def test_a_mark_that_is_not_that_of_the_segments(self, open_journal: Any, what: str) -> None:
        bench = open_journal(segment_size=4096)
        bench.fill(50)
        bench.close()
        journal, last = Path(bench.directory), scan.segments(bench.directory)[-1]
        with Files().opened(journal / "MARK", os.O_RDWR) as fd:
            own = Files().identity(fd)
            content = {
                "zeros": bytes(36),
                "another": scan.pack_mark(1 << 30, 0, (1, 1)),
                "older": scan.pack_mark(last.base + 64, 0, own),
                "newer": scan.pack_mark(last.end + 8, 0, own),
            }
            Files().write(fd, content[what], 0)
        assert (scan.look_at_mark(journal, Files()) == scan.Mark()) == (what == "zeros")
        report = verify(journal)
        assert (report.mark == 0) == (what in ("zeros", "another"))
        assert any("not known to be durable" in note for note in report.notes) or what != "older"
        assert bool(report.problems) == (what == "newer")
        if what == "newer":
            with pytest.raises(JournalCorrupt, match="the end of the log is missing"):
                recover(journal, Files())
        else:
            assert recover(journal, Files()).streams.ends["s"] == 50, "nothing is hidden from a start"


class TestTheFront:
    def journal(self, open_journal: Any, **settings: Any) -> Any:
        bench = open_journal(segment_size=4096, **settings)
        bench.fill(50)
        return bench

    @pytest.mark.parametrize("copied", [False, True])
    def test_missing_oldest_segments_are_reported(self, open_journal: Any, tmp_path: Path, copied: bool) -> None:
        bench = self.journal(open_journal)
        bench.close()
        directory = bench.directory
        if copied:
            directory = shutil.copytree(bench.directory, tmp_path / "copy")
        scan.segments(directory)[0].path.unlink()
        why = ".*, and they were not copied, or" if copied else ""
        with pytest.raises(JournalCorrupt, match=f"oldest segments .* are missing: its log began at position 0{why}"):
            open_journal(directory=directory, segment_size=4096)
        bench = open_journal(directory=directory, segment_size=4096, quarantine=True)
        assert any("are missing, with all their records" in note for note in bench.journal.report.notes)
        bench.close()
        open_journal(directory=directory, segment_size=4096)

    def test_segments_deleted_by_retention_are_not_reported(self, open_journal: Any) -> None:
        bench = self.journal(open_journal, keep_bytes=8000)
        begin = scan.segments(bench.directory)[0].base
        assert begin > 0
        bench.close()
        assert scan.look_at_mark(bench.directory, Files()).begin == begin
        open_journal(segment_size=4096, keep_bytes=8000)

    def test_segment_missing_after_retention_is_reported(self, open_journal: Any) -> None:
        bench = self.journal(open_journal, keep_bytes=16000)
        bench.close()
        scan.segments(bench.directory)[0].path.unlink()
        with pytest.raises(JournalCorrupt, match="oldest segments"):
            open_journal(segment_size=4096)

    def test_an_interrupted_deletion_of_retention_is_not_reported_as_a_loss(self, open_journal: Any) -> None:
        bench = self.journal(open_journal)
        first, second = scan.segments(bench.directory)[:2]
        bench.journal.writer.keep_from(second.base)
        bench.crash()
        assert first.path.exists()
        open_journal(segment_size=4096)


@pytest.mark.parametrize("begin", [800, WINDOW - 64, WINDOW - 63, WINDOW - 1, WINDOW])
def test_64_zeros_in_a_row_are_enough_to_recognize_a_copy_during_a_write(begin: int) -> None:
    class Reader:
        base = 64 << 10
        data = bytearray(b"x" * (2 * WINDOW))

        def read(self, position: int, size: int) -> memoryview:
            at = position - self.base
            return memoryview(self.data)[at : at + size]

    reader: Any = Reader()
    reader.data[begin : begin + 64] = bytes(64)
    base, end = reader.base, reader.base + begin + 64
    for stop in (end, end + 1, base + 2 * WINDOW):
        assert written_while_copied(reader, base, stop)
    assert not written_while_copied(reader, base, end - 1)
    assert not written_while_copied(reader, end, base + 2 * WINDOW)
    assert written_while_copied(reader, end - WORD, end), "a batch does not begin with zeros"
    assert not written_while_copied(reader, end - WORD + 1, end + WORD)


def test_a_copy_that_was_put_back_over_the_files_starts_from_an_empty_directory(
    open_journal: Any, tmp_path: Path
) -> None:
    """Files that are overwritten keep their inode numbers, so MARK does not tell; the error says what to do."""
    bench = open_journal(segment_size=128 << 10)
    server = Server(bench, Random(1))
    server.write(8)
    durable = server.number
    target = tmp_path / "copy"
    target.mkdir()
    names = [path for path in bench.directory.iterdir() if path.is_file()]
    for source in sorted(names, key=lambda path: path.name == "MARK"):
        for _ in copied(source, target / source.name, 1 << 20):
            bench.append(b"0.written meanwhile")
    bench.close()
    for path in target.iterdir():
        shutil.copyfile(path, bench.directory / path.name)
    with pytest.raises(JournalCorrupt, match=r"is damaged at byte .* put the copy into an empty "):
        recover(bench.directory, Files())
    assert recovered(open_journal, target)[:durable] == list(range(1, durable + 1))
