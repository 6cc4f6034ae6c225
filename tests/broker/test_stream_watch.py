"""Telling those who follow patterns of streams that a stream has begun."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.broker.stream_watch import StreamWatch
from fyrehose.errors import PayloadTooLarge
from fyrehose.net.turns import STEPS, Turns
from fyrehose.records import Run
from fyrehose.testing import MemoryJournal


def run(stream: str, payload: bytes = b"x") -> Run:
    return Run.of(stream, [payload], source="test")


@pytest.fixture
def broker() -> Broker:
    made = Broker(Clock(), MemoryJournal(auto=False), Sequencer())
    made.open()
    return made


def test_a_stream_is_told_when_its_first_record_is_durable(broker: Broker) -> None:
    told: list[str] = []
    broker.watch_streams(told.append)
    broker.publish([run("a"), run("b")])
    broker.publish([run("a")])
    assert told == []
    broker.journal.commit()
    broker.publish([run("a")])
    broker.journal.commit()
    assert told == ["a", "b"]


def test_a_watcher_knows_every_stream_though_it_begins_while_one_is_being_created(broker: Broker) -> None:
    broker.publish([run("old")])
    broker.journal.commit()
    broker.publish([run("new")])
    told: list[str] = []
    broker.watch_streams(told.append)
    known = set(broker.streams())
    broker.journal.commit()
    assert known == {"old"}
    assert told == ["new"]


def test_a_stream_of_a_refused_publish_is_told_when_another_one_has_begun_it(broker: Broker) -> None:
    told: list[str] = []
    broker.watch_streams(told.append)
    broker.restrict("limited", 2)
    refusals: list[Failure] = []
    broker.publish([run("a"), run("limited", b"xxx")]).addErrback(refusals.append)
    assert [each.type for each in refusals] == [PayloadTooLarge]
    assert broker.stream_watch.unborn == set()
    broker.publish([run("a")])
    broker.journal.commit()
    assert told == ["a"]


def test_streams_that_the_leader_creates_are_told_to_the_watchers_of_a_follower() -> None:
    broker = Broker(Clock(), MemoryJournal(), Sequencer())
    broker.journal.follow()
    broker.open()
    told: list[str] = []
    broker.watch_streams(told.append)
    for last in (1, 2):
        broker.durable({"s": last})
    assert told == ["s"]


def test_many_watchers_are_told_in_several_turns_and_those_that_leave_are_not() -> None:
    clock = Clock()
    watch, told = StreamWatch(Turns(clock)), list[tuple[int, str]]()
    ends = [watch.watch(lambda stream, n=n: told.append((n, stream))) for n in range(STEPS + 2)]
    watch.unborn.update(("a", "b"))
    watch.durable(("a",))
    watch.durable(("b", "old"))
    assert told == [(n, "a") for n in range(STEPS)]
    ends[STEPS]()
    watch.watch(lambda stream: told.append((-1, stream)))
    clock.pump([0] * 3)
    # The last watcher came when stream "a" had begun already.
    assert told[STEPS:] == [(STEPS + 1, "a"), *((n, "b") for n in (*range(STEPS), STEPS + 1, -1))]
