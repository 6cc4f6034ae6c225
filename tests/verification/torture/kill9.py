#!/usr/bin/env python3
"""Kill the real server again and again with ``kill -9`` under load, and check that nothing is lost.

    kill9.py [--count N] [--seed S] [--durability MODE] [--lives K] [--directory DIR] [--sabotage] [--option NAME=VALUE]

A *cycle*: the server starts; everything is read from offset 0; the load runs for a random time of at most --busy
milliseconds; ``kill -9``, or SIGTERM in one of five cycles.  In one of ten a first server is killed while it starts,
too.  After --lives cycles the journal is verified and removed, and a new one begins.

Each time, the journal is checked against what publishers and subscribers recorded in processes of their own:

  - acknowledged messages are stored, unchanged;
  - nothing is stored that was never sent;
  - the messages of each publisher are stored in its order, and twice only if it sent them again after a reconnect;
  - events of lumberjack, which have an identity, are stored once even if they were sent again;
  - a number that any listener has delivered has the same message for ever;
  - numbers follow on with --durability batch; in other modes they may jump after a crash, but never go back;
  - `fyrehose journal verify` finds nothing.

Prints each violation and a summary; the exit status is 1 if there was any, and the directory is kept.

With --sabotage the end of the log is damaged after each kill in a way that the server cannot notice, to test that this
program notices it.  With --option lumberjack.resent=store the server stores events again, which must be noticed, too.
"""

from __future__ import annotations

import random
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import kills
import listeners
import load
import servers
import wire

from fyrehose.offline import dump
from fyrehose.offline.verify import verify

STREAMS = ("a", "b", "c-\N{SNOWMAN}", "backbone", "lumberjack", "relink", "eventbus")
#: (listener, stream, window, largest payload) of each publisher
PLAN = (
    ("figg", "a", 1, 1 << 17),
    ("figg", "a", 10, 1 << 17),
    ("figg", "a", 10_000, 1 << 17),
    ("figg", "b", 1, 1 << 17),
    ("figg", "b", 1000, 1 << 17),
    ("figg", "c-\N{SNOWMAN}", 100, 1 << 17),
    ("figg", "backbone", 100, load.LARGEST_DATAGRAM),
    ("lumberjack", "lumberjack", 10, 1 << 17),
    ("lumberjack", "lumberjack", 500, 1 << 17),
    ("lumberjack", "lumberjack", 50, 1 << 17),
    ("relink", "relink", 100, 1 << 17),
    ("relink", "relink", 1, 1 << 17),
)
#: The numbers of the publishers whose events have an identity.
ONCE = {number for number, (listener, *_) in enumerate(PLAN) if listener == "lumberjack"}
#: The number of the publisher of the event bus.
BUS = 2000


class Life:
    """A journal from its first start to its last check, with its publishers and subscribers."""

    def __init__(self, directory: Path, dice: random.Random, durability: str, strangers: bool = False) -> None:
        """Create the clients; ``strangers`` says whether other clients publish arbitrary data, too."""
        self.directory, self.dice, self.durability, self.strangers = directory, dice, durability, strangers
        self.segment_size = dice.choice((64 << 10, 256 << 10, 1 << 20, 16 << 20))
        specs = [(listener, i, *rest) for i, (listener, *rest) in enumerate(PLAN)]
        self.streams = {i: stream.encode() for _, i, stream, _, _ in specs}
        self.streams |= {load.PUSHER: b"backbone", BUS: b"eventbus"}
        self.largest = {i: largest for _, i, _, _, largest in specs} | {load.PUSHER: load.LARGEST_DATAGRAM}
        self.publishers = load.Publishers(specs)
        self.subscribers = load.Subscribers(STREAMS, 2, self.largest)
        self.bus = listeners.EventBus(BUS, self.largest)
        #: by stream, the author of each number that any listener has delivered
        self.released: dict[bytes, dict[int, tuple[int, int]]] = {stream.encode(): {} for stream in STREAMS}
        self.problems: list[str] = []
        self.acked: dict[int, int] = {}
        self.kept = self.duplicates = self.datagrams = 0
        #: whether acknowledged messages may be lost: the power was cut in a mode that does not sync them
        self.may_lose = False
        #: the option journal.keep-bytes; 0: keep everything
        self.keep = 0
        #: other options of the server
        self.options: list[str] = []

    def by_listener(self) -> dict[str, int]:
        """Return how many messages each listener has acknowledged."""
        listeners = [listener for listener, *_ in PLAN]
        found: dict[str, int] = {}
        for number, acked in self.acked.items():
            listener = listeners[number] if number < len(listeners) else "eventbus"
            found[listener] = found.get(listener, 0) + acked
        return found

    def start(self, before: tuple[str, ...] = ()) -> servers.Server:
        return servers.Server(
            self.directory,
            "--durability",
            self.durability,
            "--option",
            "journal.min-free=0",
            "--option",
            f"journal.segment-size={self.segment_size}",
            "--option",
            f"journal.keep-bytes={self.keep}",
            *(word for option in self.options for word in ("--option", option)),
            before=before,
        )

    def load(self, server: servers.Server) -> None:
        """Connect all clients, which run until the next check."""
        ports = {listener: server.port(listener) for listener in servers.LISTENERS}
        for worker in (self.subscribers, self.bus, self.publishers):
            worker.connect(ports)

    def check(self, server: servers.Server) -> None:
        """Check the journal against what the clients recorded; the server must run, and the clients disconnect."""
        publishers, pushed = self.publishers.report()
        ours, heard = self.bus.report()
        publishers.append(ours)
        for messages, skips, problems, datagrams in (self.subscribers.report(), heard):
            self.datagrams += datagrams
            allowed = [load.NOBODYS] * self.strangers + [load.OVERTAKEN] * bool(self.keep)
            self.problems += [problem for problem in problems if not any(words in problem for words in allowed)]
            for stream, numbers in messages.items():
                self._release(stream, numbers)
            if self.durability == "batch" and not self.keep:  # otherwise retention may overtake a slow subscriber
                self.problems += [f"{stream!r} skips from {before} to {after}" for stream, before, after in skips]
        found = wire.read_all(server.port("figg"), list(self.released), self._ends())
        if self.keep:
            # The server may have deleted old records while they were read.
            oldest: dict[bytes, int] = {}
            for run in dump.runs(self.directory / "data"):
                oldest.setdefault(run.stream.encode(), run.first_seq)
            found = {stream: [r for r in records if r[0] >= oldest[stream]] for stream, records in found.items()}
        authors = {stream: self._authors(stream, records) for stream, records in found.items()}
        for stream, numbers in authors.items():
            self._check_released(stream, numbers)
        for number, acked, sent, resent, wrong in publishers:
            if wrong:
                self.problems.append(wrong)
            self.acked[number] = acked
            self._check_publisher(number, acked, sent, resent, authors[self.streams[number]])
        self._check_pushed(pushed, authors[b"backbone"])
        self.kept = sum(map(len, authors.values()))
        self.duplicates = self.kept - sum(len(set(numbers.values())) for numbers in authors.values())
        report = verify(self.directory / "data")
        self.problems += [f"verify: {problem}" for problem in report.problems]

    def _ends(self) -> dict[bytes, int] | None:
        """Return the last record of each stream, or None in mode `batch`; other modes may lose the last numbers."""
        if self.durability == "batch":
            return None
        runs = dump.runs(self.directory / "data", everything=True)
        return {run.stream.encode(): run.last_seq for run in runs}

    def _release(self, stream: bytes, numbers: dict[int, tuple[int, int]]) -> None:
        known = self.released[stream]
        for number, author in numbers.items():
            if known.setdefault(number, author) != author:
                self.problems.append(
                    f"{stream!r} {number} was {known[number]} and is now {author}: a number was used twice"
                )

    def _authors(self, stream: bytes, records: list[tuple[int, bytes]]) -> dict[int, tuple[int, int]]:
        authors: dict[int, tuple[int, int]] = {}
        before = 0
        for number, data in records:
            begins = self.keep and not before
            if number <= before or (self.durability == "batch" and number != before + 1 and not begins):
                self.problems.append(f"{stream!r} continues from {before} with {number}")
            before = number
            author = wire.whose(data, self.largest)
            if author is None:
                if not self.strangers:
                    self.problems.append(f"{stream!r} {number} {load.NOBODYS} ({len(data)} bytes)")
            elif self.streams.get(author[0]) != stream:
                self.problems.append(f"{stream!r} {number} was published to {self.streams.get(author[0])!r}")
            else:
                authors[number] = author
        return authors

    def _check_released(self, stream: bytes, authors: dict[int, tuple[int, int]]) -> None:
        if self.keep:
            oldest = min(authors, default=0)
            for number in [number for number in self.released[stream] if number < oldest]:
                del self.released[stream][number]
        for number, author in self.released[stream].items():
            found = authors.get(number)
            if found != author and not (found is None and self.may_lose):
                self.problems.append(f"{stream!r} {number} was delivered as {author} and is {found} now")
        self._release(stream, authors)

    def _check_publisher(
        self, number: int, acked: int, sent: int, resent: list[tuple[int, int]], authors: dict[int, tuple[int, int]]
    ) -> None:
        found = load.judge(
            [n for _, (who, n) in sorted(authors.items()) if who == number],
            (acked, sent),
            [] if number in ONCE else resent,
            trimmed=bool(self.keep),
            late=number == BUS,
            may_lose=self.may_lose,
        )
        self.problems += [f"publisher {number}: {problem}" for problem in found]

    def _check_pushed(self, pushed: int, authors: dict[int, tuple[int, int]]) -> None:
        order = [n for _, (who, n) in sorted(authors.items()) if who == load.PUSHER]
        if len(set(order)) != len(order):
            self.problems.append("a datagram is stored twice")
        if order and max(order) > pushed:
            self.problems.append("a datagram is stored that was never pushed")

    def close(self) -> None:
        for worker in (self.publishers, self.subscribers, self.bus):
            worker.close()


def sabotage(data: Path) -> None:
    """Lose the last durable bytes in a way that the server cannot notice."""
    mark = data / "MARK"
    durable = int.from_bytes(mark.read_bytes()[:8], "little")
    last = max(path for path in data.glob("*.segment"))
    offset = durable - int(last.stem, 16)
    with last.open("r+b") as file:
        file.seek(max(0, offset - 40))
        file.write(bytes(min(40, offset)))
    mark.unlink()


def cycle(life: Life, busy: float) -> float:
    """Start the server, check, load and kill it; return how long the start took, in seconds."""
    dice = life.dice
    if dice.random() < 0.1:
        server = life.start()
        time.sleep(dice.uniform(0, 1.2))
        server.kill()
    server = life.start()
    try:
        server.wait_until_serving()
        started = time.monotonic() - server.started
        life.check(server)
        life.load(server)
        time.sleep(dice.uniform(0, busy))
    finally:
        server.kill(servers.signal.SIGTERM if dice.random() < 0.2 else servers.signal.SIGKILL)
        life.bus.hang_up()
    return started


def run_life(life: Life, cycles: int, busy: float, told: Any, saboteur: bool) -> list[float]:
    """Run ``cycles`` kills and a last check; return how long each cycle took, in seconds."""
    times = []
    for _ in range(cycles):
        began = time.monotonic()
        started = cycle(life, busy)
        times.append(time.monotonic() - began)
        told(life, started)
        if saboteur:
            sabotage(life.directory / "data")
        if life.problems:
            break
    server = life.start()
    try:
        server.wait_until_serving()
        life.check(server)
    finally:
        server.kill(servers.signal.SIGTERM)
    report = verify(life.directory / "data")
    life.problems += [f"verify at the end: {problem}" for problem in report.problems]
    return times


def main() -> int:
    parser = kills.parser_of(__doc__, count=20, lives=10)
    parser.add_argument("--durability", default="batch")
    parser.add_argument(
        "--busy", type=float, default=200.0, help="the longest time between the load and the kill, in ms"
    )
    parser.add_argument("--sabotage", action="store_true")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the server")
    arguments = parser.parse_args()

    dice = random.Random(arguments.seed)
    root = kills.root_of(arguments, "kill9")
    killed = acked = kept = duplicates = datagrams = violations = 0
    times: list[float] = []
    starts: list[float] = []
    by_listener: dict[str, int] = {}
    began = time.monotonic()

    def told(life: Life, started: float) -> None:
        nonlocal killed
        killed += 1
        starts.append(started)
        if killed % 10 == 0 or life.problems:
            rate = (time.monotonic() - began) / killed
            print(f"{killed} kills, {acked + sum(life.acked.values())} acknowledged, {rate:.2f} s each", flush=True)

    while killed < arguments.count and not violations:
        life = Life(root / f"life-{killed}", dice, arguments.durability)
        life.options = arguments.option
        try:
            times += run_life(
                life, min(arguments.lives, arguments.count - killed), arguments.busy / 1000, told, arguments.sabotage
            )
        except (servers.ServerEnded, OSError, ValueError) as error:
            life.problems.append(f"{type(error).__name__}: {error}")
        finally:
            life.close()
        acked += sum(life.acked.values())
        kept, duplicates, datagrams = kept + life.kept, duplicates + life.duplicates, datagrams + life.datagrams
        violations += len(life.problems)
        for listener, count in life.by_listener().items():
            by_listener[listener] = by_listener.get(listener, 0) + count
        for problem in life.problems[:20]:
            print(f"VIOLATION: {problem}")
        if not life.problems:
            shutil.rmtree(life.directory)

    print(
        f"{killed} kills with durability {arguments.durability} (seed {arguments.seed}): "
        f"{acked} messages acknowledged, {kept} kept, {duplicates} of them resent after a reconnect, "
        f"{datagrams} deliveries by datagram checked, {violations} violations"
    )
    print("acknowledged by listener: " + ", ".join(f"{listener} {count}" for listener, count in by_listener.items()))
    if len(times) > 1:
        spread = statistics.quantiles(times, n=20)
        print(
            f"seconds a cycle: median {statistics.median(times):.2f}, 5% {spread[0]:.2f}, 95% {spread[-1]:.2f}, "
            f"longest {max(times):.2f}; a start: median {statistics.median(starts):.2f}, longest {max(starts):.2f}; "
            f"{time.monotonic() - began:.0f} in all"
        )
    return servers.verdict(bool(violations), root)


if __name__ == "__main__":
    sys.exit(main())
