"""The end of a turn: after the sockets are read, before delayed calls, and never twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.task import Clock

from fyrehose.net.end_of_turn import TurnEnds


@attrs.define(eq=False, slots=False)
class Pipe:
    """A readable descriptor that calls a function when it is read."""

    reactor: Any
    read: Any
    ends: tuple[int, int] = attrs.field(factory=os.pipe)

    def fileno(self) -> int:
        return self.ends[0]

    def logPrefix(self) -> str:
        return "pipe"

    def connectionLost(self, reason: Any) -> None:
        """Nothing is left to do."""

    def doRead(self) -> None:
        os.read(self.ends[0], 1)
        self.read()


@pytest.fixture
def reactor() -> Iterator[Any]:
    reactor = EPollReactor()
    yield reactor
    for reader in reactor.removeAll():
        for fd in getattr(reader, "ends", ()):
            os.close(fd)
    reactor._poller.close()


def test_function_is_called_when_all_sockets_of_the_turn_are_read(reactor: Any) -> None:
    ends, said = TurnEnds(reactor), list[str]()
    for name in ("a", "b"):

        def read(name: str = name) -> None:
            said.append(f"read {name}")
            ends.call(lambda: said.append(f"end {name}"))

        pipe = Pipe(reactor, read)
        reactor.addReader(pipe)
        os.write(pipe.ends[1], b"x")
    reactor.doIteration(1)
    assert sorted(said[:2]) == ["read a", "read b"]
    assert sorted(said[2:]) == ["end a", "end b"]
    reactor.doIteration(0)
    assert len(said) == 4
    assert reactor.getDelayedCalls() == []


def test_function_outside_of_reading_is_called_by_the_next_turn(reactor: Any) -> None:
    ends, said = TurnEnds(reactor), list[str]()
    ends.call(lambda: said.append("outside"))
    reactor.iterate(0)
    reactor.iterate(0)
    assert said == ["outside"]


def test_function_that_is_added_at_the_end_of_a_turn_waits_for_the_next(reactor: Any) -> None:
    ends, said = TurnEnds(reactor), list[str]()
    pipe = Pipe(reactor, lambda: ends.call(lambda: ends.call(lambda: said.append("second"))))
    reactor.addReader(pipe)
    os.write(pipe.ends[1], b"x")
    reactor.doIteration(1)
    assert said == []
    reactor.iterate(0)
    reactor.iterate(0)
    assert said == ["second"]


def test_function_that_fails_is_reported_and_the_next_one_is_called(reactor: Any, logged_errors: Any) -> None:
    ends, said = TurnEnds(reactor), list[str]()

    def read() -> None:
        ends.call(lambda: 1 // 0)
        ends.call(lambda: said.append("next"))

    pipe = Pipe(reactor, read)
    reactor.addReader(pipe)
    os.write(pipe.ends[1], b"x")
    reactor.doIteration(1)
    assert said == ["next"]
    assert [error["log_failure"].type for error in logged_errors.take()] == [ZeroDivisionError]


def test_a_reactor_without_turns_runs_the_function_as_a_delayed_call() -> None:
    clock, said = Clock(), list[str]()
    TurnEnds(clock).call(lambda: said.append("later"))
    assert said == []
    clock.advance(0)
    assert said == ["later"]
