#!/usr/bin/env python3
"""Measure what it takes to archive and count a large journal, with the commands that a user types.

    spark_archive.py [--records 100000000] [--payload 64 | --shape json|mixed] [--per-batch 1000]
                     [--streams 4] [--per-run RECORDS] [--memory 2g]
                     [--directory DIR] [--engine spark|local] [--stage write|archive|count|compare ...]

    write     the journal, in some streams; with --per-run, of different sizes and interleaved in each batch
    archive   fyrehose-spark archive JOURNAL LAKE
    count     fyrehose-spark table --lake LAKE --journal JOURNAL, and whether it says what was written
    compare   what ``table`` costs beside the same Parquet files read natively (--rounds of them)

Time, CPU and peak memory are those of the driver, the JVM and the Python workers together (spark_usage.py).  Without
--stage all of them are done, in a directory that is removed in the end; with --stage it is kept for the next one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import spark_journal
import spark_usage
from spark_read import measure, of_lake

from fyrehose.spark import session

STAGES = ("write", "archive", "count", "compare")


def write(journal: Path, args: argparse.Namespace) -> None:
    began, used = time.monotonic(), time.process_time()
    spark_journal.write(
        journal,
        args.records,
        args.per_batch,
        args.payload,
        shape=args.shape,
        streams=args.streams,
        per_run=args.per_run,
    )
    size = sum(path.stat().st_size for path in journal.iterdir())
    wall, cpu = time.monotonic() - began, time.process_time() - used
    print(f"write: {args.records:,} records, {size / 1e9:.2f} GB of journal; {wall:.1f} s wall, {cpu:.1f} s CPU")


def archive(journal: Path, lake: Path, args: argparse.Namespace) -> None:
    used = command("archive", str(journal), str(lake), "--memory", args.memory, "--engine", args.engine)
    size = sum(path.stat().st_size for path in lake.rglob("*.parquet"))
    print(
        f"archive: {used}; {args.records / used.cpu / 1e6:.2f} M records per CPU second, {size / 1e9:.2f} GB of Parquet"
    )


def count(journal: Path, lake: Path, args: argparse.Namespace) -> None:
    used = command("table", "--lake", str(lake), "--journal", str(journal), "--memory", args.memory)
    expected = f"{args.records // spark_journal.STREAMS:,}"
    lines = [line.split() for line in used.output.splitlines() if line.startswith("stream")]
    counts = [words[1] for words in lines if words[1] != "records"]
    print(f"count: {used}")
    if counts != [expected] * spark_journal.STREAMS:
        sys.exit(f"counted were {counts}, and written {spark_journal.STREAMS} times {expected}")


def compare(journal: Path, lake: Path, args: argparse.Namespace) -> None:
    spark = session("compare", "local[2]", memory=args.memory)
    try:
        for pair in of_lake(spark, str(journal), lake, "compare"):
            measure(args.records, args.rounds, pair)
    finally:
        spark.stop()


def command(*words: str) -> spark_usage.Used:
    """Run a command to its end, print its output, and return what it used."""
    used = spark_usage.run([sys.executable, "-c", "from fyrehose.cli.spark import main; main()", *words])
    print(used.output, end="")
    if used.status:
        sys.exit(f"{words[0]} ended with status {used.status}")
    return used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000_000)
    parser.add_argument("--payload", type=int, default=64)
    parser.add_argument("--shape", choices=spark_journal.SHAPES, default="hex")
    parser.add_argument("--per-batch", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=spark_journal.STREAMS)
    parser.add_argument("--per-run", type=int)
    parser.add_argument("--memory", default="2g")
    parser.add_argument("--engine", choices=("spark", "local"), default="spark")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--stage", action="append", choices=STAGES)
    args = parser.parse_args()
    directory = args.directory or Path(tempfile.mkdtemp(prefix="fyrehose-spark-archive-"))
    journal, lake = directory / "journal", directory / "lake"
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors", flush=True)
    for stage in args.stage or STAGES:
        if stage == "write":
            write(journal, args)
        else:
            {"archive": archive, "count": count, "compare": compare}[stage](journal, lake, args)
        sys.stdout.flush()
    if not args.stage:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
