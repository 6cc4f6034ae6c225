#!/usr/bin/env python3
"""Kills the archive again and again, with ``kill -9``, and looks whether the lake has every record exactly once.

    spark_kill.py [--engine spark|local] [--count N] [--seed S] [--directory DIR] [--busy SECONDS]

A journal is being written and rolled all the time.  ``fyrehose-spark archive --follow`` starts, and after a random time
one of its processes is killed: the driver (Python), the JVM, or one of the workers that write.  If the archive lives on
after that, it is killed as a whole before the next one starts.  With --engine local there is only the driver.  In the
end it runs once undisturbed, and the lake is read with Polars, without Spark and pyarrow: every record that is durable,
once, and as it was written.  The journal is read by a reader of its own (plain_reader.py), not by the one that writes
the lake.

The status is 1 if anything is missing, doubled or different; the directory is kept then.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from hashlib import sha256
from pathlib import Path

import polars
from plain_reader import Record, records
from spark_lives import descendants, kind_of, lives, parser_of, report, rounds, writing

from fyrehose.journal.files import Files
from fyrehose.journal.recovery import recover
from fyrehose.journal.writer import Writer
from fyrehose.records import Run

COLUMNS = ("stream", "seq", "payload")
#: How long a process is waited for that is to be killed, in seconds.
PATIENCE = 20.0


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


def start(journal: Path, lake: Path, log: Path, engine: str, *more: str) -> subprocess.Popen[bytes]:
    """An archive in a session of its own, so that it can be ended as a whole; a task that dies is tried again."""
    command = [sys.executable, "-c", "from fyrehose.spark.command import main; main()", "archive", str(journal)]
    command += [str(lake), "--master", "local[2,4]", "--memory", "1g", "--round", "300K", "--subscription", "lake"]
    command += ["--engine", engine, *more]
    environ = os.environ | {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}  # start sooner
    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env=environ, start_new_session=True)


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


def archived(lake: Path) -> list[Record]:
    """Every record of the lake."""
    return [Record(*row) for row in polars.scan_delta(str(lake)).select(COLUMNS).collect().iter_rows()]


def compare(journal: Path, lake: Path) -> list[str]:
    """What is wrong with the lake."""
    expected, there = list(records(journal)), Counter(archived(lake))
    problems = [f"{stream} {seq} is missing" for stream, seq, payload in expected if not there[stream, seq, payload]]
    problems += [f"{stream} {seq} is there {count} times" for (stream, seq, _), count in there.items() if count > 1]
    problems += [f"{stream} {seq} was never written" for stream, seq, _ in set(there) - set(expected)]
    digest = sha256(repr(sorted(there)).encode()).hexdigest()[:16]
    print(f"{len(expected)} records are durable, {sum(there.values())} are in the lake ({digest})", flush=True)
    return problems


def main() -> int:
    parser = parser_of(__doc__, count=30)
    parser.add_argument("--engine", choices=("spark", "local"), default="spark")
    args = parser.parse_args()
    if args.write:
        write(args.write, args.seed)
    directory = args.directory or Path(tempfile.mkdtemp(prefix="fyrehose-spark-kill-"))
    journal, lake, log = directory / "journal", directory / "lake", directory / "log"
    with writing(__file__, journal, args.seed):
        kinds = lives(
            args,
            lambda: start(journal, lake, log, args.engine, "--follow", "--every", "0.5s"),
            lambda archive, dice: disturb(archive, dice, args.engine),
            lambda: rounds(lake),
            wanted=2,
        )
    status = start(journal, lake, log, args.engine, "--round", "1G").wait()
    problems = [] if status == 0 else [f"the last archive ended with {status}: see {log}"]
    return report(problems + compare(journal, lake), kinds, directory)


if __name__ == "__main__":
    sys.exit(main())
