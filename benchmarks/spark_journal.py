"""Write journals for benchmarks in the server's format, but without syncs, as fast as the disk allows."""

from __future__ import annotations

import os
import random
import struct
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path

from fyrehose.journal import scan
from fyrehose.journal.files import SteppedFiles
from fyrehose.journal.index import SegmentIndex
from fyrehose.journal.recovery import Recovered
from fyrehose.journal.writer import Writer
from fyrehose.records import Run

START = 1_700_000_000_000_000
STREAMS = 4
PRODUCERS = 10
#: How many different payloads there are: too many for Parquet to keep them in a dictionary.
LINES = 1 << 18
#: Kinds of payloads: hexadecimal digits, which are half random, or events in JSON of 150 bytes on average.
SHAPES = "hex", "json"


class NoSync(SteppedFiles):
    """Files that are never synced, for speed."""

    def sync(self, fd: int) -> None:
        pass

    def sync_directory(self, directory: Path) -> None:
        pass


def hexadecimal(size: int) -> list[bytes]:
    """Return lines of ``size`` hexadecimal digits."""
    digits = os.urandom(size * LINES // 2).hex().encode()
    return [digits[at : at + size] for at in range(0, size * LINES, size)]


def events() -> list[bytes]:
    """Return events as Filebeat sends those of a web server, without its fields about itself: 150 bytes on average."""
    dice, now = random.Random(2), datetime(2026, 3, 1, tzinfo=UTC)
    levels, methods = ["info"] * 90 + ["warn"] * 8 + ["error"] * 2, ["GET"] * 8 + ["POST", "PUT"]
    paths = [f"{one}/{other}" for one in ("api", "shop", "static") for other in ("orders", "users", "img", "cart")]
    found = []
    for _ in range(LINES):
        now += timedelta(milliseconds=dice.expovariate(0.1))
        status = dice.choice([200] * 16 + [201, 304, 404, 500])
        found.append(
            f'{{"@timestamp":"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03}Z","level":"{dice.choice(levels)}",'
            f'"host":"web-{dice.randrange(20)}","method":"{dice.choice(methods)}",'
            f'"path":"/{dice.choice(paths)}/{dice.randrange(100_000)}","status":{status},'
            f'"ms":{dice.lognormvariate(3, 1):.1f},"trace":"{dice.getrandbits(32):08x}"}}'.encode()
        )
    return found


def write(
    directory: Path, rows: int, per_batch: int, payload: int, segment: int = 64 << 20, shape: str = "hex"
) -> None:
    """Write a journal with batches of ``per_batch`` records, in four streams of ten producers.

    :param payload: size of a payload of hexadecimal digits, in bytes; events in JSON have their own
    """
    directory.mkdir(parents=True)
    writer = Writer(directory, Recovered(directory=directory), segment, True, NoSync())
    writer.open(START)
    index = SegmentIndex(0)
    dice = random.Random(1)
    lines = events() if shape == "json" else hexadecimal(payload)
    begins = [0, *accumulate(map(len, lines))]
    sizes, text = struct.pack(f"<{LINES}I", *map(len, lines)), b"".join(lines)
    for i in range(rows // per_batch):
        first, now = i // STREAMS * per_batch + 1, START + i * 1000
        at = dice.randrange(LINES - per_batch)
        run = Run(
            stream=f"stream{i % STREAMS}",
            source="figg",
            producer=f"127.0.0.1:{5000 + i % PRODUCERS}",
            lengths=sizes[4 * at : 4 * (at + per_batch)],
            payload=text[begins[at] : begins[at + per_batch]],
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
            for name, runs in written.items():
                index.add_run(header.position, name, runs[0].first_seq, runs[-1].last_seq)
    writer.close(in_order=True)
