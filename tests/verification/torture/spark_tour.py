#!/usr/bin/env python3
"""Follow the tour of docs/spark.md with counted events: publish by two protocols while an archive follows.

    spark_tour.py [--events N] [--rate EVENTS] [--seed S] [--directory DIR]

N generated events are published to a real server by Figg and lumberjack.  One message in a thousand is sent again with
the same number, as a client does that has received no answer.  Meanwhile an archive follows the journal, and ``table``
is asked again and again: it must have everything that was durable when the question was asked, and in the end exactly
what was acknowledged.  There must be no gaps, and no doubles except the messages that were sent again.

The exit status is 1 if anything is missing, doubled or different; then the directory is kept.
"""

from __future__ import annotations

import argparse
import random
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kills
import wire
from plain_reader import records
from servers import Server, verdict

from fyrehose.spark import session, table
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.jobs.dedup import doubles
from fyrehose.spark.jobs.gaps import gaps
from fyrehose.spark.jobs.verify import verify

#: How many events are sent before waiting for an answer; one in how many is sent again.
TOGETHER, PLANTED = 500, 1000


class Told:
    """How many messages servers have acknowledged, by stream, and which payloads were sent twice."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.planted: dict[str, set[bytes]] = {}
        self._lock = threading.Lock()

    def add(self, stream: str, count: int, again: bytes | None = None) -> None:
        with self._lock:
            self.counts[stream] += count
            if again is not None:
                self.planted.setdefault(stream, set()).add(again)

    def now(self) -> Counter[str]:
        with self._lock:
            return Counter(self.counts)


class Pace:
    """Limits a publisher to *rate* events a second."""

    def __init__(self, rate: float) -> None:
        self.rate, self.began, self.count = rate, time.monotonic(), 0

    def wait(self, count: int) -> None:
        self.count += count
        if self.rate:
            time.sleep(max(0.0, self.began + self.count / self.rate - time.monotonic()))


def events(which: str, count: int, seed: int) -> Iterator[list[bytes]]:
    """Yield lists of some hundred generated events, all of them different."""
    dice = random.Random(f"{seed} {which}")
    for begin in range(0, count, TOGETHER):
        yield [
            b'{"event":%d,"host":"%s-%d","path":"/%x","ms":%d}'
            % (n, which.encode(), dice.randrange(20), dice.getrandbits(48), dice.randrange(2000))
            for n in range(begin, min(begin + TOGETHER, count))
        ]


def by_figg(port: int, told: Told, count: int, seed: int, pace: Pace) -> None:
    """Publish to the stream ``web`` by Figg."""
    number = 1
    with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
        for payloads in events("web", count, seed):
            _figg(peer, number, payloads)
            told.add("web", len(payloads))
            for i, payload in enumerate(payloads, number):
                if i % PLANTED == 0:
                    with socket.create_connection(("127.0.0.1", port), timeout=60) as again:
                        _figg(again, i, [payload])
                    told.add("web", 1, payload)
            number += len(payloads)
            pace.wait(len(payloads))


def _figg(peer: socket.socket, first: int, payloads: list[bytes]) -> None:
    """Publish, and wait until everything is acknowledged."""
    last = first + len(payloads) - 1
    peer.sendall(b"".join(wire.publish(b"web", n, payload) for n, payload in enumerate(payloads, first)))
    frames, acknowledged = wire.Frames(), 0
    while acknowledged < last:
        for kind, _, number, _ in frames.feed(_some(peer)):
            if kind == wire.ACK:
                acknowledged = number


def by_lumberjack(port: int, told: Told, count: int, seed: int, pace: Pace) -> None:
    """Publish windows that are numbered from 1, as Beats do; send some windows of a single event again."""
    done = 0
    with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
        for payloads in events("beat", count, seed):
            *many, last = payloads
            if many:
                _lumberjack(peer, many)
            _lumberjack(peer, [last])
            told.add("lumberjack", len(payloads))
            if done // PLANTED != (done + len(payloads)) // PLANTED:
                with socket.create_connection(("127.0.0.1", port), timeout=60) as again:
                    _lumberjack(again, [last])
                told.add("lumberjack", 1, last)
            done += len(payloads)
            pace.wait(len(payloads))


def _lumberjack(peer: socket.socket, payloads: list[bytes]) -> None:
    peer.sendall(wire.window(payloads))
    answers = wire.Acknowledgements()
    while True:
        for kind, number in answers.feed(_some(peer)):
            if kind != b"2A" or number > len(payloads):
                raise ConnectionError(f"{kind!r} {number} is no acknowledgement of {len(payloads)} events")
            if number == len(payloads):
                return


def count(spark: Any, lake: Path, journal: Path) -> Counter[str]:
    rows = table(spark, lake, str(journal)).groupBy("stream").count().collect()
    return Counter({row["stream"]: row["count"] for row in rows})


def durable(journal: Path) -> Counter[str]:
    """Return how many records are durable, by stream except the server's own; read without Spark."""
    return Counter(record.stream for record in records(journal) if not record.stream.startswith("."))


def ask(spark: Any, lake: Path, journal: Path, told: Told) -> list[str]:
    """Count the table once, and check that it has everything that was durable before; return the problems."""
    acknowledged = told.now()
    before = durable(journal)
    found = count(spark, lake, journal)
    totals = f"{before.total():,}, acknowledged {acknowledged.total():,}, in the table {found.total():,}"
    print(f"durable {totals}", flush=True)
    least = acknowledged | before
    return [
        f"{s} has {found[s]} records in the table, but {least[s]} were durable before"
        for s in least
        if found[s] < least[s]
    ]


def judge(spark: Any, lake: Path, journal: Path, told: Told) -> list[str]:
    """Compare the table with what was acknowledged and sent twice, at the end; return the problems."""
    found, records = count(spark, lake, journal), table(spark, lake, str(journal))
    print("  ".join(f"{stream} {number:,}" for stream, number in sorted(found.items())), flush=True)
    problems = [] if found == told.now() else [f"the table has {dict(found)}, but {dict(told.now())} were acknowledged"]
    problems += [f"gap: {gap}" for gap in gaps(records)]
    twice = doubles(records).join(records.select("stream", "seq", "payload"), ["stream", "seq"])
    seen: dict[str, Counter[bytes]] = {}
    for row in twice.select("stream", "payload").collect():
        seen.setdefault(row["stream"], Counter())[bytes(row["payload"])] += 1
    planted = {stream: Counter(payloads) for stream, payloads in told.planted.items()}
    summary = ", ".join(f"{stream} {counts.total()}" for stream, counts in sorted(seen.items()))
    print(f"doubles: {summary or 'none'}; {sum(map(len, planted.values()))} messages were sent twice", flush=True)
    if seen != planted:
        problems.append("the doubles that were found are not the messages that were sent twice")
    return problems


def tour(directory: Path, args: argparse.Namespace, spark: Any) -> list[str]:
    """Run the whole tour; return the problems."""
    server = Server(directory)
    journal, lake, told, done = directory / "data", directory / "lake", Told(), threading.Event()
    try:
        server.wait_until_serving()
        with ThreadPoolExecutor() as pool:
            words = {"follow": True, "every": 0.5, "subscription": "lake", "stop": done.is_set}
            archived = pool.submit(archive, spark, str(journal), lake, **words)
            try:
                each, problems, asked = args.events // 2, [], 0
                jobs = [
                    pool.submit(work, server.port(name), told, each, args.seed, Pace(args.rate))
                    for name, work in (("figg", by_figg), ("lumberjack", by_lumberjack))
                ]
                while not all(job.done() for job in jobs):
                    problems += ask(spark, lake, journal, told)
                    asked += 1
                for job in jobs:
                    job.result()
                problems += judge(spark, lake, journal, told)
            finally:
                done.set()
        archived.result()
        verified = verify(spark, str(journal), lake)
        print(f"asked {asked} times while it was published; {verified}", flush=True)
        if verified.differences or not verified.checked:
            problems.append(f"verify: {verified}")
        status = server.kill(signal.SIGTERM)
        return [*problems, *([f"the server ended with {status}"] if status else [])]
    finally:
        if server.process.poll() is None:
            server.kill()


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = kills.parser_of(__doc__, events=1_000_000)
    parser.add_argument("--rate", type=float, default=6000.0, help="events a second of each publisher; 0: all they can")
    return parser.parse_args(words)


def main() -> int:
    args = arguments()
    directory = kills.root_of(args, "spark-tour")
    began, spark = time.monotonic(), session("tour", memory="1g")
    try:
        problems = tour(directory, args, spark)
    finally:
        spark.stop()
    for problem in problems[:20]:
        print(problem)
    seconds = time.monotonic() - began
    print(f"{args.events:,} events in {seconds:.0f} s: {len(problems)} problems")
    return verdict(bool(problems), directory)


def _some(peer: socket.socket) -> bytes:
    chunk = peer.recv(1 << 16)
    if not chunk:
        raise ConnectionError("the server closed the connection")
    return chunk


if __name__ == "__main__":
    sys.exit(main())
