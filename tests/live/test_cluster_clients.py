"""Kill the leader of a cluster: each client that reads goes on at one of the others, or where it was."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import attrs
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import gatherResults
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.threads import deferToThread

from benchmarks.local_cluster import Cluster, ClusterServer
from fyrehose.net import AnyServer
from fyrehose.net.clients import ClientTarget
from fyrehose.plugins import load
from fyrehose.testing.ports import free_ports
from tests.live.conftest import eventually, with_nats
from tests.live.test_cluster import PATIENCE, leader_of, publish
from tests.live.test_restore import CLIENT

pytestmark = with_nats(600)

#: The stream of every reader; the event bus and the backbone have only this one.
MORE = """
[option.relink]
links = "main"
[option.backbone]
stream = "s"
[option.eventbus]
stream = "s"
"""
#: Follows the stream at two URLs, and by Relink at whichever server accepts; prints a line for each item.
FOLLOWER = """
import { connect } from "node:net";
import { Fyrehose } from "%(client)s/fyrehose.js";
import { RelinkSubscriber } from "%(client)s/relink.js";
const [first, second, ...ports] = process.argv.slice(1);
async function print(name, records) {
  for await (const { seq, gap, restarted } of records) console.log(JSON.stringify([name, seq, gap, restarted]));
}
print("javascript at the leader", new Fyrehose(first).follow("s", { from: 1 }));
print("javascript at a follower", new Fyrehose(second).follow("s", { from: 1 }));
let next = 0;
const any = ({ host }, ...more) => connect({ host, port: Number(ports[next++ %% ports.length]) }, ...more);
print("relink of javascript", new RelinkSubscriber(`127.0.0.1:${ports[0]}`, "s", { after: 0, connect: any }));
"""


@attrs.define(eq=False)
class Reader:
    """A client that reads the stream.

    :ivar got: the numbers of the records that it got
    :ivar said: what it reported otherwise
    """

    name: str
    client: Any = None
    got: list[int] = attrs.field(factory=list)
    said: list[tuple[Any, ...]] = attrs.field(factory=list)

    async def connect(self, stream: str | None) -> None:
        self.client.subscribe(
            stream,
            lambda run: self.got.extend(range(run.first_seq, run.last_seq + 1)),
            after=None if stream is not None and "*" in stream else 0,
            lost=lambda *lost: self.said.append(("lost", *lost)),
            restarted=lambda *end: self.said.append(("restarted", *end)),
        )
        await self.client.connect()


class Running:
    """A cluster with a listener of each protocol, and the readers of its stream."""

    def __init__(self, directory: Path) -> None:
        self.cluster = Cluster(directory)
        self.directory = directory
        ports = iter(free_ports(9, 3))
        #: the ports of each server, by protocol
        self.ports: dict[str, dict[str, int]] = {}
        for name, server in self.cluster.servers.items():
            of = {"relink": next(ports), "backbone": next(ports), "eventbus": next(ports)}
            server.listen = {each: f"{'udp' if each == 'backbone' else 'tcp'}:{port}" for each, port in of.items()}
            server.more = MORE
            self.ports[name] = {**of, "figg": server.ports[0], "http": server.ports[1]}
        self.readers: list[Reader] = []

    async def publish(self, count: int) -> None:
        for _ in range(count):
            await deferToThread(publish, self.cluster, b"x")

    async def read(self, protocol: str, name: str, at: ClusterServer | None = None, stream: str | None = "s") -> None:
        """Begin to read by *protocol* from the server *at*, or from any."""
        plugin: Any = load(protocol)
        if at is None:
            places = [("127.0.0.1", of[protocol]) for of in self.ports.values()]
            endpoints = [TCP4ClientEndpoint(reactor, *place) for place in places]
            any_server = AnyServer(endpoints, [f"{host}:{port}" for host, port in places])
            target = ClientTarget(reactor, *places[0], endpoint=any_server)
        else:
            target = ClientTarget(reactor, "127.0.0.1", self.ports[at.name][protocol])
        reader = Reader(name, plugin.tailer(target))
        self.readers.append(reader)
        await reader.connect(stream)

    def follow(self, leader: ClusterServer, follower: ClusterServer) -> subprocess.Popen[bytes]:
        """Begin to read with the clients of JavaScript."""
        script = FOLLOWER % {"client": CLIENT}
        urls = [f"http://127.0.0.1:{self.ports[each.name]['http']}" for each in (leader, follower)]
        relink = [str(of["relink"]) for of in self.ports.values()]
        with (self.directory / "javascript").open("wb") as output:
            return subprocess.Popen(["node", "--input-type=module", "-e", script, *urls, *relink], stdout=output)

    def followed(self) -> list[Reader]:
        """Return what the clients of JavaScript have printed."""
        found: dict[str, Reader] = {}
        for line in (self.directory / "javascript").read_bytes().split(b"\n")[:-1]:  # the last one may be cut
            name, seq, gap, restarted = json.loads(line)
            reader = found.setdefault(name, Reader(name))
            if seq is not None:
                reader.got.append(seq)
            else:
                reader.said.append(("lost", *gap) if gap else ("restarted", restarted))
        return list(found.values())

    @property
    def all(self) -> list[Reader]:
        return [*self.readers, *self.followed()]

    async def until_all_have(self, last: int, readers: int) -> None:
        """Wait until so many readers have got number *last*."""
        await eventually(
            lambda: sum(last in each.got for each in self.all) >= readers,
            lambda: [(each.name, each.got, each.said) for each in self.all],
        )


def ask(server: ClusterServer, method: str, path: str, body: object = None) -> Any:
    """Send a request to the HTTP listener of *server*; return its answer."""
    url = f"http://127.0.0.1:{server.ports[1]}{path}"
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, method=method), timeout=PATIENCE) as answer:
        lines = answer.read().splitlines()
    return [json.loads(line) for line in lines]


def consume(server: ClusterServer, count: int) -> tuple[list[int], list[int]]:
    """Take and acknowledge three records of a named, and *count* of a shared subscription; return the numbers."""
    ask(server, "PUT", "/subscriptions/work", {"stream": "s", "shared": True, "lease": 60})
    named = [each["seq"] for each in ask(server, "GET", "/streams/s?subscription=own&from=1&limit=3")]
    ask(server, "POST", "/subscriptions/own/ack", {"seq": named[-1]})
    worked: list[int] = []
    while len(worked) < count:
        (leased,) = ask(server, "POST", "/subscriptions/work/lease", {"consumer": "w", "most": 3, "wait": 30})
        ask(server, "POST", "/subscriptions/work/settle", {"done": [[r["seq"], r["token"]] for r in leased["records"]]})
        worked += [each["seq"] for each in leased["records"]]
    return named, worked


def events(server: ClusterServer, after: int, last: int) -> list[str]:
    """Return the kinds or numbers of the events behind number *after*, as a browser asks for them again."""
    url = f"http://127.0.0.1:{server.ports[1]}/streams/s/live"
    found = []
    request = urllib.request.Request(url, headers={"Last-Event-ID": str(after)})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        while (not found or found[-1] != str(last)) and (line := answer.readline()):
            name, _, value = line.decode().strip().partition(": ")
            if name in ("id", "event"):
                found.append(value.rpartition(":")[2])
    return found


@pytest_twisted.ensureDeferred
async def test_readers_go_on_after_a_take_over(tmp_path: Path) -> None:
    """Nothing is missing, comes twice, or is said to be another journal's."""
    running = Running(tmp_path)
    with running.cluster as cluster:
        leader = await deferToThread(leader_of, cluster)
        follower = next(each for each in cluster.servers.values() if each is not leader)
        await running.publish(10)
        for protocol in ("http", "figg", "relink"):
            await running.read(protocol, protocol)
        for protocol in ("backbone", "eventbus"):
            await running.read(protocol, f"{protocol} at the leader", leader, None)
            await running.read(protocol, f"{protocol} at a follower", follower, None)
        node = running.follow(leader, follower)
        try:
            await running.until_all_have(10, 10)
            await running.read("http", "http, s*", stream="s*")  # it begins with new records
            assert await deferToThread(consume, leader, 3) == ([1, 2, 3], [1, 2, 3])
            await deferToThread(leader.stop, signal.SIGKILL)
            await running.publish(10)
            leading = await deferToThread(leader_of, cluster)
            named, worked = await deferToThread(consume, leading, 17)
            assert named == [4, 5, 6]
            assert sorted(worked) == list(range(4, 21))
            leader.start()
            await running.publish(10)
            await running.until_all_have(30, 11)
            for server in (leader, leading):
                found = await deferToThread(events, server, 10, 30)
                assert found == ["begin", *map(str, range(10, 31))], "the first id is that of the browser"
        finally:
            await gatherResults([reader.client.close() for reader in running.readers])
            node.kill()
            node.wait()
    assert {each.name: (each.got, each.said) for each in running.all} == {
        each.name: (list(range(11 if "*" in each.name else 1, 31)), []) for each in running.all
    }
