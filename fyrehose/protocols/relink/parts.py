"""Messages of several parts as records, and back.

One part is the payload as it is.  No part, or several, are a payload of content type :data:`CONTENT_TYPE`:

    u32 count | u32 size x count | the parts, end to end

with little-endian integers and nothing behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from fyrehose.records import MAX_PAYLOAD, Buffer

#: What says that a payload holds parts.
CONTENT_TYPE = "application/vnd.fyrehose.relink-parts"

_U32 = Struct("<I")

#: A message as programs give it.
Parts = bytes | Sequence[bytes]


def parts_of(parts: Parts) -> tuple[bytes, ...]:
    """A message of one part may be given as its bytes."""
    return (bytes(parts),) if isinstance(parts, (bytes, bytearray, memoryview)) else tuple(map(bytes, parts))


def join(parts: tuple[bytes, ...]) -> bytes:
    """The payload of a message whose parts are not exactly one."""
    return b"".join((Struct(f"<{len(parts) + 1}I").pack(len(parts), *map(len, parts)), *parts))


def split(payload: Buffer, most: int) -> tuple[bytes, ...]:
    """The parts that ``payload`` holds; whatever does not hold parts, or more than ``most``, is one part as it is."""
    whole = bytes(payload)
    if len(whole) < _U32.size:
        return (whole,)
    count = _U32.unpack_from(whole)[0]
    begin = _U32.size * (count + 1)
    if count > most or count == 1 or begin > len(whole):
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
