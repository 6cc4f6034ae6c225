"""Test the states in which a simulated power cut leaves a disk."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from tests.doubles.disk import SECTOR, RecordingFiles, WatchedFiles, image, images, what_stays


@pytest.fixture
def files(tmp_path: Path) -> RecordingFiles:
    (tmp_path / "old").write_bytes(b"before")
    return RecordingFiles(tmp_path)


def states(files: RecordingFiles, upto: int | None = None, count: int = 0) -> list[dict[str, bytes]]:
    return list(images(files, len(files.log) if upto is None else upto, Random(1), count))


def test_without_steps_the_only_image_is_the_directory(files: RecordingFiles) -> None:
    assert states(files) == [{"old": b"before"}] * 2


def test_unsynced_steps_survive_in_any_combination(files: RecordingFiles) -> None:
    fd = files.open(files.directory / "old", os.O_RDWR)
    files.write(fd, b"AA", 0)
    files.write(fd, b"BB", 6)
    assert {state["old"] for state in states(files)} == {b"AAforeBB", b"before", b"AAfore", b"beforeBB"}
    files.sync(fd)
    assert {state["old"] for state in states(files)} == {b"AAforeBB"}
    assert {state["old"] for state in states(files, upto=2)} == {b"AAforeBB", b"before", b"AAfore", b"beforeBB"}
    files.close(fd)
    assert (files.directory / "old").read_bytes() == b"AAforeBB"


def test_a_synced_file_may_still_lose_its_name(files: RecordingFiles) -> None:
    fd = files.open(files.directory / "new", os.O_RDWR | os.O_CREAT)
    files.write(fd, b"x", 0)
    files.sync(fd)
    files.close(fd)
    assert {"old": b"before"} in states(files)
    files.sync_directory(files.directory)
    assert states(files) == [{"old": b"before", "new": b"x"}] * 2


def test_rename_may_survive_without_the_contents(files: RecordingFiles) -> None:
    fd = files.open(files.directory / "new", os.O_RDWR | os.O_CREAT)
    files.write(fd, b"x", 0)
    files.close(fd)
    files.rename(files.directory / "new", files.directory / "old")
    found = states(files)
    for state in ({"old": b"x"}, {"old": b"before"}, {"old": b""}, {"old": b"before", "new": b""}):
        assert state in found


def test_a_crash_may_undo_a_change_of_length_or_a_removal(files: RecordingFiles) -> None:
    fd = files.open(files.directory / "old", os.O_RDWR)
    files.allocate(fd, 0, 8)
    files.truncate(fd, 3)
    files.close(fd)
    files.unlink(files.directory / "old")
    files.unlink(files.directory / "never was")
    found = states(files)
    assert {} in found
    assert {state["old"] for state in found if state} == {b"before", b"before\0\0", b"bef"}


def test_writes_are_torn_by_sectors(files: RecordingFiles) -> None:
    fd = files.open(files.directory / "old", os.O_RDWR | os.O_TRUNC)
    files.sync(fd)
    files.write(fd, b"x" * 3 * SECTOR, 10)
    files.close(fd)
    found = {bytes(state["old"]) for state in states(files, count=200)}
    assert len(found) > 5
    for content in found:
        written = [at for at, byte in enumerate(content) if byte]
        if written:
            assert written == list(range(written[0], written[-1] + 1))
            assert written[0] == 10 or written[0] % SECTOR == 0
            assert written[-1] + 1 == 10 + 3 * SECTOR or (written[-1] + 1) % SECTOR == 0


def test_image_returns_one_of_the_possible_states(files: RecordingFiles) -> None:
    fd = files.open(files.directory / "old", os.O_RDWR)
    files.write(fd, b"AA", 0)
    files.sync(fd)
    files.write(fd, b"BB", 6)
    found = {image(files, len(files.log), Random(seed))["old"] for seed in range(20)}
    assert found == {b"AAfore", b"AAforeBB"}
    assert image(files, 1, Random(1))["old"] in (b"before", b"AAfore")
    files.close(fd)


def test_a_killed_process_leaves_everything_and_a_power_cut_may_still_take_it(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    files = RecordingFiles(first)
    fd = files.open(first / "a.new", os.O_RDWR | os.O_CREAT)
    files.write(fd, b"synced", 0)
    files.sync(fd)
    files.write(fd, b"later!", 6)
    files.rename(first / "a.new", first / "a")
    files.close(fd)
    kept = what_stays(files, len(files.log))
    assert kept.files() == {"a": b"syncedlater!"}
    (second / "a").write_bytes(kept.files()["a"])
    files = RecordingFiles(second, kept)
    assert {state.get("a") for state in states(files)} >= {None, b"syncedlater!", b"synced"}
    files.sync_directory(second)
    assert {state["a"] for state in states(files)} == {b"synced", b"syncedlater!"}
    fd = files.open(second / "a", os.O_RDWR)
    files.write(fd, b"later!", 6)
    files.sync(fd)
    files.close(fd)
    assert states(files) == [{"a": b"syncedlater!"}] * 2


def test_watched_files_lists_unsynced_descriptors(tmp_path: Path) -> None:
    files = WatchedFiles(".log")
    fd, other = (files.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("a.log", "b.txt"))
    files.write(fd, b"x", 0)
    files.write(other, b"x", 0)
    assert files.unsynced == {fd}
    files.sync(other)
    assert files.unsynced == {fd}
    files.sync(fd)
    assert not files.unsynced
    files.truncate(fd, 0)
    assert files.unsynced == {fd}
    assert files.syncs == 2
    for each in (fd, other):
        files.close(each)
