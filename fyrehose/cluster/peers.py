"""The messages that the servers of a cluster send each other four times a second, by way of NATS.

    in: messages of other servers
    out: which server leads; for each server its last message, the entries that it has on disk, and its address

Messages may be lost, repeated or late.  Entries that a server has reported as on disk stay there, unless the server
loses its disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import attrs
from twisted.logger import Logger

from fyrehose.cluster.entries import EntryWriter
from fyrehose.cluster.members import UNLISTED
from fyrehose.cluster.role import Role, State
from fyrehose.cluster.settings import ReplicationSettings, server_name
from fyrehose.errors import ConfigError
from fyrehose.journal.format import UNKNOWN

log = Logger()

#: Limit of the number of servers with another journal that are remembered, so that each is logged once.
MOST_STRANGERS = 100
#: Limit of the number of servers that are remembered; those that were silent for the longest time are forgotten.
MOST_PEERS = 100
#: Limit of the size of a message, in bytes; the table of all servers takes at most a quarter of that.
MAX_MESSAGE = 64 << 10
#: How much the clocks of two servers may differ in speed, as a fraction.
DRIFT = 0.01


def _text(value: object) -> str:
    return str(value or "")


def _identity(text: Any) -> bytes:
    return bytes.fromhex(text or "") or UNKNOWN


@attrs.frozen(kw_only=True)
class ClusterPeer:
    """The last message of another server of the cluster.

    :ivar heard: when the message arrived, by the reactor's clock
    :ivar incarnation: the random number that the server chose at its start
    :ivar applied: the number of the last entry of the shared log that the server has processed
    :ivar reported: the number of the last entry up to which the server has everything on disk
    :ivar position: the durable mark of the server
    :ivar asked: when it sent the message, by its own clock
    :ivar current: if it leads, a time for each incarnation of another server, by that server's clock: what was
        acknowledged before that time is in the entries up to *applied*; not checked yet: see :meth:`answer_to`
    :ivar identity, end, chain: the identity of its journal, the position where the journal ends, and the checksum there
    :ivar address: where it accepts messages by HTTP, as its configuration has it; empty: unknown
    :ivar journal: the URL where its journal can be copied; empty: there is none
    :ivar leaving: whether it leads no longer, so that another server may take over at once
    :ivar successor: if so, the server that takes over before any other; empty: any
    :ivar unfit: why it should not lead; empty: it may
    :ivar servers: if it leads, its table of all servers, not checked yet: see :func:`.overview.parsed`
    :ivar rival: the incarnation of another server with the same name, if the server has received a message of one
    """

    heard: float
    name: str = attrs.field(converter=server_name)
    incarnation: int = attrs.field(converter=int)
    state: str = attrs.field(converter=str)
    epoch: int = attrs.field(converter=int)
    applied: int = attrs.field(default=0, converter=int)
    reported: int = attrs.field(default=0, converter=int)
    position: int = attrs.field(default=0, converter=int)
    asked: float = attrs.field(default=-inf, converter=float)
    current: object = None
    identity: bytes = attrs.field(default=b"", converter=_identity)
    end: int = attrs.field(default=0, converter=int)
    chain: int = attrs.field(default=0, converter=int)
    address: str = attrs.field(default="", converter=_text)
    journal: str = attrs.field(default="", converter=_text)
    leaving: bool = attrs.field(default=False, converter=bool)
    successor: str = attrs.field(default="", converter=_text)
    unfit: str = attrs.field(default="", converter=_text)
    servers: object = None
    rival: object = None

    @classmethod
    def unpack(cls, message: bytes, now: float) -> ClusterPeer | None:
        """Decode a message that arrived at *now*; return None if it is not the message of a server of a cluster."""
        if len(message) > MAX_MESSAGE:
            return None
        try:
            said = json.loads(message)
            known = {field.name: said[field.name] for field in attrs.fields(cls) if field.name in said}
            return cls(**{**known, "heard": now})
        except (ValueError, TypeError, OverflowError, RecursionError):
            return None

    @property
    def writer(self) -> EntryWriter:
        """Return the name and the incarnation of the other server, as in entries of the shared log."""
        return EntryWriter(self.name, self.incarnation)

    def answer_to(self, writer: EntryWriter) -> float:
        """Return the time in ``current`` for *writer*; inf if there is none, because its messages have not arrived."""
        time = self.current.get(str(writer.incarnation)) if isinstance(self.current, dict) else None
        return time if isinstance(time, float) else inf

    @property
    def leads(self) -> bool:
        return self.state == State.LEADER.value


#: In place of the last message of a server that has sent none.
UNHEARD = ClusterPeer(heard=-inf, name="unheard", incarnation=0, state="", epoch=0)


@attrs.define(eq=False)
class Peers:
    """The other servers of a cluster, as their messages describe them.

    :ivar incarnation: the random number that this server chose at its start
    """

    settings: ReplicationSettings
    incarnation: int
    others: dict[str, ClusterPeer] = attrs.field(factory=dict, init=False)
    #: The incarnation of another server with this server's name, if one has sent a message.
    _rival: int = attrs.field(default=0, init=False)
    _left: set[EntryWriter] = attrs.field(factory=set, init=False)  #: leaders that have handed over
    _strangers: set[EntryWriter] = attrs.field(factory=set, init=False)  #: servers whose journals differ from this one

    @property
    def jitter(self) -> float:
        """Return a number from 0 to 1, by which two servers differ, so that they rarely try to take over together."""
        return self.incarnation % 1000 / 1000

    @property
    def writer(self) -> EntryWriter:
        """Return the name and the incarnation of this server, as in its entries of the shared log."""
        return EntryWriter(self.settings.name, self.incarnation)

    def pack(
        self,
        role: Role,
        leaving: bool,
        refusal: str = "",
        servers: Sequence[Mapping[str, Any]] = (),
        confirmed: float = -inf,
        more: Mapping[str, object] | None = None,
        *,
        now: float,
    ) -> bytes:
        """Encode the message of this server to the others, which is sent at the time *now*.

        :param leaving: whether this server leads no longer, so that another server may take over at once
        :param refusal: why this server refuses publishers although it leads; empty: it accepts them
        :param servers: if it leads, what it knows of all servers, see :mod:`fyrehose.cluster.overview`
        :param confirmed: if it leads, a time at which no other server did
        :param more: further fields: ``successor``, ``unfit``, and ``answer``, the answer of this leader to the last
            request of an operator
        """
        said = {
            "name": self.settings.name,
            "incarnation": self.incarnation,
            "state": role.state.value,
            "epoch": role.validity.epoch,
            "applied": role.applied,
            "reported": role.reported,
            "position": role.mark,
            "identity": role.identity.hex(),
            "end": role.position,
            "chain": role.chain,
            "address": self.settings.address,
            "journal": self.settings.journal,
            "leaving": leaving,
            "asked": now,
            **(more or {}),
        }
        if role.members is not UNLISTED:
            said["listed"] = role.members.pack().decode()
        if role.state is State.LEADER:
            # Servers that are down send no messages, so only the leader can report them.
            said |= {"refusal": refusal, "servers": list(servers), "current": self._answers(confirmed)}
        if self._rival:
            said["rival"] = self._rival
        return json.dumps(said).encode()

    def _answers(self, confirmed: float) -> dict[str, float]:
        """Return the time *confirmed* by the clock of each other server, at the earliest, by its incarnation."""
        since = [(peer, confirmed - peer.heard) for peer in self.others.values() if peer.asked + confirmed > -inf]
        return {str(peer.incarnation): peer.asked + time - DRIFT * abs(time) for peer, time in since}

    def hear(self, message: bytes, now: float, role: Role | None = None) -> ClusterPeer | None:
        """Record *message*, which another server may have sent.

        :param role: the role of this server; None before its journal is open
        :return: the other server; None if the message is of this server, of no server, or of a server with another
            journal
        :raises ConfigError: another server that is alive has the same name
        """
        peer = ClusterPeer.unpack(message, now)
        if peer is None:
            return None
        if peer.name == self.settings.name:
            self._hear_rival(peer)
            return None
        theirs = peer.identity, peer.end, peer.chain
        if role is not None and _differs(theirs, (role.identity, role.position, role.chain)):
            self._refuse(peer.writer, peer.identity, role.identity)
            return None
        if peer.name not in self.others and len(self.others) == MOST_PEERS:
            del self.others[min(self.others, key=lambda each: self.others[each].heard)]
        self.others[peer.name] = peer
        if peer.leaving:
            self._left.add(peer.writer)
        return peer

    def _refuse(self, stranger: EntryWriter, theirs: bytes, ours: bytes) -> None:
        """Ignore a server whose journal differs from this one (rule 11)."""
        self.others.pop(stranger.name, None)
        if stranger not in self._strangers and len(self._strangers) < MOST_STRANGERS:
            self._strangers.add(stranger)
            log.warn(
                "replication: what {name} says is ignored, because its journal {theirs} differs from ours, {ours}",
                name=stranger.name,
                theirs=theirs.hex(),
                ours=ours.hex(),
            )

    def _hear_rival(self, peer: ClusterPeer) -> None:
        """Note that another server has this server's name.

        A late message from before this server's restart looks the same, so the other server counts only if its message
        shows that it has received messages of this start.
        """
        if peer.incarnation == self.incarnation:
            return
        self._rival = peer.incarnation
        if peer.rival == self.incarnation:
            raise ConfigError(
                f"another server of the cluster has the same name, {self.settings.name!r}; give each a name of its own"
            )

    def has_left(self, writer: EntryWriter) -> bool:
        """Return whether *writer* has announced that it stops; late messages from before do not change that."""
        return writer in self._left

    def last_of(self, name: str) -> ClusterPeer:
        """Return the last message of the server *name*; :data:`UNHEARD` if there is none."""
        return self.others.get(name, UNHEARD)

    @property
    def stranger(self) -> str:
        """Return the name of a server with another journal than this one, or "" if none has sent a message."""
        return next((each.name for each in self._strangers), "")

    def heard_since(self, time: float) -> list[ClusterPeer]:
        """Return the servers that have sent a message after *time*."""
        return [peer for peer in self.others.values() if peer.heard > time]


def _differs(one: tuple[bytes, int, int], other: tuple[bytes, int, int]) -> bool:
    """Return whether two journals cannot be copies of one another; each is (identity, end, chain at the end)."""
    if UNKNOWN in (one[0], other[0]):
        return False  # one of the journals is empty
    return one[0] != other[0] or (one[1] == other[1] and one[2] != other[2])
