"""The shell of the clients: reconnecting, final errors, time-outs, and waiting for conditions."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import pytest
from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError, ConnectionDone, ConnectionLost, DNSLookupError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import Broken, Closed, FyrehoseError, LocalProtocolError, RemoteProtocolError
from fyrehose.net.clients import (
    Backoff,
    ClientConnection,
    ClientTarget,
    ConnectionFailed,
    ConnectionOptions,
    ServerSilent,
    ServerUnavailable,
    TCPClient,
    TlsFailed,
    Watchers,
    WrongProtocol,
    process_exception,
    tell_restarted,
)
from fyrehose.net.several import AnyServer
from fyrehose.testing import Transport


@pytest.mark.parametrize("seed", range(40))
def test_watchers_fire_when_their_conditions_hold_and_fail_at_the_end(seed: int) -> None:
    """Callbacks may add watchers, or end all: none of the others may fire after that, and none may wait forever."""
    dice, watchers, rows = Random(seed), Watchers(), list[tuple[int, list[object]]]()
    reached, end = 0, None

    def wait() -> None:
        at, got = reached + dice.randrange(3), list[object]()
        rows.append((at, got))
        waiting = watchers.when(lambda: reached >= at)
        waiting.addCallbacks(lambda _: fire(at, got), lambda failure: got.append(failure.value))

    def fire(at: int, got: list[object]) -> None:
        assert reached >= at, "it fires early"
        assert end is None, "it fires after the end"
        got.append(at)
        dice.choice((finish, wait, *[lambda: None] * 8))()

    def finish() -> None:
        nonlocal end
        if end is None:
            end = Closed("the client was closed")
            watchers.end(end)

    for _ in range(60):
        if dice.random() < 0.3:
            reached += 1
            watchers.notify()
        else:
            dice.choice((finish, *[wait] * 30))()
        for at, got in rows:
            assert got == ([at] if at in got else [] if end is None else [end])
            assert got or at > reached, "it waits forever"


def test_target_names_its_server_and_connects_to_it_or_to_the_endpoint_that_it_is_given() -> None:
    reactor = MemoryReactorClock()
    plain = ClientTarget(reactor, "10.0.0.1", 8119).endpoint
    assert repr(plain) == "<HostnameEndpoint 10.0.0.1:8119>"
    other = AnyServer([plain])
    target = ClientTarget(reactor, "::1", 8119, endpoint=other)
    assert (target.endpoint, target.place) == (other, "[::1]:8119")


class Session:
    """Turns each byte into an event; 0, and what no server of this protocol sends, violates the protocol."""

    def receive_data(self, data: bytes) -> list[Any]:
        wrong = Broken(error=RemoteProtocolError("zero"))
        return [wrong] if data[0] > 9 else [byte or wrong for byte in data]

    def data_to_send(self) -> list[bytes]:
        return [b"a", b"b"]


class Connection(ClientConnection):
    expecting = True
    pings = 0

    def ping(self) -> None:
        self.pings += 1


#: a client that waits as many seconds as it has failed
RETRIES = ConnectionOptions(retry=float)


@attrs.define(eq=False)
class EventClient(TCPClient):
    """A client that collects the events of its server."""

    events: list[int] = attrs.field(factory=list)
    abandoned: list[Exception] = attrs.field(factory=list)

    def new_connection(self) -> Connection:
        return Connection(Session(), self.events.append)

    def abandon(self, error: Exception) -> None:
        self.abandoned.append(error)


@implementer(IStreamClientEndpoint)
class Server:
    """An endpoint, whose connections the test makes and ends, and its client."""

    def __init__(self, options: ConnectionOptions = RETRIES, several: int = 1, **more: Any) -> None:
        self.clock, self.states = Clock(), list[bool]()
        self.attempts: list[tuple[Any, Deferred[Any]]] = []
        self.client = EventClient(
            self.clock,
            self if several == 1 else AnyServer([self] * several),
            connection_options=options,
            on_state=self.states.append,
            **more,
        )
        self.connecting: list[Any] = []
        self.client.connect().addCallbacks(
            self.connecting.append, lambda failure: self.connecting.append(failure.value)
        )

    def connect(self, factory: Any) -> Deferred[Any]:
        made: Deferred[Any] = Deferred()
        self.attempts.append((factory, made))
        return made

    def accept(self) -> Any:
        factory, made = self.attempts.pop()
        self.connection, self.transport = factory.buildProtocol(None), Transport()
        self.connection.makeConnection(self.transport)
        made.callback(self.connection)
        return self.connection

    def refuse(self, error: Exception) -> None:
        self.attempts.pop()[1].errback(error)

    def closes(self, error: Exception | None = None) -> None:
        self.connection.connectionLost(Failure(error or ConnectionDone()))


def test_a_connection_passes_events_on_and_writes_pending_output() -> None:
    server = Server()
    connection = server.accept()
    connection.dataReceived(b"\1\2")
    connection.flush()
    connection.flush_soon()
    assert server.client.events == [1, 2]
    assert server.transport.value() == b"ab"
    server.clock.advance(0)
    assert server.transport.value() == b"abab"


def test_client_connects_once() -> None:
    with pytest.raises(LocalProtocolError, match="create another client"):
        Server().client.connect()


@pytest.mark.parametrize("seed", range(30))
def test_connections_that_last_are_replaced_at_once_and_short_ones_after_growing_delays(seed: int) -> None:
    """Attempts take their time, too, but only how long a connection lasted shows that the server serves it."""
    dice, errors, states = Random(seed), list[Any](), list[bool]()
    server = Server(ConnectionOptions(retry=float, steady=2.0, connect_timeout=9.0), process_exception=errors.append)
    failures, paused = 0, False
    for _ in range(30):
        attempt, lasts, answers = (
            dice.choice([0.0, 1.0, 5.0, 8.5]),
            dice.choice([0.0, 0.5, 1.5, 2.0, 30.0]),
            dice.random() < 0.5,
        )
        asks = dice.choice([0.0, 0.0, 3.0, 90.0])  #: how long the server asks the client to wait
        if dice.random() < 0.3:
            paused = not paused
            (server.client.pause if paused else server.client.resume)()
        server.clock.advance(attempt)
        outcome = dice.choice(("refused", "no connection in time", "closed", "closed", "closed"))
        if outcome == "refused":
            server.refuse(ConnectError())
        elif outcome == "no connection in time":
            server.attempts.pop()
            server.clock.advance(9.0 - attempt)
            assert server.client.problem == outcome
        else:
            server.accept()
            assert server.transport.producerState == ("paused" if paused else "producing")
            if answers:
                server.connection.dataReceived(b"\1")
            server.clock.advance(lasts)
            assert server.client.connection is server.connection
            server.closes(ServerUnavailable("busy", asks) if asks else None)
            states += [True, False]
        assert server.client.connection is None
        lost = outcome == "closed"
        failures = 0 if lost and lasts >= 2.0 else failures + 1
        delay = max(failures, asks if lost else 0)
        error = errors.pop()
        assert (error.seconds, error.confirmed, errors) == (lasts if lost else None, lost and answers, [])
        if delay:
            server.clock.advance(delay - 0.25)
            assert not server.attempts, f"it comes back too soon after {failures} failures"
        server.clock.advance(0.25 if delay else 0)
        assert server.attempts, f"it does not come back {delay} s after {failures} failures"
    assert (server.states, server.connecting) == (states, [None])


def test_a_round_through_all_servers_counts_as_one_failure() -> None:
    """Followers close the connections of publishers at once, and the leader may be the last of the servers."""
    delays: list[int] = []
    options = ConnectionOptions(retry=lambda failures: delays.append(failures) or 1.0)
    server = Server(options, several=3)
    for _ in range(6):
        server.accept()
        server.closes()
        server.clock.advance(1)
    assert delays == [0, 0, 1, 1, 1, 2]


def test_delays_double_up_to_the_longest_each_with_20_percent_jitter() -> None:
    middle = Backoff(randomness=lambda: 0.5)
    assert [round(middle(failures), 2) for failures in (0, 1, 2, 3, 4, 20, 10_000)] == [0, 0.1, 0.2, 0.4, 0.8, 5, 5]
    assert Backoff(1.0, 30.0, lambda: 0.0)(3) == pytest.approx(3.2)
    assert Backoff(1.0, 30.0, lambda: 1.0)(3) == pytest.approx(4.8)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectError(111), "Connection refused"),
        (DNSLookupError("x"), "the host name has no address"),
        (ConnectionDone(), "the server closed the connection"),
        (ConnectionLost(), "the connection was lost"),
        (ValueError(), "ValueError"),
        (
            SSL.Error([("SSL routines", "", "bad record mac"), ("", "", "x")]),
            "the TLS handshake failed: bad record mac; x",
        ),
        (SSL.Error(), "the TLS handshake failed: OpenSSL gives no reason"),
    ],
)
def test_client_goes_on_after_an_error_that_may_end_by_itself(error: Exception, text: str) -> None:
    server = Server()
    server.refuse(error)
    assert server.client.problem == text
    server.clock.advance(1)
    server.accept()
    server.closes(error)
    assert (server.connecting, server.client.problem) == ([None], text)
    server.clock.advance(2)
    server.accept().dataReceived(b"\1")
    assert server.client.problem == ""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SSL.Error([("SSL routines", "", "certificate verify failed")]), "certificate verify failed"),
        (type("VerificationError", (Exception,), {})(), "the server's certificate is for another name"),
    ],
)
def test_client_ends_with_the_error_of_a_certificate(error: Exception, text: str) -> None:
    server = Server()
    server.accept()
    room = server.client.watchers.when(lambda: False)
    server.closes(error)
    server.clock.advance(100)
    assert server.attempts == []
    assert [str(each) for each in server.client.abandoned] == [f"the TLS handshake failed: {text}"]
    assert room.result is not None
    room.addErrback(lambda failure: failure.trap(ConnectionFailed))


@pytest.mark.parametrize(
    ("beginning", "text"),
    [
        (b"HTTP/1.1 400 Bad Request", "the server is an HTTP server, such as the http or the admin listener"),
        (b"\xff" + bytes(8) + b"\x7f\x03", "the server is a ZeroMQ socket, such as the eventbus listener"),
        (bytes(8), "the server is a relink listener"),
        (b"\x15\x03\x01\x00\x02\x02\x16", "the server is one that requires TLS"),
        (b"unknown", "the server does not speak the protocol (zero)"),
    ],
)
def test_client_ends_if_the_server_speaks_another_protocol(beginning: bytes, text: str) -> None:
    server = Server()
    server.accept().dataReceived(beginning)
    assert server.transport.aborted
    server.closes(ConnectionLost())
    (error,) = server.client.abandoned
    assert isinstance(error, ConnectionFailed)
    assert isinstance(error.reason, WrongProtocol)
    assert str(error) == text
    assert server.client.closed


def test_client_goes_on_after_a_violation_by_a_server_that_has_answered() -> None:
    server = Server()
    server.accept().dataReceived(b"\1\0")
    assert server.transport.aborted
    server.closes(ConnectionLost())
    server.clock.advance(1)
    assert (len(server.attempts), server.client.problem) == (1, "zero")


def test_process_exception_of_the_caller_decides() -> None:
    errors: list[Exception] = []

    def decide(error: Exception) -> Exception | None:
        errors.append(error)
        return None if len(errors) == 1 else FyrehoseError("no server")

    server = Server(process_exception=decide)
    server.refuse(ConnectError(111))
    server.clock.advance(1)
    server.refuse(ConnectError(111))
    server.clock.advance(100)
    assert server.attempts == []
    assert [str(error) for error in (*errors, *server.connecting)] == [*["Connection refused"] * 2, "no server"]


def test_silent_server_is_pinged_and_then_given_up_after_the_times_of_the_options() -> None:
    server = Server(ConnectionOptions(ping_after=3.0, silence=7.0))
    connection = server.accept()
    server.clock.pump([1] * 6)
    assert (connection.pings, server.transport.aborted) == (2, False)
    connection.dataReceived(b"\1")
    server.clock.pump([1] * 6)
    assert not server.transport.aborted
    server.clock.advance(1)
    assert server.transport.aborted
    server.closes(ConnectionLost())
    assert server.client.problem == "the server sent nothing for 7 s"
    assert isinstance(server.client.error, ConnectionFailed)
    assert isinstance(server.client.error.reason, ServerSilent)


def test_silence_does_not_count_while_the_client_is_paused() -> None:
    server = Server(ConnectionOptions(ping_after=3.0, silence=7.0))
    server.accept()
    server.client.pause()
    server.clock.pump([1] * 60)
    server.client.resume()
    server.clock.pump([1] * 6)
    assert not server.transport.aborted
    server.clock.advance(1)
    assert server.transport.aborted


def test_client_that_was_paused_only_before_it_connects_reads() -> None:
    server = Server()
    client = EventClient(server.clock, server, connection_options=RETRIES)
    client.pause()
    client.resume()
    client.connect()
    assert server.accept().transport.producerState == "producing"


def test_close_waits_for_the_connection_and_aborts_it_after_its_time() -> None:
    server = Server(ConnectionOptions(close_timeout=5.0))
    server.accept()
    server.client.pause()
    first, second = server.client.close(), server.client.close()
    assert (server.transport.disconnecting, server.transport.producerState) == (True, "producing")
    server.clock.advance(5)
    assert server.transport.aborted
    assert not first.called
    server.closes()
    assert first.called
    assert second.called
    assert server.clock.getDelayedCalls() == []
    assert [type(error) for error in server.client.abandoned] == [Closed]


@pytest.mark.parametrize("refused", [False, True])
def test_close_without_a_connection_ends_at_once(refused: bool) -> None:
    server = Server()
    if refused:
        server.refuse(ConnectError())
    assert server.client.close().called
    assert [type(error) for error in server.connecting] == [Closed]
    assert server.clock.getDelayedCalls() == []
    with pytest.raises(LocalProtocolError):
        server.client.connect()


def test_connection_that_is_made_after_close_is_closed() -> None:
    server = Server()
    server.client.close()
    server.accept()
    assert server.transport.disconnecting
    assert server.states == []


def test_default_decision_is_final_only_for_people_to_mend() -> None:
    assert process_exception(ConnectionFailed(ConnectError(111))) is None
    assert process_exception(RemoteProtocolError("zero")) is None
    for reason in (WrongProtocol("x"), TlsFailed("certificate expired")):
        failed = ConnectionFailed(reason)
        assert process_exception(failed) is failed
    assert TlsFailed("certificate expired").text == "certificate expired", "without the words before it"


def test_restart_is_logged_unless_the_program_wants_to_know_it(log_lines: list[str]) -> None:
    tell_restarted("notes", 20, 5, None)
    told: list[int] = []
    tell_restarted("notes", 20, 5, lambda end: told.append(end))
    assert told == [5]
    [line] = [line for line in log_lines if "another journal" in line]
    assert line.startswith("stream 'notes' ends at record 5 and is not the one of which record 20 was read")
