#!/usr/bin/env python3
"""Kills the archive again and again, with ``kill -9``, and looks whether the lake has every record exactly once.

    spark_kill.py [--engine spark|local] [--count N] [--seed S] [--directory DIR] [--busy SECONDS]

A journal is being written and rolled all the time.  ``fyrehose-spark archive --follow`` starts, and after a random time
one of its processes is killed: the driver (Python), the JVM, or one of the workers that write.  If the archive lives on
after that, it is killed as a whole before the next one starts.  With --engine local there is only the driver.  In the
end it runs once undisturbed, and the lake is read with delta-rs, without Spark: every record that is durable, once, and
as it was written.

The status is 1 if anything is missing, doubled or different; the directory is kept then.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from hashlib import sha256
from pathlib import Path

from deltalake import DeltaTable

from fyrehose.journal.files import Files
from fyrehose.journal.offline.places import Directory
from fyrehose.journal.recovery import recover
from fyrehose.journal.writer import Writer
from fyrehose.records import Run
from fyrehose.spark.columns import arrow_schema
from fyrehose.spark.plan import Planner
from fyrehose.spark.reading import PartReader
from fyrehose.spark.selection import Selection

COLUMNS = ("stream", "seq", "payload")
#: How long a process is waited for that is to be killed, in seconds.
PATIENCE = 20.0
Record = tuple[str, int, bytes]


def write(directory: Path, seed: int) -> None:
    """Write to a journal until somebody ends this process."""
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
        time.sleep(0.05)


def descendants(pid: int) -> dict[int, str]:
    """The processes under ``pid``, with their command lines."""
    parents: dict[int, list[int]] = {}
    words: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            stat, line = (path / "stat").read_text(), (path / "cmdline").read_bytes()
        except OSError:
            continue
        parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(path.name))
        words[int(path.name)] = line.replace(b"\0", b" ").decode(errors="replace")
    found, queue = {}, [pid]
    while queue:
        for child in parents.get(queue.pop(), []):
            found[child] = words[child]
            queue.append(child)
    return found


def start(journal: Path, lake: Path, log: Path, engine: str, *more: str) -> subprocess.Popen[bytes]:
    """An archive in a session of its own, so that it can be ended as a whole; a task that dies is tried again."""
    command = [sys.executable, "-c", "from fyrehose.spark.command import main; main()", "archive", str(journal)]
    command += [str(lake), "--master", "local[2,4]", "--memory", "1g", "--round", "300K", "--subscription", "lake"]
    command += ["--engine", engine, *more]
    environ = os.environ | {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}  # start sooner
    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env=environ, start_new_session=True)


def kind_of(line: str) -> str | None:
    """What a process below the driver is, by its command line."""
    if "SparkSubmit" in line and "java" in line.split()[0]:
        return "jvm"
    if "pyspark.daemon" in line:
        return "worker"
    return None


def disturb(archive: subprocess.Popen[bytes], dice: random.Random, engine: str) -> str:
    """Kill one of its processes; which kind it was.  Workers come and go: wait for one."""
    kind = dice.choice(["driver", "jvm", "worker"]) if engine == "spark" else "driver"
    patience = time.monotonic() + PATIENCE
    while time.monotonic() < patience:
        below = {pid: kind_of(line) for pid, line in descendants(archive.pid).items()}
        chosen = [archive.pid] if kind == "driver" else [pid for pid, its in below.items() if its == kind]
        try:
            os.kill(dice.choice(chosen), signal.SIGKILL)
            return kind
        except (IndexError, ProcessLookupError):
            if archive.poll() is not None:
                break
    return "nobody"


def end(archive: subprocess.Popen[bytes]) -> None:
    """Kill all that is left of it."""
    below = [archive.pid, *descendants(archive.pid)]
    for pid in below:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    archive.wait()


def durable(journal: Path) -> list[Record]:
    """Every record of the journal."""
    place, everything, schema = Directory(journal), Selection(), arrow_schema(COLUMNS)
    found: list[Record] = []
    for part in Planner(place).parts():
        for batch in PartReader(place, part, everything, schema).read():
            found += [(row["stream"], row["seq"], row["payload"]) for row in batch.to_pylist()]
    return found


def rounds(lake: Path) -> int:
    """How often the lake was changed."""
    return DeltaTable(str(lake)).version() if DeltaTable.is_deltatable(str(lake)) else 0


def archived(lake: Path) -> list[Record]:
    """Every record of the lake."""
    rows = DeltaTable(str(lake)).to_pyarrow_table(columns=list(COLUMNS)).to_pylist()
    return [(row["stream"], row["seq"], row["payload"]) for row in rows]


def compare(journal: Path, lake: Path) -> list[str]:
    """What is wrong with the lake."""
    expected, there = durable(journal), Counter(archived(lake))
    problems = [f"{stream} {seq} is missing" for stream, seq, payload in expected if not there[stream, seq, payload]]
    problems += [f"{stream} {seq} is there {count} times" for (stream, seq, _), count in there.items() if count > 1]
    problems += [f"{stream} {seq} was never written" for stream, seq, _ in set(there) - set(expected)]
    digest = sha256(repr(sorted(there)).encode()).hexdigest()[:16]
    print(f"{len(expected)} records are durable, {sum(there.values())} are in the lake ({digest})", flush=True)
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("spark", "local"), default="spark")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--busy", type=float, default=12.0, help="kill within so many seconds after the first round")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.write:
        write(args.write, args.seed)
    dice = random.Random(args.seed)
    directory = args.directory or Path(tempfile.mkdtemp(prefix="fyrehose-spark-kill-"))
    journal, lake, log = directory / "journal", directory / "lake", directory / "log"
    writer = subprocess.Popen([sys.executable, __file__, "--write", str(journal), "--seed", str(args.seed)])
    kinds: Counter[str] = Counter()
    archive = None
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # takes its processes along
    try:
        while not journal.is_dir() or not list(journal.glob("*.segment")):
            if writer.poll() is not None:
                sys.exit("nobody writes")
            time.sleep(0.1)
        for number in range(args.count):
            before = rounds(lake)
            archive = start(journal, lake, log, args.engine, "--follow", "--every", "0.5s")
            # Not before the first round of this life, so that it is worth killing; but neither wait for ever.
            patience = time.monotonic() + 180
            while rounds(lake) < before + 2 and archive.poll() is None and time.monotonic() < patience:
                time.sleep(0.05)
            time.sleep(dice.uniform(0, args.busy))
            kind = disturb(archive, dice, args.engine)
            kinds[kind] += 1
            survived = False
            try:
                archive.wait(dice.uniform(0.5, 3))
            except subprocess.TimeoutExpired:
                survived = True
            end(archive)
            made = rounds(lake) - before
            print(
                f"{number + 1}: killed {kind}; {made} rounds in this life; it {'lived on' if survived else 'ended'}",
                flush=True,
            )
    finally:
        writer.kill()
        writer.wait()
        if archive is not None:
            end(archive)
    last = start(journal, lake, log, args.engine, "--round", "1G")
    status = last.wait()
    problems = [] if status == 0 else [f"the last archive ended with {status}: see {log}"]
    problems += compare(journal, lake)
    for problem in problems[:20]:
        print(problem)
    how = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    print(f"{args.count} kills ({how}): {len(problems)} problems")
    if problems:
        print(f"kept: {directory}")
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
