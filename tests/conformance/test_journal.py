"""Test the contract of every IJournal, however it stores records."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from struct import pack
from typing import Any, TypeVar

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from zope.interface import implementer
from zope.interface.verify import verifyObject

from fyrehose.errors import Closed, ReadOnly
from fyrehose.interfaces import IJournal, IJournalObserver, JournalState
from fyrehose.journal.clock import RecordClock
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings
from fyrehose.records import Record, Run
from fyrehose.testing import MemoryJournal
from tests.doubles.appending import append_runs
from tests.doubles.files import FaultyFiles
from tests.doubles.hand_worker import HandWorker

T = TypeVar("T")
#: The free bytes of a disk that is not full.
ROOM = 1 << 40


@implementer(IJournalObserver)
class Observer:
    """Records the journal's calls, in a list to which tests add their own events."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def durable(self, ends: Mapping[str, int]) -> None:
        self.told.append(dict(ends))

    def state_changed(self, state: JournalState, reason: str) -> None:
        assert reason
        self.told.append(state)

    def stuck(self, reason: str) -> None:
        assert reason


class Subject:
    """A journal under test, its observer, and control over its disk."""

    journal: Any

    def __init__(self) -> None:
        self.observer = Observer()

    def open(self) -> Mapping[str, int]:
        """Open a journal on the data of the last one; return the last number of each stream."""
        raise NotImplementedError

    def commit(self) -> None:
        """Make all appends durable, if the disk allows it."""
        raise NotImplementedError

    def fill(self) -> None:
        """Fill the disk, and let the journal notice."""
        raise NotImplementedError

    def make_room(self) -> None:
        raise NotImplementedError

    def fail(self) -> None:
        """Let the sync of the next append fail, and let the journal notice."""
        raise NotImplementedError

    def close(self) -> None:
        closed = self.journal.close()
        self.commit()
        assert closed.called

    def append(self, *runs: Run, first: int) -> Deferred[None]:
        """Append ``runs``, all of one stream, from number ``first`` on."""
        firsts = []
        for run in runs:
            firsts.append(first)
            first += len(run)
        appended: Deferred[None] = append_runs(self.journal, runs, firsts)
        return appended

    def kept(self, stream: str, start: int = 1) -> list[Record]:
        """Return all records from ``start`` on, read in small pieces."""
        found: list[Record] = []
        while runs := self.journal.read(stream, start, 7):
            found += [record for run in runs for record in run.records()]
            start = found[-1].seq + 1
        return found


class InMemory(Subject):
    def __init__(self) -> None:
        super().__init__()
        self.journal = MemoryJournal(auto=False)

    def open(self) -> Mapping[str, int]:
        return result_of(self.journal.open(self.observer))

    def commit(self) -> None:
        if self.journal.state is JournalState.WRITABLE:
            self.journal.commit()

    def fill(self) -> None:
        self.journal.enter(JournalState.READ_ONLY, "no room")

    def make_room(self) -> None:
        self.journal.enter(JournalState.WRITABLE, "room")

    def fail(self) -> None:
        self.journal.enter(JournalState.FAILED, "the disk said no")


class OnDisk(Subject):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.make()

    def make(self) -> None:
        self.clock, self.worker, self.files = Clock(), HandWorker(hold=False), FaultyFiles(times=1 << 60, room=ROOM)
        self.time = 0
        self.journal = FileJournal(
            self.clock,
            self.directory,
            JournalSettings(segment_size=1 << 20),
            worker=self.worker,
            files=self.files,
            clock=RecordClock(self.now),
        )

    def now(self) -> int:
        """Return the time of a clock that sometimes goes back."""
        self.time += 1
        return 1_700_000_000_000_000 + self.time * (1 if self.time % 3 else -1000)

    def open(self) -> Mapping[str, int]:
        if self.worker.hold:
            self.make()
        ends = result_of(self.journal.open(self.observer))
        self.worker.hold = True
        return ends

    def commit(self) -> None:
        self.worker.work()

    def fill(self) -> None:
        # The disk refuses waiting appends; if there are none, the journal notices the short space itself.
        self.files.name, self.files.error, self.files.room = "write", errno.ENOSPC, 0
        self.worker.work()
        self.clock.advance(1)
        self.worker.work()

    def make_room(self) -> None:
        self.files.name, self.files.room = "", ROOM
        for _ in range(2):  # what waits is written, and then more is accepted
            self.clock.advance(1)
            self.worker.work()

    def fail(self) -> None:
        self.files.name, self.files.error = "sync", errno.EIO
        self.worker.work()


def result_of(deferred: Deferred[T]) -> T:
    results: list[T] = []
    deferred.addCallback(results.append)
    assert results, "it has not fired, or has failed"
    return results[0]


@pytest.fixture(params=["memory", "file"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Subject]:
    """Return a function that makes journals of one kind, each in a directory of its own."""
    made = iter(range(100))
    return InMemory if request.param == "memory" else lambda: OnDisk(tmp_path / str(next(made)))


@pytest.fixture
def subject(make: Callable[[], Subject]) -> Iterator[Subject]:
    """Return an open journal."""
    subject = make()
    assert subject.open() == {}
    yield subject
    if subject.journal.state is not JournalState.CLOSED:
        subject.close()


def drafts(*payloads: bytes, stream: str = "s", **constants: Any) -> Run:
    return Run.of(stream, payloads, source="test", **constants)


def payloads(records: list[Record]) -> list[tuple[int, bytes]]:
    return [(record.seq, record.payload) for record in records]


def refusals(*appends: Deferred[None]) -> list[type[Exception]]:
    """Return the error of each of ``appends``, in the order in which they failed."""
    failures: list[type[Exception]] = []
    for append in appends:
        append.addErrback(lambda failure: failures.append(failure.type))
    return failures


def test_journal_provides_its_interface(make: Callable[[], Subject]) -> None:
    journal = make().journal
    assert verifyObject(IJournal, journal)
    assert journal.state is JournalState.CLOSED
    assert journal.floor == 0


def test_retiring_before_the_journal_is_open_is_refused(make: Callable[[], Subject]) -> None:
    assert refusals(make().journal.retire(["s"])) == [Closed]


def test_journal_that_is_not_open_can_be_closed(make: Callable[[], Subject]) -> None:
    assert make().journal.close().called


def test_records_are_readable_only_when_durable(subject: Subject) -> None:
    appended = subject.append(drafts(b"a", b"b"), first=1)
    assert not appended.called
    assert subject.journal.ends() == {}
    assert subject.journal.bounds("s") == (1, 0)
    assert subject.kept("s") == []
    subject.commit()
    assert appended.called
    assert subject.journal.ends() == {"s": 2}
    assert subject.journal.bounds("s") == (1, 2)
    assert payloads(subject.kept("s")) == [(1, b"a"), (2, b"b")]


def test_observer_is_called_before_the_appender(subject: Subject) -> None:
    told = subject.observer.told
    subject.append(drafts(b"a"), first=1).addCallback(lambda _: told.append("appended"))
    subject.commit()
    assert told == [{"s": 1}, "appended"]


def test_appends_are_done_in_the_order_of_the_calls(subject: Subject) -> None:
    told: list[int] = []
    for n in range(20):
        appended = subject.append(drafts(b"x", stream=f"s{n % 3}"), first=n // 3 + 1)
        appended.addCallback(lambda _, n=n: told.append(n))
    subject.commit()
    assert told == list(range(20))
    ends: dict[str, int] = {}
    for grown in subject.observer.told:
        assert all(end > ends.get(stream, 0) for stream, end in grown.items())
        ends.update(grown)
    assert ends == subject.journal.ends() == {"s0": 7, "s1": 7, "s2": 6}


def test_one_append_may_hold_several_runs_and_streams(subject: Subject) -> None:
    runs = [drafts(b"1", stream="a"), drafts(b"2", b"3", stream="b"), drafts(b"4", stream="a", producer="p")]
    appended = append_runs(subject.journal, runs, [1, 1, 2])
    subject.commit()
    assert appended.called
    assert payloads(subject.kept("a")) == [(1, b"1"), (2, b"4")]
    assert payloads(subject.kept("b")) == [(1, b"2"), (2, b"3")]
    assert [record.producer for record in subject.kept("a")] == [None, "p"]


def test_observer_and_appender_may_append_again(subject: Subject) -> None:
    again: list[Deferred[None]] = []
    subject.append(drafts(b"a"), first=1).addCallback(lambda _: again.append(subject.append(drafts(b"b"), first=2)))
    subject.commit()
    subject.commit()
    assert again[0].called
    assert payloads(subject.kept("s")) == [(1, b"a"), (2, b"b")]


COLUMNS: list[dict[str, Any]] = [
    {},
    {"producer": "10.0.0.1", "topic": "ä/b", "content_type": "application/json"},
    {"producer_seq": 0},
    {"producer_seq": (1 << 64) - 3},
    {"producer_seq": pack("<3Q", 5, (1 << 64) - 1, 0)},
    {"event_ids": bytes(range(48))},
    {"event_times": pack("<3q", -1, 0, 1 << 62)},
    {"topic": "t", "producer_seq": 7, "event_ids": bytes(48), "event_times": pack("<3q", 1, 2, 3)},
]


@pytest.mark.parametrize("columns", COLUMNS, ids=lambda columns: "+".join(columns) or "none")
def test_every_column_of_a_run_is_read_as_it_was_appended(subject: Subject, columns: dict[str, Any]) -> None:
    run = drafts(b"", b"\x00\xff\n", b"x" * 1000, **columns)
    subject.append(run, first=1)
    subject.commit()
    kept = subject.kept("s")
    expected = [attrs.evolve(record, seq=n, time=kept[0].time) for n, record in enumerate(run.records(), 1)]
    assert kept == expected
    subject.close()
    subject.open()
    assert subject.kept("s") == expected


def test_time_never_goes_back(subject: Subject) -> None:
    for n in range(1, 20):
        subject.append(drafts(b"x"), first=n)
        subject.commit()
    times = [record.time for record in subject.kept("s")]
    assert times == sorted(times)
    assert times[0] > 0


def test_read_returns_records_up_to_the_limit_and_at_least_one(subject: Subject) -> None:
    subject.append(drafts(b"xx", b"yyy", b"z", b""), first=1)
    subject.append(drafts(b"w" * 10), first=5)
    subject.commit()

    def read(start: int, max_bytes: int) -> list[int]:
        runs = subject.journal.read("s", start, max_bytes)
        return [record.seq for run in runs for record in run.records()]

    assert read(1, 1) == [1]
    assert read(1, 5) == [1, 2]
    assert read(2, 4)[:2] == [2, 3]
    assert read(1, 1000) == [1, 2, 3, 4, 5]
    assert read(5, 1) == [5]
    assert read(6, 1000) == []
    assert read(1 << 47, 1000) == []
    assert [record.seq for record in subject.kept("s")] == [1, 2, 3, 4, 5]


def test_unknown_stream_is_empty(subject: Subject) -> None:
    assert subject.journal.read("none", 1, 1000) == ()
    assert subject.journal.bounds("none") == (1, 0)
    assert subject.journal.first_since("none", 0) == 1


def test_reopened_journal_continues_its_numbers(make: Callable[[], Subject]) -> None:
    subject = make()
    for first in (1, 3, 5):
        assert subject.open() == ({"s": first - 1, "t": first - 1} if first > 1 else {})
        subject.append(drafts(b"a", b"b"), first=first)
        subject.append(drafts(b"c", b"d", stream="t"), first=first)
        subject.commit()
        subject.close()
    assert subject.open() == {"s": 6, "t": 6}
    assert [record.seq for record in subject.kept("s", start=3)] == [3, 4, 5, 6]
    assert [record.payload for record in subject.kept("t")] == [b"c", b"d"] * 3
    subject.close()


def test_close_commits_pending_appends(subject: Subject) -> None:
    appends = [subject.append(drafts(b"x"), first=n) for n in (1, 2, 3)]
    subject.close()
    assert all(append.called for append in appends)
    assert refusals(*appends) == []
    assert subject.journal.state is JournalState.CLOSED
    assert refusals(subject.journal.retire(["s"])) == [Closed]
    assert subject.open() == {"s": 3}


def test_reads_continue_on_a_full_disk(subject: Subject, logged_errors: Any) -> None:
    subject.append(drafts(b"kept"), first=1)
    subject.commit()
    subject.observer.told.clear()
    waiting = [subject.append(drafts(b"waits"), first=2), subject.append(drafts(b"waits"), first=3)]
    subject.fill()
    assert (subject.observer.told, [each.called for each in waiting]) == ([JournalState.READ_ONLY], [False, False])
    assert subject.journal.state is JournalState.READ_ONLY
    assert refusals(subject.journal.retire(["s"])) == [ReadOnly]
    assert payloads(subject.kept("s")) == [(1, b"kept")]
    assert subject.journal.ends() == {"s": 1}


def test_appends_that_wait_for_room_are_durable_when_there_is_room(subject: Subject) -> None:
    subject.append(drafts(b"kept"), first=1)
    subject.commit()
    waits = subject.append(drafts(b"waits"), first=2)
    subject.fill()
    subject.make_room()
    assert (waits.called, subject.observer.told[-1]) == (True, JournalState.WRITABLE)
    subject.append(drafts(b"new"), first=3)
    subject.commit()
    expected = [(1, b"kept"), (2, b"waits"), (3, b"new")]
    assert payloads(subject.kept("s")) == expected
    subject.close()
    assert subject.open() == {"s": 3}
    assert payloads(subject.kept("s")) == expected


def test_journal_can_be_closed_on_a_full_disk(subject: Subject) -> None:
    subject.append(drafts(b"kept"), first=1)
    subject.commit()
    subject.fill()
    subject.close()
    assert subject.open() == {"s": 1}


def test_failed_journal_refuses_retirements(subject: Subject, logged_errors: Any) -> None:
    subject.append(drafts(b"kept"), first=1)
    subject.commit()
    subject.observer.told.clear()
    appends = [subject.append(drafts(b"lost"), first=n) for n in (2, 3)]
    subject.fail()
    logged_errors.take()
    assert (subject.observer.told, [each.called for each in appends]) == ([JournalState.FAILED], [False, False])
    assert subject.journal.state is JournalState.FAILED
    assert refusals(subject.journal.retire(["s"])) == [Closed]
    assert payloads(subject.kept("s")) == [(1, b"kept")]
    subject.close()
