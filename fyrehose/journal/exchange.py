"""The bytes that the servers of a cluster exchange: whole batches and their position, as they are in the journal.

A writer adds the batches that it has written to a :class:`Handover`, before they are synced, and another thread takes
them.  A follower checks that received batches continue its own log (:func:`start_of`, :func:`parsed`) before it writes
a byte.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress

import attrs

from fyrehose.journal import format as fmt
from fyrehose.records import Buffer, Run

#: Consecutive batches are handed over as one item of at most this many bytes.
TOGETHER = 512 << 10


@attrs.frozen(slots=True)
class Batches:
    """Whole batches, one or several, or the header of a segment with its first batch.

    :ivar chain: the checksum from which the log continues behind these batches
    """

    data: Buffer
    chain: int


@attrs.define(eq=False)
class Handover:
    """Collects the batches that this server has written, for the other servers of its cluster.

    :ivar wrote: called in the thread that writes when there is something to :meth:`take`
    """

    wrote: Callable[[], object] = attrs.field(default=lambda: None)
    _written: deque[tuple[int, list[Batches]]] = attrs.field(factory=deque, init=False)

    def add(self, position: int, data: bytes) -> None:
        """Add whole batches that were written at *position*, or the header of a segment with its first batch."""
        start = fmt.SEGMENT_HEADER.size if data.startswith(fmt.SEGMENT_MAGIC) else 0
        found = _separated(memoryview(data)[start:], position + start)
        if start or len(data) <= TOGETHER:
            found = [Batches(data, found[-1].chain)]
        self._written.append((position, found))
        self.wrote()

    def take(self) -> list[tuple[int, list[Batches]]]:
        """Return the batches that were written since the last call, as positions and the bytes there.

        Small batches are joined in one item, and so are the header of a segment and the segment's first batch.  Any
        thread may call this method.
        """
        found = []
        with suppress(IndexError):
            while True:
                found.append(self._written.popleft())
        return found


def _separated(view: memoryview, position: int) -> list[Batches]:
    """Return the batches in *view*, which begins at *position*, one by one."""
    found = []
    while view:
        header = fmt.BatchHeader.unpack(view, position)
        size = header.end - position
        found.append(Batches(view[:size], header.checksum))
        view, position = view[size:], header.end
    return found


def start_of(position: int, data: bytes, identity: bytes, chain: int, begun: bool) -> tuple[int, int]:
    """Check the header and the first batch of a segment, if *data* begins with a segment.

    :param identity: the identity of this journal; UNKNOWN if the journal is empty
    :param chain: the checksum from which the next batch of this log continues
    :param begun: whether this log has the segment already
    :return: the size of the header and the first batch together, or 0 if *data* does not begin a segment; and the
        checksum from which the next batch continues
    :raises Damage: the header or the batch is damaged, or does not continue this log
    """
    if not data.startswith(fmt.SEGMENT_MAGIC):
        return 0, chain
    head = fmt.SegmentHeader.unpack(data[: fmt.SEGMENT_HEADER.size])
    at = fmt.SEGMENT_HEADER.size
    first = fmt.BatchHeader.unpack(data[at:], position + at)
    end = first.end - position
    first.check(memoryview(data)[at + fmt.BATCH_HEADER.size : end])
    empty = identity == fmt.UNKNOWN
    if not empty and head.identity != identity:
        raise fmt.Damage(f"the segment is of another journal ({head.identity.hex()}) than this one ({identity.hex()})")
    if not begun and (head.base != position or (not empty and head.chain != chain)):
        raise fmt.Damage(f"the segment does not continue this log at position {position}: it begins at {head.base}")
    return end, first.checksum


def parsed(position: int, view: memoryview, chain: int) -> list[tuple[fmt.BatchHeader, list[Run], list[fmt.Entry]]]:
    """Decode and check batches that continue from the checksum *chain*.

    :return: for each batch, its header, its runs and its entries
    :raises Damage: a batch is damaged, or does not continue from the previous one
    """
    found = []
    while view:
        header = fmt.BatchHeader.unpack(view, position)
        body = view[fmt.BATCH_HEADER.size : header.end - position]
        header.check(body)
        if header.chain != chain:
            raise fmt.Damage(f"the batch at position {position} does not continue this log")
        records = header.kind is fmt.Kind.RECORDS
        runs = fmt.runs(body, header.time) if records else []
        found.append((header, runs, [] if records else fmt.entries(body, header.parts)))
        view = view[header.end - position :]
        position, chain = header.end, header.checksum
    return found
