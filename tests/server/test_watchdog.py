"""The watchdog: which turns are stalls, what it logs about them, and when its thread ends."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import attrs
import pytest
from twisted.internet.task import Clock
from zope.interface import implementer

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.interfaces import IRelay, ISink
from fyrehose.observe.meters import Stalls
from fyrehose.protocols.figg.frames import Attach, Publish
from fyrehose.protocols.figg.server import FiggFactory
from fyrehose.server import watchdog
from fyrehose.server.watchdog import BEAT, LONGEST_TURN, LOOK, Watchdog, Watched
from fyrehose.sessions import Encoded
from fyrehose.testing import MemoryJournal, shell


@attrs.define(eq=False)
class Machine:
    """A reactor, and a thread of the watchdog, that run when the test says so."""

    clock: Clock = attrs.field(factory=Clock)
    now: float = 100.0
    cpu: float = 7.0
    write_age: float = 0.0
    statuses: list[str] = attrs.field(factory=list)
    frame: FrameType | None = None
    dog: Watchdog = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.dog = Watchdog(self.clock, Stalls(), self, lambda: self.now, write_age=lambda: self.write_age)
        for _ in range(2):
            self.dog.start(Watched(lambda: self.cpu, lambda: self.frame), run=False)

    def stalled(self, status: str) -> None:
        self.statuses.append(status)

    def recovered(self) -> None:
        self.statuses.append("recovered")

    def run(self, seconds: float, *, reactor: bool = True, thread: bool = True, cpu: float = 0.0) -> None:
        """Advance the clock; the reactor runs its timers, the thread looks at the reactor, or neither of them runs."""
        for _ in range(round(seconds / LOOK)):
            self.now += LOOK
            self.cpu += cpu * LOOK
            if thread:
                self.dog.look()
            if reactor:
                self.clock.advance(self.now - 100.0 - self.clock.seconds())

    def turn_ends(self) -> None:
        """Run the timers that are overdue."""
        self.clock.advance(self.now - 100.0 - self.clock.seconds())

    @property
    def stalls(self) -> tuple[int, float]:
        return self.dog.stalls.count, self.dog.stalls.longest


@pytest.fixture
def machine() -> Any:
    made = Machine()
    yield made
    made.dog.stop()
    assert not made.clock.getDelayedCalls()


def test_busy_reactor_with_short_turns_is_not_stalled(machine: Machine, log_lines: list[str]) -> None:
    machine.run(600, cpu=1.0)
    for _ in range(100):
        machine.run(1.5, reactor=False, cpu=1.0)
        machine.turn_ends()
    assert (machine.stalls, machine.statuses, log_lines) == ((0, 0.0), [], [])


def test_service_manager_shows_that_the_disk_does_not_answer_until_it_does(
    machine: Machine, logged_errors: Any
) -> None:
    machine.write_age = 1.9
    machine.run(5)
    assert machine.statuses == []
    machine.write_age = 12.0
    machine.run(5)
    said = ["the disk has not ended a write for 2 s: nothing is acknowledged"]
    assert (machine.statuses, machine.stalls) == (said, (0, 0.0)), "the reactor runs"
    machine.run(5, reactor=False)
    machine.turn_ends()
    machine.run(5)
    logged_errors.take()  # the stack of the long turn
    assert machine.statuses[-2:] == ["recovered", *said], "a long turn has ended, and the disk has not answered"
    machine.write_age = 0.0
    machine.run(5)
    assert machine.statuses[-3:] == ["recovered", *said, "recovered"]


def test_long_turn_is_logged_while_it_lasts_and_counted_when_it_has_ended(
    machine: Machine, log_lines: list[str], logged_errors: Any
) -> None:
    machine.run(10)
    machine.frame = sys._getframe()
    machine.run(BEAT + LONGEST_TURN - LOOK, reactor=False)
    assert log_lines == []
    machine.run(2 * LOOK, reactor=False)
    (line,) = log_lines
    assert line.startswith("a turn of the reactor takes more than 2 s; nobody else is served until it ends:\n  File ")
    assert "in test_long_turn_is_logged_while_it_lasts_and_counted_when_it_has_ended" in line
    assert machine.statuses == ["a turn of the reactor takes more than 2 s"]
    machine.run(15, reactor=False)
    assert len(log_lines) == 3, "again when it has taken twice as long"
    assert machine.stalls[0] == 0
    machine.turn_ends()
    count, longest = machine.stalls
    assert count == 1
    assert 17 <= longest <= 18
    assert machine.statuses[-1] == "recovered"
    assert log_lines[-1].startswith("a turn of the reactor took 17")
    machine.run(10)
    assert machine.stalls[0] == 1
    assert len(log_lines) == 4
    machine.run(BEAT + LONGEST_TURN + LOOK, reactor=False)
    assert len(log_lines) == 5, "a second one is logged as early as the first"
    machine.turn_ends()
    assert len(logged_errors.take()) == 4


def test_stopped_process_is_not_stalled(machine: Machine, log_lines: list[str]) -> None:
    """After SIGSTOP, the thread and the reactor are late by the same time; either may run first."""
    for first in ("thread", "reactor"):
        machine.run(3)
        machine.now += 3_600
        if first == "thread":
            machine.dog.look()
        machine.turn_ends()
        machine.run(10)
    assert (machine.stalls, machine.statuses) == ((0, 0.0), [])
    assert len(log_lines) == 2
    assert log_lines[0].startswith("the process did not run for 3")


@pytest.mark.parametrize("looks", [True, False], ids=["the thread runs first", "the reactor runs first"])
def test_a_call_that_lets_no_other_thread_run_counts_as_a_stall(
    machine: Machine, log_lines: list[str], logged_errors: Any, looks: bool
) -> None:
    machine.run(3)
    machine.frame = sys._getframe()
    machine.now += 30
    machine.cpu += 29
    if looks:
        machine.dog.look()
        assert "in test_a_call_that_lets_no_other_thread_run_counts_as_a_stall" in log_lines[0]
        assert len(logged_errors.take()) == 1
    machine.turn_ends()
    assert machine.stalls[0] == 1
    assert 28 <= machine.stalls[1] <= 30


@pytest.mark.parametrize(("seconds", "more", "logged"), [(BEAT + LONGEST_TURN, 0.0, 1), (5.0, 0.2, 2)])
def test_duration_of_a_stall_is_exact(
    machine: Machine, logged_errors: Any, seconds: float, more: float, logged: int
) -> None:
    machine.run(3)
    machine.run(seconds, reactor=False)
    machine.now += more
    machine.turn_ends()
    assert machine.stalls == (1, pytest.approx(seconds + more - BEAT))
    assert len(logged_errors.take()) == logged


def test_frequent_looks_of_the_thread_add_only_the_time_between_them(
    machine: Machine, log_lines: list[str], logged_errors: Any
) -> None:
    machine.run(3)
    for looks in range(1, 40):
        machine.now += 0.125
        machine.dog.look()
        assert bool(log_lines) is (looks * 0.125 >= BEAT + LONGEST_TURN), looks
    assert len(logged_errors.take()) == 1
    machine.turn_ends()
    assert machine.stalls == (1, pytest.approx(39 * 0.125 - BEAT))


def test_part_of_a_long_turn_in_which_the_process_was_stopped_does_not_count(
    machine: Machine, logged_errors: Any
) -> None:
    machine.run(3)
    machine.run(1, reactor=False)
    machine.now += 3_600
    machine.run(1, reactor=False)
    machine.turn_ends()
    assert machine.stalls[0] == 0
    machine.run(1, reactor=False)
    machine.now += 3_600
    machine.run(2, reactor=False)
    machine.turn_ends()
    assert machine.stalls[0] == 1
    assert machine.stalls[1] < 4
    assert len(logged_errors.take()) == 1


def test_the_log_of_a_stall_names_the_peer_that_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    broker = Broker(clock, MemoryJournal(), Sequencer())
    broker.open()
    factory, seen = FiggFactory(broker, reactor=clock), []
    peer = shell.ClientSide.connect(factory, clock, "10.0.0.1", 5000)
    other = shell.ClientSide.connect(factory, clock, "10.0.0.2", 5001)

    def look(*args: Any) -> Encoded:
        seen.append(watchdog.served(sys._getframe()))
        return Encoded(b"", 1, 1)

    monkeypatch.setattr(type(peer.protocol.session), "send", look)
    peer.send(Attach(topic="t").serialize())
    monkeypatch.setattr("fyrehose.protocols.figg.server.encode_data", look)
    other.send(Publish(topic="t", number=1, data=b"x").serialize())
    clock.advance(0)
    assert seen == ["figg 10.0.0.1:5000"] * 2, "the sender of a request, then the reader of a delivery"
    assert watchdog.served(sys._getframe()) == ""
    assert watchdog.served(None) == ""
    peer.leave()
    other.leave()


@implementer(ISink)
class Nameless:
    """A sink without the protocol and address of its peer."""

    def deliver(self, delivery: Any) -> str:
        return watchdog.served(sys._getframe())


def test_peer_is_found_in_the_stack_above_a_sink_without_a_peer() -> None:
    @implementer(IRelay)
    class Named(Nameless):
        subscriber = ("figg", "10.0.0.1:5")

        def deliver(self, delivery: Any) -> str:
            return Nameless().deliver(delivery)

    assert Nameless().deliver(None) == ""
    assert Named().deliver(None) == "figg 10.0.0.1:5"


def test_thread_looks_at_the_reactor_repeatedly() -> None:
    clock, machine, looks, enough = Clock(), Machine(), [0], threading.Event()

    class Counted(Watchdog):
        def look(self) -> None:
            looks[0] += 1
            if looks[0] == 3:
                enough.set()

    dog = Counted(clock, Stalls(), machine, look_s=0.001)
    dog.start()
    assert enough.wait(60)
    dog.stop()
    machine.dog.stop()


@pytest.mark.parametrize("platform", [sys.platform, "darwin"])
def test_stack_and_processor_time_of_this_thread_are_known(platform: str) -> None:
    watched = Watched.this_thread(platform)
    assert watched.cpu() > 0
    frame = watched.frame()
    assert frame is not None
    assert frame.f_code.co_name == "<lambda>"
    assert frame.f_back is sys._getframe()


def test_the_thread_of_the_watchdog_runs_from_start_to_stop(logged_errors: Any) -> None:
    clock, statuses = Clock(), Machine()
    dog = Watchdog(clock, Stalls(), statuses)
    dog.start()
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "watchdog"] == [True]
    dog.stop()
    dog.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "watchdog"]
    assert not clock.getDelayedCalls()
    statuses.dog.stop()
