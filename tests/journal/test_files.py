"""The system calls of the journal, and the lock of its directory."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from fyrehose.errors import JournalError, JournalFull, JournalLocked
from fyrehose.journal.files import PIECE, Files, lock
from fyrehose.journal.recovery import last_byte
from fyrehose.journal.scan import SegmentReader
from tests.doubles.files import FaultyFiles


@pytest.mark.parametrize("data", [b"", b"abc", [b"ab", b"", b"c" * 10]])
def test_storing_a_file_replaces_its_whole_content(tmp_path: Path, data: bytes | list[bytes]) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"what it held before, which is longer than what follows")
    Files().store(path, data)
    assert path.read_bytes() == (data if isinstance(data, bytes) else b"".join(data))
    assert list(tmp_path.iterdir()) == [path]


def test_a_stored_file_and_its_name_are_synced(tmp_path: Path) -> None:
    synced, fsync = list[Path](), os.fsync

    def noted(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        fsync(fd)

    with patch.object(os, "fsync", noted):
        Files().store(tmp_path / "file", b"x")
    assert tmp_path in synced


def test_storing_a_file_that_fails_leaves_the_old_content(tmp_path: Path) -> None:
    def pieces():  # type: ignore[no-untyped-def]
        yield b"some"
        raise OSError(errno.EIO, "no more")

    path = tmp_path / "f"
    path.write_bytes(b"before")
    with pytest.raises(OSError, match="no more"):
        Files().store(path, pieces())
    assert path.read_bytes() == b"before"


def test_pieces_cover_the_whole_range(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(os.urandom(1000) * 9000)
    fd = Files().open(path, os.O_RDONLY)
    pieces = list(Files().pieces(fd, 7, 1 << 30))
    os.close(fd)
    assert b"".join(pieces) == path.read_bytes()[7:]
    assert max(map(len, pieces)) == PIECE


def test_a_write_of_zero_bytes_counts_as_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *args: 0)
    with pytest.raises(OSError, match="No space") as error:
        Files().write(0, b"x", 0)
    assert error.value.errno == errno.ENOSPC


def test_a_large_write_is_divided_into_several_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ext4 of Linux 6.18 takes 46 ms for 16 MiB in one call, and 3 ms in calls of 1 MiB."""
    sizes: list[int] = []
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: sizes.append(len(data)) or pwrite(fd, data, at))
    data = os.urandom(1 << 20) * 5 + b"rest"
    fd = Files().open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    Files().write(fd, data, 7)
    os.close(fd)
    assert (tmp_path / "f").read_bytes() == bytes(7) + data
    assert (max(sizes), len(sizes)) == (1 << 20, 6)


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:3], at))
    fd = Files().open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    Files().write(fd, b"0123456789", 2)
    os.close(fd)
    assert (tmp_path / "f").read_bytes() == b"\0\0" + b"0123456789"


def irregular(path: Path, kind: str) -> Path:
    """Put something at *path* that is no regular file."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to({"link": path.with_name("elsewhere"), "device": "/dev/zero"}[kind])
    return path


KINDS = {"pipe": "not a regular", "directory": "not a regular|directory", "link": "symbolic", "device": "symbolic"}


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_TRUNC])
@pytest.mark.parametrize("kind", KINDS)
def test_only_regular_files_are_opened_and_nothing_waits(tmp_path: Path, kind: str, flags: int) -> None:
    (tmp_path / "elsewhere").write_bytes(b"of another program")
    path = irregular(tmp_path / "f", kind)
    with pytest.raises(OSError, match=KINDS[kind]) as refused:
        Files().open(path, flags)
    assert refused.value.filename == str(path)
    assert (tmp_path / "elsewhere").read_bytes() == b"of another program"


def test_the_content_of_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    assert Files().content(path, 5) == b"12345"
    os.truncate(path, 64 << 30)
    with pytest.raises(OSError, match="larger than 5 bytes"):
        Files().content(path, 5)


def test_a_hole_at_the_end_of_a_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(10) + b"data")
    os.truncate(path, 64 << 30)
    with Files().opened(path, os.O_RDONLY) as fd:
        assert 14 <= Files().data_end(fd) <= 1 << 20


def test_holes_in_the_middle_of_a_file_are_left_out(tmp_path: Path) -> None:
    """A sparse file of 64 GiB is read in the time that its data takes."""
    path = tmp_path / "0000000000000000.segment"
    with Files().opened(path, os.O_RDWR | os.O_CREAT) as fd:
        for at in (0, 64 << 30):
            Files().write(fd, b"data", at)
    with SegmentReader(path, 0) as reader:
        found = list(reader.pieces(2, 1 << 40))
        assert [(position, piece.rstrip(b"\0")) for position, piece in found] == [(2, b"ta"), (64 << 30, b"data")]
        assert last_byte(reader, 10, 1 << 40) == (64 << 30) + 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_that_is_no_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "elsewhere").write_bytes(b"of another program")
    irregular(tmp_path / "LOCK", kind)
    with pytest.raises(JournalError, match="LOCK"):
        lock(tmp_path)
    assert (tmp_path / "elsewhere").read_bytes() == b"of another program"


def test_lock_names_its_holder_and_is_released_by_a_kill(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from fyrehose.journal.files import lock\n"
        f"lock(Path({str(tmp_path)!r})); print('has it', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "has it\n"
        with pytest.raises(JournalLocked, match=f"pid {holder.pid}") as refused:
            lock(tmp_path)
        assert refused.value.exit_status == 5
        holder.kill()
        holder.wait()
    os.close(lock(tmp_path))


def test_a_new_directory_is_synced_with_every_parent_that_is_new(tmp_path: Path) -> None:
    synced: list[Path] = []

    class Synced(Files):
        def sync_directory(self, directory: Path) -> None:
            synced.append(directory)

    os.close(lock(tmp_path / "a" / "b", Synced()))
    assert synced == [tmp_path, tmp_path / "a"]
    synced.clear()
    os.close(lock(tmp_path / "a" / "b", Synced()))
    assert synced == []


def test_unusable_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(JournalError, match="cannot use the journal's directory"):
        lock(tmp_path / "file" / "journal")


@pytest.mark.parametrize("call", ["truncate", "write"])
def test_a_lock_whose_file_cannot_be_written_is_released(tmp_path: Path, call: str) -> None:
    with pytest.raises(JournalFull, match="Read-only file system; free some space"):
        lock(tmp_path, FaultyFiles(name=call, nth=1, error=errno.EROFS))
    os.close(lock(tmp_path))


def test_a_read_only_disk_counts_as_having_no_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Files().free(tmp_path) > 0
    real = os.statvfs(tmp_path)
    read_only = SimpleNamespace(f_flag=real.f_flag | os.ST_RDONLY, f_bavail=real.f_bavail, f_frsize=real.f_frsize)
    monkeypatch.setattr(os, "statvfs", lambda path: read_only)
    assert Files().free(tmp_path) == 0


@pytest.mark.parametrize(
    ("number", "refused"), [(errno.ENOSPC, True), (errno.EOPNOTSUPP, False), (errno.EINVAL, False)]
)
def test_reserving_fails_on_a_full_disk_and_does_nothing_on_other_file_systems(
    monkeypatch: pytest.MonkeyPatch, number: int, refused: bool
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    if refused:
        with pytest.raises(OSError, match="No space"):
            Files().allocate(0, 0, 10)
    else:
        Files().allocate(0, 0, 10)


def test_reading_continues_after_a_short_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(range(100)))
    fd, pread = os.open(path, os.O_RDONLY), os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 7), offset))
    try:
        assert Files().read(fd, 20, 50) == bytes(range(50, 70))
        assert Files().read(fd, 20, 90) == bytes(range(90, 100)), "the end of the file"
    finally:
        os.close(fd)
