"""The code that the pure kernels share: the type of the bytes that they read, and the search for a column's payloads.

Modules other than kernels import the type from :mod:`fyrehose.records`.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from struct import unpack

Buffer = bytes | bytearray | memoryview


def places(lengths: Buffer, payload: Buffer) -> list[tuple[int, int]]:
    """Return where each payload of a column begins and ends in *payload*.

    :param lengths: column of u32, little-endian
    :raises ValueError: the lengths do not add up to the payload
    """
    sizes = unpack(f"<{len(lengths) // 4}I", lengths) if len(lengths) % 4 == 0 else (-1,)
    ends = [0, *accumulate(sizes)]
    if ends[-1] != len(payload):
        raise ValueError(
            "the payloads cannot be framed or separated: expected lengths of four bytes each that add up to the payload"
        )
    return list(pairwise(ends))
