#!/usr/bin/env python3
"""Archives a week of one round a minute in one run, with maintenance every hour; says how many files the lake has then.

    spark_week.py [--minutes 10080] [--streams 20] [--records 50] [--directory DIR]

Time is simulated: each round has the records of the next minute, of all streams.  Entries of the lake's log get older
with it; files that were merged do not, so that the log still lists all of them in the end.  Printed are the number of
files, of entries of the log, and the CPU time of commits and of whole rounds, on the first and on the last day.  The
status is 1 if the lake has 500 files or more, or another number of records than the journal.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

import attrs

from fyrehose.journal.files import Files
from fyrehose.journal.recovery import recover
from fyrehose.journal.writer import Writer
from fyrehose.records import Run
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.jobs.optimize import optimize
from fyrehose.spark.lake import Lake

#: Most files that a lake may have after a week.
MOST = 500
START = 1_700_006_400_000_000  #: midnight, in microseconds since 1970
MINUTE = 60_000_000
DAY, HOUR = 24 * 60, 60


@attrs.define(eq=False)
class Week:
    """A journal that gets the records of the next minute after each round, and what the rounds cost."""

    writer: Writer
    lake: Path
    args: argparse.Namespace
    minute: int = 0
    rounds: list[float] = attrs.field(factory=list)
    commits: list[float] = attrs.field(factory=list)
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
            ends = self.writer.streams.ends
            payloads = [b'{"minute": %d, "record": %d}' % (self.minute, n) for n in range(self.args.records)]
            runs = [Run.of(f"stream{n}", payloads, source="torture") for n in range(self.args.streams)]
            self.writer.commit([[run.numbered(ends.get(run.stream, 0) + 1, now) for run in runs]], now, now)
        self.minute += 1
        self._began = time.process_time()

    def age_log(self) -> None:
        """Make the entries of the lake's log an hour older, so that those older than a day are removed as usual."""
        for path in (self.lake / "_delta_log").iterdir():
            then = path.stat().st_mtime - HOUR * 60
            os.utime(path, (then, then))

    def measured(self, commit: Callable[..., None]) -> Callable[..., None]:
        """Return a commit of the lake that measures itself."""

        def run(*words: Any) -> None:
            began = time.process_time()
            commit(*words)
            self.commits.append(time.process_time() - began)

        return run


def told(name: str, seconds: list[float]) -> None:
    """Print what commits or rounds cost on the first and on the last day."""
    for day, part in (("first", seconds[:DAY]), ("last", seconds[-DAY:])):
        slowest = quantiles(part, n=100)[98]
        print(f"{name} of the {day} day: {mean(part) * 1e3:.1f} ms of CPU, 99 % within {slowest * 1e3:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=7 * DAY)
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--records", type=int, default=50, help="records of each stream in each minute")
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
    files, expected = Lake.existing(lake).files(), args.minutes * args.streams * args.records
    told("a commit", week.commits)
    told("a round", week.rounds)
    rows = sum(file.rows for file in files)
    print(f"the log has {len(list(lake.glob('_delta_log/*.json')))} entries")
    print(f"{done.rounds} rounds, {rows:,} records in {len(files)} files", flush=True)
    if rows != expected or len(files) >= MOST:
        sys.exit(f"expected {expected:,} records in less than {MOST} files; see {directory}")
    if args.directory is None:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
