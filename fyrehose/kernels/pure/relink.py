"""The Relink kernels: convert messages of one part to columns and back.

The shortest encoding of a message of one part on one channel::

    0x11 | 1 | channel id | pad to 2 | size u16 | pad to 8 | payload | pad to 8

and of a message whose size does not fit into 16 bits::

    0x51 | 1 | channel id | pad to 8 | size u64 | payload | pad to 8

Integers are little-endian, and alignment counts from the packet's first byte.  Receivers ignore the padding and the
highest bit of the first byte.
"""

from __future__ import annotations

from struct import Struct

from fyrehose.kernels.buffers import Buffer, places

#: First byte of a message on one channel, with a small and with a large size vector.
_SMALL, _LARGE = 0x11, 0x51
#: The bits of a message's first byte that are significant.
_SIGNIFICANT = 0x7F
#: Limit of a payload whose size is in a small size vector, in bytes.
_MAX_SMALL = (1 << 16) - 1

_U16 = Struct("<H")
_U64 = Struct("<Q")
#: Largest number of channels that one call of gather() returns.
CHANNELS = 256


def gather(
    buffer: bytes | bytearray,
    start: int,
    id_size: int,
    largest: int,
    most: int,
    most_each: int,
    most_channels: int = CHANNELS,
) -> tuple[int, list[tuple[int, bytes, bytes]]]:
    """Scan consecutive complete messages of one part with a 16-bit size, and group them by channel.

    The scan ends before another kind of packet, an incomplete message, a payload of more than *largest* bytes including
    its padding, more than *most* bytes of payload (but it holds at least one message), more than *most_each* messages
    of one channel, and more than *most_channels* channels (at most ``CHANNELS``).

    :param id_size: size of a channel id: 0, 1, 2, 4 or 8 bytes
    :return: end, and for each channel in the order of its first message: id, lengths as a column (u32, little-endian),
        payloads end to end
    """
    place, head = _offsets(id_size)
    most_channels = min(most_channels, CHANNELS)
    channels: dict[int, list[Buffer]] = {}
    total = 0
    while len(buffer) - start >= head and buffer[start] & _SIGNIFICANT == _SMALL and buffer[start + 1] == 1:
        size = _U16.unpack_from(buffer, start + place)[0]
        padded = size + 7 & ~7
        begin = start + head
        if padded > largest or begin + padded > len(buffer) or (channels and total + size > most):
            break
        channel = int.from_bytes(buffer[start + 2 : start + 2 + id_size], "little")
        if len(channels.get(channel, ())) >= most_each or (channel not in channels and len(channels) >= most_channels):
            break
        channels.setdefault(channel, []).append(buffer[begin : begin + size])
        total += size
        start = begin + padded
    return start, [
        (channel, Struct(f"<{len(data)}I").pack(*map(len, data)), b"".join(data)) for channel, data in channels.items()
    ]


def frames(id_size: int, channel: int, lengths: Buffer, payload: Buffer) -> bytes:
    """Encode payloads as messages of one part each on *channel*, end to end.

    :raises ValueError: the lengths do not add up to the payload, or the channel does not fit into its id
    """
    place, head = _offsets(id_size)
    found = places(lengths, payload)
    if not 0 <= channel < 1 << 8 * id_size:
        raise ValueError(f"the payloads cannot be framed: expected a channel that fits into {id_size} bytes")
    name = channel.to_bytes(id_size, "little")
    small, large = bytes([_SMALL, 1]) + name, bytes([_LARGE, 1]) + name
    small += bytes(place - len(small))
    large += bytes(head - len(large))
    view = memoryview(payload)
    parts: list[Buffer] = []
    for begin, end in found:
        size = end - begin
        if size <= _MAX_SMALL:
            parts += (small, _U16.pack(size), bytes(head - place - _U16.size))
        else:
            parts += (large, _U64.pack(size))
        parts += (view[begin:end], bytes(-size & 7))
    return b"".join(parts)


def _offsets(id_size: int) -> tuple[int, int]:
    """Return the positions of a small size and of the payload after it, from the first byte of a message."""
    if id_size not in (0, 1, 2, 4, 8):
        raise ValueError(f"channel ids have 0, 1, 2, 4 or 8 bytes, not {id_size}")
    place = 2 + id_size + 1 & ~1
    return place, place + _U16.size + 7 & ~7
