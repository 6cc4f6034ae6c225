"""The journal on disk: order, batches, states, reading."""

from __future__ import annotations

import errno
import shutil
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.logger import formatEvent

from fyrehose.errors import (
    Closed,
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalFull,
    JournalLocked,
    ReadOnly,
)
from fyrehose.interfaces import JournalState, Unread
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.commit import COMMIT
from fyrehose.journal.copies import RESTORING
from fyrehose.journal.files import Files, SteppedFiles
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings
from fyrehose.journal.settings import durability as parse_durability
from fyrehose.observe.meters import MOST_RECENT
from fyrehose.records import Run
from tests.doubles.appending import append_runs
from tests.doubles.files import FaultyFiles, flip
from tests.doubles.hand_worker import HandWorker
from tests.doubles.opened_journal import Observer, opened


def failed(deferred) -> Exception:  # type: ignore[no-untyped-def]
    failures: list = []  # type: ignore[type-arg]
    deferred.addErrback(failures.append)
    assert failures, "it should have failed"
    return failures[0].value


def test_records_are_read_as_they_were_appended(open_journal) -> None:
    bench = open_journal()
    assert bench.append(b"a", b"", b"c" * 1000, producer="p", topic="t", content_type="x/y", producer_seq=7).called
    bench.append(b"d", event_ids=b"i" * 16, event_times=(5).to_bytes(8, "little"))
    for _ in range(2):
        records = bench.records()
        assert [r.seq for r in records] == [1, 2, 3, 4]
        assert [r.payload for r in records] == [b"a", b"", b"c" * 1000, b"d"]
        assert [r.producer_seq for r in records] == [7, 8, 9, None]
        assert (records[0].producer, records[0].topic, records[0].content_type) == ("p", "t", "x/y")
        assert (records[3].event_id, records[3].event_time) == (b"i" * 16, 5)
        assert {r.time for r in records} == {1_000_000}
        bench.close()
        bench = open_journal()
    assert bench.append(b"e").called
    assert bench.journal.bounds("s") == (1, 5)


@pytest.mark.parametrize("damage", ["absent", "truncated", "flipped", "swapped"])
def test_deleted_index_files_are_rebuilt(open_journal, damage: str) -> None:
    bench = open_journal(segment_size=4096)
    for i in range(100):
        bench.append(b"%d" % i)
    bench.close()
    indexes = sorted(bench.directory.glob("*.index"))
    assert len(indexes) > 2
    first, second = indexes[0], indexes[1]
    before = first.read_bytes()
    if damage == "absent":
        first.unlink()
    elif damage == "truncated":
        first.write_bytes(first.read_bytes()[:-9])
    elif damage == "flipped":
        flip(first, -3)
    else:
        first.write_bytes(second.read_bytes())
    bench = open_journal(segment_size=4096)
    assert bench.payloads() == [b"%d" % i for i in range(100)]
    assert first.read_bytes() == before


def test_largest_payload_is_stored(open_journal) -> None:
    bench = open_journal()
    bench.append(b"z" * (16 << 20))
    bench.append(b"after")
    bench.close()
    bench = open_journal()
    assert [len(p) for p in bench.payloads()] == [16 << 20, 5]


OTHER_STEPS = ("hold", "full", "full", "room", "room", "sync", "lock", "close", "crash")


class World:
    """A journal on a disk that is full, or fails, at times, and a plain list of what was accepted."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.random, self.directory = Random(seed), directory
        self.settings: dict[str, Any] = {"segment_size": 4096, "keep_bytes": (0, 9000)[seed % 2]}
        self.settings["durability"] = parse_durability(("batch", "interval:50", "never")[seed % 3])
        self.accepted: list[tuple[str, int, bytes, Deferred[None]]] = []
        self.did = Counter[str]()
        self.open()

    def open(self) -> None:
        """Open the journal: of what was not acknowledged, a part of the newest may be lost."""
        self.files, self.worker, self.has_failed = FaultyFiles(), HandWorker(hold=False), False
        self.bench = opened(self.directory, self.files, worker=self.worker, **self.settings)
        there = {(stream, record.seq) for stream in "ab" for record in self.bench.records(stream)}
        while self.accepted and not self.accepted[-1][3].called and self.accepted[-1][:2] not in there:
            self.accepted.pop()
        self.begun = {stream: self.bench.journal.bounds(stream)[1] for stream in "ab"}  # may be the end of a gap
        for stream, seq, *_ in self.accepted:
            assert self.bench.next[stream] > seq, f"number {seq} of {stream} may be used again"
        self.accepted = [(*each[:3], succeed(None)) for each in self.accepted]
        self.check()

    def append(self) -> None:
        stream, payload = (
            self.random.choice("ab"),
            b"%d" % self.random.randrange(1000) * self.random.choice((1, 100, 900)),
        )
        seq = self.bench.next.get(stream, self.bench.journal.floor + 1)
        self.accepted.append((stream, seq, payload, self.bench.append(payload, stream=stream)))

    def step(self) -> None:
        bench, files, random = self.bench, self.files, self.random
        state = bench.journal.state
        what = random.choice((*["append", "run", "report", "tick"] * 3, *OTHER_STEPS))
        if state is not JournalState.WRITABLE:
            refused = failed(bench.journal.retire(["a"]))
            assert isinstance(refused, ReadOnly if state is JournalState.READ_ONLY else Closed)
        if what == "append" and state is JournalState.WRITABLE:
            self.append()
        elif what == "run" and self.worker.jobs:
            self.worker.run()
        elif what == "report" and self.worker.ran:
            self.worker.report()
        elif what == "tick":
            bench.clock.advance(random.choice((0.05, 1)))
        elif what == "hold":
            self.worker.hold = True
        elif what == "full":
            files.name, files.error, files.times = random.choice(("write", "allocate")), errno.ENOSPC, 1 << 30
            files.nth, files.short = files.calls[files.name] + 1, random.choice((0, 10, 100))
        elif what == "room":
            self.give_room()
        elif what == "sync" and random.random() < 0.5:
            files.name, files.error, files.times, files.nth = "sync", errno.EIO, 1, files.calls["sync"] + 1
        elif what == "lock" and random.random() < 0.2:
            (self.directory / "LOCK").unlink(missing_ok=True)
        elif what in ("close", "crash"):
            self.stop(what)

    def give_room(self) -> None:
        """Let the disk have room; then all that was accepted is acknowledged, unless the journal has failed."""
        self.worker.hold, self.files.name = False, ""
        self.worker.work()
        self.bench.clock.pump([1] * 3)
        if self.bench.journal.state is not JournalState.FAILED:
            assert self.bench.journal.state is JournalState.WRITABLE, "there is room"
            assert all(each[3].called for each in self.accepted), "an append waits although there is room"
            found = scan.segments(self.directory)
            status = self.bench.journal.status()
            assert (status.segments, status.size) == (len(found), status.position - found[0].base)
            assert status.size < 9000 + 3 * 4096 or not self.settings["keep_bytes"], "retention deletes too little"

    def stop(self, how: str) -> None:
        bench, state = self.bench, self.bench.journal.state
        self.did[f"{how} {state.name}"] += 1
        if how == "crash":
            bench.crash()
        else:
            syncs = self.files.calls["sync"]
            closed = [bench.journal.close(), bench.journal.close()]
            self.worker.hold = False
            self.worker.work()
            assert all(each.called for each in (*closed, bench.journal.close())), "the journal does not close"
            assert not bench.clock.getDelayedCalls(), "a closed journal plans something"
            assert state is not JournalState.FAILED or self.files.calls["sync"] == syncs, (
                "a failed disk is synced again"
            )
        self.open()

    def check(self) -> None:
        """Compare what was acknowledged, and what can be read, with the list."""
        called = [each[3].called for each in self.accepted]
        assert called == sorted(called, reverse=True), "acknowledged in another order than accepted"
        done = self.accepted[: sum(called)]
        assert not self.has_failed or len(done) == self.acknowledged, "a failed journal has acknowledged something"
        self.acknowledged, self.has_failed = len(done), self.bench.journal.state is JournalState.FAILED
        for stream in "ab":
            found = [(record.seq, record.payload) for record in self.bench.records(stream)]
            mine = [(seq, payload) for name, seq, payload, _ in done if name == stream]
            assert found == mine[len(mine) - len(found) :], "other records than those that were acknowledged"
            assert len(found) == len(mine) or self.settings["keep_bytes"]
            first, last = self.bench.journal.bounds(stream)
            assert last == max([self.begun[stream], *(seq for seq, _ in mine)]), "the end is another"
            assert first <= (found[0][0] if found else last + 1), "a record in front of the first number"
            assert self.bench.observer.ends.get(stream, last) == last, "the observer knows of another end"


@pytest.mark.parametrize("seed", range(0, 60, 6))
def test_random_schedules_on_a_disk_that_fails_lose_and_repeat_nothing(
    tmp_path: Path, logged_errors: Any, seed: int
) -> None:
    did = Counter[str]()
    for number in range(seed, seed + 6):
        world = World(number, tmp_path / str(number))
        for _ in range(150):
            world.step()
            world.check()
        world.give_room()
        world.stop("close")
        world.bench.close()
        did += world.did
    logged_errors.take()
    states = ("WRITABLE", "READ_ONLY", "FAILED")
    assert did.keys() == {f"{how} {state}" for how in ("close", "crash") for state in states}, "what was never tried"


class TestNoRoom:
    def test_those_who_wait_for_room_are_let_go_after_five_seconds(self, open_journal) -> None:
        files = FaultyFiles()
        bench = open_journal(files=files)
        files.name, files.nth, files.error, files.times = "write", files.calls["write"] + 1, errno.ENOSPC, 1
        files.room = 0
        waits = bench.append(b"waits")
        bench.clock.pump([1] * 4)
        assert bench.observer.stuck_for == []
        bench.clock.advance(1)
        assert ["cannot be written" in why for why in bench.observer.stuck_for] == [True]
        files.room = 1 << 30
        bench.clock.pump([1] * 2)
        assert (waits.called, bench.journal.state) == (True, JournalState.WRITABLE), "it is stored nevertheless"
        bench.clock.pump([1] * 9)
        assert len(bench.observer.stuck_for) == 1

    def test_a_retirement_without_room_waits_and_keeps_its_place(self, open_journal) -> None:
        files = FaultyFiles()
        bench = open_journal(files=files)
        bench.append(b"a")
        files.name, files.nth, files.error, files.times = "write", files.calls["write"] + 1, errno.ENOSPC, 1
        retired = bench.journal.retire(["s"])
        assert (retired.called, bench.journal.state) == (False, JournalState.READ_ONLY)
        bench.clock.pump([1] * 2)
        assert (retired.called, bench.journal.state) == (True, JournalState.WRITABLE)
        assert dict(bench.journal.retired()) == {"s": 1}

    def test_a_retirement_whose_sync_fails_fails_the_journal(self, open_journal, logged_errors) -> None:
        worker, files = HandWorker(hold=False), FaultyFiles()
        bench = open_journal(files=files, worker=worker)
        bench.append(b"a")
        worker.hold = True
        retired, behind = bench.journal.retire(["s"]), bench.append(b"behind", stream="other")
        files.name, files.nth, files.error = "sync", files.calls["sync"] + 1, errno.EIO
        worker.work()
        worker.hold = False
        assert (bench.journal.state, retired.called, behind.called) == (JournalState.FAILED, False, False)
        assert logged_errors.take()

    def test_journal_is_read_only_below_min_free(self, open_journal) -> None:
        files = FaultyFiles(room=1 << 30)
        bench = open_journal(files=files, min_free=256 << 20)
        bench.append(b"a")
        files.room = 255 << 20
        bench.clock.advance(1)
        assert isinstance(failed(bench.journal.retire(["s"])), ReadOnly)
        assert bench.payloads() == [b"a"]
        files.room = (256 << 20) + (256 << 20) // 10
        bench.clock.advance(1)
        assert bench.journal.state is JournalState.READ_ONLY, "not before there is more than a tenth more"
        files.room += 1
        bench.clock.advance(1)
        assert [state for state, _ in bench.observer.states] == [JournalState.READ_ONLY, JournalState.WRITABLE]
        bench.next["s"] = 2
        assert bench.append(b"b").called

    @pytest.mark.parametrize("more", [-1, 0, 1])
    def test_publishes_are_refused_below_the_default_of_min_free(self, open_journal, more: int) -> None:
        files = FaultyFiles()
        bench = open_journal(files=files, min_free=JournalSettings().min_free)
        files.room = JournalSettings().min_free + more
        bench.clock.advance(1)
        assert bench.journal.state is (JournalState.READ_ONLY if more < 0 else JournalState.WRITABLE)

    @pytest.mark.parametrize("loss", ["emptied", "with another lock", "deleted"])
    def test_lost_directory_fails_an_idle_journal(self, open_journal, logged_errors, loss: str) -> None:
        bench = open_journal()
        bench.append(b"a")
        if loss == "deleted":
            shutil.rmtree(bench.directory)
        else:
            (bench.directory / "LOCK").rename(bench.directory / "elsewhere")
        if loss == "with another lock":
            (bench.directory / "LOCK").write_text("1\n")
        bench.clock.advance(1)
        assert bench.journal.state is JournalState.FAILED
        logged_errors.take()
        ((state, reason),) = bench.observer.states
        assert (state, "its LOCK was deleted or replaced" in reason) == (JournalState.FAILED, True)
        assert isinstance(failed(bench.journal.retire(["s"])), Closed), "it would be acknowledged and lost"

    def test_nothing_is_acknowledged_into_a_deleted_directory(self, open_journal, logged_errors) -> None:
        bench = open_journal()
        assert bench.append(b"a").called
        shutil.rmtree(bench.directory)
        assert not bench.append(b"lost").called
        assert bench.journal.state is JournalState.FAILED
        logged_errors.take()
        ((state, reason),) = bench.observer.states
        assert state is JournalState.FAILED
        assert "was deleted while it was being written" in reason

    def test_journal_resumes_when_its_directory_is_back(self, open_journal, tmp_path) -> None:
        bench = open_journal()
        bench.append(b"a")
        bench.directory.rename(tmp_path / "away")
        for _ in range(3):
            bench.clock.advance(1)
        assert isinstance(failed(bench.journal.retire(["s"])), ReadOnly)
        (tmp_path / "away").rename(bench.directory)
        bench.clock.advance(1)
        assert bench.journal.state is JournalState.WRITABLE
        assert bench.append(b"b").called

    def test_retention_deletes_nothing_after_the_lock_is_lost(self, open_journal, logged_errors) -> None:
        time = [1_000_000]
        bench = open_journal(segment_size=4096, keep_age=60.0, now=lambda: time[0])
        for _ in range(10):
            bench.append(b"x" * 1000)
        kept = scan.segments(bench.directory)
        (bench.directory / "LOCK").unlink()
        time[0] += 120 * 1_000_000
        bench.clock.advance(120)
        assert scan.segments(bench.directory) == kept, "another process may have the directory now"
        assert logged_errors.take()

    def test_a_read_only_file_system_makes_the_journal_read_only(self, open_journal) -> None:
        bench = open_journal(files=(files := FaultyFiles()))
        bench.append(b"a")
        files.name, files.nth, files.error, files.room = "write", files.calls["write"] + 1, errno.EROFS, 0
        bench.append(b"b")
        bench.clock.advance(5)
        assert bench.journal.state is JournalState.READ_ONLY
        assert bench.payloads() == [b"a"]


class TestFailStop:
    def test_recovered_batches_are_rewritten_before_they_are_served(self, open_journal, logged_errors) -> None:
        """A failed sync leaves pages marked clean, so the next process must not trust the page cache."""
        files = FaultyFiles()
        bench = open_journal(files=files)
        files.name, files.nth = "sync", files.calls["sync"] + 1
        assert not bench.append(b"in the page cache only").called
        bench.close()
        logged_errors.take()
        again = FaultyFiles()
        bench = open_journal(files=again)
        assert bench.payloads() == [b"in the page cache only"]
        assert again.log.index("write") < again.log.index("sync")


class TestUnsynced:
    @pytest.mark.parametrize("mode", ["never", "interval"])
    def test_numbers_are_not_given_out_twice_after_a_crash(self, open_journal, mode: str) -> None:
        settings = {"durability": parse_durability("never" if mode == "never" else "interval:50")}
        bench = open_journal(**settings)
        bench.append(b"a")
        bench.crash()
        bench = open_journal(**settings)
        first = bench.next["s"]
        assert first > 1 << 20
        bench.append(b"b")
        assert [(r.seq, r.payload) for r in bench.records()] == [(1, b"a"), (first, b"b")]
        bench.close()
        bench = open_journal(**settings)
        assert bench.next["s"] == first + 1, "after a clean stop numbers follow on"

    def test_with_durability_interval_a_commit_is_acknowledged_before_its_sync(self, open_journal) -> None:
        files = FaultyFiles()
        bench = open_journal(files=files, durability=parse_durability("interval:50"))
        bench.append(b"a")
        syncs = files.calls["sync"]
        assert bench.append(b"b").called
        assert files.calls["sync"] == syncs
        mark = scan.read_mark(bench.directory)
        bench.clock.advance(0.05)
        assert files.calls["sync"] == syncs + 1
        assert scan.read_mark(bench.directory) > mark


class TestRetention:
    def test_start_deletes_nothing_that_a_named_subscription_needs(self, open_journal) -> None:
        bench = open_journal(segment_size=4096)
        bench.fill(30)
        bench.close()
        bench = open_journal(segment_size=4096, keep_bytes=1)
        # The broker sets this when the journal is open.
        bench.journal.keeper.unread = lambda: [Unread("jobs", "s", 0, 1_000_000)]
        bench.clock.advance(2)
        assert bench.journal.bounds("s") == (1, 30)
        bench.journal.keeper.unread = list
        bench.clock.advance(2)
        assert bench.journal.bounds("s")[0] > 1

    def test_segments_larger_than_what_is_kept_leave_no_index_behind(self, open_journal) -> None:
        worker = HandWorker(hold=False)
        bench = open_journal(segment_size=4096, keep_bytes=1, worker=worker)
        for i in range(100):
            worker.hold = True
            bench.append(b"%03d" % i * 100)
            bench.clock.advance(1)
            worker.hold = False
            worker.work()
        kept = {path.stem for path in bench.directory.glob("*.segment")}
        assert {path.stem for path in bench.directory.glob("*.index")} <= kept
        bench.close()
        (bench.directory / "0000000000000000.index").write_bytes(b"left by a kill")
        bench = open_journal(segment_size=4096, keep_bytes=1)
        assert not (bench.directory / "0000000000000000.index").exists()

    @pytest.mark.parametrize("nth", [1, 2, 3, 4])
    def test_segment_that_cannot_be_deleted_leaves_no_hole(self, open_journal, logged_errors, nth: int) -> None:
        files = FaultyFiles()
        bench = open_journal(files=files, segment_size=4096, keep_bytes=8000)
        bench.fill(4, 1000)
        files.name, files.nth, files.times = "unlink", files.calls["unlink"] + nth, 5
        bench.fill(20, 1000)
        assert len(logged_errors.take()) == 1
        bench.crash()
        again = open_journal(segment_size=4096)
        assert again.journal.bounds("s")[1] == 24
        assert len(again.payloads()) == 24 - again.journal.bounds("s")[0] + 1
        again.close()
        bench = open_journal(segment_size=4096, keep_bytes=8000)
        bench.append(b"more" * 1000)
        bench.clock.advance(1)
        assert sum(s.size for s in scan.segments(bench.directory)) < 20_000, "it has caught up"

    def test_subscriber_finishes_a_segment_that_retention_deletes(self, open_journal) -> None:
        bench = open_journal(segment_size=4096)
        bench.append(b"x")
        reader = scan.SegmentReader(scan.segments(bench.directory)[0].path, 0)
        position = bench.journal.writer.position
        bench.close()
        scan.segments(bench.directory)[0].path.unlink()
        kinds = [header.kind.name for header, _ in reader.batches(64, position)]
        assert kinds == ["ENDS", "RECORDS"]
        reader.close()


def test_the_runs_of_one_append_are_in_one_batch(open_journal) -> None:
    bench = open_journal()
    runs = [Run.of("a", [b"1"], source="t"), Run.of("b", [b"2"], source="t"), Run.of("a", [b"3"], source="t")]
    assert append_runs(bench.journal, runs, [1, 1, 2]).called
    assert bench.payloads("a") == [b"1", b"3"]
    assert bench.payloads("b") == [b"2"]


def test_a_journal_that_was_never_opened_can_be_closed(tmp_path: Path) -> None:
    assert FileJournal(Clock(), tmp_path).close().called


class TestOverload:
    """Appends arrive faster than the disk can write them."""

    def test_each_commit_is_stamped_with_its_own_time(self, open_journal) -> None:
        """Appends that wait for a commit after the next one are not stamped with the time of the first that waited."""
        now = [1_000_000]
        worker = HandWorker(hold=False)
        bench = open_journal(now=lambda: now[0], worker=worker)
        worker.hold = True
        for _ in range(20):
            now[0] += 1_000_000
            bench.append(b"x" * (COMMIT // 2))
            if len(bench.journal._commits.waiting) > 4:
                worker.work(1)
        worker.hold = False
        worker.work()
        times = [record.time for record in bench.records()]
        assert times == sorted(times)
        assert times[-1] > 15_000_000
        bench.close()
        bench = open_journal(now=lambda: now[0])
        assert [record.time for record in bench.records()] == times, "the same as it was served before"

    def test_appends_are_divided_into_batches_that_can_be_read(self, open_journal) -> None:
        """The names of appends count for the size of a batch, also if many small ones have long names."""
        worker = HandWorker(hold=False)
        bench = open_journal(worker=worker)
        worker.hold = True
        names = {"producer": "p" * 255, "topic": "\N{SNOWMAN}" * 255, "content_type": "t" * 255}
        for _ in range(9000):
            bench.append(b"x", **names)
        worker.hold = False
        worker.work()
        found = scan.segments(bench.directory)
        sizes = []
        for segment in found:
            reader = scan.SegmentReader(segment.path, segment.base)
            stop = bench.journal.writer.position if segment is found[-1] else segment.end
            sizes += [header.length for header, _ in reader.batches(segment.base + 64, stop)]
            reader.close()
        assert sum(sizes) > 2 * fmt.BATCH
        assert max(sizes) <= fmt.BATCH
        assert len(bench.payloads()) == 9000

    def test_optional_columns_count_for_the_size_of_an_append(self, open_journal) -> None:
        worker = HandWorker(hold=False)
        bench = open_journal(worker=worker)
        worker.hold = True
        for _ in range(30):
            bench.append(*[b""] * 10_000, event_ids=bytes(160_000), event_times=bytes(80_000))
        assert bench.journal._commits.size > 30 * 10_000 * (4 + 16 + 8)
        worker.hold = False
        worker.work()
        assert len(bench.records()) == 300_000


class TestClosing:
    def test_closing_during_the_opening_waits_and_closes(self, open_journal, tmp_path: Path) -> None:
        worker = HandWorker(hold=False)
        worker.hold = True
        journal = FileJournal(Clock(), tmp_path / "j", JournalSettings(min_free=0), worker=worker)
        opened = journal.open(Observer())
        closed = journal.close()
        assert not closed.called
        worker.hold = False
        worker.work()
        assert opened.called
        assert closed.called
        assert journal.state is JournalState.CLOSED
        assert worker.stopped
        open_journal()

    def test_closing_during_an_opening_that_fails_succeeds(self, tmp_path: Path) -> None:
        worker = HandWorker(hold=False)
        worker.hold = True
        (tmp_path / "j").write_bytes(b"not a directory")
        journal = FileJournal(Clock(), tmp_path / "j", worker=worker)
        opened = journal.open(Observer())
        closed = journal.close()
        worker.hold = False
        worker.work()
        assert isinstance(failed(opened), JournalError)
        assert closed.called

    def test_closed_journal_can_be_opened_again(self, open_journal) -> None:
        bench = open_journal()
        bench.append(b"a")
        bench.close()
        reopened: list = []  # type: ignore[type-arg]
        bench.journal.open(bench.observer).addCallback(reopened.append)
        assert reopened == [{"s": 1}]
        bench.append(b"b")
        assert bench.payloads() == [b"a", b"b"]

    def test_opening_twice_is_refused(self, open_journal) -> None:
        bench = open_journal()
        assert isinstance(failed(bench.journal.open(bench.observer)), JournalLocked)
        assert bench.append(b"a").called
        with pytest.raises(JournalLocked, match="in use by another process"):
            open_journal()

    @pytest.mark.parametrize("durability", ["batch", "never"])
    def test_failed_sync_while_closing_is_reported(self, open_journal, logged_errors, durability: str) -> None:
        files = FaultyFiles()
        bench = open_journal(files=files, durability=parse_durability(durability))
        bench.append(b"a")
        files.name, files.nth = "sync", files.calls["sync"] + 1
        bench.close()
        assert bench.journal.state is JournalState.FAILED
        assert bench.observer.states[-1][0] is JournalState.FAILED
        assert logged_errors.take()

    def test_closing_batch_that_was_perhaps_not_synced_is_rewritten(self, open_journal, logged_errors) -> None:
        files = FaultyFiles()
        bench = open_journal(files=files, durability=parse_durability("never"))
        bench.append(b"a")
        files.name, files.nth = "sync", files.calls["sync"] + 1
        bench.close()
        logged_errors.take()
        again = FaultyFiles()
        bench = open_journal(files=again)
        assert again.log.index("write") < again.log.index("sync"), "the page cache is not believed"
        assert bench.payloads() == [b"a"]


class TestOpening:
    @pytest.mark.parametrize(
        ("name", "error", "kind", "status"),
        [
            ("sync", errno.EIO, JournalFailed, 4),
            ("open", errno.EACCES, JournalError, 1),
            ("allocate", errno.EDQUOT, JournalFull, 6),
            ("rename", errno.EIO, JournalError, 1),
        ],
    )
    def test_failed_opening_raises_the_right_kind_of_error(
        self, open_journal, name: str, error: int, kind: type[JournalError], status: int
    ) -> None:
        before = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(kind, match="cannot be opened") as refused:
            open_journal(files=FaultyFiles(name=name, nth=1, error=error))
        assert refused.type is kind
        assert refused.value.exit_status == status
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        open_journal()


def test_no_sync_runs_after_a_failed_one(open_journal, logged_errors) -> None:
    files, worker = FaultyFiles(), HandWorker(hold=False)
    bench = open_journal(files=files, durability=parse_durability("interval:50"), worker=worker)
    bench.append(b"a")
    mark = scan.read_mark(bench.directory)
    files.name, files.nth = "sync", files.calls["sync"] + 1
    worker.hold = True
    bench.clock.advance(0.05)
    late = bench.append(b"b")
    sync, commit = worker.jobs
    worker.jobs = [commit]
    worker.work()  # as if the commit had been told first
    assert late.called
    worker.jobs = [sync]
    worker.hold = False
    worker.work()
    assert bench.journal.state is JournalState.FAILED
    bench.clock.advance(1)
    assert scan.read_mark(bench.directory) == mark
    assert logged_errors.take()


class TestWatching:
    @pytest.mark.parametrize("least", [0, 1 << 20])
    def test_journal_continues_and_warns_once_when_the_free_space_is_unknown(
        self, open_journal, log_lines: list[str], least: int
    ) -> None:
        files = FaultyFiles()
        bench = open_journal(files=files, min_free=least)
        said = "cannot determine the free space of the disk, so none is assumed: Input/output error"

        files.name, files.nth, files.times = "free", 1, 1000
        bench.clock.pump([1, 1, 1])
        assert bench.journal.state is JournalState.READ_ONLY
        assert bench.journal.status().free is None
        assert log_lines.count(said) == 1
        files.name = ""
        bench.clock.advance(1)
        assert bench.journal.state is JournalState.WRITABLE
        assert bench.journal.status().free > 0
        files.name = "free"
        bench.clock.advance(1)
        assert log_lines.count(said) == 2, "it had answered in between"

    def test_the_periodic_check_continues_after_a_damaged_segment(self, open_journal, logged_errors) -> None:
        files = FaultyFiles()
        bench = open_journal(files=files, segment_size=4096, keep_age=1.0, min_free=1 << 20)
        for _ in range(3):
            bench.append(b"x" * 3000)
        scan.segments(bench.directory)[1].path.write_bytes(b"")
        bench.journal.store._readers.clear()
        bench.journal.store._created.clear()
        for _ in range(5):
            bench.clock.advance(1)
        assert len(logged_errors.take()) == 1, "said once"
        files.room = 0
        bench.clock.advance(1)
        assert bench.journal.state is JournalState.READ_ONLY

    def test_a_check_of_the_disk_that_fails_by_a_bug_is_logged_once_and_others_are_made(
        self, open_journal, logged_errors
    ) -> None:
        class Buggy(Files):
            failing = False

            def free(self, directory: Path) -> int:
                if self.failing:
                    raise RuntimeError("bug")
                return super().free(directory)

        files = Buggy()
        bench = open_journal(files=files, segment_size=4096, keep_bytes=6000)
        files.failing = True
        for _ in range(5):
            bench.append(b"x" * 3000)
        before = bench.journal.status().segments
        bench.clock.pump([1] * 3)
        assert bench.journal.status().segments < before, "retention goes on"
        (event,) = logged_errors.take()
        said = "checking the free space of the journal's disk failed, and is tried again; please report this bug"
        assert formatEvent(event) == said
        files.failing = False
        bench.clock.advance(1)
        bench.append(b"y")
        files.failing = True
        bench.clock.advance(1)
        assert len(logged_errors.take()) == 1, "it was well in between"


def test_the_status_has_the_figures_of_the_journal(open_journal) -> None:
    bench = open_journal(segment_size=4096)
    before = bench.journal.status()
    for _ in range(20):
        bench.append(b"x" * 900)
    bench.clock.advance(1)
    status = bench.journal.status()
    assert (status.directory, status.durability) == (str(bench.directory), "batch")
    assert status.durable == status.position > before.position + 20 * 900
    files = sorted(bench.directory.glob("*.segment"))
    assert status.segments == len(files) > before.segments == 1
    assert status.size == status.position - before.position + before.size
    assert status.free is not None
    assert status.free > 0
    assert (status.held_by, status.overrun_subscriptions) == ("", 0)
    meters = status.meters
    assert meters.commit_bytes.count == meters.commit_seconds.count == 20
    assert meters.commit_bytes.total > 20 * 900
    assert meters.sync_seconds.count >= 20


def test_commits_are_counted_in_histograms_many_at_a_time(open_journal) -> None:
    bench = open_journal()
    for _ in range(3 * MOST_RECENT):
        bench.append(b"x")
        assert len(bench.journal.meters.recent) < MOST_RECENT
    assert bench.journal.meters.commit_bytes.count == 3 * MOST_RECENT


def test_files_can_be_read_by_the_group_and_by_nobody_else(open_journal) -> None:
    bench = open_journal()
    bench.append(b"a")
    bench.close()
    modes = {path.name: path.stat().st_mode & 0o777 for path in bench.journal.directory.iterdir()}
    assert modes
    assert {name: mode for name, mode in modes.items() if mode & 0o137} == {}


def test_a_directory_whose_restore_is_not_complete_is_refused(open_journal) -> None:
    bench = open_journal()
    bench.append(b"a")
    bench.close()
    (bench.journal.directory / RESTORING).touch()
    with pytest.raises(JournalCorrupt, match="is not complete"):
        open_journal()


def test_a_failed_journal_syncs_nothing_any_more(open_journal, logged_errors) -> None:
    files = FaultyFiles()
    bench = open_journal(files, durability=parse_durability("interval:50"))
    bench.append(b"a")
    planned = len(bench.clock.getDelayedCalls())
    files.name, files.nth = "write", files.calls["write"] + 1
    bench.append(b"b").addErrback(lambda _: None)
    assert bench.journal.state is JournalState.FAILED
    assert len(bench.clock.getDelayedCalls()) == planned - 1
    assert len(logged_errors.take()) == 1


def test_a_journal_whose_check_has_failed_is_closed(open_journal, logged_errors) -> None:

    class Broken(SteppedFiles):
        broken = False

        def is_linked(self, fd: int) -> bool:
            return super().is_linked(fd) if not self.broken else bool(1 // 0)

    files = Broken()
    bench = open_journal(files)
    files.broken = True
    bench.clock.advance(1)
    files.broken = False
    assert len(logged_errors.take()) == 1
    bench.close()
    assert bench.journal.state is JournalState.CLOSED


def test_a_journal_that_cannot_be_opened_again_closes_no_file_that_is_not_its_own(open_journal) -> None:
    class Watched(Files):
        closed: ClassVar[list[int]] = []

        def close(self, fd: int) -> None:
            self.closed.append(fd)
            if fd > 2:
                super().close(fd)

    bench = open_journal(Watched())
    bench.close()
    other = open_journal()
    failures: list[Any] = []
    bench.journal.open(bench.observer).addErrback(failures.append)
    assert failures[0].check(JournalLocked)
    assert min(Watched.closed) > 2
    other.close()
