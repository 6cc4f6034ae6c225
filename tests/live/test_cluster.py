"""Test a cluster of three Fyrehose servers and three NATS servers as processes: kill -9, a frozen leader, a stop."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event, Thread

import pytest

from benchmarks.local_cluster import Cluster, ClusterServer
from fyrehose.journal import scan
from fyrehose.offline.verify import verify
from tests.live.conftest import ran, until, with_nats

pytestmark = with_nats(600)

#: How long anything may take on a busy machine before the test fails, in seconds.
PATIENCE = 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def get(server: ClusterServer, path: str) -> bytes | None:
    """Return the body of the page of *server* if its status is 200, else None."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.ports[2]}{path}", timeout=2) as answer:
            return bytes(answer.read())
    except OSError:
        return None


def leader_of(cluster: Cluster) -> ClusterServer:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for server in cluster.servers.values():
            if server.process is not None and get(server, "/ready"):
                return server
        time.sleep(0.1)
    raise AssertionError({name: server.log[-3000:] for name, server in cluster.servers.items()})


def wait_for_leader(cluster: Cluster, wanted: Callable[[ClusterServer], bool]) -> ClusterServer:
    """Wait until a leader is as *wanted*: one that has lost the lead says that it is ready until it reads of that."""
    deadline = time.monotonic() + PATIENCE
    while not wanted(leader := leader_of(cluster)):
        assert time.monotonic() < deadline, leader.log[-3000:]
        time.sleep(0.1)
    return leader


def freeze(server: ClusterServer) -> None:
    """Stop the process of *server*, as SIGSTOP does, and wait until it has: its threads run on for a moment."""
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, server.process.pid, os.WSTOPPED)


def publish(cluster: Cluster, payload: bytes) -> int:
    """Publish to whichever server accepts it; return the number of the message."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for server in cluster.servers.values():
            url = f"http://127.0.0.1:{server.ports[1]}/streams/s"
            try:
                with urllib.request.urlopen(urllib.request.Request(url, payload), timeout=10) as answer:
                    return int(json.loads(answer.read())["last"])
            except OSError:  # the server follows, starts, was killed, or is frozen
                continue
        time.sleep(0.05)  # leave the processor to a server that takes over
    raise AssertionError("no server accepts messages")


#: What `fyrehose cluster` says when it may be run again: a server or NATS was not heard for a moment.
AGAIN = (
    "can take over at present",
    "run the command again",
    "running the command again does no harm",
    "no server leads",
    "no server knows the members",
    "can be reached",
)


def wait_for(server: ClusterServer, line: str) -> None:
    """Wait until *line* is in the log of *server*."""
    until(lambda: line in server.log, lambda: server.log[-3000:])


def wait_until_identical(cluster: Cluster) -> bytes:
    """Wait until all journals have the same durable bytes; return them."""
    deadline = time.monotonic() + PATIENCE
    while True:
        logs = set()
        for server in cluster.servers.values():
            data = server.directory / "data"
            content = b"".join(segment.path.read_bytes() for segment in scan.segments(data))
            logs.add(content[: scan.read_mark(data)])
        if len(logs) == 1 and all(get(server, "/ready?for=read") for server in cluster.servers.values()):
            return logs.pop()
        assert time.monotonic() < deadline, {name: server.log[-2000:] for name, server in cluster.servers.items()}
        time.sleep(0.2)


def check(cluster: Cluster, published: list[bytes]) -> None:
    log = wait_until_identical(cluster)
    for payload in published:
        assert payload in log
    for server in cluster.servers.values():
        assert verify(server.directory / "data").problems == []


def test_publishing_continues_when_the_leader_is_killed(cluster: Cluster) -> None:
    published = [b"before the kill"]
    publish(cluster, published[0])
    leader = leader_of(cluster)
    leader.stop(signal.SIGKILL)
    published.append(b"after the kill")
    number = publish(cluster, published[1])
    assert number >= 2
    wait_for_leader(cluster, lambda found: found is not leader)
    leader.start()
    check(cluster, published)


def test_a_frozen_leader_steps_down_and_loses_nothing(cluster: Cluster) -> None:
    published = [b"before the freeze"]
    publish(cluster, published[0])
    leader = leader_of(cluster)
    assert leader.process is not None
    freeze(leader)
    try:
        published.append(b"during the freeze")
        publish(cluster, published[1])
    finally:
        leader.process.send_signal(signal.SIGCONT)
    wait_for(leader, "this server was the leader, and follows again")
    check(cluster, published)
    assert leader.process.poll() is None, "the frozen process did not continue as a follower"
    assert leader.log.count("] serving") >= 2


def test_a_follower_that_was_paused_says_that_no_answer_is_younger_than_it_is(cluster: Cluster) -> None:
    leader, acknowledged, ended = leader_of(cluster), [(time.monotonic(), publish(cluster, b"0"))], Event()
    wait_until_identical(cluster)
    follower = next(server for server in cluster.servers.values() if server is not leader)
    assert follower.process is not None

    def publish_on() -> None:
        while not ended.is_set():
            number = publish(cluster, b"x")
            acknowledged.append((time.monotonic(), number))

    def ask(connection: http.client.HTTPConnection) -> bool:
        """Read, and compare the answer with what was acknowledged before the request left; return whether there is one.

        On a busy machine the server may take over meanwhile, and then closes its connections.
        """
        asked = time.monotonic()
        try:
            connection.request("GET", "/streams/s?from=1&limit=1")
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            return False
        if answer.status != 200:
            return False
        last, age = int(answer.headers["Fyrehose-Last"]), float(answer.headers["Fyrehose-Age"])
        must = max((number for at, number in [*acknowledged] if at < asked - age), default=0)
        assert last >= must, f"an answer of age {age} ends at {last}, and {must} was acknowledged before"
        return True

    publisher = Thread(target=publish_on)
    publisher.start()
    try:
        for _ in range(3):
            port = follower.ports[1]
            connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE) for _ in range(10)]
            for connection in connections:
                ask(connection)
            follower.process.send_signal(signal.SIGSTOP)
            time.sleep(4)
            with ThreadPoolExecutor(len(connections)) as threads:
                asking = [threads.submit(ask, connection) for connection in connections]
                follower.process.send_signal(signal.SIGCONT)
                answered = sum(each.result() for each in asking)
            deadline = time.monotonic() + PATIENCE
            while answered < 30:
                answered += ask(connections[0])
                assert time.monotonic() < deadline, follower.log[-3000:]
            for connection in connections:
                connection.close()
    finally:
        ended.set()
        publisher.join()
    check(cluster, [])


def test_a_follower_refuses_messages_and_names_the_leader(cluster: Cluster) -> None:
    wait_until_identical(cluster)
    deadline = time.monotonic() + PATIENCE
    while True:  # on a busy machine another server may take over meanwhile
        leader = leader_of(cluster)
        follower = next(server for server in cluster.servers.values() if server is not leader)
        with closing(http.client.HTTPConnection("127.0.0.1", follower.ports[1], timeout=PATIENCE)) as connection:
            connection.request("POST", "/streams/s", b"x")
            answer = connection.getresponse()
            why = answer.read().decode()
        if leader_of(cluster) is leader:
            break
        assert time.monotonic() < deadline, leader.log[-3000:]
    assert answer.status == 503
    assert answer.headers["Location"] == f"http://127.0.0.1:{leader.ports[1]}/streams/s"
    assert f"follows {leader.name} at" in why


def test_a_program_with_all_addresses_continues_when_the_leader_is_killed(cluster: Cluster) -> None:
    leader = leader_of(cluster)
    wait_until_identical(cluster)
    followers = [server for server in cluster.servers.values() if server is not leader]
    places = [f"127.0.0.1:{server.ports[0]}" for server in (*followers, leader)]
    example = Path(__file__).parents[2] / "docs" / "examples" / "cluster_client.py"

    def run(message: str) -> str:
        return ran(sys.executable, example, message, *places).stdout

    assert run("by a program") == "'by a program' is in orders\n"
    leader.stop(signal.SIGKILL)
    try:
        assert run("after the kill") == "'after the kill' is in orders\n"
    finally:
        leader.start()
    wait_until_identical(cluster)


def test_an_orderly_stop_of_the_leader_hands_over_at_once(cluster: Cluster) -> None:
    leader = leader_of(cluster)
    assert leader.stop() == 0
    assert f"{leader.name} hands over" in leader.log
    publish(cluster, b"after the stop")
    leader.start()
    check(cluster, [b"after the stop"])


def test_the_same_processes_continue_when_nats_is_lost_and_comes_back(cluster: Cluster) -> None:
    processes = {name: server.process for name, server in cluster.servers.items()}
    published = [b"before NATS is lost"]
    publish(cluster, published[0])
    leader = leader_of(cluster)
    for node in range(cluster.nats.count):
        cluster.nats.kill(node)
    # A leader notices the loss when an append waits for the shared log.
    url = f"http://127.0.0.1:{leader.ports[1]}/streams/s"
    with pytest.raises(OSError):
        urllib.request.urlopen(urllib.request.Request(url, b"while NATS is lost"), timeout=1)
    wait_for(leader, "messages are refused until it accepts them")
    for node in range(cluster.nats.count):
        cluster.nats.start(node)
    published.append(b"after NATS is back")
    publish(cluster, published[1])
    check(cluster, published)
    for name, server in cluster.servers.items():
        assert server.process is processes[name]
        assert server.process is not None
        assert server.process.poll() is None, server.log[-3000:]


def test_each_change_of_the_role_is_logged_in_a_line(cluster: Cluster) -> None:
    leader = leader_of(cluster)
    assert f"{leader.name} is leader now: its take-over was accepted, epoch " in leader.log


def test_files_of_a_cluster_are_in_its_directory(cluster: Cluster) -> None:
    for server in cluster.servers.values():
        assert Path(server.directory, "data", "REPLICA").read_text() == f"{server.name}\n"


def test_a_store_of_nats_with_little_room_does_not_stop_publishers_while_a_follower_is_away(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.nats.room = "48MB"
    with cluster:
        leader = leader_of(cluster)
        wait_until_identical(cluster)
        away = next(server for server in cluster.servers.values() if server is not leader)
        away.stop(signal.SIGKILL)
        del cluster.servers[away.name]
        for number in range(60):  # more data than NATS can store
            publish(cluster, b"%03d" % number + bytes(1_000_000))
        assert len(wait_until_identical(cluster)) > 60_000_000
