"""Test `fyrehose cluster status` with running servers, with a lost one, and with lost NATS servers."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.local_cluster import Cluster, ClusterServer
from fyrehose.cli.cluster.survey import leading
from tests.live.conftest import fyrehose, until, with_nats
from tests.live.test_cluster import PATIENCE, get, leader_of, publish, wait_until_identical

pytestmark = with_nats(600)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as started:
        yield started


def status(cluster: Cluster) -> tuple[int, dict[str, Any], str]:
    """Run the command; return its exit status, its output, and its error."""
    config = next(iter(cluster.servers.values())).directory / "fyrehose.toml"
    ended = fyrehose("cluster", "status", "--format", "json", "--config", config, status=None)
    return ended.returncode, json.loads(ended.stdout or "{}"), ended.stderr


def wait_for(cluster: Cluster, wanted: Callable[[int, dict[str, Any]], bool], because: str = "") -> dict[str, Any]:
    """Repeat the command until status and output are as *wanted*, and the error has *because*; return the output."""
    deadline = time.monotonic() + PATIENCE
    while True:
        code, said, error = status(cluster)
        if wanted(code, said) and because in error:
            return said
        assert time.monotonic() < deadline, f"status {code}, {error}: {json.dumps(said, indent=1)}"
        time.sleep(0.5)


def page(server: ClusterServer, path: str) -> bytes:
    """Return what the page of *server* answers, once it does."""
    return until(lambda: get(server, path), lambda: server.log[-3000:])


def members(said: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what the leader says about all servers, by their names."""
    leader = next((server for server in said.get("servers", ()) if leading(server)), {})
    return {each["name"]: each for each in leader.get("servers", ())}


def test_cluster_status_shows_lost_servers_and_fails_while_publishers_are_refused(cluster: Cluster) -> None:
    first = publish(cluster, b"first")
    wait_until_identical(cluster)
    leader = leader_of(cluster)
    lost = next(server for server in cluster.servers.values() if server is not leader)
    whole = dict.fromkeys(cluster.servers, (True, 0))
    said = wait_for(
        cluster,
        lambda code, said: (
            code == 0
            and {name: (each["alive"], each["behind"]) for name, each in members(said).items()} == whole
            and all(server["alive"] for server in said["nats"])
        ),
    )
    assert [server["name"] for server in said["nats"]] == ["n0", "n1", "n2"]
    assert sum(node["leads"] for node in said["log"]["nodes"]) == 1

    lost.stop(signal.SIGKILL)
    # On a busy machine a message is stored twice, because its acknowledgement takes too long.
    lacking = max(publish(cluster, b"message %d" % number) for number in range(5)) - first

    def lacks(_: int, said: dict[str, Any]) -> bool:
        found: dict[str, Any] = members(said).get(lost.name, {})
        return not found.get("alive", True) and found["records"] == lacking

    found = members(wait_for(cluster, lacks))[lost.name]
    assert found["behind"] > 0
    assert found["seconds"] > 0
    line = f'fyrehose_cluster_member_behind_messages{{member="{lost.name}"}} {lacking}.0'.encode()
    until(lambda: line in page(leader_of(cluster), "/metrics"))

    def shows(server: ClusterServer) -> bool:
        """Return whether the page of *server* says that a server is lost, and which NATS servers there are."""
        shown = json.loads(page(server, "/api/status"))["journal"]["cluster"]
        alive = {each["name"]: each["alive"] for each in shown["members"]}
        return alive.get(lost.name) is False and [node["name"] for node in shown["nats"]] == ["n0", "n1", "n2"]

    for server in cluster.servers.values():
        if server is not lost:
            until(lambda server=server: shows(server))

    cluster.nats.kill(0)
    wait_for(cluster, lambda code, said: code == 8 and [each["alive"] for each in said["nats"]] == [False, True, True])
    cluster.nats.kill(1)
    wait_for(cluster, lambda code, _: code == 1, "2 of 3 NATS servers are lost")
    until(
        lambda: not any(get(server, "/ready?for=read") for server in cluster.servers.values()),
        "a server claims to be current although no NATS server leads",
    )
    cluster.nats.start(0)
    cluster.nats.start(1)
    wait_for(cluster, lambda code, _: code == 0)
