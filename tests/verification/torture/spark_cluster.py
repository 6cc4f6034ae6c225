#!/usr/bin/env python3
"""Run a real standalone Spark cluster on one machine, and kill one of its two workers while an archive runs.

    spark_cluster.py [--records N] [--directory DIR]

The journal and the lake are on a path that all processes see; records that the lake does not have yet are read over
HTTP, from ``fyrehose journal serve``.  In the middle of ``archive`` one worker and its executor are killed.  Then the
cluster must answer that the counts equal what was written, that there are no gaps, and that the lake equals its
journal.  Polars and plain_reader.py, which share no code with the writer of the lake, check the same.

The exit status is 1 if anything is missing, doubled or different.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from threading import Timer
from typing import IO

import kills
import pyspark
from plain_reader import records
from servers import verdict
from spark_kill import archived

from fyrehose.journal.recovery import Recovered
from fyrehose.journal.writer import Writer
from fyrehose.records import Run
from fyrehose.spark import session, table
from fyrehose.spark.jobs.archive import Archived, archive
from fyrehose.spark.jobs.gaps import gaps
from fyrehose.spark.jobs.verify import verify
from fyrehose.spark.spark_session import java_home
from fyrehose.testing.ports import free_port

STREAMS = ("a", "b", "c/d")
#: Options with which the JVM starts sooner and computes slower.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def start(words: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start one of Spark's own processes in a process group of its own, together with its executors."""
    script = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environ = os.environ | {"JAVA_HOME": str(java_home(os.environ)), "PYSPARK_PYTHON": sys.executable}
    environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1", "JAVA_TOOL_OPTIONS": QUICK}
    return subprocess.Popen([script, *words], stdout=log, stderr=log, env=environ, start_new_session=True)


def kill(process: subprocess.Popen[bytes], number: signal.Signals = signal.SIGKILL) -> None:
    """Send the signal *number* to *process* and all processes that it has started."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass  # the process has already ended
    process.wait()


def wait_for(what: str, log: Path, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while what not in log.read_text(errors="replace"):
        if time.monotonic() > deadline:
            sys.exit(f"no {what!r} in {log}")
        time.sleep(0.1)


def write(writer: Writer, records: int, dice: random.Random) -> int:
    """Append to the journal; return how many records."""
    written = 0
    while written < records:
        now = time.time_ns() // 1000
        runs = []
        for stream in STREAMS:
            payloads = [dice.randbytes(100) for _ in range(dice.randint(1, 200))]
            runs.append(
                Run.of(stream, payloads, source="torture").numbered(writer.streams.ends.get(stream, 0) + 1, now)
            )
            written += len(payloads)
        writer.commit([runs], now, now)
    return written


def main() -> int:
    args = kills.parser_of(__doc__, records=200_000).parse_args()
    directory = kills.root_of(args, "spark-cluster")
    journal, lake = directory / "journal", directory / "lake"
    journal.mkdir()
    dice = random.Random(1)
    writer = Writer(journal, Recovered(directory=journal), 4 << 20)
    writer.open(time.time_ns() // 1000)
    count = write(writer, args.records, dice)
    port, log = free_port(), directory / "log"
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends the other processes, too
    with ExitStack() as stack:
        output = stack.enter_context(log.open("wb"))
        ours = ["--host", "127.0.0.1", "--webui-port", "0"]
        master = start(["org.apache.spark.deploy.master.Master", *ours, "--port", str(port)], output)
        stack.callback(kill, master)
        wait_for("New state: ALIVE", log)
        url = f"spark://127.0.0.1:{port}"
        worker = ["org.apache.spark.deploy.worker.Worker", *ours, "--cores", "1", "--memory", "1g"]
        workers = [start([*worker, "-d", str(directory / f"w{i}"), url], output) for i in range(2)]
        for one in workers:
            stack.callback(kill, one)
        command = [sys.executable, "-c", "from fyrehose.cli import main; main()", "journal", "serve", "--listen"]
        served = subprocess.Popen([*command, "127.0.0.1:0", str(journal)], stdout=subprocess.PIPE, text=True)
        stack.callback(served.wait)
        stack.callback(served.terminate)
        assert served.stdout is not None
        address = served.stdout.readline().split()[-1]
        conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.executor.memory": "700m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": QUICK,
            "spark.sql.shuffle.partitions": "4",
        }
        spark = session("cluster", url, memory="1g", quick=True, conf=conf)
        stack.callback(spark.stop)

        def told(done: Archived, view: object) -> None:
            print(f"{done}", flush=True)
            if done.rounds == 1:  # in the middle of the next round
                Timer(0.7, kill, [workers.pop()]).start()
                print("killing a worker and its executor", flush=True)

        done = archive(spark, str(journal), lake, round_bytes=3 << 20, progress=told)
        problems = [] if done.rows == count else [f"{done.rows} archived, {count} written"]
        # read by code that shares nothing with the writer of the lake
        if Counter(archived(lake)) != Counter(records(journal)):
            problems.append("the lake has other records than the journal")
        more = write(writer, args.records // 10, dice)
        whole = table(spark, lake, address)
        counts = {row["stream"]: row["count"] for row in whole.groupBy("stream").count().collect()}
        print(f"{counts} in the lake and, over HTTP, in the journal after it")
        if (
            counts != {stream: writer.streams.ends[stream] for stream in STREAMS}
            or sum(counts.values()) != count + more
        ):
            problems.append(f"the table has {counts}, but {writer.streams.ends} were written")
        problems += [f"gap: {gap}" for gap in gaps(whole)]
        verified = verify(spark, str(journal), lake)
        print(verified)
        if verified.differences or verified.checked != count:
            problems.append(f"verify: {verified}")
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems")
    return verdict(bool(problems), directory)


if __name__ == "__main__":
    sys.exit(main())
