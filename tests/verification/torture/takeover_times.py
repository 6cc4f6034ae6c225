#!/usr/bin/env python3
"""Measure how long nothing is acknowledged when the leader of a cluster is lost, with the default options.

    takeover_times.py [--kills 30] [--stops 10] [--busy N] [--keys N] [--calm SECONDS] [--directory DIR]

Three Fyrehose servers and three NATS servers run as processes.  A publisher sends one message after the other by HTTP
to whichever server accepts it.  The leader is killed (kill -9) or stopped (SIGTERM) again and again; with --busy, so
many processes use the processors meanwhile.  With --keys, so many messages with idempotency keys are published first,
to servers that remember 100,000 keys.  Prints the time between the signal and the next acknowledgement, and how often a
server has taken over although no leader was lost; the exit status is 1 if an acknowledged message is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.local_cluster import Cluster, ClusterServer
from fyrehose.cli.cluster.survey import survey
from fyrehose.cluster.settings import ReplicationSettings

#: After how many seconds a wait is given up.
PATIENCE = 120.0
#: How long the publisher waits for an answer, and then before it tries all servers again, in seconds.
ANSWER, PAUSE = 1.0, 0.01
#: How many messages with keys are under way on each connection, and the connections.
PIPELINED, CONNECTIONS = 50, 8
KEYED = b"POST /streams/keyed HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: %d-%d\r\nContent-Length: 1\r\n\r\nx"
#: Memory with which a server remembers 100,000 keys.
MORE = '[option.server]\nmemory = "1700MiB"\n\n'
#: How long the cluster runs undisturbed before the next leader is lost, in seconds.
CALM = 2.0


class Publisher(threading.Thread):
    """Publishes one message after the other.

    :ivar acks: of each acknowledgement, its time, the number, and the name of the server
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self.cluster = cluster
        self.acks: list[tuple[float, int, str]] = []
        self.ends = False

    def run(self) -> None:
        server = next(iter(self.cluster.servers.values()))
        others = list(self.cluster.servers.values())
        while not self.ends:
            if (number := self._publish(server)) is not None:
                self.acks.append((time.monotonic(), number, server.name))
                time.sleep(PAUSE)
                continue
            server = others[(others.index(server) + 1) % len(others)]
            if server is others[0]:
                time.sleep(PAUSE)

    def _publish(self, server: ClusterServer) -> int | None:
        """Return the number of a message that *server* has acknowledged; None if it has not."""
        connection = http.client.HTTPConnection("127.0.0.1", server.ports[1], timeout=ANSWER)
        try:
            connection.request("POST", "/streams/s", b"x")
            answer = connection.getresponse()
            return int(json.loads(answer.read())["last"]) if answer.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def wait(self, count: int) -> None:
        """Wait until *count* messages are acknowledged."""
        deadline = time.monotonic() + PATIENCE
        while len(self.acks) < count:
            if time.monotonic() > deadline:
                raise TimeoutError("nothing is acknowledged")
            time.sleep(0.01)


def lose(cluster: Cluster, publisher: Publisher, how: signal.Signals) -> float:
    """End the leader by the signal *how*, and start it again; return for how long nothing was acknowledged."""
    leader = cluster.servers[publisher.acks[-1][2]]
    assert leader.process is not None
    process, leader.process = leader.process, None
    began = time.monotonic()
    process.send_signal(how)
    while True:
        later = [at for at, _, name in publisher.acks[-10_000:] if at > began and name != leader.name]
        if later:
            break
        if time.monotonic() > began + PATIENCE:
            raise TimeoutError("no other server takes over")
        time.sleep(0.01)
    process.wait(PATIENCE)
    before = max(at for at, _, _ in publisher.acks if at < later[0])
    outage = later[0] - max(began, before)
    leader.start()
    publisher.wait(len(publisher.acks) + 20)
    wait_until_ready(cluster)
    time.sleep(CALM)
    return outage


def wait_until_ready(cluster: Cluster) -> None:
    """Wait until every server may lead: one that has just started replays its keys first."""
    settings = ReplicationSettings(servers=tuple(cluster.nats.urls), cluster="fyrehose")
    deadline = time.monotonic() + PATIENCE
    while True:
        said = asyncio.run(survey(settings)).servers
        if len(said) == len(cluster.servers) and not any(each.get("unfit") for each in said):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"not ready to lead: {[(each['name'], each.get('unfit')) for each in said]}")


def remember(port: int, client: int, count: int) -> None:
    """Publish *count* messages, each with a key of its own, to the server with the listener *port*."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as peer:
        answers = peer.makefile("rb")
        for begin in range(0, count, PIPELINED):
            keys = range(begin, min(count, begin + PIPELINED))
            peer.sendall(b"".join(KEYED % (client, key) for key in keys))
            for _ in keys:
                status, size = answers.readline(), 0
                while (line := answers.readline().strip()) != b"":
                    name, _, value = line.lower().partition(b":")
                    size = int(value) if name == b"content-length" else size
                body = answers.read(size)
                if b" 200 " not in status:
                    raise RuntimeError(f"a message with a key was refused: {status!r} {body!r}")


def remember_all(port: int, keys: int) -> None:
    """Publish *keys* messages with keys, from several connections at once."""
    each = keys // CONNECTIONS
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        counts = [keys - each * (CONNECTIONS - 1), *[each] * (CONNECTIONS - 1)]
        list(pool.map(remember, [port] * CONNECTIONS, range(CONNECTIONS), counts))


def burn() -> None:
    while True:
        sum(range(100_000))


def shown(name: str, outages: list[float]) -> str:
    if not outages:
        return f"{name}: none"
    each = ", ".join(f"{seconds:.2f}" for seconds in outages)
    return f"{name}: {len(outages)}, median {statistics.median(outages):.2f} s, longest {max(outages):.2f} s ({each})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--stops", type=int, default=10)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--keys", type=int, default=0)
    parser.add_argument("--calm", type=float, default=0.0, help="for how long nobody is lost at the end, in seconds")
    parser.add_argument("--directory", type=Path, help="for everything; a temporary one by default")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="fyrehose-takeovers-", dir=arguments.directory))
    burning = [multiprocessing.Process(target=burn, daemon=True) for _ in range(arguments.busy)]
    for each in burning:
        each.start()
    cluster = Cluster(root)
    for server in cluster.servers.values():
        server.more = MORE if arguments.keys else ""
    with cluster:
        publisher = Publisher(cluster)
        publisher.start()
        publisher.wait(20)
        time.sleep(CALM)
        if arguments.keys:
            began = time.monotonic()
            remember_all(cluster.servers[publisher.acks[-1][2]].ports[1], arguments.keys)
            print(f"{arguments.keys} messages with keys in {time.monotonic() - began:.0f} s", flush=True)
        kills = [lose(cluster, publisher, signal.SIGKILL) for _ in range(arguments.kills)]
        stops = [lose(cluster, publisher, signal.SIGTERM) for _ in range(arguments.stops)]
        time.sleep(arguments.calm)
        publisher.ends = True
        publisher.join()
        takeovers = sum(server.log.count(" is leader now: ") for server in cluster.servers.values())
    numbers = [number for _, number, _ in publisher.acks]
    lost = sum(1 for before, after in itertools.pairwise(numbers) if after <= before)
    print(shown("killed", kills))
    print(shown("stopped", stops))
    print(
        f"{len(numbers)} acknowledged, {lost} of them with a number that was given out before; "
        f"{takeovers - 1 - len(kills) - len(stops)} unnecessary take-overs; load {os.getloadavg()[0]:.1f}"
    )
    shutil.rmtree(root)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
