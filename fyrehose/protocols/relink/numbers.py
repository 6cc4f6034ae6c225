"""Sequence numbers have 32 bits on the wire and wrap (3.1); in memory they are integers that never wrap."""

from __future__ import annotations

_HALF = 1 << 31
_MASK = (1 << 32) - 1


def nearest(number: int, cursor: int) -> int:
    """Return the integer nearest to *cursor* whose low 32 bits are *number*; it may be negative."""
    return cursor + ((number - cursor + _HALF) & _MASK) - _HALF
