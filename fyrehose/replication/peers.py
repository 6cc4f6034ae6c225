"""The messages between the servers of a cluster, four times a second, through the shared log's engine.

    in: messages of other servers      out: who leads, when each was heard, what it has on disk, where it is reached

Messages may be lost, repeated or late.  What a server has reported stays true, as long as its disk is not lost.
"""

from __future__ import annotations

import json
from typing import Any

import attrs

from fyrehose.errors import ConfigError
from fyrehose.replication.entries import EntryWriter
from fyrehose.replication.role import Role, State
from fyrehose.replication.settings import ReplicationSettings


@attrs.define(eq=False)
class ClusterPeer:
    """The last message of another server of the cluster.

    :ivar heard: when, by the reactor's clock
    :ivar said: its members, see :meth:`Peers.pack`
    """

    name: str
    heard: float
    said: dict[str, Any]

    @property
    def writer(self) -> EntryWriter:
        """Return it as the writer of entries of the shared log."""
        return EntryWriter(self.name, int(self.said["incarnation"]))

    @property
    def leads(self) -> bool:
        return bool(self.said.get("state") == State.LEADER.value)

    @property
    def journal(self) -> str:
        """Return the URL where its journal can be copied; empty if there is none."""
        return str(self.said.get("journal") or "")

    @property
    def position(self) -> int:
        """Return its durable mark."""
        return int(self.said.get("position", 0))

    @property
    def reported(self) -> int:
        """Return up to which entry of the shared log it has everything on disk."""
        return int(self.said.get("reported", 0))


@attrs.define(eq=False)
class Peers:
    """The other servers of a cluster, by what they have said.

    :ivar incarnation: the random number of this start of this server
    """

    settings: ReplicationSettings
    incarnation: int
    others: dict[str, ClusterPeer] = attrs.field(factory=dict, init=False)
    #: The incarnation of another server with this server's name, if one was heard.
    _rival: int = attrs.field(default=0, init=False)
    _left: set[EntryWriter] = attrs.field(factory=set, init=False)  #: leaders that have handed over

    def pack(self, role: Role, leaving: bool) -> bytes:
        """Return the message of this server.

        :param leaving: whether it stops, so that another server may take over at once
        """
        said = {
            "name": self.settings.name,
            "incarnation": self.incarnation,
            "state": role.state.value,
            "epoch": role.validity.epoch,
            "applied": role.applied,
            "reported": role.reported,
            "position": role.mark,
            "address": self.settings.address,
            "journal": self.settings.journal,
            "leaving": leaving,
        }
        if self._rival:
            said["rival"] = self._rival
        return json.dumps(said).encode()

    def hear(self, message: bytes, now: float) -> ClusterPeer | None:
        """Record the message of another server; return None if it is one of this server, or of no server.

        :raises ConfigError: another server that is alive has the same name
        """
        try:
            said = json.loads(message)
            name, incarnation = str(said["name"]), int(said["incarnation"])
            _ = int(said["epoch"]), str(said["state"]), int(said.get("reported", 0)), int(said.get("position", 0))
        except (ValueError, KeyError, TypeError):
            return None
        if name == self.settings.name:
            self._hear_rival(incarnation, said)
            return None
        self.others[name] = peer = ClusterPeer(name, now, said)
        if said.get("leaving"):
            self._left.add(peer.writer)
        return peer

    def _hear_rival(self, incarnation: int, said: dict[str, Any]) -> None:
        """Notice another server with this server's name.

        A late message of this server's previous start looks the same, so only one that answers this start counts.
        """
        if incarnation == self.incarnation:
            return
        self._rival = incarnation
        if said.get("rival") == self.incarnation:
            raise ConfigError(f"another server of the cluster has the same name, {self.settings.name!r}")

    def has_left(self, writer: EntryWriter) -> bool:
        """Return whether *writer* has handed over; an earlier message of it may arrive later."""
        return writer in self._left

    def address_of(self, name: str | None) -> str:
        """Return the address of a server, as its configuration has it; empty if it is unknown."""
        peer = self.others.get(name or "")
        return "" if peer is None else str(peer.said.get("address") or "")

    def position_of(self, name: str) -> int:
        """Return the durable mark of a server; 0 if it is unknown."""
        return self.others[name].position if name in self.others else 0

    def heard_since(self, time: float) -> list[ClusterPeer]:
        """Return the servers that were heard after *time*."""
        return [peer for peer in self.others.values() if peer.heard > time]
