#!/usr/bin/env python3
"""Measure how soon records are in the lake while an archive follows a server: ``archive --follow --every 1s``.

    spark_lag.py [--engine local|spark ...] [--seconds 60] [--warm 15] [--rate 1000] [--every 1s] [--streams 4]
                 [--payload 150] [--directory DIR]

A server runs, and records are published to it at a steady rate by Figg, over one connection.  The lag of a record is
the time from when the server accepted it until the commit with it was visible in the lake's log, which the program
reads every few milliseconds.  Records of the first ``--warm`` seconds after the first commit do not count.  Printed are
percentiles of all records, and of the oldest record of each commit; and the CPU time of the archive for a round.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import numpy as np
from pyarrow import parquet
from spark_usage import cpu_seconds

from fyrehose.spark.publisher import SparkPublisher, parse_place

#: How often the log of the lake is looked at, in seconds.
INTERVAL = 0.005
#: Timeout of starting and of stopping a process, in seconds.
PATIENCE = 120.0
ENGINES = "local", "spark"


@contextmanager
def running(words: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command for as long as the context lasts, and write its output to the file *log*."""
    with log.open("wb") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()


@contextmanager
def server(directory: Path) -> Iterator[tuple[str, int]]:
    """Run a server with the journal ``directory/journal``; yield the address of its Figg listener."""
    log = directory / "server.log"
    words = [str(Path(sys.executable).with_name("twistd")), "-n", "--pidfile", "", "fyrehose"]
    words += ["--data-dir", str(directory / "journal"), "--listen", "figg=tcp:0:interface=127.0.0.1"]
    with running(words, log) as process:
        deadline = time.monotonic() + PATIENCE
        while not (found := re.findall(r"figg \(\S+\) listens on (\S+:\d+)", log.read_text())):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the server does not listen: {log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield parse_place(found[0])


def publish(place: tuple[str, int], args: argparse.Namespace, done: threading.Event) -> None:
    """Publish records at a steady rate until ``done``."""
    publisher = SparkPublisher(*place, rate=args.rate)
    payload = os.urandom(args.payload // 2).hex().encode()
    number = 0
    while not done.is_set():
        publisher.publish(f"stream{number % args.streams}", payload)
        number += 1
    publisher.flush()
    publisher.close()


class Watch:
    """A recorder of the time at which each version of a lake's log becomes visible."""

    def __init__(self, lake: Path) -> None:
        self._lake = lake
        self._next = 0
        #: time at which each version was seen, in seconds since 1970, and its entry in the log
        self.seen: list[tuple[float, Path]] = []

    def until(self, deadline: float, archive: subprocess.Popen[bytes], versions: int | None = None) -> None:
        """Record versions until the monotonic clock reaches *deadline*, or until there are *versions* of them."""
        while time.monotonic() < deadline and (versions is None or len(self.seen) < versions):
            path = self._lake / "_delta_log" / f"{self._next:020}.json"
            if path.exists():
                self.seen.append((time.time(), path))
                self._next += 1
                continue
            if archive.poll() is not None:
                sys.exit(f"the archive ended with status {archive.returncode}")
            time.sleep(INTERVAL)

    def lags(self, since: float, end: float) -> list[np.ndarray]:
        """Return the lags in seconds of the records of each commit, of those that were accepted between two times."""
        found = []
        for when, path in self.seen:
            added = [action["add"]["path"] for action in map(json.loads, path.open()) if "add" in action]
            files = [self._lake / unquote(name) for name in added]
            times = [parquet.read_table(file, columns=["time"], partitioning=None)["time"] for file in files]
            accepted = np.array([t for column in times for t in column.cast("int64").to_pylist()]) / 1e6
            if (accepted := accepted[(since <= accepted) & (accepted < end)]).size:
                found.append(when - accepted)
        return found


def measure(engine: str, directory: Path, args: argparse.Namespace) -> None:
    """Run a server, a publisher and an archive, and print the lags."""
    directory.mkdir(parents=True)
    lake, done = directory / "lake", threading.Event()
    words = [sys.executable, "-c", "from fyrehose.cli.spark import main; main()", "archive"]
    words += [str(directory / "journal"), str(lake), "--follow", "--every", args.every, "--engine", engine]
    with server(directory) as place:
        publisher = threading.Thread(target=publish, args=(place, args, done))
        publisher.start()
        try:
            with running(words, directory / "archive.log") as archive:
                watch = Watch(lake)
                # The first three versions are the table, the name of the journal, and the first round.
                watch.until(time.monotonic() + PATIENCE, archive, versions=3)
                watch.until(time.monotonic() + args.warm, archive)
                since, used, before = time.time(), cpu_seconds(archive.pid), len(watch.seen)
                watch.until(time.monotonic() + args.seconds, archive)
                end, used, rounds = time.time(), cpu_seconds(archive.pid) - used, len(watch.seen) - before
                # The next commit may have begun before the end; the one after it has everything.
                watch.until(time.monotonic() + PATIENCE, archive, versions=len(watch.seen) + 2)
        finally:
            done.set()
            publisher.join()
    told(engine, watch.lags(since, end), used / max(1, rounds))


def told(engine: str, lags: list[np.ndarray], cpu: float) -> None:
    """Print the percentiles of lags, and the CPU time of a round."""
    if not lags:
        sys.exit(f"--engine {engine}: no record was committed in time; try more --seconds")
    records, oldest = np.concatenate(lags), np.array([of_commit.max() for of_commit in lags])
    for name, lag in (("records", records), ("commits, their oldest record", oldest)):
        p50, p99 = np.percentile(lag, (50, 99))
        print(
            f"--engine {engine}: {lag.size:,} {name}: p50 {p50:.2f} s, p99 {p99:.2f} s, max {lag.max():.2f} s",
            flush=True,
        )
    print(f"--engine {engine}: {cpu * 1e3:.0f} ms of CPU for a round")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", choices=ENGINES, help="by default both, one after the other")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm", type=float, default=15.0)
    parser.add_argument("--rate", type=float, default=1000.0, help="records a second")
    parser.add_argument("--every", default="1s", help="interval of rounds")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--payload", type=int, default=150)
    parser.add_argument("--directory", type=Path, help="new; kept")
    args = parser.parse_args()
    directory = args.directory or Path(tempfile.mkdtemp(prefix="fyrehose-spark-lag-"))
    print(
        f"{args.rate:g} records a second, a round every {args.every}; load average {os.getloadavg()[0]:.1f} on "
        f"{os.cpu_count()} processors",
        flush=True,
    )
    for engine in args.engine or ENGINES:
        measure(engine, directory / engine, args)
    if args.directory is None:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
