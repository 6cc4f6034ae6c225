"""Trains: consecutive datagrams of one size in one buffer; the last may be shorter.

One call of ``sendmsg`` with UDP_SEGMENT sends a whole train; without UDP_SEGMENT each datagram needs a call.

in: runs of records, payloads      out: trains
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from struct import pack

import attrs
from zope.interface import Attribute, Interface

from fyrehose.kernels import backbone
from fyrehose.protocols.backbone.frames import MAX_DATA, Address
from fyrehose.records import Buffer, Run

#: The kernel's limits for one call: the size of an IPv4 UDP payload in all, and the number of segments.
MOST_BYTES = 65_507
MOST_SEGMENTS = 64


class ITrainTransport(Interface):
    """A UDP transport that sends several datagrams to one address with one system call."""

    waiting = Attribute("The number of trains that wait to be sent.")

    def write_train(train: Train, destination: Address) -> None:
        """Send *train* at the next :meth:`flush` at the latest."""

    def flush() -> None:
        """Send waiting trains until the kernel accepts no more."""


@attrs.frozen(slots=True)
class Train:
    """Datagrams of ``segment`` bytes each in ``data``; the last may be shorter.

    :ivar size: of all datagrams, in bytes
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
    count = 0
    for first_seq, lengths, payload in _consecutive(runs):
        trains.extend(_cut(backbone.encode_delivers(first_seq, lengths, payload), lengths))
        count += len(lengths) // 4
    return Delivers(tuple(trains), count, sum(map(len, runs)) - count)


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


def _consecutive(runs: tuple[Run, ...]) -> Iterator[tuple[int, Buffer, Buffer]]:
    """Yield columns of consecutive records; adjacent runs are joined, so that small runs make long trains, too."""
    fitting = [part for run in runs for part in _fitting(run)]
    ahead = 0

    def key(run: Run) -> int:
        nonlocal ahead
        offset = run.first_seq - ahead
        ahead += len(run)
        return offset

    for _, group in groupby(fitting, key):
        parts = list(group)
        if len(parts) == 1:
            yield parts[0].first_seq, parts[0].lengths, parts[0].payload
        else:
            lengths = b"".join(part.lengths for part in parts)
            yield parts[0].first_seq, lengths, b"".join(part.payload for part in parts)


def _fitting(run: Run) -> Iterator[Run]:
    """Yield *run* without records that do not fit into a datagram, which are older than the limit of the stream."""
    if len(run.payload) <= MAX_DATA or max(run.sizes) <= MAX_DATA:
        yield run
        return
    start = 0
    for fits, group in groupby(run.sizes, lambda size: size <= MAX_DATA):
        stop = start + len(list(group))
        if fits:
            yield run.slice(start, stop)
        start = stop
