"""Times and texts as a terminal can show them, and how wide it must be to show all columns."""

from __future__ import annotations

from datetime import UTC, datetime

#: Width from which `stats` shows the times of each stream, in columns.
WIDE = 100


def escaped(text: str) -> str:
    """Return ``text`` with every character escaped that is not printable, so that a terminal does not interpret it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def moment(time: int) -> str:
    """Format a time in microseconds since 1970 as ISO 8601 in UTC; ``-`` for 0."""
    return datetime.fromtimestamp(time / 1_000_000, UTC).isoformat(timespec="microseconds") if time else "-"
