"""How connections went, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest
from OpenSSL import SSL
from twisted.internet.error import ConnectError, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IReactorTCP
from twisted.internet.protocol import ClientFactory, Protocol
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure

from fyrehose.cli.contacts import SHORT, Contacts, Watching

DONE = ConnectionDone()


class Server:
    """A server in the test's hands, and a client that connects to it."""

    def __init__(self, **options: Any) -> None:
        self.reactor = MemoryReactorClock()
        self.contacts = Contacts("figg at h:1", "read 's'", **options)
        self.told: list[str] = []
        self.contacts.watch(lambda: self.told.append(str(self.contacts.turned_away)))
        self.lost: list[Failure] = []
        self.failed: list[Failure] = []
        self.factory = ClientFactory.forProtocol(Protocol)
        self.factory.clientConnectionFailed = lambda connector, reason: self.failed.append(reason)  # type: ignore[method-assign]
        self.watching = Watching(self.reactor, self.contacts)

    def dial(self) -> Any:
        """What the reactor is given to make a connection with."""
        self.watching.connectTCP("h", 1, self.factory, 30)
        return self.reactor.tcpClients.pop()[2]

    def closes(self, seconds: float = 0.0, reason: Exception = DONE) -> None:
        """A connection that ends after so long."""
        protocol = self.dial().buildProtocol(None)
        protocol.wrappedProtocol.connectionLost = self.lost.append
        protocol.makeConnection(StringTransport())
        protocol.dataReceived(b"a word")
        self.reactor.advance(seconds)
        protocol.connectionLost(Failure(reason))


def test_a_client_notices_nothing_of_it() -> None:
    server = Server()
    assert IReactorTCP.providedBy(server.watching)
    assert server.watching.seconds() == server.reactor.seconds()
    server.closes()
    assert [failure.value for failure in server.lost] == [DONE]
    server.dial().clientConnectionFailed(None, Failure(ConnectError()))
    assert server.failed[0].check(ConnectError)


@pytest.mark.parametrize("reason", [ConnectionDone(), ConnectionLost()])
def test_who_is_closed_again_and_again_is_turned_away(reason: Exception) -> None:
    server = Server()
    server.closes(reason=reason)
    assert server.contacts.hint == "it closed 1 connection at once; its log says why"
    server.closes(reason=reason)
    assert (server.told, server.contacts.turned_away) == ([], None)
    server.closes(reason=reason)
    server.closes(reason=reason)
    (said,) = server.told
    assert said == (
        "figg at h:1 closes each connection at once, and its log says why. Does its policy let 10.0.0.1 read 's'? "
        "Has it room for another connection? Does it want TLS (--tls)?"
    )
    late: list[str] = []
    server.contacts.watch(lambda: late.append("told"))
    assert late == ["told"]


def test_with_tls_that_may_be_what_it_does_not_speak() -> None:
    server = Server(encrypted=True)
    for _ in range(3):
        server.closes()
    assert server.told[0].endswith("Has it room for another connection? Does it speak TLS?")


def test_once_it_has_worked_clients_go_on_and_that_is_said_once(log_lines: list[str]) -> None:
    server = Server()
    server.closes(SHORT)
    for _ in range(5):
        server.closes(SHORT - 0.1)
    assert (server.told, server.contacts.turned_away) == ([], None)
    assert log_lines == ["figg at h:1 closes each connection at once; its log says why, and we go on trying"]
    server.closes(SHORT)
    server.closes()
    assert server.contacts.hint.startswith("it closed 1 connection at once")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (SSL.Error([("SSL routines", "", "certificate verify failed"), ("", "", "x")]), "certificate verify failed; x"),
        (SSL.Error([]), "OpenSSL does not say why"),
        (SSL.Error(), "OpenSSL does not say why"),
        (ValueError("something"), "something"),
        (type("VerificationError", (Exception,), {})(), "its certificate is for another name"),
    ],
)
def test_tls_that_fails_is_said_at_once(reason: Exception, said: str) -> None:
    server = Server(encrypted=True)
    server.closes(reason=reason)
    assert server.told == [f"figg at h:1 cannot be spoken to by TLS: {said}"]


def test_why_the_last_connection_could_not_be_made() -> None:
    server = Server()
    assert server.contacts.hint == "is it there and reachable, and does its policy let us in?"
    for error, said in ((ConnectError(111), "Connection refused"), (ValueError("x"), "x")):
        server.dial().clientConnectionFailed(None, Failure(error))
        ended = f"the last try ended with: {said}; is the server running, and listening there?"
        assert server.contacts.hint == ended
    server.closes(SHORT)
    assert server.contacts.hint.startswith("is it there")


def test_a_server_that_is_connected_and_says_nothing() -> None:
    server = Server()
    server.dial().buildProtocol(None).makeConnection(StringTransport())
    assert server.contacts.hint.startswith("we are connected")


def test_a_name_that_nobody_has() -> None:
    server = Server()
    server.reactor.nameResolver = "a resolver"
    assert server.watching.nameResolver == "a resolver"
    assert server.contacts.hint == "no address was found for that name"
    server.closes(SHORT)
    assert server.contacts.hint.startswith("is it there")
