"""Allocate the numbers of streams in memory; the journal restores them after a restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from fyrehose.errors import StreamFull
from fyrehose.records import LAST_SEQ, Run


@attrs.define
class Sequencer:
    """The allocator of the numbers of every stream: 1, 2, 3 ... 2^48 - 1, each only once."""

    _ends: dict[str, int] = attrs.field(factory=dict, init=False)
    _floor: int = attrs.field(default=0, init=False)

    def number(self, runs: Sequence[Run]) -> None:
        """Give all records of *runs* the next numbers of their streams, or use no number if an error is raised.

        :raises StreamFull: a stream has fewer numbers left, so the numbers that *runs* have now mean nothing
        """
        ends: dict[str, int] = {}
        for run in runs:
            stream, count = run.stream, len(run.lengths) // 4
            end = ends.get(stream) or self._ends.get(stream, self._floor)
            if end + count > LAST_SEQ:
                raise StreamFull(
                    f"stream {stream!r} cannot take {count} more records: only {LAST_SEQ - end} of its 2^48 numbers "
                    "are left; publish to another stream"
                )
            assert count > 0, f"{count} numbers of stream {stream!r} are asked for"
            run.first_seq, run.last_seq = end + 1, end + count
            ends[stream] = end + count
        self._ends.update(ends)

    def last(self, stream: str) -> int:
        """Return the last number of *stream* that was reserved."""
        return self._ends.get(stream, self._floor)

    def raise_floor(self, floor: int) -> None:
        """Number new streams from *floor* + 1, because a new stream may have the name of a forgotten retired stream."""
        self._floor = max(self._floor, floor)

    def restore(self, ends: Mapping[str, int], floor: int = 0) -> None:
        """Replace the last number of every stream, after recovery and when this server begins to lead its cluster.

        :param ends: the last number of each stream
        :param floor: counts as the last number of every stream that *ends* does not name
        """
        self._ends = dict(ends)
        self._floor = floor
