#!/usr/bin/env python3
"""Kill and freeze workers of a shared subscription: each record must be settled once, or become a dead letter once.

    workers.py [--minutes M] [--records N] [--seed S] [--kills [SECONDS]] [--points N] [--only POINT] [--directory DIR]

The client is written from docs/protocols/http.md alone.  Each worker is a process; in each second two of them are
killed and replaced, and one is stopped for longer than its lease lasts.  The records are published evenly over the
time.  A worker publishes a result with each record that it settles, rejects some records, and lets some fail each time.
In the end every record must have one result, or else one dead letter, and the counters of the subscription and of the
metrics must agree.  With --kills the server is killed, too, at a random time after it became ready, after SECONDS on
average (default 10).  With --cheat a worker publishes its results separately from settling, which must be noticed.

With --points a worker instead kills itself, or cuts its connection, at random at each of several points of its work.
The run lasts until each of them has happened N times (and, with --kills, the server was killed as often), or until
the minutes are over; it then reports the points that were too rare.  The records are published at the same pace.  With
--only, which may be given several times, only these points happen:

    worker: asks, sends a lease, has records, sends a settling, has settled      connection: half a request, no answer
    server: server killed, which needs --kills

workers_takeovers.py does the same with the leader of a cluster.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).parent))

import kills
import servers

#: How long a lease lasts, and how long a worker is stopped, in seconds.
LEASE, FROZEN = 2, 3.0
WORKERS, MOST = 8, 100
#: The limit of failures; killed workers fail records by chance, but practically never so often.
LIMIT = 15
#: One record in so many is rejected; one in so many fails each time.
REJECTED, FAILING = 97, 101


#: The points where a worker dies or its connection is cut, and one in how many times that happens.  Few workers
#: reach the last points, so these are more likely.
DEATHS = {"asks": 20, "sends a lease": 20, "has records": 15, "sends a settling": 15, "has settled": 8}
CUTS = {"half a request": 40, "no answer": 40}
ONE_IN = DEATHS | CUTS
#: How many records are published before anything happens at the points, and in each second at least.
AHEAD, LEAST = 5_000, 100
#: How long a server may take until it is ready, in seconds.
PATIENCE = 120.0


class Points:
    """Decides at which points of a worker's code something happens, and reports it to the pool through a pipe.

    :param pipe: the descriptor to write to
    :param chosen: the points where something happens
    """

    def __init__(self, pipe: int = -1, chosen: Collection[str] = (), dice: random.Random | None = None) -> None:
        self.pipe, self.chosen, self.dice = pipe, chosen, dice or random.Random()

    def comes(self, point: str) -> bool:
        """Return whether something happens at *point* this time; if so, report it."""
        if point not in self.chosen or self.dice.randrange(ONE_IN[point]):
            return False
        os.write(self.pipe, bytes([[*ONE_IN].index(point)]))
        return True

    def die(self, point: str) -> None:
        """Kill this process, if *point* is chosen this time."""
        if self.comes(point):
            os.kill(os.getpid(), signal.SIGKILL)


class Client:
    """Sends requests, and repeats unanswered ones at the next server.

    :param ports: the ports of the servers, of which one leads
    """

    def __init__(self, ports: list[int], points: Points | None = None) -> None:
        self.ports, self.points = ports, points or Points()
        self.connection: HTTPConnection | None = None

    def ask(
        self, method: str, path: str, body: bytes | None = None, kind: str = "application/json", key: str = ""
    ) -> bytes:
        headers = {"Content-Type": kind, **({"Idempotency-Key": key} if key else {})}
        while True:
            try:
                if self.connection is None:
                    self.connection = HTTPConnection("127.0.0.1", self.ports[0], timeout=60)
                if self.connection.sock is None:
                    self.connection.connect()
                if body and self.points.comes("half a request"):
                    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
                    self.connection.sock.sendall(head.encode() + body[: len(body) // 2])
                    self.close()
                    continue
                self.connection.request(method, path, body, headers)
                if path.endswith("/lease"):
                    self.points.die("sends a lease")
                if path.endswith("/settle"):
                    self.points.die("sends a settling")
                if self.points.comes("no answer"):
                    self.close()
                    continue
                answer = self.connection.getresponse()
                text = answer.read()
                if answer.status in (200, 409):
                    return text
                if answer.status < 500:
                    raise AssertionError(f"{method} {path}: {answer.status} {text!r}")
            except (OSError, HTTPException):
                pass  # the server was killed, or is starting
            self.close()
            self.ports = [*self.ports[1:], self.ports[0]]
            time.sleep(0.05)

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def post(self, action: str, body: object) -> dict:
        answer: dict = json.loads(self.ask("POST", f"/subscriptions/work/{action}", json.dumps(body).encode()))
        return answer


def work(ports: list[int], name: str, cheat: bool, points: Points) -> None:
    """Lease and settle records for ever; the payload of each record is its number."""
    client, request = Client(ports, points), 0
    while True:
        request += 1
        points.die("asks")
        records = client.post("lease", {"consumer": name, "request": request, "most": MOST, "wait": 5})["records"]
        if records:
            points.die("has records")
        done, others = [], {"reject": [], "failed": []}
        for record in records:
            number = int(record["payload"])
            item = [record["seq"], record["token"]]
            if number % REJECTED == 0:
                others["reject"].append([*item, {"why": "no address"}])
            elif number % FAILING == 0:
                others["failed"].append([*item, {"delay": 0.1}])
            else:
                done.append((item, {"stream": "results", "payload": record["payload"]}))
        if any(others.values()):
            client.post("settle", {"consumer": name, **others})
        while done:
            body = {"done": [item for item, _ in done], "publish": [result for _, result in done], "consumer": name}
            if cheat:
                lines = "".join(json.dumps(int(result["payload"])) + "\n" for _, result in done)
                client.ask("POST", "/streams/results", lines.encode(), "application/x-ndjson")
                del body["publish"]
            refused = {each["seq"] for each in client.post("settle", body)["refused"]}
            points.die("has settled")
            if not refused or cheat:
                break
            done = [(item, result) for item, result in done if item[0] not in refused]


class Pool:
    """The processes of the workers.

    :ivar points: the points where workers and connections end
    """

    def __init__(self, ports: list[int], dice: random.Random, cheat: bool, points: Collection[str] = ()) -> None:
        self.ports, self.dice, self.cheat, self.points = ports, dice, cheat, points
        self.told, self.telling = os.pipe()
        os.set_blocking(self.told, False)
        self.pids: list[int] = []
        self.frozen: list[tuple[float, int]] = []
        self.count: Counter[str] = Counter()
        for _ in range(WORKERS):
            self.start()

    def start(self) -> None:
        self.count["started"] += 1
        seed = self.dice.random()
        pid = os.fork()
        if not pid:
            os.setsid()  # a session of its own gets its own share of a busy machine, as the servers do
            try:
                points = Points(self.telling, self.points, random.Random(seed))
                work(self.ports, f"w{self.count['started']}", self.cheat, points)
            finally:
                os._exit(1)
        self.pids.append(pid)

    def calm(self) -> None:
        """Replace the workers by others without faults."""
        self.release()
        self.bury()
        self.end()
        self.points = ()
        for _ in range(WORKERS):
            self.start()

    def bury(self) -> None:
        """Replace the workers that have killed themselves, and count at which points workers and connections ended."""
        with contextlib.suppress(BlockingIOError):
            self.count.update([*ONE_IN][each] for each in os.read(self.told, 1 << 16))
        for pid in list(self.pids):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                assert self.points, "a worker has ended without being killed"
                assert os.WIFSIGNALED(status), "a worker has ended without being killed"
                self.remove(pid)
                self.start()

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), "a worker has ended without being killed"
        self.remove(pid)

    def remove(self, pid: int) -> None:
        self.pids.remove(pid)
        self.frozen = [(until, frozen) for until, frozen in self.frozen if frozen != pid]

    def second(self) -> None:
        """Kill two workers, freeze one, and continue those whose time is over."""
        now = time.monotonic()
        for _, pid in [each for each in self.frozen if each[0] <= now]:
            os.kill(pid, signal.SIGCONT)
        self.frozen = [each for each in self.frozen if each[0] > now]
        for pid in self.dice.sample(self.pids, 2):
            self.kill(pid)
            self.start()
            self.count["killed"] += 1
        frozen = {pid for _, pid in self.frozen}
        pid = self.dice.choice([pid for pid in self.pids if pid not in frozen])
        os.kill(pid, signal.SIGSTOP)
        self.frozen.append((now + FROZEN, pid))
        self.count["frozen"] += 1

    def release(self) -> None:
        for _, pid in self.frozen:
            os.kill(pid, signal.SIGCONT)
        self.frozen.clear()

    def end(self) -> None:
        for pid in list(self.pids):
            self.kill(pid)


def numbers_in(client: Client, stream: str) -> list[int]:
    found: list[int] = []
    while lines := client.ask("GET", f"/streams/{stream}?from={len(found) + 1}").splitlines():
        found += [int(json.loads(line)["payload"]) for line in lines]
    return found


def check(client: Client, pages: Client, records: int) -> list[str]:
    """Check the results, dead letters, counters and metrics at the end; return the problems.

    :param pages: a client that asks the same servers for their metrics
    """
    results, letters = Counter(numbers_in(client, "results")), Counter(numbers_in(client, "dead"))
    every, problems = results + letters, []
    problems += [f"record {number} ended {count} times" for number, count in every.items() if count > 1]
    problems += [f"record {number} has no end" for number in range(1, records + 1) if number not in every]
    for number in letters:
        if number % REJECTED and number % FAILING:
            problems.append(f"record {number} is a dead letter although no worker has refused it")
    shown = json.loads(client.ask("GET", "/subscriptions/work"))
    expected = {"settled_total": results.total(), "dead_total": letters.total()}
    expected |= {"expired_total": 0, "in_flight": 0, "lag": 0}
    counters = {name: shown[name] for name in expected}
    if counters != expected:
        problems.append(f"the counters say {counters}, expected {expected}")
    text = pages.ask("GET", "/metrics").decode()
    totals = ("settled_total", "dead_total", "expired_total")
    lines = {name: re.findall(rf"^fyrehose_subscription_{name}{{.*}} (\S+)$", text, re.MULTILINE) for name in totals}
    metrics = {name: [float(value) for value in found] for name, found in lines.items()}
    if metrics != {name: [expected[name]] for name in totals}:
        problems.append(f"the metrics say {metrics}, expected {expected}")
    print(
        f"{records} records: {results.total()} results, {letters.total()} dead letters, metrics {metrics}, "
        f"{shown['late_refused_total']} late refused, {shown['redelivered_total']} redelivered since the last start",
        flush=True,
    )
    return problems


class Victim(Protocol):
    """The server or leader that serves the workers, and is killed at random times.

    :ivar kind: the name of such a kill
    :ivar ports: the ports of HTTP
    :ivar page: the port of the page with the metrics
    """

    kind: str
    ports: list[int]

    @property
    def page(self) -> int: ...

    def serves(self) -> bool:
        """Return whether a server is ready for the workers."""

    def kill(self) -> None:
        """Kill the server, and start it again."""

    def end(self) -> None:
        """Kill all servers for good."""


class OneServer:
    """A single server."""

    kind = "server killed"

    def __init__(self, root: Path) -> None:
        self._root, self._listen = root, servers.free_ports(("http", "admin"))
        self.ports, self.page = [self._listen["http"]], self._listen["admin"]
        self._start()

    def _start(self) -> None:
        # A session of its own gets its own share of a busy machine.
        self._server = servers.Server(self._root, before=("setsid",), ports=self._listen, only=True)

    def serves(self) -> bool:
        assert self._server.process.poll() is None, f"the server has ended; see {self._server.log_path}"
        return "#info] serving\n" in self._server.log

    def kill(self) -> None:
        self._server.kill()
        self._start()

    def end(self) -> None:
        self._server.kill()


class Torture:
    """One run: publishes the records, and kills workers and servers meanwhile.

    :ivar wanted: the points that must happen ``--points`` times
    """

    def __init__(self, victim: Victim, options: argparse.Namespace) -> None:
        self.victim, self.options, self.dice = victim, options, random.Random(options.seed)
        self.client, self.published = Client(victim.ports), 0
        every = (*ONE_IN, *((victim.kind,) if options.kills else ()))
        self.wanted = [each for each in every if each in (options.only or every)] if options.points else []
        self.kills = bool(options.kills) and (not options.points or victim.kind in self.wanted)
        self._kill_at: float | None = None

    def run(self) -> list[str]:
        """Run until the end; return the problems."""
        self.wait_until_serving()
        fields = {"stream": "inputs", "shared": True, "lease": LEASE, "limit": LIMIT, "dead": "dead", "window": 4_000}
        self.client.ask("PUT", "/subscriptions/work", json.dumps(fields).encode())
        points = [each for each in self.wanted if each != self.victim.kind]
        pool = Pool(self.victim.ports, self.dice, self.options.cheat, points)
        self.begun = time.monotonic()
        try:
            second = 0
            while (share := self.share(pool, second)) < 1:
                second += 1
                self.publish(max(round(self.options.records * share), AHEAD + LEAST * second if self.wanted else 0))
                pool.bury()
                if not self.wanted:
                    pool.second()
                self.kill_server(pool, self.begun + second)
                if second % 20 == 0:
                    print(f"{second} s: {self.published} published, {dict(pool.count)}", flush=True)
            self.publish(self.options.records)
            pool.calm()
            self.wait_until_serving()
            self.wait_for_the_end()
            print(f"{time.monotonic() - self.begun:.0f} s: {dict(pool.count)}", flush=True)
            problems = check(self.client, Client([self.victim.page]), self.published)
            found = {each: pool.count[each] for each in self.wanted if pool.count[each] < self.options.points}
            return [*problems, *(f"{each}: {count} times" for each, count in found.items())]
        finally:
            pool.end()

    def wait_until_serving(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self.victim.serves():
            assert time.monotonic() < deadline, "the server does not start; its log is in the directory"
            time.sleep(0.1)

    def share(self, pool: Pool, second: int) -> float:
        """Return how much of the run is done, from 0 to 1."""
        share = 0.0
        if self.wanted:
            share = min(pool.count[each] for each in self.wanted) / self.options.points
        return float(max(share, second / (60 * self.options.minutes)))

    def publish(self, upto: int) -> None:
        if upto > self.published:
            lines = "".join(f"{number}\n" for number in range(self.published + 1, upto + 1)).encode()
            # A key makes the request repeatable, because the server may be lost before it answers.
            self.client.ask("POST", "/streams/inputs", lines, "application/x-ndjson", key=f"{self.published}-{upto}")
            self.published = upto

    def kill_server(self, pool: Pool, until: float) -> None:
        """Wait until the time *until*, and kill the server if a kill is due."""
        while True:
            now = time.monotonic()
            if self.kills and self._kill_at is None and self.victim.serves():
                self._kill_at = now + self.dice.uniform(0, 2 * self.options.kills)
            if self._kill_at is not None and self._kill_at <= now:
                self.victim.kill()
                self._kill_at = None
                pool.count[self.victim.kind] += 1
            if now >= until:
                return
            time.sleep(min(until - now, 0.1))

    def wait_for_the_end(self) -> None:
        """Wait until all records are final."""
        deadline = time.monotonic() + 120 * self.options.minutes + 600
        while json.loads(self.client.ask("GET", "/subscriptions/work"))["floor"]["inputs"] < self.published:
            assert time.monotonic() < deadline, "records are never settled"
            time.sleep(0.5)


def main(
    description: str = __doc__ or "", victim: Callable[[Path], Victim] = OneServer, kind: str = OneServer.kind
) -> int:
    parser = kills.parser_of(description, records=100_000, points=0)
    parser.add_argument("--minutes", type=float, default=10, help="how long, at most")
    often = "kill the server as well, SECONDS (10) after it serves, on average"
    parser.add_argument("--kills", type=float, nargs="?", const=10, default=0, metavar="SECONDS", help=often)
    only = "of the points, only this one"
    parser.add_argument("--only", action="append", choices=(*ONE_IN, kind), metavar="POINT", help=only)
    parser.add_argument("--cheat", action="store_true", help="publish results separately: this must be noticed")
    options = parser.parse_args()
    root = kills.root_of(options, "workers")
    killed = victim(root / "server")
    try:
        problems = Torture(killed, options).run()
    finally:
        killed.end()
    for problem in problems[:20]:
        print(problem)
    if options.cheat:
        print("noticed" if problems else "NOT NOTICED")
        return 0 if problems else 1
    return servers.verdict(bool(problems), root)


if __name__ == "__main__":
    sys.exit(main())
