"""Recover a cluster that has lost a disk or its shared log, with the commands of docs/cluster.md and real processes."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.local_cluster import Cluster, ClusterServer
from fyrehose.offline.verify import verify
from fyrehose.testing.ports import free_ports
from tests.live.conftest import FYREHOSE, until, with_nats
from tests.live.test_cluster import PATIENCE, check, get, leader_of, publish, run, shared_log, wait_until_identical

pytestmark = with_nats(600)
PAGE = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()


@pytest.fixture
def serving() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Return the processes that serve the journals."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for each in started:
        each.kill()
        each.wait()


@pytest.fixture
def cluster(tmp_path: Path, serving: list[subprocess.Popen[bytes]]) -> Iterator[Cluster]:
    """Return a cluster of three servers, each of which serves its journal to the others."""
    made = Cluster(tmp_path)
    ports = free_ports(len(made.servers))
    for server, port in zip(made.servers.values(), ports, strict=True):
        server.replication = f'journal = "http://127.0.0.1:{port}"\nmember-timeout = "60s"\n'
    with made:
        leader_of(made)
        wait_until_identical(made)
        for server, port in zip(made.servers.values(), ports, strict=True):
            words = command(f"fyrehose journal serve {server.directory / 'data'} --listen 127.0.0.1:{port}")
            serving.append(subprocess.Popen(words, stdout=subprocess.DEVNULL))
        yield made


def command(line: str) -> list[str]:
    """Return the arguments of a command of docs/cluster.md, for this installation."""
    return [FYREHOSE, *line.split()[1:]]


def commands(begin: str, config: Path, **values: str) -> list[str]:
    """Return the commands in docs/cluster.md that begin with *begin*, for the server with this configuration."""
    found = re.findall(rf"^    ({re.escape(begin)}.*)$", PAGE, re.MULTILINE)
    assert found, begin
    values |= {"/etc/fyrehose/fyrehose.toml": str(config), "/var/lib/fyrehose": str(config.parent / "data")}
    for old, new in values.items():
        found = [line.replace(old, new) for line in found]
    return found


def publish_more(cluster: Cluster, published: list[bytes]) -> None:
    published.append(b"message %d" % len(published))
    publish(cluster, published[-1])


def first_entry(cluster: Cluster) -> int:
    """Return the number of the first entry of the shared log."""
    return int(shared_log(cluster)["first"])


def trim(cluster: Cluster, published: list[bytes]) -> None:
    """Publish until the shared log was trimmed, so that new servers must copy the earlier records from others."""
    begun, deadline = first_entry(cluster), time.monotonic() + PATIENCE
    while first_entry(cluster) <= begun:
        assert time.monotonic() < deadline, leader_of(cluster).log[-2000:]
        publish_more(cluster, published)
        time.sleep(0.2)


def lose_disk(server: ClusterServer) -> None:
    server.stop(signal.SIGKILL)
    shutil.rmtree(server.directory / "data")
    server.member = f"{server.name}2"
    server.directory.joinpath("fyrehose.toml").write_text(server.config)


def follower_without_disk(cluster: Cluster, published: list[bytes]) -> tuple[ClusterServer, ClusterServer]:
    """Let a follower lose its disk after the shared log was trimmed; return it and the leader."""
    trim(cluster, published)
    leader = leader_of(cluster)
    lost = next(server for server in cluster.servers.values() if server is not leader)
    lose_disk(lost)
    return lost, leader


def replace(server: ClusterServer) -> None:
    """Replace the server that has lost its disk by one with a new name."""
    config = server.directory / "fyrehose.toml"
    (line,) = commands("fyrehose cluster replace", config, **{" c ": f" {server.name} "})
    run(*command(line)[2:])


def test_a_machine_that_has_lost_its_disk_copies_the_journal_by_itself(cluster: Cluster) -> None:
    published: list[bytes] = []
    lost, _ = follower_without_disk(cluster, published)
    publish_more(cluster, published)
    replace(lost)
    lost.start()
    check(cluster, published)
    assert "the journal is filled up to position" in lost.log


def test_reseed_begins_a_lost_shared_log_again_with_the_longest_journal(cluster: Cluster) -> None:
    published: list[bytes] = []
    trim(cluster, published)
    wait_until_identical(cluster)
    leader = leader_of(cluster)
    others = [server for server in cluster.servers.values() if server is not leader]
    lose_disk(others[0])
    for server in (leader, others[1]):
        server.stop(signal.SIGKILL)
    for node in range(cluster.nats.count):
        cluster.nats.kill(node)
        shutil.rmtree(cluster.directory / f"nats-{node}" / "store")
    for node in range(cluster.nats.count):
        cluster.nats.start(node)
    for server in (leader, *reversed(others)):  # the server with the empty journal last
        server.start()
    until(lambda: all("fyrehose cluster reseed" in server.log for server in (leader, others[1])), lambda: leader.log)
    assert not any(get(server, "/ready") for server in cluster.servers.values())
    for server in cluster.servers.values():
        assert server.stop() == 0
    (line,) = commands("fyrehose cluster reseed", leader.directory / "fyrehose.toml")
    run(*command(line)[2:], "--yes")
    for server in (leader, *others):
        server.start()
    published.append(b"after the loss")
    publish(cluster, published[-1])
    check(cluster, published)
    for server in cluster.servers.values():
        assert not verify(server.directory / "data").problems


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
