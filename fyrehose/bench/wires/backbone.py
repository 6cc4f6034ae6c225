"""The backbone (specs: fyrehose-backbone.txt): send prepared batches of PUSHes, and count DELIVERs of equal size."""

from __future__ import annotations

import struct

DELIVER, PUSH, REQUEST, KEEPALIVE = 0x1, 0x2, 0x4, 0x10
HEADER = 9
_NOSUBSCRIBE, _NOJOURNAL = 1, 2


def push(data: bytes) -> bytes:
    """Return the datagram of one PUSH."""
    return struct.pack(">BH6x", PUSH, len(data)) + data


def keepalive(port: int, subscribe: bool) -> bytes:
    """Return one KEEPALIVE of a client that answers no FORWARDs; the server reads the address from the datagram."""
    flags = _NOJOURNAL | (0 if subscribe else _NOSUBSCRIBE)
    return struct.pack(">B4xH5xB16x", KEEPALIVE, port, flags)


def request(port: int, first: int, last: int) -> bytes:
    """Return the datagram of one REQUEST for sequences ``first`` to ``last``."""
    return struct.pack(">B4xH", REQUEST, port) + first.to_bytes(6, "big") + last.to_bytes(6, "big")


def sequence(datagrams: memoryview, at: int) -> int:
    """Return the sequence of the DELIVER at ``at``; 0 if the datagram is no DELIVER."""
    if datagrams[at] != DELIVER:
        return 0
    return int.from_bytes(datagrams[at + 3 : at + 9], "big")
