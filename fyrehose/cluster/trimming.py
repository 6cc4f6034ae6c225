"""Decide when the leader trims the shared log, and what to do when the log grows because a server confirms nothing.

    in: the entry up to which each server has everything on disk, the size of the shared log
    out: checkpoints, purges, one warning, and whether the leader has to refuse messages

An entry is purged when every member has it on disk.  The leader does not wait for a member without a message for
`member-timeout` and, while the log is larger than `log-limit`, for members that do not confirm; such a server is filled
later.  At least one other member always has the purged entries.  Reports of servers that are no members are ignored.

Something else may purge the log: an operator of NATS, by mistake.  A server that has not applied the purged entries can
continue only when the first entry is a checkpoint, so the leader appends one, and does not wait for such servers.  If
no other member has applied the purged entries, the leader alone has them, and further trimming loses nothing.
"""

from __future__ import annotations

import attrs
from twisted.logger import Logger

from fyrehose.cluster.peers import Peers
from fyrehose.cluster.role import Role
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.options import shown_size

log = Logger()

#: The leader appends a checkpoint after this many entries or bytes; also when all appends are accepted, unless an
#: earlier checkpoint still waits for members.  A full log accepts no checkpoint, so a checkpoint has to be close to its
#: end: trimming the entries before it makes space for all appends in flight, and for the next checkpoint.
TRIM = 1000
TRIM_BYTES = 16 << 20
#: How often the leader measures the shared log, in seconds.
MEASURE = 5.0
#: For how many seconds after somebody else has purged the shared log the messages of members may still be outdated.
LATE = 1.0
#: The leader warns when the shared log has reached this fraction of its limit.
WARN = 0.5


@attrs.define(eq=False)
class Trimmer:
    """The trimming of the shared log while this server leads.

    :ivar size: the size of the shared log when it was last measured, in bytes
    """

    settings: ReplicationSettings
    peers: Peers
    size: int = attrs.field(default=0, init=False)
    _measured: float = attrs.field(default=float("-inf"), init=False)
    _trimmed: int = attrs.field(default=0, init=False)  #: the last entry before the last checkpoint
    _trimmed_at: int = attrs.field(default=0, init=False)  #: where the journal ended at that entry
    _led: float = attrs.field(default=0.0, init=False)  #: when this server became the leader
    #: When this leader first saw each member in the list; for a member without messages, the timeout counts from then.
    _since: dict[str, float] = attrs.field(factory=dict, init=False)
    _warned: bool = attrs.field(default=False, init=False)
    #: After somebody else has purged the shared log: its first entry, until the first entry is a checkpoint; otherwise
    #: 0.
    _begins: int = attrs.field(default=0, init=False)
    _begun_well: float = attrs.field(default=0.0, init=False)  #: when ``_begins`` was 0 last
    #: Whether the shared log has exceeded its limit and was not trimmed since.
    _exceeded: bool = attrs.field(default=False, init=False)

    def start(self, role: Role, now: float) -> None:
        """Begin to trim, because this server leads from now on."""
        self._trimmed, self._led, self._warned, self._exceeded, self.size = role.applied, now, False, False, 0
        self._trimmed_at, self._begins = role.position, 0
        self._since.clear()

    def trim(self, role: Role, now: float) -> None:
        """If it is due, append a checkpoint, or purge the entries that all members have."""
        self._since = {name: self._since.get(name, now) for name in self._others(role)}
        self._begun_well = self._begun_well if self._begins else now
        grown = role.applied - self._trimmed
        large = grown >= TRIM or role.position - self._trimmed_at >= TRIM_BYTES
        calm = grown > 1 and not role.pending and not role.checkpoints
        headless = self._begins > (role.checkpoints[-1] if role.checkpoints else 0)
        if (large or calm or headless) and role.add_checkpoint():
            self._trimmed, self._trimmed_at = role.applied, role.position
        if role.checkpoints:
            self._purge(role, role.checkpoints[0], now)

    def _purge(self, role: Role, checkpoint: int, now: float) -> None:
        least = now - self.settings.member_timeout
        reported = {name: self.peers.last_of(name).reported for name in self._others(role)}
        waiting = [name for name in reported if self._cannot_begin(name)]
        alone = bool(waiting) and len(waiting) == len(reported)
        if self._exceeded:
            role.purge(reported, [name for name in reported if reported[name] < checkpoint], alone)
            self._exceeded = checkpoint in role.checkpoints
        elif waiting or not role.members.places or self._led < least:  # free places are waited for like silent members
            heard = {name: max(self._since[name], self.peers.last_of(name).heard) for name in reported}
            absent = [name for name in reported if heard[name] <= least or name in waiting]
            role.purge(reported, absent, alone)

    def _others(self, role: Role) -> list[str]:
        """Return the names of the other members."""
        return [name for name in role.members.names if name != self.settings.name]

    def _cannot_begin(self, name: str) -> bool:
        """Return whether a member confirms nothing, because the shared log does not begin with a checkpoint."""
        peer = self.peers.last_of(name)
        return peer.heard > self._begun_well + LATE and peer.applied < self._begins - 1

    def is_due(self, now: float) -> bool:
        """Return whether to measure the shared log now; if so, the next measurement is due after an interval."""
        due = now - self._measured >= MEASURE
        self._measured = now if due else self._measured
        return due

    def measured(self, role: Role, size: int, limit: int = 0, first: int = 1) -> str:
        """Record the size of the shared log.

        :param limit: the limit of the stream that stores the shared log, in bytes; 0: no limit
        :param first: the number of its first entry
        :return: why the leader has to refuse messages; empty if it may accept them
        """
        self.size = size
        self._find_beginning(role, first)
        limit = min(limit or self.settings.log_limit, self.settings.log_limit)
        self._exceeded = size > limit
        if size <= limit * WARN:
            self._warned = False
            return ""
        late = self._late(role)
        if not self._warned:
            self._warned = True
            log.warn(
                "replication: the shared log has grown to {size}, because {who}; beyond {limit} (log-limit) it is "
                "trimmed without waiting for that server, which then has to copy the journal of another one",
                size=shown_size(size),
                limit=shown_size(limit),
                who=late,
            )
        first = role.checkpoints[0] if role.checkpoints else 0
        confirmed = len(self._unconfirmed(role, first)) < len(self._others(role))
        if size <= limit or confirmed:
            return ""
        return f"the shared log has {shown_size(size)}, more than log-limit, and {late}"

    def _find_beginning(self, role: Role, first: int) -> None:
        begins = first if first > max(1, role.trimmed) else 0
        if begins > self._begins:
            log.warn(
                "replication: something else than Fyrehose has purged the shared log up to entry {last}; servers that "
                "start wait for a checkpoint in front, and those that lack something copy another server's journal",
                last=begins - 1,
            )
        self._begins = begins

    def _unconfirmed(self, role: Role, number: int) -> list[str]:
        """Return the other members that have not reported entry *number* as on disk."""
        return [name for name in self._others(role) if self.peers.last_of(name).reported < number]

    def _late(self, role: Role) -> str:
        """Describe for people which servers do not confirm entries."""
        first = role.checkpoints[0] if role.checkpoints else 1
        late = self._unconfirmed(role, first)
        places = role.members.places
        if late:
            return f"{', '.join(map(repr, late))} {'does' if len(late) == 1 else 'do'} not confirm what it has"
        if places:
            return f"no server has taken the {places} {'place' if places == 1 else 'places'} of new members yet"
        return "messages arrive faster than it is trimmed"
