"""A client that sends random bytes to every listener of a running server; soak.py has honest clients beside it.

An attack is one connection or one datagram: valid client data, cut, joined and overwritten, sent in pieces, on a
connection that is read or not, and closed or reset.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import struct
import sys
import time
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import wire

#: How many connections the attacker leaves open.
LEFT_OPEN = 150
#: How often the attacker sends a complete message of the largest size, or of one byte less or more.
WHOLE = 0.02

#: What clients of Relink and the event bus send before anything else.
HELLO = bytes(8) + wire.relink_hello(b"publish:x")
DEALER, SUB = (wire.ZMTP_GREETING + wire.zmtp_ready(kind) for kind in (b"DEALER", b"SUB"))


def _edges(*limits: int) -> list[int]:
    """Return one less, the limit, and one more for each of *limits*."""
    return [limit + delta for limit in limits for delta in (-1, 0, 1)]


def _at_the_limits() -> dict[str, list[bytes]]:
    """Return the beginnings of messages that announce sizes at and around the default limits, by listener."""
    figg = [wire.HEADER.pack(wire.PUBLISH, 1, 4 + 1 + 8 + 4 + n) + wire.publish(b"f", 1, b"x")[8:] for n in EDGES]
    lumberjack = [
        b"2W\0\0\0\1" + kind + struct.pack(">I", n) + b"x" * 9 for n in EDGES for kind in (b"2J\0\0\0\1", b"2C")
    ]
    lumberjack += [b"2W\0\0\0\x012D\0\0\0\1" + struct.pack(">I", n) + bytes(8 * n) for n in _edges(4096)]
    lumberjack += [b"2W\0\0\0\x012D\0\0\0\1\0\0\0\1" + struct.pack(">I", n) + bytes(n + 4) for n in _edges(64 << 10)]
    relink = [HELLO + struct.pack("<BBH4xQ", 0x51, 1, 0, n) + b"x" * 9 for n in EDGES]
    relink += [HELLO + struct.pack("<BBxxI", 0x13, 1, n) + bytes(90) for n in _edges(1024)]
    relink += [HELLO + struct.pack("<BBHI", 0x31, 0, 0, n) + bytes(90) for n in _edges(1024)]
    eventbus = [DEALER + b"\2" + struct.pack(">Q", n) + b"x" * 9 for n in EDGES]
    backbone = [struct.pack(">BH6x", wire.PUSH, n) + bytes(n) for n in (65_497, 65_498)]
    return {"figg": figg, "lumberjack": lumberjack, "relink": relink, "eventbus": eventbus, "backbone": backbone}


_PACKED = zlib.compress(wire.json_event(1, b"{}") * 50 + b"2C" + struct.pack(">I", 9) + b"x" * 9)
#: What valid clients send to each listener.
SEEDS = {
    "figg": [
        wire.attach(b"a", 0) + wire.attach(b"b", None),
        wire.publish(b"fuzz", 1, b"data") + wire.publish(b"fuzz", 2, b"x" * 300),
        wire.HEADER.pack(8, 1, 8) + bytes(8),
        wire.HEADER.pack(wire.PUBLISH, 1, 0xFFFFFFFF) + b"\xff" * 40,
    ],
    "lumberjack": [
        b"2W\0\0\0\2" + wire.json_event(1, b'{"a":1}') + wire.json_event(2, b""),
        b"2W\xff\xff\xff\xff2C" + struct.pack(">I", len(_PACKED)) + _PACKED,
        b"1W\0\0\0\x011D\0\0\0\1\0\0\0\1\0\0\0\1k\0\0\0\1v",
        b"1D\0\0\0\1\xff\xff\xff\xff",
    ],
    "relink": [
        HELLO + bytes((1 << 5, *bytes(7))) + struct.pack("<BBH4x", 0b0_100_01, 1, 5) + b"hello\0\0\0",
        HELLO[:8],
        HELLO + b"\x13\xff" + b"\xff" * 30,
    ],
    "eventbus": [
        DEALER + b"\1\3/a/\1\4null\1\2me\1\1t\1\1u\0\1d",
        DEALER + b"\1\x09SYNCSTART\1\0\0\0",
        SUB + b"\0\1\1",
        DEALER[:20],
    ],
    "backbone": [
        wire.push(b"fuzz"),
        wire.keepalive(9, b"t" * 16),
        struct.pack(">B4sHHIHI", 4, bytes(4), 9, 0, 1, 0xFFFF, 0xFFFFFFFF),
        b"\x01\0\1" + bytes(6) + b"x",
    ],
}


#: The sizes around 16 MiB: the limit of a payload, and of a lumberjack frame.
EDGES = _edges(16 << 20)
for _listener, _specimens in _at_the_limits().items():
    SEEDS[_listener] += _specimens


def whole(dice: random.Random) -> tuple[str, bytes]:
    """Return a message of the default limit, one byte less or one more, and the listener to send it to."""
    size, listener = dice.choice(EDGES), dice.choice(("figg", "lumberjack", "relink", "eventbus"))
    data = bytes(size)
    said = {
        "figg": lambda: wire.publish(b"fuzz", 1, data),
        "lumberjack": lambda: b"2W\0\0\0\1" + wire.json_event(1, data),
        "relink": lambda: HELLO + struct.pack("<BBH4xQ", 0x51, 1, 0, size) + data + bytes(-size % 8),
        "eventbus": lambda: DEALER + b"\1\3/a/\1\4null\1\2me\1\1t\1\1u\2" + struct.pack(">Q", size) + data,
    }
    return listener, said[listener]()


def mutated(dice: random.Random, listener: str) -> bytes:
    """Return one or several messages of a client of *listener*, with random changes."""
    data = bytearray(b"".join(dice.choices(SEEDS[listener], k=dice.choice((1, 1, 2, 5)))))
    for _ in range(dice.choice((0, 1, 1, 2, 6))):
        at = dice.randint(0, len(data))
        how = dice.randrange(4)
        if how == 0:
            data[at:at] = dice.randbytes(dice.choice((1, 2, 8, 700)))
        elif how == 1:
            del data[at : at + dice.choice((1, 2, 8, 60))]
        elif how == 2 and at < len(data):
            data[at] = dice.randrange(256)
        else:
            data[at : at + 4] = dice.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\0\0\0\1"))
    return bytes(data)


class Attacker:
    """A client that sends invalid and oversized data to random listeners."""

    def __init__(self, ports: dict[str, int], seed: int) -> None:
        self.ports, self.dice = ports, random.Random(seed)
        self.datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.open: list[socket.socket] = []
        self.counts: dict[str, int] = dict.fromkeys(SEEDS, 0)

    def attack(self) -> None:
        if self.dice.random() < WHOLE:
            listener, data = whole(self.dice)
        else:
            listener = self.dice.choice(list(SEEDS))
            data = mutated(self.dice, listener)
        self.counts[listener] += 1
        if listener == "backbone":
            with contextlib.suppress(OSError):
                self.datagrams.sendto(data[:65_000], ("127.0.0.1", self.ports[listener]))
            return
        offset = self.dice.choice((0, 1, 2)) if listener == "eventbus" else 0
        with contextlib.suppress(OSError):
            self._connect(self.ports[listener] + offset, data)

    def _connect(self, port: int, data: bytes) -> None:
        dice = self.dice
        peer = socket.create_connection(("127.0.0.1", port), timeout=5)
        try:
            cut = dice.randint(0, len(data)) if dice.random() < 0.3 else len(data)
            peer.sendall(data[:cut])
            if cut < len(data):
                time.sleep(0.001)
                peer.sendall(data[cut:])
            if dice.random() < 0.3 and select.select([peer], [], [], 0.02)[0]:
                peer.recv(1 << 16)
            if dice.random() < 0.3:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if dice.random() < 0.2:
                self.open.append(peer)
        finally:
            if not self.open or self.open[-1] is not peer:
                peer.close()
        if len(self.open) > LEFT_OPEN:
            self.open.pop(dice.randrange(LEFT_OPEN)).close()
