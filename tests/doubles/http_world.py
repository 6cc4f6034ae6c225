"""A server of HTTP without sockets, and its clients."""

from __future__ import annotations

import json
from typing import Any

import attrs
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.guard import Guard
from fyrehose.broker.policy import parse
from fyrehose.broker.sequencer import Sequencer
from fyrehose.protocols.http.server import HttpFactory, HttpSettings
from fyrehose.records import Run
from fyrehose.testing import ClientSide, MemoryJournal


@attrs.frozen
class Answer:
    """An answer, as far as it has come, with its chunks joined."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def content(self) -> Any:
        """Return the JSON of a body of known length, or a list of lines."""
        return self.json if self.body and "content-length" in self.headers else self.lines


class HttpPeer(ClientSide):
    """An HTTP client."""

    def say(self, line: str, body: object = None, *headers: str) -> None:
        """Send a request, whose *body* is bytes, or an object that is sent as JSON; None: it has none."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        length = [] if body is None else [f"Content-Length: {len(data)}"]
        self.send("\r\n".join([f"{line} HTTP/1.1", "Host: localhost", *headers, *length, "", ""]).encode() + data)

    def hear(self) -> bytes:
        """Return the bytes that have come since the last call."""
        return self.received()

    def reply(self) -> Answer:
        """Return the answer that has come since the last call."""
        head, _, rest = self.hear().partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while rest:
                size, _, rest = rest.partition(b"\r\n")
                body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
            rest = body
        return Answer(int(first.split()[1]), headers, rest)

    def request(self, line: str, body: object = None, *headers: str) -> Answer:
        """Send a request, and return its answer."""
        self.say(line, body, *headers)
        return self.reply()

    def answer(self) -> tuple[int, Any]:
        """Return the status and the content of the answer that has come since the last call."""
        reply = self.reply()
        return reply.status, reply.content

    def ask(self, line: str, body: object = None, *headers: str) -> tuple[int, Any]:
        """Send a request, and return the status and the content of its answer."""
        self.say(line, body, *headers)
        return self.answer()


class HttpWorld:
    """A server, and peers that each send a request over a connection of their own.

    :param policy: the rules of the access policy; None: this machine may do everything
    :param listener: the options of the listener
    :param of_broker: the options of the broker
    """

    def __init__(
        self,
        policy: Any = None,
        journal: MemoryJournal | None = None,
        listener: dict[str, Any] | None = None,
        **of_broker: Any,
    ) -> None:
        self.journal, self.clock = journal or MemoryJournal(), Clock()
        guard = Guard() if policy is None else Guard(parse({"allow": policy}))
        self.broker = Broker(self.clock, self.journal, Sequencer(), guard=guard, **of_broker)
        self.broker.open()
        settings = HttpSettings(**{"refusal_delay": 0.0, **(listener or {})})
        self.factory = HttpFactory(self.broker, settings, self.clock)

    def publish(self, *payloads: bytes, stream: str = "s") -> None:
        self.broker.publish([Run.of(stream, payloads, source="test")])

    def count(self, what: str) -> int:
        """Return a counter of HTTP."""
        return self.broker.counters.counts["http", what]

    def peer(self, port: int = 5000) -> HttpPeer:
        return HttpPeer.connect(self.factory, self.clock, port=port)

    def say(self, line: str, body: object = None, *headers: str) -> HttpPeer:
        """Return a peer that has sent a request."""
        peer = self.peer()
        peer.say(line, body, *headers)
        return peer

    def request(self, line: str, body: object = None, *headers: str) -> Answer:
        return self.peer().request(line, body, *headers)

    def ask(self, line: str, body: object = None, *headers: str) -> tuple[int, Any]:
        return self.peer().ask(line, body, *headers)
