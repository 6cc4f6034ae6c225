#!/usr/bin/env python3
"""Kills the example pipeline again and again, with ``kill -9``, and checks that silver has every event exactly once.

    pipeline_kill.py [--warm] [--count N] [--seed S] [--directory DIR] [--busy SECONDS]

A journal is written all the time, with events as Filebeat sends them: some are sent twice, some are late, fields appear
and change their types.  ``examples/pipeline/pipeline.py --follow`` starts, and after a random time one of its processes
is killed: the driver, which is in Python and commits, or the JVM.  If the pipeline survives that, it is killed as a
whole before the next one starts.  With --warm only drivers are killed, and all use one JVM, which saves most of the
time.  In the end the pipeline runs once undisturbed.  Then silver must have each event of the journal once, with its
values, and gold must have the counts of silver; both are read with delta-rs, without Spark.

The status is 1 if anything is missing, doubled or different; the directory is kept then.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from plain_reader import records
from pyspark.java_gateway import launch_gateway
from spark_lives import descendants, kind_of, lives, parser_of, report, rounds, writing

from fyrehose.journal.files import Files
from fyrehose.journal.recovery import recover
from fyrehose.journal.writer import Writer
from fyrehose.records import Run
from fyrehose.spark.sessions import LOCAL, java_home

PIPELINE = Path(__file__).parents[3] / "examples" / "pipeline" / "pipeline.py"
#: Lateness of some events, beyond what the pipeline accepts.
LATE = timedelta(hours=2)


def write(directory: Path, seed: int) -> None:
    """Write to a journal until somebody ends this process."""
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
            # An event that is sent again comes from the same host, with the same number, over another connection.
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
    """Return an event that no other equals."""
    at = datetime.now(UTC) - (LATE if dice.random() < 0.05 else timedelta(seconds=dice.random() * 100))
    fields: dict[str, Any] = {
        "@timestamp": at.isoformat(),
        "id": number,
        "host": {"name": f"h{number % 3}"},
        "http": {"response": {"status_code": "odd" if dice.random() < 0.02 else dice.choice([200, 404, 500])}},
    }
    if number % 7 == 0:
        fields["labels"] = {f"l{number // 1000}": number}
    return json.dumps(fields).encode()


class Starter:
    """Starts pipelines, with a JVM for each, or one for all of them."""

    def __init__(self, directory: Path, warm: bool) -> None:
        self.journal, self.tables, self.log = directory / "journal", directory / "tables", directory / "log"
        # For small rounds, compiling each query takes longer than running it.
        settings = LOCAL | {"spark.sql.codegen.wholeStage": "false", "spark.master": "local[2]"}
        conf = directory / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        conf.joinpath("spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
        quick = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", "SPARK_CONF_DIR": str(conf)}
        self.environ = {**os.environ, **quick, "SPARK_LOCAL_IP": "127.0.0.1"}
        self.gateway: Any = None
        self.started = False
        if warm:
            os.environ.update(self.environ, JAVA_HOME=str(java_home(os.environ)))
            self.gateway = launch_gateway()
            where = self.gateway.gateway_parameters
            self.environ |= {"PYSPARK_GATEWAY_PORT": str(where.port), "PYSPARK_GATEWAY_SECRET": where.auth_token}
            self.environ["PYSPARK_PYTHON"] = sys.executable

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        """Start a pipeline in a session of its own, so that it can be ended as a whole."""
        if self.gateway is not None and self.started:
            # What the last driver left in the JVM.
            self.gateway.jvm.org.apache.spark.SparkContext.getOrCreate().stop()
        self.started = True
        command = [sys.executable, str(PIPELINE), str(self.journal), str(self.tables), "--memory", "1g", *more]
        with self.log.open("ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=output, env=self.environ, start_new_session=True)

    def disturb(self, pipeline: subprocess.Popen[bytes], dice: random.Random) -> str:
        """Kill the driver or its JVM, and return which."""
        if self.gateway is None and dice.random() < 0.5:
            for pid, line in descendants(pipeline.pid).items():
                if kind_of(line) == "jvm":
                    os.kill(pid, signal.SIGKILL)
                    return "jvm"
        pipeline.kill()
        return "driver"

    def stop(self) -> None:
        """End the JVM that all used."""
        if self.gateway is not None:
            self.gateway.shutdown()
            self.gateway.proc.kill()


def durable(journal: Path) -> dict[bytes, tuple[str, int]]:
    """Return the events of the journal, with the stream and the number under which each was received first."""
    found: dict[bytes, tuple[str, int]] = {}
    for stream, seq, payload in sorted(records(journal), key=lambda record: record.seq):
        found.setdefault(payload, (stream, seq))
    return found


def compare(journal: Path, tables: Path) -> list[str]:
    """Return what is wrong with silver and gold."""
    expected = durable(journal)
    rows = DeltaTable(str(tables / "silver")).to_pyarrow_table().to_pylist()
    found = Counter((row["stream"], row["seq"]) for row in rows)
    problems = [f"silver has {key} {count} times" for key, count in found.items() if count > 1]
    problems += [f"silver lacks {key}" for key in set(expected.values()) - set(found)]
    problems += [f"silver has {key}, which was sent again or never" for key in set(found) - set(expected.values())]
    ids = {place: json.loads(payload)["id"] for payload, place in expected.items()}
    problems += [
        f"silver has another id for {row['stream']} {row['seq']}"
        for row in rows
        if row["id"] != ids.get((row["stream"], row["seq"]))
    ]
    odd = sum(1 for row in rows if row["rescued"] is not None)
    late = sum(1 for row in rows if row["late"])
    counted = Counter(
        (row["event_time"].replace(second=0, microsecond=0), row["http.response.status_code"])
        for row in rows
        if not row["late"] and row["http.response.status_code"] is not None
    )
    gold = DeltaTable(str(tables / "requests")).to_pyarrow_table().to_pylist()
    if len(gold) != len(counted) or {(row["minute"], row["status"]): row["requests"] for row in gold} != counted:
        problems.append(f"gold has {sum(row['requests'] for row in gold)} requests, silver {counted.total()}")
    print(
        f"{len(expected)} events are durable, {len(rows)} are in silver ({odd} rescued, {late} late, "
        f"{len(rows[0]) if rows else 0} columns), {counted.total()} requests in gold",
        flush=True,
    )
    if not (rows and odd and counted):
        problems.append("the run was too short to show anything")
    return problems


def main() -> int:
    parser = parser_of(__doc__, count=20)
    parser.add_argument("--warm", action="store_true", help="one JVM for all")
    args = parser.parse_args()
    if args.write:
        write(args.write, args.seed)
    directory = args.directory or Path(tempfile.mkdtemp(prefix="fyrehose-pipeline-kill-"))
    starter = Starter(directory, args.warm)
    try:
        with writing(__file__, starter.journal, args.seed):
            kinds = lives(
                args,
                lambda: starter.start("--follow", "--every", "0.1s"),
                starter.disturb,
                lambda: rounds(starter.tables / "silver"),
                wanted=1,
            )
        status = starter.start().wait()
    finally:
        starter.stop()
    problems = [] if status == 0 else [f"the last pipeline ended with {status}: see {starter.log}"]
    return report(problems + compare(starter.journal, starter.tables), kinds, directory)


if __name__ == "__main__":
    sys.exit(main())
