"""The backbone kernels: datagrams to columns and back (PUSH and DELIVER of the fyrehose backbone).

    DELIVER  [ 0x1 | LENGTH (2) | SEQUENCE (6) | DATA ]      LENGTH counts DATA alone; all big-endian
    PUSH     [ 0x2 | LENGTH (2) | UNUSED (6)   | DATA ]

A *train* is a buffer of datagrams end to end, ``segment`` bytes each but for the last, which may be shorter: what
UDP_GRO hands over and what UDP_SEGMENT takes.  A single datagram is a train whose segment is its size.  Columns are as
in :mod:`fyrehose.records`: ``lengths`` are u32 little-endian, ``payload`` the DATA end to end.

in: trains -> columns (scan_*)      out: columns -> datagrams (encode_*) and where to cut them into trains
"""

from __future__ import annotations

from struct import Struct, pack

Buffer = bytes | bytearray | memoryview

#: Bytes before DATA, in both.
HEADER = 9
#: The most DATA that an IPv4 UDP datagram holds besides the header.
MAX_DATA = 65_507 - HEADER
LAST_SEQ = (1 << 48) - 1

_DELIVER = 0x1
_PUSH = 0x2

_HEAD = Struct(
    ">"
    "B"  # type
    "H"  # LENGTH
    "H"  # SEQUENCE, its upper 16 bits
    "I"  # and its lower 32
)


def scan_pushes(
    data: Buffer, start: int, stop: int, segment: int, total: bool = False
) -> tuple[int, int, bytes, bytes]:
    """The longest row of well-formed PUSH datagrams of the train ``data[start:stop]``, from its first datagram on.

    :param total: take a LENGTH that counts the whole datagram, too
    :return: (where it ends, how many, lengths, payload); ``(start, 0, b"", b"")`` where the first is something else
    :raises ValueError: start, stop or segment cannot be
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
        said = view[at + 1] << 8 | view[at + 2]
        if said != size and not (total and said == size + HEADER):
            break
        lengths.append(size)
        parts.append(view[at + HEADER : end])
        at = end
    return at, len(lengths), pack(f"<{len(lengths)}I", *lengths), b"".join(parts)


def scan_delivers(data: Buffer, start: int, stop: int, segment: int) -> tuple[int, int, int, bytes, bytes]:
    """The longest row of well-formed DELIVER datagrams whose sequences follow on, from the train's first on.

    :return: (where it ends, how many, the first sequence, lengths, payload); sequence 0 does not exist
    :raises ValueError: start, stop or segment cannot be
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
        kind, said, high, low = _HEAD.unpack_from(view, at)
        seq = high << 32 | low
        if kind != _DELIVER or said != size or not seq or (lengths and seq != first + len(lengths)):
            break
        first = first or seq
        lengths.append(size)
        parts.append(view[at + HEADER : end])
        at = end
    return at, len(lengths), first, pack(f"<{len(lengths)}I", *lengths), b"".join(parts)


def encode_delivers(first_seq: int, lengths: Buffer, payload: Buffer) -> bytes:
    """The DELIVER datagrams of consecutive records, end to end.

    :raises ValueError: a length is above MAX_DATA, the columns do not fit each other, or a sequence is not 1..2^48-1
    """
    count = len(lengths) // 4
    if first_seq < 1 or first_seq + count - 1 > LAST_SEQ:
        raise ValueError("sequences are 1 to 2^48 - 1")
    return _encode(_DELIVER, first_seq, lengths, payload)


def encode_pushes(lengths: Buffer, payload: Buffer) -> bytes:
    """The PUSH datagrams of these payloads, end to end; UNUSED is 0.

    :raises ValueError: a length is above MAX_DATA, or the columns do not fit each other
    """
    return _encode(_PUSH, 0, lengths, payload)


def cut_trains(lengths: Buffer, most_bytes: int, most_segments: int) -> list[tuple[int, int]]:
    """Where to cut the datagrams of these payloads so that each piece is a train: (its size, its segment) each.

    A piece holds at the most ``most_segments`` datagrams and ``most_bytes``, but one datagram always.
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
    begin = 0
    for length in _column(lengths):
        if length > MAX_DATA:
            raise ValueError(f"{length} bytes of DATA do not fit into a datagram; {MAX_DATA} do")
        parts.append(_HEAD.pack(kind, length, seq >> 32, seq & 0xFFFFFFFF))
        parts.append(view[begin : begin + length])
        begin += length
        seq += step
    if begin != len(view):
        raise ValueError("the lengths do not add up to the payload")
    return b"".join(parts)
