"""Every acknowledged commit is synced, without exception."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import pytest

from fyrehose.journal import scan
from fyrehose.journal.files import Files
from fyrehose.journal.recovery import QUARANTINE_NAME, Recovered
from fyrehose.journal.scan import SUFFIX
from fyrehose.journal.writer import SMALL, Writer
from fyrehose.records import Run
from tests.doubles.appending import append_runs
from tests.doubles.disk import UnsyncedFiles, WatchedFiles

COMMITS = 20_000


def test_writer_calls_no_commit_of_many_durable_before_it_is_synced(tmp_path: Path) -> None:
    files = WatchedFiles(SUFFIX, SUFFIX + ".new")
    writer = Writer(tmp_path, Recovered(directory=tmp_path), 1 << 20, True, files)
    writer.open(1)
    unsynced = []
    small, large = Run.of("s", [b"x"], source="t"), Run.of("s", [bytes(SMALL)], source="t")
    for seq in range(1, COMMITS + 1):
        run = small if seq % 200 else large  # which are written by calls of their own
        committed = writer.commit([[run.numbered(seq, 1)]], 1, 1)
        if files.unsynced or committed.durable != committed.end:
            unsynced.append(seq)
    writer.close(in_order=True)
    assert unsynced == []


def test_a_sealed_segment_is_synced_in_its_final_size(tmp_path: Path) -> None:
    """The file is closed afterwards, so it cannot be synced later."""

    class Watched(WatchedFiles):
        closed: ClassVar[list[bool]] = []

        def close(self, fd: int) -> None:
            self.closed.append(fd in self.unsynced)
            super().close(fd)

    writer = Writer(tmp_path, Recovered(directory=tmp_path), 1 << 12, True, Watched(SUFFIX, SUFFIX + ".new"))
    writer.open(1)
    for seq in range(1, 10):
        writer.commit([[Run.of("s", [bytes(2000)], source="t").numbered(seq, 1)]], 1, 1)
    assert Watched.closed == [False] * len(Watched.closed) != []
    writer.close(in_order=True)


def test_skipped_numbers_are_synced(tmp_path: Path) -> None:
    files = WatchedFiles(SUFFIX, SUFFIX + ".new")
    writer = Writer(tmp_path, Recovered(directory=tmp_path), 1 << 20, True, files)
    writer.open(1)
    writer.commit([[Run.of("s", [b"x"], source="t").numbered(1, 1)]], 1, 1)
    writer.skip_numbers(10)
    assert not files.unsynced
    writer.close(in_order=True)


def test_journal_acknowledges_no_append_of_many_before_it_is_synced(open_journal) -> None:  # type: ignore[no-untyped-def]
    files = WatchedFiles(SUFFIX, SUFFIX + ".new")
    journal = open_journal(files=files).journal
    acknowledged: list[bool] = []
    for seq in range(1, 2501):
        appended = append_runs(journal, [Run.of("s", [b"x"], source="t")], [seq])
        appended.addCallback(lambda _: acknowledged.append(not files.unsynced))
    assert acknowledged == [True] * 2500


def test_every_sync_reaches_the_operating_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    files = Files()
    fd = files.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    for _ in range(COMMITS):
        files.sync(fd)
    files.close(fd)
    assert synced == [fd] * COMMITS


def spoil(directory: Path, how: str) -> None:
    """Damage the files of a journal with several segments."""
    found = scan.segments(directory)
    if how == "stray":
        middle = found[1].base + found[1].size // 2 // 8 * 8
        scan.path_of(directory, middle).write_bytes(found[0].path.read_bytes())
    elif how == "killed":  # an earlier quarantine, whose changes may not be on the disk
        (directory / QUARANTINE_NAME).write_bytes(b"")
    else:
        segment, at, data = {
            "torn": (found[-1], found[-1].size - 9, b"\xff"),
            "damaged": (found[2], found[2].size // 2, b"\xff" * 300),
            "header": (found[1], 8, b"damage"),
            "end": (found[-1], found[-1].size // 2, bytes(found[-1].size)),
        }[how]
        with segment.path.open("r+b") as file:
            file.seek(at)
            file.write(data)


@pytest.mark.parametrize("how", ["torn", "stray", "damaged", "header", "end", "killed"])
def test_a_start_has_synced_what_it_has_mended_when_it_ends(open_journal, how: str) -> None:  # type: ignore[no-untyped-def]
    bench = open_journal(segment_size=8192)
    for number in range(300):
        bench.append(b"%06d" % number + b"." * 50)
    durable = scan.read_mark(bench.directory)
    bench.append(b"the last one")
    bench.crash()
    (bench.directory / scan.MARK_NAME).write_bytes(scan.pack_mark(durable))
    spoil(bench.directory, how)
    files = UnsyncedFiles()
    files.unsynced |= {segment.path for segment in scan.segments(bench.directory) if how == "killed"}
    bench = open_journal(files=files, quarantine=how not in ("torn", "killed"))
    harmless = {bench.directory / scan.MARK_NAME}  # The mark may fall back,
    harmless |= {bench.directory} if how == "killed" else set()  # and the name of the file QUARANTINE come back.
    assert files.unsynced <= harmless
    bench.close()
    assert files.unsynced <= harmless
