"""Change the members of a cluster while messages are published: `cluster add`, `remove` and `replace`, as processes."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from benchmarks.local_cluster import Cluster, ClusterServer
from fyrehose.testing.ports import free_ports
from tests.live.conftest import FYREHOSE, until, with_nats
from tests.live.test_cluster import PATIENCE, check, get, leader_of, publish, run, shared_log, wait_until_identical

pytestmark = with_nats(900)


@attrs.define(eq=False)
class Publishing:
    """A thread that publishes all the time, to whichever server accepts it.

    :ivar published: the acknowledged messages
    """

    cluster: Cluster
    published: list[bytes] = attrs.field(factory=list)
    problems: list[BaseException] = attrs.field(factory=list)
    _ending: threading.Event = attrs.field(factory=threading.Event)
    _thread: threading.Thread = attrs.field(init=False)

    def __enter__(self) -> Publishing:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ending.wait(0.05):
                payload = b"<message %d>" % len(self.published)
                publish(self.cluster, payload)
                self.published.append(payload)
        except BaseException as problem:
            self.problems.append(problem)

    def go_on(self) -> None:
        """Wait until some more messages are acknowledged."""
        wanted, deadline = len(self.published) + 10, time.monotonic() + PATIENCE
        while len(self.published) < wanted and not self.problems:
            assert time.monotonic() < deadline
            time.sleep(0.1)


#: The processes that serve the journals of servers to other servers.
SERVING: list[subprocess.Popen[bytes]] = []


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster of three servers, each of which serves its journal to the others."""
    made = Cluster(tmp_path)
    for server in made.servers.values():
        name_journal(server)
    try:
        with made:
            leader_of(made)
            wait_until_identical(made)
            for server in made.servers.values():
                serve_journal(server)
            yield made
    finally:
        for each in SERVING:
            each.kill()
            each.wait()
        SERVING.clear()


def name_journal(server: ClusterServer) -> None:
    """Write to the configuration of a server where its journal is served."""
    (port,) = free_ports(1)
    server.replication = f'journal = "http://127.0.0.1:{port}"\n'


def serve_journal(server: ClusterServer) -> None:
    """Serve the journal of a running server to the others."""
    place = server.replication.split('"')[1].removeprefix("http://")
    words = [FYREHOSE, "journal", "serve", str(server.directory / "data"), "--listen", place]
    SERVING.append(subprocess.Popen(words, stdout=subprocess.DEVNULL))


def start(cluster: Cluster, server: ClusterServer) -> None:
    """Start a new server, and serve its journal once it follows."""
    server.start()
    until(lambda: get(server, "/ready?for=read"), lambda: server.log)
    serve_journal(server)
    cluster.servers = {**cluster.servers, server.name: server}


def leave_out(cluster: Cluster, server: ClusterServer) -> None:
    cluster.servers = {name: each for name, each in cluster.servers.items() if each is not server}


def config(server: ClusterServer) -> str:
    return str(server.directory / "fyrehose.toml")


def members(cluster: Cluster) -> dict[str, Any]:
    known = next(iter(cluster.servers.values()))
    found: dict[str, Any] = json.loads(run("members", "--config", config(known), "--format", "json"))
    return found


def names(cluster: Cluster) -> set[str]:
    return {each["name"] for each in members(cluster)["servers"] if each["member"]}


def new_server(cluster: Cluster, name: str) -> ClusterServer:
    """Return another server with a configuration, which does not run yet."""
    made = ClusterServer(name, cluster.directory / name, cluster.nats.urls, tuple(free_ports(3)))
    name_journal(made)
    made.directory.mkdir()
    Path(config(made)).write_text(made.config)
    return made


def status_of(server: ClusterServer) -> int:
    """Wait until the server ends by itself; return its exit status."""
    assert server.process is not None
    process, server.process = server.process, None
    return process.wait(PATIENCE)


def entries_left(cluster: Cluster) -> int:
    """Return how many entries the shared log has."""
    log = shared_log(cluster)
    return int(log["last"]) - int(log["first"]) + 1


def wait_until_trimmed(cluster: Cluster) -> None:
    """Publish until the shared log was trimmed to the entries of the last moments."""
    until(
        lambda: entries_left(cluster) <= 400,
        lambda: f"{entries_left(cluster)} entries: {leader_of(cluster).log[-2000:]}",
    )


def test_servers_are_added_removed_and_replaced_while_messages_are_published(cluster: Cluster) -> None:
    first = cluster.servers["a"]
    assert names(cluster) == {"a", "b", "c"}
    with Publishing(cluster) as publishing:
        publishing.go_on()
        added = new_server(cluster, "d")
        assert "the members are" in run("add", "--config", config(added))
        start(cluster, added)
        publishing.go_on()
        assert names(cluster) == {"a", "b", "c", "d"}

        leader = leader_of(cluster)
        gone = next(server for name, server in cluster.servers.items() if server is not leader and name != "a")
        leave_out(cluster, gone)
        run("remove", gone.name, "--config", config(first))
        assert status_of(gone) == 2
        # The second text is that of a server that has taken over meanwhile.
        texts = (f"{gone.name}, is not a member of the cluster", f"{gone.name}, was removed from cluster fyrehose")
        assert any(f"this server, {text}" in gone.log for text in texts)
        publishing.go_on()
        wait_until_trimmed(cluster)

        leader = leader_of(cluster)
        lost = next(server for server in cluster.servers.values() if server is not leader)
        lost.stop(signal.SIGKILL)
        shutil.rmtree(lost.directory / "data")
        leave_out(cluster, lost)
        publishing.go_on()
        new = new_server(cluster, "e")
        run("replace", lost.name, "--config", config(new))
        start(cluster, new)
        publishing.go_on()
        wait_until_trimmed(cluster)

        leader = leader_of(cluster)
        another = new_server(cluster, "f")
        run("replace", leader.name, "f", "--config", config(new))
        leave_out(cluster, leader)
        assert status_of(leader) == 2
        # The second text is that of a server that has lost the lead meanwhile.
        texts = (f"{leader.name}, was removed from cluster fyrehose", f"{leader.name}, is not a member of the cluster")
        assert any(f"this server, {text}" in leader.log for text in texts)
        start(cluster, another)
        publishing.go_on()
    assert not publishing.problems
    assert len(names(cluster)) == 3
    assert members(cluster)["places"] == 0
    check(cluster, publishing.published)


def test_a_server_that_nobody_has_added_ends_and_says_what_to_do(cluster: Cluster) -> None:
    stranger = new_server(cluster, "d")
    stranger.start()
    assert status_of(stranger) == 2
    assert "run `fyrehose cluster add d`" in stranger.log
    refused = run("remove", "x", "--config", config(cluster.servers["a"]), status=1)
    assert re.search("x is not a member; the members are [abc], [abc] and [abc]", refused)
    for name in "bc":
        if names(cluster) == {"a", "b", "c"}:
            run("remove", name, "--config", config(cluster.servers["a"]))
    assert "2 members have to be left" in run("remove", "a", "--config", config(cluster.servers["a"]), status=1)
