"""Write journals for benchmarks in the server's format, but without syncs, as fast as the disk allows."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

from fyrehose.journal import scan
from fyrehose.journal.files import Files
from fyrehose.journal.index import SegmentIndex
from fyrehose.journal.recovery import Recovered
from fyrehose.journal.writer import Writer
from fyrehose.records import Run

START = 1_700_000_000_000_000
STREAMS = 4
PRODUCERS = 10
#: How many different payloads there are: too many for Parquet to keep them in a dictionary.
LINES = 1 << 18


class NoSync(Files):
    """Files that are never synced, for speed."""

    def sync(self, fd: int) -> None:
        pass

    def sync_directory(self, directory: Path) -> None:
        pass


def write(directory: Path, rows: int, per_batch: int, payload: int, segment: int = 64 << 20) -> None:
    """Write a journal with batches of ``per_batch`` records of hexadecimal digits, in four streams of ten producers."""
    directory.mkdir(parents=True)
    writer = Writer(directory, Recovered(directory=directory), segment, True, NoSync())
    writer.open(START)
    index = SegmentIndex(0)
    dice = random.Random(1)
    lines = os.urandom(payload * LINES // 2).hex().encode()
    lengths = struct.pack("<I", payload) * per_batch
    for i in range(rows // per_batch):
        first, now = i // STREAMS * per_batch + 1, START + i * 1000
        at = dice.randrange(LINES - per_batch) * payload
        run = Run(
            stream=f"stream{i % STREAMS}",
            source="figg",
            producer=f"127.0.0.1:{5000 + i % PRODUCERS}",
            lengths=lengths,
            payload=lines[at : at + payload * per_batch],
            producer_seq=first,
        )
        done = writer.commit([[run.numbered(first, now)]], now, now)
        if done.rolled:
            base, end = done.rolled.sealed
            index.end = end
            scan.index_path_of(directory, base).write_bytes(index.pack())
            index = SegmentIndex(done.rolled.base, done.rolled.base)
            index.set_before(done.rolled.entries)
        for header, written in done.batches:
            for one in written:
                index.add_run(header.position, one.stream, one.first_seq, one.last_seq)
    writer.close(in_order=True)
