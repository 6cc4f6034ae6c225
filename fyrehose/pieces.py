"""Cut what is sent to a peer into pieces of at most PIECE bytes, after it was encoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fyrehose.records import Buffer, Run

#: The most bytes that are written for a peer at once.  250 peers that do not read hold 32 MiB.
PIECE = 128 << 10


class Encoded(NamedTuple):
    """The first records of a delivery, as many as fit into a piece.

    :ivar data: the records, as the peer receives them; empty if the first one is larger than a piece
    :ivar last: the number of the last record that is included
    :ivar records: how many records are included
    """

    data: bytes
    last: int
    records: int


def fitting(run: Run, extra: int, room: int) -> int:
    """Return how many records of *run*, from the first, fit into *room* bytes.

    :param extra: the most bytes that the protocol adds to each record
    """
    count = len(run)
    size = len(run.payload) + count * extra
    if size <= room:
        return count
    if run.sizes[0] + extra > room:
        return 0
    # Guess the number from the average size, so that at most that many lengths are added up below.
    count = max(1, room * count // size)
    return min(count, run.fitting(room - count * extra))


def piece_of(segments: Sequence[Buffer], begin: int) -> tuple[bytes, int | None]:
    """Return the piece that begins at byte *begin* of *segments* end to end, and its end; None after the last one."""
    found: list[Buffer] = []
    start, room = begin, PIECE
    for segment in segments:
        part = memoryview(segment)[start : start + room]
        start = max(0, start - len(segment))
        room -= len(part)
        found.append(part)
    end = begin + PIECE - room
    return b"".join(found), end if end < sum(map(len, segments)) else None
