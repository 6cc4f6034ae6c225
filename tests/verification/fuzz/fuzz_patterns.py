"""Fuzz patterns and names: compare matching with a table, check that it never goes back, and check the pattern index.

    python tests/verification/fuzz/fuzz_patterns.py [EXECUTIONS [SEED]] [--decoder NAME ...] [--corpus DIR]

harness.py explains the options.  The table is written from the documentation of patterns, one character after the
other.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import harness

with harness.instrumented("fyrehose.patterns"):
    from fyrehose.errors import InvalidPattern
    from fyrehose.patterns import MAX_BYTES, MAX_STARS, Pattern, PatternIndex


class Searched(str):
    """A name that records where each search in it begins."""

    begins: list[int]

    def find(self, text: str, begin: Any = 0, end: Any = None, /) -> int:
        self.begins.append(begin)
        return super().find(text, begin, end)


def text(dice: harness.Dice, characters: str) -> str:
    """Return a text with repeated pieces, which make a backtracking matcher go back often."""
    pieces = ["".join(dice.choice(characters) for _ in range(1 + dice.below(3))) for _ in range(1 + dice.below(3))]
    return "".join(dice.choice(pieces) * (1 + dice.below(9)) for _ in range(dice.below(6)))


def matches(pattern: str, name: str) -> bool:
    """Return whether *pattern* matches *name*, by a table of the prefixes of *name* that each prefix of it matches."""
    row = [True] + [False] * len(name)
    for character in pattern:
        if character == "*":
            first = row.index(True) if True in row else len(row)
            row = [at >= first for at in range(len(row))]
        else:
            row = [False, *(row[at] and name[at] == character for at in range(len(name)))]
    return row[-1]


def globs(data: bytes) -> None:
    """Check that a pattern matches the same names as the table, and searches each part of a name once."""
    dice = harness.Dice(data)
    pattern, name = text(dice, "ab.*"), Searched(text(dice, "ab."))
    name.begins = []
    found = Pattern(pattern)
    assert found.matches(name) is matches(pattern, name)
    assert len(name.begins) <= pattern.count("*")
    assert name.begins == sorted(set(name.begins)), "matching went back"
    assert found.covers(name) is (matches(pattern, name) and (name[:1] != "." or pattern[:1] == "."))


def bounds(data: bytes) -> None:
    """Check that a pattern of a peer is refused if, and only if, it exceeds a bound."""
    pattern = text(harness.Dice(data), "aé*\udc80") * (1 + len(data) % 5)
    size = sum(1 if character < "\x80" else 2 if character < "\u0800" else 3 for character in pattern)
    try:
        Pattern.of_peer(pattern)
    except InvalidPattern:
        assert not 1 <= size <= MAX_BYTES or pattern.count("*") > MAX_STARS
    else:
        assert 1 <= size <= MAX_BYTES
        assert pattern.count("*") <= MAX_STARS


def index(data: bytes) -> None:
    """Check that the index, while patterns come and go, finds each pattern that covers a name exactly once."""
    dice = harness.Dice(data)
    table: PatternIndex[int] = PatternIndex()
    there: dict[int, Pattern] = {}
    for number in range(30):
        if not dice:
            break
        if there and dice.one_in(3):
            gone = dice.choice(list(there))
            table.remove(there.pop(gone), gone)
        else:
            there[number] = Pattern(text(dice, "ab.*")[: dice.below(12)])
            table.add(there[number], number)
        name = text(dice, "ab.")[: dice.below(12)]
        assert sorted(table.covering(name)) == [each for each, pattern in there.items() if pattern.covers(name)]


DECODERS = {"globs": globs, "bounds": bounds, "index": index}

if __name__ == "__main__":
    sys.exit(harness.main(__file__, DECODERS))
