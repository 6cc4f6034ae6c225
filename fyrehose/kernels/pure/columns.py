"""The kernel that finds how many records of a run fit into a number of bytes; every split of a run calls it."""

from __future__ import annotations

from fyrehose.kernels.buffers import Buffer


def span(lengths: Buffer, start: int, stop: int, most: int) -> tuple[int, int]:
    """Find how many of the records *start* to *stop* fit into *most* bytes.

    :param lengths: column of u32, little-endian
    :return: index of the first record that does not fit, or *stop*; and the size of the payloads before it, in bytes
    :raises IndexError: the column holds no such records
    """
    sizes = memoryview(lengths).cast("B").cast("I")
    if not 0 <= start <= stop <= len(sizes):
        raise IndexError(f"records {start} to {stop} do not exist in a column of {len(sizes)}")
    total = 0
    for at, size in enumerate(sizes[start:stop], start):
        if total + size > most:
            return at, total
        total += size
    return stop, total
