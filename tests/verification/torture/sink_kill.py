#!/usr/bin/env python3
"""Kill a streaming query that uses the sink with exactlyOnce, and its server, and look for missing and doubled rows.

    sink_kill.py [--count N] [--seed S] [--directory DIR] [--busy SECONDS]

A program writes to a journal all the time.  A query copies the journal to three streams of a server, in small
micro-batches, with speculation, so that slow tasks run twice.  After a random time one process is killed with
``kill -9``: the driver, the JVM, a Python worker, or the server, which starts again.  In the end the query runs
undisturbed, and again after the last commit was removed from its checkpoint, as if the driver had been killed between
the batch and its commit.  plain_reader.py, which shares no code with the package, reads both journals: each row of one
must be in the other once.

The exit status is 1 if a row is missing or doubled; then the directory is kept.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

import kills
from plain_reader import records
from servers import free_ports
from spark_kill import write
from spark_lives import Process, disturb, lives, parser_of, spawn, writing

#: The time between commits of the source journal, in seconds; small, because Spark is slow with micro-batches.
PAUSE = 0.5
#: How often the last micro-batch is repeated at the end.
AGAIN = 2
#: The query of one life, which copies stream X to copy-X; a row of a micro-batch tells it to end.
QUERY = """
import sys
from fyrehose.spark import session
journal, url, checkpoint, most = sys.argv[1:]
conf = {"spark.speculation": "true", "spark.speculation.interval": "100ms", "spark.speculation.minTaskRuntime": "50ms",
        "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.5"}
spark = session("sink", "local[2,4]", memory="1g", quick=True, conf=conf)
rows = spark.readStream.format("fyrehose").options(maxRowsPerBatch=most, partitionBytes="20K").load(journal)
rows = rows.selectExpr("concat('copy-', stream) stream", "payload")
query = rows.writeStream.format("fyrehose").options(to=url, exactlyOnce="true", checkpointLocation=checkpoint)
query.trigger(**({"availableNow": True} if most == "5000" else {"processingTime": "0 seconds"})).start()
spark.streams.awaitAnyTermination()
"""


class Lives:
    """The server, and the queries that publish to it one after another."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.journal, self.checkpoint, self.log = (directory / name for name in ("journal", "checkpoint", "log"))
        self.ports = free_ports(("http",))
        self.server = kills.Serving(directory / "server", ports=self.ports)

    def start(self, once: bool = False) -> Process:
        words = self.journal, f"http://127.0.0.1:{self.ports['http']}", self.checkpoint, "5000" if once else "500"
        return spawn((sys.executable, "-c", QUERY, *words), self.log)

    def finish(self) -> list[str]:
        """Run the query to its end, and the last micro-batch again; return the problems."""
        for _ in range(AGAIN + 1):
            if status := self.start(once=True).wait():
                return [f"the last query ended with {status}: see {self.log}"]
            last = self.checkpoint / "commits" / str(max(self.done()))
            last.unlink()
            last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
        return []

    def done(self) -> list[int]:
        """Return the numbers of the committed micro-batches."""
        return [int(path.name) for path in (self.checkpoint / "commits").glob("[0-9]*")]

    def disturb(self, driver: Process, dice: random.Random) -> str:
        """Kill a random process, and return its kind; wait for a worker, because workers come and go."""
        kind = dice.choice(["driver", "jvm", "worker", "server"])
        if kind == "server":
            self.server.kill()
            self.server.start()
            return kind
        return disturb(driver, kind, dice)


def compare(source: Path, target: Path) -> list[str]:
    """Compare the copies with their source; return the problems."""
    expected = Counter((f"copy-{record.stream}", record.payload) for record in records(source))
    found = Counter((record.stream, record.payload) for record in records(target) if record.stream.startswith("copy-"))
    missing, more = (expected - found).total(), (found - expected).total()
    print(f"{expected.total()} records are durable, {found.total()} were published", flush=True)
    return [f"{missing} rows are missing"] * bool(missing) + [f"{more} rows are there too often"] * bool(more)


def main() -> int:
    args = (parser := parser_of(__doc__, count=20)).parse_args()
    if args.write:
        write(args.write, args.seed, PAUSE)
    if args.count < 1:
        parser.error("--count must be at least 1")
    directory = kills.root_of(args, "sink-kill")
    life = Lives(directory)
    try:
        with writing(__file__, life.journal, args.seed):
            kinds = lives(args, life.start, life.disturb, lambda: max(life.done(), default=0), wanted=2)
        problems = life.finish()
    finally:
        life.server.kill()
    return kills.report(problems + compare(life.journal, directory / "server" / "data"), kinds, directory)


if __name__ == "__main__":
    sys.exit(main())
