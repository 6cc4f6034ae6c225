"""The room on the disk: what a check finds, and what publishers are told while there is too little."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from fyrehose.errors import JournalFailed
from fyrehose.journal.files import Files, lock
from fyrehose.journal.room import Room, enough

MIB = 1 << 20


@attrs.define(eq=False)
class Disk(Files):
    """The system calls of a disk whose free space the test sets; an exception is raised instead."""

    space: int | OSError = 0

    def free(self, directory: Path) -> int:
        if isinstance(self.space, OSError):
            raise self.space
        return self.space


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[int]:
    descriptor = lock(tmp_path)
    yield descriptor
    os.close(descriptor)


def test_error_names_the_free_space_and_the_limit_it_is_below(tmp_path: Path, locked: int) -> None:
    room = Room(tmp_path, Disk(space=235 * MIB))
    room.measure(locked, 512 * MIB)
    assert (room.free, room.lacks, room.is_enough) == (235 * MIB, True, False)
    text = str(room.error(512 * MIB))
    assert "has 235.0 MiB free, less than journal.min-free (512.0 MiB)" in text
    assert "`fyrehose doctor`" in text


def test_space_between_the_limit_and_what_is_enough_is_not_called_below_the_limit(tmp_path: Path, locked: int) -> None:
    room = Room(tmp_path, Disk(space=105 * MIB))
    room.measure(locked, 0)
    assert enough(100 * MIB) == 110 * MIB
    assert "has 105.0 MiB free, which is not enough yet" in str(room.error(100 * MIB))


def test_a_write_without_room_counts_until_the_disk_is_written_again(tmp_path: Path, locked: int) -> None:
    """A quota, or a disk that became read-only, does not show in the free space."""
    room = Room(tmp_path, Disk(space=99 * MIB))
    room.measure(locked, 0)
    room.ran_out("Disk quota exceeded")
    room.measure(locked, 0)
    assert "cannot be written: Disk quota exceeded" in str(room.error(100 * MIB))
    room.is_back()
    assert "has 99.0 MiB free" in str(room.error(100 * MIB))


def test_unknown_space_counts_as_none_and_is_logged_once(tmp_path: Path, locked: int, log_lines: list[str]) -> None:
    room = Room(tmp_path, Disk(space=OSError(5, "Input/output error")))
    for _ in range(2):
        room.measure(locked, 0)
    assert (room.free, room.lacks) == (None, True)
    assert (room.free, sum("Input/output error" in line for line in log_lines)) == (None, 1)
    assert "its free space is unknown" in str(room.error(0))


@pytest.mark.parametrize("replaced", [False, True])
def test_a_lock_that_was_deleted_or_replaced_is_a_failure(tmp_path: Path, locked: int, replaced: bool) -> None:
    room = Room(tmp_path, Disk(space=MIB))
    (tmp_path / "LOCK").unlink()
    if replaced:
        (tmp_path / "LOCK").touch()
    with pytest.raises(JournalFailed, match="LOCK was deleted or replaced"):
        room.measure(locked, 0)
