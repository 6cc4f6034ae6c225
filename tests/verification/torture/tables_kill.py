#!/usr/bin/env python3
"""Kill ``fyrehose-spark tables`` again and again with ``kill -9``, and check that each event is stored exactly once.

    tables_kill.py [--engine spark|local] [--warm] [--count N] [--seed S] [--directory DIR] [--busy SECONDS]

A program writes events to a journal all the time, as Filebeat sends them: some are sent twice, some are late, fields
appear and change their types.  ``fyrehose-spark tables --follow`` fills a table of all events, one without repeated
events, with a quarantine, and an aggregate.  After a random time one of its processes is killed: the driver, which is
in Python and commits, the JVM, or a worker.  If the run survives that, it is killed completely before the next one
starts.  With --warm only drivers are killed, and all use one JVM, which saves most of the time.

After each kill DuckDB looks for doubles in the tables.  In the end one run is not disturbed.  Then Polars reads the
tables, and plain_reader.py the journal: neither shares code with the writers.

The exit status is 1 if anything is missing, doubled or different; then the directory is kept.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import kills
import polars
from deltalake import DeltaTable
from plain_reader import records
from pyspark.java_gateway import launch_gateway
from spark_lives import QUICK, SPARK, Process, disturb, lives, parser_of, rounds, spawn, writing

from fyrehose.journal.files import Files
from fyrehose.journal.recovery import recover
from fyrehose.journal.writer import Writer
from fyrehose.records import Run
from fyrehose.spark.spark_session import java_home

#: How late some events are.
LATE = timedelta(hours=2)
#: From this number on a field contains floating-point numbers instead of integers.
WIDER = 500
CONFIG = """
journal = "journal"
output = "tables"
subscription = "tables"

[tables.everything]
streams = "*"

[tables.events]
streams = ["lumberjack", "web"]
time = "@timestamp"
columns.id = "long"
columns.status = { path = "http.response.status_code", type = "long" }
columns.host = { path = "host.name", type = "string" }
expectations.known = { check = "host != 'h2'", action = "quarantine" }
expectations.fine = { check = "status < 500" }
deduplicate = { key = "id", within = "1h" }

[aggregates.requests]
table = "events"
window = "1m"
by = ["status"]
columns = { requests = "count", last = "max(id)" }
"""


def write(directory: Path, seed: int) -> None:
    """Write to a journal until this process is killed."""
    dice = random.Random(seed)
    directory.mkdir(parents=True, exist_ok=True)
    writer = Writer(directory, recover(directory, Files()), 256 << 10, True)
    writer.open(time.time_ns() // 1000)
    number, last = 2, {"lumberjack": event(dice, 1), "web": event(dice, 2)}
    while True:
        now = time.time_ns() // 1000
        runs = []
        for stream in last:
            payloads = []
            for _ in range(dice.randint(1, 10)):
                number += 1
                payloads.append(event(dice, number))
            # A repeated event comes from the same host, with the same number, over another connection.
            sent_again, last[stream] = last[stream], payloads[0]
            for port, sent in ((number % 50_000, payloads), (50_001, [sent_again] if dice.random() < 0.2 else [])):
                runs += [
                    Run.of(stream, [one], source="lumberjack", producer=f"10.0.0.1:{port}", producer_seq=place)
                    for place, one in enumerate(sent, 1)
                ]
        numbered, ends = [], dict(writer.streams.ends)
        for run in runs:
            first = ends.get(run.stream, 0) + 1
            numbered.append(run.numbered(first, now))
            ends[run.stream] = first + len(run) - 1
        writer.commit([numbered], now, now)
        time.sleep(0.1)


def event(dice: random.Random, number: int) -> bytes:
    """Return an event that differs from all others."""
    at = datetime.now(UTC) - (LATE if dice.random() < 0.05 else timedelta(seconds=dice.random() * 100))
    fields: dict[str, Any] = {
        "@timestamp": at.isoformat(),
        "id": number,
        "host": {"name": f"h{number % 3}"},
        "http": {"response": {"status_code": "odd" if dice.random() < 0.02 else dice.choice([200, 404, 500])}},
    }
    fields["took"] = number if number < WIDER else number + 0.5
    if number % 7 == 0:
        fields["labels"] = {f"l{number // 1000}": number}
    return json.dumps(fields).encode()


class Starter:
    """Starts runs, with a JVM for each, one JVM for all, or none."""

    def __init__(self, directory: Path, engine: str, warm: bool) -> None:
        self.directory, self.tables, self.log = directory, directory / "tables", directory / "log"
        self.config = directory / "tables.toml"
        directory.mkdir(parents=True, exist_ok=True)
        self.config.write_text(CONFIG)
        self.engine = engine
        self.environ = os.environ | QUICK
        self.gateway: Any = None
        self.started = False
        self.problems: list[str] = []
        if warm:
            os.environ.update(self.environ, JAVA_HOME=str(java_home(os.environ)))
            self.gateway = launch_gateway()
            where = self.gateway.gateway_parameters
            self.environ |= {"PYSPARK_GATEWAY_PORT": str(where.port), "PYSPARK_GATEWAY_SECRET": where.auth_token}
            self.environ["PYSPARK_PYTHON"] = sys.executable

    def start(self, *more: str) -> Process:
        """Start a run, after a look at the tables."""
        self.look()
        if self.gateway is not None and self.started:
            # Stop the context that the last driver left in the JVM.
            self.gateway.jvm.org.apache.spark.SparkContext.getOrCreate().stop()
        self.started = True
        words = (*SPARK, "tables", self.config, "--engine", self.engine, "--master", "local[2,4]", "--memory", "1g")
        return spawn((*words, *more), self.log, self.environ)

    def disturb(self, run: Process, dice: random.Random) -> str:
        """Kill the driver, its JVM or a worker; return the kind."""
        kind = dice.choice(["driver", "jvm", "worker"]) if self.gateway is None and self.engine == "spark" else "driver"
        return disturb(run, kind, dice)

    def look(self) -> None:
        """Look for doubles in the tables, between two runs."""
        for name in ("everything", "events", "events_quarantine"):
            path = str(self.tables / name)
            files = DeltaTable(path).file_uris() if DeltaTable.is_deltatable(path) else []
            if files:
                doubles = duckdb.execute(
                    "select _stream, _seq, count(*) from read_parquet(?, union_by_name := true) "
                    "group by all having count(*) > 1",
                    [files],
                ).fetchall()
                self.problems += [f"{name} has {stream} {seq} {count} times" for stream, seq, count in doubles]

    def stop(self) -> None:
        """End the JVM that all runs used."""
        if self.gateway is not None:
            self.gateway.shutdown()
            self.gateway.proc.kill()


def rows(tables: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table, read by Polars."""
    return polars.scan_delta(str(tables / name)).collect().to_dicts()


def differences(name: str, found: Iterable[Any], expected: Iterable[Any]) -> list[str]:
    """Return which rows a table lacks, has twice, or should not have."""
    there, wanted = Counter(found), Counter(expected)
    return [
        *(f"{name} lacks {key}" for key in wanted - there),
        *(f"{name} has {key} {there[key]} times instead of {wanted[key]}" for key in there - wanted),
    ]


def compare(journal: Path, tables: Path) -> list[str]:
    """Compare the tables with the journal; return the problems."""
    every, first = list(records(journal)), dict[int, tuple[str, int, dict[str, Any]]]()
    parsed = [(stream, seq, json.loads(payload)) for stream, seq, payload in every]
    for stream, seq, fields in parsed:
        first.setdefault(fields["id"], (stream, seq, fields))
    everything, events = rows(tables, "everything"), rows(tables, "events")
    problems = differences(
        "everything",
        ((row["_stream"], row["_seq"], row["id"], row["took"]) for row in everything),
        ((stream, seq, fields["id"], float(fields["took"])) for stream, seq, fields in parsed),
    )
    good = [one for one in first.values() if one[2]["host"]["name"] != "h2"]
    problems += differences(
        "events",
        ((row["_stream"], row["_seq"], row["id"], row["status"], row["host"]) for row in events),
        ((stream, seq, fields["id"], _status(fields), fields["host"]["name"]) for stream, seq, fields in good),
    )
    problems += differences(
        "the quarantine",
        ((row["_stream"], row["_seq"], row["rescued"]) for row in rows(tables, "events_quarantine")),
        ((stream, seq, payload) for stream, seq, payload in every if b'"h2"' in payload),
    )
    counted = Counter((_minute(fields), _status(fields)) for _, _, fields in good)
    requests = rows(tables, "requests")
    problems += differences(
        "the aggregate",
        ((row["window"], row["status"], row["requests"]) for row in requests),
        ((*group, count) for group, count in counted.items()),
    )
    rescued = sum(row["rescued"] is not None for row in events)
    print(
        f"{len(every)} records are durable; {len(everything)} rows, {len(events)} without repetitions ({rescued} "
        f"rescued), {len(everything[0]) if everything else 0} columns, {len(requests)} rows of the aggregate",
        flush=True,
    )
    if not (events and rescued and requests and len(every) > len(first)):
        problems.append("the run was too short to show anything")
    return problems


def _status(fields: dict[str, Any]) -> int | None:
    status = fields["http"]["response"]["status_code"]
    return status if isinstance(status, int) else None


def _minute(fields: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(fields["@timestamp"]).replace(second=0, microsecond=0)


def main() -> int:
    parser = parser_of(__doc__, count=50)
    parser.add_argument("--engine", choices=("spark", "local"), default="spark")
    parser.add_argument("--warm", action="store_true", help="one JVM for all")
    args = parser.parse_args()
    if args.write:
        write(args.write, args.seed)
    directory = kills.root_of(args, "tables-kill")
    starter = Starter(directory, args.engine, args.warm and args.engine == "spark")
    try:
        with writing(__file__, directory / "journal", args.seed):
            kinds = lives(
                args,
                lambda: starter.start("--follow", "--every", "0.1s", "--round", "16K", "--optimize", "20s"),
                starter.disturb,
                lambda: rounds(starter.tables / "events"),
                wanted=1,
            )
        status = starter.start().wait()
    finally:
        starter.stop()
    problems = [] if status == 0 else [f"the last run ended with {status}: see {starter.log}"]
    return kills.report(problems + starter.problems + compare(directory / "journal", starter.tables), kinds, directory)


if __name__ == "__main__":
    sys.exit(main())
