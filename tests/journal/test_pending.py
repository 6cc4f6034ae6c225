"""Pending appends: none is lost, their order is kept, and nothing is written after a failed commit."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

import attrs
import pytest

from fyrehose.journal.pending import AHEAD, COMMIT, Commit, Pending, PendingAppend
from fyrehose.journal.writer import Committed, NoRoom
from fyrehose.records import Run


@attrs.define
class FakeWriter:
    """Records what it is given to write."""

    time: int = 100
    payloads: list[bytes] = attrs.field(factory=list)
    may: bool = True
    times: list[int] = attrs.field(factory=list)
    error: Exception | None = None

    def may_commit(self, size: int) -> bool:
        return self.may

    def commit(self, batches: list[list[Run]], time: int, clock: int) -> Committed:
        if self.error is not None:
            raise self.error
        self.time = time
        self.times.append(clock)
        self.payloads += [bytes(run.payload) for batch in batches for run in batch]
        return Committed([], 0, 0, None)


def append(payload: bytes, size: int = 1) -> PendingAppend:
    return PendingAppend([Run.of("s", [payload], source="t")], [1], size)


@pytest.fixture
def pending() -> Pending:
    return Pending(lambda: 50)


def commit(pending: Pending, writer: Any) -> Commit:
    return pending.commit(writer)


def test_one_commit_is_scheduled_for_several_appends(pending: Pending) -> None:
    assert not pending.needs_commit(), "nothing is pending"
    for payload in (b"a", b"b"):
        pending.add(append(payload))
    assert [pending.needs_commit(), pending.needs_commit()] == [True, False]
    writer = FakeWriter()
    committed = commit(pending, writer)
    assert writer.payloads == [b"a", b"b"]
    assert [bytes(one.runs[0].payload) for one in committed.appends] == [b"a", b"b"]
    assert (writer.time, writer.times) == (100, [50]), "the time of records never goes back, that of the clock may"
    assert not pending.needs_commit()


def test_appends_stay_pending_in_order_while_the_writer_has_to_wait(pending: Pending) -> None:
    writer = FakeWriter(may=False)
    for payload in (b"a", b"b"):
        pending.add(append(payload))
    waited = commit(pending, writer)
    assert (waited.appends, waited.size, waited.result, len(pending.appends)) == ([], 0, None, 2)
    writer.may = True
    assert len(commit(pending, writer).appends) == 2
    assert writer.payloads == [b"a", b"b"]


def test_append_during_a_commit_belongs_to_the_next(pending: Pending) -> None:
    class Slow(FakeWriter):
        def commit(self, batches: list[list[Run]], time: int, clock: int) -> Committed:
            if not self.payloads:
                pending.add(append(b"meanwhile"))
                assert pending.needs_commit(), "the commit under way does not take it"
            return super().commit(batches, time, clock)

    writer = Slow()
    pending.add(append(b"first"))
    assert pending.needs_commit()
    assert len(commit(pending, writer).appends) == 1
    assert len(commit(pending, writer).appends) == 1
    assert writer.payloads == [b"first", b"meanwhile"]


def test_size_of_a_commit_is_limited(pending: Pending) -> None:
    for _ in range(5):
        pending.add(append(b"x", COMMIT // 2))
    writer = FakeWriter()
    counts = []
    while pending.needs_commit():
        counts.append(len(commit(pending, writer).appends))
    assert counts == [2, 2, 1]


@pytest.mark.parametrize(
    ("last", "added", "full"),
    [(100, [60], False), (100, [60, 40], True), (AHEAD, [AHEAD], True), (AHEAD + 1, [2 * AHEAD], False)],
)
def test_pending_is_full_when_as_large_as_the_last_small_commit(
    pending: Pending, last: int, added: list[int], full: bool
) -> None:
    pending.add(append(b"x", last))
    assert pending.needs_commit()
    pending.processed(commit(pending, FakeWriter()))
    for size in added:
        pending.add(append(b"x", size))
    assert pending.full is full
    assert pending.needs_commit(), "full or not, a commit may be scheduled"
    assert not pending.full, "the appends count for the scheduled commit"


def test_nothing_is_written_after_a_failed_commit_until_failed_is_reset(pending: Pending) -> None:
    writer = FakeWriter(error=NoRoom("none"))
    pending.add(append(b"a"))
    failed = commit(pending, writer).result
    assert not isinstance(failed, Committed)
    assert failed is not None
    assert failed.check(NoRoom)
    writer.error = None
    pending.add(append(b"b"))
    skipped = commit(pending, writer)
    assert (len(skipped.appends), skipped.result) == (1, None)
    assert not writer.payloads
    pending.failed = False
    pending.add(append(b"c"))
    assert isinstance(commit(pending, writer).result, Committed)
    assert writer.payloads == [b"c"]


def test_two_threads_lose_no_append_and_keep_the_order(pending: Pending) -> None:
    writer = FakeWriter()
    jobs: SimpleQueue[bool] = SimpleQueue()

    def work() -> None:
        while jobs.get():
            commit(pending, writer)

    thread = threading.Thread(target=work)
    thread.start()
    sent = [b"%d" % i for i in range(20_000)]
    for payload in sent:
        pending.add(append(payload))
        if pending.needs_commit():
            jobs.put(True)
    jobs.put(False)
    thread.join()
    assert writer.payloads == sent
