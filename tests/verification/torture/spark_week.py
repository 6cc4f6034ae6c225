#!/usr/bin/env python3
"""Archive a simulated week, with a round each minute and maintenance each hour, and count the files of the lake.

    spark_week.py [--minutes 10080] [--streams 20] [--records 50] [--mixed] [--directory DIR]

Time is simulated: each round archives the records of the next minute, of all streams.  Entries of the lake's log get
older with the simulated time; merged files do not, so that the log still lists all of them in the end.  Prints the
number of files, of entries of the log, and the CPU time of commits and of whole rounds, on the first and on the last
day.  The exit status is 1 if the lake has 500 files or more, or another number of records than the journal.

With --mixed the streams have different sizes, by Zipf's law, and ten records of one stream follow on each other.
benchmarks/spark_layout.py then shows how many bytes readers need for one stream.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

import attrs
import polars

from fyrehose.journal.files import Files
from fyrehose.journal.recovery import recover
from fyrehose.journal.writer import Writer
from fyrehose.records import Run
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.jobs.optimize import optimize
from fyrehose.spark.lake import Lake

#: The largest number of files that a lake may have after a week.
MOST = 500
START = 1_700_006_400_000_000  #: midnight, in microseconds since 1970
MINUTE = 60_000_000
DAY, HOUR = 24 * 60, 60
#: With --mixed, how many records of one stream follow on each other.
RUN = 10


@attrs.define(eq=False)
class Week:
    """A journal that gets the records of the next minute after each round, and the costs of the rounds."""

    writer: Writer
    lake: Path
    args: argparse.Namespace
    minute: int = 0
    rounds: list[float] = attrs.field(factory=list)
    commits: list[float] = attrs.field(factory=list)
    ends: dict[str, int] = attrs.field(factory=dict)
    dice: random.Random = attrs.field(factory=lambda: random.Random(1))
    _began: float = attrs.field(factory=time.process_time, init=False)

    def advance(self, *_: object) -> None:
        """Finish a round, and append the records of the next minute."""
        if self.minute:
            self.rounds.append(time.process_time() - self._began)
        now = START + self.minute * MINUTE
        if self.minute and self.minute % HOUR == 0:
            self.age_log()
            optimize(self.lake, now=datetime.fromtimestamp(now / 1e6, UTC))
        if self.minute and self.minute % DAY == 0:
            print(f"day {self.minute // DAY}: {len(Lake.existing(self.lake).files())} files", flush=True)
        if self.minute < self.args.minutes:
            self.writer.commit([list(self.runs(now))], now, now)
        self.minute += 1
        self._began = time.process_time()

    def runs(self, now: int) -> Iterator[Run]:
        """Yield the runs of a minute."""
        names, many = [f"stream{n}" for n in range(self.args.streams)], self.args.records
        if self.args.mixed:
            weights = [1 / (n + 1) for n in range(len(names))]
            names, many = self.dice.choices(names, weights, k=len(names) * many // RUN), RUN
        for name in names:
            payloads = [b'{"minute": %d, "record": %d}' % (self.minute, n) for n in range(many)]
            if self.args.mixed:
                payloads = [
                    b'{"id": "%b", "event": %b}' % (self.dice.randbytes(40).hex().encode(), p) for p in payloads
                ]
            first = self.ends.get(name, 0) + 1
            self.ends[name] = first + many - 1
            yield Run.of(name, payloads, source="torture").numbered(first, now)

    def age_log(self) -> None:
        """Make the entries of the lake's log an hour older, so that those older than a day are removed as usual."""
        for path in (self.lake / "_delta_log").iterdir():
            then = path.stat().st_mtime - HOUR * 60
            os.utime(path, (then, then))

    def measured(self, commit: Callable[..., None]) -> Callable[..., None]:
        """Return the lake's method *commit*, with a measurement of its CPU time."""

        def run(*words: Any) -> None:
            began = time.process_time()
            commit(*words)
            self.commits.append(time.process_time() - began)

        return run


def told(name: str, seconds: list[float]) -> None:
    """Print the costs of commits or rounds on the first and on the last day."""
    for day, part in (("first", seconds[:DAY]), ("last", seconds[-DAY:])):
        slowest = quantiles(part, n=100)[98]
        print(f"{name} of the {day} day: {mean(part) * 1e3:.1f} ms of CPU, 99 % within {slowest * 1e3:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=7 * DAY)
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--records", type=int, default=50, help="records of each stream in each minute")
    parser.add_argument("--mixed", action="store_true", help="streams of different sizes, interleaved")
    parser.add_argument("--directory", type=Path)
    args = parser.parse_args()
    directory = args.directory or Path(tempfile.mkdtemp(prefix="fyrehose-spark-week-"))
    journal, lake = directory / "journal", directory / "lake"
    journal.mkdir(parents=True)
    writer = Writer(journal, recover(journal, Files()), 64 << 20, True)
    writer.open(START)
    week = Week(writer, lake, args)
    Lake.commit = week.measured(Lake.commit)  # type: ignore[method-assign]
    done = archive(
        None,
        str(journal),
        lake,
        server="week",
        follow=True,
        every=0.0,
        progress=week.advance,
        stop=lambda: week.minute > args.minutes,
    )
    optimize(lake, now=datetime.fromtimestamp(START / 1e6 + args.minutes * 60, UTC))
    files, expected = Lake.existing(lake).files(), sum(week.ends.values())
    told("a commit", week.commits)
    told("a round", week.rounds)
    rows = sum(file.rows for file in files)
    print(f"the log has {len(list(lake.glob('_delta_log/*.json')))} entries")
    print(f"{done.rounds} rounds, {rows:,} records in {len(files)} files", flush=True)
    counted = polars.scan_delta(str(lake)).group_by("stream").agg(polars.col("seq").n_unique(), polars.len()).collect()
    found = {stream: (numbers, many) for stream, numbers, many in counted.iter_rows()}
    if found != {stream: (end, end) for stream, end in week.ends.items()} or rows != expected or len(files) >= MOST:
        sys.exit(f"expected {expected:,} records, each once, in less than {MOST} files; see {directory}")
    if args.directory is None:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
