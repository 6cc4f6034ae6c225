"""The backbone kernels: convert datagrams (PUSH and DELIVER of the fyrehose backbone) to columns and back.

    DELIVER  [ 0x1 | LENGTH (2) | SEQUENCE (6) | DATA ]      LENGTH is the size of DATA; integers are big-endian
    PUSH     [ 0x2 | LENGTH (2) | UNUSED (6)   | DATA ]

A *train* is a buffer of datagrams end to end, ``segment`` bytes each except for the last one, which may be shorter, as
UDP_GRO returns and UDP_SEGMENT accepts them.  A single datagram is a train whose segment is its size.  Columns are as
in :mod:`fyrehose.records`: ``lengths`` are u32 little-endian, ``payload`` the DATA end to end.

in: trains -> columns (scan_*)      out: columns -> datagrams (encode_*) and where to cut them into trains
"""

from __future__ import annotations

from struct import Struct, pack

from fyrehose.kernels.buffers import Buffer, places

#: Size of the header before DATA, in bytes.
HEADER = 9
#: Largest DATA of an IPv4 UDP datagram, in bytes.
MAX_DATA = 65_507 - HEADER
LAST_SEQ = (1 << 48) - 1

_DELIVER = 0x1
_PUSH = 0x2

_HEAD = Struct(
    ">"
    "B"  # type
    "H"  # LENGTH
    "H"  # SEQUENCE, its upper 16 bits
    "I"  # SEQUENCE, its lower 32 bits
)


def scan_pushes(
    data: Buffer, start: int, stop: int, segment: int, total: bool = False
) -> tuple[int, int, bytes, bytes]:
    """Scan consecutive well-formed PUSH datagrams at the start of the train ``data[start:stop]``.

    :param total: also accept a LENGTH that includes the header
    :return: (end, count, lengths, payload); ``(start, 0, b"", b"")`` if the first datagram is no PUSH
    :raises ValueError: start, stop or segment is invalid
    """
    view = _check(data, start, stop, segment)
    lengths: list[int] = []
    parts: list[memoryview] = []
    at = start
    while at < stop:
        end = min(at + segment, stop)
        size = end - at - HEADER
        if not 0 <= size <= MAX_DATA or view[at] != _PUSH:
            break
        length_field = view[at + 1] << 8 | view[at + 2]
        if length_field != size and not (total and length_field == size + HEADER):
            break
        lengths.append(size)
        parts.append(view[at + HEADER : end])
        at = end
    return at, len(lengths), pack(f"<{len(lengths)}I", *lengths), b"".join(parts)


def scan_delivers(data: Buffer, start: int, stop: int, segment: int) -> tuple[int, int, int, bytes, bytes]:
    """Scan well-formed DELIVER datagrams with consecutive sequences at the start of the train ``data[start:stop]``.

    :return: (end, count, first sequence, lengths, payload); a datagram with sequence 0 is malformed
    :raises ValueError: start, stop or segment is invalid
    """
    view = _check(data, start, stop, segment)
    lengths: list[int] = []
    parts: list[memoryview] = []
    first = 0
    at = start
    while at < stop:
        end = min(at + segment, stop)
        size = end - at - HEADER
        if not 0 <= size <= MAX_DATA:
            break
        kind, length_field, high, low = _HEAD.unpack_from(view, at)
        seq = high << 32 | low
        if kind != _DELIVER or length_field != size or not seq or (lengths and seq != first + len(lengths)):
            break
        first = first or seq
        lengths.append(size)
        parts.append(view[at + HEADER : end])
        at = end
    return at, len(lengths), first, pack(f"<{len(lengths)}I", *lengths), b"".join(parts)


def encode_delivers(first_seq: int, lengths: Buffer, payload: Buffer) -> bytes:
    """Encode consecutive records as DELIVER datagrams, end to end.

    :raises ValueError: a length exceeds MAX_DATA, the columns do not match, or a sequence is not 1 to 2^48 - 1
    """
    count = len(lengths) // 4
    if first_seq < 1 or first_seq + count - 1 > LAST_SEQ:
        raise ValueError("sequences are 1 to 2^48 - 1")
    return _encode(_DELIVER, first_seq, lengths, payload)


def encode_pushes(lengths: Buffer, payload: Buffer) -> bytes:
    """Encode payloads as PUSH datagrams, end to end; UNUSED is 0.

    :raises ValueError: a length exceeds MAX_DATA, or the columns do not match
    """
    return _encode(_PUSH, 0, lengths, payload)


def cut_trains(lengths: Buffer, most_bytes: int, most_segments: int) -> list[tuple[int, int]]:
    """Divide the datagrams of payloads into trains.

    A train has at most *most_segments* datagrams and *most_bytes* bytes, but always at least one datagram.

    :return: (size, segment) of each train, in bytes
    """
    pieces: list[tuple[int, int]] = []
    size = segment = count = last = 0
    for length in _column(lengths):
        datagram = length + HEADER
        if count and (last < segment or datagram > segment or count == most_segments or size + datagram > most_bytes):
            pieces.append((size, segment))
            count = 0
        if not count:
            size, segment = 0, datagram
        size += datagram
        last = datagram
        count += 1
    if count:
        pieces.append((size, segment))
    return pieces


def _check(data: Buffer, start: int, stop: int, segment: int) -> memoryview:
    if not 0 <= start <= stop <= len(data) or segment < 1:
        raise ValueError("0 <= start <= stop <= len(data) and segment >= 1 must hold")
    return memoryview(data)


def _column(lengths: Buffer) -> memoryview:
    if len(lengths) % 4:
        raise ValueError("lengths are four bytes each")
    return memoryview(lengths).cast("B").cast("I")


def _encode(kind: int, seq: int, lengths: Buffer, payload: Buffer) -> bytes:
    view = memoryview(payload)
    step = 1 if seq else 0
    parts: list[Buffer] = []
    for begin, end in places(lengths, payload):
        size = end - begin
        if size > MAX_DATA:
            raise ValueError(f"{size} bytes of DATA do not fit into a datagram; expected at most {MAX_DATA}")
        parts += _HEAD.pack(kind, size, seq >> 32, seq & 0xFFFFFFFF), view[begin:end]
        seq += step
    return b"".join(parts)
