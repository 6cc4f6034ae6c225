#!/usr/bin/env python3
"""How many rows of a journal Spark reads per CPU second: the driver, the JVM and the Python workers together.

    spark_read.py [--rows N] [--per-batch 1000,100,10] [--payload 64 | --shape json] [--master local[2]] [--lake]
                  [--rounds 5]

Journals are written first, without syncs.  CPU and not wall-clock time, because machines are shared.  Each question is
asked once without counting, because the first answer compiles, and then in ``--rounds`` rounds: printed are the median,
and the least and the most.  With --lake each journal is archived, too, and the same is asked of the Parquet files:
natively, and in the same rounds through ``table``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import spark_journal
from pyspark.sql import SparkSession
from spark_usage import cpu_seconds

from fyrehose.spark import session
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.lake import Lake
from fyrehose.spark.tables import table

Question = Callable[[], object]


def measure(rows: int, rounds: int, questions: dict[str, Question]) -> None:
    """Run each query once, then all of them in turn in each round; print their CPU and wall time."""
    for question in questions.values():
        question()
    cpu: dict[str, list[float]] = {name: [] for name in questions}
    wall: dict[str, list[float]] = {name: [] for name in questions}
    for _ in range(rounds):
        for name, question in questions.items():
            used, began = cpu_seconds(), time.monotonic()
            question()
            cpu[name].append(cpu_seconds() - used)
            wall[name].append(time.monotonic() - began)
    for name, seconds in cpu.items():
        rates = [rows / one / 1e6 for one in seconds]
        print(
            f"{name:44} {median(rates):6.2f} M rows per CPU second ({min(rates):.2f} to {max(rates):.2f})"
            f"   {median(seconds):6.2f} s CPU {median(wall[name]):6.2f} s wall",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--per-batch", default="1000,100,10")
    parser.add_argument("--payload", type=int, default=64)
    parser.add_argument("--shape", choices=spark_journal.SHAPES, default="hex")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--lake", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="fyrehose-spark-read-"))
    kind = f"{args.payload} B" if args.shape == "hex" else "JSON"
    print(f"{args.rows} rows of {kind}; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    spark = session("spark_read", args.master)
    try:
        for per_batch in map(int, args.per_batch.split(",")):
            journal = directory / f"j{per_batch}"
            spark_journal.write(journal, args.rows, per_batch, args.payload, shape=args.shape)
            of = f"{per_batch}-row batches"
            for name, question in of_source(spark, str(journal), of).items():
                measure(args.rows, args.rounds, {name: question})
            if args.lake:
                lake = directory / f"lake{per_batch}"
                fill(spark, str(journal), lake, of)
                for pair in of_lake(spark, str(journal), lake, of):
                    measure(args.rows, args.rounds, pair)
            shutil.rmtree(journal)
    finally:
        spark.stop()
        shutil.rmtree(directory)


def of_source(spark: SparkSession, journal: str, of: str) -> dict[str, Question]:
    """Return the queries of the data source."""
    source, two = spark.read.format("fyrehose"), spark.read.format("fyrehose").schema("stream string, seq bigint")
    return {
        f"{of}: count, every column": lambda: source.load(journal).count(),
        f"{of}: group by stream": lambda: source.load(journal).groupBy("stream").count().collect(),
        f"{of}: sum of lengths": lambda: source.load(journal).selectExpr("sum(length(payload))").collect(),
        f"{of}: group by stream, 2 columns": lambda: two.load(journal).groupBy("stream").count().collect(),
    }


def fill(spark: SparkSession, journal: str, lake: Path, of: str) -> None:
    """Archive a journal, and print how much CPU time that took."""
    used = cpu_seconds()
    done = archive(spark, journal, lake)
    used = cpu_seconds() - used
    print(
        f"{of}: archived {done.rows} in {used:.1f} s CPU, {done.rows / used / 1e6:.2f} M rows per CPU second, "
        f"{done.size >> 20} MiB of Parquet",
        flush=True,
    )


def of_lake(spark: SparkSession, journal: str, lake: Path, of: str) -> list[dict[str, Question]]:
    """Return pairs of queries: one of the lake's files by Spark's own reader, and the same one of ``table``."""
    paths = [str(lake / file.path) for file in Lake.existing(lake).files()]
    basis = spark.read.option("basePath", str(lake))
    lengths = "sum(length(payload))"
    return [
        {
            f"{of}: native Parquet, by stream": lambda: basis.parquet(*paths).groupBy("stream").count().collect(),
            f"{of}: table, by stream": lambda: table(spark, lake, journal).groupBy("stream").count().collect(),
        },
        {
            f"{of}: native Parquet, sum of lengths": lambda: basis.parquet(*paths).selectExpr(lengths).collect(),
            f"{of}: table, sum of lengths": lambda: table(spark, lake, journal).selectExpr(lengths).collect(),
        },
    ]


if __name__ == "__main__":
    main()
