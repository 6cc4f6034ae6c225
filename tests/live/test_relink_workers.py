"""Kill the server of Relink workers, and the workers themselves: each record must have exactly one result."""

from __future__ import annotations

import json
import random
import signal
import socket
import threading
import time
from typing import Any

import pytest

from fyrehose.errors import Broken
from fyrehose.protocols.relink import events
from fyrehose.protocols.relink.frames import Hello, Terms
from fyrehose.protocols.relink.link import Link
from fyrehose.protocols.relink.names import share_name
from fyrehose.protocols.relink.session import ConnectorSession
from fyrehose.protocols.relink.working import HEAD

from .test_worker_kills import POISON, ask, free_port, payloads_of

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(600)]


class RelinkWorker(threading.Thread):
    """A worker that publishes a result for each record in the commit that settles it, and often breaks its connection.

    It forgets requests without an answer, because the server takes records back when their link is lost.
    """

    def __init__(self, port: int, name: str, done: threading.Event) -> None:
        super().__init__(daemon=True)
        self.port, self.title, self.done = port, name, done
        self.dice = random.Random(name)
        self.refused = self.links = 0

    def run(self) -> None:
        while not self.done.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                    self.links += 1
                    self.work(connection)
            except OSError:
                time.sleep(0.05)  # the server is down

    def work(self, connection: socket.socket) -> None:
        """Work until the connection ends, or the worker breaks it."""
        terms = Terms(endpoint=share_name("inputs", "jobs", consumer=self.title, most=20), listener_size=1)
        session = ConnectorSession(hello=Hello(terms=terms), new_link=lambda epoch, id_: Link(terms, True, epoch, id_))
        connection.settimeout(0.2)
        while not self.done.is_set() and self.dice.random() > 0.01:
            connection.sendall(b"".join(session.data_to_send()))
            try:
                data = connection.recv(1 << 16)
            except TimeoutError:
                continue
            if not data:
                return
            for event in session.receive_data(data):
                assert not isinstance(event, Broken), event
                if isinstance(event, events.Received) and session.link is not None:
                    for message, parts in enumerate(event.messages, event.first):
                        if event.channel == 0:
                            self.handle(session.link, *parts)
                        else:
                            self.refused += 1
                        session.link.consume(event.channel, message)

    def handle(self, link: Link, head: bytes, payload: bytes) -> None:
        """Send a result for a record; for a record without a result, consuming its message settles it."""
        seq, epoch, number, _, _ = HEAD.unpack_from(head)
        item = [seq, f"{epoch}.{number}"]
        if payload == POISON.strip('"').encode():
            say = {"reject": [item]}
        else:
            say = {"done": [item], "publish": [{"stream": "results", "payload": payload.decode()}]}
        link.send((0,), (json.dumps(say).encode(),))


def test_each_input_of_workers_has_one_result_over_kills_and_lost_links(start: Any, ladder: Any) -> None:
    kills, inputs = ladder(4, 20), ladder(800, 6_000)
    port, relink, dice, done = free_port(), free_port(), random.Random(1), threading.Event()
    listen = [f"--listen={name}=tcp:{of}:interface=127.0.0.1" for name, of in (("http", port), ("relink", relink))]
    server = start(*listen)
    subscription = {"stream": "inputs", "shared": True, "lease": 2, "limit": 50, "dead": "dead", "window": 200}
    ask(port, "PUT", "/subscriptions/jobs", json.dumps(subscription).encode())
    payloads = ["poison" if number % 50 == 0 else f"input {number}" for number in range(inputs)]
    workers = [RelinkWorker(relink, f"w{number}", done) for number in range(4)]
    for worker in workers:
        worker.start()
    for kill in range(kills):
        part = payloads[kill * inputs // kills : (kill + 1) * inputs // kills]
        ask(port, "POST", "/streams/inputs", "\n".join(part).encode())
        time.sleep(dice.uniform(0.2, 1.5))
        server.stop(signal.SIGKILL)
        server = start(*listen)
    deadline = time.monotonic() + 300
    while (shown := json.loads(ask(port, "GET", "/subscriptions/jobs")))["floor"]["inputs"] < inputs:
        assert time.monotonic() < deadline, shown
        time.sleep(0.2)
    done.set()
    for worker in workers:
        worker.join(30)
    good = [each for each in payloads if each != "poison"]
    results = payloads_of(port, "results")
    assert len(results) == len(set(results)), "a result was published twice"
    assert sorted(results) == sorted(good)
    assert (shown["settled_total"], shown["dead_total"], shown["expired_total"]) == (len(good), inputs - len(good), 0)
    assert sum(worker.links for worker in workers) > kills, "links were lost"
