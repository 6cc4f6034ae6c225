"""Read the keys of records, in portions: a label, or a member of the JSON object at the beginning of a payload."""

from __future__ import annotations

import json
from hashlib import blake2b
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import TYPE_CHECKING

from fyrehose.records import Record

if TYPE_CHECKING:
    from fyrehose.subscriptions.table import RunReader

#: How much of a payload is searched for its key, in bytes.
KEY_BYTES = 64 << 10
#: A longer key is replaced by a digest, because the keys of all open records are kept in memory.
LONGEST = 64

_scan = json.JSONDecoder().raw_decode
_SPACE = " \t\n\r"


def keys_of(reader: RunReader, stream: str, key: str, first: int, last: int) -> tuple[dict[int, str], int]:
    """Return the keys of a portion of records from *first* to at most *last*, and the last number of the portion.

    A record without a key gets a key of its own.  A portion ends where the journal lacks a record, and with what the
    reader keeps.  If the journal lacks *first*, the portion has no keys, and is all that it lacks from there on, even
    beyond *last*.
    """
    found: dict[int, str] = {}
    for run in reader.following(stream, first):
        if run.first_seq > first + len(found):
            break
        for record in run.slice(first + len(found) - run.first_seq, last + 1 - run.first_seq).records():
            value = _key(record, key)
            found[record.seq] = f"#{record.seq}" if value is None else f"={value}"
        if first + len(found) > last:
            break
    return found, first + len(found) - 1 if found else reader.behind(first) - 1


def _key(record: Record, key: str) -> str | None:
    value = {"topic": record.topic, "producer": record.producer}.get(key) if key in ("topic", "producer") else None
    if key not in ("topic", "producer"):
        value = member(record.payload, key)
    if value is None or len(value) <= LONGEST:
        return value
    return blake2b(value.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def member(payload: bytes, key: str) -> str | None:
    """Return the member *key* of the JSON object in *payload*, as JSON; None if it is not in the first 64 KiB."""
    try:
        text = payload[:KEY_BYTES].decode(errors="ignore" if len(payload) > KEY_BYTES else "strict")
        at = _after_space(text, 0)
        if text[at] != "{":
            return None
        while True:
            at = _after_space(text, at + 1)
            name, at = scanstring(text, at + 1) if text[at] == '"' else (None, at)
            at = _after_space(text, at)
            if name is None or text[at] != ":":
                return None
            value, at = _scan(text, _after_space(text, at + 1))
            if name == key:
                return None if value is None else json.dumps(value)
            at = _after_space(text, at)
            if text[at] != ",":
                return None
    except (ValueError, IndexError, RecursionError):
        return None


def _after_space(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at
