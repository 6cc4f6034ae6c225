"""Backups are consistent at every moment, incremental, and refused if source and target do not match."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from crc32c import crc32c

from fyrehose.errors import (
    ConfigError,
    JournalCorrupt,
    JournalEndUnknown,
    JournalError,
    JournalFull,
    JournalGap,
    JournalLocked,
    JournalUnreachable,
)
from fyrehose.journal import format as fmt
from fyrehose.journal import scan, snapshots, subscriptions
from fyrehose.journal.copies import RESTORING
from fyrehose.journal.ends import END
from fyrehose.journal.files import Files, SteppedFiles
from fyrehose.journal.recovery import recover
from fyrehose.journal.streams import StreamLimits, Streams
from fyrehose.offline import backup as backups
from fyrehose.offline.backup import Backup, SourceBehind, restore
from fyrehose.offline.branching import SKIPPED
from fyrehose.offline.dump import runs
from fyrehose.offline.mirror import Copied, Replica
from fyrehose.offline.places import Directory, Missing
from fyrehose.offline.verify import verify
from fyrehose.offline.view import look
from tests.doubles.disk import RecordingFiles, images
from tests.doubles.files import FaultyFiles
from tests.doubles.opened_journal import opened
from tests.offline.conftest import flip, is_same_log

Opener = Callable[..., Any]


def fill(bench: Any, count: int, size: int = 300) -> None:
    """Append *count* messages with consecutive numbers."""
    first = bench.next.get("s", 1)
    for number in range(first, first + count):
        assert bench.append(b"%06d" % number + b"." * size).called


def backed_up(source: Path, target: Path, **options: Any) -> Copied:
    """Run a backup once; return its statistics."""
    files = options.pop("files", Files())
    with Replica(target, files) as replica:
        Backup(Directory(source), replica, **options).run()
    return replica.done


def numbers(directory: Path) -> list[int]:
    """Return the messages in the files of a journal."""
    return [int(bytes(payload)[:6]) for run in runs(directory) for payload in run.payloads()]


def started(directory: Path, quarantine: bool = False) -> list[int]:
    """Start a server in the directory; return the messages that it serves."""
    opened(directory, quarantine=quarantine).close()
    return numbers(directory)


def served(backup: Path) -> list[int]:
    """Restore a backup and start a server there; return the messages that it serves."""
    target = backup.with_name(f"{backup.name}-restored")
    restore(Directory(backup), target, Files())
    return started(target)


def opened_up(backup: Path) -> Path:
    """Make a server start in a backup, which it refuses otherwise."""
    (backup / END).unlink()
    return backup


def rename_journal(segment: Path, identity: bytes) -> None:
    """Give the journal of a segment another identity."""
    data = bytearray(segment.read_bytes())
    data[: fmt.SEGMENT_HEADER.size] = attrs.evolve(fmt.SegmentHeader.unpack(data), identity=identity).pack()
    segment.write_bytes(data)


def put_snapshot(directory: Path, position: int) -> None:
    """Write a snapshot that no segment refers to."""
    data = b"".join(snapshots.pieces(Streams({"s": 1}), position, bytes(16)))
    scan.snapshot_path_of(directory, position).write_bytes(data)


class Killed(BaseException):
    """The error at which a process is killed."""


def mortal(after: int, half: bool) -> Files:
    """Return files that "kill" the process at change number *after*, which is done by half or not at all."""
    killed, count = Killed(), [0]

    class Mortal(FaultyFiles):
        def _count(self, name: str) -> bool:
            count[0] += name in ("write", "sync", "truncate", "rename", "unlink")
            if count[0] > after:
                raise killed
            return False

        def write(self, fd: int, data: Any, offset: int) -> None:
            alive = count[0] <= after
            try:
                super().write(fd, data, offset)
            except Killed:
                if alive and half:
                    SteppedFiles.write(self, fd, bytes(data)[: len(data) // 2], offset)
                raise

    return Mortal()


@pytest.fixture
def source(open_journal: Opener) -> Any:
    """Return a journal of several segments that is open."""
    bench = open_journal(segment_size=4096)
    fill(bench, 50)
    return bench


@pytest.fixture
def backup(source: Any, tmp_path: Path) -> Path:
    """Return a backup of the journal."""
    backed_up(source.directory, tmp_path / "b")
    return tmp_path / "b"


OTHER_STEPS = ("retention", "restart", "snapshot", "subscribe", "kill", "harm")


class World:
    """A journal, its backup, and the numbers that the backup has to have."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.random, self.directory, self.target = Random(seed), directory, directory / "b"
        self.source = opened(directory / "j", segment_size=4096)
        self.have: set[int] = set()
        self.begun, self.did = True, Counter[str]()
        fill(self.source, 1)

    def step(self) -> None:
        random, path = self.random, self.source.directory
        what = random.choice((*["fill", "backup"] * 2, *OTHER_STEPS))
        if what == "fill":
            fill(self.source, random.choice((1, 3, 12)))
        elif what == "retention":
            for segment in scan.segments(path)[:-1][: random.choice((1, 2, 9))]:
                segment.path.unlink()
                scan.snapshot_path_of(path, segment.base).unlink(missing_ok=True)
                self.begun = False
        elif what == "restart" and self.begun:  # a journal that lost its oldest segments would not start
            self.source.close()
            self.source = opened(path, segment_size=4096)
        elif what == "snapshot":
            put_snapshot(path, scan.segments(path)[-1].base)
            fill(self.source, 12)  # the next segment refers to it
        elif what == "subscribe":
            name = random.choice(("lake", "other"))
            if name in [each.name for each in subscriptions.registered(path)]:
                subscriptions.delete(path, name)
            else:
                subscriptions.update(path, name, random.randrange(9), random.randrange(9))
        elif what == "harm" and scan.segments(self.target):
            self.harm()
        elif what in ("backup", "kill"):
            self.back_up(random.random() < 0.4, random.randrange(25) if what == "kill" else None)

    def harm(self) -> None:
        """Move the backup; append bytes that are not durable to it, or delete a segment that the source still has."""
        path, moved = self.source.directory, self.target.with_name(f"{self.target.name}-moved")
        shutil.copytree(self.target, moved)
        self.target, there = moved, scan.segments(moved)
        more = [
            each.end - there[-1].end for each in look(self.source.directory).segments if each.base == there[-1].base
        ]
        with there[-1].path.open("ab") as file:  # a run that was killed has written no more than the source has
            file.write(b"?" * sum(more))
        at_source = [each.base for each in scan.segments(path)]
        lost = [each.path for each in there[:-1] if each.base in at_source]
        if lost and at_source[-1] > there[-1].base:
            self.random.choice(lost).unlink()
            self.back_up(mirror=False, steps=None)

    def back_up(self, mirror: bool, steps: int | None) -> None:
        path, target = self.source.directory, self.target
        wanted = set(numbers(path))
        files = Files() if steps is None else mortal(steps, self.random.random() < 0.5)
        bases = {each.base for each in scan.segments(target)} if target.exists() else set()
        start = look(path).start
        if self.have and min(wanted) > max(self.have) + 1:
            with pytest.raises(JournalGap, match=r"retention deleted the segments .* --subscription NAME"):
                backed_up(path, target, mirror=mirror)
            assert numbers(target) == sorted(self.have)
            shutil.rmtree(target)
            self.did["gap"], self.have = 1, set()
            return
        try:
            done = backed_up(path, target, mirror=mirror, files=files)
        except Killed:
            self.did["killed"] += 1
            found = set(numbers(target)) if scan.segments(target) else set()
            must = self.have & wanted if mirror else self.have
            assert must <= found <= self.have | wanted, "a backup that was killed has lost what it had"
            assert not found or verify(target).problems == []
            assert not found or look(target).mark >= scan.read_mark(target), "it is read up to its MARK"
            self.have = found
        else:
            self.did["mirror" if mirror else "kept"] += 1
            assert done.deleted == (sum(base < start for base in bases) if mirror else 0)
            self.have = wanted if mirror else self.have | wanted
            self.check(mirror)

    def check(self, mirror: bool) -> None:
        path, target = self.source.directory, self.target
        assert numbers(target) == sorted(self.have), "the backup has other messages"
        assert look(target).mark == look(path).mark
        assert verify(target).problems == []
        assert subscriptions.registered(target) == subscriptions.registered(path)
        there, here = set(scan.snapshots(path)), set(scan.snapshots(target))
        assert here == there if mirror else here >= there, "other snapshots than at the source"
        assert backed_up(path, target, mirror=mirror) == Copied(), "there was nothing to copy any more"


@pytest.mark.parametrize("seed", range(4))
def test_random_schedules_of_a_backup_keep_what_they_have_to(tmp_path: Path, seed: int) -> None:
    did = Counter[str]()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(5):
        world = World(10 * seed + number, tmp_path / str(number))
        for _ in range(30):
            world.step()
        world.back_up(mirror=bool(number % 2), steps=None)
        restore(Directory(world.target), tmp_path / f"r{number}", Files())
        assert started(tmp_path / f"r{number}") == sorted(world.have)
        world.source.close()
        did += world.did
    assert did.keys() == {"killed", "gap", "mirror", "kept"}, "something was never tried"
    assert len(list(Path("/proc/self/fd").iterdir())) == before, "a file was left open"


class TestCopying:
    def test_a_backup_is_a_journal_with_everything_that_is_durable(self, source: Any, tmp_path: Path) -> None:
        target = tmp_path / "b"
        done = backed_up(source.directory, target)
        assert is_same_log(source.directory, target)
        assert (done.records, done.size) == (50, look(source.directory).mark)
        report = verify(target)
        assert (report.problems, report.notes, report.records) == ([], [], 50)
        assert recover(target, Files()).streams.ends == {"s": 50}
        assert not any("is a copy" in note for note in recover(target, Files()).notes)

    def test_only_durable_batches_are_copied(self, source: Any, tmp_path: Path) -> None:
        target = tmp_path / "b"
        mark = scan.read_mark(source.directory)
        fill(source, 1)
        noted = scan.look_at_mark(source.directory, Files())
        fd = os.open(source.directory / "MARK", os.O_RDWR)
        os.pwrite(fd, scan.pack_mark(mark, noted.begin, Files().identity(fd)), 0)
        os.close(fd)
        backed_up(source.directory, target)
        assert numbers(target) == list(range(1, 51))

    def test_progress_reports_bytes(self, source: Any, tmp_path: Path) -> None:
        told: list[tuple[int, int]] = []
        backed_up(source.directory, tmp_path / "b", progress=lambda done, total: told.append((done, total)))
        before = look(source.directory)
        assert told == [(extent.end, before.mark) for extent in before.segments]
        told.clear()
        fill(source, 25)
        backed_up(source.directory, tmp_path / "b", progress=lambda done, total: told.append((done, total)))
        after = look(source.directory)
        ends = [extent.end for extent in after.segments if extent.end > before.mark]
        assert len(ends) > 2
        assert told == [(end - before.mark, after.mark - before.mark) for end in ends]

    def test_large_batches_are_copied_in_pieces(self, open_journal: Opener, tmp_path: Path) -> None:
        bench = open_journal(segment_size=16 << 20)
        for size in (5 << 20, 100, 3 << 20, 9 << 20):
            bench.append(bytes(size))
        told: list[int] = []
        backed_up(bench.directory, tmp_path / "b", progress=lambda done, total: told.append(done))
        assert len(told) > len(scan.segments(bench.directory)), "progress is reported within a segment, too"
        assert told == sorted(told)
        assert is_same_log(bench.directory, tmp_path / "b")

    def test_a_segment_that_source_and_backup_lack_is_reported(self, source: Any, backup: Path) -> None:
        second = scan.segments(backup)[1]
        second.path.unlink()
        for segment in scan.segments(source.directory)[:3]:
            segment.path.unlink()
        with pytest.raises(JournalCorrupt, match=f"lacks the positions {second.base} to {second.end}"):
            backed_up(source.directory, backup)

    def test_missing_oldest_segments_are_reported_until_a_mirror_deletes_the_rest(
        self, source: Any, backup: Path
    ) -> None:
        for directory in (source.directory, backup):
            for segment in scan.segments(directory)[:2]:
                segment.path.unlink()
        first = scan.segments(backup)[0].base
        for _ in range(2):
            fill(source, 1)
            with pytest.raises(JournalCorrupt, match=f"lacks the positions 0 to {first}, .* use --mirror"):
                backed_up(source.directory, backup)
            assert numbers(backup)[-1] == numbers(source.directory)[-1], "what is new is there all the same"
        backed_up(source.directory, backup, mirror=True)
        backed_up(source.directory, backup)
        assert verify(backup).problems == []

    def test_intact_batches_of_a_copied_journal_are_copied(self, source: Any, tmp_path: Path) -> None:
        source.close()
        copy, target = tmp_path / "copy", tmp_path / "b"
        shutil.copytree(source.directory, copy)
        (copy / "MARK").unlink()
        assert look(copy).mark < look(source.directory).mark, "the headers of batches are older"
        with pytest.raises(JournalEndUnknown, match=r"newer records may be missing; .* add --accept-unknown-end"):
            backed_up(copy, target)
        assert not scan.segments(target)
        backed_up(copy, target, accept_unknown_end=True)
        assert is_same_log(source.directory, target)

    def test_a_copied_journal_with_durable_damage_in_its_last_segment_is_refused(
        self, open_journal: Opener, tmp_path: Path
    ) -> None:
        source = open_journal()
        fill(source, 8)
        copy, target = tmp_path / "copy", tmp_path / "b"
        shutil.copytree(source.directory, copy)
        last = scan.segments(copy)[-1]
        flip(last.path, 300)
        with pytest.raises(JournalCorrupt, match=f"{last.path.name} is damaged at byte"):
            backed_up(copy, target)


class TestSnapshotsAndReaders:
    def test_snapshots_of_streams_are_copied_before_segments_and_once(self, source: Any, tmp_path: Path) -> None:
        target = tmp_path / "b"
        put_snapshot(source.directory, 0)
        order: list[str] = []

        class Watched(Files):
            def rename(self, old: Path, new: Path) -> None:
                order.append(new.suffix)
                super().rename(old, new)

        backed_up(source.directory, target, files=Watched())
        assert order[0] == ".streams"
        assert order.count(".streams") == 1
        assert scan.snapshot_path_of(target, 0).read_bytes() == scan.snapshot_path_of(source.directory, 0).read_bytes()
        put_snapshot(source.directory, 4096)
        fill(source, 40)
        order.clear()
        backed_up(source.directory, target, files=Watched())
        assert order.count(".streams") == 1
        assert scan.snapshots(target) == [0, 4096]

    @pytest.mark.parametrize("how", ["empty", "flipped", "another"])
    def test_a_damaged_snapshot_is_refused(self, source: Any, tmp_path: Path, how: str) -> None:
        put_snapshot(source.directory, 0)
        path = scan.snapshot_path_of(source.directory, 0)
        if how == "empty":
            path.write_bytes(b"")
        elif how == "flipped":
            flip(path, 70)
        else:
            put_snapshot(source.directory, 4096)
            scan.snapshot_path_of(source.directory, 4096).rename(path)
        with pytest.raises(JournalCorrupt, match=r"0{16}\.streams of .* is damaged: "):
            backed_up(source.directory, tmp_path / "b")

    def test_a_journal_of_many_streams_is_copied_and_starts(self, open_journal: Opener, tmp_path: Path) -> None:
        bench, target = open_journal(segment_size=4096, stream_limits=StreamLimits(inline=4)), tmp_path / "b"
        for turn in range(4):
            for i in range(20):
                bench.append(b"x", stream=f"stream {i}")
            fill(bench, 20)
            backed_up(bench.directory, target, mirror=turn % 2 == 0)
        restore(Directory(target), tmp_path / "r", Files(), exact=True)
        assert scan.snapshots(tmp_path / "r")
        for directory in (target, tmp_path / "r"):
            assert verify(directory).problems == []
            assert recover(directory, Files()).streams.ends == dict(bench.journal.ends())

    def test_a_snapshot_that_is_deleted_during_the_copy_is_skipped(
        self, source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Directory, "snapshots", lambda self: [4096])
        backed_up(source.directory, tmp_path / "b")
        assert is_same_log(source.directory, tmp_path / "b")

    def test_subscription_follows_the_backup(self, source: Any, tmp_path: Path) -> None:
        target = tmp_path / "b"
        updates: list[int] = []
        clock = [64.0]

        class Recording(Directory):
            def update_subscription(self, name: str, position: int, identity: bytes = fmt.UNKNOWN) -> None:
                assert name == "backup"
                updates.append(position)
                super().update_subscription(name, position, identity)

        subscriptions.update(source.directory, "lake", 64, 0)
        with Replica(target, Files()) as replica:
            backup = Backup(Recording(source.directory), replica, subscription="backup", seconds=lambda: clock[0])
            backup.run()
            assert [each.name for each in subscriptions.registered(target)] == ["lake"], "nobody moves that of a backup"
            assert updates == [0, look(source.directory).mark]
            backup.run()
            assert len(updates) == 2, "a subscription without news is updated once a minute only"
            clock[0] += 59.9
            backup.run()
            assert len(updates) == 2
            clock[0] += 0.1
            backup.run()
            assert updates.pop() == updates[-1], "the time of the subscription is updated, its position is the same"
            fill(source, 1)
            backup.run()
            assert updates[2:] == [look(source.directory).mark]


class TestInterruption:
    """A backup that is interrupted at any moment keeps its previous content, or has more."""

    def test_durable_mark_and_file_names_are_written_only_after_a_sync(self, source: Any, tmp_path: Path) -> None:
        class Watched(SteppedFiles):
            """Files that record which files were written and not synced yet."""

            def __init__(self) -> None:
                self.paths: dict[int, str] = {}
                self.unsynced: set[str] = set()
                self.marks = 0

            def open(self, path: Path, flags: int) -> int:
                fd = super().open(path, flags)
                self.paths[fd] = path.name
                return fd

            def write(self, fd: int, data: Any, offset: int) -> None:
                if self.paths[fd] == "MARK":
                    assert self.unsynced == set()
                    self.marks += 1
                self.unsynced.add(self.paths[fd])
                super().write(fd, data, offset)

            def sync(self, fd: int) -> None:
                self.unsynced.discard(self.paths[fd])
                super().sync(fd)

            def rename(self, old: Path, new: Path) -> None:
                assert old.name not in self.unsynced
                self.unsynced.add("directory")
                super().rename(old, new)

            def sync_directory(self, directory: Path) -> None:
                self.unsynced.discard("directory")
                super().sync_directory(directory)

        files = Watched()
        for _ in range(3):
            before = files.marks
            backed_up(source.directory, tmp_path / "b", files=files)
            assert files.marks > before
            assert files.unsynced == set()
            fill(source, 12)

    def test_backup_is_continued_after_the_source_went_away(self, source: Any, tmp_path: Path) -> None:
        target = tmp_path / "b"

        class Flaky(Directory):
            def open(self, base: int, limit: int) -> scan.SegmentReader:
                return FlakyReader(scan.path_of(self.path, base), base, limit=limit)

        class FlakyReader(scan.SegmentReader):
            def read(self, position: int, size: int) -> memoryview:
                if position > 10_000:
                    raise JournalUnreachable("the network is down")
                return super().read(position, size)

        with Replica(target, Files()) as replica:
            with pytest.raises(JournalUnreachable):
                Backup(Flaky(source.directory), replica).run()
            assert 10_000 < look(target).mark < 11_000
            assert replica.position == look(target).mark
            Backup(Directory(source.directory), replica).run()
        assert is_same_log(source.directory, target)


class TestRefusals:
    def test_another_journal_is_refused(self, source: Any, open_journal: Opener, tmp_path: Path) -> None:
        target, other = tmp_path / "b", tmp_path / "other"
        backed_up(source.directory, target)
        fill(open_journal(directory=other, segment_size=4096, now=lambda: 5), 60)
        before = {path.name: path.read_bytes() for path in target.iterdir() if path.is_file()}
        with pytest.raises(JournalError, match=r"is another journal \(identity \w{32}\) than the one that was copied"):
            backed_up(other, target)
        assert {path.name: path.read_bytes() for path in target.iterdir() if path.is_file()} == before

    def test_backup_in_which_a_server_was_started_is_refused(self, source: Any, backup: Path) -> None:
        with pytest.raises(ConfigError, match="is a backup"):
            started(backup)
        started(opened_up(backup))
        fill(source, 5)
        with pytest.raises(JournalError, match="a server was started in the backup; use an empty directory"):
            backed_up(source.directory, backup)

    def test_source_restored_from_an_older_copy_is_refused(self, source: Any, tmp_path: Path) -> None:
        target = tmp_path / "b"
        older = tmp_path / "older"
        backed_up(source.directory, older)
        fill(source, 1)
        backed_up(source.directory, target)
        with pytest.raises(SourceBehind, match="restored from an older copy"):
            backed_up(older, target)
        started(opened_up(older))
        with pytest.raises(JournalError, match="ends at position"):
            backed_up(older, target)

    def test_the_next_source_is_compared_before_it_continues_the_backup(self, backup: Path, tmp_path: Path) -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        for branch in (first, second):
            restore(Directory(backup), branch, Files())
        with Replica(backup, Files()) as replica:
            copying = Backup(Directory(first), replica, others=[Directory(second)])
            copying.run()
            first.rename(tmp_path / "away")
            with pytest.raises(JournalError, match="differ at position"):
                copying.run()

    def test_journal_with_another_identity_is_refused(self, source: Any, tmp_path: Path) -> None:
        target = tmp_path / "b"
        source.close()
        found = scan.segments(source.directory)
        rename_journal(found[0].path, bytes(16))  # an older version wrote the first segment
        for segment in found[1:]:
            rename_journal(segment.path, b"a" * 16)
        shutil.copytree(
            source.directory, tmp_path / "c", ignore=lambda _, names: [n for n in names if n > found[3].path.name]
        )
        backed_up(tmp_path / "c", target, accept_unknown_end=True)
        rename_journal(found[-1].path, b"b" * 16)
        with pytest.raises(JournalError, match=r"is another journal \(identity (62){16}\)"):
            backed_up(source.directory, target)

    def test_missing_segment_of_the_source_is_reported(self, source: Any, tmp_path: Path) -> None:
        target = tmp_path / "b"
        third = scan.segments(source.directory)[2]
        third.path.unlink()
        with pytest.raises(
            JournalCorrupt, match=f"lacks the positions {third.base} to {third.end}: a segment is missing"
        ):
            backed_up(source.directory, target)
        assert look(target).mark == third.base
        assert scan.segments(target)[-1].end == third.base, "nothing behind it was copied"

    def test_segment_of_the_source_that_does_not_continue_is_reported(self, source: Any, tmp_path: Path) -> None:
        third = scan.segments(source.directory)[2]
        data = third.path.read_bytes()
        head = fmt.SegmentHeader.unpack(data[: fmt.SEGMENT_HEADER.size])
        third.path.write_bytes(attrs.evolve(head, chain=head.chain ^ 1).pack() + data[fmt.SEGMENT_HEADER.size :])
        with pytest.raises(JournalCorrupt, match="the segment does not continue from the previous one"):
            backed_up(source.directory, tmp_path / "b")

    @pytest.mark.parametrize("offset", [20, 70, 400, 1500])
    def test_batches_before_damage_of_the_source_are_copied(self, source: Any, tmp_path: Path, offset: int) -> None:
        target = tmp_path / "b"
        third = scan.segments(source.directory)[2]
        flip(third.path, offset)
        for _ in range(2):
            with pytest.raises(
                JournalCorrupt, match=rf"{third.path} is damaged at byte \d+ \(position \d+\)"
            ) as caught:
                backed_up(source.directory, target)
            assert caught.value.exit_status == 3
            assert third.base <= look(target).mark <= third.base + offset
            assert verify(target).problems == []
        flip(third.path, offset)
        backed_up(source.directory, target)
        assert is_same_log(source.directory, target)

    def test_damage_that_quarantine_has_replaced_at_the_source_is_copied_as_a_gap(
        self, source: Any, open_journal: Opener, tmp_path: Path
    ) -> None:
        target = tmp_path / "b"
        segments = scan.segments(source.directory)
        source.close()
        flip(segments[2].path, 700)
        flip(segments[4].path, 20)
        again = open_journal(segment_size=4096, quarantine=True)
        fill(again, 3)
        backed_up(source.directory, target)
        assert is_same_log(source.directory, target)
        fill(again, 30)
        backed_up(source.directory, target)
        assert is_same_log(source.directory, target)

    def test_segments_of_a_newer_version_are_refused(self, source: Any, tmp_path: Path) -> None:
        segment = scan.segments(source.directory)[1]
        data = bytearray(segment.path.read_bytes())
        data[8] = 9
        data[60:64] = crc32c(bytes(data[:60])).to_bytes(4, "little")
        segment.path.write_bytes(data)
        with pytest.raises(JournalCorrupt, match=r"newer Fyrehose .*; copy it with that version"):
            backed_up(source.directory, tmp_path / "b")

    def test_damaged_end_of_the_backup_is_reported(self, source: Any, backup: Path) -> None:
        last = scan.segments(backup)[-1]
        flip(last.path, last.size - 5)
        with pytest.raises(
            JournalCorrupt, match=f"{last.path} is damaged .*; delete this file, and MARK and END beside it"
        ):
            backed_up(source.directory, backup)
        last.path.unlink()
        (backup / "MARK").unlink()
        (backup / END).unlink()
        backed_up(source.directory, backup)
        assert is_same_log(source.directory, backup)

    def test_backup_without_its_segments_is_reported(self, source: Any, backup: Path) -> None:
        for segment in scan.segments(backup):
            segment.path.unlink()
        with pytest.raises(JournalCorrupt, match="has no segments below position"):
            backed_up(source.directory, backup)

    def test_directory_of_a_running_server_is_refused(self, source: Any, open_journal: Opener, tmp_path: Path) -> None:
        other = tmp_path / "other"
        backed_up(source.directory, other)
        with pytest.raises(JournalLocked, match=rf"in use by another process \(pid {os.getpid()}\)"):
            backed_up(other, source.directory)

    def test_second_backup_into_a_directory_is_refused(self, source: Any, tmp_path: Path) -> None:
        with (
            Replica(tmp_path / "b", Files()),
            pytest.raises(
                JournalLocked, match="a server, or a command such as a backup into it; stop that process first"
            ),
            Replica(tmp_path / "b", Files()),
        ):
            raise AssertionError("it was let in")

    def test_directories_that_cannot_become_a_backup_are_refused(self, source: Any, tmp_path: Path) -> None:
        home = tmp_path / "home"
        home.mkdir()
        (home / "thesis.tex").write_text("years of work")
        with pytest.raises(ConfigError, match="has files and is no backup"):
            backups.check_target(Directory(source.directory), home)
        with pytest.raises(ConfigError, match="a copy of itself"):
            backups.check_target(Directory(source.directory), source.directory)
        with pytest.raises(JournalUnreachable, match="no such directory"):
            backups.check_target(Directory(tmp_path / "typo"), tmp_path / "b")

    def test_full_disk_is_reported_before_copying(self, source: Any, tmp_path: Path) -> None:
        size = look(source.directory).mark
        for files, said in (
            (FaultyFiles(room=size - 1), f"has {size - 1} bytes of free space, but {size} must be copied"),
            (FaultyFiles("write", 1, errno.ENOSPC), "cannot be written: No space left .* complete up to position 0"),
        ):
            with pytest.raises(JournalFull, match=said):
                backed_up(source.directory, tmp_path / "b", files=files)
        backed_up(source.directory, tmp_path / "b", files=FaultyFiles(room=size))
        assert is_same_log(source.directory, tmp_path / "b")


class TestRetention:
    def test_mirror_deletes_nothing_while_it_cannot_tell_which_snapshots_are_needed(
        self, source: Any, tmp_path: Path
    ) -> None:
        target = tmp_path / "b"
        backed_up(source.directory, target, mirror=True)
        for segment in scan.segments(source.directory)[:3]:
            segment.path.unlink()
        before = sorted(target.glob("*.segment"))
        flip(before[3], fmt.SEGMENT_HEADER.size + 30)
        with pytest.raises(JournalCorrupt, match=f"{before[3]} is damaged"):
            backed_up(source.directory, target, mirror=True)
        assert sorted(target.glob("*.segment")) == before

    def test_first_backup_is_repeated_while_retention_deletes(self, source: Any, tmp_path: Path) -> None:
        class Fading(Directory):
            """A place that deletes the oldest segment when it is opened, while there are more than three."""

            def open(self, base: int, limit: int) -> scan.SegmentReader:
                there = scan.segments(self.path)
                if base == there[0].base and len(there) > 3:
                    there[0].path.unlink()
                return super().open(base, limit)

        with Replica(tmp_path / "b", Files()) as replica:
            Backup(Fading(source.directory), replica).run()
        assert len(scan.segments(source.directory)) == 3
        assert is_same_log(source.directory, tmp_path / "b")

    def test_segment_deleted_during_the_copy_is_reported(self, source: Any, tmp_path: Path) -> None:
        class Fading(Directory):
            def open(self, base: int, limit: int) -> scan.SegmentReader:
                if base > 10_000:
                    for segment in scan.segments(self.path)[:-1]:
                        segment.path.unlink()
                return super().open(base, limit)

        with Replica(tmp_path / "b", Files()) as replica, pytest.raises(JournalGap, match="begin another in an empty"):
            Backup(Fading(source.directory), replica).run()
        assert verify(tmp_path / "b").problems == []


class TestFollowing:
    def test_follow_copies_new_batches_until_it_is_interrupted(self, source: Any, tmp_path: Path) -> None:
        target, said, turns = tmp_path / "b", [], iter(range(4))

        def sleep(seconds: float) -> None:
            assert seconds == 0.5
            if next(turns, None) is None:
                raise KeyboardInterrupt
            fill(source, 7)

        with Replica(target, Files()) as replica, pytest.raises(KeyboardInterrupt):
            Backup(Directory(source.directory), replica).follow(0.5, said.append, sleep)
        assert said == []
        assert numbers(target) == list(range(1, 79))

    def test_follow_waits_for_an_unreachable_source(self, source: Any, tmp_path: Path) -> None:
        target, away = tmp_path / "b", tmp_path / "away"
        said: list[str] = []
        turn = [0]

        def sleep(seconds: float) -> None:
            turn[0] += 1
            if turn[0] == 2:
                source.directory.rename(away)
            elif turn[0] == 5:
                away.rename(source.directory)
                fill(source, 3)
            elif turn[0] == 7:
                raise KeyboardInterrupt

        with Replica(target, Files()) as replica, pytest.raises(KeyboardInterrupt):
            Backup(Directory(source.directory), replica).follow(1, said.append, sleep)
        assert [line.partition(";")[0] for line in said] == [
            f"{source.directory} is no journal: there is no such directory",
            f"{source.directory} is reachable again",
        ]
        assert numbers(target) == list(range(1, 54))

    def test_follow_ends_if_the_source_is_replaced(self, source: Any, tmp_path: Path) -> None:
        target, older = tmp_path / "b", tmp_path / "older"
        said: list[str] = []
        backed_up(source.directory, older)
        fill(source, 1)
        turn = [0]

        def sleep(seconds: float) -> None:
            turn[0] += 1
            if turn[0] == 2:  # the source was restored from an older copy, and is shorter than the backup
                source.close()
                source.directory.rename(tmp_path / "away")
                opened_up(older).rename(source.directory)
            elif turn[0] == 4:
                for _ in range(20):
                    started(source.directory)
            assert turn[0] < 6

        with Replica(target, Files()) as replica, pytest.raises(JournalError, match="differ at position"):
            Backup(Directory(source.directory), replica).follow(1, said.append, sleep)
        assert len(said) == 1
        assert "restored from an older copy" in said[0]
        assert numbers(target) == list(range(1, 52))


class TestRestore:
    def test_a_restored_journal_uses_no_number_again_that_was_given_out_after_the_backup(
        self, source: Any, backup: Path, tmp_path: Path, open_journal: Opener
    ) -> None:
        target = tmp_path / "restored"
        fill(source, 2000)
        assert source.append(b"x", stream="new").called
        lost = dict(source.journal.ends())
        restore(Directory(backup), target, Files())
        restored = open_journal(directory=target)
        assert restored.journal.ends()["s"] > lost["s"] + SKIPPED - 2001
        assert restored.journal.floor > lost["new"] + SKIPPED - 2001
        assert [record.seq for record in restored.records("s")] == list(range(1, 51))

    def test_two_restores_of_one_backup_are_branches_that_each_continue_it(self, backup: Path, tmp_path: Path) -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        for target in (first, second):
            restore(Directory(backup), target, Files())
        assert recover(first, Files()).identity == recover(second, Files()).identity
        backed_up(first, backup)
        assert is_same_log(first, backup)
        with pytest.raises(JournalError, match="differ at position"):
            backed_up(second, backup)

    def test_an_exact_restore_ends_where_the_backup_ends(self, backup: Path, tmp_path: Path) -> None:
        target = tmp_path / "restored"
        assert restore(Directory(backup), target, Files(), exact=True).done.records == 50
        assert is_same_log(backup, target)
        assert not (target / RESTORING).exists()

    def test_an_empty_backup_is_restored(self, open_journal: Opener, tmp_path: Path) -> None:
        bench = open_journal()
        backed_up(bench.directory, tmp_path / "b")
        restore(Directory(tmp_path / "b"), tmp_path / "restored", Files())
        assert started(tmp_path / "restored") == []

    def test_copy_of_a_backup_is_restored_up_to_its_end(self, source: Any, tmp_path: Path) -> None:
        backup, tape, target = tmp_path / "b", tmp_path / "tape", tmp_path / "restored"
        backed_up(source.directory, backup)
        shutil.copytree(backup, tape)
        restore(Directory(tape), target, Files())
        assert numbers(target) == list(range(1, 51))

    def test_a_finished_exact_restore_survives_a_power_cut(self, backup: Path, tmp_path: Path) -> None:
        target = tmp_path / "restored"
        target.mkdir()
        files = RecordingFiles(target)
        restore(Directory(backup), target, files, exact=True)
        whole = {path.name: path.read_bytes() for path in target.iterdir() if path.name not in ("LOCK", "readers")}
        assert RESTORING not in whole
        for state in images(files, len(files.log), Random(1), 3):
            assert state == whole

    def test_power_cut_at_any_step_starts_no_server_that_uses_numbers_again(self, backup: Path, tmp_path: Path) -> None:
        target = tmp_path / "restored"
        target.mkdir()
        files, found = RecordingFiles(target), set()
        restore(Directory(backup), target, files)
        for upto in range(len(files.log) - 40, len(files.log) + 1):
            for number, state in enumerate(images(files, upto, Random(upto), 2)):
                image = tmp_path / f"{upto}-{number}"
                image.mkdir()
                for name, data in state.items():
                    (image / name).write_bytes(data)
                if restoring := (image / RESTORING).exists():
                    restore(Directory(backup), image, Files())
                assert recover(image, Files()).streams.ends["s"] > SKIPPED
                found.add(restoring)
        assert found == {True, False}

    def test_a_directory_that_is_not_empty_is_refused(self, backup: Path, tmp_path: Path) -> None:
        target = tmp_path / "restored"
        target.mkdir()
        (target / "lost+found").mkdir()
        restore(Directory(backup), target, Files())
        with pytest.raises(ConfigError, match="is not empty"):
            restore(Directory(backup), target, Files())
        with pytest.raises(ConfigError, match="is not empty"):
            restore(Directory(backup), backup, Files())

    def test_restoring_a_missing_backup_creates_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(JournalError, match="no such directory"):
            restore(Directory(tmp_path / "typo"), tmp_path / "restored", Files())
        assert not (tmp_path / "restored").exists()

    def test_interrupted_restore_starts_no_server_and_can_be_repeated(self, backup: Path, tmp_path: Path) -> None:
        steps = 0
        while True:
            target = tmp_path / f"restored{steps}"
            try:
                restore(Directory(backup), target, mortal(steps, half=True))
                break
            except Killed:
                steps += 1
            if any(path.name != "LOCK" and path.suffix != ".new" for path in target.iterdir()):
                for quarantine in (False, True):
                    with pytest.raises(JournalCorrupt, match="`fyrehose journal restore` was interrupted"):
                        started(target, quarantine)
            restore(Directory(backup), target, Files())
            assert started(target) == list(range(1, 51))
        assert steps > 20

    def test_a_copy_of_a_server_s_directory_is_restored_only_if_its_unknown_end_is_accepted(
        self, source: Any, tmp_path: Path
    ) -> None:
        source.close()
        copy, target = tmp_path / "copy", tmp_path / "restored"
        shutil.copytree(source.directory, copy)
        (copy / "MARK").unlink()
        with pytest.raises(JournalEndUnknown):
            restore(Directory(copy), target, Files())
        restore(Directory(copy), target, Files(), accept_unknown_end=True)
        assert started(target) == list(range(1, 51))

    def test_restoring_a_damaged_backup_is_refused(self, backup: Path, tmp_path: Path) -> None:
        target = tmp_path / "restored"
        third = scan.segments(backup)[2]
        flip(third.path, 500)
        with pytest.raises(JournalCorrupt, match=f"{third.path} is damaged at byte.*, delete END in the copy, start a"):
            restore(Directory(backup), target, Files())
        with pytest.raises(JournalCorrupt, match="is not complete"):
            started(target)

    def test_the_rest_of_a_damaged_backup_is_restored_as_the_error_says(self, source: Any, tmp_path: Path) -> None:
        backup, copy, target = tmp_path / "b", tmp_path / "copy", tmp_path / "restored"
        backed_up(source.directory, backup)
        flip(scan.segments(backup)[2].path, 500)
        shutil.copytree(backup, copy)
        (copy / END).unlink()
        rest = started(copy, quarantine=True)
        assert 40 < len(rest) < 50
        restore(Directory(copy), target, Files())
        assert started(target) == rest


def test_source_that_keeps_deleting_segments_is_unreachable(source: Any, tmp_path: Path) -> None:
    class Gone(Directory):
        def open(self, base: int, limit: int) -> scan.SegmentReader:
            raise Missing(self.name(base))

    with Replica(tmp_path / "b", Files()) as replica, pytest.raises(JournalUnreachable, match="was deleted while"):
        Backup(Gone(source.directory), replica).run()
