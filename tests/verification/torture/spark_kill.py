#!/usr/bin/env python3
"""Kill the archive again and again with ``kill -9``, and check that the lake has every record exactly once.

    spark_kill.py [--engine spark|local] [--count N] [--seed S] [--directory DIR] [--busy SECONDS]

A program writes to a journal, and rolls it, all the time.  ``fyrehose-spark archive --follow`` starts, and after a
random time one of its processes is killed: the driver (Python), the JVM, or one of the workers that write.  If the
archive survives that, it is killed completely before the next one starts.  With --engine local there is only the
driver.  In some lives a second archive of the journal starts, which must be refused.  Before some lives another program
deletes a row of a file by a deletion vector.  In the end the archive runs once undisturbed, and the lake is read with
Polars, without Spark and pyarrow, before and after its files are merged: it must have every durable record that was not
deleted once, and unchanged.  plain_reader.py, not the reader that writes the lake, reads the journal.

The exit status is 1 if anything is missing, doubled or different; then the directory is kept.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote

import attrs
import kills
import polars
import pyarrow as pa
from deltalake import DeltaTable
from plain_reader import Record, records
from spark_lives import SPARK, Process, disturb, lives, parser_of, rounds, spawn, writing

from fyrehose.journal.files import Files
from fyrehose.journal.recovery import recover
from fyrehose.journal.writer import Writer
from fyrehose.records import Run
from fyrehose.spark.jobs.optimize import optimize
from tests.doubles.deltavectors import delete_rows

COLUMNS = ("stream", "seq", "payload")
#: Before one in so many lives another program deletes a row.
DELETING = 3
#: The exit status of an archive that is refused because another one of the same journal runs.
REFUSED = 5


def write(directory: Path, seed: int, pause: float = 0.05) -> None:
    """Write to a journal until this process is killed, with *pause* seconds between commits."""
    dice = random.Random(seed)
    directory.mkdir(parents=True, exist_ok=True)
    writer = Writer(directory, recover(directory, Files()), 256 << 10, True)
    writer.open(time.time_ns() // 1000)
    while True:
        now = time.time_ns() // 1000
        runs = []
        for stream in dice.sample(["a", "b", "c/d"], dice.randint(1, 3)):
            payloads = [dice.randbytes(dice.randint(0, 300)) for _ in range(dice.randint(1, 20))]
            runs.append(
                Run.of(stream, payloads, source="torture").numbered(writer.streams.ends.get(stream, 0) + 1, now)
            )
        writer.commit([runs], now, now)
        time.sleep(pause)


def archived(lake: Path) -> list[Record]:
    """Return every record of the lake."""
    return [Record(*row) for row in polars.scan_delta(str(lake)).select(COLUMNS).collect().iter_rows()]


@attrs.define
class Lives:
    """The archives of one journal, one after another, and what other programs do to the lake."""

    directory: Path
    engine: str
    number: int = 0
    deleted: list[Record] = attrs.field(factory=list)
    problems: list[str] = attrs.field(factory=list)
    dice: random.Random = attrs.field(factory=lambda: random.Random(1))

    @property
    def journal(self) -> Path:
        return self.directory / "journal"

    @property
    def lake(self) -> Path:
        return self.directory / "lake"

    def archive(self, *more: str) -> Process:
        words = ("archive", self.journal, self.lake, "--master", "local[2,4]", "--memory", "1g", "--round", "300K")
        words = (*SPARK, *words, "--subscription", "lake", "--engine", self.engine, *more)
        return spawn(words, self.directory / "log")

    def start(self) -> Process:
        self.number += 1
        if self.number % DELETING == 0 and rounds(self.lake):
            self.delete_row()
        return self.archive("--follow", "--every", "0.5s")

    def delete_row(self) -> None:
        """Delete the first row of a file by a deletion vector, unless the file has one already."""
        table = DeltaTable(str(self.lake))
        known = {
            unquote(uri).partition(f"{self.lake}/")[2]
            for uri in pa.table(table.deletion_vectors())["filepath"].to_pylist()
        }
        paths = [path for path in pa.table(table.get_add_actions())["path"].to_pylist() if path not in known]
        before = Counter(archived(self.lake))
        delete_rows(self.lake, self.dice.choice(sorted(paths)), [0])
        gone = before - Counter(archived(self.lake))
        self.deleted += gone.elements()
        if gone.total() != 1:
            self.problems.append(f"a deletion vector of one row has deleted {gone.total()}")

    def disturb(self, archive: Process, dice: random.Random) -> str:
        """Kill a process of the archive, or start a second archive beside it; return the kind."""
        if dice.random() < 0.75:
            kind = dice.choice(["driver", "jvm", "worker"]) if self.engine == "spark" else "driver"
            return disturb(archive, kind, dice)
        status = self.archive().wait()
        if status != REFUSED and archive.poll() is None:
            self.problems.append(f"a second archive of the journal ended with {status}")
        return "nobody, and started a rival"

    def compare(self, when: str) -> list[str]:
        """Compare the lake with the journal; return the problems."""
        expected, there = Counter(records(self.journal)) - Counter(self.deleted), Counter(archived(self.lake))
        problems = [f"{stream} {seq} is missing" for stream, seq, _ in expected - there]
        problems += [f"{stream} {seq} is there too often, or was never written" for stream, seq, _ in there - expected]
        digest = sha256(repr(sorted(there)).encode()).hexdigest()[:16]
        print(
            f"{when}: {expected.total()} records are durable, besides {len(self.deleted)} that were deleted; "
            f"{there.total()} are in the lake ({digest})",
            flush=True,
        )
        return problems


def main() -> int:
    parser = parser_of(__doc__, count=30)
    parser.add_argument("--engine", choices=("spark", "local"), default="spark")
    args = parser.parse_args()
    if args.write:
        write(args.write, args.seed)
    directory = kills.root_of(args, "spark-kill")
    life = Lives(directory, args.engine)
    with writing(__file__, life.journal, args.seed):
        kinds = lives(args, life.start, life.disturb, lambda: rounds(life.lake), wanted=2)
    status = life.archive("--round", "1G").wait()
    problems = life.problems + ([] if status == 0 else [f"the last archive ended with {status}: see {directory}/log"])
    problems += life.compare("archived")
    optimize(life.lake, now=datetime.now(UTC) + timedelta(days=2))
    problems += life.compare("merged")
    return kills.report(problems, kinds, directory)


if __name__ == "__main__":
    sys.exit(main())
