"""Three Fyrehose servers and three NATS servers for resent_kill.py: the leader is lost, and another one takes over.

    kill -9, SIGTERM, or SIGSTOP for longer than a take-over takes  ->  another one leads  ->  the lost one starts again

Only the leader has its lumberjack listener open.  A frozen leader continues when another one leads: then it reads what
agents have sent to it meanwhile, notices that it was deposed, and follows again.
"""

from __future__ import annotations

import random
import signal
import time
import urllib.request
from pathlib import Path

import servers

from benchmarks.local_cluster import Cluster, ClusterServer

#: The signals by which a leader is lost.
WAYS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
#: How long a frozen leader stays frozen at most once another one leads, in seconds.
FROZEN_S = 3.0
PATIENCE = 120.0
#: What a server logs when it was deposed, and opens its journal again.
OPENED_AGAIN = "are closed, and opened again"


class Takeovers:
    """A cluster whose servers drop repeated events.

    :ivar ports: the ports of the lumberjack listeners, of which only the leader's is open
    :ivar problems: problems with how servers ended
    """

    def __init__(self, root: Path, dice: random.Random) -> None:
        self.cluster, self.dice = Cluster(root), dice
        self.problems: list[str] = []
        self.ports: list[int] = []
        for server in self.cluster.servers.values():
            port = servers.free_ports(("lumberjack",))["lumberjack"]
            self.ports.append(port)
            server.listen = {"lumberjack": f"tcp:{port}"}

    def start(self) -> None:
        self.cluster.__enter__()
        self.leader()

    def leader(self, besides: ClusterServer | None = None) -> ClusterServer:
        """Wait until a server other than *besides* leads; return it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            for server in self.cluster.servers.values():
                if server is not besides and is_ready(server):
                    return server
            if time.monotonic() > deadline:
                raise TimeoutError("no server leads; the logs are in its directory")
            time.sleep(0.05)

    def lose(self, how: signal.Signals) -> None:
        """Stop the leader, wait until another one leads, and start it again."""
        lost = self.leader()
        if how is signal.SIGSTOP:
            self._freeze(lost)
        elif (status := lost.stop(how)) not in (0, -signal.SIGKILL):
            self.problems.append(f"server {lost.name} ended with status {status} after {how.name}")
        self.leader(besides=lost)
        if lost.process is None:
            lost.start()

    def _freeze(self, server: ClusterServer) -> None:
        process, reopened = server.process, server.log.count(OPENED_AGAIN)
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        try:
            self.leader(besides=server)
            time.sleep(self.dice.uniform(0, FROZEN_S))
        finally:
            process.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + PATIENCE
        while server.log.count(OPENED_AGAIN) == reopened:
            if process.poll() is not None or time.monotonic() > deadline:
                self.problems.append(f"server {server.name} (status {process.poll()}) does not follow again")
                return
            time.sleep(0.05)

    def stop(self) -> Path:
        """Stop every server, the leader last, so that no other one takes over; return the leader's directory."""
        deadline = time.monotonic() + PATIENCE
        while not all(is_ready(server, "?for=read") for server in self.cluster.servers.values()):
            if time.monotonic() > deadline:
                raise TimeoutError("not every server is back; the logs are in its directory")
            time.sleep(0.05)
        leader = self.leader()
        for server in [each for each in self.cluster.servers.values() if each is not leader] + [leader]:
            if status := server.stop():
                self.problems.append(f"server {server.name} ended with status {status} after SIGTERM")
        return leader.directory

    def close(self) -> None:
        """Kill the processes that still run."""
        self.cluster.__exit__()

    @property
    def count(self) -> int:
        """Return how often one server took over from another."""
        return sum(server.log.count(" is leader now: ") for server in self.cluster.servers.values()) - 1


def is_ready(server: ClusterServer, question: str = "") -> bool:
    """Return whether the status page of *server* answers *question*, by default whether it leads."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.ports[2]}/ready{question}", timeout=1):
            return True
    except OSError:
        return False
