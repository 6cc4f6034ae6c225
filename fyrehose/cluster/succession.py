"""Decide whether this server should lead, and let another server take over from it in good order.

in: what this server can do, messages of the other servers, requests of operators
out: why this server should not lead, which server takes over, the gate's refusal meanwhile

Safety does not depend on this module: whichever server takes over does so by an append under a condition (rule 4).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import attrs
from twisted.internet.task import deferLater
from twisted.logger import Logger

from fyrehose.cluster.gate import ReplicatedGate
from fyrehose.cluster.overview import Growth
from fyrehose.cluster.peers import ClusterPeer, Peers
from fyrehose.cluster.role import Role, State
from fyrehose.errors import FyrehoseError
from fyrehose.journal.journal import FileJournal

log = Logger()

#: A server that was not heard for this long, or that lacks records for longer, takes over from no leader, in seconds.
BEHIND_S = 1.0
#: How long a leader waits for its appends, and then for its successor, before it goes on as the leader, in seconds.
HANDOVER_S = 2.0
#: A disk is slow while its syncs take this long, in seconds, for so many looks, four in a second; and for so many looks
#: after that, so that the lead does not move to and fro.
SLOW_S, SLOW_LOOKS, LASTING_LOOKS = 1.0, 20, 120
#: How often a leader that should not lead looks for a successor, in seconds.
RETRY_S = 1.0


@attrs.define(eq=False)
class Succession:
    """Choose who leads after this server, and say why this server should not lead.

    :ivar say: sends this server's message to the others
    :ivar leaving: whether this leader has told the others to take over, so that it must not believe to lead alone
    :ivar successor: the name of the server that takes over before any other one does; empty: any
    """

    reactor: Any
    journal: FileJournal
    gate: ReplicatedGate
    peers: Peers
    growth: Growth
    say: Callable[[], object]
    leaving: bool = attrs.field(default=False, init=False)
    successor: str = attrs.field(default="", init=False)
    _syncing_since: float = attrs.field(default=inf, init=False)  #: when the sync under way began
    _took: float = attrs.field(default=0.0, init=False)  #: how long the last sync took
    _slow_looks: int = attrs.field(default=0, init=False)  #: how many looks in a row have found the disk slow
    _slow_for: int = attrs.field(default=0, init=False)  #: for how many further looks it counts as slow
    _retry_at: float = attrs.field(default=0.0, init=False)  #: when to look for a successor again

    @property
    def unable(self) -> str:
        """Return why this server leads only if no other can; empty if it takes over like any other."""
        full = "its disk is full" if self.journal.lacks_room else ""
        return self.gate.unfit or full or self.gate.unreachable or self.journal.why_not_ready()

    @property
    def unfit(self) -> str:
        """Return why another server should lead rather than this one; empty if this one may."""
        return self.unable or ("its disk is slow" if self._slow_looks or self._slow_for else "")

    async def sync(self) -> int:
        """Sync the durable mark, and note how long that takes; return the mark."""
        self._syncing_since = self.reactor.seconds()
        mark = await self.journal.note()
        self._took, self._syncing_since = self.reactor.seconds() - self._syncing_since, inf
        return mark

    def look(self) -> None:
        """Judge the disk by its last sync, and by the one under way."""
        took = max(self._took, self.reactor.seconds() - self._syncing_since)
        self._slow_looks = self._slow_looks + 1 if took >= SLOW_S else 0
        self._slow_for = LASTING_LOOKS if self._slow_looks >= SLOW_LOOKS else max(0, self._slow_for - 1)

    def must_hand_over(self) -> bool:
        """Return whether this leader should look for a successor now, because it is unfit."""
        now = self.reactor.seconds()
        if not (self.unable or self._slow_for) or now < self._retry_at:
            return False
        self._retry_at = now + RETRY_S
        return True

    def choose(self, role: Role, name: str = "") -> str:
        """Return the server that can take over at once: the one that lacks least or, if given, the server *name*.

        :raises FyrehoseError: no server can, or that one cannot; the text says why
        """
        now = self.reactor.seconds()
        why = {peer.name: self._why_not(role, peer, now) for peer in self.peers.others.values()}
        fit = [each for each in why if not why[each] and name in ("", each)]
        if not fit:
            whys = [f"{each}: {why[each]}" for each in sorted(why) if name in ("", each)] or ["it was not heard"]
            raise FyrehoseError(f"{name or 'no other server'} can take over at present ({'; '.join(whys)})")
        return max(fit, key=lambda each: self.peers.last_of(each).position)

    def _why_not(self, role: Role, peer: ClusterPeer, now: float) -> str:
        """Return why *peer* cannot take over from this leader; empty if it can."""
        if not role.members.admits(peer.name):
            return "it is no member"
        if now - peer.heard > BEHIND_S:
            return f"it was not heard for {now - peer.heard:.1f} s"
        lag = self.growth.since(peer.position, now)[1]
        return peer.unfit or ("" if lag is not None and lag <= BEHIND_S else "it is behind")

    def _settles(self) -> bool:
        """Return whether publishes wait for the disk, which has room for them."""
        return self.journal.unsettled and not self.journal.lacks_room

    async def hand_over(self, role: Role, why: str, name: str = "") -> None:
        """Let another server lead: refuse publishes, settle those under way, then tell the others to take over.

        If no server takes over in time, this leader accepts publishes again.

        :param name: the server that is to lead; empty: the one that lacks least
        :raises FyrehoseError: no server can take over
        """
        self.successor = self.choose(role, name)
        reason = f"{self.peers.settings.name} hands over to {self.successor}, because {why}"
        log.info("replication: {reason}", reason=reason)
        self.gate.hold(reason)
        deadline = self.reactor.seconds() + HANDOVER_S
        while (role.pending or self._settles()) and self.reactor.seconds() < deadline:
            await deferLater(self.reactor, 0.01)
        self.leaving, deadline = not role.pending, self.reactor.seconds() + HANDOVER_S
        while self.leaving and role.state is State.LEADER and self.reactor.seconds() < deadline:
            self.say()
            await deferLater(self.reactor, 0.1)
        if role.state is State.LEADER:
            log.warn("replication: {name} has not taken over; this server leads on", name=self.successor)
            self.leaving, self.successor = False, ""
            self.gate.unhold()
