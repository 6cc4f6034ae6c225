"""Test three servers with the NATS users and permissions of deploy/cluster, and a stranger on their NATS servers."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.local_cluster import Cluster
from fyrehose.cli.cluster.survey import leading, survey
from fyrehose.cluster.settings import ReplicationSettings
from tests.live.conftest import with_nats
from tests.live.test_cluster import PATIENCE, check, leader_of, publish
from tests.live.test_nats_users import SERVER_SENDS, USERS, refusals

pytestmark = with_nats(600)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    made.nats.users = USERS
    for name in (*made.servers, "status", "route"):
        made.nats.environment[f"PASSWORD_{name.upper()}"] = f"x{name}"
        (tmp_path / f"password-{name}").write_text(f"x{name}\n")
    for name, server in made.servers.items():
        server.replication = f'user = "{name}"\npassword-file = "{tmp_path / f"password-{name}"}"\n'
    with made:
        yield made


def status_user(cluster: Cluster) -> ReplicationSettings:
    file = cluster.directory / "password-status"
    return ReplicationSettings(servers=tuple(cluster.nats.urls), user="status", password_file=str(file))


def wait_until_trimmed(cluster: Cluster, entry: int) -> int:
    """Wait until the shared log begins behind *entry*; return the number of its last entry."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = asyncio.run(survey(status_user(cluster), 0.5))
        if found.log is not None and found.log["first"] > entry:
            return int(found.log["last"])
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def test_with_the_documented_permissions_of_nats_servers_work_and_strangers_change_nothing(cluster: Cluster) -> None:
    published = [b"before the kill"]
    publish(cluster, published[0])
    last = wait_until_trimmed(cluster, 1)

    deadline = time.monotonic() + PATIENCE
    while len((found := asyncio.run(survey(status_user(cluster)))).servers) < 3:
        assert time.monotonic() < deadline, found
    forged = [
        json.dumps({**said, "incarnation": 1, "rival": said["incarnation"], "reported": 1 << 40}).encode()
        for said in found.servers
    ]
    for message in forged:  # each of these would stop a server that accepted it
        asyncio.run(refusals(cluster.nats.urls[0], SERVER_SENDS, message, len(SERVER_SENDS) - 1))

    leader = leader_of(cluster)
    leader.stop(signal.SIGKILL)
    published += [b"after the kill", b"and more", b"until the shared log is trimmed again"]
    for payload in published[1:]:
        publish(cluster, payload)
    leader.start()
    check(cluster, published)
    wait_until_trimmed(cluster, last)
    deadline = time.monotonic() + PATIENCE
    while len([*filter(leading, (found := asyncio.run(survey(status_user(cluster)))).servers)]) != 1:
        assert time.monotonic() < deadline, found
    for server in cluster.servers.values():
        assert server.process is not None
        assert server.process.poll() is None
        assert "violation" not in server.log.lower()
