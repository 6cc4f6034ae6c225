"""The lumberjack kernels.

A J frame, in both directions of the same layout, everything in network byte order::

    version u8 | "J" u8 | sequence u32 | length of the document u32 | document

Besides framing there is one thing that touches every event: looking for its topic, which is a field of its document.
That reads a bounded number of bytes, never decodes the document, and trusts nothing in it.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from struct import Struct, pack, unpack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fyrehose.records import Buffer

#: version, type, sequence, length
_HEAD = Struct(">BBII")
_JSON = ord("J")
_BLANK = b" \t\n\r"
_SEQUENCES = 1 << 32

#: What a document of JSON begins with, and what it then ends with.  A truncated or empty one is told by this.
_ENDS = {
    ord("{"): b"}",
    ord("["): b"]",
    ord('"'): b'"',
    ord("t"): b"e",
    ord("f"): b"e",
    ord("n"): b"l",
    **dict.fromkeys(b"-0123456789", b"0123456789"),
}

Segment = tuple[int, bytes | None, bool]


def scan(
    buffer: bytes | bytearray, start: int, version: int, largest: int, most: int, most_count: int
) -> tuple[int, int, int | bytes, int, bytes, bytes]:
    """The longest run of whole J frames of ``version``.

    It ends before anything else: another version or type, a frame that is not all there, a document of more than
    ``largest`` bytes, more than ``most_count`` frames, and more than ``most`` bytes of documents in all (but never
    before the first frame for that reason).

    :return: where it ends, the count (0: no such frame at ``start``), the sequences (the first where they are
        consecutive, else a column of u64, little-endian), the last sequence, the lengths as a column (u32,
        little-endian), the documents end to end
    """
    sequences: list[int] = []
    lengths: list[int] = []
    data: list[Buffer] = []
    total, end = 0, len(buffer)
    while end - start >= _HEAD.size and len(lengths) < most_count:
        said, kind, sequence, length = _HEAD.unpack_from(buffer, start)
        begin = start + _HEAD.size
        if said != version or kind != _JSON or length > min(largest, end - begin):
            break
        if lengths and total + length > most:
            break
        sequences.append(sequence)
        lengths.append(length)
        data.append(buffer[begin : begin + length])
        total += length
        start = begin + length
    count = len(lengths)
    column = pack(f"<{count}I", *lengths)
    return start, count, _sequences(sequences), sequences[-1] if count else 0, column, b"".join(data)


def _sequences(sequences: list[int]) -> int | bytes:
    first = sequences[0] if sequences else 0
    if sequences == list(range(first, first + len(sequences))):
        return first
    return pack(f"<{len(sequences)}Q", *sequences)


def frames(version: int, first: int, lengths: Buffer, payload: Buffer) -> bytes:
    """J frames of ``version`` for columns, with sequences from ``first`` on, rolling over behind 2^32 - 1.

    :raises ValueError: the lengths do not add up to the payload, or the version or first sequence cannot be
    """
    sizes = unpack(f"<{len(lengths) // 4}I", lengths) if len(lengths) % 4 == 0 else ()
    ends = [0, *accumulate(sizes)]
    whole = 4 * len(sizes) == len(lengths) and ends[-1] == len(payload)
    if not whole or not 0 <= version < 256 or not 0 <= first < _SEQUENCES:
        raise ValueError("columns, a version or a sequence that cannot be framed")
    view = memoryview(payload)
    parts: list[Buffer] = []
    for number, (begin, end) in enumerate(pairwise(ends), first):
        parts += (_HEAD.pack(version, _JSON, number % _SEQUENCES, end - begin), view[begin:end])
    return b"".join(parts)


def split(lengths: Buffer, payload: Buffer, path: tuple[bytes, ...], most: int) -> list[Segment]:
    """Consecutive documents that have the same topic and are alike in whether they look like JSON.

    The topic is what :func:`find` finds in the first ``most`` bytes of a document; no path, no topic.

    :return: for each such segment the count, the topic as it stands between its quotes, or None, and whether the
        documents look like JSON (begin and end as a value of JSON does)
    :raises ValueError: the lengths do not add up to the payload
    """
    whole = bytes(payload)
    sizes = unpack(f"<{len(lengths) // 4}I", lengths) if len(lengths) % 4 == 0 else (-1,)
    if sum(sizes) != len(whole):
        raise ValueError("the lengths do not add up to the payload")
    segments: list[Segment] = []
    begin = 0
    for size in sizes:
        document = whole[begin : begin + size]
        begin += size
        topic = find(document[:most], path) if path else None
        looks = _looks_like_json(document)
        if segments and segments[-1][1:] == (topic, looks):
            segments[-1] = (segments[-1][0] + 1, topic, looks)
        else:
            segments.append((1, topic, looks))
    return segments


def _looks_like_json(document: bytes) -> bool:
    text = document.strip(_BLANK)
    return bool(text) and text[-1] in _ENDS.get(text[0], b"")


def find(document: bytes, path: tuple[bytes, ...]) -> bytes | None:
    """The string at ``path`` in the object that ``document`` begins with, as it stands between its quotes.

    Keys are compared as they stand, without resolving escapes; of equal keys the first counts.  None where there is
    no such string, where it does not end within ``document``, or where what is before it is no JSON.
    """
    at = _skip_blank(document, 0)
    end = len(document) if path else 0
    level = 0
    while at < end and document[at] == ord("{"):
        at = _skip_blank(document, at + 1)
        while True:  # the members of this object, up to the one whose key is path[level]
            if at >= end or document[at] != ord('"'):
                return None
            close = _string_end(document, at)
            if close < 0:
                return None
            key = document[at + 1 : close]
            at = _skip_blank(document, close + 1)
            if at >= end or document[at] != ord(":"):
                return None
            at = _skip_blank(document, at + 1)
            if key == path[level]:
                break
            at = _skip_blank(document, _skip_value(document, at))
            if at >= end or document[at] != ord(","):
                return None
            at = _skip_blank(document, at + 1)
        level += 1
        if level == len(path):
            if at >= end or document[at] != ord('"'):
                return None
            close = _string_end(document, at)
            return None if close < 0 else document[at + 1 : close]
    return None


def _skip_blank(document: bytes, at: int) -> int:
    while at < len(document) and document[at] in _BLANK:
        at += 1
    return at


def _string_end(document: bytes, at: int) -> int:
    """Where the string that begins at ``at`` has its closing quote; -1 where it has none."""
    at += 1
    while at < len(document):
        if document[at] == ord("\\"):
            at += 1
        elif document[at] == ord('"'):
            return at
        at += 1
    return -1


def _skip_value(document: bytes, at: int) -> int:
    """Behind the value at ``at``: nested brackets are counted, not matched; the end where it does not end."""
    depth = 0
    end = len(document)
    while at < end:
        byte = document[at]
        if byte == ord('"'):
            at = _string_end(document, at)
            if at < 0:
                return end
        elif byte in b"{[":
            depth += 1
        elif byte in b"}]":
            if not depth:
                return at
            depth -= 1
        elif byte == ord(",") and not depth:
            return at
        at += 1
    return end
