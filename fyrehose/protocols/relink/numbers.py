"""Sequence numbers: 32 bits on the wire, wrapping (3.1); plain integers that never wrap in here."""

from __future__ import annotations

_HALF = 1 << 31
_MASK = (1 << 32) - 1


def nearest(number: int, cursor: int) -> int:
    """The integer with the low 32 bits ``number`` that is nearest to ``cursor``; for what is past, maybe below zero."""
    return cursor + ((number - cursor + _HALF) & _MASK) - _HALF
