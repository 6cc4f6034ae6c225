"""A server notices that its own listener hangs, unless it could never reach it."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock, StringTransport
from zope.interface import implementer

from fyrehose.cluster.gate import ReplicatedGate
from fyrehose.protocols.http.session import HttpSession, RequestLimits
from fyrehose.server.listener_probe import (
    EVERY_S,
    LONGEST_S,
    REQUEST,
    TIMEOUT_S,
    TRIES,
    ListenerProbe,
    endpoint_of,
)
from tests.doubles.steps import advance_until


@implementer(IStreamClientEndpoint)
@attrs.define
class Listener:
    """An endpoint that ``answers``, ``hangs``, ``closes`` each connection, ``refuses`` it, or ``forbids`` requests."""

    does: str = "answers"
    clock: Clock = attrs.field(factory=Clock)
    asked: list[float] = attrs.field(factory=list)

    def connect(self, factory: Any) -> Deferred[Any]:
        self.asked.append(self.clock.seconds())
        assert not factory.noisy, "it would log two lines a second"
        if self.does == "refuses":
            return fail(ConnectError())
        protocol, transport = factory.buildProtocol(None), StringTransport()
        protocol.makeConnection(transport)
        assert transport.value() == REQUEST
        if self.does == "answers":
            protocol.dataReceived(b"HTTP/1.1 503 Service Unavailable\r\n")
        elif self.does == "forbids":
            protocol.dataReceived(b"HTTP/1.1 403 Forbidden\r\n")
        elif self.does == "closes":
            protocol.connectionLost()
        return succeed(protocol)


@attrs.define
class Probed:
    listener: Listener = attrs.field(factory=Listener)
    gate: ReplicatedGate = attrs.field(factory=lambda: ReplicatedGate("a"))
    probe: ListenerProbe = attrs.field(init=False)

    @property
    def clock(self) -> Clock:
        return self.listener.clock

    def __attrs_post_init__(self) -> None:
        self.probe = ListenerProbe(self.clock, self.listener, self.gate, "10.0.0.1:8117")
        self.probe.startService()


@pytest.fixture
def probed() -> Probed:
    return Probed()


@pytest.mark.parametrize("seed", range(20))
def test_listener_is_unreachable_after_some_requests_without_an_answer_if_it_answered_before(seed: int) -> None:
    dice, probed = Random(seed), Probed()
    answers, unreachable, next_at, fails = dice.choice((0.2, 0.4, 0.7)), "", EVERY_S, 0
    answered = False
    for _ in range(40):
        does = "answers" if dice.random() < answers else dice.choice(("hangs", "closes", "refuses", "forbids"))
        probed.listener.does = does
        known_at = next_at + TIMEOUT_S * (does == "hangs")
        advance_until(lambda until=known_at: probed.clock.seconds() >= until, probed.clock, 0.25)
        answered, fails = answered or does == "answers", 0 if does == "answers" else fails + 1
        unreachable = "its listener does not answer" * (answered and fails >= TRIES)
        assert probed.gate.unreachable == unreachable, f"it {does}, after {fails} without an answer"
        assert probed.listener.asked[-1] == next_at, "it is asked at once after the pause"
        next_at = known_at + (EVERY_S if answered else min(LONGEST_S, EVERY_S * 2.0**fails))


@pytest.mark.parametrize("does", ["refuses", "forbids"])
def test_address_that_never_answered_says_nothing_and_is_asked_seldom(probed: Probed, does: str) -> None:
    probed.listener.does = does
    probed.clock.pump([0.5] * 2_400)
    assert not probed.gate.unreachable
    assert probed.listener.asked == [1, 3, 7, 15, 31, 63, 127, 255, 511, 811, 1111]


@pytest.mark.parametrize("page", ["", "/page"])
@pytest.mark.parametrize(("given", "port"), [(":8117", 8117), ("", None)])
@pytest.mark.parametrize(("scheme", "usual"), [("", 80), ("http://", 80), ("https://", 443)])
def test_address_is_asked_at_its_port_or_at_that_of_its_scheme(
    scheme: str, usual: int, given: str, port: int | None, page: str
) -> None:
    reactor = MemoryReactorClock()
    endpoint = endpoint_of(reactor, f"{scheme}10.0.0.1{given}{page}")
    endpoint.connect(Factory())
    assert [call[1] for call in reactor.tcpClients] == [port or usual]
    assert repr(endpoint) == f"<HostnameEndpoint 10.0.0.1:{port or usual}>" or usual == 443


def test_listener_with_other_names_does_not_refuse_the_request() -> None:
    session = HttpSession(frozenset({"fyrehose.example"}), limits=RequestLimits(message=10, body=100))
    assert session.receive_data(REQUEST) == []
    assert b"".join(session.data_to_send()).startswith(b"HTTP/1.1 204 ")


@pytest.mark.parametrize("does", ["hangs", "answers"])
def test_nothing_is_asked_after_the_end(probed: Probed, does: str) -> None:
    probed.listener.does = does
    probed.clock.advance(EVERY_S + 0.1)
    probed.probe.stopService()
    assert not [call for call in probed.clock.getDelayedCalls() if call.active()]
