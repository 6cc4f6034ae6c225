"""Test a cluster with `acknowledge = "local"`: publishers do not wait for NATS; subscribers get what NATS has."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fyrehose.testing.cluster import Cluster, ClusterServer
from fyrehose.testing.nats import program

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(program() is None, reason="a server of others is not installed: nats-server"),
]

#: How long anything may take on a busy machine before the test fails, in seconds.
PATIENCE = 120.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    for server in made.servers.values():
        server.replication = 'acknowledge = "local"\n'
    with made:
        yield made


def ask(server: ClusterServer, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Send a request to the HTTP listener of *server*; return the status and the body."""
    request = urllib.request.Request(f"http://127.0.0.1:{server.ports[1]}{path}", body)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status), bytes(answer.read())
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read()
    except OSError as error:
        return 0, str(error).encode()


def leader_of(cluster: Cluster) -> ClusterServer:
    """Publish until a server accepts the message; return that server."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for server in cluster.servers.values():
            if ask(server, "/streams/s", b"first")[0] == 200:
                return server
        time.sleep(0.1)
    raise AssertionError({name: server.log[-3000:] for name, server in cluster.servers.items()})


def payloads(server: ClusterServer) -> list[str]:
    """Return the messages that *server* serves."""
    status, body = ask(server, "/streams/s?from=1&limit=1000")
    return [json.loads(line)["payload"] for line in body.splitlines()] if status == 200 else []


def test_messages_are_acknowledged_without_nats_and_read_when_it_answers(cluster: Cluster) -> None:
    leader = leader_of(cluster)
    assert 'acknowledge = "local"' in leader.log
    deadline = time.monotonic() + PATIENCE
    while not payloads(leader) and time.monotonic() < deadline:
        time.sleep(0.05)
    before = payloads(leader)
    pids = [cluster.nats.pid(node) for node in range(3)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        status, body = ask(leader, "/streams/s", b"while NATS is frozen")
        assert status == 200, body
        assert payloads(leader) == before
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    expected = [*before, "while NATS is frozen"]
    while any(payloads(server) != expected for server in cluster.servers.values()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert {name: payloads(server) for name, server in cluster.servers.items()} == dict.fromkeys("abc", expected)
