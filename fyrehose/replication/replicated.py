"""The journal of a server that is one of several: an :class:`IJournal` that follows or leads by itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from twisted.internet.defer import Deferred, fail
from twisted.internet.threads import deferToThread
from twisted.logger import Logger
from zope.interface import implementer

from fyrehose.errors import ConfigError
from fyrehose.interfaces import IJournal, IJournalObserver
from fyrehose.journal.following import ReplicaJournal
from fyrehose.observe.meters import ClusterStatus
from fyrehose.options import shown_size
from fyrehose.replication.filling import Copy, Filler
from fyrehose.replication.member import Member
from fyrehose.replication.peers import Peers
from fyrehose.replication.settings import ReplicationSettings
from fyrehose.replication.shared_log import ISharedLog

log = Logger()


@implementer(IJournal)
@attrs.define(eq=False)
class ReplicatedJournal(ReplicaJournal):
    """A journal that takes part in a cluster from :meth:`open` to :meth:`close`.

    :ivar replication: the options of this server
    :ivar shared_log: connects the servers
    :ivar on_deposed: called with the reason when another server has taken over from this one
    :ivar on_behind: called with the reason when the journal has to be filled, which happens at the next start
    :ivar copy: copies the journal of another server; None: the journal is not filled by itself
    :ivar in_thread: calls a function that blocks
    :ivar incarnation: a random number for this start; None: choose one
    :ivar cluster: this server as a member of its cluster
    """

    replication: ReplicationSettings = attrs.field(kw_only=True)
    shared_log: ISharedLog = attrs.field(kw_only=True)
    on_deposed: Callable[[str], object] = attrs.field(default=lambda reason: None, kw_only=True)
    on_behind: Callable[[str], object] = attrs.field(default=lambda reason: None, kw_only=True)
    copy: Copy | None = attrs.field(default=None, kw_only=True)
    in_thread: Callable[..., Deferred[int]] = attrs.field(default=deferToThread, kw_only=True)
    incarnation: int | None = attrs.field(default=None, kw_only=True)
    cluster: Member = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.member = self.replication.name
        random = int.from_bytes(os.urandom(8), "little") if self.incarnation is None else self.incarnation
        self.cluster = Member(
            self.reactor,
            self,
            self.shared_log,
            self.replication,
            random,
            self.on_deposed,
            self.on_behind,
            can_fill=self.copy is not None,
            jitter=random % 1000 / 1000,
        )

    def open(self, observer: IJournalObserver) -> Deferred[Mapping[str, int]]:
        """Open the journal of this server, and begin to follow the shared log."""
        if self.settings.durability.mode != "batch":
            return fail(ConfigError("a replicated journal needs the durability batch; remove the option durability"))
        if self.settings.quarantine:
            return fail(
                ConfigError(
                    "a replicated journal cannot be quarantined, because it has to be identical on every server; empty "
                    "the data directory, and copy the journal of another server with `fyrehose journal backup`"
                )
            )
        filled: Deferred[Any] = Deferred.fromCoroutine(self._fill())
        return filled.addCallback(lambda _: super(ReplicatedJournal, self).open(observer)).addCallback(self._begin)

    async def _fill(self) -> None:
        if self.copy is not None:
            cluster = self.cluster
            peers = Peers(self.replication, cluster.incarnation)
            filler = Filler(self.reactor, self.directory, self.shared_log, peers, self.copy, self.in_thread, self.files)
            await filler.fill()

    def _begin(self, ends: Mapping[str, int]) -> Mapping[str, int]:
        if self.replication.ahead:
            log.warn(
                'replication: acknowledge = "local": messages are acknowledged when they are on the disk of the leader '
                "alone, and the loss of the leader may lose up to {most} of them",
                most=shown_size(self.replication.ahead),
            )
        self.cluster.start()
        return ends

    @property
    def caught_up(self) -> bool:
        """Return whether readers find here what the leader has acknowledged, except for the last moment."""
        return self.leading or self.cluster.caught_up

    @property
    def leader(self) -> str | None:
        """Return the address of the server that leads, as its configuration has it; empty if it is unknown."""
        return self.cluster.leader_address if self.cluster.running else ""

    def cluster_status(self) -> ClusterStatus | None:
        """Return the figures of this server as a member; None while the journal is not open."""
        return self.cluster.status() if self.cluster.running else None

    def close(self) -> Deferred[None]:
        stopped: Deferred[Any] = Deferred.fromCoroutine(self.cluster.stop()).addErrback(self._broke)
        return stopped.addCallback(lambda _: super(ReplicatedJournal, self).close())
