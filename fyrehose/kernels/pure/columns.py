"""The kernel of runs: how many records there are in so many bytes.

What cuts a run asks this, so it must cost nothing a record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fyrehose.records import Buffer


def span(lengths: Buffer, start: int, stop: int, most: int) -> tuple[int, int]:
    """The records from ``start`` on, up to ``stop``, whose payloads fit into ``most`` bytes together.

    :param lengths: a column of u32, little-endian
    :return: the first record that is not among them, and what the payloads of those that are take, in bytes
    :raises IndexError: there are no such records
    """
    sizes = memoryview(lengths).cast("B").cast("I")
    if not 0 <= start <= stop <= len(sizes):
        raise IndexError(f"records {start} to {stop} of {len(sizes)}")
    total = 0
    for at, size in enumerate(sizes[start:stop], start):
        if total + size > most:
            return at, total
        total += size
    return stop, total
