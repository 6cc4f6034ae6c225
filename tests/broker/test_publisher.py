"""What a peer publishes through: checked, charged, and settled by list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred, fail
from twisted.internet.task import Clock

from fyrehose.broker import Broker, Sequencer
from fyrehose.broker.peer import publisher_for
from fyrehose.broker.publisher import RUN_OVERHEAD
from fyrehose.errors import (
    InvalidName,
    KeyReused,
    OutcomeUnknown,
    PayloadTooLarge,
    ReadOnly,
    StreamFull,
    TooManyStreams,
)
from fyrehose.identity import Identity
from fyrehose.interfaces import JournalState
from fyrehose.net.inflight import Account
from fyrehose.records import LAST_SEQ, MAX_PAYLOAD, Publish, Run
from fyrehose.testing import MemoryJournal


def draft(payload: bytes = b"x", stream: str = "s") -> Run:
    return Run.of(stream, [payload], source="test", producer="10.0.0.1:77")


@attrs.define(eq=False)
class Bench:
    """A broker with a journal that commits on demand, and a publisher that notes what it is told."""

    journal: MemoryJournal = attrs.field(factory=lambda: MemoryJournal(auto=False))
    broker: Broker = attrs.field(init=False)
    settled: list[tuple[list[Any], Exception | None, int]] = attrs.field(factory=list)
    account: Account = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.broker = Broker(Clock(), self.journal, Sequencer())
        self.broker.open()
        self.account = self.broker.budget.account(self)

    def pauseProducing(self) -> None: ...

    def resumeProducing(self) -> None: ...

    def note(self, items: Sequence[Publish]) -> None:
        self.settled.append(([item.note for item in items], self.account.held))

    def publisher(self, host: str = "127.0.0.1") -> Any:
        return self.broker.identified(Identity(host=host)).publisher(self.account, self.note)


def test_publishes_of_one_commit_are_settled_together_and_in_order() -> None:
    bench = Bench()
    one, other = bench.publisher(), bench.publisher("10.0.0.2")
    for publisher, note in ((one, "a"), (other, "b"), (one, "c")):
        publisher.publish([draft()], note)
    assert bench.settled == []
    bench.journal.commit()
    assert [notes for notes, _ in bench.settled] == [["a", "c"], ["b"]]


def test_a_publish_is_charged_until_it_is_settled() -> None:
    bench = Bench()
    run = draft()
    bench.publisher().publish([run])
    assert bench.account.held == run.room + RUN_OVERHEAD
    bench.journal.commit()
    assert bench.settled == [([None], 0)]


def test_publishes_are_refused_at_once_while_the_journal_cannot_be_written() -> None:
    bench = Bench()
    publisher = bench.publisher()
    publisher.publish([draft()], 1)
    bench.journal.enter(JournalState.READ_ONLY, "full")
    with pytest.raises(ReadOnly):
        publisher.publish([draft()], 2)
    assert bench.settled == []
    bench.journal.commit()
    assert bench.settled == [([1], 0)]


def test_a_publish_of_a_program_fails_when_the_server_ends_before_it_is_durable() -> None:
    for end in (lambda bench: bench.broker.close(), lambda bench: bench.journal.enter(JournalState.FAILED, "broken")):
        bench, failures = Bench(), list[Any]()
        bench.broker.publish([draft()]).addErrback(failures.append)
        bench.journal.enter(JournalState.READ_ONLY, "full")
        assert failures == []
        end(bench)
        assert failures[0].check(OutcomeUnknown)


@pytest.mark.parametrize(
    ("runs", "error"),
    [
        ([draft(b"xx", "small")], PayloadTooLarge),
        ([draft(b"x" * MAX_PAYLOAD)] * 4, PayloadTooLarge),
        ([draft(stream="full")], StreamFull),
        ([draft(stream="")], InvalidName),
        ([draft(stream="a"), draft(stream="b")], TooManyStreams),
        ([], ReadOnly),
    ],
)
def test_a_refused_publish_leaves_no_stream_no_number_and_no_charge(runs: list[Run], error: type[Exception]) -> None:
    bench = Bench()
    bench.broker.restrict("small", 1)
    bench.broker.sequencer.restore({"full": LAST_SEQ})
    bench.broker.max_streams = 2
    told: list[str] = []
    bench.broker.watch_streams(told.append)
    before = bench.broker.budget.used
    bench.journal.enter(JournalState.READ_ONLY if error is ReadOnly else JournalState.WRITABLE, "the disk")
    with pytest.raises(error):
        bench.publisher().publish([draft(stream="new"), *map(attrs.evolve, runs)])
    assert (bench.broker.largest, bench.account.held, bench.settled) == ({}, 0, [])
    assert (bench.broker.budget.used, bench.broker.sequencer.last("new")) == (before, 0)
    bench.journal.enter(JournalState.WRITABLE, "room")
    bench.publisher().publish([draft(stream="new")])
    bench.journal.commit()
    assert (told, bench.broker.bounds("new")) == (["new"], (1, 1))


def test_repetition_of_a_key_is_settled_with_the_first_and_charged_meanwhile() -> None:
    bench = Bench()
    publisher = bench.publisher()
    runs = [draft(), draft()]
    publisher.publish([runs[0]], "first", key="k")
    publisher.publish([runs[1]], "again", key="k")
    assert bench.account.held > runs[0].room + runs[1].room
    bench.journal.commit()
    assert [notes for notes, _ in bench.settled] == [["first"], ["again"]]
    assert [run.first_seq for run in runs] == [1, 1]
    assert bench.account.held == 0
    assert bench.journal.bounds("s") == (1, 1)
    publisher.publish([draft()], "durable", key="k")
    assert bench.settled[-1][0] == ["durable"]
    with pytest.raises(KeyReused):
        publisher.publish([draft(b"y")], key="k")


def test_records_of_the_server_are_not_counted_as_messages_of_peers() -> None:
    bench = Bench()
    bench.publisher().publish([draft()], own=[draft(b"own", ".own")])
    bench.publisher().publish([], own=[draft(b"own", ".own")])
    bench.journal.commit()
    totals = bench.broker.published["test"]
    assert (totals.publishes, totals.messages, totals.bytes, totals.producers) == (1, 1, 1, {"10.0.0.1"})


@pytest.mark.parametrize("late", [False, True])
def test_a_broker_with_deferreds_publishes_through_a_publisher(late: bool) -> None:
    bench, done = Bench(), Deferred[Any]()

    class Own:
        def publish(self, runs: Sequence[Run], own: Sequence[Run], key: str | None) -> Deferred[Any]:
            return done

    publisher = publisher_for(Own(), bench.account, bench.note)  # type: ignore[arg-type]
    run = draft()
    if not late:
        done.callback((7,))
    publisher.publish([run], "n")
    if late:
        assert bench.account.held == run.room
        done.callback((7,))
    assert (bench.settled, run.first_seq) == ([(["n"], 0)], 7)


def test_a_broker_with_deferreds_raises_what_it_refuses_at_once() -> None:
    class Own:
        def publish(self, runs: Sequence[Run], own: Sequence[Run], key: str | None) -> Deferred[Any]:
            return fail(PayloadTooLarge("x"))

    bench = Bench()
    with pytest.raises(PayloadTooLarge):
        publisher_for(Own(), bench.account, bench.note).publish([draft()])  # type: ignore[arg-type]
    assert (bench.settled, bench.account.held) == ([], 0)
