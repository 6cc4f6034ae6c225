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
#: Kinds of payloads: hexadecimal digits, which are half random; events in JSON of 150 bytes on average, or of 250.
SHAPES = "hex", "json", "mixed"


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


def long_events() -> list[bytes]:
    """Return the same events with an agent and an address, 250 bytes on average."""
    dice = random.Random(4)
    agents = [f"Mozilla/5.0 (X11; Linux x86_64; rv:{n}.0) Gecko/20100101 Firefox/{n}.0" for n in range(100, 130)]
    return [
        b'%s,"client":"10.%d.%d.%d","agent":"%s"}'
        % (line[:-1], *dice.choices(range(256), k=3), dice.choice(agents).encode())
        for line in events()
    ]


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
    directory: Path,
    rows: int,
    per_batch: int,
    payload: int,
    segment: int = 64 << 20,
    shape: str = "hex",
    streams: int = STREAMS,
    per_run: int | None = None,
) -> None:
    """Write a journal with batches of ``per_batch`` records, in streams of ten producers.

    :param payload: size of a payload of hexadecimal digits, in bytes; events in JSON have their own
    :param per_run: this many records of one stream follow one another, and the streams have different sizes, by Zipf's
        law; None: each batch is of one stream, and all have the same size
    """
    directory.mkdir(parents=True)
    writer = Writer(directory, Recovered(directory=directory), segment, True, NoSync())
    writer.open(START)
    index = SegmentIndex(0)
    dice = random.Random(1)
    lines = {"json": events, "mixed": long_events}.get(shape, lambda: hexadecimal(payload))()
    begins = [0, *accumulate(map(len, lines))]
    sizes, text = struct.pack(f"<{LINES}I", *map(len, lines)), b"".join(lines)
    names, weights = [f"stream{i}" for i in range(streams)], [1 / (i + 1) for i in range(streams)]
    ends = dict.fromkeys(names, 0)
    size = per_run or per_batch
    for i in range(rows // per_batch):
        now = START + i * 1000
        many = range(per_batch // size)
        chosen = dice.choices(names, weights, k=len(many)) if per_run else [names[i % streams]]
        runs = []
        for number, stream in zip(many, chosen, strict=True):
            at = dice.randrange(LINES - size)
            run = Run(
                stream=stream,
                source="figg",
                producer=f"127.0.0.1:{5000 + (i + number) % PRODUCERS}",
                lengths=sizes[4 * at : 4 * (at + size)],
                payload=text[begins[at] : begins[at + size]],
                producer_seq=ends[stream] + 1,
            )
            runs.append(run.numbered(ends[stream] + 1, now))
            ends[stream] += size
        done = writer.commit([runs], now, now)
        if done.rolled:
            base, end = done.rolled.sealed
            index.end = end
            scan.index_path_of(directory, base).write_bytes(index.pack())
            index = SegmentIndex(done.rolled.base, done.rolled.base)
            index.set_before(done.rolled.entries)
        for batch in done.batches:
            for name, runs in batch.streams.items():
                index.add_run(batch.position, name, runs[0].first_seq, runs[-1].last_seq)
    writer.close(in_order=True)
