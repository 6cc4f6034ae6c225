"""The lower bound of a durable message: one write and one sync at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from fyrehose.bench.disk import AROUND, allocated, mount_of, sync_times, write_and_sync


def test_each_sync_is_timed_and_the_file_deleted(tmp_path: Path) -> None:
    found = sync_times(tmp_path / "probe", 5)
    assert len(found) == 5
    assert found == sorted(found)
    assert found[0] > 0
    assert list(tmp_path.iterdir()) == []


def test_file_has_its_blocks_before_the_first_write(tmp_path: Path) -> None:
    path = tmp_path / "probe"
    with allocated(path, 10 * AROUND) as descriptor:
        assert path.stat().st_size == 10 * AROUND
        began, ended = write_and_sync(descriptor, b"x" * AROUND)
        assert began < ended
        assert path.read_bytes() == b"x" * AROUND + bytes(9 * AROUND)


def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("kept")
    (tmp_path / "probe").symlink_to(tmp_path / "other")
    with pytest.raises(FileExistsError):
        sync_times(tmp_path / "probe", 1)
    assert (tmp_path / "other").read_text() == "kept"


def test_mount_of_a_path_is_the_one_with_the_longest_mount_point(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 8:1 / / rw,relatime shared:1 - ext4 /dev/sda rw\n"
        "2 1 8:2 / /var/lib rw,relatime - xfs /dev/sdb rw,nobarrier\n"
        "3 1 8:3 / /var/with\\040space ro - btrfs /dev/sdc ro\n"
    )
    assert mount_of(Path("/var/lib/fyrehose"), table).kind == "xfs"
    assert "nobarrier" in mount_of(Path("/var/lib/fyrehose"), table).options
    assert mount_of(Path("/var/library"), table).kind == "ext4"
    assert mount_of(Path("/var/with space/data"), table).kind == "btrfs"
