"""Simulate clusters of two or three complete servers with a shared log, under many faults at the same time.

Servers crash, are frozen for longer than a take-over takes, are stopped in order, are cut off from the shared log or
from clients, and lose their disks; disks fail, fill up, and are damaged; the shared log loses requests, answers, and
its quorum.  In the end every client has received everything, one server leads, and all journals are the same, byte for
byte.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import simulation
from cluster import Cluster
from member import REASONS, Member
from simulation import Outcome, Simulation
from twisted.logger import LogEvent, formatEvent
from views import ClusterHistory

#: How long a fault lasts, in seconds; some are shorter and some longer than a take-over.
SPANS = (0.3, 2.0, 5.0, 5.0, 12.0)


@attrs.frozen
class ClusterOutcome(Outcome):
    """The result of a simulation of a cluster.

    :ivar takeovers: how often a server became the leader
    :ivar voids: entries of the shared log that were declared void
    :ivar trimmed: entries that were purged from the shared log
    :ivar freezes: how often a server was frozen
    :ivar faults: how often a fault of a disk was prepared
    :ivar wipes: how often a server lost its disk
    :ivar fills: how often a server copied the journal of another
    :ivar reopenings: how often a server has opened its journal again in the same process
    """

    takeovers: int = 0
    voids: int = 0
    trimmed: int = 0
    freezes: int = 0
    faults: int = 0
    wipes: int = 0
    fills: int = 0
    reopenings: int = 0


class ClusterSimulation(Simulation):
    """A simulation of a cluster of ``servers`` servers; its clients know the addresses of all."""

    server: Cluster
    history: ClusterHistory

    def __init__(self, seed: int, protocol: str, root: Path, servers: int) -> None:
        self.count = servers
        super().__init__(seed, protocol, root)

    def _make_history(self) -> ClusterHistory:
        return ClusterHistory()

    def _make_server(self, root: Path, gaps: bool) -> Cluster:
        return Cluster(self.world, self.history, root, self.count)

    def _retain(self) -> None:
        """Delete nothing: the history of a cluster needs every record."""

    def _kinds(self) -> list[Callable[[], None]]:
        return [
            self._crash,
            self._crash,
            self._crash_leader,
            self._freeze,
            self._freeze,
            self._cut_off,
            self._depose,
            self._depose,
            self._restart,
            self._lose_quorum,
            self._lossy,
            self._break_disk,
            self._lose_disk,
            self._fill_late,
            self._damage,
            self._fill,
            self._partition_server,
            self._cut,
            self._slow,
            self._partition,
            self._turn_the_clock,
        ]

    def run(self, steps: int | None) -> None:
        """Run the simulation; mostly wait until a server leads before the first step."""
        if self.world.random.random() < 0.9:
            self.pass_time(4.5)
        super().run(steps)

    def step(self) -> None:
        super().step()
        if self.world.random.random() < 0.1:
            self.pass_time(self.world.random.choice((1.0, 2.0, 4.5)))

    # The faults:

    def _member(self) -> Member:
        """Return the leader or a random server."""
        leader, dice = self.server.leader, self.world.random
        return leader if leader is not None and dice.random() < 0.4 else dice.choice(self.server.members)

    def _span(self) -> float:
        return self.world.random.choice(SPANS) * (0.5 + self.world.random.random())

    def _crash(self) -> None:
        self._member().crash()

    def _crash_leader(self) -> None:
        leader = self.server.leader
        if leader is not None:
            leader.crash()

    def _damage(self) -> None:
        self._member().hurt()

    def _restart(self) -> None:
        self._member().restart()

    def _fill(self) -> None:
        self._member().fill(self._span())

    def _freeze(self) -> None:
        self._member().freeze(self._span())

    def _cut_off(self) -> None:
        """Cut a server off from the shared log for a while."""
        member = self._member()
        self.world.note(f"{member.name} does not reach the shared log")
        self.server.log.away.add(member.alias)
        self.world.clock.callLater(self._span(), self.server.log.away.discard, member.alias)

    def _depose(self) -> None:
        """Publish while the leader does not reach the shared log, until another server may lead."""
        leader, log, dice = self.server.leader, self.server.log, self.world.random
        if leader is None:
            return
        self.world.note(f"{leader.name} does not reach the shared log with what is published now")
        log.away.add(leader.alias)
        for _ in range(dice.choice((2, 4, 8))):
            dice.choice(self.sides).step()
            self.pass_time(0.2)
        self.pass_time(2.0 + 4.0 * dice.random())
        log.away.discard(leader.alias)

    def _partition_server(self) -> None:
        """Cut clients off from a server for a while."""
        member = self._member()
        self.world.note(f"{member.name} is cut off from clients")
        self.world.partition(member.name, self._span())

    def _lose_quorum(self) -> None:
        self.world.note("the shared log has no quorum")
        self.server.log.lose_quorum()
        self.world.clock.callLater(self._span(), self.server.log.regain_quorum)

    def _lossy(self) -> None:
        log = self.server.log
        log.loss = self.world.random.choice((0.05, 0.2, 0.5))
        self.world.clock.callLater(self._span(), setattr, log, "loss", 0.0)

    def _break_disk(self) -> None:
        dice = self.world.random
        self._member().break_disk(dice.choice((errno.EIO, errno.EIO, errno.ENOSPC)), dice.choice((0, 0, 1, 3, 10)))

    def _lose_disk(self) -> None:
        member, leader, dice = self._member(), self.server.leader, self.world.random
        if not self.server.may_lose(member):
            return
        member.lose()
        member.is_behind = dice.random() < 0.7  # otherwise it starts without a copy
        if leader is not None and leader is not member and dice.random() < 0.5:
            # The new machine copies from a leader whose last entries never reached the shared log.
            self.server.log.away.add(leader.alias)
            self.world.clock.callLater(self._span(), self.server.log.away.discard, leader.alias)
            for _ in range(8):
                dice.choice(self.sides).step()
                self.pass_time(0.1)

    def _fill_late(self) -> None:
        """Let a server lose its disk while it can copy only a leader whose appends never reach the shared log."""
        leader, log, dice = self.server.leader, self.server.log, self.world.random
        if leader is None or not log.left():
            return
        others = [member for member in self.server.members if member is not leader]
        member = dice.choice(others)
        if not self.server.may_lose(member):
            return
        self.world.note(f"appends of {leader.name} do not reach the shared log")
        log.mute.add(leader.alias)
        for other in others:
            if other is not member:
                other.freeze(5.0)
        member.lose()
        member.is_behind = True
        for _ in range(10):
            dice.choice(self.sides).step()
            self.pass_time(0.5)
        if dice.random() < 0.7:
            leader.crash()
        log.mute.clear()

    # The end:

    def calm(self) -> None:
        self.server.calm()
        super().calm()

    def owed(self) -> str:
        return super().owed() or self.server.owed()

    def close(self) -> None:
        self.server.compare()
        super().close()

    def observe(self, event: LogEvent) -> None:
        """Ignore errors in the log about a failed disk, or about a server that has to be filled."""
        text = f"{formatEvent(event)} {event.get('log_failure', '')}"
        if not any(reason in text for reason in REASONS):
            super().observe(event)

    def outcome(self) -> ClusterOutcome:
        cluster, log = self.server, self.server.log
        return ClusterOutcome(
            *attrs.astuple(super().outcome()),
            log.takeovers,
            log.voids,
            log.first - 1,
            cluster.freezes,
            cluster.faults,
            cluster.wipes,
            cluster.fills,
            cluster.reopenings,
        )


def simulate(
    seed: int,
    protocol: str,
    servers: int,
    steps: int | None = None,
    trace: list[str] | None = None,
) -> ClusterOutcome:
    """Run the simulation of ``seed`` with ``servers`` servers.

    :raises Violation: a rule was broken
    """
    made: Any = partial(ClusterSimulation, servers=servers)
    outcome = simulation.simulate(seed, protocol, steps, trace, made)
    assert isinstance(outcome, ClusterOutcome)
    return outcome
