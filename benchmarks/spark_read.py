#!/usr/bin/env python3
"""How many rows of a journal Spark reads per CPU second: the driver, the JVM and the Python workers together.

    spark_read.py [--rows N] [--per-batch 1000,100,10] [--payload 64] [--master local[2]] [--lake]

Journals are written first, without syncs.  CPU and not wall-clock time, because machines are shared; each question is
asked twice, and the second answer counts, because the first one compiles.  With --lake each journal is archived, too,
and the same is asked of the Parquet files: natively, and through ``table``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from fyrehose.journal import scan
from fyrehose.journal.files import Files
from fyrehose.journal.index import SegmentIndex
from fyrehose.journal.recovery import Recovered
from fyrehose.journal.writer import Writer
from fyrehose.records import Run
from fyrehose.spark import session
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.tables import table

START = 1_700_000_000_000_000


class NoSync(Files):
    """Fast, and good for nothing else."""

    def sync(self, fd: int) -> None:
        pass

    def sync_directory(self, directory: Path) -> None:
        pass


def write(directory: Path, rows: int, per_batch: int, payload: int) -> None:
    """A journal of batches of ``per_batch`` records, in four streams of ten producers."""
    directory.mkdir()
    writer = Writer(directory, Recovered(), 64 << 20, True, NoSync())
    writer.open(START)
    index = SegmentIndex(0)
    data, lengths = os.urandom(payload) * per_batch, struct.pack("<I", payload) * per_batch
    for i in range(rows // per_batch):
        stream, now = f"stream{i % 4}", START + i * 1000
        first = i // 4 * per_batch + 1
        run = Run(
            stream=stream, source="figg", producer=f"127.0.0.1:{5000 + i % 10}", lengths=lengths, payload=data,
            producer_seq=first,
        )  # fmt: skip
        done = writer.commit([[run.numbered(first, now)]], now, now)
        if done.rolled:
            base, end = done.rolled.sealed
            index.end = end
            scan.index_path_of(directory, base).write_bytes(index.pack())
            index = SegmentIndex(done.rolled.base, done.rolled.base, 0, done.rolled.before)
        for header, written in done.batches:
            for one in written:
                index.add_run(header.position, one.stream, one.first_seq, one.last_seq)
    writer.close(in_order=True)


def cpu_seconds() -> float:
    """What this process and everything below it has used."""
    tick = os.sysconf("SC_CLK_TCK")
    used: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        used[int(path.name)] = int(fields[1]), sum(map(int, fields[11:15])) / tick

    def below(pid: int) -> float:
        return used[pid][1] + sum(below(child) for child, (parent, _) in used.items() if parent == pid)

    return below(os.getpid())


def measure(name: str, rows: int, question: Callable[[], object]) -> None:
    """Ask twice, and say what the second answer cost."""
    question()
    cpu, began = cpu_seconds(), time.monotonic()
    question()
    cpu, wall = cpu_seconds() - cpu, time.monotonic() - began
    print(f"{name:44} {rows / cpu / 1e6:6.2f} M rows per CPU second   {cpu:7.2f} s CPU {wall:7.2f} s wall", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--per-batch", default="1000,100,10")
    parser.add_argument("--payload", type=int, default=64)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--lake", action="store_true")
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="fyrehose-spark-read-"))
    print(f"{args.rows} rows of {args.payload} B; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    spark = session("spark_read", args.master)
    try:
        for per_batch in map(int, args.per_batch.split(",")):
            journal = directory / f"j{per_batch}"
            write(journal, args.rows, per_batch, args.payload)
            ask(spark, str(journal), args.rows, f"{per_batch}-row batches")
            if args.lake:
                ask_lake(spark, str(journal), directory / f"lake{per_batch}", args.rows, f"{per_batch}-row batches")
            shutil.rmtree(journal)
    finally:
        spark.stop()
        shutil.rmtree(directory)


def ask(spark: SparkSession, journal: str, rows: int, of: str) -> None:
    """The questions of SPARK's table, to the source."""
    source = spark.read.format("fyrehose")
    measure(f"{of}: count, every column", rows, lambda: source.load(journal).count())
    measure(f"{of}: group by stream", rows, lambda: source.load(journal).groupBy("stream").count().collect())
    measure(f"{of}: sum of lengths", rows, lambda: source.load(journal).selectExpr("sum(length(payload))").collect())
    two = spark.read.format("fyrehose").schema("stream string, seq bigint")
    measure(f"{of}: group by stream, 2 columns", rows, lambda: two.load(journal).groupBy("stream").count().collect())


def ask_lake(spark: SparkSession, journal: str, lake: Path, rows: int, of: str) -> None:
    """Archive, and ask the files."""
    cpu = cpu_seconds()
    done = archive(spark, journal, lake)
    print(
        f"{of}: archived {done.rows} in {cpu_seconds() - cpu:.1f} s CPU, {done.size >> 20} MiB of Parquet", flush=True
    )
    files = spark.read.parquet(*map(str, (lake / "data").iterdir()))
    measure(f"{of}: native Parquet", rows, lambda: files.groupBy("stream").count().collect())
    measure(f"{of}: table", rows, lambda: table(spark, lake, journal).groupBy("stream").count().collect())


if __name__ == "__main__":
    main()
