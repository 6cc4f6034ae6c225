"""Streams that have been empty for long enough are retired."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.logger import formatEvent

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import JournalCorrupt
from fyrehose.interfaces import JournalState
from fyrehose.net.turns import LEAST
from fyrehose.net.turns import ROUND as ROUND_BYTES
from fyrehose.observe.listeners import Listener
from fyrehose.records import Run
from fyrehose.server.idle import ROUND, SLICE, IdleStreams
from fyrehose.testing import MemoryJournal
from tests.doubles.references import references

AFTER = 600.0
#: Each wait is cut into pieces of this many seconds.
TURN = 1.0


class Reactor(Clock):
    """A clock that makes one turn of the reactor out of each advance."""

    def callLater(self, delay: float, *args: Any, **kw: Any) -> Any:
        return super().callLater(max(delay, 0.001), *args, **kw)


class World:
    """A broker whose journal drops records when the test says so, and the service that retires idle streams."""

    def __init__(self, journal: MemoryJournal | None = None) -> None:
        self.clock = Reactor()
        self.journal = journal or MemoryJournal()
        self.broker = Broker(self.clock, self.journal, Sequencer())
        self.broker.open()
        self.service = IdleStreams(self.clock, self.broker, AFTER)
        self.service.startService()

    def publish(self, *streams: str) -> None:
        runs = [Run.of(stream, [b"x"], source="test") for stream in streams]
        self.broker.publish(
            [run for run in runs if run.stream[0] != "."], [run for run in runs if run.stream[0] == "."]
        )
        self.journal.commit()

    def expire(self, *streams: str) -> None:
        """Let retention delete every record of *streams*."""
        for stream in streams:
            self.journal.empty(stream)

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / TURN)):
            self.clock.advance(TURN)

    @property
    def streams(self) -> set[str]:
        return set(self.journal.ends())


def test_a_stream_is_retired_after_it_was_empty_for_long_enough() -> None:
    world = World()
    world.publish("kept")
    world.wait(ROUND)
    empty = references(world.service, world.broker, world.clock)
    world.publish("idle", "kept")
    world.expire("idle")
    world.wait(AFTER)
    assert world.streams == {"idle", "kept"}
    world.wait(2 * ROUND)
    assert world.streams == {"kept"}
    world.wait(ROUND)
    assert references(world.service, world.broker, world.clock) == empty, "nothing of the stream is remembered"
    world.publish("idle")
    assert world.broker.bounds("idle") == (2, 2)


def test_a_record_restarts_the_time_until_a_stream_is_retired() -> None:
    world = World()
    world.publish("s")
    world.expire("s")
    world.wait(AFTER - ROUND)
    world.publish("s")
    world.expire("s")
    world.wait(AFTER - ROUND)
    assert world.streams == {"s"}
    world.wait(3 * ROUND)
    assert world.streams == set()


def test_a_stream_with_a_record_that_is_being_written_is_not_retired() -> None:
    world = World(MemoryJournal(auto=False))
    world.publish("s")
    world.expire("s")
    world.wait(AFTER - 2 * ROUND)
    published = world.broker.publish([Run.of("s", [b"y"], source="test")])
    world.wait(5 * ROUND)
    world.journal.commit()
    assert published.result == (2,)
    assert world.broker.bounds("s") == (2, 2)


def test_streams_of_the_server_and_of_listeners_are_not_retired() -> None:
    world = World()
    world.broker.listeners.append(
        Listener(name="backbone", protocol="backbone", endpoint="", access=str, connections=lambda: 0, stream="bound")
    )
    world.publish(".own", "bound", "s")
    world.expire(".own", "bound", "s")
    world.wait(2 * AFTER)
    assert world.streams == {".own", "bound"}


def test_a_bounded_number_of_streams_is_retired_at_once_with_one_log_line(log_lines: list[str]) -> None:
    world = World()
    names = [f"s{n}" for n in range(2 * SLICE + 1)]
    world.publish(*names)
    world.expire(*names)
    world.wait(AFTER)
    left = len(world.streams)
    while left:
        world.clock.advance(TURN)
        assert left - len(world.streams) <= ROUND_BYTES // LEAST, "the steps of one round"
        left = len(world.streams)
    assert [line for line in log_lines if "were retired by server.retire-idle" in line] == [
        f"{SLICE} streams were retired by server.retire-idle"
    ] * 2
    assert world.broker.counters.counts["server", "streams-retired"] == len(names)


def test_no_stream_is_retired_while_the_disk_is_full() -> None:
    world = World()
    world.publish("s")
    world.expire("s")
    world.journal.enter(JournalState.READ_ONLY, "full")
    world.wait(2 * AFTER)
    assert world.streams == {"s"}
    world.journal.enter(JournalState.WRITABLE, "room")
    world.wait(AFTER + 2 * ROUND)
    assert world.streams == set()


def test_a_stream_that_cannot_be_read_stays_and_others_are_retired(log_lines: list[str]) -> None:
    damaged: set[str] = set()

    class Damaged(MemoryJournal):
        def bounds(self, stream: str) -> tuple[int, int]:
            if stream in damaged:
                raise JournalCorrupt("its index is damaged")
            return super().bounds(stream)

    world = World(Damaged())
    world.publish("bad", "s")
    world.expire("bad", "s")
    damaged.add("bad")
    world.wait(AFTER + 2 * ROUND)
    assert world.streams == {"bad"}
    assert any("idle-stream-unreadable from bad: its index is damaged" in line for line in log_lines)


def test_a_stopped_service_retires_no_streams() -> None:
    world = World()
    world.publish("s")
    world.expire("s")
    world.wait(ROUND)
    world.service.stopService()
    world.wait(2 * AFTER)
    assert world.streams == {"s"}
    assert not world.service.running
    assert not world.clock.getDelayedCalls()


def test_a_stream_whose_check_fails_by_a_bug_is_logged_once_and_others_are_retired(logged_errors: Any) -> None:
    class Buggy(MemoryJournal):
        def bounds(self, stream: str) -> tuple[int, int]:
            if stream == "bad" and self.ends().get(stream) == 1:
                raise RuntimeError("bug")
            return super().bounds(stream)

    world = World(Buggy())
    world.publish("bad", "s")
    world.expire("bad", "s")
    world.wait(AFTER + 2 * ROUND)
    assert world.streams == {"bad"}
    (event,) = logged_errors.take()
    said = "checking whether stream 'bad' is idle failed, and is tried again; please report this bug"
    assert formatEvent(event) == said
