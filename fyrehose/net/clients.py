"""The shell of every client: connecting, reconnecting, time-outs, the life of a client, and waiting for a condition.

    client -> Reconnector -> endpoint -> ClientConnection <-> session
                 |  a connection failed: process_exception(error) -> None: try again; an error: end the client with it
                 +- Backoff: the delay before the next attempt

A client of a protocol derives from :class:`Client`, or from :class:`TCPClient` if it has one endpoint.  It overrides:

- ``new_connection()`` (TCPClient): return the :class:`ClientConnection` of a new connection, with its session.
- ``connection_made(connection)`` and ``connection_lost(connection)``: send again what the server has not acknowledged,
  and forget the connection.  Call :meth:`Client.established` as soon as :meth:`Client.connect` shall fire.
- ``expecting`` and ``ping()`` of the connection, so that a silent server is noticed (``ConnectionOptions.silence``).
- ``abandon(error)``: fail what waits for the server; the client has ended.
- ``start()`` and ``stop()``, if it is no TCPClient: begin and end the connections.  Report each failure to
  :meth:`Client.retries`, and try again only if that returns True.

The times are options (:class:`ConnectionOptions`), and which errors are final is decided by ``process_exception``.
``docs/examples/lines/client.py`` is a whole client.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import attrs
from OpenSSL import SSL
from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.internet.defer import TimeoutError as DeferredTimeout
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.error import ConnectError, ConnectionDone, ConnectionLost, DNSLookupError
from twisted.internet.interfaces import IDelayedCall, IReactorTime, IStreamClientEndpoint, ITCPTransport
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import Broken, Closed, FyrehoseError, LocalProtocolError, RemoteProtocolError
from fyrehose.net.foreign import BEGINNING, foreign_server
from fyrehose.net.keepalive import PingsSilentPeer
from fyrehose.net.lifecycle import Timers
from fyrehose.net.peers import host_of
from fyrehose.net.several import place_text, servers_of

log = Logger()


class WrongProtocol(FyrehoseError):
    """The first bytes of the server are not those of the client's protocol."""


class TlsFailed(FyrehoseError):
    """The TLS handshake failed.

    :ivar text: the reasons
    :ivar certificate: whether a certificate is the reason, so that another attempt fails as well
    """

    def __init__(self, text: str) -> None:
        super().__init__(f"the TLS handshake failed: {text}")
        self.text = text
        self.certificate = "certificate" in text


class ServerSilent(FyrehoseError):
    """The server has not answered in time."""


class ServerUnavailable(FyrehoseError):
    """The server cannot answer at present, as it says itself, or as a proxy says that answers in its place.

    :ivar retry_after: how long the answer asks to wait, in seconds; 0: it does not say
    """

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class Unreachable(FyrehoseError):
    """No connection could be made, and the cause is not known."""


class ConnectionFailed(FyrehoseError):
    """A connection could not be made, or has ended.

    :ivar reason: the error: one of Twisted, :class:`WrongProtocol`, :class:`TlsFailed`, :class:`ServerSilent` or
        :class:`ServerUnavailable`
    :ivar retry_after: the shortest delay before the next attempt, in seconds, as the server asked for it
    :ivar seconds: how long the connection lasted; None if none was made
    :ivar confirmed: whether the server had answered on the connection, as its protocol demands
    :ivar address: the client's own address on the connection; "" if none was made
    """

    def __init__(
        self, reason: Exception, seconds: float | None = None, confirmed: bool = False, address: str = ""
    ) -> None:
        self.reason = explained(reason)
        super().__init__(_text(self.reason))
        self.seconds, self.confirmed, self.address = seconds, confirmed, address
        self.retry_after = self.reason.retry_after if isinstance(self.reason, ServerUnavailable) else 0.0


def explained(error: Exception) -> Exception:
    """Return *error*, or a TlsFailed with the reasons in words if *error* is one of TLS."""
    if type(error).__name__ == "VerificationError":
        return TlsFailed("the server's certificate is for another name")
    if not isinstance(error, SSL.Error):
        return error
    reasons = error.args[0] if error.args and isinstance(error.args[0], list) else []
    return TlsFailed("; ".join(str(part[-1]) for part in reasons) or "OpenSSL gives no reason")


def _text(error: Exception) -> str:
    """Return *error* as text for people."""
    match error:
        case DNSLookupError():
            return "the host name has no address"
        case ConnectError() if isinstance(error.osError, int):
            return os.strerror(error.osError)
        case DeferredTimeout():
            return "no connection in time"
        case ConnectionDone():
            return "the server closed the connection"
        case ConnectionLost():
            return "the connection was lost"
    return str(error) or type(error).__name__


def tell_restarted(
    stream: str | None, seq: int, end: int, restarted: Callable[..., object] | None, *more: object
) -> None:
    """Tell the program that the numbers of a stream have begun again, or log it; see :class:`.ITailer`.

    :param stream: None: the only stream of the protocol
    :param seq: the last number that the client has received
    :param end: the last number that the stream has on the server
    :param restarted: the program's function, which gets *end* and *more*; None: it does not want to know
    """
    if restarted is not None:
        restarted(end, *more)
        return
    log.warn(
        "{name} ends at record {end} and is not the one of which record {seq} was read: the server has another "
        "journal, such as a restored backup; reading it from its start",
        name="the stream" if stream is None else f"stream {stream!r}",
        end=end,
        seq=seq,
    )


def process_exception(error: Exception) -> Exception | None:
    """Decide whether a client goes on after *error*, as every client does by default.

    Final are a certificate that is refused, and a server of another protocol: people have to mend these.  All other
    errors may end without anybody's help: a server that is being restarted, a network, a name server.

    :param error: a :class:`ConnectionFailed`, or an error of the client's protocol
    :return: None: try again; else: the error with which the client ends
    """
    reason = error.reason if isinstance(error, ConnectionFailed) else None
    final = isinstance(reason, WrongProtocol) or (isinstance(reason, TlsFailed) and reason.certificate)
    return error if final else None


#: A function that decides about an error: see :func:`process_exception`.
ProcessException = Callable[[Exception], Exception | None]


@attrs.frozen
class ClientTarget:
    """The server that a client connects to, or the servers of a cluster, and which errors are final.

    :ivar reactor: the reactor, or a Clock
    :ivar endpoint: how to connect, such as by TLS or to one of several servers; *host* and *port* then only name the
        server.  Plain TCP if it is left out
    :ivar token: the bearer token that the client sends, if its protocol has ``Abilities.token``
    :ivar process_exception: see :func:`process_exception`
    """

    reactor: Any
    host: str
    port: int
    _endpoint: IStreamClientEndpoint | None = attrs.field(default=None, kw_only=True)
    token: str | None = attrs.field(default=None, kw_only=True, repr=False)
    process_exception: ProcessException = attrs.field(default=process_exception, kw_only=True)

    @property
    def endpoint(self) -> IStreamClientEndpoint:
        """Return the endpoint to connect to."""
        plain: IStreamClientEndpoint = self._endpoint or HostnameEndpoint(self.reactor, self.host, self.port)
        return plain

    @property
    def place(self) -> str:
        """Return host and port as one text."""
        return place_text(self.host, self.port)


@attrs.frozen
class Backoff:
    """The delay before the next attempt, in seconds, after a number of failures in a row: it doubles, each ±20 %.

    With the default, every client is back within 10 s after its server, however long the server was away.

    :ivar first: delay after one failure
    :ivar longest: limit of the delay, before the random part
    """

    first: float = 0.1
    longest: float = 5.0
    randomness: Callable[[], float] = random.random

    def __call__(self, failures: int) -> float:
        if not failures:
            return 0.0
        return min(self.first * 2.0 ** min(failures - 1, 30), self.longest) * (0.8 + 0.4 * self.randomness())


@attrs.frozen(kw_only=True)
class ConnectionOptions:
    """The times of a client's connections, in seconds.

    :ivar connect_timeout: limit of one attempt to connect to one server
    :ivar answer_timeout: limit of a handshake, or of the answer to a request
    :ivar ping_after: silence of the server after which the client sends a ping, if the protocol has pings
    :ivar silence: silence of the server after which the client ends the connection, and connects again
    :ivar close_timeout: limit of closing a connection in good order; then the client aborts it
    :ivar steady: a shorter connection counts as a failure, so that the client backs off from a server that closes each
        connection at once
    :ivar retry: maps the number of failures in a row to the delay before the next attempt
    """

    connect_timeout: float = 30.0
    answer_timeout: float = 10.0
    ping_after: float = 15.0
    silence: float = 45.0
    close_timeout: float = 5.0
    steady: float = 2.0
    retry: Callable[[int], float] = attrs.field(factory=Backoff)


@attrs.define(eq=False)
class Watchers:
    """Deferreds of callers that wait for a condition, such as "the window has room"."""

    #: the conditions, in the order of the calls of when()
    _waiting: dict[Deferred[None], Callable[[], bool]] = attrs.field(factory=dict, init=False)
    _ended: Exception | None = attrs.field(default=None, init=False)

    def when(self, condition: Callable[[], bool]) -> Deferred[None]:
        """Return a Deferred that fires as soon as *condition* returns True, which may be at once.

        After the end it fails, whatever the condition: what was dropped is neither acknowledged nor in the way.
        """
        if self._ended is not None:
            return fail(self._ended)
        if condition():
            return succeed(None)
        watcher: Deferred[None] = Deferred()
        self._waiting[watcher] = condition
        return watcher

    def notify(self) -> None:
        """Fire the Deferreds whose conditions hold now; call this after a change."""
        for watcher, condition in list(self._waiting.items()):
            # A callback may have closed the client, which fails the remaining Deferreds.
            if watcher in self._waiting and condition():
                del self._waiting[watcher]
                watcher.callback(None)

    def end(self, reason: Exception) -> None:
        """Fail all Deferreds that have not fired, and all others from now on, with *reason*: the client has ended."""
        waiting, self._waiting, self._ended = self._waiting, {}, reason
        for watcher in waiting:
            watcher.errback(reason)


class ClientConnection(PingsSilentPeer, Protocol):
    """One connection of a client: feeds a session, pings a silent server, and aborts if the server breaks the protocol.

    :ivar session: the sans-I/O session of this connection
    :ivar handle: called with each event of the session, except ``Broken``
    :ivar confirmed: whether a valid event has arrived
    :ivar reason: why the client ended the connection
    """

    transport: Any
    factory: Reconnector

    def __init__(self, session: Any, handle: Callable[[Any], object]) -> None:
        self.session = session
        self.handle = handle
        self.confirmed = False
        self._beginning = b""
        self.reason: Exception | None = None

    @property
    def options(self) -> ConnectionOptions:
        """Return the options of the client."""
        return self.factory.options

    def connectionMade(self) -> None:
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)  # Nagle's algorithm would delay small writes
        self.timers = Timers(self.factory.clock)
        self.ping_after, self.drop_after = self.options.ping_after, self.options.silence
        if self.expecting:
            self.keep_alive()
        self.factory.connection_made(self)

    def dataReceived(self, data: bytes) -> None:
        self.heard_at = self.factory.clock.seconds()  # any data shows that the server is alive
        if not self._beginning:
            self._beginning = data[:BEGINNING]
        self.receive(data)

    def receive(self, data: bytes) -> None:
        """Pass *data* to the session, and its events to the client."""
        for event in self.session.receive_data(data):
            if isinstance(event, Broken):
                self.broken(event.error)
            else:
                self.confirmed = True
                self.handle(event)

    def broken(self, error: RemoteProtocolError) -> None:
        """End the connection, because the server violated the protocol."""
        self.abort(self.violation(error))

    def violation(self, error: RemoteProtocolError) -> Exception:
        """Return *error*, or a WrongProtocol if the server has not sent anything valid before."""
        return error if self.confirmed else wrong_protocol(self._beginning, error)

    def connectionLost(self, reason: Failure = Failure(ConnectionDone())) -> None:  # noqa: B008 - Twisted's signature
        self.timers.end()
        error = reason.value if isinstance(reason.value, Exception) else ConnectionDone()
        self.factory.connection_lost(self, self.reason or error)

    def flush(self) -> None:
        """Write the bytes that the session has to send."""
        self.transport.writeSequence(self.session.data_to_send())

    def flush_soon(self) -> None:
        """Write the bytes that the session has to send at the end of this turn of the reactor."""
        self.timers.start(0, self.flush)

    def abort(self, reason: Exception) -> None:
        """Abort the connection; *reason* is the error that the client reports."""
        log.info("closing the connection: {reason}", reason=reason)
        self.reason = self.reason or reason
        self.transport.abortConnection()

    def pause(self) -> None:
        """Stop reading."""
        self.transport.pauseProducing()

    def resume(self) -> None:
        """Read again."""
        self.heard_at = self.factory.clock.seconds()
        self.transport.resumeProducing()

    def close(self) -> None:
        """Close the connection after the pending output is written; abort it if that takes too long."""
        self.timers.clear()
        self.timers.start(self.options.close_timeout, self.transport.abortConnection)
        if self.factory.paused:
            self.transport.resumeProducing()  # a paused transport does not notice that it is closed
        self.transport.loseConnection()

    # Keeping the connection alive.

    @property
    def expecting(self) -> bool:
        """Return whether the server must send something within ``silence`` seconds, as in a protocol with pings."""
        return False

    @property
    def unheard(self) -> bool:
        return self.factory.paused or not self.expecting

    def ping(self) -> None:
        """Send a ping; a protocol without pings does nothing."""

    def give_up(self, silence: float) -> None:
        self.abort(ServerSilent(f"the server sent nothing for {silence:.0f} s"))


def wrong_protocol(beginning: bytes, error: Exception) -> WrongProtocol:
    """Return the error for a server that does not speak the client's protocol.

    :param beginning: the first bytes that it sent
    :param error: the first violation of the client's protocol
    """
    kind = foreign_server(beginning)
    return WrongProtocol(f"the server is {kind}" if kind else f"the server does not speak the protocol ({error})")


class Reconnector(Factory):
    """Connects to one endpoint again and again, until it is stopped, or an error is final.

    :param make: returns the object of a new connection
    :param retries: called with each failure of an attempt or a connection; returns whether to try again
    :param made: called with each new connection
    :param lost: called with each connection that has ended
    :ivar connection: the connection that is open
    :ivar paused: whether the client does not read at present
    """

    noisy = False

    def __init__(
        self,
        clock: IReactorTime,
        endpoint: IStreamClientEndpoint,
        options: ConnectionOptions,
        make: Callable[[], ClientConnection],
        retries: Callable[[ConnectionFailed], bool],
        made: Callable[[Any], object] = lambda connection: None,
        lost: Callable[[Any], object] = lambda connection: None,
    ) -> None:
        self.clock, self.endpoint, self.options = clock, endpoint, options
        self._make, self._retries, self._made, self._lost = make, retries, made, lost
        self.connection: ClientConnection | None = None
        self.paused = False
        self._failures = 0
        self._since = 0.0
        self._address = ""
        self._attempt: Deferred[Any] | None = None
        self._next: IDelayedCall | None = None
        self._stopped: Deferred[None] | None = None

    def start(self) -> None:
        """Connect, and reconnect until :meth:`stop`."""
        self._next = None
        attempt = self._attempt = maybeDeferred(self.endpoint.connect, self)
        attempt.addTimeout(self.options.connect_timeout * servers_of(self.endpoint), self.clock)
        attempt.addCallbacks(self._connected, self._not_connected)
        attempt.addErrback(lambda failure: log.failure("connecting failed", failure))

    def stop(self) -> Deferred[None]:
        """Close the connection, and connect no more; the Deferred fires when the connection is closed."""
        if self._stopped is None:
            self._stopped = Deferred()
            if self._next is not None:
                self._next.cancel()
            if self.connection is not None:
                self.connection.close()
            else:
                if self._attempt is not None:
                    self._attempt.cancel()
                self._stopped.callback(None)
        done: Deferred[None] = Deferred()
        self._stopped.addCallback(done.callback)
        return done

    def pause(self) -> None:
        """Stop reading, on later connections as well, until :meth:`resume`."""
        self.paused = True
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """Read again."""
        self.paused = False
        if self.connection is not None:
            self.connection.resume()

    # Called by Twisted and by the connection.

    def buildProtocol(self, addr: Any) -> Any:
        connection = self._make()
        connection.factory = self
        return connection

    def connection_made(self, connection: ClientConnection) -> None:
        """Record that *connection* is open."""
        self.connection, self._since = connection, self.clock.seconds()
        self._address = host_of(connection.transport.getHost())  # a closed socket has no address any more
        if self._stopped is not None:
            connection.close()
            return
        self._made(connection)
        if self.paused and self.connection is connection:
            connection.pause()

    def connection_lost(self, connection: ClientConnection, reason: Exception) -> None:
        """Record that *connection* has ended because of *reason*; connect again unless the reason is final."""
        if self.connection is connection:
            self.connection = None
        self._lost(connection)
        if self._stopped is not None:
            if not self._stopped.called:
                self._stopped.callback(None)
            return
        seconds = self.clock.seconds() - self._since
        self._failed(ConnectionFailed(reason, seconds, connection.confirmed, self._address))

    # Internals.

    def _connected(self, _: object) -> None:
        self._attempt = None

    def _not_connected(self, failure: Failure) -> None:
        self._attempt = None
        if self._stopped is None:
            self._failed(ConnectionFailed(failure.value if isinstance(failure.value, Exception) else ConnectError()))

    def _failed(self, error: ConnectionFailed) -> None:
        steady = error.seconds is not None and error.seconds >= self.options.steady
        self._failures = 0 if steady else self._failures + 1
        if self._retries(error) and self._stopped is None:
            # A round through all servers of a cluster counts as one failure: all but its leader may refuse.
            delay = max(error.retry_after, self.options.retry(self._failures // servers_of(self.endpoint)))
            self._next = self.clock.callLater(delay, self.start)


@attrs.define(eq=False)
class Client:
    """The life of a client: new, connecting, connected and not connected in turn, ended.

    :ivar clock: the reactor, or a Clock
    :ivar connection_options: the times of its connections
    :ivar process_exception: decides which errors are final: see :func:`process_exception`
    :ivar on_state: called with True when the server is there, and with False when it is lost
    :ivar error: the last failure, while there is no connection
    :ivar closed: whether the client has ended
    """

    clock: IReactorTime
    connection_options: ConnectionOptions = attrs.field(factory=ConnectionOptions, kw_only=True)
    process_exception: ProcessException = attrs.field(default=process_exception, kw_only=True)
    on_state: Callable[[bool], object] = attrs.field(default=lambda connected: None, kw_only=True)
    error: Exception | None = attrs.field(default=None, init=False)
    closed: bool = attrs.field(default=False, init=False)
    watchers: Watchers = attrs.field(factory=Watchers, init=False)
    _connected: Deferred[None] | None = attrs.field(default=None, init=False)

    # For programs.

    def connect(self) -> Deferred[None]:
        """Connect, and reconnect until :meth:`close`, or until an error is final.

        :return: a Deferred that fires when the server is there for the first time, however long that takes; fails with
            a final error, or with :class:`~fyrehose.errors.Closed`
        :raises LocalProtocolError: ``connect`` was called before, or the client is closed
        """
        if self._connected is not None or self.closed:
            raise LocalProtocolError("connect() was called before; create another client")
        connected = self._connected = Deferred()
        try:
            self.start()
        except Exception:
            self._connected = None
            raise
        return connected

    def close(self) -> Deferred[None]:
        """Disconnect now; what waits for the server fails with :class:`~fyrehose.errors.Closed`.

        :return: a Deferred that fires when the connections are closed
        """
        return self.end(Closed("the client was closed before the server acknowledged the message"))

    @property
    def problem(self) -> str:
        """Return why the server does not answer at present, as text for people; "" if it does."""
        return "" if self.error is None else str(self.error)

    # For the clients of the protocols.

    def established(self) -> None:
        """Record that the server is there: :meth:`connect` fires, and ``on_state`` is called."""
        self.error = None
        if self._connected is not None and not self._connected.called:
            self._connected.callback(None)
        self.on_state(True)

    def retries(self, error: Exception) -> bool:
        """Record that *error* has occurred; return whether to try again, or end the client if the error is final."""
        if self.closed:
            return False
        self.error = error
        final = self.process_exception(error)
        if final is not None:
            self.end(final)
        return final is None

    def end(self, error: Exception) -> Deferred[None]:
        """End the client: everything that waits fails with *error*.

        :return: a Deferred that fires when the connections are closed
        """
        if not self.closed:
            self.closed = True
            self.watchers.end(error)
            self.abandon(error)
            if self._connected is not None and not self._connected.called:
                self._connected.errback(error)
        return self.stop()

    # For subclasses to override.

    def start(self) -> None:
        """Begin to connect."""
        raise NotImplementedError

    def stop(self) -> Deferred[None]:
        """Close the connections; the Deferred fires when they are closed."""
        raise NotImplementedError

    def abandon(self, error: Exception) -> None:
        """Fail what waits for the server with *error*."""


@attrs.define(eq=False)
class TCPClient(Client):
    """A client with one connection to one endpoint."""

    endpoint: IStreamClientEndpoint
    _reconnector: Reconnector | None = attrs.field(default=None, init=False)
    _paused: bool = attrs.field(default=False, init=False)

    @property
    def connection(self) -> Any:
        """Return the connection that is open, or None."""
        return None if self._reconnector is None or self.closed else self._reconnector.connection

    def pause(self) -> None:
        """Stop reading from the server until :meth:`resume`; this delays acknowledgements as well."""
        self._paused = True
        if self._reconnector is not None:
            self._reconnector.pause()

    def resume(self) -> None:
        """Read from the server again."""
        self._paused = False
        if self._reconnector is not None:
            self._reconnector.resume()

    def start(self) -> None:
        self._reconnector = Reconnector(
            self.clock,
            self.endpoint,
            self.connection_options,
            self.new_connection,
            self.retries,
            self.connection_made,
            self.connection_lost,
        )
        if self._paused:
            self._reconnector.pause()
        self._reconnector.start()

    def stop(self) -> Deferred[None]:
        return succeed(None) if self._reconnector is None else self._reconnector.stop()

    # For subclasses to override.

    def new_connection(self) -> ClientConnection:
        """Return the object of a new connection, with a new session."""
        raise NotImplementedError

    def connection_made(self, connection: Any) -> None:
        """Begin on a new connection."""
        self.established()

    def connection_lost(self, connection: Any) -> None:
        """Forget a connection that has ended."""
        self.on_state(False)
