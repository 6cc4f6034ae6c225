"""Parts that the clients of TCP protocols share."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from zope.interface import implementer

from fyrehose.errors import Broken, Closed, RemoteProtocolError
from fyrehose.net.clients import ClientConnection, Watchers, reconnecting


def test_watcher_fires_once_its_condition_holds() -> None:
    watchers, values = Watchers(), [0]
    now, later = watchers.when(lambda: values[0] == 0), watchers.when(lambda: values[0] == 2)
    assert now.called
    values[0] = 1
    watchers.notify()
    assert not later.called
    values[0] = 2
    watchers.notify()
    assert later.called
    watchers.notify()


def test_watcher_added_by_a_callback_is_kept() -> None:
    watchers, open_ = Watchers(), []
    first = watchers.when(lambda: bool(open_))
    second: list[Deferred[None]] = []
    first.addCallback(lambda _: second.append(watchers.when(lambda: len(open_) > 1)))
    open_.append(1)
    watchers.notify()
    assert not second[0].called
    open_.append(2)
    watchers.notify()
    assert second[0].called


def test_failed_watchers_get_the_reason() -> None:
    watchers = Watchers()
    waiting = watchers.when(lambda: False)
    watchers.fail(Closed("the client was closed"))
    with pytest.raises(Closed):
        raise waiting.result.value  # type: ignore[attr-defined]
    waiting.addErrback(lambda failure: None)


def test_callback_that_closes_the_client_fails_the_other_watchers() -> None:
    """None of them may fire after that, and none may wait forever."""
    watchers, open_ = Watchers(), [False]
    first, second = (watchers.when(lambda: open_[0]) for _ in range(2))
    third = watchers.when(lambda: False)
    first.addCallback(lambda _: watchers.fail(Closed("the client was closed")))
    open_[0] = True
    watchers.notify()
    for waiting in (second, third):
        with pytest.raises(Closed):
            raise waiting.result.value  # type: ignore[attr-defined]
        waiting.addErrback(lambda failure: None)


class Session:
    """Turns each byte into an event; 0 violates the protocol."""

    def receive_data(self, data: bytes) -> list[Any]:
        return [byte or Broken(error=RemoteProtocolError("zero")) for byte in data]

    def data_to_send(self) -> list[bytes]:
        return [b"a", b"b"]


def test_a_connection_passes_events_on_and_aborts_at_a_violation_of_the_protocol() -> None:
    events: list[int] = []
    connection, transport = ClientConnection(Session(), events.append), StringTransport()
    connection.makeConnection(transport)
    connection.dataReceived(b"\1\2\0")
    assert (events, transport.disconnected) == ([1, 2], True)


def test_connection_writes_pending_output() -> None:
    connection, transport = ClientConnection(Session(), print), StringTransport()
    connection.makeConnection(transport)
    connection.flush()
    assert transport.value() == b"ab"


@implementer(IStreamClientEndpoint)
class Refusing:
    """An endpoint that refuses every attempt."""

    attempts = 0

    def connect(self, factory: Any) -> Deferred[Any]:
        self.attempts += 1
        return fail(ConnectionRefusedError())


def test_a_client_reconnects_with_the_given_delays_until_the_service_stops() -> None:
    clock, endpoint = Clock(), Refusing()
    service = reconnecting(clock, endpoint, Protocol, lambda attempt: 2.0)
    for attempts in (1, 2, 3):
        assert endpoint.attempts == attempts
        clock.advance(2)
    service.stopService()
    clock.advance(10)
    assert endpoint.attempts == 4
