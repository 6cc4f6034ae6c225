"""HTTP client that waits for each answer, for commands that ask once, without a reactor.

BlockingClient("http://127.0.0.1:8118").ask("GET", "/api/status") -> ServerAnswer, or an OSError without an answer
"""

from __future__ import annotations

import socket
import ssl
from urllib.parse import urlsplit

import attrs

from fyrehose.errors import RemoteProtocolError
from fyrehose.records import Buffer
from fyrehose.web.client_session import LARGEST, ClientSession, CollectedAnswer, FieldLines, ServerAnswer

#: How many bytes are received at a time; larger pieces are slower, because the allocator returns them to the system.
_PIECE = 64 << 10


@attrs.define(eq=False)
class BlockingClient:
    """A client of one server, which sends its requests over one connection as long as that stays open.

    :ivar url: ``http://HOST:PORT`` or ``https://HOST:PORT``, with a path, which precedes that of each request, or none
    :ivar token: the bearer token that is sent, if any
    :ivar context: for https, the TLS context; None: the certificates that this machine trusts
    :ivar timeout: how long to wait for the server at a time, in seconds
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

    def ask(self, method: str, path: str, body: bytes | None = None, headers: FieldLines = ()) -> ServerAnswer:
        """Send a request, and return its answer.

        :raises OSError: there is no connection, or it was lost before the end of the answer
        :raises RemoteProtocolError: the server does not answer as HTTP
        """
        try:
            return self._ask(method, path, body, headers)
        except (OSError, RemoteProtocolError):
            self.close()
            raise

    def _ask(self, method: str, path: str, body: bytes | None, headers: FieldLines) -> ServerAnswer:
        connection = self._socket or self._connect()
        connection.sendall(self._session.request(method, urlsplit(self.url).path + path, body, headers))
        collected = CollectedAnswer(self.largest)
        while True:
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
            made = self._socket = (self.context or ssl.create_default_context()).wrap_socket(made, server_hostname=host)
        self._session = ClientSession(parts.netloc, self.token)
        return made
