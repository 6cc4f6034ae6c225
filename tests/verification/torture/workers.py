#!/usr/bin/env python3
"""Workers of a shared subscription that are killed and frozen: each record is settled once, or a dead letter once.

    workers.py [--minutes M] [--records N] [--seed S] [--kills [SECONDS]] [--points N] [--directory DIR]

The client is written from docs/protocols/http.md alone.  Each worker is a process; in each second two of them are
killed (new ones take their places), and one is stopped for longer than its lease lasts.  The records are published
evenly over the time.  A worker publishes a result with each record that it settles, rejects some records, and lets some
fail each time.  In the end every record must have one result, or else one dead letter, and the counters of the
subscription must say the same.  With --kills the server is killed every ten seconds as well.  With --cheat a worker
publishes its results separately from settling, which must be noticed.

With --points a worker also kills itself, or cuts its connection, at each point of its work now and then, and each of
them must have happened N times in the end (and the server must have been killed as often, with --kills):

    worker: asks, sends a lease, has records, sends a settling, has settled      connection: half a request, no answer
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from http.client import HTTPConnection, HTTPException
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import servers

#: How long a lease lasts, and how long a worker is stopped, in seconds.
LEASE, FROZEN = 3, 4.0
WORKERS, MOST = 8, 50
#: Workers that are killed fail records through no fault of theirs: chance does not reach this limit.
LIMIT = 15
#: One record in so many is rejected; one in so many fails each time.
REJECTED, FAILING = 97, 101


#: Where a worker dies, and where its connection is cut; one in so many times, each.
DEATHS = ("asks", "sends a lease", "has records", "sends a settling", "has settled")
CUTS = ("half a request", "no answer")
ONE_IN = 60


class Points:
    """Lets something happen at points of a worker, and tells the pool of it by a pipe.

    :param pipe: what to write to; None: nothing happens
    """

    def __init__(self, pipe: int | None = None, dice: random.Random | None = None) -> None:
        self.pipe, self.dice = pipe, dice or random.Random()

    def comes(self, point: str) -> bool:
        """Return whether it is to happen at *point* now, which counts then."""
        if self.pipe is None or self.dice.randrange(ONE_IN):
            return False
        os.write(self.pipe, bytes([(*DEATHS, *CUTS).index(point)]))
        return True

    def die(self, point: str) -> None:
        """Kill this process, if it is to happen at *point*."""
        if self.comes(point):
            os.kill(os.getpid(), signal.SIGKILL)


class Client:
    """Sends requests, and repeats what was not answered."""

    def __init__(self, port: int, points: Points | None = None) -> None:
        self.port, self.points = port, points or Points()
        self.connection: HTTPConnection | None = None

    def ask(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
        while True:
            try:
                if self.connection is None:
                    self.connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
                if self.connection.sock is None:
                    self.connection.connect()
                if body and self.points.comes("half a request"):
                    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                    self.connection.sock.sendall(head.encode() + body[: len(body) // 2])
                    self.close()
                    continue
                self.connection.request(method, path, body, {"Content-Type": kind})
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
                pass  # The server was killed, or is starting.
            self.close()
            time.sleep(0.05)

    def close(self) -> None:
        """Close the connection; the next request makes another one."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def post(self, action: str, body: object) -> dict:
        return json.loads(self.ask("POST", f"/subscriptions/work/{action}", json.dumps(body).encode()))


def work(port: int, name: str, cheat: bool, points: Points) -> None:
    """Lease and settle records for ever; each has its number as payload."""
    client, request = Client(port, points), 0
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
    """The processes of the workers."""

    def __init__(self, port: int, dice: random.Random, cheat: bool, points: bool = False) -> None:
        self.port, self.dice, self.cheat, self.points = port, dice, cheat, points
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
            try:
                points = Points(self.telling if self.points else None, random.Random(seed))
                work(self.port, f"w{self.count['started']}", self.cheat, points)
            finally:
                os._exit(1)
        self.pids.append(pid)

    def bury(self) -> None:
        """Start others for the workers that have killed themselves, and count where workers and connections ended."""
        with contextlib.suppress(BlockingIOError):
            self.count.update((*DEATHS, *CUTS)[each] for each in os.read(self.told, 1 << 16))
        for pid in list(self.pids):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                assert self.points, "a worker has ended by itself"
                assert os.WIFSIGNALED(status), "a worker has ended by itself"
                self.remove(pid)
                self.start()

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), "a worker has ended by itself"
        self.remove(pid)

    def remove(self, pid: int) -> None:
        self.pids.remove(pid)
        self.frozen = [(until, frozen) for until, frozen in self.frozen if frozen != pid]

    def second(self) -> None:
        """Kill two, freeze one, and let those go on whose time is over."""
        self.bury()
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


def check(client: Client, records: int) -> list[str]:
    """Return what is wrong in the end."""
    results, letters = Counter(numbers_in(client, "results")), Counter(numbers_in(client, "dead"))
    every, problems = results + letters, []
    problems += [f"record {number} ended {count} times" for number, count in every.items() if count > 1]
    problems += [f"record {number} has no end" for number in range(1, records + 1) if number not in every]
    for number in letters:
        if number % REJECTED and number % FAILING:
            problems.append(f"record {number} is a dead letter, and no worker has refused it")
    shown = json.loads(client.ask("GET", "/subscriptions/work"))
    counters = {name: shown[name] for name in ("settled_total", "dead_total", "expired_total", "in_flight", "lag")}
    expected = {"settled_total": results.total(), "dead_total": letters.total()}
    expected |= {"expired_total": 0, "in_flight": 0, "lag": 0}
    if counters != expected:
        problems.append(f"the counters say {counters}, expected {expected}")
    print(
        f"{results.total()} results, {letters.total()} dead letters, {shown['late_refused_total']} late refused, "
        f"{shown['redelivered_total']} redelivered",
        flush=True,
    )
    return problems


def too_few(pool: Pool, options: argparse.Namespace) -> list[str]:
    """Return what has happened less often than --points says."""
    wanted = [*DEATHS, *CUTS, *(["servers killed"] if options.kills else [])] if options.points else []
    return [f"{each}: {pool.count[each]} times" for each in wanted if pool.count[each] < options.points]


def run(root: Path, options: argparse.Namespace) -> list[str]:
    dice, ports = random.Random(options.seed), servers.free_ports(("http",))
    server = servers.Server(root, ports=ports)
    server.wait_until_serving()
    client = Client(ports["http"])
    fields = {"stream": "inputs", "shared": True, "lease": LEASE, "limit": LIMIT, "dead": "dead", "window": 2_000}
    client.ask("PUT", "/subscriptions/work", json.dumps(fields).encode())
    pool = Pool(ports["http"], dice, options.cheat, bool(options.points))
    published, begun, seconds = 0, time.monotonic(), round(60 * options.minutes)
    try:
        for second in range(seconds):
            upto = options.records * (second + 1) // seconds
            lines = "".join(f"{number}\n" for number in range(published + 1, upto + 1))
            if lines:
                client.ask("POST", "/streams/inputs", lines.encode(), "application/x-ndjson")
            published = upto
            pool.second()
            if options.kills and second % options.kills == options.kills - 1:
                server.kill()
                pool.count["servers killed"] += 1
                server = servers.Server(root, ports=ports)
            time.sleep(max(0.0, begun + second + 1 - time.monotonic()))
        pool.release()
        while json.loads(client.ask("GET", "/subscriptions/work"))["floor"]["inputs"] < options.records:
            assert time.monotonic() - begun < 3 * seconds + 600, "records are never settled"
            pool.bury()
            time.sleep(0.5)
        print(f"{time.monotonic() - begun:.0f} s: {dict(pool.count)}", flush=True)
        return [*check(client, options.records), *too_few(pool, options)]
    finally:
        pool.end()
        server.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    kills = "kill the server every SECONDS (10) as well"
    parser.add_argument("--kills", type=int, nargs="?", const=10, default=0, metavar="SECONDS", help=kills)
    parser.add_argument("--points", type=int, default=0, metavar="N", help="end workers and connections at each point")
    parser.add_argument("--cheat", action="store_true", help="publish results separately: this must be noticed")
    parser.add_argument("--directory", type=servers.directory, help="where to keep the journal")
    options = parser.parse_args()
    root = options.directory or Path(tempfile.mkdtemp(prefix="fyrehose-workers-"))
    problems = run(root / "server", options)
    for problem in problems[:20]:
        print(problem)
    if options.cheat:
        print("noticed" if problems else "NOT NOTICED")
        return 0 if problems else 1
    return servers.verdict(bool(problems), root)


if __name__ == "__main__":
    sys.exit(main())
