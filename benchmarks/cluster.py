"""Measure a cluster: ``python -m benchmarks.cluster`` starts three servers and three NATS servers on loopback.

It publishes to the leader with Figg, and prints messages a second, the latency of one message at a time, and the CPU
use of each server.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import urllib.request
from pathlib import Path

import click

from benchmarks.local_cluster import Cluster, ClusterServer
from fyrehose.bench.makers import Makers
from fyrehose.bench.plans import LoadOutcome, Plan
from fyrehose.bench.usage import cpu
from fyrehose.journal import scan

#: Seconds after which the cluster must be ready, and the followers must have everything.
PATIENCE = 90.0
#: Upper bound of the messages that JetStream alone has not accepted yet.
ASYNC = 1000


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
) -> tuple[LoadOutcome, list[float]]:
    """Publish to the leader; return the outcome, and the CPU seconds of the leader, of a follower, and of the NATS
    servers."""
    servers = list(cluster.servers.values())
    followers = [server for server in servers if server is not leader]

    def used() -> list[float]:
        pids = {server.name: server.process.pid for server in servers if server.process is not None}
        nats = sum(cpu(cluster.nats.pid(node)).total for node in range(cluster.nats.count))
        return [
            cpu(pids[leader.name]).total,
            sum(cpu(pids[each.name]).total for each in followers) / len(followers),
            nats,
        ]

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


async def to_jetstream(urls: list[str], messages: int, window: int) -> float:
    """Publish to a stream of JetStream with three replicas; return the seconds until everything is accepted."""
    import nats
    from nats.js.api import StorageType, StreamConfig

    client = await nats.connect(urls)
    try:
        stream = client.jetstream(timeout=PATIENCE, publish_async_max_pending=window)
        await stream.add_stream(StreamConfig(name="side", subjects=["side"], storage=StorageType.FILE, num_replicas=3))
        began, payload = time.monotonic(), bytes(128)
        for _ in range(messages):
            await stream.publish_async("side", payload, wait_stall=PATIENCE)
        await stream.publish_async_completed()
        seconds = time.monotonic() - began
        stored = (await stream.stream_info("side")).state.messages
        if stored != messages:
            raise click.ClickException(f"JetStream has {stored} of {messages} messages")
        await stream.delete_stream("side")
        return seconds
    finally:
        await client.close()


def beside(cluster: Cluster, messages: int, window: int) -> str:
    """Publish the same messages to JetStream alone, and return a line with its rate and CPU use."""
    nodes = range(cluster.nats.count)
    before = sum(cpu(cluster.nats.pid(node)).total for node in nodes)
    seconds = asyncio.run(to_jetstream(cluster.nats.urls, messages, window))
    used = sum(cpu(cluster.nats.pid(node)).total for node in nodes) - before
    rate = f"{messages / seconds:,.0f} messages/s; us of CPU a message: NATS {used / messages * 1e6:.0f}"
    return f"JetStream alone, R3, one entry a message, published by nats-py: {rate}"


@click.command("cluster")
@click.option("--messages", default=1_000_000, show_default=True, help="Messages of 128 B in each round.")
@click.option("--window", default=8192, show_default=True, help="Messages that may be under way.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--jetstream", default=0, show_default=True, help="Messages for JetStream alone, beside it; 0: none.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Directory for the servers, on a real disk.")
def main(messages: int, window: int, rounds: int, jetstream: int, directory: Path | None) -> None:
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
        if jetstream:
            click.echo(beside(cluster, jetstream, min(window, ASYNC)))


if __name__ == "__main__":
    main()
