"""Test `fyrehose cluster status` with running servers, with a lost one, and with lost NATS servers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.local_cluster import Cluster
from benchmarks.nats_servers import program
from fyrehose.cli.cluster.survey import leading
from tests.live.test_cluster import PATIENCE, get, leader_of, publish, wait_until_identical

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(program() is None, reason="a server of others is not installed: nats-server"),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as started:
        yield started


def status(cluster: Cluster) -> tuple[int, dict[str, Any], str]:
    """Run the command; return its exit status, its output, and its error."""
    config = next(iter(cluster.servers.values())).directory / "fyrehose.toml"
    words = ["cluster", "status", "--format", "json", "--config", str(config)]
    command = [str(Path(sys.executable).with_name("fyrehose")), *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    return ended.returncode, json.loads(ended.stdout or "{}"), ended.stderr


def wait_for(cluster: Cluster, wanted: Callable[[int, dict[str, Any]], bool]) -> dict[str, Any]:
    """Repeat the command until its status and output are as *wanted*; return the output."""
    deadline = time.monotonic() + PATIENCE
    while True:
        code, said, error = status(cluster)
        if wanted(code, said):
            return said
        assert time.monotonic() < deadline, f"status {code}, {error}: {json.dumps(said, indent=1)}"
        time.sleep(0.5)


def members(said: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what the leader says about all servers, by their names."""
    leader = next((server for server in said.get("servers", ()) if leading(server)), {})
    return {each["name"]: each for each in leader.get("servers", ())}


def test_cluster_status_shows_lost_servers_and_fails_while_publishers_are_refused(cluster: Cluster) -> None:
    publish(cluster, b"first")
    wait_until_identical(cluster)
    leader = leader_of(cluster)
    lost = next(server for server in cluster.servers.values() if server is not leader)
    lacking_nothing = dict.fromkeys(cluster.servers, 0)
    said = wait_for(
        cluster,
        lambda code, said: (
            code == 0 and {name: each["behind"] for name, each in members(said).items()} == lacking_nothing
        ),
    )
    assert all(each["alive"] for each in members(said).values())
    assert [(server["name"], server["alive"]) for server in said["nats"]] == [("n0", True), ("n1", True), ("n2", True)]
    assert sum(node["leads"] for node in said["log"]["nodes"]) == 1

    lost.stop(signal.SIGKILL)
    for number in range(5):
        publish(cluster, b"message %d" % number)

    def lacks(_: int, said: dict[str, Any]) -> bool:
        found: dict[str, Any] = members(said).get(lost.name, {})
        return not found.get("alive", True) and found["records"] == 5

    found = members(wait_for(cluster, lacks))[lost.name]
    assert found["behind"] > 0
    assert found["seconds"] > 0
    metrics = (get(leader_of(cluster), "/metrics") or b"").decode()
    assert f'fyrehose_cluster_member_behind_messages{{member="{lost.name}"}} 5.0' in metrics

    for server in cluster.servers.values():
        if server is not lost:
            shown = json.loads(get(server, "/api/status") or b"{}")["journal"]["cluster"]
            assert {each["name"]: each["alive"] for each in shown["members"]}[lost.name] is False
            assert [node["name"] for node in shown["nats"]] == ["n0", "n1", "n2"]

    cluster.nats.kill(0)
    wait_for(cluster, lambda code, said: code == 8 and [each["alive"] for each in said["nats"]] == [False, True, True])
    cluster.nats.kill(1)
    wait_for(cluster, lambda code, _: code == 1)
    assert "2 of 3 NATS servers are lost" in status(cluster)[2]
    deadline = time.monotonic() + PATIENCE
    while any(get(server, "/ready?for=read") for server in cluster.servers.values()):
        assert time.monotonic() < deadline, "a server claims to be current although no NATS server leads"
        time.sleep(0.5)
    cluster.nats.start(0)
    cluster.nats.start(1)
    wait_for(cluster, lambda code, _: code == 0)
