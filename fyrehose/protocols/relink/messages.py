"""Messages by the run: consecutive ones of a channel, as columns where each has one part, as most have.

    Column      messages of one part each: u32 x n lengths, and the payloads end to end
    Messages    any: a few pieces, each a Column or messages with their parts

As records a message of one part is the payload as it is; see :mod:`~fyrehose.protocols.relink.parts` for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import attrs

from fyrehose.protocols.relink.parts import CONTENT_TYPE, join, split
from fyrehose.records import Buffer, Run

#: The parts of one message.
Parts = tuple[bytes, ...]


@attrs.frozen(slots=True)
class Column:
    """Messages of one part each."""

    lengths: Buffer  #: u32 x n, little-endian
    payload: Buffer

    def __len__(self) -> int:
        return len(self.lengths) // 4

    def __iter__(self) -> Iterator[Parts]:
        begin = 0
        for size in self.sizes:
            yield (bytes(self.payload[begin : begin + size]),)
            begin += size

    @property
    def sizes(self) -> Sequence[int]:
        """The payloads' lengths, as integers."""
        return memoryview(self.lengths).cast("I")

    def cut(self, count: int) -> tuple[Column, Column]:
        """The first ``count`` messages and the others, sharing these bytes; it takes time for the first only."""
        end = sum(self.sizes[:count])
        lengths, payload = memoryview(self.lengths), memoryview(self.payload)
        return Column(lengths[: 4 * count], payload[:end]), Column(lengths[4 * count :], payload[end:])


#: Messages, in one of the two forms.
Piece = Column | tuple[Parts, ...]


def cut(piece: Piece, count: int) -> tuple[Piece, Piece]:
    """The first ``count`` messages and the others."""
    return piece.cut(count) if isinstance(piece, Column) else (piece[:count], piece[count:])


@attrs.frozen(slots=True, eq=False)
class Messages:
    """Consecutive messages; two are equal that have the same messages, in whatever pieces."""

    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, *messages: Parts) -> Messages:
        """These, one by one."""
        return cls((messages,))

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    def __iter__(self) -> Iterator[Parts]:
        for piece in self.pieces:
            yield from piece

    def cut(self, count: int) -> tuple[Messages, Messages]:
        """Return the first *count* messages, and the others."""
        head: list[Piece] = []
        tail = list(self.pieces)
        while count:
            piece = tail.pop(0)
            if len(piece) > count:
                piece, rest = cut(piece, count)
                tail.insert(0, rest)
            head.append(piece)
            count -= len(piece)
        return Messages(tuple(head)), Messages(tuple(tail))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Messages) and tuple(self) == tuple(other)

    def runs(self, first: int, stream: str, *, source: str, producer: str, topic: str) -> list[Run]:
        """As runs of drafts, the first of them with the producer's number ``first``."""
        runs = []
        for single, columns in self._columns():
            one = columns[0]
            if len(columns) > 1:
                one = Column(b"".join(c.lengths for c in columns), b"".join(c.payload for c in columns))
            runs.append(
                Run(
                    stream=stream,
                    lengths=one.lengths,
                    payload=one.payload,
                    producer_seq=first,
                    content_type=None if single else CONTENT_TYPE,
                    source=source,
                    producer=producer,
                    topic=topic,
                )
            )
            first += len(one)
        return runs

    def _columns(self) -> list[tuple[bool, list[Column]]]:
        """Payloads, and whether each is the one part of its message; as few as there can be."""
        found: list[tuple[bool, list[Column]]] = []
        for piece in self.pieces:
            for single, column in [(True, piece)] if isinstance(piece, Column) else _columns_of(piece):
                if found and found[-1][0] == single:
                    found[-1][1].append(column)
                else:
                    found.append((single, [column]))
        return found


def _columns_of(messages: tuple[Parts, ...]) -> Iterator[tuple[bool, Column]]:
    """The same of messages that came one by one."""
    for single, group in groupby(messages, lambda parts: len(parts) == 1):
        yield single, column_of(parts[0] if single else join(parts) for parts in group)


def column_of(payloads: Iterable[bytes]) -> Column:
    """The column of single payloads."""
    run = Run.of("", payloads, source="")
    return Column(run.lengths, run.payload)


def piece_of(run: Run, most: int) -> Piece:
    """Records as messages of ``most`` parts at the most."""
    if run.content_type == CONTENT_TYPE:
        return tuple(split(payload, most) for payload in run.payloads())
    return Column(run.lengths, run.payload)
