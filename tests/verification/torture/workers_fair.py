#!/usr/bin/env python3
"""Check that many shared subscriptions with some workers each are served fairly: no wait is much longer than others.

    workers_fair.py [--subscriptions N] [--workers N] [--rounds N] [--directory DIR]

All subscriptions share one stream.  In each round, as many records as a subscription has workers are published at once,
and each worker of each subscription waits for one of them, settles it, and waits again.  The wait of a record is the
time from its publishing until a worker of a subscription has it.  The longest wait must be less than three times the
median.  The workers connect from several addresses, because the server limits the connections of one address.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))

import kills
import servers

#: How many connections are made from one address.
OF_ADDRESS = 500
#: How many times the median the longest wait may be.
MOST_TIMES = 3.0


class Connection:
    """A connection that sends one request after the other."""

    def __init__(self, port: int, number: int) -> None:
        self.port, self.address = port, f"127.0.0.{2 + number // OF_ADDRESS}"

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(self.address, 0), limit=1 << 20
        )

    async def ask(self, method: str, path: str, body: object, kind: str = "application/json") -> dict:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = (
            f"{method} {path} HTTP/1.1",
            "Host: localhost",
            f"Content-Type: {kind}",
            f"Content-Length: {len(data)}",
        )
        self.writer.write("\r\n".join((*lines, "", "")).encode() + data)
        answered = (await self.reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        size = next(int(line.split(b":")[1]) for line in answered if line.startswith(b"content-length:"))
        answer = await self.reader.readexactly(size)
        if b" 200 " not in answered[0]:
            raise AssertionError(f"{method} {path}: {answered[0]!r} {answer!r}")
        return json.loads(answer)


async def work(connection: Connection, name: str, consumer: str, rounds: int, waits: list[float]) -> None:
    """Lease and settle one record in each round, and record how long each has waited."""
    for _ in range(rounds):
        records: Sequence[dict] = ()
        while not records:
            lease = {"consumer": consumer, "most": 1, "wait": 60}
            records = (await connection.ask("POST", f"/subscriptions/{name}/lease", lease))["records"]
        waits.append(time.monotonic() - float(records[0]["payload"]))
        done = {"done": [[records[0]["seq"], records[0]["token"]]]}
        await connection.ask("POST", f"/subscriptions/{name}/settle", done)


async def measure(port: int, options: argparse.Namespace) -> list[float]:
    """Return the waits of all records in all subscriptions."""
    publisher, waits, tasks = Connection(port, 0), [], []
    try:
        await rounds(publisher, options, waits, tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return waits


async def rounds(publisher: Connection, options: argparse.Namespace, waits: list[float], tasks: list) -> None:
    """Create the subscriptions, start the workers, and publish in rounds until all is done."""
    await publisher.open()
    for number in range(options.subscriptions):
        fields = {"stream": "jobs", "shared": True, "window": 2 * options.workers, "lease": 600}
        await publisher.ask("PUT", f"/subscriptions/s{number}", fields)
    for number in range(options.subscriptions * options.workers):
        connection = Connection(publisher.port, number)
        await connection.open()
        name = f"s{number % options.subscriptions}"
        tasks.append(asyncio.create_task(work(connection, name, f"w{number}", options.rounds, waits)))
    for turn in range(options.rounds):
        while len(waits) < turn * len(tasks):
            await asyncio.sleep(0.1)
            if any(task.done() and task.exception() for task in tasks):
                await asyncio.gather(*tasks)
        await asyncio.sleep(1)  # until all workers wait again
        await publisher.open()  # the server may have closed the idle connection
        lines = b"%f\n" % time.monotonic() * options.workers
        await publisher.ask("POST", "/streams/jobs", lines, "application/x-ndjson")
    await asyncio.gather(*tasks)


def main() -> int:
    options = kills.parser_of(__doc__, subscriptions=1_000, workers=10, rounds=10).parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    root = kills.root_of(options, "fair")
    ports = servers.free_ports(("http",))
    connections = 2 * options.subscriptions * options.workers + 100
    server = servers.Server(root / "server", f"--option=http.max-connections={connections}", ports=ports, only=True)
    try:
        server.wait_until_serving()
        waits = asyncio.run(measure(ports["http"], options))
    finally:
        server.kill()
    middle, longest = median(waits), max(waits)
    print(
        f"{options.subscriptions} subscriptions with {options.workers} workers: {len(waits)} records, waits of "
        f"{1000 * middle:.0f} ms (median) to {1000 * longest:.0f} ms (longest): {longest / middle:.2f} times",
        flush=True,
    )
    return servers.verdict(longest >= MOST_TIMES * middle, root)


if __name__ == "__main__":
    sys.exit(main())
