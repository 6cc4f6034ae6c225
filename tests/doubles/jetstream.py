"""NATS servers with one stream of JetStream, in memory, which speak the protocol of NATS on ports of loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
from twisted.internet import reactor
from twisted.internet.protocol import Factory, Protocol

NO_RESPONDERS = {"Status": "503"}


class Connection(Protocol):
    """A connection of a client."""

    factory: Server

    def connectionMade(self) -> None:
        self.data, self.subscriptions = b"", dict[bytes, str]()
        self.factory.connections.append(self)
        self.transport.setTcpNoDelay(True)
        said = {"server_id": "x", "version": "2.12.0", "proto": 1, "headers": True, "auth_required": True}
        self._say("INFO " + json.dumps(said))

    def connectionLost(self, reason: object = None) -> None:
        self.factory.connections.remove(self)

    def _say(self, *parts: str | bytes) -> None:
        self.transport.write(b"\r\n".join(part.encode() if isinstance(part, str) else part for part in (*parts, b"")))

    def refuse(self) -> None:
        """Refuse the client, which then gives up for good."""
        self._say("-ERR 'Authorization Violation'")

    def dataReceived(self, data: bytes) -> None:
        self.data += data
        while b"\r\n" in self.data:
            line, _, rest = self.data.partition(b"\r\n")
            word, *words = line.split()
            size = int(words[-1]) if word in (b"PUB", b"HPUB") else 0
            if size and len(rest) < size + 2:
                return
            self.data = rest[size + 2 :] if word in (b"PUB", b"HPUB") else rest
            self._receive(word, words, rest[:size])

    def _receive(self, word: bytes, words: list[bytes], body: bytes) -> None:
        if self.factory.frozen:
            self.factory.unanswered += 1
            return
        if word == b"PING":
            self._say("PONG")
        elif word == b"SUB":
            self.subscriptions[words[-1]] = words[0].decode()
        elif word == b"UNSUB":
            self.subscriptions.pop(words[0], None)
        elif word in (b"PUB", b"HPUB"):
            head = int(words.pop(-2)) if word == b"HPUB" else 0
            lines = body[:head].decode().split("\r\n")[1:]
            headers = dict(line.split(": ", 1) for line in lines if line)
            reply = words[1].decode() if len(words) == 3 else ""
            self.factory.nats.receive(self, words[0].decode(), reply, headers, body[head:])

    def deliver(self, subject: str, body: bytes, headers: Mapping[str, str], reply: str) -> bool:
        """Send a message to the subscriptions to *subject*; return whether there is one."""
        found = [sid for sid, of in self.subscriptions.items() if _matches(of, subject)]
        status = " ".join(filter(None, ("NATS/1.0", headers.get("Status", ""))))
        lines = [status, *(f"{name}: {value}" for name, value in headers.items() if name != "Status"), "", ""]
        head = "\r\n".join(lines).encode() if headers else b""
        for sid in found:
            sizes = f"{len(head)} {len(head + body)}" if head else f"{len(body)}"
            said = ("HMSG" if head else "MSG", subject, sid.decode(), reply, sizes)
            self._say(" ".join(filter(None, said)), head + body)
        return bool(found)


def _matches(pattern: str, subject: str) -> bool:
    """Return whether *subject* is *pattern*, or has one more word in the place of a final ``*``."""
    return pattern == subject or (pattern.endswith(".*") and pattern[:-1] == subject[: subject.rfind(".") + 1])


class Server(Factory):
    """A NATS server, one of several.

    :ivar frozen: whether it answers nothing, not even to a new connection
    :ivar unanswered: how many lines it has received while it was frozen
    """

    protocol = Connection
    noisy = False

    def __init__(self, nats: Nats) -> None:
        self.nats, self.frozen, self.unanswered = nats, False, 0
        self.connections: list[Connection] = []

    def leave(self) -> None:
        """End all connections."""
        for connection in [*self.connections]:
            connection.transport.abortConnection()


@attrs.define(eq=False)
class Nats:
    """NATS servers with one stream, which any of them serves.

    :ivar urls: the address of each
    :ivar config: the settings of the stream; None: there is no stream
    :ivar entries: the entries of the stream, by number
    :ivar last: the number of its last entry, which may be purged
    :ivar cluster: what the stream's leader says of the servers; None: it stores the stream alone
    :ivar error: what each request to JetStream is refused with; None: it is not refused
    :ivar deaf: whether requests have no effect and no answer
    :ivar dumb: whether requests have their effect and no answer
    :ivar old: whether it answers a read with one entry, as before version 2.11
    :ivar requests: the subjects of the requests that have come
    """

    name: str
    servers: list[Server] = attrs.field(factory=list)
    urls: list[str] = attrs.field(factory=list)
    config: dict[str, Any] | None = None
    entries: dict[int, bytes] = attrs.field(factory=dict)
    last: int = 0
    cluster: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    deaf: bool = False
    dumb: bool = False
    old: bool = False
    requests: list[str] = attrs.field(factory=list)
    _known: dict[str, int] = attrs.field(factory=dict)  #: the numbers of the entries, by their message ids

    @property
    def first(self) -> int:
        """Return the number of the first entry, as NATS counts: behind the last one if all are purged."""
        return min(self.entries, default=self.last + 1 if self.last else 0)

    @property
    def connections(self) -> list[Connection]:
        return [connection for server in self.servers for connection in server.connections]

    @property
    def size(self) -> int:
        return sum(map(len, self.entries.values()))

    def receive(self, sender: Connection, subject: str, reply: str, headers: dict[str, str], body: bytes) -> None:
        """Carry out a request to JetStream, or deliver a message."""
        self.requests.append(subject)
        is_request = subject.startswith("$JS.API.") or subject == f"fyrehose.{self.name}.log"
        if not is_request:
            if not self.publish(subject, body, reply) and reply:
                sender.deliver(reply, b"", NO_RESPONDERS, "")
        elif subject.startswith("$JS.API.DIRECT.GET."):
            for said in [] if self.deaf or self.dumb else self._read(**json.loads(body)):
                sender.deliver(reply, *said, "")
        elif not self.deaf:
            answer = {"error": self.error} if self.error else self._answer(subject, headers, body)
            if not self.dumb and reply:
                sender.deliver(reply, json.dumps(answer).encode(), {}, "")

    def publish(self, subject: str, body: bytes, reply: str = "") -> bool:
        """Deliver a message to all subscribers; return whether there is one."""
        return sum(connection.deliver(subject, body, {}, reply) for connection in self.connections) > 0

    def _answer(self, subject: str, headers: dict[str, str], body: bytes) -> dict[str, Any]:
        if subject.startswith("$JS.API.STREAM.CREATE."):
            self.config = json.loads(body)
        if self.config is None:
            return {"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}
        if subject == f"fyrehose.{self.name}.log":
            return self._append(headers["Nats-Msg-Id"], int(headers["Nats-Expected-Last-Sequence"]), body)
        if subject.startswith("$JS.API.STREAM.PURGE."):
            self.entries = {at: entry for at, entry in self.entries.items() if at >= json.loads(body)["seq"]}
            return {"success": True, "purged": 0}
        state = {"messages": len(self.entries), "bytes": self.size, "consumer_count": 0}
        state |= {"first_seq": self.first, "last_seq": self.last}
        return {"config": self.config, "state": state, "cluster": self.cluster, "did_create": True}

    def _append(self, ident: str, expect: int, body: bytes) -> dict[str, Any]:
        if ident in self._known:
            return {"stream": self.name, "seq": self._known[ident], "duplicate": True}
        if expect != self.last:
            return {"error": {"code": 400, "err_code": 10071, "description": f"wrong last sequence: {self.last}"}}
        self.last += 1
        self.entries[self.last], self._known[ident] = body, self.last
        return {"stream": self.name, "seq": self.last}

    def _read(self, seq: int, batch: int, max_bytes: int) -> Iterator[tuple[bytes, dict[str, str]]]:
        """Return the messages that answer a read: as many entries as it asks for from *seq* on, and an end."""
        if self.error:
            yield b"", {"Status": str(self.error["code"]), "Description": self.error["description"]}
            return
        found = [at for at in sorted(self.entries) if at >= seq][:batch]
        if self.old and found:
            yield self.entries[found[0]], {"Nats-Sequence": str(found[0])}
            return
        for at in found:
            yield self.entries[at], {"Nats-Sequence": str(at), "Nats-Num-Pending": str(self.last - at)}
        yield b"", {"Status": "204" if found else "404", "Description": "EOB" if found else "Message Not Found"}


@contextmanager
def nats_servers(name: str, count: int) -> Iterator[Nats]:
    """Run *count* NATS servers for the cluster *name*."""
    made, listening = Nats(name), []
    for _ in range(count):
        made.servers.append(Server(made))
        port = reactor.listenTCP(0, made.servers[-1], interface="127.0.0.1")  # type: ignore[attr-defined]
        listening.append(port)
        made.urls.append(f"nats://127.0.0.1:{port.getHost().port}")
    try:
        yield made
    finally:
        for port, server in zip(listening, made.servers, strict=True):
            port.stopListening()
            server.leave()
