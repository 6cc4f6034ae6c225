"""One connection of a client that sends one request at a time, for clients that only need the answers.

send(ClientRequest) -> bytes -> answered(request, status, detail) of its owner -> send(...) ...
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import attrs
import h11
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.net.several import follow_leader

log = Logger()

#: The part of an answer's body that is kept, in bytes.
MOST_ANSWER = 4 << 10


@attrs.frozen(kw_only=True)
class ClientRequest:
    """A request; ``sent`` is what its owner knows it by."""

    method: str
    target: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    sent: Any = None


class RequestOwner(Protocol):
    """The owner of a connection, which sends its requests."""

    @property
    def endpoint(self) -> Any: ...

    @property
    def authority(self) -> str: ...

    def connection_changed(self, connection: Connection | None) -> None:
        """Record the connection that is open now, or that there is none."""

    def answered(self, sent: Any, status: int, detail: str) -> bool:
        """Record an answer; return whether the connection can be used again."""


class Connection(TwistedProtocol):
    """One connection, with one request at a time."""

    transport: Any

    def __init__(self, owner: RequestOwner) -> None:
        self._owner = owner
        self._http = h11.Connection(h11.CLIENT)
        self._sent: ClientRequest | None = None
        self._status = 0
        self._body = bytearray()

    def connectionMade(self) -> None:
        self._owner.connection_changed(self)

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        self._owner.connection_changed(None)

    @property
    def idle(self) -> bool:
        """Return whether a request can be sent now."""
        return self._sent is None and self._http.our_state is h11.IDLE

    def send(self, request: ClientRequest) -> None:
        """Send *request*; call it only while the connection is idle."""
        self._sent, body = request, request.body
        headers = [("Host", self._owner.authority), ("Content-Length", str(len(body))), *request.headers]
        head = h11.Request(method=request.method, target=request.target, headers=headers)
        self.transport.write(b"".join(self._http.send(each) or b"" for each in (head, h11.Data(data=body))))
        self._http.send(h11.EndOfMessage())

    def dataReceived(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Response):
                    self._status = event.status_code
                    if self._status == 503:
                        follow_leader(self._owner.endpoint, dict(event.headers).get(b"location", b"").decode("latin-1"))
                elif isinstance(event, h11.Data):
                    self._body += event.data[: MOST_ANSWER - len(self._body)]
                elif isinstance(event, h11.EndOfMessage):
                    self._answered()
                elif isinstance(event, h11.ConnectionClosed):
                    break
        except h11.ProtocolError as error:
            log.warn("{name} does not answer as HTTP: {error}", name=self._owner.authority, error=str(error))
            self.transport.abortConnection()

    def _answered(self) -> None:
        sent, self._sent = self._sent, None
        detail = bytes(self._body).decode(errors="replace")
        try:
            detail = str(json.loads(detail)["error"])
        except (ValueError, KeyError, TypeError):
            pass  # It is reported as it is.
        self._body.clear()
        reusable = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if reusable:
            self._http.start_next_cycle()
        usable = sent is not None and self._owner.answered(sent.sent, self._status, detail)
        if not (usable and reusable):
            self.transport.loseConnection()
