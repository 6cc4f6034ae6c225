"""The sequencer allocates the numbers of streams.  It lives in memory; the journal restores it after a restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
from zope.interface import implementer

from fyrehose.errors import StreamFull
from fyrehose.interfaces import ISequencer
from fyrehose.records import LAST_SEQ


@implementer(ISequencer)
@attrs.define
class Sequencer:
    """The allocator of numbers, which keeps the last number of each stream in a dictionary."""

    _ends: dict[str, int] = attrs.field(factory=dict, init=False)
    _floor: int = attrs.field(default=0, init=False)

    def reserve(self, wanted: Sequence[tuple[str, int]]) -> tuple[int, ...]:
        """Reserve the next numbers of each (stream, count) in *wanted*, or none if a stream has too few left."""
        ends: dict[str, int] = {}
        firsts = []
        for stream, count in wanted:
            end = ends.get(stream) or self._ends.get(stream, self._floor)
            if end + count > LAST_SEQ:
                raise StreamFull(
                    f"stream {stream!r} cannot take {count} more records: only {LAST_SEQ - end} of its 2^48 numbers "
                    "are left; publish to another stream"
                )
            assert count > 0, f"{count} numbers of stream {stream!r} are asked for"
            firsts.append(end + 1)
            ends[stream] = end + count
        self._ends.update(ends)
        return tuple(firsts)

    def last(self, stream: str) -> int:
        return self._ends.get(stream, self._floor)

    def raise_floor(self, floor: int) -> None:
        self._floor = max(self._floor, floor)

    def restore(self, ends: Mapping[str, int], floor: int = 0) -> None:
        self._ends = dict(ends)
        self._floor = floor
