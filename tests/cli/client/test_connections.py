"""How connections went, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest
from OpenSSL import SSL
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectError, ConnectionDone, ConnectionLost, DNSLookupError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import ClientFactory, Protocol
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure
from zope.interface import implementer
from zope.interface.verify import verifyObject

from fyrehose.cli.client.connections import SHORT, ConnectionHistory, WatchedEndpoint

DONE = ConnectionDone()


@implementer(IStreamClientEndpoint)
class Server:
    """A server whose connections the test makes and closes, and a client that connects to it."""

    def __init__(self, **options: Any) -> None:
        self.reactor = MemoryReactorClock()
        self.history = ConnectionHistory("figg at h:1", "read 's'", **options)
        self.told: list[str] = []
        self.history.watch(lambda: self.told.append(str(self.history.refused)))
        self.lost: list[Failure] = []
        self.failed: list[Failure] = []
        self.factory = ClientFactory.forProtocol(Protocol)
        self.dialed: list[Any] = []
        self.connecting: Deferred[Any] = Deferred()
        self.watched = WatchedEndpoint(self, self.history, self.reactor)

    def connect(self, factory: Any) -> Deferred[Any]:
        """Keep *factory*, with which the test makes the connection later."""
        self.dialed.append(factory)
        self.connecting = Deferred()
        return self.connecting

    def dial(self) -> Any:
        """Return what the endpoint is given to make a connection with."""
        self.watched.connect(self.factory).addErrback(self.failed.append)
        return self.dialed.pop()

    def fails(self, error: Exception) -> None:
        """Let the pending connection fail with *error*."""
        self.dial()
        self.connecting.errback(Failure(error))

    def closes(self, seconds: float = 0.0, reason: Exception = DONE, sends: bytes = b"a word") -> None:
        """Make the pending connection, and end it after *seconds*."""
        protocol = self.dial().buildProtocol(None)
        protocol.wrappedProtocol.connectionLost = self.lost.append
        protocol.makeConnection(StringTransport())
        if sends:
            protocol.dataReceived(sends)
        self.reactor.advance(seconds)
        protocol.connectionLost(Failure(reason))


def test_watching_passes_all_events_to_the_client() -> None:
    server = Server()
    assert verifyObject(IStreamClientEndpoint, server.watched)
    server.closes()
    assert [failure.value for failure in server.lost] == [DONE]
    server.fails(ConnectError())
    assert server.failed[0].check(ConnectError)


def test_endpoint_returns_the_protocol_of_the_client() -> None:
    server = Server()
    made: list[Any] = []
    server.watched.connect(server.factory).addCallback(made.append)
    server.connecting.callback(server.dialed.pop().buildProtocol(None))
    assert [type(each) for each in made] == [Protocol]


def test_attempt_that_the_client_cancels_does_not_count_as_a_failure() -> None:
    server = Server()
    server.fails(CancelledError())
    assert server.history.hint.startswith("is the server running and reachable")


@pytest.mark.parametrize("reason", [ConnectionDone(), ConnectionLost()])
def test_three_connections_closed_at_once_are_a_refusal(reason: Exception) -> None:
    server = Server()
    server.closes(reason=reason)
    assert server.history.hint == "the server closed 1 connection at once; check the port, and see its log"
    server.closes(reason=reason)
    assert (server.told, server.history.refused) == ([], None)
    server.closes(reason=reason)
    server.closes(reason=reason)
    (said,) = server.told
    assert said == (
        "figg at h:1 closes each connection at once: is that a port of protocol figg, and does it require TLS "
        "(--tls)? See its log: its access policy may not allow 10.0.0.1 to read 's', or its max-connections is reached"
    )
    late: list[str] = []
    server.history.watch(lambda: late.append("told"))
    assert late == ["told"]


def test_connections_that_end_after_an_answer_are_no_refusal_if_the_protocol_answers_every_request() -> None:
    server = Server(answers=True)
    for _ in range(5):
        server.closes()
    assert server.told == []
    for _ in range(3):
        server.closes(sends=b"")
    assert server.told == [], "once it has answered, it may be restarted behind a proxy"
    silent = Server(answers=True)
    for _ in range(3):
        silent.closes(sends=b"")
    assert len(silent.told) == 1


def test_refusal_over_tls_asks_whether_the_server_speaks_tls() -> None:
    server = Server(encrypted=True)
    for _ in range(3):
        server.closes()
    assert "does it speak TLS? See" in server.told[0]


@pytest.mark.parametrize(
    ("beginning", "said"),
    [
        (
            b"HTTP/1.1 400 Bad Request",
            "an HTTP server, such as the http or the admin listener; check the port and --protocol",
        ),
        (
            b"\xff" + bytes(7) + b"\x01\x7f\x03",
            "a ZeroMQ socket, such as the eventbus listener; check the port and --protocol",
        ),
        (bytes(8), "a relink listener; check the port and --protocol"),
        (b"\x15\x03\x01\x00\x02\x02\x16", "a server that requires TLS; pass --tls"),
    ],
)
def test_server_of_another_protocol_is_recognised_by_its_first_bytes(beginning: bytes, said: str) -> None:
    server = Server()
    server.closes(sends=beginning)
    assert server.told == [f"figg at h:1 is {said}"]


def test_http_server_is_not_reported_as_another_protocol_to_an_http_client() -> None:
    server = Server()
    server.history.name = "http at h:1"
    server.closes(SHORT, sends=b"HTTP/1.1 200 OK")
    assert server.told == []


def test_client_keeps_retrying_once_a_connection_has_lasted(log_lines: list[str]) -> None:
    server = Server()
    server.closes(SHORT)
    for _ in range(5):
        server.closes(SHORT - 0.1)
    assert (server.told, server.history.refused) == ([], None)
    assert log_lines == ["figg at h:1 closes each connection at once; see its log; retrying"]
    server.closes(SHORT)
    server.closes()
    assert server.history.hint.startswith("the server closed 1 connection at once")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (SSL.Error([("SSL routines", "", "certificate verify failed"), ("", "", "x")]), "certificate verify failed; x"),
        (SSL.Error([]), "OpenSSL gives no reason"),
        (SSL.Error(), "OpenSSL gives no reason"),
        (ValueError("something"), "something"),
        (type("VerificationError", (Exception,), {})(), "its certificate is for another name"),
    ],
)
def test_failed_tls_handshake_is_reported_at_once(reason: Exception, said: str) -> None:
    server = Server(encrypted=True)
    server.closes(reason=reason)
    assert server.told == [f"TLS handshake with figg at h:1 failed: {said}; see --tls"]


def test_hint_has_the_reason_of_the_last_failed_attempt() -> None:
    server = Server()
    assert server.history.hint == "is the server running and reachable, and does its access policy allow this client?"
    for error, said in ((ConnectError(111), "Connection refused"), (ValueError("x"), "x")):
        server.fails(error)
        ended = f"the last attempt failed: {said}; is the server running, and listening there?"
        assert server.history.hint == ended
    server.closes(SHORT)
    assert server.history.hint.startswith("is the server running and reachable")


def test_hint_says_that_a_silent_connection_is_open() -> None:
    server = Server()
    server.dial().buildProtocol(None).makeConnection(StringTransport())
    assert server.history.hint == (
        "the connection is open, and nothing has arrived on it: the disk of the server may be full (see its log, or "
        "`fyrehose doctor` there), or that is no port of protocol figg"
    )


def test_hint_says_where_to_look_when_a_server_that_has_answered_is_silent() -> None:
    server = Server()
    protocol = server.dial().buildProtocol(None)
    protocol.makeConnection(StringTransport())
    protocol.dataReceived(b"a word")
    assert server.history.hint.startswith("the connection is open; see the server's log")


def test_refusal_of_a_reserved_stream_does_not_blame_the_network() -> None:
    server = Server(servers_own=True)
    for _ in range(3):
        server.closes()
    own = "streams whose names begin with a dot belong to the server; use another name"
    assert server.told == [f"figg at h:1 does not let this client read 's': {own}"]


def test_hint_names_a_reserved_stream_while_a_refused_connection_is_held_open() -> None:
    server = Server(servers_own=True)
    server.dial().buildProtocol(None).makeConnection(StringTransport())
    own = "streams whose names begin with a dot belong to the server; use another name"
    assert server.history.hint == own
    server = Server(servers_own=True)
    server.closes(SHORT)
    assert server.history.hint == own


def test_hint_says_that_the_host_name_has_no_address() -> None:
    server = Server()
    server.fails(DNSLookupError("no results for hostname lookup: h"))
    assert server.history.hint == "the host name has no address"
    server.closes(SHORT)
    assert server.history.hint.startswith("is the server running and reachable")
