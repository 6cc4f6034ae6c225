"""The common part of the programs that kill Spark's processes: the lives of a driver, and its kills."""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import kills
from deltalake import DeltaTable

#: How long a driver may take until its first commit, in seconds; killing it earlier tests little.
PATIENCE = 300.0
#: How long to wait for the process that is to be killed, in seconds.
VICTIM = 20.0
#: The command of drivers, and what lets their JVM start sooner.
SPARK = (sys.executable, "-c", "from fyrehose.cli.spark import main; main()")
QUICK = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", "SPARK_LOCAL_IP": "127.0.0.1"}

Process = subprocess.Popen[bytes]


def parser_of(doc: str | None, count: int) -> argparse.ArgumentParser:
    """Return a parser of the options that these programs share; *count* is the default of --count."""
    parser = kills.parser_of(doc, count=count)
    parser.add_argument("--busy", type=float, default=12.0, help="kill within so many seconds after the first commit")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    return parser


@contextmanager
def writing(program: str, journal: Path, seed: int) -> Iterator[None]:
    """Run *program* with its option --write, which writes to *journal*, until the block ends."""
    writer = subprocess.Popen([sys.executable, program, "--write", str(journal), "--seed", str(seed)])
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends the writer, too
    try:
        while not list(journal.glob("*.segment")):
            if writer.poll() is not None:
                sys.exit("the writer of the journal has ended")
            time.sleep(0.1)
        yield
    finally:
        writer.kill()
        writer.wait()


def lives(
    args: argparse.Namespace,
    start: Callable[[], Process],
    disturb: Callable[[Process, random.Random], str],
    commits: Callable[[], int],
    wanted: int,
) -> Counter[str]:
    """Start and kill a driver ``args.count`` times; return how often each kind of process was killed.

    :param start: starts the driver in a session of its own
    :param disturb: kills one of its processes, and returns its kind
    :param commits: returns how many commits the drivers have made
    :param wanted: how many commits each life must make before anything is killed
    """
    dice, kinds, driver = random.Random(args.seed), Counter[str](), None
    try:
        for number in range(args.count):
            before, driver = commits(), start()
            patience = time.monotonic() + PATIENCE
            while commits() < before + wanted and driver.poll() is None and time.monotonic() < patience:
                time.sleep(0.05)
            time.sleep(dice.uniform(0, args.busy))
            kind = disturb(driver, dice)
            kinds[kind] += 1
            how = "ended"
            try:
                driver.wait(dice.uniform(0.5, 3))
            except subprocess.TimeoutExpired:
                how = "survived"
            end(driver)
            print(f"{number + 1}: killed {kind}; {commits() - before} commits in this life; it {how}", flush=True)
    finally:
        if driver is not None:
            end(driver)
    return kinds


def spawn(words: Sequence[Any], log: Path, environ: Mapping[str, str] = os.environ) -> Process:
    """Start a driver in a session of its own, to kill all of its processes at once."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(word) for word in words],
            stdout=output,
            stderr=output,
            env={**environ, **QUICK},
            start_new_session=True,
        )


def disturb(driver: Process, kind: str, dice: random.Random) -> str:
    """Kill a process of the *kind*, for which this waits, because workers come and go; return the kind, or nobody."""
    patience = time.monotonic() + VICTIM
    while time.monotonic() < patience and driver.poll() is None:
        below = {pid: kind_of(line) for pid, line in descendants(driver.pid).items()}
        chosen = [driver.pid] if kind == "driver" else [pid for pid, its in below.items() if its == kind]
        with suppress(IndexError, ProcessLookupError):
            os.kill(dice.choice(chosen), signal.SIGKILL)
            return kind
    return "nobody"


def descendants(pid: int) -> dict[int, str]:
    """Return the command lines of the descendants of the process ``pid``, by their ids."""
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


def kind_of(line: str) -> str | None:
    """Return the kind of a driver's descendant by its command line: "jvm", "worker", or None for another process."""
    if "SparkSubmit" in line and "java" in line.split()[0]:
        return "jvm"
    if "pyspark.daemon" in line:
        return "worker"
    return None


def end(driver: Process) -> None:
    """Kill the driver and all of its descendants."""
    below = [driver.pid, *descendants(driver.pid)]
    for pid in below:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    driver.wait()


def rounds(table: Path) -> int:
    """Return the number of commits to *table*."""
    return DeltaTable(str(table)).version() if DeltaTable.is_deltatable(str(table)) else 0
