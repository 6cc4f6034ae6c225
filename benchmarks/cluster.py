"""Measure a cluster: ``python -m benchmarks.cluster`` starts three servers and three NATS servers on loopback.

It publishes to the leader with Figg, and prints messages a second, the latency of one at a time, and the CPU of each.
"""

from __future__ import annotations

import os
import tempfile
import time
import urllib.request
from pathlib import Path

import click

from benchmarks.makers import Makers
from benchmarks.plans import Outcome, Plan
from fyrehose.journal import scan
from fyrehose.testing.cluster import Cluster, ClusterServer

#: Seconds after which the cluster must be ready, and the followers must have everything.
PATIENCE = 90.0


def cpu(pid: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_ready(server: ClusterServer, query: str = "") -> bool:
    """Return whether *server* says that it is ready."""
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{server.ports[2]}/ready{query}", timeout=2).close()
    except OSError:
        return False
    return True


def leader_of(cluster: Cluster) -> ClusterServer:
    """Wait until one server leads, and the others follow it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        leaders = [server for server in cluster.servers.values() if is_ready(server)]
        if leaders and all(is_ready(server, "?for=read") for server in cluster.servers.values()):
            return leaders[0]
        time.sleep(0.2)
    raise click.ClickException("no server leads; see the logs of the servers")


def publish(
    cluster: Cluster, leader: ClusterServer, stream: str, messages: int, window: int
) -> tuple[Outcome, list[float]]:
    """Publish; return the outcome, and the CPU seconds of the leader, of a follower, and of the NATS servers."""
    servers = list(cluster.servers.values())
    followers = [server for server in servers if server is not leader]

    def used() -> list[float]:
        pids = {server.name: server.process.pid for server in servers if server.process is not None}
        nats = sum(cpu(cluster.nats.pid(node)) for node in range(cluster.nats.count))
        return [cpu(pids[leader.name]), sum(cpu(pids[each.name]) for each in followers) / len(followers), nats]

    port = leader.ports[0]
    plan = Plan(wire="figg", port=port, read_port=port, stream=stream, size=128, publishers=[messages], window=window)
    with Makers([plan]) as makers:
        before = used()
        (outcome,) = makers.run()
        deadline = time.monotonic() + PATIENCE
        while len({scan.read_mark(server.directory / "data") for server in servers}) > 1:
            if time.monotonic() > deadline:
                raise click.ClickException("the followers did not catch up")
            time.sleep(0.02)
        return outcome, [after - earlier for after, earlier in zip(used(), before, strict=True)]


@click.command("cluster")
@click.option("--messages", default=1_000_000, show_default=True, help="Messages of 128 B in each round.")
@click.option("--window", default=8192, show_default=True, help="Messages that may be under way.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Directory for the servers, on a real disk.")
def main(messages: int, window: int, rounds: int, directory: Path | None) -> None:
    """Measure how fast a replicated journal acknowledges messages."""
    with tempfile.TemporaryDirectory(dir=directory) as folder, Cluster(Path(folder)) as cluster:
        leader = leader_of(cluster)
        for number in range(rounds):
            outcome, seconds = publish(cluster, leader, f"round{number}", messages, window)
            micros = ", ".join(
                f"{name} {used / messages * 1e6:.2f}"
                for name, used in zip(("leader", "a follower", "NATS"), seconds, strict=True)
            )
            rate = messages / (outcome.ended - outcome.began)
            line = f"{rate:,.0f} messages/s; us of CPU a message: {micros}"
            if outcome.latency:
                line += f"; p50 {outcome.latency['acknowledged'][0] * 1e3:.1f} ms"
            click.echo(line)


if __name__ == "__main__":
    main()
