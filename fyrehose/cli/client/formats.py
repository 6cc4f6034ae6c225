"""Formats of a run of records on standard output: text, JSON, or the payloads alone."""

from __future__ import annotations

import re
from collections.abc import Callable

from fyrehose.ndjson import lines
from fyrehose.records import Run

Format = Callable[[Run], bytes]

#: Characters that a terminal may interpret: C0 except the line feed, DEL, C1, and characters that reorder or break a
#: line.  Surrogates stand for bytes that are not UTF-8.
_CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\udc80-\udcff]")


def text(run: Run) -> bytes:
    """Return each payload followed by a line feed."""
    return b"".join(b"%b\n" % bytes(payload) for payload in run.payloads())


def text_with_stream(run: Run) -> bytes:
    """Return each payload with the name of its stream in front, followed by a line feed."""
    name = run.stream.encode(errors="surrogateescape")
    return b"".join(b"%b: %b\n" % (name, bytes(payload)) for payload in run.payloads())


def raw(run: Run) -> bytes:
    """Return the payloads without separators."""
    return bytes(run.payload)


def as_json(run: Run) -> bytes:
    """Return one JSON object a line: see :mod:`fyrehose.ndjson`."""
    return lines((run,))


def as_values(run: Run) -> bytes:
    """Return one JSON object a line, in which a JSON message is a value: see :mod:`fyrehose.ndjson`."""
    return lines((run,), values=True)


FORMATS: dict[str, Format] = {"text": text, "raw": raw, "json": as_values}


def chosen(name: str, terminal: bool, many: bool = False) -> Format:
    """Return the format called *name*.

    :param terminal: whether to escape every character that a terminal would interpret or could not show
    :param many: whether the records are those of several streams; if so, the format ``text`` prefixes each with its
        stream
    """
    form = text_with_stream if many and name == "text" else FORMATS[name]

    def escape(match: re.Match[str]) -> str:
        code = ord(match[0])
        if code >= 0xDC80:
            return f"\\x{code - 0xDC00:02x}"
        return f"\\u{code:04x}" if name == "json" or code > 0xFF else f"\\x{code:02x}"

    if not terminal:
        return form
    return lambda run: _CONTROLS.sub(escape, form(run).decode(errors="surrogateescape")).encode()
