"""Decide when the leader trims the shared log, and what happens when it grows because a server does not confirm.

    in: what each server has reported, the size of the shared log
    out: checkpoints, purges, one warning, and whether the leader has to refuse messages

An entry is purged when every member has it on disk.  A server that was not heard for `member-timeout` is not waited
for, nor is any that does not confirm while the log is larger than `log-limit`; such a server is filled later.  One
other server, at least, always has what is purged.
"""

from __future__ import annotations

import attrs
from twisted.logger import Logger

from fyrehose.options import shown_size
from fyrehose.replication.peers import ClusterPeer, Peers
from fyrehose.replication.role import Role
from fyrehose.replication.settings import ReplicationSettings

log = Logger()

#: The leader appends a checkpoint after this many entries or bytes, or when everything is accepted.  A log that is full
#: takes none, so there must be one within it: what is trimmed in front of it makes room for all that is in flight, and
#: for the next checkpoint.
TRIM = 1000
TRIM_BYTES = 16 << 20
#: How often the leader measures the shared log, in seconds.
MEASURE = 5.0
#: The leader warns at this part of the limit.
WARN = 0.5


@attrs.define(eq=False)
class Trimmer:
    """Trims the shared log while this server leads.

    :ivar size: of the shared log when it was measured last, in bytes
    :ivar limit: the size beyond which servers that do not confirm are not waited for, in bytes
    """

    settings: ReplicationSettings
    peers: Peers
    size: int = attrs.field(default=0, init=False)
    limit: int = attrs.field(init=False)
    _measured: float = attrs.field(default=float("-inf"), init=False)
    _trimmed: int = attrs.field(default=0, init=False)  #: the last entry before the last checkpoint
    _trimmed_at: int = attrs.field(default=0, init=False)  #: where the journal ended there
    _led: float = attrs.field(default=0.0, init=False)  #: when this server became the leader
    _warned: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.limit = self.settings.log_limit

    def start(self, role: Role, now: float) -> None:
        """Begin, because this server leads from now on."""
        self._trimmed, self._led, self._warned, self.size = role.applied, now, False, 0
        self._trimmed_at = role.position

    def trim(self, role: Role, now: float) -> None:
        """Append a checkpoint, or purge what everybody has, if it is time for it."""
        grown = role.applied - self._trimmed
        large = grown >= TRIM or role.position - self._trimmed_at >= TRIM_BYTES
        if (large or (grown > 1 and not role.pending)) and role.add_checkpoint():
            self._trimmed, self._trimmed_at = role.applied, role.position
        if role.checkpoint is None:
            return
        least = now - self.settings.member_timeout
        heard = self.peers.heard_since(least)
        if self.size > self.limit:
            role.purge([peer.reported for peer in heard if peer.reported >= role.checkpoint])
        elif len(heard) + 1 >= self.settings.members or self._led < least:
            role.purge([peer.reported for peer in heard])

    def is_due(self, now: float) -> bool:
        """Return whether the shared log is to be measured now, which then counts as done."""
        due = now - self._measured >= MEASURE
        self._measured = now if due else self._measured
        return due

    def measured(self, role: Role, size: int, limit: int = 0) -> str:
        """Record the size of the shared log.

        :param limit: of the engine that stores it; 0: none
        :return: why the leader has to refuse messages; empty if it may accept them
        """
        self.size = size
        self.limit = limit = min(limit or self.settings.log_limit, self.settings.log_limit)
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
        confirmed = any(peer.reported >= (role.checkpoint or 0) for peer in self.peers.others.values())
        if size <= limit or confirmed:
            return ""
        return f"the shared log has {shown_size(size)}, more than log-limit, and {late}"

    def _late(self, role: Role) -> str:
        """Return which servers do not confirm, for people."""
        checkpoint = role.checkpoint or 0
        late: list[ClusterPeer] = [peer for peer in self.peers.others.values() if peer.reported < checkpoint]
        missing = self.settings.members - 1 - len(self.peers.others)
        if late:
            names = ", ".join(repr(peer.name) for peer in late)
            return f"{names} {'does' if len(late) == 1 else 'do'} not confirm what it has"
        if missing > 0:
            return f"{missing} of {self.settings.members} servers {'was' if missing == 1 else 'were'} not heard"
        return "messages arrive faster than it is trimmed"
