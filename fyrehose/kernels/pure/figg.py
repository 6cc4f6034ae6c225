"""The Figg kernels: convert PUBLISH and DATA frames to columns and back.

PUBLISH and DATA have the same layout (figg.md, "Protocol"), so both directions share these functions::

    type u16 | version u16 | size u32 | topic size u32 | topic | number u64 | data size u32 | data

The number is PUBLISH's ``seq_num`` or DATA's ``offset``; everything is in network byte order.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct, pack

from fyrehose.kernels.buffers import Buffer, places

#: type, version, size of the rest of the frame behind these eight bytes, size of the topic
_HEAD = Struct(">HHII")
#: number, size of the data
_TAIL = Struct(">QI")
#: Size of the frame header, in bytes.
_HEADER = 8

_VERSION = 1
#: Largest topic, in bytes: the limit of the name of a stream.
MAX_TOPIC = 255
#: Largest number of topics that one call of gather() returns.
TOPICS = 256


def scan(
    buffer: bytes | bytearray, start: int, kind: int, largest: int, most: int
) -> tuple[int, bytes, int, int, bytes, bytes]:
    """Scan a run of complete, well-formed frames of type *kind* with one topic and consecutive numbers.

    The run ends before another type, version or topic, a gap in the numbers, an incomplete or malformed frame, data of
    more than *largest* bytes, and before its data exceeds *most* bytes (but it holds at least one frame).

    :return: end of the run, topic, first number, count (0: no such frame at *start*), lengths as a column (u32,
        little-endian),
        data end to end
    """
    topic, first, total = b"", 0, 0
    run: list[Buffer] = []
    for stop, name, number, data in _whole(buffer, start, kind, largest):
        if not run:
            topic, first = name, number
        elif name != topic or number != first + len(run) or total + len(data) > most:
            break
        run.append(data)
        total += len(data)
        start = stop
    return start, topic, first, len(run), *_columns(run)


def gather(
    buffer: bytes | bytearray, start: int, kind: int, largest: int, most: int
) -> tuple[int, int, list[tuple[str, int | bytes, bytes, bytes]]]:
    """Scan complete, well-formed frames of type *kind* with rising numbers, and group them by topic.

    The scan ends like :func:`scan`, except for changes of the topic and gaps; and before a number that does not rise,
    a topic that is not UTF-8, and more than ``TOPICS`` topics.

    :return: end, last number, and for each topic in the order of its first frame: name, numbers (the first one if they
        are consecutive, otherwise a column of u64, little-endian), lengths as a column (u32, little-endian), data end
        to end
    """
    last, total = -1, 0
    topics: dict[bytes, tuple[list[int], list[Buffer]]] = {}
    for stop, name, number, data in _whole(buffer, start, kind, largest):
        if topics and (number <= last or total + len(data) > most):
            break
        if name not in topics and (len(topics) == TOPICS or not _is_text(name)):
            break
        numbers, run = topics.setdefault(name, ([], []))
        numbers.append(number)
        run.append(data)
        last, total, start = number, total + len(data), stop
    runs = [(name.decode(), _numbers(numbers), *_columns(run)) for name, (numbers, run) in topics.items()]
    return start, max(last, 0), runs


def _whole(buffer: bytes | bytearray, start: int, kind: int, largest: int) -> Iterator[tuple[int, bytes, int, Buffer]]:
    """Yield end, topic, number and data of each frame of type *kind*, up to one that is incomplete or malformed."""
    end = len(buffer)
    while end - start >= _HEAD.size:
        type_, version, size, topic_size = _HEAD.unpack_from(buffer, start)
        tail = start + _HEAD.size + topic_size
        begin = tail + _TAIL.size
        stop = start + _HEADER + size
        if type_ != kind or version != _VERSION or not 1 <= topic_size <= MAX_TOPIC or not begin <= stop <= end:
            return
        number, data_size = _TAIL.unpack_from(buffer, tail)
        if begin + data_size != stop or data_size > largest:
            return
        yield stop, bytes(buffer[start + _HEAD.size : tail]), number, buffer[begin:stop]
        start = stop


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _columns(run: list[Buffer]) -> tuple[bytes, bytes]:
    return pack(f"<{len(run)}I", *map(len, run)), b"".join(run)


def _numbers(numbers: list[int]) -> int | bytes:
    if numbers[-1] - numbers[0] == len(numbers) - 1:  # the numbers rise, so this means that they are consecutive
        return numbers[0]
    return pack(f"<{len(numbers)}Q", *numbers)


def frames(kind: int, topic: bytes, first: int, lengths: Buffer, payload: Buffer) -> bytes:
    """Encode a run as frames of type *kind*, end to end.

    :param first: number of the first frame
    :param lengths: column of u32, little-endian

    :raises ValueError: the lengths do not add up to the payload, the topic is not 1 to 255 bytes, or the numbers do not
        fit into 64 bits
    """
    found = places(lengths, payload)
    if not 1 <= len(topic) <= MAX_TOPIC or first < 0 or first + len(found) > 1 << 64:
        raise ValueError("the records cannot be framed: expected a topic of 1 to 255 bytes, and numbers of 64 bits")
    view = memoryview(payload)
    fixed = _HEAD.size - _HEADER + len(topic) + _TAIL.size
    parts: list[Buffer] = []
    for number, (begin, end) in enumerate(found, first):
        parts += (
            _HEAD.pack(kind, _VERSION, fixed + end - begin, len(topic)),
            topic,
            _TAIL.pack(number, end - begin),
            view[begin:end],
        )
    return b"".join(parts)
