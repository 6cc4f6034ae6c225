"""Trains: consecutive datagrams of one size in one buffer; the last may be shorter.

One call of ``sendmsg`` with UDP_SEGMENT sends a whole train; without UDP_SEGMENT each datagram needs a call.

in: runs of records, payloads      out: trains
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from struct import pack

import attrs

from fyrehose.kernels import backbone
from fyrehose.protocols.backbone.frames import MAX_DATA
from fyrehose.records import Buffer, Run

#: The kernel's limits for one call: the bytes of all datagrams together (one IPv4 UDP payload), and their number.
MOST_BYTES = 65_507
MOST_SEGMENTS = 64


_LENGTHS: Callable[[Run], Buffer] = attrgetter("lengths")
_PAYLOAD: Callable[[Run], Buffer] = attrgetter("payload")


@attrs.frozen(slots=True)
class Train:
    """Datagrams of ``segment`` bytes each in ``data``; the last may be shorter.

    :ivar size: the size of all datagrams together, in bytes
    :ivar count: number of datagrams
    """

    data: Buffer
    segment: int
    size: int = attrs.field(init=False, eq=False, repr=False)
    count: int = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        size = len(self.data)
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "count", -(-size // self.segment))

    def datagrams(self) -> Iterator[Buffer]:
        """Yield the datagrams, one by one."""
        view = memoryview(self.data)
        return (view[at : at + self.segment] for at in range(0, len(view), self.segment))

    def first(self, count: int) -> Train:
        """Return a train of the first *count* datagrams."""
        return self if count >= self.count else Train(memoryview(self.data)[: count * self.segment], self.segment)


@attrs.frozen(slots=True)
class Delivers:
    """The DELIVERs of some records.

    :ivar count: number of DELIVERs
    :ivar left_out: number of records that are too large for a datagram
    """

    trains: tuple[Train, ...]
    count: int
    left_out: int


def single(datagram: bytes) -> Train:
    """Return a train of one datagram."""
    return Train(datagram, len(datagram))


def serialize_delivers(runs: tuple[Run, ...]) -> Delivers:
    """Encode *runs* as DELIVERs; an encoder for :meth:`fyrehose.records.Delivery.encoded`."""
    trains: list[Train] = []
    count = left_out = 0
    for run in runs:
        left_out += len(run.lengths) // 4
    for first_seq, lengths, payload in _consecutive(runs):
        trains.extend(_cut(backbone.encode_delivers(first_seq, lengths, payload), lengths))
        count += len(lengths) // 4
    return Delivers(tuple(trains), count, left_out - count)


def serialize_pushes(payloads: Sequence[bytes]) -> list[Train]:
    """Encode *payloads* as PUSHes, in order."""
    lengths = pack(f"<{len(payloads)}I", *map(len, payloads))
    return _cut(backbone.encode_pushes(lengths, b"".join(payloads)), lengths)


def _cut(datagrams: bytes, lengths: Buffer) -> list[Train]:
    view = memoryview(datagrams)
    trains = []
    begin = 0
    for size, segment in backbone.cut_trains(lengths, MOST_BYTES, MOST_SEGMENTS):
        trains.append(Train(view[begin : begin + size], segment))
        begin += size
    return trains


def _consecutive(runs: tuple[Run, ...]) -> list[tuple[int, Buffer, Buffer]]:
    """Return the records as columns of consecutive records; join small adjacent runs for long trains."""
    groups: list[list[Run]] = []
    following = 0
    for run in runs:
        whole = len(run.payload) <= MAX_DATA or max(run.sizes) <= MAX_DATA
        for part in (run,) if whole else _fitting(run):
            if part.first_seq != following:
                groups.append([])
            groups[-1].append(part)
            following = part.last_seq + 1
    found: list[tuple[int, Buffer, Buffer]] = []
    for parts in groups:
        lengths, payload = parts[0].lengths, parts[0].payload
        if len(parts) > 1:
            lengths, payload = b"".join(map(_LENGTHS, parts)), b"".join(map(_PAYLOAD, parts))
        found.append((parts[0].first_seq, lengths, payload))
    return found


def _fitting(run: Run) -> Iterator[Run]:
    """Yield the parts of *run* without records too large for a datagram, written before the stream's limit."""
    start = 0
    for fits, group in groupby(run.sizes, lambda size: size <= MAX_DATA):
        stop = start + len(list(group))
        if fits:
            yield run.slice(start, stop)
        start = stop
