"""Simulate a cluster of two or three complete servers and the shared log between them, and check its rules.

an entry is purged from the shared log only when it is on the disks of two servers and survives a power cut
in the end all journals are the same, byte for byte
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from disks import bytes_between
from member import Member
from server import MIN_FREE
from sharedlog import SharedLog
from views import ClusterHistory
from world import Violation, World

from fyrehose.cluster.members import ChangeKind, MemberChange
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.interfaces import JournalState
from fyrehose.journal.settings import JournalSettings
from fyrehose.offline.verify import verify

#: How often the simulated operator asks whether a lost machine can be replaced, in seconds.
OPERATE = 1.0


class Cluster:
    """All servers of the cluster and the shared log, with the interface of a single server.

    :ivar fills_itself: whether servers copy each other's journals by themselves; otherwise an operator copies them
    :ivar lost: whether a machine was lost with its disk, and its replacement has not yet copied everything
    """

    def __init__(self, world: World, history: ClusterHistory, root: Path, count: int) -> None:
        dice = world.random
        self.world, self.history = world, history
        self.settings = JournalSettings(min_free=MIN_FREE, segment_size=dice.choice((1 << 10, 4 << 10, 64 << 10)))
        self.replication = ReplicationSettings(
            servers=("nats://10.0.0.1:4222",),
            name="x",
            members=count,
            member_timeout=dice.choice((60.0, 86400.0)),
        )
        self.fills_itself = dice.random() < 0.7
        self.log = SharedLog(world, self._check_purge)
        self.lost, self._needed = False, 0
        self.fills = self.wipes = self.freezes = self.faults = self.reopenings = 0
        self.names = tuple("abc"[:count])
        self.on_crash: list[Callable[[str], None]] = []
        self.members = [Member(world, history, root, name, self) for name in self.names]
        for member in self.members:
            member.on_crash = self.on_crash
        history.right_time = lambda time: True

    # The interface of a single server:

    def listen(self, make: Callable[..., Any], only_leading: bool = False) -> None:
        """Open a listener on each server, in each of its lives."""
        for member in self.members:
            member.listen(make, only_leading)

    @property
    def up(self) -> bool:
        return all(member.up for member in self.members)

    @property
    def was_full(self) -> bool:
        return any(member.was_full for member in self.members)

    @property
    def lives(self) -> int:
        return sum(member.lives for member in self.members)

    @property
    def crashes(self) -> int:
        return sum(member.crashes for member in self.members)

    @property
    def damages(self) -> int:
        return sum(member.damages for member in self.members)

    @property
    def leader(self) -> Member | None:
        """Return the leader of the latest epoch, or None if no server leads."""
        leaders = [member for member in self.members if member.leads]
        return max(leaders, key=lambda member: member.role.validity.epoch, default=None)

    def stall(self, seconds: float) -> None:
        """Let the disks of all servers that are up take *seconds* for the next write and sync."""
        for member in self.members:
            member.stall(seconds)

    def crash(self) -> None:
        """Crash the leader, or, if none leads, one of the others."""
        (self.leader or self.world.random.choice(self.members)).crash()

    def leading_broker(self) -> Any:
        """Return the broker that accepts messages; None if there is none."""
        leader = self.leader
        if leader is None or leader.service.broker.follows:
            return None
        return leader.service.broker if leader.role.validity.epoch == self.log.epoch else None

    def start(self) -> None:
        for member in self.members:
            member.start()
        self.world.clock.callLater(OPERATE, self._operate)

    def _operate(self) -> None:
        """Ask the leader, as an operator does, to replace a lost machine by a new one, or to remove it."""
        self.world.clock.callLater(OPERATE, self._operate)
        leader = self.leader
        listed = None if leader is None else leader.role.members
        connection = None if leader is None else self.log.connections.get(leader.alias)
        if listed is None or connection is None:
            return
        aliases = [member.alias for member in self.members]
        old = [name for name in listed.names if name not in aliases]
        new = [alias for alias in aliases if alias not in listed.names]
        if old and new:
            kind, *names = ChangeKind.REPLACE, old[0], new[0]
        elif old:
            kind, *names = ChangeKind.REMOVE, old[0]
        else:
            return
        connection.ask(MemberChange("r", listed.version, kind, *names).pack())

    def check(self) -> None:
        """Check all rules after a step."""
        for member in self.members:
            member.check()
        if self.history.problems:
            raise Violation(self.history.problems[0])
        self.history.look()
        if self.lost and self._copies(max(self.log.left(), self._needed)) == len(self.members):
            self.lost = False

    def still_counted(self) -> str:
        """Return what a server still counts although every client has gone; empty: nothing."""
        return next(filter(None, (member.still_counted() for member in self.members)), "")

    def close(self) -> None:
        """Close all servers at the end of the simulation."""
        for member in self.members:
            member.close()

    # The cluster:

    def _copies(self, position: int) -> int:
        """Return how many servers would keep everything below *position* in a power cut."""
        return sum(member.certain_mark() >= position for member in self.members)

    def _check_purge(self, position: int) -> None:
        """Check that two servers have what lies before *position*, which the shared log is about to delete."""
        if self._copies(position) < 2 - self.lost:
            self.history.wrong(
                f"the shared log is purged up to {position}, but the durable marks of the servers are "
                f"{[member.certain_mark() for member in self.members]}"
            )

    def lose(self) -> None:
        """Record that a machine and its disk are lost; fewer copies are required until a new one has caught up."""
        self.lost, self._needed = True, max(member.certain_mark() for member in self.members)

    def may_lose(self, member: Member) -> bool:
        """Return whether the other servers are members and have all that the shared log has purged."""
        others = [other for other in self.members if other is not member]
        if not all(self.log.admits(other.alias) for other in others):
            return False
        return not self.lost and all(other.certain_mark() >= self.log.left() for other in others)

    def calm(self) -> None:
        """End all faults."""
        self.log.loss = 0.0
        self.log.away.clear()
        self.log.mute.clear()
        self.log.regain_quorum()
        for member in self.members:
            member.full = False
            if not member.host.dead:
                member.files.fault = 0
                member.thaw()

    def owed(self) -> str:
        """Return what is missing until all servers serve the same records; empty if nothing is."""
        if not self.up:
            return f"{[member.name for member in self.members if not member.up]} are down"
        leader = self.leader
        if leader is None or leader.journal.state is not JournalState.WRITABLE:
            return "no server leads"
        for member in self.members:
            writer = member.journal.writer
            if not writer.position == writer.released == writer.durable == len(self.log.truth):
                return f"{member.name} has {writer.released} of {len(self.log.truth)} bytes"
            if sum(view for view in self.history.views[member.name].seen.values()) != self._records():
                return f"{member.name} has not delivered everything"
        return ""

    def _records(self) -> int:
        return sum(len(truth) for truth in self.history.truth.values())

    def compare(self) -> None:
        """Check at the end that all journals are undamaged and the same, byte for byte."""
        truth = self.log.truth
        for member in self.members:
            directory = member.files.directory
            if bytes_between(directory, 0, len(truth)) != truth:
                raise Violation(f"the journal of {member.name} differs from the shared log at the end")
            problems = verify(directory).problems
            if problems:
                raise Violation(f"{member.name}: {problems[0]}")
