"""How a run of records looks on standard output: text, JSON, or the payloads alone."""

from __future__ import annotations

from collections.abc import Callable

from fyrehose.ndjson import lines
from fyrehose.records import Run

Format = Callable[[Run], bytes]


def text(run: Run) -> bytes:
    """Each payload, and a line feed."""
    return b"".join(b"%b\n" % bytes(payload) for payload in run.payloads())


def raw(run: Run) -> bytes:
    """The payloads end to end."""
    return bytes(run.payload)


def as_json(run: Run) -> bytes:
    """An object a line: see :mod:`fyrehose.ndjson`."""
    return lines((run,))


FORMATS: dict[str, Format] = {"text": text, "raw": raw, "json": as_json}
