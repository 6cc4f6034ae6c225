"""A server of HTTP whose answers are written down beforehand, as bytes: those of Fyrehose, of a proxy, or cut off."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterable, Iterator
from threading import Thread
from typing import Any

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

#: What nginx sends while the server behind it is down.
BAD_GATEWAY = b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n</html>\r\n"


def answer(status: int, body: bytes = b"", kind: str = "application/json", **headers: str) -> bytes:
    """Return the bytes of an answer; underscores in names of *headers* become dashes."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", f"Content-Type: {kind}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def own(found: object, status: int = 200) -> bytes:
    """Return an answer of Fyrehose with the JSON object *found*."""
    return answer(status, json.dumps(found).encode())


def proxy(status: int = 502, **headers: str) -> bytes:
    """Return an answer as nginx sends it by itself."""
    return answer(status, BAD_GATEWAY, "text/html", **headers)


class EndingTransport(StringTransport):
    """A transport in memory, whose connection a client can abort, and a test can lose.

    :ivar protocol: the protocol of the connection; None: it has ended
    """

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self.protocol = protocol

    def abortConnection(self) -> None:
        self.lose()

    def lose(self) -> None:
        """End the connection, unless it has ended."""
        protocol, self.protocol = self.protocol, None
        if protocol is not None:
            protocol.connectionLost(Failure(ConnectionLost()))


class EndingEndpoint:
    """An endpoint that connects in memory, where a test is the server of each connection, and can lose it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.connections: list[tuple[Any, EndingTransport]] = []

    def connect(self, factory: Any) -> Deferred[Any]:
        protocol = factory.buildProtocol(None)
        transport = EndingTransport(protocol)
        self.connections.append((protocol, transport))
        protocol.makeConnection(transport)
        return succeed(protocol)

    def say(self, data: bytes) -> None:
        """Let the server, or a proxy, send *data* on the latest connection."""
        self.connections[-1][0].dataReceived(data)

    def answer(self, status: int, body: bytes = b"{}") -> None:
        self.say(answer(status, body))

    def lose(self) -> None:
        self.connections[-1][1].lose()
        self.clock.pump([1] * 10)


@attrs.define(eq=False)
class Answering:
    """Answers each request with the next of *answers*; b"" closes the connection without an answer.

    Use it with ``with``.

    :ivar stays: whether a connection stays open for another request after an answer
    :ivar connections: number of connections that were made
    :ivar context: the TLS context; None: without TLS
    :ivar requests: the requests that have come: method, target, headers by lower-case name, and body
    """

    answers: Iterable[bytes]
    context: ssl.SSLContext | None = None
    stays: bool = False
    connections: int = attrs.field(default=0, init=False)
    requests: list[tuple[str, str, dict[str, str], bytes]] = attrs.field(factory=list, init=False)
    port: int = attrs.field(init=False)
    _listening: socket.socket = attrs.field(init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Answering:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self) -> None:
        answers = iter(self.answers)
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # the test has ended
                return
            self.connections += 1
            try:
                with connection if self.context is None else self.context.wrap_socket(connection, True) as open_one:
                    while self._answer(open_one, answers) and self.stays:
                        pass
            except OSError:
                connection.close()  # The client does not trust the certificate.

    def _answer(self, connection: socket.socket, answers: Iterator[bytes]) -> bool:
        """Answer one request; return False if the client, or the answer, ends the connection."""
        with connection.makefile("rb") as sent:
            first = sent.readline()
            if not first.endswith(b" HTTP/1.1\r\n"):
                connection.sendall(answer(400) if first else b"")
                return False
            method, target, _ = first.decode().split(" ")
            headers: dict[str, str] = {}
            while line := sent.readline().strip():
                name, _, value = line.decode("latin-1").partition(": ")
                headers[name.lower()] = value
            self.requests.append((method, target, headers, sent.read(int(headers.get("content-length", 0)))))
        said = next(answers)
        connection.sendall(said)
        return bool(said)
