"""Hostile peers of herds.py, all at one address.

Hostile           a TCP peer that sends nothing, announces data that it never sends, asks for very much, or
                  reconnects at once whenever it is refused
HostileDatagrams  a UDP peer that keeps subscriptions alive from many ports, or requests everything without having
                  proved its address, and then must be sent no more than three times what it sent
"""

from __future__ import annotations

from functools import partial
from typing import Any

from history import History
from links import Endpoint
from twisted.internet.protocol import Factory, Protocol
from world import World

from fyrehose.protocols.backbone.frames import Flags, KeepAlive, Request
from fyrehose.protocols.eventbus.frames import Dialect, Subtrees, SyncStart
from fyrehose.protocols.eventbus.session import DealerSession
from fyrehose.protocols.eventbus.zmtp import Null, command, encode, pack_metadata
from fyrehose.protocols.figg.frames import HEADER, Attach, Publish

ADDRESS = "10.9.9.9"
#: The bytes that hostile peers of each protocol send; the second element, if any, is repeated without end.
FIGG = (
    (b"", b""),
    (HEADER.pack(5, 1, 16 << 20), b"x"),
    (b"".join(Attach(topic=f"t{n}", offset=0).serialize() for n in range(200)), b""),
    (b"".join(Publish(topic=f"hostile {n}", number=n, data=b"x").serialize() for n in range(50)), b""),
    (HEADER.pack(5, 1, 17) + bytes(17), b""),
    (b"nonsense", b""),
)
LUMBERJACK = (
    (b"", b""),
    (b"2W\xff\xff\xff\xff2J\0\0\0\1\0\xff\xff\xff", b"x"),
    (b"2W\0\0\0\x012C\0\xff\0\0", b"x"),
    (b"9Z" + bytes(20), b""),
)
#: The second and third peer send endless messages.
SYSLOG = (
    (b"", b""),
    (b"<13>endless", b"x"),
    (b"1 open 0\n2 syslog 999999999 ", b"x"),
    (b"1 open 0\n", b"".join(b"%d hostile 0\n" % n for n in range(2, 52))),
    (b"nonsense\n", b""),
)
#: The second peer sends an endless body; the third requests more before it reads any answer.
HTTP = (
    (b"", b""),
    (b"POST /subscriptions/workers/settle HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n{", b" "),
    (b"GET /subscriptions HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /streams HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    (b"nonsense\r\n\r\n", b""),
)
_ALL = encode(SyncStart(subtrees=Subtrees.of(()), sequence=0, dialect=Dialect.BINARY).serialize())
#: The third peer requests everything, again and again.
BUS = (
    (b"", b""),
    (b"\xff" + bytes(8) + b"\x7f", b""),
    (DealerSession().out[0] + Null().begin(pack_metadata({b"Socket-Type": b"DEALER"})), _ALL),
    (DealerSession().out[0] + command(b"READY", pack_metadata({b"Socket-Type": b"PUSH"})), b""),
    (b"nonsense", b""),
)
RELINK = (
    (b"", b""),
    (bytes(8), b""),
    (bytes(8) + b"\x07nothing" + bytes(8), b""),
    (bytes(8) + b"\x09publish:h" + bytes(2) + b"\4" + bytes(2) + b"\1" * 16, b""),
)


class Hostile:
    """A hostile peer that connects again whenever it was disconnected."""

    def __init__(self, port: int, says: tuple[tuple[bytes, bytes], ...], world: World, side: Any, number: int) -> None:
        self.world = world
        self.first, self.again = says[number % len(says)]
        self.endpoint = Endpoint(world, f"hostile-{number}", port, address=ADDRESS)
        self.closed = False
        self.protocol: Any = None
        self.connect()

    def connect(self) -> None:
        if not self.closed:
            self.endpoint.connect(Factory.forProtocol(lambda: HostileProtocol(self))).addErrback(self._later)

    def _later(self, _: Any) -> None:
        self.world.clock.callLater(0.05, self.connect)

    def check(self, history: History) -> None:
        """Do nothing: hostile peers may be served in any way, as long as honest clients are served."""

    def close(self) -> None:
        self.closed = True


class HostileProtocol(Protocol):
    """One connection of a hostile peer."""

    def __init__(self, peer: Hostile) -> None:
        self.peer = peer

    def connectionMade(self) -> None:
        self.transport.write(self.peer.first)
        self._again()

    def _again(self) -> None:
        if self.peer.again and self.connected and not self.peer.closed:
            self.transport.write(self.peer.again)
            self.peer.world.clock.callLater(1.0, self._again)

    def connectionLost(self, reason: Any = None) -> None:
        self.peer.connect()


class HostileDatagrams:
    """Hostile UDP peers: half of them keep ten subscriptions each alive, the others only send REQUESTs."""

    host = None  #: it is never frozen

    def __init__(self, world: World, side: Any, number: int) -> None:
        self.world, self.lane, self.number = world, side.lane, number
        self.address = (f"10.9.9.{1 + number % 2}", 1000 + 20 * number)
        self.sent = self.got = 0
        self.closed = False
        side.lane.ports[self.address] = self
        self.turn()

    def turn(self) -> None:
        if self.closed:
            return
        host, port = self.address
        if self.number % 2:
            request = Request(address=self.address, first=0, last=(1 << 48) - 1).serialize()
            self.sent += len(request)
            self.lane.carry(request, self.address, SERVER)
        else:
            for n in range(10):
                datagram = KeepAlive(address=(host, port + n), flags=Flags.NONE, token=self.token(n)).serialize()
                self.lane.carry(datagram, (host, port + n), SERVER)
        self.world.clock.callLater(2.0, self.turn)

    def token(self, number: int) -> bytes:
        return f"{self.number}:{number}".encode().ljust(16, b".")

    def arrived(self, datagram: bytes, source: Any) -> None:
        self.got += len(datagram)

    def check(self, history: History) -> None:
        if self.number % 2 and self.got > 3 * self.sent:
            history.wrong(f"{self.got} bytes were sent to a stranger who had sent {self.sent}")

    def close(self) -> None:
        self.closed = True


SERVER = ("10.0.0.1", 2323)
#: By the class of a side, what makes a hostile peer of it.
PEERS: dict[str, Any] = {
    "Backbone": HostileDatagrams,
    "Beats": partial(Hostile, 5044, LUMBERJACK),
    "EventBus": partial(Hostile, 5556, BUS),
    "Figg": partial(Hostile, 8119, FIGG),
    "Lumberjack": partial(Hostile, 5044, LUMBERJACK),
    "Relink": partial(Hostile, 7733, RELINK),
    "Syslog": partial(Hostile, 2514, SYSLOG),
    "Workers": partial(Hostile, 8117, HTTP),
}
