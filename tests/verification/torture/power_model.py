"""The expected contents of a journal, from what a process has reported about it: the oracle of power.py.

An *append* has a number, and consists of (stream, first, count) parts.  Each payload can be computed from its stream,
its number and its append, so payloads are not stored.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fyrehose.interfaces import IJournal

STREAMS = ("a", "b", "c-\N{SNOWMAN}")
_NOISE = bytes((i * 167 + (i >> 8) * 59) & 255 for i in range(40 << 10))

Parts = list[tuple[str, int, int]]


class Model:
    """One journal, over all its power cuts.

    :ivar strict: whether acknowledged appends must never be lost
    :ivar kept: how many appends were found
    :ivar lost: how many appends were acknowledged and then lost
    """

    def __init__(self, directory: Path, strict: bool) -> None:
        self.directory, self.strict = directory, strict
        self.appends = self.kept = self.lost = 0
        #: the append of each number that was acknowledged or read
        self.released: dict[str, dict[int, int]] = {stream: {} for stream in STREAMS}
        #: the appends that were sent since the journal was last read, and those of them that were acknowledged
        self.sent: dict[int, Parts] = {}
        self.acked: set[int] = set()
        self.acknowledged = 0

    # Called in the process that appends:

    def compose(self, dice: random.Random, ends: dict[str, int]) -> tuple[int, Parts]:
        """Return the next append, of one to three streams."""
        self.appends += 1
        parts = []
        for stream in dice.sample(STREAMS, dice.choice((1, 1, 1, 2, 3))):
            count = dice.choice((1, 1, 2, 7, 40))
            parts.append((stream, ends.get(stream, 0) + 1, count))
            ends[stream] = ends.get(stream, 0) + count
        return self.appends, parts

    @staticmethod
    def payload(stream: str, seq: int, append: int) -> bytes:
        """Return the payload of a record: mostly small, sometimes larger than a segment."""
        hashed = (seq * 2654435761 + append * 40503) & 0xFFFFFFFF
        size = 4000 + hashed % 9000 if hashed % 61 == 0 else hashed % 150
        begin = hashed >> 16 & 0x3FFF
        return f"{append} {stream} {seq} ".encode() + _NOISE[begin : begin + size]

    def check(self, journal: IJournal) -> dict[str, Any]:
        """Read the whole journal; return the problems, the append of each new number, and the kept appends."""
        problems: list[str] = []
        new: dict[str, list[tuple[int, int]]] = {}
        found: dict[int, set[tuple[str, int]]] = {}
        oldest = {}
        for stream in STREAMS:
            oldest[stream], last = journal.bounds(stream)
            new[stream] = []
            self._check_stream(journal, stream, (oldest[stream], last), new[stream], found, problems)
        problems += self._check_appends(found, oldest)
        unknown = set(journal.ends()) - set(STREAMS)
        problems += [f"the streams {unknown} were never created"] if unknown else []
        return {"problems": problems[:5], "new": new, "kept": self._kept(found, oldest)}

    def _check_stream(
        self,
        journal: IJournal,
        stream: str,
        bounds: tuple[int, int],
        new: list[tuple[int, int]],
        found: dict[int, set[tuple[str, int]]],
        problems: list[str],
    ) -> None:
        seq, last = bounds
        released = self.released[stream]
        while seq <= last:
            runs = journal.read(stream, seq, 1 << 20)
            if not runs:
                break
            for run in runs:
                if run.first_seq != seq and (self.strict or run.first_seq < seq):
                    problems.append(f"{stream} continues at {run.first_seq} instead of {seq}")
                for at, payload in enumerate(run.payloads()):
                    number = run.first_seq + at
                    data = bytes(payload)
                    word = data.partition(b" ")[0]
                    append = int(word) if word.isdigit() else 0
                    if data != self.payload(stream, number, append):
                        problems.append(f"{stream} {number} was never appended: {data[:40]!r}")
                    if released.get(number, append) != append:
                        problems.append(
                            f"{stream} {number} was part of append {released[number]}, and is now part of {append}"
                        )
                    if number not in released:
                        new.append((number, append))
                    found.setdefault(append, set()).add((stream, number))
                seq = run.last_seq + 1
        if self.strict:
            gone = [n for n in released if n > last]
            problems += [f"{stream} {gone[0]} to {gone[-1]} are LOST"] if gone else []

    def _kept(self, found: Mapping[int, Any], oldest: Mapping[str, int]) -> list[int]:
        """Return the sent appends that are in the journal, or that retention may have deleted."""
        return [
            append
            for append, parts in self.sent.items()
            if append in found or all(first + count <= oldest[stream] for stream, first, count in parts)
        ]

    def _check_appends(self, found: dict[int, set[tuple[str, int]]], oldest: Mapping[str, int]) -> list[str]:
        """Check that the appends since the last check are kept in order, each completely; return the problems."""
        problems = []
        missing = None
        for append, parts in sorted(self.sent.items()):
            all_of_it = {(stream, first + i) for stream, first, count in parts for i in range(count)}
            there = found.get(append, set())
            kept = {(stream, n) for stream, n in all_of_it if n >= oldest[stream]}
            if there and there & kept != kept:
                problems.append(f"{len(there)} of {len(kept)} records of append {append} are there")
            if there and missing is not None:
                problems.append(f"append {append} is there, but {missing} before it is not")
            if kept and not there:
                missing = append
                if append in self.acked and self.strict:
                    problems.append(f"append {append} was acknowledged and is LOST")
            if there - all_of_it:
                problems.append(f"more records are part of append {append} than were appended")
        return problems

    # Called in the process that survives:

    def hear(self, said: bytes) -> list[str]:
        """Handle everything that the process has reported; return the problems."""
        problems: list[str] = []
        lines, _, torn = said.rpartition(b"\n")
        if torn:
            problems.append(f"a line ends in the middle: {torn[:80]!r}")
        for line in lines.splitlines():
            problems += self.hear_one(*ast.literal_eval(line.decode()))
        return problems

    def hear_one(self, word: str, *rest: Any) -> list[str]:
        """Handle one report, a word and its arguments; return the problems."""
        problems: list[str] = []
        if word == "found":
            self._found(rest[0], problems)
        elif word == "sent":
            self.sent[rest[0]] = rest[1]
            self.appends = rest[0]
        elif word == "acked":
            self._acknowledged(rest[0])
        else:
            problems.append(rest[0])
        return problems

    def _acknowledged(self, append: int) -> None:
        self.acked.add(append)
        self.acknowledged += 1
        for stream, first, count in self.sent[append]:
            for seq in range(first, first + count):
                self.released[stream][seq] = append

    def _found(self, told: dict[str, Any], problems: list[str]) -> None:
        problems += told["problems"]
        for stream, numbers in told["new"].items():
            for seq, append in numbers:
                if append not in self.sent:
                    problems.append(f"{stream} {seq} is part of append {append}, which was never sent")
                self.released[stream][seq] = append
        self.kept += len(told["kept"])
        self.lost += len(self.acked.difference(told["kept"]))
        self.sent, self.acked = {}, set()
