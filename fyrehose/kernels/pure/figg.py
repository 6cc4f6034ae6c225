"""The figg kernels.

PUBLISH and DATA have the same layout, so both directions share the two functions here::

    type u16 | version u16 | size u32 | topic size u32 | topic | number u64 | data size u32 | data

The number is PUBLISH's ``seq_num`` or DATA's ``offset``; everything is in network byte order.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from struct import Struct, unpack

from fyrehose.records import MAX_NAME, Buffer

#: type, version, size of what follows these eight bytes, size of the topic
_HEAD = Struct(">HHII")
#: number, size of the data
_TAIL = Struct(">QI")
#: What comes before the payload's own fields.
_HEADER = 8

_VERSION = 1


def scan(
    buffer: bytes | bytearray, start: int, kind: int, largest: int, most: int
) -> tuple[int, bytes, int, int, bytes, bytes]:
    """The longest run of whole, well-formed frames of type ``kind`` with one topic and consecutive numbers.

    It ends before anything else: another type, version or topic, a break in the numbers, a frame that is not all there
    or whose lengths do not agree, data of more than ``largest`` bytes, and more than ``most`` bytes of data in all
    (but never before the first frame for that reason).

    :return: where it ends, the topic, the first number, the count (0: no such frame at ``start``), the lengths as a
        column (u32, little-endian), the data end to end
    """
    topic, first, total = b"", 0, 0
    lengths: list[int] = []
    data: list[Buffer] = []
    end = len(buffer)
    while end - start >= _HEAD.size:
        type_, version, size, topic_size = _HEAD.unpack_from(buffer, start)
        tail = start + _HEAD.size + topic_size
        begin = tail + _TAIL.size
        stop = start + _HEADER + size
        if type_ != kind or version != _VERSION or not 1 <= topic_size <= MAX_NAME or not begin <= stop <= end:
            break
        number, data_size = _TAIL.unpack_from(buffer, tail)
        if begin + data_size != stop or data_size > largest:
            break
        name = buffer[start + _HEAD.size : tail]
        if not lengths:
            topic, first = bytes(name), number
        elif name != topic or number != first + len(lengths) or total + data_size > most:
            break
        lengths.append(data_size)
        data.append(buffer[begin:stop])
        total += data_size
        start = stop
    column = Struct(f"<{len(lengths)}I").pack(*lengths)
    return start, topic, first, len(lengths), column, b"".join(data)


def frames(kind: int, topic: bytes, first: int, lengths: Buffer, payload: Buffer) -> bytes:
    """Frames of type ``kind`` for a run: its topic, its first number, its columns.

    :raises ValueError: the lengths do not add up to the payload, the topic is not 1 to 255 bytes, or the numbers do not
        fit into 64 bits
    """
    sizes = unpack(f"<{len(lengths) // 4}I", lengths) if len(lengths) % 4 == 0 else ()
    ends = [0, *accumulate(sizes)]
    whole = 4 * len(sizes) == len(lengths) and ends[-1] == len(payload)
    if not whole or not 1 <= len(topic) <= MAX_NAME or first < 0 or first + len(sizes) > 1 << 64:
        raise ValueError("a run whose columns, topic or numbers cannot be framed")
    view = memoryview(payload)
    fixed = _HEAD.size - _HEADER + len(topic) + _TAIL.size
    parts: list[Buffer] = []
    for number, (begin, end) in enumerate(pairwise(ends), first):
        parts += (
            _HEAD.pack(kind, _VERSION, fixed + end - begin, len(topic)),
            topic,
            _TAIL.pack(number, end - begin),
            view[begin:end],
        )
    return b"".join(parts)
