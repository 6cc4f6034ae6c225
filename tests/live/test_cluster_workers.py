"""Kill the leader of a cluster of three processes under workers: each record must have exactly one result."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest

from benchmarks.local_cluster import Cluster
from benchmarks.nats_servers import program

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(program() is None, reason="a server of others is not installed: nats-server"),
]

#: How long anything may take on a busy machine before the test fails, in seconds.
PATIENCE = 240.0


class Client:
    """Sends each request to one server after another until one of them answers it."""

    def __init__(self, ports: list[int]) -> None:
        self.ports, self.at = ports, 0

    def ask(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> Any:
        deadline = time.monotonic() + PATIENCE
        why: object = "nothing was tried"
        while time.monotonic() < deadline:
            connection = HTTPConnection("127.0.0.1", self.ports[self.at], timeout=10)
            try:
                connection.request(method, path, body, {"Content-Type": kind})
                answer = connection.getresponse()
                text = answer.read()
                if answer.status in (200, 409):
                    return [json.loads(line) for line in text.splitlines()]
                why = text
            except (OSError, HTTPException, ValueError) as error:
                why = error  # the server follows, starts, or was killed
            finally:
                connection.close()
            self.at = (self.at + 1) % len(self.ports)
            time.sleep(0.1)
        raise AssertionError(f"no server answers {method} {path}: {why!r}")

    def post(self, path: str, body: object) -> Any:
        return self.ask("POST", path, json.dumps(body).encode())[0]


def work(client: Client, name: str, done: threading.Event) -> None:
    """Lease records, and publish a result for each in the commit that settles it."""
    dice = random.Random(name)
    while not done.is_set():
        answer = client.post("/subscriptions/work/lease", {"consumer": name, "most": dice.randint(1, 9), "wait": 1})
        for record in answer.get("records", []):
            if dice.random() < 0.1:
                continue  # the worker forgets the record
            result = {"stream": "results", "payload": record["payload"]}
            item = [record["seq"], record["token"]]
            client.post("/subscriptions/work/settle", {"done": [item], "publish": [result]})


def leader_of(cluster: Cluster) -> Any:
    """Return the leader, which is the only server that accepts messages."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for server in cluster.servers.values():
            connection = HTTPConnection("127.0.0.1", server.ports[1], timeout=5)
            try:
                connection.request("POST", "/streams/probes", b"x")
                if connection.getresponse().status == 200:
                    return server
            except (OSError, HTTPException):
                continue
            finally:
                connection.close()
        time.sleep(0.2)
    raise AssertionError({name: server.log[-2000:] for name, server in cluster.servers.items()})


def test_each_input_of_workers_has_one_result_although_leaders_are_killed(tmp_path: Path, ladder: Any) -> None:
    kills, inputs, done = ladder(2, 25), ladder(300, 4_000), threading.Event()
    with Cluster(tmp_path) as cluster:
        ports = [server.ports[1] for server in cluster.servers.values()]
        client = Client(ports)
        lines = b"".join(b'{"input": %d}\n' % number for number in range(inputs))
        client.ask("POST", "/streams/inputs", lines, "application/x-ndjson")
        subscription = {"stream": "inputs", "shared": True, "lease": 3, "limit": 0, "window": 100}
        client.ask("PUT", "/subscriptions/work", json.dumps(subscription).encode())
        workers = [
            threading.Thread(target=work, args=(Client(ports), f"w{number}", done), daemon=True) for number in range(4)
        ]
        for worker in workers:
            worker.start()
        for _ in range(kills):
            killed = leader_of(cluster)
            killed.stop(signal.SIGKILL)
            leader_of(cluster)
            killed.start()
        deadline = time.monotonic() + PATIENCE
        while (shown := client.ask("GET", "/subscriptions/work")[0])["floor"]["inputs"] < inputs:
            assert time.monotonic() < deadline, json.dumps(shown)
            time.sleep(0.2)
        done.set()
        for worker in workers:
            worker.join(PATIENCE)
        results: list[str] = []
        while found := client.ask("GET", f"/streams/results?from={len(results) + 1}"):
            results += [record["payload"] for record in found]
        assert sorted(json.loads(result)["input"] for result in results) == list(range(inputs))
        assert (shown["settled_total"], shown["dead_total"], shown["expired_total"]) == (inputs, 0, 0)
