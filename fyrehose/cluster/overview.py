"""Describe which records each server of a cluster lacks, for ``cluster status``, the metrics and the page.

the leader: when its journal reached which position, the last message of each server -> MemberStatus -> a message to all
a follower: the last message of the leader -> MemberStatus
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import attrs
from attrs.converters import optional

from fyrehose.cluster.peers import MOST_PEERS, ClusterPeer, Peers
from fyrehose.cluster.role import Role, State
from fyrehose.observe.meters import MemberStatus

#: Limit of the number of samples: positions for which the time is remembered at which the journal reached them.
MOST_SAMPLES = 512


@attrs.define(eq=False)
class Growth:
    """The growth of the journal over time, from which follows how many records a server lacks, and since when.

    If there are too many samples, earlier ones are thinned out.  Between two samples, the number of records is
    estimated.
    """

    #: Samples: a position, the number of records before it, and the time when the journal had reached it.
    _samples: list[tuple[int, int, float]] = attrs.field(factory=list, init=False)

    def note(self, position: int, records: int, now: float) -> None:
        """Record that the journal ends at *position* at the time *now*.

        :param records: the number of records before *position*, counted from any beginning
        """
        if self._samples and position <= self._samples[-1][0]:
            return
        if len(self._samples) == MOST_SAMPLES:
            half = MOST_SAMPLES // 2
            self._samples[:half] = self._samples[:half:2]
        self._samples.append((position, records, now))

    def since(self, position: int, now: float) -> tuple[int | None, float | None]:
        """Return the number of records behind *position*, and how many seconds ago the first of them was written.

        :return: None and None if *position* is earlier than all positions that are remembered
        """
        if not self._samples or position < self._samples[0][0]:
            return None, None
        at = bisect_right(self._samples, position, key=itemgetter(0))
        if at == len(self._samples):
            return 0, 0.0
        (begin, before, _), (end, after, time) = self._samples[at - 1 : at + 1]
        part = -(-(after - before) * (end - position) // (end - begin))
        return self._samples[-1][1] - after + part, max(0.0, now - time)


def seen_by_leader(role: Role, peers: Peers, growth: Growth, now: float) -> list[MemberStatus]:
    """Return the status of this server, which leads, and of all others, each with the number of records that it lacks.

    Members that have never sent a message are included; servers that were removed from the cluster are not.
    """
    found = [_itself(role, peers)]
    unheard = {*role.members.names} - peers.others.keys() - {peers.settings.name}
    found += [MemberStatus(name=name, role="not heard", alive=False, heard=None) for name in unheard]
    for peer in peers.others.values():
        if not role.members.admits(peer.name):
            continue
        records, seconds = growth.since(peer.position, now)
        behind = max(0, role.mark - peer.position)
        seconds = None if seconds is None else round(seconds, 1)
        found.append(attrs.evolve(_other(peers, peer, now), behind=behind, records=records, seconds=seconds))
    return sorted(found, key=lambda each: each.name)


def seen_by_follower(role: Role, peers: Peers, now: float) -> list[MemberStatus]:
    """Return all servers as the leader describes them; without a leader, the servers that have sent messages."""
    leader = peers.others.get("" if role.leader is None else role.leader.name)
    if leader is not None and leader.leads and now - leader.heard < peers.settings.takeover_after:
        return parsed(leader.servers)
    found = [_itself(role, peers), *(_other(peers, peer, now) for peer in peers.others.values())]
    return sorted(found, key=lambda each: each.name)


def packed(members: list[MemberStatus]) -> list[dict[str, Any]]:
    """Encode *members* for a message to the other servers."""
    return [attrs.asdict(each) for each in members]


def parsed(listed: object) -> list[MemberStatus]:
    """Decode the table of servers that a leader has sent, without invalid rows."""
    found = []
    for each in listed[:MOST_PEERS] if isinstance(listed, list) else ():
        try:
            found.append(MemberStatus(**{name: convert(each[name]) for name, convert in _CONVERTERS.items()}))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return found


def _itself(role: Role, peers: Peers) -> MemberStatus:
    leads = role.state is State.LEADER
    known: Any = {"behind": 0, "records": 0, "seconds": 0.0} if leads else {}
    return MemberStatus(name=peers.settings.name, role=role.state.value, address=peers.settings.address, **known)


def _other(peers: Peers, peer: ClusterPeer, now: float) -> MemberStatus:
    silent = max(0.0, now - peer.heard)
    return MemberStatus(
        name=peer.name,
        role=_printable(peer.state),
        address=_printable(peer.address),
        alive=silent < peers.settings.takeover_after,
        heard=round(silent, 1),
    )


def _printable(text: object) -> str:
    return re.sub(r"[^\x20-\x7e]", "?", str(text)[:200])


#: Converters for the columns of the table that a leader sends.
_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("name", "role", "address"), _printable),
    **dict.fromkeys(("heard", "seconds"), optional(float)),
    **dict.fromkeys(("behind", "records"), optional(int)),
    "alive": bool,
}
