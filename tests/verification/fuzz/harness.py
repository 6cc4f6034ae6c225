"""The common part of the fuzzers: turn the bytes of an input into decisions, so that most lead to valid data.

A fuzzer is a module fuzz_NAME.py with DECODERS: functions that take bytes, and raise if anything is wrong.  fuzz.py
runs them, and instruments what they import for coverage.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import Any, TypeVar

try:
    import atheris
except ImportError:
    atheris = None

#: Whether coverage guides this process; the parent process fuzzes nothing, so it avoids the cost of instrumentation.
LED = atheris is not None and "--here" in sys.argv and "--unled" not in sys.argv

T = TypeVar("T")


def instrumented(*packages: str) -> AbstractContextManager[Any]:
    """Return a context that instruments the modules of ``packages`` for coverage when they are imported."""
    if not LED:
        return nullcontext()
    logging.getLogger().setLevel(logging.ERROR)  # atheris logs a line for each module
    return atheris.instrument_imports(include=list(packages))  # type: ignore[no-any-return]


class Dice:
    """Makes decisions from the bytes of an input, so that most inputs lead to valid data; after its end all are 0.

    :ivar edges: limits around which some of the numbers lie: one below, at, or one above
    """

    def __init__(self, data: bytes, edges: Sequence[int] = ()) -> None:
        self.data, self.at, self.edges = data, 0, edges

    def __bool__(self) -> bool:
        return self.at < len(self.data)

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def below(self, end: int) -> int:
        """Return a number from 0 to ``end`` - 1."""
        value = self.byte() if end <= 256 else int.from_bytes(self.take(8), "little")
        return value % end

    def one_in(self, n: int) -> bool:
        return self.byte() % n == 1

    def choice(self, options: Sequence[T]) -> T:
        return options[self.byte() % len(options)]

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes; fewer at the end."""
        begin, self.at = self.at, self.at + size
        return self.data[begin : self.at]

    def number(self, bits: int) -> int:
        """Return a number of *bits* bits: small, or at an edge, or any."""
        top = 1 << bits
        kind = self.byte()
        if kind < 160:
            return kind % 12
        if kind < 220 and self.edges:
            return (self.choice(self.edges) + self.choice((-1, 0, 1))) % top
        if kind < 220:
            return (top + self.choice((-1, -2, 0, 1, -9))) % top
        return int.from_bytes(self.take(bits // 8), "big")

    def blob(self) -> bytes:
        """Return bytes, mostly few."""
        kind = self.byte()
        if kind < 200:
            return self.take(kind % 8)
        return bytes((kind,)) * self.choice((30, 255, 256, 600, 1500))

    def damaged(self, data: bytes) -> bytes:
        """Return ``data``, now and then with random changes."""
        changed = bytearray(data)
        while self.one_in(4) and changed:
            at = self.below(len(changed)) if len(changed) <= 256 else self.below(1 << 32) % len(changed)
            how = self.byte() % 4
            if how == 0:
                changed[at:at] = self.take(1 + self.byte() % 4)
            elif how == 1:
                del changed[at : at + 1 + self.byte() % 8]
            elif how == 2:
                changed[at] ^= 1 << self.byte() % 8
            else:
                changed[at : at + 4] = self.choice((b"\xff" * 4, bytes(4), b"\0\0\0\1", b"\x7f\xff\xff\xff"))
        return bytes(changed)

    def pieces(self, data: bytes, most: int = 6) -> list[bytes]:
        """Return ``data`` cut into a few pieces, or into about 64 equal ones if the input is used up."""
        if not self:
            size = max(7, len(data) // 64)
            return [data[at : at + size] for at in range(0, len(data), size)]
        cuts = sorted(self.below(1 << 16) % (len(data) + 1) for _ in range(self.byte() % most))
        return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


class Chance(Random):
    """A Python random generator whose numbers come from an input, so that coverage guides them; 0 after its end."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self.dice = Dice(data)

    def __bool__(self) -> bool:
        return bool(self.dice)

    def random(self) -> float:
        return int.from_bytes(self.dice.take(2), "big") / (1 << 16)

    def getrandbits(self, k: int, /) -> int:
        size = k + 7 >> 3
        return int.from_bytes(self.dice.take(size), "big") >> 8 * size - k
