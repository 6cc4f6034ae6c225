"""Read the keys of records, in portions: a label, or a member of the JSON object at the beginning of a payload."""

from __future__ import annotations

import json
from hashlib import blake2b
from json.decoder import scanstring  # type: ignore[attr-defined]

from fyrehose.interfaces import IJournal
from fyrehose.records import Record

#: How much of a payload is searched for its key, in bytes.
KEY_BYTES = 64 << 10
#: How much one portion reads, in bytes.
PORTION = 256 << 10
#: A longer key is replaced by a digest, because the keys of all open records are kept in memory.
LONGEST = 64

_scan = json.JSONDecoder().raw_decode
_SPACE = " \t\n\r"


def keys_of(journal: IJournal, stream: str, key: str, first: int, last: int) -> tuple[dict[int, str], int]:
    """Return the keys of a portion of records from *first* to at most *last*, and the last number of the portion.

    A record without a key gets a key of its own.  A portion ends where the journal lacks a record.  If it lacks
    *first*, the portion has no keys, and is all that the journal lacks from there on, even beyond *last*.
    """
    found: dict[int, str] = {}
    runs = journal.read(stream, first, PORTION)
    if not runs or runs[0].first_seq > first:
        return found, runs[0].first_seq - 1 if runs else max(first, journal.bounds(stream)[1])
    for record in (each for run in runs for each in run.records()):
        if record.seq > min(last, first + len(found)):
            break
        value = _key(record, key)
        found[record.seq] = f"#{record.seq}" if value is None else f"={value}"
    return found, first + len(found) - 1


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
