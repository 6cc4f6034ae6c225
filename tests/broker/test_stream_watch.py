"""Telling those who follow patterns of streams that a stream has begun."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from twisted.internet.task import Clock

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


@pytest.mark.parametrize("seed", range(10))
def test_a_watcher_is_told_once_of_each_stream_that_it_could_not_list_when_it_began(broker: Broker, seed: int) -> None:
    """Whether others watch or not, whatever is being created, and though publishes are refused."""
    dice, watching, did = Random(seed), list[tuple[set[str], list[str], Any]](), Counter[str]()
    broker.restrict("limited", 2)
    for _ in range(150):
        what = dice.choice(("publish", "publish", "refused", "commit", "watch", "leave"))
        did[what] += what != "leave" or bool(watching)
        streams = [f"s{each}" for each in dice.sample(range(40), 2)]
        if what == "publish":
            broker.publish([run(stream) for stream in streams])
        elif what == "refused":
            unborn = set(broker.stream_watch.unborn)
            refused = broker.publish([run(streams[0]), run("limited", b"xxx")])
            assert type(refused.addErrback(lambda failure: failure.value).result) is PayloadTooLarge
            assert broker.stream_watch.unborn == unborn, "nothing is kept of a publish that was refused"
        elif what == "commit":
            broker.journal.commit()
        elif what == "watch":
            told: list[str] = []
            watching.append((set(broker.streams()), told, broker.watch_streams(told.append)))
        elif what == "leave" and watching:
            watching.pop(dice.randrange(len(watching)))[2]()
        for listed, told, _ in watching:
            begun = set(broker.streams()) - listed
            assert sorted(told) == sorted(begun), f"told of {told}, but {begun} have begun since the watcher came"
    assert min(did.values()) > 5, f"each happens often: {did}"


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
