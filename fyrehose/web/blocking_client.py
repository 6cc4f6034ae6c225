"""HTTP client that waits for each answer, for commands that ask once, without a reactor.

BlockingClient("http://127.0.0.1:8118").ask("GET", "/api/status") -> ServerAnswer, or an OSError without an answer
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from urllib.parse import urlsplit

import attrs

from fyrehose.client_tls import client_context
from fyrehose.errors import RemoteProtocolError
from fyrehose.records import Buffer
from fyrehose.web.client_session import LARGEST, ClientSession, CollectedAnswer, FieldLines, ServerAnswer

#: How many bytes are received at a time; larger pieces are slower, because the allocator returns them to the system.
_PIECE = 64 << 10
#: A slower answer than so many bytes a second may miss the deadline of its request.
SLOWEST = 16 << 10


def is_address(url: str) -> bool:
    """Return whether *url* is ``http://HOST:PORT`` or ``https://HOST:PORT``, perhaps with a path, and nothing else."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return usable and parts.username is None and url.isascii() and not re.search(r"[\s\0-\x20\x7f?#]", url)


@attrs.define(eq=False)
class BlockingClient:
    """A client of one server, which sends its requests over one connection as long as that stays open.

    Each request has one deadline, so that no server holds a client by an answer in drops, and large answers over slow
    lines succeed: *timeout*, and another second for each SLOWEST bytes of the answer.

    :ivar url: ``http://HOST:PORT`` or ``https://HOST:PORT``, with a path, which precedes that of each request, or none
    :ivar token: the bearer token that is sent, if any
    :ivar context: for https, the TLS context; None: the certificates that this machine trusts
    :ivar timeout: the time for connecting, for sending a request, and for an answer without a body, in seconds
    :ivar largest: limit of the body of an answer, in bytes
    """

    url: str
    token: str | None = attrs.field(default=None, repr=False)
    context: ssl.SSLContext | None = None
    timeout: float = 10.0
    largest: int = LARGEST
    _socket: socket.socket | None = attrs.field(default=None, init=False)
    _session: ClientSession = attrs.field(init=False)

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next request makes another one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @property
    def connected(self) -> bool:
        """Return whether the next request goes over a connection that an earlier one has left open."""
        return self._socket is not None

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: FieldLines = (),
        largest: int | None = None,
    ) -> ServerAnswer:
        """Send a request, and return its answer.

        :param largest: limit of the body of this answer, in bytes; None: that of all answers
        :raises TimeoutError: the answer was not complete before the deadline
        :raises OSError: there is no connection, or it was lost before the end of the answer
        :raises RemoteProtocolError: the server does not answer as HTTP, or the answer's body exceeds the limit
        """
        try:
            return self._ask(method, path, body, headers, self.largest if largest is None else largest)
        except (OSError, RemoteProtocolError):
            self.close()
            raise

    def _ask(self, method: str, path: str, body: bytes | None, headers: FieldLines, largest: int) -> ServerAnswer:
        until = time.monotonic() + self.timeout
        connection = self._socket or self._connect()
        connection.settimeout(self.timeout)
        connection.sendall(self._session.request(method, urlsplit(self.url).path + path, body, headers))
        collected = CollectedAnswer(largest)
        while True:
            left = until + collected.size / SLOWEST - time.monotonic()
            if left <= 0:
                raise TimeoutError("the answer did not end in time")
            connection.settimeout(left)
            data = connection.recv(_PIECE)
            for event in self._received(data):
                answer = collected.add(event)
                if answer is not None:
                    if not self._session.next_request():
                        self.close()
                    return answer

    def _received(self, data: bytes) -> list[ServerAnswer | Buffer]:
        """Return the events of *data*; an answer that ends early is a lost connection, not a violation of HTTP."""
        try:
            return list(self._session.events(data))
        except RemoteProtocolError as error:
            if data:
                raise
            raise ConnectionError("the server closed the connection before the end of its answer") from error

    def _connect(self) -> socket.socket:
        parts = urlsplit(self.url)
        secure, host = parts.scheme == "https", parts.hostname or ""
        made = socket.create_connection((host, parts.port or (443 if secure else 80)), self.timeout)
        self._socket = made  # so that close() finds it if the handshake fails
        if secure:
            made = self._socket = (self.context or client_context()).wrap_socket(made, server_hostname=host)
        self._session = ClientSession(parts.netloc, self.token)
        return made
