#!/usr/bin/env python3
"""Flip every bit of a segment, and cut it at every byte, and check how recovery handles each damaged copy.

    bits.py [--count N] [--seed S] [--jobs J] [--shape NAME] [--size BYTES]

A segment of --size bytes is written in each of three shapes: many tiny runs, few large ones, many streams; and segments
of two batches each, of 200 KiB, 1 MiB and 8 MiB.  Each trial damages a copy of a segment:

    checks    flips one bit of what was written: the checksum of its batch, or of the segment's header, must detect it.
    flips     flips one bit.  Below the durable mark the journal must refuse to open and must not be changed; behind the
              mark, and in the last batch if the mark does not cover it, recovery must find everything before the batch.
    cuts      ends the file at a byte, or continues it with zeros or garbage; with the mark, with one that does not
              cover the last batch, and without a mark: nine trials for each byte.  The journal must refuse to open, or
              recover a beginning of what was written that reaches at least to the mark.

A record that was not written must never appear.  --count chooses so many positions of each kind and shape at random; 0
takes all.  In large batches it takes the beginning and the end of each header, of each body and of each 64 KiB of a
body, and a random position for every 50 of --count.  Prints the number of trials; the exit status is 1 if any failed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain, pairwise
from pathlib import Path

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal import packing, scan
from fyrehose.journal.recovery import Recovered, recover
from fyrehose.journal.writer import Writer
from fyrehose.records import Run
from tests.doubles.disk import WatchedFiles

#: The shapes that consist of one large batch after the other: the size of each batch's payloads, in bytes.
BATCHES = {"200 KiB": 200 << 10, "1 MiB": 1 << 20, "8 MiB": 8 << 20}
SHAPES = ("tiny", "large", "streams", *BATCHES)
KINDS = ("checks", "flips", "cuts")
FILLS = ("cut", "zeros", "garbage")
#: How many positions one job tries.
SHARE = 2000
#: One random position of a large batch for so many of --count, because each trial reads and writes megabytes.
RARE = 50


class Specimen:
    """A segment as it was written, its records, and a directory for damaged copies."""

    def __init__(self, directory: Path, shape: str, size: int, seed: int) -> None:
        self.directory, self.shape, self.files = directory, shape, WatchedFiles()
        writer = Writer(directory, Recovered(directory=directory), size, True, self.files)
        writer.open(1)
        #: the position of each batch, the last number of each stream before it, and a digest of the records before it
        self.states: list[tuple[int, dict[str, int], bytes]] = []
        self._write(writer, random.Random(seed), size)
        self.end, self.last = writer.position, self.states[-2][0]
        writer.close(in_order=False)
        self.path = scan.path_of(directory, 0)
        self.whole = self.path.read_bytes()
        self.marks = {
            "mark": scan.pack_mark(self.end),
            "old mark": scan.pack_mark(self.last),
            "no mark": b"",
        }

    def _write(self, writer: Writer, dice: random.Random, size: int) -> None:
        digest = hashlib.blake2b()
        while True:
            self.states.append((writer.position, dict(writer.streams.ends), digest.digest()))
            runs = self._runs(writer.streams.ends, dice)
            needed = sum(run.room for run in runs) + fmt.BATCH_HEADER.size
            if writer.position + needed > size:
                return
            writer.commit([runs], 1, 1)
            for run in chain.from_iterable(packing.grouped(runs).values()):
                _digest(digest, run)

    def _runs(self, ends: dict[str, int], dice: random.Random) -> list[Run]:
        if self.shape in BATCHES:
            size = BATCHES[self.shape]
            payloads = [dice.randbytes(size // 2), dice.randbytes(size // 2 - 1000), *[dice.randbytes(100)] * 10]
            return [Run.of("s", payloads, source="figg", producer_seq=7).numbered(ends.get("s", 0) + 1, 1)]
        if self.shape == "tiny":
            sizes = {"s": dice.randrange(12), "t": dice.randrange(12)}
        elif self.shape == "large":
            sizes = {"s": dice.randrange(4000, 9000)}
        else:
            sizes = {f"stream-{dice.randrange(1000)}": dice.randrange(40) for _ in range(40)}
        return [
            Run.of(stream, [dice.randbytes(length)], source="figg", producer_seq=7).numbered(ends.get(stream, 0) + 1, 1)
            for stream, length in sizes.items()
        ]

    def damage(self, changed: bytes, mark: str) -> str:
        """Write the *changed* segment and a mark, and recover; return "refused" or "recovered".

        :raises AssertionError: recovery changed a refused file, or found something that was not written
        """
        self.path.write_bytes(changed)
        mark_path = self.directory / scan.MARK_NAME
        if self.marks[mark]:
            mark_path.write_bytes(self.marks[mark])
        else:
            mark_path.unlink(missing_ok=True)
        try:
            found = recover(self.directory, self.files)
        except JournalCorrupt:
            assert self.path.read_bytes() == changed, "recovery refused the file, but changed it"
            return "refused"
        self._check(found, mark)
        for aside in self.directory.glob("torn-*"):
            aside.unlink()
        return "recovered"

    def _check(self, found: Recovered, mark: str) -> None:
        known = [state for state in self.states if state[0] == found.position]
        assert known, f"recovery continues at {found.position}, where no batch ends"
        position, ends, digest = known[0]
        least = {"mark": self.end, "old mark": self.last, "no mark": 0}[mark]
        assert position >= least, f"recovery cut off {least - position} durable bytes"
        assert found.streams.ends == ends, "recovery found other sequence numbers than were written"
        assert self._reread(position) == digest, "recovery found other records than were written"

    def _reread(self, stop: int) -> bytes:
        digest = hashlib.blake2b()
        reader = scan.SegmentReader(self.path, 0, self.files)
        try:
            for header, body in reader.batches(fmt.SEGMENT_HEADER.size, stop):
                if header.kind is fmt.Kind.RECORDS:
                    for run in fmt.runs(body, header.time):
                        _digest(digest, run)
        finally:
            reader.close()
        return digest.digest()

    def check(self, bit: int) -> list[str]:
        """Check that the checksum of the header or batch around *bit* detects the flipped bit."""
        if bit // 8 >= self.end:
            return []
        changed = bytearray(self.whole)
        changed[bit // 8] ^= 1 << bit % 8
        position = max((state[0] for state in self.states if state[0] <= bit // 8), default=0)
        try:
            if bit // 8 < fmt.SEGMENT_HEADER.size:
                fmt.SegmentHeader.unpack(changed)
            else:
                position = max(position, fmt.SEGMENT_HEADER.size)
                view = memoryview(changed)[position:]
                header = fmt.BatchHeader.unpack(view, position)
                header.check(view[fmt.BATCH_HEADER.size : fmt.BATCH_HEADER.size + header.length])
        except fmt.Damage:
            return ["refused"]
        raise AssertionError("no checksum has detected the flipped bit")

    def flip(self, bit: int) -> list[str]:
        changed = bytearray(self.whole)
        changed[bit // 8] ^= 1 << bit % 8
        outcome = self.damage(bytes(changed), "mark")
        assert outcome == ("refused" if bit // 8 < self.end else "recovered"), outcome
        if self.last <= bit // 8 < self.end:
            assert self.damage(bytes(changed), "old mark") == "recovered"
        return [outcome]

    def cut(self, at: int) -> list[str]:
        dice = random.Random(at)
        outcomes = []
        for fill in FILLS:
            rest = {"cut": b"", "zeros": bytes(len(self.whole) - at), "garbage": dice.randbytes(len(self.whole) - at)}
            changed = self.whole[:at] + rest[fill]
            for mark in self.marks:
                outcome = self.damage(changed, mark)
                if mark == "mark" and at < self.end and changed[: self.end] != self.whole[: self.end]:
                    assert outcome == "refused", f"{fill}: {outcome}"
                if at < fmt.SEGMENT_HEADER.size + 1:
                    assert outcome == "refused", "a segment without its header was not refused"
                outcomes.append(outcome)
        return outcomes


def _digest(digest: hashlib.blake2b, run: Run) -> None:
    digest.update(f"{run.stream} {run.first_seq} {run.source} {run.producer_seq} ".encode())
    digest.update(run.lengths)
    digest.update(run.payload)


def share(kind: str, shape: str, size: int, seed: int, places: Iterable[int]) -> tuple[int, dict[str, int], list[str]]:
    """Try ``places``; return how many trials there were, how many had each outcome, and the failures."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="fyrehose-bits-", dir=base))
    outcomes: dict[str, int] = {}
    wrong = []
    tried = 0
    try:
        specimen = Specimen(directory, shape, size, seed)
        attempts: dict[str, Callable[[int], list[str]]] = {
            "checks": specimen.check,
            "flips": specimen.flip,
            "cuts": specimen.cut,
        }
        for place in places:
            tried += 1
            try:
                for outcome in attempts[kind](place):
                    outcomes[outcome] = outcomes.get(outcome, 0) + 1
            except Exception as error:
                wrong.append(f"{shape} {kind} {place} (seed {seed}): {type(error).__name__}: {error}")
    finally:
        shutil.rmtree(directory)
    return tried, outcomes, wrong


def size_of(shape: str, size: int) -> int:
    """Return the size of the segment of a *shape*: two large batches, or *size* bytes."""
    return 2 * BATCHES[shape] + (16 << 10) if shape in BATCHES else size


def edges(shape: str, size: int, seed: int) -> list[int]:
    """Return the bytes of a segment of large batches where a header, a body, or 64 KiB of a body begins or ends."""
    directory = Path(tempfile.mkdtemp(prefix="fyrehose-bits-"))
    try:
        states = Specimen(directory, shape, size, seed).states
    finally:
        shutil.rmtree(directory)
    found = set()
    for (begin, _, _), (end, _, _) in pairwise(states):
        body = begin + fmt.BATCH_HEADER.size
        for middle in (begin, body, body + (64 << 10), body + (128 << 10), (body + end) // 2, end - (64 << 10), end):
            found.update((middle - 1, middle))
    return sorted(found)


def shares(
    shape: str,
    size: int,
    seed: int,
    kind: str,
    count: int,
    dice: random.Random,
) -> Iterator[Iterable[int]]:
    size = size_of(shape, size)
    total = size if kind == "cuts" else size * 8
    if shape in BATCHES:
        places = [at if kind == "cuts" else 8 * at + dice.randrange(8) for at in edges(shape, size, seed)]
        places += dice.sample(range(total), (count or SHARE) // RARE)
    else:
        places = list(range(total) if not count or count >= total else dice.sample(range(total), count))
    for begin in range(0, len(places), SHARE):
        yield places[begin : begin + SHARE]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="positions of each kind and shape; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--size", type=int, default=64 << 10)
    parser.add_argument("--shape", choices=SHAPES, action="append")
    parser.add_argument("--kind", choices=KINDS, action="append")
    arguments = parser.parse_args()
    dice = random.Random(arguments.seed)
    failed = 0
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for shape in arguments.shape or SHAPES:
            for kind in arguments.kind or KINDS:
                began = time.monotonic()
                jobs = [
                    pool.submit(share, kind, shape, size_of(shape, arguments.size), arguments.seed, places)
                    for places in shares(shape, arguments.size, arguments.seed, kind, arguments.count, dice)
                ]
                tried, outcomes, wrong = 0, dict.fromkeys(("refused", "recovered"), 0), []
                for job in jobs:
                    some, results, problems = job.result()
                    tried += some
                    wrong += problems
                    for outcome, times in results.items():
                        outcomes[outcome] += times
                seconds, size = time.monotonic() - began, size_of(shape, arguments.size)
                print(
                    f"{shape}: {tried} {kind} of {size} bytes, {outcomes['refused']} refused, "
                    f"{outcomes['recovered']} recovered what was before, {len(wrong)} wrong, {seconds:.0f} s",
                    flush=True,
                )
                for problem in wrong[:10]:
                    print(f"WRONG: {problem}")
                failed += len(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
