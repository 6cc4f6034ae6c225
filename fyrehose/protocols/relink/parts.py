"""Convert messages of several parts to records, and back.

A message of one part is stored unchanged.  A message of no part or several is stored with :data:`CONTENT_TYPE`:

    u32 count | u32 size x count | the parts, end to end

Integers are little-endian, and no bytes may follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from fyrehose.records import MAX_PAYLOAD, Buffer

#: Content type of a record that holds the parts of a message.
CONTENT_TYPE = "application/vnd.fyrehose.relink-parts"

_U32 = Struct("<I")

#: A message as programs pass it: its parts, or the bytes of its only part.
Parts = bytes | Sequence[bytes]


def parts_of(parts: Parts) -> tuple[bytes, ...]:
    """Return the parts of a message that a program has passed."""
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
