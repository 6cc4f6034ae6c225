"""TLS handshakes have a deadline; tests/protocols/lumberjack and tests/live test it in whole servers."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import ISSLTransport
from twisted.internet.task import Clock
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import directlyProvides

from fyrehose.net.handshakes import Handshake
from fyrehose.observe.counters import Counters
from fyrehose.testing import Transport


class World:
    """A handshake that has begun."""

    def __init__(self, tls: bool = True) -> None:
        self.clock, self.transport, self.counters = Clock(), Transport(), Counters()
        if tls:
            directlyProvides(self.transport, ISSLTransport)
        self.handshake = Handshake("toy", "10.0.0.1", Logger(), self.counters)
        self.handshake.begin(self.transport, self.clock, 10.0)

    @property
    def counted(self) -> dict[Any, int]:
        return {what: n for (_, what), n in self.counters.counts.items() if n}


def test_a_handshake_in_time_is_not_counted() -> None:
    world = World()
    world.clock.advance(9)
    assert world.handshake.end()
    assert not world.handshake.end()
    world.clock.advance(9)
    world.handshake.lost(Failure(ValueError("later")))
    assert (world.transport.aborted, world.counted) == (False, {})


def test_a_late_handshake_aborts_the_connection(log_lines: list[str]) -> None:
    world = World()
    world.clock.advance(10)
    world.handshake.lost(Failure(ConnectionDone()))
    assert (world.transport.aborted, world.counted) == (True, {"handshake-timeout": 1})
    assert log_lines == ["toy: handshake-timeout from 10.0.0.1"]


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        (ConnectionDone(), "handshake-aborted"),
        (ConnectionLost(), "handshake-aborted"),
        (ValueError("no certificate"), "handshake-failed"),
    ],
)
def test_a_failed_handshake_is_counted(reason: Exception, cause: str) -> None:
    world = World()
    world.handshake.lost(Failure(reason))
    assert world.counted == {cause: 1}
    assert not world.clock.getDelayedCalls()


def test_without_tls_no_handshake_is_awaited() -> None:
    world = World(tls=False)
    assert not world.clock.getDelayedCalls()
    world.handshake.lost(Failure(ValueError("anything")))
    assert world.counted == {}
