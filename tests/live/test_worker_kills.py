"""Kill the server of workers again and again: each record must have exactly one result."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from http.client import HTTPConnection, HTTPException
from typing import Any

import pytest

from fyrehose.testing.ports import free_port

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(600)]


#: The payload that each worker rejects.
POISON = '"poison"'


class Worker(threading.Thread):
    """A worker that publishes a result for each record in its settling commit, and repeats unanswered requests."""

    def __init__(self, port: int, name: str, done: threading.Event) -> None:
        super().__init__(daemon=True)
        self.port, self.title, self.done = port, name, done
        self.dice = random.Random(name)
        self.refused = 0

    def run(self) -> None:
        number = 0
        while not self.done.is_set():
            number += 1
            body = {"consumer": self.title, "request": number, "most": self.dice.randint(1, 20), "wait": 1}
            answer = self.ask("lease", body)
            for record in (answer or {}).get("records", []):
                if self.dice.random() < 0.1:
                    continue  # the worker forgets the record
                item = [record["seq"], record["token"]]
                if record["payload"] == POISON:
                    self.ask("settle", {"reject": [item]})
                    continue
                result = {"stream": "results", "payload": record["payload"]}
                settled = self.ask("settle", {"done": [item], "publish": [result]})
                self.refused += bool(settled and settled["refused"])

    def ask(self, action: str, body: Any) -> Any:
        """Send a request until it is answered."""
        while not self.done.is_set():
            connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
            try:
                connection.request("POST", f"/subscriptions/jobs/{action}", json.dumps(body))
                answer = connection.getresponse()
                found = json.loads(answer.read())
                if answer.status in (200, 409):
                    return found
            except (OSError, HTTPException, ValueError):
                pass  # the server is down
            finally:
                connection.close()
            time.sleep(0.05)
        return None


def ask(port: int, method: str, path: str, body: bytes | None = None) -> bytes:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, {"Content-Type": "application/x-ndjson"})
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return text
    finally:
        connection.close()


def payloads_of(port: int, stream: str) -> list[str]:
    found: list[str] = []
    while lines := ask(port, "GET", f"/streams/{stream}?from={len(found) + 1}").splitlines():
        found += [json.loads(line)["payload"] for line in lines]
    return found


def test_each_input_of_workers_has_one_result_over_kills(start: Any, ladder: Any) -> None:
    kills, inputs = ladder(4, 20), ladder(800, 6_000)
    port, dice, done = free_port(), random.Random(1), threading.Event()
    listen = ["--listen", f"http=tcp:{port}:interface=127.0.0.1"]
    server = start(*listen)
    subscription = {"stream": "inputs", "shared": True, "lease": 2, "limit": 50, "dead": "dead", "window": 200}
    ask(port, "PUT", "/subscriptions/jobs", json.dumps(subscription).encode())
    payloads = ["poison" if number % 50 == 0 else f"input {number}" for number in range(inputs)]
    half = inputs // 2
    ask(port, "POST", "/streams/inputs", "\n".join(map(json.dumps, payloads[:half])).encode())
    workers = [Worker(port, f"w{number}", done) for number in range(8)]
    for worker in workers:
        worker.start()
    for kill in range(kills):
        time.sleep(dice.uniform(0.2, 2.0))
        server.stop(signal.SIGKILL)
        server = start(*listen)
        if kill == kills // 2:
            ask(port, "POST", "/streams/inputs", "\n".join(map(json.dumps, payloads[half:])).encode())
    deadline = time.monotonic() + 300
    while (shown := json.loads(ask(port, "GET", "/subscriptions/jobs")))["floor"]["inputs"] < inputs:
        assert time.monotonic() < deadline, shown
        time.sleep(0.2)
    done.set()
    for worker in workers:
        worker.join(30)
    results = [json.loads(each) for each in payloads_of(port, "results")]
    good = [each for each in payloads if each != "poison"]
    assert len(results) == len(set(results)), "a result was published twice"
    assert sorted(results) == sorted(good)
    assert (shown["settled_total"], shown["dead_total"], shown["expired_total"]) == (len(good), inputs - len(good), 0)
    assert payloads_of(port, "dead") == [POISON] * (inputs - len(good))
