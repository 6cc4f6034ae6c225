"""The Lumberjack kernels: convert J frames to columns and back, and find the topics of events.

The layout of a J frame, in network byte order::

    version u8 | "J" u8 | sequence u32 | length of the document u32 | document

The topic of an event is a field of its document.  The search for it never decodes the document, and assumes nothing
about its content.  The fingerprint of an event is a hash of its document that the order of members does not change.
"""

from __future__ import annotations

import json
import re
from itertools import chain
from mmap import mmap
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

#: Limit of the number of keys of a path whose value identifies a document.
MOST_KEYS = 8
#: Bytes of a fingerprint, and of a slot of a table of fingerprints.
FINGERPRINT, SLOT = 12, 16
_WORD = (1 << 64) - 1
_WORDS = Struct("<QQ")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[][{}]|[^][{}",:\s]+', re.DOTALL)

#: Limit of the number of classes of a column's documents.
MOST_CLASSES = 64

#: The slots of a table of fingerprints, end to end.
Table = bytearray | mmap
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


def split(lengths: Buffer, payload: Buffer, paths: tuple[tuple[bytes, ...], ...]) -> list[Segment]:
    """Split a column into segments of documents that have the same strings, and are all JSON or all not JSON.

    The string at each of *paths* is the result of :func:`find`.

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
        found = tuple(find(document, path) for path in paths)
        is_json = _is_json(document)
        if segments and segments[-1][1:] == (found, is_json):
            segments[-1] = (segments[-1][0] + 1, found, is_json)
        else:
            segments.append((1, found, is_json))
    return segments


def classify(lengths: Buffer, payload: Buffer, paths: tuple[tuple[bytes, ...], ...]) -> tuple[list[Class], bytes]:
    """Sort documents into classes with the same strings that all are JSON or all are not, as :func:`split` does.

    :return: the classes in the order of their first documents, and the class of each document as a byte; nothing if
        there are more than :data:`MOST_CLASSES`
    :raises ValueError: the lengths do not add up to the payload, or there are more than :data:`MOST_PATHS` paths
    """
    segments = split(lengths, payload, paths)
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


def fingerprints(
    lengths: Buffer, payload: Buffer, alternatives: tuple[tuple[tuple[bytes, ...], ...], ...], whole: bool, key: bytes
) -> bytes:
    """Return the fingerprint of each document of a column, a JSON text, that has an identity.

    A document has an identity if it has a string or a number at all paths of one of *alternatives*; keys are found as
    :func:`find` does.  The order of members does not change the fingerprint; equal keys and the form of numbers do.

    :param whole: whether the whole document has to be the same; else only the values at the paths of the alternative
    :param key: 32 secret bytes; without them nobody can make two documents with equal fingerprints
    :return: a column of :data:`FINGERPRINT` bytes each; zeros for a document without an identity
    :raises ValueError: the lengths do not add up to the payload, there are no paths or more than :data:`MOST_PATHS`, or
        one has more than :data:`MOST_KEYS` keys, or a key with a quote
    """
    paths = sum(alternatives, ())
    if not 0 < len(paths) <= MOST_PATHS or len(key) != 32:
        raise ValueError(f"expected 1 to {MOST_PATHS} paths, and a key of 32 bytes")
    if any(len(path) > MOST_KEYS or any(b'"' in each for each in path) for path in paths):
        raise ValueError(f"a path has more than {MOST_KEYS} keys, or a key has a quote")
    document_of, seed = bytes(payload), unpack("<4Q", key)
    found = []
    for begin, end in places(lengths, payload):
        document = document_of[begin:end]
        made = (_identity(document, each, seed) for each in alternatives)
        identity = next((each for each in made if each is not None), None)
        if identity is not None and whole:
            identity = _digest(document, seed)
        text = bytes(FINGERPRINT) if identity is None else pack("<QQ", *identity)[:FINGERPRINT]
        found.append(text if identity is None or any(text) else b"\1" + text[1:])
    return b"".join(found)


def remember(slots: Table, found: bytes, group: int) -> int:
    """Enter fingerprints of the group *group*, at least 1, in a table; return how many there are without zeros.

    :param slots: a table in which a slot stays free: slots of :data:`SLOT` bytes, a fingerprint and the number of its
        group (u32, little-endian) each; the first bytes of a fingerprint decide where the search for it begins
    """
    used = 0
    for at in range(0, len(found), FINGERPRINT):
        each = found[at : at + FINGERPRINT]
        if any(each):
            slot = _slot_of(slots, each)
            used += 1
            slots[slot : slot + SLOT] = each + pack("<I", group)
    return used


def recall(slots: Table, found: bytes) -> bytes:
    """Return the group of each fingerprint in a table, or 0, as a column of u32; empty if it has none of them."""
    groups = []
    for at in range(0, len(found) if slots else 0, FINGERPRINT):
        each = found[at : at + FINGERPRINT]
        slot = _slot_of(slots, each) if any(each) else 0
        groups.append(slots[slot + FINGERPRINT : slot + SLOT] if any(each) else bytes(4))
    return b"".join(groups) if any(map(any, groups)) else b""


def retain(slots: Buffer, target: Table, living: Buffer) -> None:
    """Copy the fingerprints of living groups to another table, except for those that it has.

    :param slots: some slots of a table
    :param living: the number of each group, as a column of u32; 0: the group lives no more
    """
    found = unpack(f"<{len(living) // 4}I", living)
    for at in range(0, len(slots), SLOT):
        each = bytes(slots[at : at + SLOT])
        (group,) = unpack("<I", each[FINGERPRINT:])
        if found[group]:
            slot = _slot_of(target, each[:FINGERPRINT])
            if not any(target[slot + FINGERPRINT : slot + SLOT]):
                target[slot : slot + SLOT] = each


def _slot_of(slots: Table, fingerprint: bytes) -> int:
    count = len(slots) // SLOT
    begin = int.from_bytes(fingerprint[:8], "little") * count >> 64
    for at in chain(range(begin, count), range(begin)):
        slot = slots[SLOT * at : SLOT * at + SLOT]
        if not any(slot[FINGERPRINT:]) or slot[:FINGERPRINT] == fingerprint:
            return SLOT * at
    raise AssertionError("a table of fingerprints has no free slot")


_Hash = tuple[int, int]
_Seed = tuple[int, ...]


def _multiplied(a: int, b: int) -> int:
    product = a * b
    return (product ^ product >> 64) & _WORD


def _mixed(one: _Hash, two: _Hash, seed: _Seed) -> _Hash:
    return _multiplied(one[0] ^ seed[0], two[0] ^ seed[1]), _multiplied(one[1] ^ seed[2], two[1] ^ seed[3])


def _hash_of(scalar: bytes, seed: _Seed) -> _Hash:
    """Return the hash of a scalar as it is written."""
    size = len(scalar)
    a, b = seed[0] ^ size, (seed[1] + size) & _WORD
    blocks = max(0, size - 1) // 16
    words = [_WORDS.unpack_from(scalar, 16 * at) for at in range(blocks)]
    # The last words overlap those before, or each other.
    if size >= 16:
        words.append(_WORDS.unpack_from(scalar, size - 16))
    elif size >= 4:
        half = 8 if size >= 8 else 4
        words.append((int.from_bytes(scalar[:half], "little"), int.from_bytes(scalar[-half:], "little")))
    else:
        words.append((scalar[0] | scalar[size >> 1] << 8 | scalar[-1] << 16 if size else 0, 0))
    for one, two in words:
        a, b = _multiplied(one ^ seed[2], two ^ a), _multiplied(one ^ b, two ^ seed[3])
    return a, b


def _digest(document: bytes, seed: _Seed) -> _Hash | None:
    """Return the hash of a JSON text: an object is the sum of its members, a list the sequence of its items."""
    sums: list[_Hash] = []
    keys: list[_Hash | None] = []  # of each open object, the key whose value comes next
    lists: list[bool] = []
    for token in _TOKEN.findall(document):
        if token in (b"{", b"["):
            sums.append((0, 0))
            keys.append(None)
            lists.append(token == b"[")
            continue
        if token in (b"}", b"]"):
            value = _mixed(sums.pop(), (token[0], token[0]), seed)
            keys.pop()
            lists.pop()
        else:
            value = _hash_of(token, seed)
            if lists and not lists[-1] and keys[-1] is None:
                keys[-1] = value
                continue
        if not sums:
            return value
        if lists[-1]:
            sums[-1] = _mixed(sums[-1], value, seed)
        else:
            added = _mixed(keys[-1] or (0, 0), value, seed)
            sums[-1] = (sums[-1][0] + added[0]) & _WORD, (sums[-1][1] + added[1]) & _WORD
            keys[-1] = None
    return None


def _identity(document: bytes, paths: tuple[tuple[bytes, ...], ...], seed: _Seed) -> _Hash | None:
    combined = (0, 0)
    for path in paths:
        at = _locate(document, path)
        end = -1 if at < 0 else _scalar_end(document, at)
        if end < 0:
            return None
        combined = _mixed(combined, _hash_of(document[at:end], seed), seed)
    return combined if paths else None


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
