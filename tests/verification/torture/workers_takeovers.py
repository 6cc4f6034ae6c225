#!/usr/bin/env python3
"""Kill the leader of a cluster with workers: each record must be settled once, or become a dead letter once.

    workers_takeovers.py --kills SECONDS [--points N] [--only POINT] [--records N] [--seed S] [--directory DIR]

Everything is as in workers.py, except that three servers share a log, and the leader is killed; it starts again when
another server leads.  The point is called "take-over".
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import servers
from workers import PATIENCE, main

from benchmarks.local_cluster import Cluster, ClusterServer


class Leader:
    """The leader of a cluster of three servers, which is killed now and then."""

    kind = "take-over"

    def __init__(self, root: Path) -> None:
        self.cluster = Cluster(root)
        self.cluster.__enter__()
        self.ports = [each.ports[1] for each in self.cluster.servers.values()]
        self._killed: ClusterServer | None = None

    @property
    def page(self) -> int:
        return self._wait_for_leader().ports[2]

    def leader(self) -> ClusterServer | None:
        """Return the server that leads; None if none does, or if only the one that was killed last says so."""
        others = (each for each in self.cluster.servers.values() if each is not self._killed)
        return next((each for each in others if servers.is_ready(each.ports[2])), None)

    def serves(self) -> bool:
        if self.leader() is None:
            return False
        if self._killed is not None:
            self._killed.start()
            self._killed = None
        return True

    def kill(self) -> None:
        leader = self._wait_for_leader()
        leader.stop(signal.SIGKILL)
        self._killed = leader

    def _wait_for_leader(self) -> ClusterServer:
        deadline = time.monotonic() + PATIENCE
        while (leader := self.leader()) is None:
            assert time.monotonic() < deadline, "no server leads; the logs are in its directory"
            time.sleep(0.1)
        return leader

    def end(self) -> None:
        self.cluster.__exit__()


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", Leader, Leader.kind))
