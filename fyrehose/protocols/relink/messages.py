"""Consecutive messages of a channel, and the records that store them.

    Column             messages of one part each, the most frequent ones; their payloads as in records.py
    MessageSequence    any messages: a few pieces, each a Column or a tuple of messages with their parts

The payload of a message of one part is stored unchanged.  A message of no part or several is stored with
:data:`CONTENT_TYPE`:

    u32 count | u32 size x count | the parts, end to end

Integers are little-endian, and no bytes may follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from struct import Struct

import attrs

from fyrehose.records import MAX_PAYLOAD, Buffer, Column, Run, column_of

#: Content type of a record that holds the parts of a message.
CONTENT_TYPE = "application/vnd.fyrehose.relink-parts"

_U32 = Struct("<I")

#: A message as programs pass it: its parts, or the bytes of its only part.
MessageParts = bytes | Sequence[bytes]


def message_parts(parts: MessageParts) -> tuple[bytes, ...]:
    """Return the parts of a message, which a program passes as parts, or as the bytes of the only part."""
    return (bytes(parts),) if isinstance(parts, (bytes, bytearray, memoryview)) else tuple(map(bytes, parts))


def join(parts: tuple[bytes, ...]) -> bytes:
    """Return the payload of the record for a message that does not have exactly one part."""
    return b"".join((Struct(f"<{len(parts) + 1}I").pack(len(parts), *map(len, parts)), *parts))


def split(payload: Buffer, max_parts: int) -> tuple[bytes, ...]:
    """Return the parts that *payload* holds; a payload that is not valid, or has more than *max_parts*, is one part."""
    return tuple(map(bytes, views(payload, max_parts)))


def views(payload: Buffer, max_parts: int) -> tuple[memoryview, ...]:
    """Return the parts that *payload* holds, as :func:`split` does, without copying them."""
    whole = memoryview(payload)
    if len(whole) < _U32.size:
        return (whole,)
    count = _U32.unpack_from(whole)[0]
    begin = _U32.size * (count + 1)
    if count > max_parts or count == 1 or begin > len(whole):
        return (whole,)
    sizes = Struct(f"<{count}I").unpack_from(whole, _U32.size)
    padded = sum(size + 7 & ~7 for size in sizes) + begin
    if sum(sizes) != len(whole) - begin or padded > MAX_PAYLOAD:
        return (whole,)
    parts = []
    for size in sizes:
        parts.append(whole[begin : begin + size])
        begin += size
    return tuple(parts)


#: The parts of one message.
Parts = tuple[bytes, ...]


#: Consecutive messages in one of the two forms.
Piece = Column | tuple[Parts, ...]


def cut(piece: Piece, count: int) -> tuple[Piece, Piece]:
    """Return the first *count* messages, and the rest; columns share the bytes of *piece*."""
    if isinstance(piece, Column):
        count = min(count, len(piece))
        return piece.part(0, count), piece.part(count, len(piece))
    return piece[:count], piece[count:]


def parts_of(piece: Piece) -> Iterable[Parts]:
    """Return the messages of *piece*, each as a tuple of its parts."""
    return ((bytes(payload),) for payload in piece.payloads()) if isinstance(piece, Column) else piece


_LENGTHS, _PAYLOAD = attrgetter("lengths"), attrgetter("payload")


@attrs.frozen(slots=True, eq=False)
class MessageSequence:
    """Consecutive messages; equal if the messages are equal, however they are divided into pieces."""

    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, *messages: Parts) -> MessageSequence:
        """Return *messages* as one piece."""
        return cls((messages,))

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    def __iter__(self) -> Iterator[Parts]:
        for piece in self.pieces:
            yield from parts_of(piece)

    def cut(self, count: int) -> tuple[MessageSequence, MessageSequence]:
        """Return the first *count* messages, and the rest."""
        head: list[Piece] = []
        tail = list(self.pieces)
        while count:
            piece = tail.pop(0)
            if len(piece) > count:
                piece, rest = cut(piece, count)
                tail.insert(0, rest)
            head.append(piece)
            count -= len(piece)
        return MessageSequence(tuple(head)), MessageSequence(tuple(tail))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageSequence) and tuple(self) == tuple(other)

    def runs(self, first: int, stream: str, *, source: str, producer: str, topic: str) -> list[Run]:
        """Return the messages as runs for the journal, which gives them their stream numbers.

        :param first: the producer's number of the first message
        """
        runs = []
        for single, group in groupby(self._columns(), itemgetter(0)):
            columns = list(map(itemgetter(1), group))
            joined = columns[0]
            if len(columns) > 1:
                joined = Column(b"".join(map(_LENGTHS, columns)), b"".join(map(_PAYLOAD, columns)))
            runs.append(
                Run(
                    stream=stream,
                    lengths=joined.lengths,
                    payload=joined.payload,
                    producer_seq=first,
                    content_type=None if single else CONTENT_TYPE,
                    source=source,
                    producer=producer,
                    topic=topic,
                )
            )
            first += len(joined)
        return runs

    def _columns(self) -> list[tuple[bool, Column]]:
        """Return the payloads as columns, each with whether all its messages have one part."""
        found: list[tuple[bool, Column]] = []
        for piece in self.pieces:
            if isinstance(piece, Column):
                found.append((True, piece))
                continue
            for single, group in groupby(piece, lambda parts: len(parts) == 1):
                found.append((single, column_of(parts[0] if single else join(parts) for parts in group)))
        return found


def piece_of(run: Run, max_parts: int) -> Piece:
    """Return the messages that the records of *run* hold, of at most *max_parts* parts each."""
    if run.content_type == CONTENT_TYPE:
        return tuple(split(payload, max_parts) for payload in run.payloads())
    return Column(run.lengths, run.payload)
