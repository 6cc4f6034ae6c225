"""Encode batches: the writing half of the journal's format (see :mod:`fyrehose.journal.format`).

in: runs or entries      out: a header, and the bytes of a batch; a :class:`StoredBatch` for readers
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import attrs
from crc32c import crc32c

from fyrehose.journal.format import BATCH_HEADER, PADDING, BatchHeader, Entry, Has, Kind
from fyrehose.kernels.pure.commit import run_pieces
from fyrehose.records import Buffer, Run

#: Payloads of at least this many bytes are written without a copy; smaller ones are cheaper to copy.
LARGE = 16 << 10
#: Approximate memory of the objects of a run, in bytes, besides its data: a large part for single small messages.
RUN_COST = 1 << 10


@attrs.define(eq=False, slots=True)
class StoredBatch:
    """A batch of records in memory, between its writer and its readers; immutable.

    :ivar position, end: where the batch begins and ends in the log
    :ivar streams: its runs, by stream
    :ivar size: the memory that it takes, in bytes
    """

    position: int
    end: int
    streams: dict[str, list[Run]]
    size: int


def batch_of(header: BatchHeader, streams: dict[str, list[Run]]) -> StoredBatch:
    """Return the batch with *header* and the runs of *streams*; only a batch of kind RECORDS has runs."""
    size = header.length + RUN_COST * (1 + sum(map(len, streams.values())))
    return StoredBatch(header.position, header.end, streams, size)


def pieces(
    kind: Kind,
    parts: Sequence[Run] | Sequence[Entry],
    *,
    position: int,
    durable: int,
    time: int,
    clock: int,
    chain: int,
    fill: int = 0,
) -> tuple[BatchHeader, list[Buffer]]:
    """Encode a batch as a header and pieces of bytes, without copying large payloads.

    :param parts: its runs, if *kind* is RECORDS, else its entries
    :param position: the position of the batch's header
    :param durable: everything below this position is on disk
    :param time: of its records, in microseconds since 1970 UTC
    :param clock: the wall clock, in microseconds since 1970 UTC
    :param chain: checksum of the previous batch
    :param fill: size of the batch with its header, if it replaces a damaged range; 0: as large as its parts
    :return: the header, and all bytes of the batch, the header included, in pieces
    """
    body: list[Buffer] = []
    records = 0
    for part in parts:
        if isinstance(part, Run):
            records += len(part.lengths) // 4
            body += run_pieces(part, names)
        else:
            body.append(part.pack())
    if fill:
        body.append(bytes(max(0, fill - BATCH_HEADER.size - sum(map(len, body)))))
    joined = _joined(body)
    length, checksum = 0, chain
    for piece in joined:
        length += len(piece)
        checksum = crc32c(piece, checksum)
    header = BatchHeader(kind, bool(fill), length, len(parts), records, chain, position, durable, time, clock, checksum)
    packed = header.pack()
    if joined and len(joined[0]) < LARGE:
        return header, [packed + joined[0], *joined[1:]]
    return header, [packed, *joined]


def batch(kind: Kind, parts: Sequence[Run] | Sequence[Entry], **numbers: int) -> tuple[BatchHeader, bytes]:
    """Encode a batch in one piece; see :func:`pieces`."""
    header, data = pieces(kind, parts, **numbers)
    return header, b"".join(data)


def grouped(many: Iterable[Run]) -> dict[str, list[Run]]:
    """Group the runs of a batch by stream, in the order in which the batch stores them."""
    streams: dict[str, list[Run]] = {}
    for run in many:
        streams.setdefault(run.stream, []).append(run)
    return streams


def _joined(pieces: Sequence[Buffer]) -> list[Buffer]:
    """Coalesce adjacent small buffers; pass large ones through unchanged."""
    found: list[Buffer] = []
    begin = 0
    for i, piece in enumerate(pieces):
        if len(piece) >= LARGE:
            found += b"".join(pieces[begin:i]), piece
            begin = i + 1
    found.append(b"".join(pieces[begin:]))
    return list(filter(None, found))


@lru_cache(maxsize=4096)
def names(
    stream: str, source: str, producer: str | None, topic: str | None, content_type: str | None
) -> tuple[int, tuple[int, ...], bytes]:
    """Encode the strings behind the header of a run, with a cache, because most runs repeat earlier strings.

    :return: the bits of the optional strings that are present, the lengths, and the padded bytes
    """
    has, sizes, behind = _others(source, producer, topic, content_type)
    first = stream.encode()
    strings = first + behind
    return has, (*sizes[:3], len(first), sizes[3]), strings + PADDING[-len(strings) % 8]


@lru_cache(maxsize=4096)
def _others(
    source: str, producer: str | None, topic: str | None, content_type: str | None
) -> tuple[int, tuple[int, ...], bytes]:
    """Encode the strings behind the name of the stream; cached separately, because many streams have the same ones.

    :return: the bits of the optional strings that are present, the lengths of these and of *source*, and the bytes
    """
    optional = {Has.PRODUCER: producer, Has.TOPIC: topic, Has.CONTENT_TYPE: content_type}
    has = sum(bit for bit, name in optional.items() if name is not None)
    names = [name.encode(errors="backslashreplace") if name else b"" for name in optional.values()]
    first = source.encode()
    return has, tuple(map(len, (*names, first))), first + b"".join(names)
