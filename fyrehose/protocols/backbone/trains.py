"""Trains: datagrams end to end, all of one size but for the last, which may be shorter.

One train is one call of ``sendmsg`` with UDP_SEGMENT, or as many calls without.

in: runs of records, payloads      out: trains
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from struct import pack

import attrs

from fyrehose.kernels import backbone
from fyrehose.protocols.backbone.frames import MAX_DATA
from fyrehose.records import Buffer, Run

#: What one call takes, by the kernel's rules: an IPv4 UDP payload in all, and as many segments.
MOST_BYTES = 65_507
MOST_SEGMENTS = 64


@attrs.frozen(slots=True)
class Train:
    """``data`` is datagrams of ``segment`` bytes each; the last may be shorter."""

    data: Buffer
    segment: int

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def count(self) -> int:
        """How many datagrams."""
        return -(-len(self.data) // self.segment)

    def first(self, count: int) -> Train:
        """Its first ``count`` datagrams."""
        return self if count >= self.count else Train(memoryview(self.data)[: count * self.segment], self.segment)


@attrs.frozen(slots=True)
class Encoded:
    """A delivery, ready for the wire.

    :ivar count: how many DELIVERs
    :ivar left_out: how many records are too large for a datagram
    """

    trains: tuple[Train, ...]
    count: int
    left_out: int


def single(datagram: bytes) -> Train:
    """One datagram."""
    return Train(datagram, len(datagram))


def encode_delivers(runs: tuple[Run, ...]) -> Encoded:
    """The DELIVERs of ``runs``: to be handed to :meth:`fyrehose.records.Delivery.encoded`."""
    trains: list[Train] = []
    count = 0
    for first_seq, lengths, payload in _stretches(runs):
        trains.extend(_cut(backbone.encode_delivers(first_seq, lengths, payload), lengths))
        count += len(lengths) // 4
    return Encoded(tuple(trains), count, sum(map(len, runs)) - count)


def encode_pushes(payloads: Sequence[bytes]) -> list[Train]:
    """The PUSHes of ``payloads``, in order."""
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


def _stretches(runs: tuple[Run, ...]) -> Iterator[tuple[int, Buffer, Buffer]]:
    """Columns of consecutive records: runs that follow on are joined, so that small runs still make long trains."""
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
    """``run`` without what no datagram can hold: records that were there before their stream was restricted."""
    if len(run.payload) <= MAX_DATA or max(run.sizes) <= MAX_DATA:
        yield run
        return
    start = 0
    for fits, group in groupby(run.sizes, lambda size: size <= MAX_DATA):
        stop = start + len(list(group))
        if fits:
            yield run.slice(start, stop)
        start = stop
