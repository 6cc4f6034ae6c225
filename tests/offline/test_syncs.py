"""Copies of a journal are on the disk when the command that made them ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fyrehose.journal import scan
from fyrehose.journal.copies import STANDBY
from fyrehose.journal.files import Files
from fyrehose.journal.follower import REPLICA
from fyrehose.offline.backup import Backup, restore
from fyrehose.offline.mirror import Replica
from fyrehose.offline.places import Directory
from fyrehose.offline.standby import promote
from tests.doubles.disk import UnsyncedFiles

#: The file of a new branch whose changes need not be on the disk: the mark may fall back.
BRANCHED = {scan.MARK_NAME}


@pytest.fixture
def source(open_journal: Any) -> Any:
    """Return an open journal of several segments."""
    bench = open_journal(segment_size=4096)
    fill(bench)
    return bench


def fill(bench: Any) -> None:
    for number in range(50):
        bench.append(b"%06d" % number + b"." * 300)


class MarkedFiles(UnsyncedFiles):
    """Fails if MARK, which says what is on the disk, is opened to be written before that is so."""

    def open(self, path: Path, flags: int) -> int:
        if path.name == scan.MARK_NAME and flags & os.O_RDWR:
            assert self.unsynced <= {path}, "MARK says that it is synced"
        return super().open(path, flags)


def unsynced_by(what: Callable[[UnsyncedFiles], object]) -> set[str]:
    """Return what a power cut could undo when *what* has returned, as names."""
    files = MarkedFiles()
    what(files)
    return {path.name for path in files.unsynced}


def backed_up(source: Path, target: Path, files: Files, **options: Any) -> None:
    with Replica(target, files) as replica:
        Backup(Directory(source), replica, **options).run()


@pytest.mark.parametrize("mirror", [False, True], ids=["backup", "mirror"])
def test_a_backup_and_those_that_continue_it_are_synced(source: Any, tmp_path: Path, mirror: bool) -> None:
    target = tmp_path / "copy"
    for _ in range(3):
        assert unsynced_by(lambda files: backed_up(source.directory, target, files, mirror=mirror)) == set()
        fill(source)


def test_a_copy_by_other_tools_is_synced_when_a_backup_continues_it(source: Any, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    backed_up(source.directory, target, Files())
    (target / scan.MARK_NAME).unlink()
    last = scan.segments(target)[-1].path

    def continued(files: UnsyncedFiles) -> None:
        files.unsynced.add(last)
        backed_up(source.directory, target, files)

    assert unsynced_by(continued) == set()


@pytest.mark.parametrize("exact", [False, True])
def test_a_restored_journal_is_synced(source: Any, tmp_path: Path, exact: bool) -> None:
    backed_up(source.directory, tmp_path / "copy", Files())
    from_copy = Directory(tmp_path / "copy")
    assert unsynced_by(lambda files: restore(from_copy, tmp_path / "restored", files, exact=exact)) <= BRANCHED


def test_a_promoted_standby_is_synced(source: Any, tmp_path: Path) -> None:
    backed_up(source.directory, tmp_path / "copy", Files())
    for name in (STANDBY, REPLICA):
        (tmp_path / "copy" / name).write_bytes(b"")
    assert unsynced_by(lambda files: promote(tmp_path / "copy", files)) <= BRANCHED
