#!/usr/bin/env python3
"""Kill the real server under agents that send unacknowledged events again, and count the events that are stored twice.

    resent_kill.py [--kills 100] [--sigterms 50] [--takeovers 0] [--agents 4] [--busy MS] [--cuts SECONDS] [--seed N]
                   [--directory DIR]

The agents are written from the protocol's text, with Filebeat's rules: two connections each, two batches of up to 300
events on a connection, each sent as one or two windows.  When a connection is lost, each of its batches is sent again
from its first unacknowledged event, on any connection and in other windows, with the members of each event in another
order.  About every --cuts seconds an agent closes a connection itself, without reading the acknowledgements.  The
events are those of Filebeat, with an identity.

Each stop, by SIGKILL or SIGTERM at random, comes after at most --busy milliseconds of load.  With --takeovers the
server is a cluster, whose leader is lost so often by SIGKILL, SIGTERM or SIGSTOP (resent_takeovers.py); agents know the
addresses of all servers, and try one after the other.  In the end everything is acknowledged, and plain_reader.py reads
the files, in a cluster those of the last leader.  Prints how many events were acknowledged, stored, stored twice and
lost.  The exit status is 1 if an event is lost or stored twice.
"""

from __future__ import annotations

import argparse
import json
import random
import selectors
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import plain_reader
import servers
from resent_takeovers import WAYS, Takeovers

BATCH = 300
#: How long an agent waits for an acknowledgement, and before it connects again, in seconds.
SILENCE, RETRY = 10.0, 0.05


class Agent(threading.Thread):
    """An agent: the events that it has sent, and those that were acknowledged."""

    def __init__(self, name: str, ports: list[int], arguments: argparse.Namespace, seed: str) -> None:
        super().__init__(name=name, daemon=True)
        self.cuts, self.dice = arguments.cuts, random.Random(seed)
        self.ports = deque(ports)  #: addresses of the servers; the first one is tried next
        self.ephemeral = str(uuid.UUID(int=self.dice.getrandbits(128), version=4))
        self.made, self.acked, self.resent = 0, set[int](), 0
        self.retry: deque[list[int]] = deque()
        self.ending = threading.Event()
        self.error = ""

    def next_port(self) -> int:
        self.ports.rotate(-1)
        return self.ports[-1]

    def fields(self, number: int) -> dict[str, object]:
        found: dict[str, object] = {
            "@timestamp": f"2026-11-26T02:{number // 60000 % 60:02}:{number // 1000 % 60:02}.{number % 1000:03}Z",
            "@metadata": {"beat": "filebeat", "type": "_doc", "version": "8.15.0"},
            "message": f"{self.name} {number} " + "x" * (number * 7919 % 300),
            "agent": {"type": "filebeat", "ephemeral_id": self.ephemeral, "name": self.name},
            "log": {"offset": 100 * number, "file": {"path": "/var/log/app.log", "inode": "17"}},
        }
        members = [*found.items()]
        self.dice.shuffle(members)
        return dict(members)

    def next_batch(self) -> list[int]:
        if self.retry:
            batch = self.retry.popleft()
            self.resent += len(batch)
            return batch
        if self.ending.is_set():
            return []
        first, self.made = self.made, self.made + self.dice.randint(1, BATCH)
        return list(range(first, self.made))

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            raise

    @property
    def done(self) -> bool:
        return self.ending.is_set() and len(self.acked) == self.made

    def work(self) -> None:
        connections: list[Connection | None] = [None, None]
        at = [0.0, 0.0]
        while not self.done:
            for i, connection in enumerate(connections):
                if connection is None and time.monotonic() >= at[i]:
                    at[i] = time.monotonic() + RETRY
                    with suppress(OSError):
                        connections[i] = Connection(self)
            self.move([each for each in connections if each is not None])
            for i, connection in enumerate(connections):
                if connection is not None and connection.is_lost():
                    connection.close()
                    connections[i] = None
        for connection in filter(None, connections):
            connection.close()

    def move(self, connections: list[Connection]) -> None:
        with selectors.DefaultSelector() as selector:
            for each in connections:
                each.fill()
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if each.out else 0)
                selector.register(each.socket, events, each)
            if not connections:
                time.sleep(RETRY)
                return
            for key, events in selector.select(RETRY):
                key.data.step(events)


class Connection:
    """A connection of an agent; ``batches`` has its unacknowledged events, by window."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.socket = socket.create_connection(("127.0.0.1", agent.next_port()), timeout=SILENCE)
        self.socket.setblocking(False)
        self.out, self.heard = bytearray(), bytearray()
        self.batches: deque[list[int]] = deque()  #: each with its unacknowledged events
        self.windows: deque[tuple[list[int], list[int], int]] = deque()  #: batch, events, how many are acknowledged
        self.lost = False
        self.at = time.monotonic()
        self.until = self.at + agent.dice.expovariate(1 / agent.cuts)

    def fill(self) -> None:
        while len(self.batches) < 2 and (batch := self.agent.next_batch()):
            self.batches.append(batch)
            cut = self.agent.dice.choice((len(batch), self.agent.dice.randint(1, len(batch))))
            for events in (batch[:cut], batch[cut:]):
                if events:
                    self.windows.append((batch, events, 0))
                    self.out += b"2W" + struct.pack(">I", len(events))
                    for sequence, number in enumerate(events, 1):
                        data = json.dumps(self.agent.fields(number)).encode()
                        self.out += b"2J" + struct.pack(">II", sequence, len(data)) + data

    def step(self, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                del self.out[: self.socket.send(self.out)]
            if events & selectors.EVENT_READ and time.monotonic() < self.until:
                data = self.socket.recv(1 << 16)
                self.lost = self.lost or not data
                self.heard += data
        except BlockingIOError:
            return
        except OSError:
            self.lost = True
        while len(self.heard) >= 6:
            version, kind, sequence = struct.unpack_from(">ccI", self.heard)
            del self.heard[:6]
            if (version, kind) != (b"2", b"A"):
                raise AssertionError(f"the server said {version + kind!r}")
            if sequence:
                self.acknowledged(sequence)

    def acknowledged(self, sequence: int) -> None:
        self.at = time.monotonic()
        batch, events, before = self.windows[0]
        if not before < sequence <= len(events):
            raise AssertionError(f"an acknowledgement of {sequence} behind {before}, of {len(events)} events")
        self.agent.acked.update(events[before:sequence])
        self.windows[0] = batch, events, sequence
        del batch[: sequence - before]
        if sequence == len(events):
            self.windows.popleft()
        while self.batches and not self.batches[0]:
            self.batches.popleft()

    def is_lost(self) -> bool:
        now = time.monotonic()
        return self.lost or now > self.until or (bool(self.windows) and now - max(self.at, 0) > SILENCE)

    def close(self) -> None:
        self.socket.close()
        rest = [batch for batch in self.batches if batch]
        self.agent.dice.shuffle(rest)
        self.agent.retry.extend(rest)


class OneServer:
    """A single server, which starts again after each stop."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.named = servers.free_ports(("lumberjack",))
        self.ports = list(self.named.values())

    def start(self) -> None:
        self.server = servers.Server(self.root, "--option", "journal.min-free=0", ports=self.named)
        self.server.wait_until_serving()

    def lose(self, how: signal.Signals) -> None:
        self.server.kill(how)
        self.start()

    def stop(self) -> Path:
        self.server.kill(signal.SIGTERM)
        return self.root


def stops(arguments: argparse.Namespace, dice: random.Random) -> list[signal.Signals]:
    if arguments.takeovers:
        found = [WAYS[n % len(WAYS)] for n in range(arguments.takeovers)]
    else:
        found = [signal.SIGKILL] * arguments.kills + [signal.SIGTERM] * arguments.sigterms
    dice.shuffle(found)
    return found


def torture(served: OneServer | Takeovers, agents: list[Agent], arguments: argparse.Namespace) -> Path:
    """Stop *served* again and again under *agents* until everything is acknowledged; return the journal's directory."""
    dice = random.Random(arguments.seed)
    served.start()
    for agent in agents:
        agent.start()
    for number, how in enumerate(stops(arguments, dice), 1):
        time.sleep(dice.uniform(0, arguments.busy) / 1000)
        served.lose(how)
        if number % 10 == 0:
            print(f"{number} stops, {sum(len(each.acked) for each in agents)} acknowledged", flush=True)
    for agent in agents:
        agent.ending.set()
    for agent in agents:
        agent.join(60)
    return served.stop()


def stored(directory: Path) -> Counter[str]:
    """Count how often each message is in the files."""
    found: Counter[str] = Counter()
    for record in plain_reader.records(directory / "data"):
        if record.stream == "lumberjack":
            found[" ".join(json.loads(record.payload)["message"].split(" ", 2)[:2])] += 1
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--sigterms", type=int, default=50)
    parser.add_argument(
        "--takeovers", type=int, default=0, help="lose the leader of a cluster so often instead of one server"
    )
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--busy", type=float, default=400.0, help="the longest load before a stop, in ms")
    parser.add_argument("--cuts", type=float, default=5.0, help="seconds after which an agent closes a connection")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=servers.directory, help="for the journal; a temporary one by default")
    arguments = parser.parse_args()

    root = Path(tempfile.mkdtemp(prefix="fyrehose-resent-", dir=arguments.directory))
    cluster = Takeovers(root, random.Random(arguments.seed)) if arguments.takeovers else None
    served = cluster or OneServer(root)
    agents = [Agent(f"agent-{n}", served.ports, arguments, f"{arguments.seed}-{n}") for n in range(arguments.agents)]
    began = time.monotonic()
    try:
        directory = torture(served, agents, arguments)
    finally:
        if cluster is not None:
            cluster.close()
    what = f"{arguments.kills} kills and {arguments.sigterms} orderly stops"
    if cluster is not None:
        what = f"{cluster.count} take-overs"
    problems = report(what, agents, stored(directory), arguments, time.monotonic() - began)
    problems += cluster.problems if cluster is not None else []
    for problem in problems:
        print(f"VIOLATION: {problem}")
    return servers.verdict(bool(problems), root)


def report(
    what: str, agents: list[Agent], found: Counter[str], arguments: argparse.Namespace, seconds: float
) -> list[str]:
    """Print the figures; return the problems."""
    problems = [f"{agent.name}: {agent.error or 'it does not end'}" for agent in agents if not agent.done]
    acked = {f"{agent.name} {number}" for agent in agents for number in agent.acked}
    lost, doubled = acked - found.keys(), sum(found.values()) - len(found)
    if lost:
        problems.append(f"LOST: {sorted(lost)[:5]}")
    if doubled:
        problems.append(f"stored twice: {[name for name, count in found.items() if count > 1][:5]}")
    print(
        f"{what} (seed {arguments.seed}): {len(acked)} acknowledged, {sum(agent.resent for agent in agents)} sent "
        f"again, {sum(found.values())} stored, {doubled} doubled, {len(lost)} lost, {seconds:.0f} s"
    )
    return problems


if __name__ == "__main__":
    sys.exit(main())
