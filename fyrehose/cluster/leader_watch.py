"""Watch the leader, as a follower: how far it has announced the shared log, and whether it has fallen silent.

in: messages of the leader, whether NATS has its connection, which entries are applied
out: whether to read or to ask NATS, since when all acknowledged records are here, whether to take over

How old the records here may be is measured by this server's own clock alone: each message of this server says its time,
and the leader answers with a time up to which it knows all records.  So the way of both messages counts as age, and so
does a pause of either server.
"""

from __future__ import annotations

from math import inf

import attrs

from fyrehose.cluster.appends import GONE
from fyrehose.cluster.entries import EntryWriter
from fyrehose.cluster.peers import ClusterPeer, Peers
from fyrehose.cluster.role import Role

#: After how many seconds of silence a follower asks NATS whether the leader's process is still connected.
ASK = 0.5
#: How long other servers wait for the successor that a leader has named, in seconds.
HEIR = 0.5
#: Two servers seldom take over at the same time, because each waits up to this much longer, in seconds.
SPREAD = 0.25


@attrs.define(eq=False)
class LeaderWatch:
    """What a follower knows of its leader.

    A leader counts as heard only while it has not handed over.

    :ivar heard: when the leader was last heard
    :ivar current: all records that were acknowledged before this time of this server's clock are in this journal
    """

    peers: Peers
    heard: float = attrs.field(default=0.0, init=False)
    current: float = attrs.field(default=-inf, init=False)
    #: The number of the last entry, as the leader says.
    _announced: int = attrs.field(default=0, init=False)
    #: (number, time): ``current`` becomes this time once the entry with this number is applied.
    _awaited: tuple[int, float] | None = attrs.field(default=None, init=False)
    #: The leader that NATS has last reported as not connected.
    _gone: EntryWriter | None = attrs.field(default=None, init=False)

    def begin(self, now: float) -> None:
        """Wait for the leader from *now* on."""
        self.heard = now

    def hear(self, peer: ClusterPeer) -> None:
        """Take note of a message of the leader, which says how far the shared log reached, and at which time."""
        if not self.peers.has_left(peer.writer):
            self.heard = peer.heard
        self._announced = max(self._announced, peer.applied)
        current = peer.answer_to(self.peers.writer)
        if self._awaited is None and current <= peer.heard:  # an answer cannot be to a question of the future
            self._awaited = peer.applied, current

    def hear_entries(self, writer: EntryWriter, now: float) -> None:
        """Take note of new entries of the leader *writer*, which may arrive before its first message."""
        if not self.peers.has_left(writer):
            self.heard = now

    def applied(self, role: Role) -> None:
        """Update ``current`` if this server has applied the entries that the leader has announced."""
        if self._awaited is not None and role.applied >= self._awaited[0] and role.mark >= role.position:
            self.current, self._awaited = max(self.current, self._awaited[1]), None

    def has_all(self, role: Role) -> bool:
        """Return whether this server has applied every entry that the leader has announced."""
        return role.applied >= self._announced

    def must_ask(self, now: float) -> bool:
        """Return whether to ask NATS for the connection of the leader."""
        return now - self.heard > ASK

    def found(self, leader: EntryWriter, connected: bool) -> None:
        """Take note of the answer of NATS, which may be wrong: it only shortens the wait before a take-over."""
        self._gone = None if connected else leader

    def why_take_over(self, role: Role, now: float, unfit: str = "") -> str:
        """Return why this server may take over, which it does after a long enough silence; empty if it may not.

        :param unfit: why this server should not lead, so that it lets all others try first; empty: it may
        """
        silent = now - self.heard
        last = 2 * self.peers.settings.takeover_after if unfit else 0.0
        if silent <= self._patience(role.leader) + last:
            return ""
        gone = " and none is connected to NATS" if role.leader == self._gone is not None else ""
        return f"no leader was heard for {silent:.1f} s{gone}"

    def _patience(self, leader: EntryWriter | None) -> float:
        """Return how many seconds without a message of *leader* this server waits before it takes over."""
        spread = self.peers.jitter * SPREAD
        if leader is not None and self.peers.has_left(leader):
            last = self.peers.last_of(leader.name)
            heir = last.successor if last.leaving else ""
            return 0.0 if heir == self.peers.settings.name else spread + (HEIR if heir else 0.0)
        if leader is not None and leader == self._gone:
            return GONE + spread
        return self.peers.settings.takeover_after + spread
