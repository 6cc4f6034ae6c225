"""The file END of a backup: a copy is told from one that lacks something, whatever was lost or changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.ends import END, VouchedEnd, look_at_end, vouched_end
from fyrehose.journal.files import Files
from fyrehose.offline.backup import Backup, restore
from fyrehose.offline.mirror import Replica
from fyrehose.offline.places import Directory
from fyrehose.offline.verify import verify
from fyrehose.offline.walk import Batch, Log, walk
from tests.doubles.files import flip

SAMPLE = VouchedEnd(bytes(range(16)), 4096, 8192, 7, 9000, 9800, 0xABCDEF01)


def backed_up(source: Path, target: Path, mirror: bool = False) -> None:
    with Replica(target, Files()) as replica:
        Backup(Directory(source), replica, mirror=mirror).run()


@pytest.fixture
def source(open_journal: Any) -> Any:
    """Return a journal of several segments."""
    bench = open_journal(segment_size=4096)
    bench.fill(50)
    return bench


@pytest.fixture
def copy(source: Any, tmp_path: Path) -> Path:
    """Return a copy of a finished backup, as from a tape."""
    backed_up(source.directory, tmp_path / "b")
    return Path(shutil.copytree(tmp_path / "b", tmp_path / "copy"))


def refused(copy: Path, why: str) -> None:
    """Check that a copy is reported as damaged by a restore and by a verification, which names a file."""
    target = copy.with_name("restored")
    with pytest.raises(JournalCorrupt, match=why):
        restore(Directory(copy), target, Files())
    try:
        problems = [str(problem) for problem in verify(copy).problems]
    except JournalCorrupt as error:
        problems = [str(error)]
    assert problems


def test_the_content_is_read_back() -> None:
    assert VouchedEnd.unpack(SAMPLE.pack()) == SAMPLE


def test_every_flipped_bit_and_every_truncation_is_found() -> None:
    data = SAMPLE.pack()
    for at in range(len(data)):
        for bit in range(8):
            with pytest.raises(fmt.Damage):
                VouchedEnd.unpack(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
        with pytest.raises(fmt.Damage):
            VouchedEnd.unpack(data[:at])


def test_a_backup_names_its_end(source: Any, copy: Path) -> None:
    end = look_at_end(copy, Files())
    assert end is not None
    last = scan.segments(copy)[-1]
    assert (end.begin, end.base, end.position) == (0, last.base, scan.read_mark(source.directory))
    assert vouched_end(copy, Files()) == end


def test_an_intact_copy_is_complete_up_to_its_vouched_end(source: Any, copy: Path, tmp_path: Path) -> None:
    report = verify(copy)
    assert (report.mark, report.problems) == (scan.read_mark(source.directory), [])
    (copy / "MARK").unlink()
    restore(Directory(copy), tmp_path / "restored", Files())
    assert verify(tmp_path / "restored").records == 50
    assert not (tmp_path / "restored" / END).exists(), "a server may start there"


LOSSES: dict[str, tuple[Callable[[Path], object], str]] = {
    "first segment": (lambda copy: scan.segments(copy)[0].path.unlink(), "lacks its oldest segments"),
    "middle segment": (lambda copy: scan.segments(copy)[1].path.unlink(), "lacks the positions"),
    "all segments": (lambda copy: [each.path.unlink() for each in scan.segments(copy)], "lacks its oldest segments"),
    "half of the last": (
        lambda copy: os.truncate(scan.segments(copy)[-1].path, scan.segments(copy)[-1].size // 2),
        "is truncated",
    ),
    "half of the middle": (lambda copy: os.truncate(scan.segments(copy)[1].path, 2000), "damaged|lacks"),
    "byte of the last batch": (lambda copy: flip(scan.segments(copy)[-1].path, -5), "is damaged at byte"),
    "header of the last batch": (
        lambda copy: flip(scan.segments(copy)[-1].path, look_at_end(copy, Files()).last - scan.segments(copy)[-1].base),
        "in its last batch",
    ),
    "byte of END": (lambda copy: flip(copy / END, 30), "END is damaged"),
    "half of END": (lambda copy: os.truncate(copy / END, 70), "END is damaged"),
    "all of END": (lambda copy: os.truncate(copy / END, 0), "END is damaged"),
    "link": (
        lambda copy: (copy / END).rename(copy / "x") and (copy / END).symlink_to("x"),
        "END is damaged: it is a sym",
    ),
    "pipe": (lambda copy: (copy / END).unlink() or os.mkfifo(copy / END), "END is damaged: it is not a regular file"),
    "huge": (lambda copy: os.truncate(copy / END, 1 << 36), "END is damaged: it is larger than"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_copy_that_lacks_something_is_damaged(copy: Path, loss: str) -> None:
    lose, why = LOSSES[loss]
    lose(copy)
    refused(copy, why)


def test_the_end_of_another_backup_is_damage(source: Any, copy: Path, tmp_path: Path) -> None:
    end = look_at_end(copy, Files())
    assert end is not None
    for wrong in (attrs.evolve(end, identity=bytes(16)), attrs.evolve(end, chain=end.chain ^ 1)):
        (copy / END).write_bytes(wrong.pack())
        refused(copy, "is not that of its segments")
    source.append(b"more")
    backed_up(source.directory, tmp_path / "b")
    shutil.copy(tmp_path / "b" / END, copy / END)
    refused(copy, "is shorter than its file END says")


def test_an_older_end_of_the_same_backup_vouches_for_less(source: Any, tmp_path: Path) -> None:
    backed_up(source.directory, tmp_path / "b")
    older = (tmp_path / "b" / END).read_bytes()
    source.append(b"more")
    backed_up(source.directory, tmp_path / "b")
    copy = Path(shutil.copytree(tmp_path / "b", tmp_path / "copy"))
    (copy / END).write_bytes(older)
    assert verify(copy).records == 50
    restore(Directory(copy), tmp_path / "restored", Files())
    assert verify(tmp_path / "restored").records == 50


@pytest.mark.parametrize("which", range(6))
def test_the_number_of_missing_records_is_exact_whichever_segment_is_missing(copy: Path, which: int) -> None:
    found = scan.segments(copy)
    assert len(found) == 6
    here = sum(batch.header.records for batch in walk(Log.of(copy)) if isinstance(batch, Batch))
    of = sum(b.header.records for b in walk(Log.of(copy)) if isinstance(b, Batch) and b.segment == found[which])
    found[which].path.unlink()
    assert (here, of > 0) == (50, True)
    if found[which] == found[-1]:
        refused(copy, rf"\w+.segment is missing, .* {of} of its 50 records are missing")
    report = verify(copy)
    assert f"by the file END; {of} of them are missing or damaged" in report.notes[-1]


def test_the_number_of_missing_records_is_exact_in_an_incremental_and_in_a_mirrored_backup(
    source: Any, tmp_path: Path
) -> None:
    """Each run adds to the number in END what it copied, and subtracts what it deleted."""
    target = tmp_path / "b"
    for _ in range(3):
        source.append(b"%03d" % 7 * 500)
        backed_up(source.directory, target)
    end = look_at_end(target, Files())
    assert end is not None
    assert end.records == verify(target).records == 53
    first, second = scan.segments(source.directory)[:2]
    for segment in (first, second):
        segment.path.unlink()
    backed_up(source.directory, target, mirror=True)
    end = look_at_end(target, Files())
    assert end is not None
    assert 0 < end.records == verify(target).records < 53
    assert end.begin == scan.segments(target)[0].base == second.end
    (target / END).unlink()
    source.append(b"more")
    backed_up(source.directory, target)
    again = look_at_end(target, Files())
    assert again is not None
    assert again.records == end.records + 1, "counted anew"


def test_an_unchanged_backup_keeps_its_file(source: Any, tmp_path: Path) -> None:
    backed_up(source.directory, tmp_path / "b")
    before = (tmp_path / "b" / END).stat()
    backed_up(source.directory, tmp_path / "b")
    assert (tmp_path / "b" / END).stat() == before


def test_a_backup_that_was_not_finished_has_no_end(source: Any, tmp_path: Path) -> None:
    scan.segments(source.directory)[3].path.unlink()
    with pytest.raises(JournalCorrupt):
        backed_up(source.directory, tmp_path / "b")
    assert scan.segments(tmp_path / "b")
    assert not (tmp_path / "b" / END).exists()
