"""The Lumberjack kernels: convert J frames to columns and back, and find the topics of events.

The layout of a J frame, in network byte order::

    version u8 | "J" u8 | sequence u32 | length of the document u32 | document

The topic of an event is a field of its document.  The search for it reads a bounded number of bytes, never decodes the
document, and assumes nothing about its content.
"""

from __future__ import annotations

import json
import re
from struct import Struct, pack, unpack

from fyrehose.kernels.buffers import Buffer, places

#: version, type, sequence, length
_HEAD = Struct(">BBII")
_JSON = ord("J")
_BLANK = b" \t\n\r"
_SEQUENCES = 1 << 32

#: Limit of the nesting of lists and objects in a JSON document.
MOST_DEPTH = 512
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)

#: Limit of the number of strings that are searched in a document.
MOST_PATHS = 8

#: Limit of the number of classes of a column's documents.
MOST_CLASSES = 64

#: count, the string at each path, and whether the documents are JSON; see :func:`split`
Segment = tuple[int, tuple[bytes | None, ...], bool]
#: the string at each path, and whether the documents are JSON; see :func:`classify`
Class = tuple[tuple[bytes | None, ...], bool]


def scan(
    buffer: bytes | bytearray, start: int, version: int, largest: int, most: int, most_count: int
) -> tuple[int, int, int | bytes, int, bytes, bytes]:
    """Scan a run of complete J frames with the version byte *version*.

    The run ends before another version or type, an incomplete frame, a document of more than *largest* bytes, after
    *most_count* frames, and before its documents exceed *most* bytes (but it holds at least one frame).

    :return: end, count (0: no such frame at *start*), sequences (the first one if they are consecutive, otherwise a
        column of u64, little-endian), last sequence, lengths as a column (u32, little-endian), documents end to end
    """
    sequences: list[int] = []
    lengths: list[int] = []
    data: list[Buffer] = []
    total, end = 0, len(buffer)
    while end - start >= _HEAD.size and len(lengths) < most_count:
        digit, kind, sequence, length = _HEAD.unpack_from(buffer, start)
        begin = start + _HEAD.size
        if digit != version or kind != _JSON or length > min(largest, end - begin):
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
    """Encode documents as J frames with the version byte *version*, end to end.

    :param first: sequence of the first frame; sequences roll over after 2^32 - 1
    :param lengths: column of u32, little-endian
    :raises ValueError: the lengths do not add up to the payload, or *version* or *first* is out of range
    """
    found = places(lengths, payload)
    if not 0 <= version < 256 or not 0 <= first < _SEQUENCES:
        raise ValueError("the documents cannot be framed: expected a version of 8 bits, and a sequence of 32 bits")
    view = memoryview(payload)
    parts: list[Buffer] = []
    for number, (begin, end) in enumerate(found, first):
        parts += (_HEAD.pack(version, _JSON, number % _SEQUENCES, end - begin), view[begin:end])
    return b"".join(parts)


def split(lengths: Buffer, payload: Buffer, paths: tuple[tuple[bytes, ...], ...], most: int) -> list[Segment]:
    """Split a column into segments of documents that have the same strings, and are all JSON or all not JSON.

    The string at each of *paths* is the result of :func:`find` in the first *most* bytes of a document.

    :return: for each segment: the number of documents, the strings as they stand between their quotes or None, and
        whether each document
        is one JSON text (RFC 8259) in UTF-8, nested at most :data:`MOST_DEPTH` deep
    :raises ValueError: the lengths do not add up to the payload, or there are more than :data:`MOST_PATHS` paths
    """
    whole = bytes(payload)
    if len(paths) > MOST_PATHS:
        raise ValueError(f"too many paths: {len(paths)}, and at most {MOST_PATHS} are possible")
    segments: list[Segment] = []
    for begin, end in places(lengths, payload):
        document = whole[begin:end]
        found = tuple(find(document[:most], path) for path in paths)
        is_json = _is_json(document)
        if segments and segments[-1][1:] == (found, is_json):
            segments[-1] = (segments[-1][0] + 1, found, is_json)
        else:
            segments.append((1, found, is_json))
    return segments


def classify(
    lengths: Buffer, payload: Buffer, paths: tuple[tuple[bytes, ...], ...], most: int
) -> tuple[list[Class], bytes]:
    """Sort documents into classes with the same strings that all are JSON or all are not, as :func:`split` does.

    :return: the classes in the order of their first documents, and the class of each document as a byte; nothing if
        there are more than :data:`MOST_CLASSES`
    :raises ValueError: the lengths do not add up to the payload, or there are more than :data:`MOST_PATHS` paths
    """
    segments = split(lengths, payload, paths, most)
    classes: dict[Class, int] = {}
    of = [(count, classes.setdefault((found, is_json), len(classes))) for count, found, is_json in segments]
    if len(classes) > MOST_CLASSES:
        return [], b""
    return list(classes), b"".join(bytes([each]) * count for count, each in of)


def scatter(
    of: Buffer, parts: int, sequences: int | Buffer, lengths: Buffer, payload: Buffer
) -> list[tuple[int, bytes, bytes, bytes]]:
    """Distribute the documents of a column over several columns, without changing the order within each.

    :param of: the part of each document, as a byte
    :param parts: the number of parts
    :param sequences: the first sequence if they are consecutive, otherwise a column of u64, little-endian
    :return: for each part: count, sequences (a column of u64), lengths (a column of u32), documents end to end
    :raises ValueError: the columns do not fit together
    """
    count = len(of)
    found, whole = places(lengths, payload), bytes(payload)
    fits = isinstance(sequences, int) or len(sequences) == 8 * count
    if not 0 <= parts <= 256 or len(found) != count or not fits or any(part >= parts for part in of):
        raise ValueError("expected one sequence and one valid part for each length")
    numbers = range(sequences, sequences + count) if isinstance(sequences, int) else unpack(f"<{count}Q", sequences)
    made = []
    for part in range(parts):
        mine = [at for at in range(count) if of[at] == part]
        made.append(
            (
                len(mine),
                pack(f"<{len(mine)}Q", *(numbers[at] for at in mine)),
                pack(f"<{len(mine)}I", *(found[at][1] - found[at][0] for at in mine)),
                b"".join(whole[slice(*found[at])] for at in mine),
            )
        )
    return made


def _is_json(document: bytes) -> bool:
    try:
        # Integers are parsed as floats, because Python refuses to parse very long integers, which are valid JSON.
        json.loads(document.decode(), parse_int=float, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    if document.count(b"[") + document.count(b"{") <= MOST_DEPTH:
        return True
    depth = 0
    for bracket in re.findall(rb"[][{}]", _STRING.sub(b"", document)):
        depth += 1 if bracket in b"[{" else -1
        if depth > MOST_DEPTH:
            return False
    return True


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def find(document: bytes, path: tuple[bytes, ...]) -> bytes | None:
    """Find the string at *path* in the JSON object at the start of *document*.

    Keys are compared in their raw form, without resolving escapes; the first of equal keys counts.

    :return: the string as it stands between its quotes; None if there is no such string, if it does not end within
        *document*, or if the text before it is not JSON
    """
    at = _locate(document, path)
    if at < 0 or document[at] != ord('"'):
        return None
    close = _string_end(document, at)
    return None if close < 0 else document[at + 1 : close]


def identify(
    lengths: Buffer, payload: Buffer, alternatives: tuple[tuple[tuple[bytes, ...], ...], ...]
) -> list[bytes | None]:
    """Return the identity of each document of a column: the strings or numbers at all paths of one alternative.

    The first of *alternatives* of which a document has all paths counts; keys are found as :func:`find` does.

    :return: for each document, the values as they stand in it, strings with their quotes, separated by NUL; None if the
        document has all paths of no alternative
    :raises ValueError: the lengths do not add up to the payload
    """
    whole = bytes(payload)
    found: list[bytes | None] = []
    for begin, end in places(lengths, payload):
        made = (_values(whole[begin:end], paths) for paths in alternatives)
        found.append(next((values for values in made if values is not None), None))
    return found


def _values(document: bytes, paths: tuple[tuple[bytes, ...], ...]) -> bytes | None:
    values = []
    for path in paths:
        at = _locate(document, path)
        end = -1 if at < 0 else _scalar_end(document, at)
        if end < 0:
            return None
        values.append(document[at:end])
    return b"\0".join(values)


def _scalar_end(document: bytes, at: int) -> int:
    """Return the end of the string or number at *at*; -1 if there is none."""
    if document[at] == ord('"'):
        return _string_end(document, at) + 1 or -1
    end = at
    while end < len(document) and document[end] in b"+-.0123456789Ee":
        end += 1
    return end if end > at else -1


def _locate(document: bytes, path: tuple[bytes, ...]) -> int:
    """Return the position of the value at *path* in the JSON object at the start of *document*; -1: there is none."""
    at = _skip_blank(document, 0)
    end = len(document) if path else 0
    level = 0
    while at < end and document[at] == ord("{"):
        at = _skip_blank(document, at + 1)
        while True:  # the members of this object, up to the one whose key is path[level]
            if at >= end or document[at] != ord('"'):
                return -1
            close = _string_end(document, at)
            if close < 0:
                return -1
            key = document[at + 1 : close]
            at = _skip_blank(document, close + 1)
            if at >= end or document[at] != ord(":"):
                return -1
            at = _skip_blank(document, at + 1)
            if key == path[level]:
                break
            at = _skip_blank(document, _skip_value(document, at))
            if at >= end or document[at] != ord(","):
                return -1
            at = _skip_blank(document, at + 1)
        level += 1
        if level == len(path):
            return at if at < end else -1
    return -1


def _skip_blank(document: bytes, at: int) -> int:
    while at < len(document) and document[at] in _BLANK:
        at += 1
    return at


def _string_end(document: bytes, at: int) -> int:
    """Return the position of the closing quote of the string at *at*; -1 if it has none."""
    at += 1
    while at < len(document):
        if document[at] == ord("\\"):
            at += 1
        elif document[at] == ord('"'):
            return at
        at += 1
    return -1


def _skip_value(document: bytes, at: int) -> int:
    """Return the end of the value at *at*, or of *document*; nested brackets are counted, but not matched by kind."""
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
