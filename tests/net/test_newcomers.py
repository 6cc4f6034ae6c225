"""New connections are served in an order by network, and do not delay the input of others."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.internet.tcp import Port

from fyrehose.net.newcomers import SERVED, Newcomers
from fyrehose.net.turns import INPUT_S, Turns
from fyrehose.net.twisted_private import ACCEPTS, PromptServer

from .test_twisted_private import Reactor


class Served(Factory):
    """Remembers the hosts of the connections that it serves, and refuses some."""

    def __init__(self) -> None:
        self.hosts: list[str] = []
        self.transports: list[Any] = []
        self.refused: set[str] = set()

    def buildProtocol(self, addr: Any) -> Protocol | None:
        if addr.host in self.refused:
            return None
        self.hosts.append(addr.host.rpartition(".")[2])
        served = Protocol()
        served.connectionMade = lambda: self.transports.append(served.transport)  # type: ignore[method-assign]
        return served


@attrs.define(eq=False)
class Listener:
    """A port whose connections are accepted in turns, and its clients."""

    port: Any
    served: Served
    turns: Turns
    newcomers: Newcomers
    displaced: list[str]
    free: list[bool]
    clients: list[socket.socket] = attrs.field(factory=list)

    def connect(self, count: int, last: int) -> None:
        for _ in range(count):
            self.clients.append(socket.socket())
            self.clients[-1].bind((f"127.0.0.{last}", 0))
            self.clients[-1].connect(("127.0.0.1", self.port.getHost().port))

    def accept(self) -> None:
        self.port.doRead()

    def take_turns(self) -> None:
        assert isinstance(self.turns.clock, Clock)
        self.turns.clock.advance(0)


@pytest.fixture
def listener() -> Iterator[Listener]:
    served, turns, displaced, free = Served(), Turns(Clock()), [], [True]
    newcomers = Newcomers(turns, lambda: 40, lambda: free[0], displaced.append)
    port: Any = Port(0, served, 2 * ACCEPTS, "127.0.0.1", Reactor())
    port.startListening()
    listener = Listener(newcomers.accept_from(port), served, turns, newcomers, displaced, free)
    yield listener
    newcomers.close()
    for each in (*listener.clients, *(transport.socket for transport in served.transports), port.socket):
        each.close()


def test_connections_are_served_as_they_arrive_while_there_is_time(listener: Listener) -> None:
    listener.connect(3, 2)
    listener.accept()
    assert listener.served.hosts == ["2", "2", "2"]
    assert {type(transport) for transport in listener.served.transports} == {PromptServer}


def test_connections_of_a_network_do_not_wait_for_all_earlier_ones_of_another(listener: Listener) -> None:
    listener.turns.charge("+", INPUT_S)  # other work has used the time up
    listener.connect(30, 2)
    listener.connect(2, 3)
    listener.accept()
    assert listener.served.hosts == [], "all of them wait"
    listener.take_turns()
    assert listener.served.hosts[:4] == ["2", "3", "2", "3"]
    assert listener.served.hosts == ["2", "3", "2", "3", *["2"] * 28]
    assert len(listener.newcomers.waiting) == 0


def test_a_turn_serves_a_few_connections_before_other_work(listener: Listener) -> None:
    listener.turns.charge("+", INPUT_S)
    listener.connect(30, 2)
    listener.accept()
    served = listener.served.hosts
    seen: list[int] = []

    class Work:
        def take_turn(self) -> int:
            seen.append(len(served))
            return 0

        def failed(self, failure: Any) -> None:
            failure.raiseException()

    listener.turns.ready(Work(), "<127.0.0.9")
    listener.take_turns()
    assert seen == [SERVED]


def test_one_of_the_network_of_which_most_wait_is_closed_when_too_many_do(listener: Listener) -> None:
    listener.turns.charge("+", INPUT_S)
    listener.connect(10, 3)
    listener.connect(35, 2)
    listener.accept()
    assert listener.displaced == ["127.0.0.2"] * 5, "40 may wait"
    listener.take_turns()
    assert sorted(listener.served.hosts) == ["2"] * 30 + ["3"] * 10
    assert [client.recv(1) for client in listener.clients[10:15]] == [b""] * 5


def test_a_network_that_wants_room_loses_one_itself_if_as_many_of_another_wait(listener: Listener) -> None:
    listener.turns.charge("+", INPUT_S)
    for count, last in ((20, 2), (1, 4), (20, 3)):
        listener.connect(count, last)
    listener.accept()
    assert listener.displaced == ["127.0.0.3"], "20 of 127.0.0.2 were there before"


def test_connections_wait_while_others_are_closing_to_make_room(listener: Listener) -> None:
    listener.free[0] = False
    listener.connect(20, 2)
    listener.connect(1, 3)
    listener.accept()
    listener.take_turns()
    assert (listener.served.hosts, listener.displaced) == ([], [])
    assert not listener.turns.clock.getDelayedCalls(), "they wait without turns"
    listener.free[0] = True
    listener.newcomers.go_on()
    listener.take_turns()
    assert listener.served.hosts[:3] == ["2", "3", "2"]


def test_a_port_accepts_a_bounded_number_of_connections_in_one_turn(listener: Listener) -> None:
    listener.connect(ACCEPTS + 1, 2)
    listener.accept()
    assert len(listener.served.hosts) == ACCEPTS
    listener.accept()
    assert len(listener.served.hosts) == ACCEPTS + 1


def test_a_connection_that_the_listener_refuses_is_closed(listener: Listener) -> None:
    listener.served.refused.add("127.0.0.2")
    listener.connect(1, 2)
    listener.accept()
    assert listener.clients[0].recv(1) == b""


def test_connections_that_wait_are_closed_when_the_listener_stops(listener: Listener) -> None:
    listener.turns.charge("+", INPUT_S)
    listener.connect(2, 2)
    listener.accept()
    listener.newcomers.close()
    listener.take_turns()
    assert (listener.served.hosts, listener.displaced) == ([], ["127.0.0.2"] * 2)


def test_a_failure_to_serve_one_does_not_affect_the_next(listener: Listener, logged_errors: Any) -> None:
    listener.turns.charge("+", INPUT_S)
    listener.connect(1, 2)
    listener.connect(1, 3)
    build = listener.served.buildProtocol

    def fail_once(addr: Any) -> Any:
        listener.served.buildProtocol = build  # type: ignore[method-assign]
        raise ValueError("a bug")

    listener.served.buildProtocol = fail_once  # type: ignore[method-assign]
    listener.accept()
    listener.take_turns()
    assert listener.served.hosts == ["3"]
    assert listener.clients[0].recv(1) == b"", "its socket is closed"
    assert [error["log_failure"].type for error in logged_errors.take()] == [ValueError]
