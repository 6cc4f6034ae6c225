"""What waits for the thread: nothing is forgotten, nothing overtakes, nothing goes on behind a failure."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

import attrs
import pytest

from fyrehose.journal.pending import AHEAD, COMMIT, Append, Commit, Pending
from fyrehose.journal.writer import Committed, NoRoom
from fyrehose.records import Run


@attrs.define
class Wrote:
    """In the place of a writer."""

    time: int = 100
    payloads: list[bytes] = attrs.field(factory=list)
    times: list[int] = attrs.field(factory=list)
    error: Exception | None = None

    def commit(self, batches: list[list[Run]], time: int, clock: int) -> Committed:
        if self.error is not None:
            raise self.error
        self.time = time
        self.times.append(clock)
        self.payloads += [bytes(run.payload) for batch in batches for run in batch]
        return Committed([], 0, 0, None)


def append(payload: bytes, size: int = 1) -> Append:
    return Append([Run.of("s", [payload], source="t")], [1], size)


@pytest.fixture
def pending() -> Pending:
    return Pending(lambda: 50)


def commit(pending: Pending, writer: Any) -> Commit:
    return pending.commit(writer)


def test_it_is_asked_for_once_however_much_is_added(pending: Pending) -> None:
    assert not pending.ask(), "there is nothing"
    for payload in (b"a", b"b"):
        pending.add(append(payload))
    assert [pending.ask(), pending.ask()] == [True, False]
    writer = Wrote()
    told = commit(pending, writer)
    assert writer.payloads == [b"a", b"b"]
    assert [bytes(one.runs[0].payload) for one in told.appends] == [b"a", b"b"]
    assert (writer.time, writer.times) == (100, [50]), "the time of records does not go back, that of the clock may"
    assert not pending.ask()


def test_what_is_added_while_it_is_written_is_the_next(pending: Pending) -> None:
    class Slow(Wrote):
        def commit(self, batches: list[list[Run]], time: int, clock: int) -> Committed:
            if not self.payloads:
                pending.add(append(b"meanwhile"))
                assert pending.ask(), "the commit under way does not take it"
            return super().commit(batches, time, clock)

    writer = Slow()
    pending.add(append(b"first"))
    assert pending.ask()
    assert len(commit(pending, writer).appends) == 1
    assert len(commit(pending, writer).appends) == 1
    assert writer.payloads == [b"first", b"meanwhile"]


def test_one_takes_no_more_than_a_sync_should_have_to_do(pending: Pending) -> None:
    for _ in range(5):
        pending.add(append(b"x", COMMIT // 2))
    writer = Wrote()
    taken = []
    while pending.ask():
        taken.append(len(commit(pending, writer).appends))
    assert taken == [2, 2, 1]


@pytest.mark.parametrize(
    ("last", "added", "enough"),
    [(100, [60], False), (100, [60, 40], True), (AHEAD, [AHEAD], True), (AHEAD + 1, [2 * AHEAD], False)],
)
def test_the_thread_is_asked_ahead_for_as_much_as_the_last_had_and_not_where_that_was_large(
    pending: Pending, last: int, added: list[int], enough: bool
) -> None:
    pending.add(append(b"x", last))
    assert pending.ask()
    pending.told(commit(pending, Wrote()))
    for size in added:
        pending.add(append(b"x", size))
    assert pending.enough is enough
    assert pending.ask(), "whoever hears of a commit asks for what there is"
    assert not pending.enough, "it was asked for"


def test_nothing_is_written_behind_what_failed_until_it_is_said(pending: Pending) -> None:
    writer = Wrote(error=NoRoom("none"))
    pending.add(append(b"a"))
    failed = commit(pending, writer).result
    assert not isinstance(failed, Committed)
    assert failed is not None
    assert failed.check(NoRoom)
    writer.error = None
    pending.add(append(b"b"))
    told = commit(pending, writer)
    assert (len(told.appends), told.result) == (1, None)
    assert not writer.payloads
    pending.stopped = False
    pending.add(append(b"c"))
    assert isinstance(commit(pending, writer).result, Committed)
    assert writer.payloads == [b"c"]


def test_two_threads_lose_nothing_and_keep_the_order(pending: Pending) -> None:
    writer = Wrote()
    jobs: SimpleQueue[bool] = SimpleQueue()

    def work() -> None:
        while jobs.get():
            commit(pending, writer)

    thread = threading.Thread(target=work)
    thread.start()
    sent = [b"%d" % i for i in range(20_000)]
    for payload in sent:
        pending.add(append(payload))
        if pending.ask():
            jobs.put(True)
    jobs.put(False)
    thread.join()
    assert writer.payloads == sent
