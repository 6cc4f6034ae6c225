"""The gate of a cluster: a synced commit of the leader waits until the shared log has it.

    follow:  the shared log -> FileJournal.apply -> the observer
    lead:    submit -> written here -> hand_over(position, batches) \
                                    -> synced(position)             -> release(position) -> readers, publishers, MARK

:class:`~fyrehose.cluster.member.Member` decides whether this server leads, and which commits are released.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import Logger
from zope.interface import implementer

from fyrehose.cluster.filling import Filler
from fyrehose.errors import ConfigError, Following, Unreplicated
from fyrehose.interfaces import JournalState
from fyrehose.journal.commit import Commit
from fyrehose.journal.exchange import Batches, Handover
from fyrehose.journal.follower import REPLICA, cut_at_mark
from fyrehose.journal.gate import IGate
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.writer import Committed
from fyrehose.observe.meters import ClusterStatus
from fyrehose.standing import ServerRole, Standing

if TYPE_CHECKING:
    from fyrehose.cluster.member import Member

log = Logger()


@implementer(IGate)
@attrs.define(eq=False)
class ReplicatedGate:
    """The gate of the journal of one server of a cluster.

    :ivar name: the name of this server, which is kept in the file REPLICA
    :ivar hand_over: called while this server leads, with whole batches that it has written, as a position and bytes;
        they may not be on disk yet
    :ivar on_synced: called while this server leads, with the position up to which the log is on disk
    :ivar cluster: this server as a member of its cluster; None in tests of the gate alone
    :ivar refusal: why publishes are refused, for people; empty while this server accepts them
    :ivar leading: whether this server leads, so that its journal accepts publishes
    :ivar unfit: why this server is not to lead, as the process or an operator decides; empty: it may
    :ivar unreachable: why publishers cannot reach this server, as it finds out by itself; empty: they can
    :ivar returning: whether the directory was used by a server of a cluster before this start
    """

    name: str
    hand_over: Callable[[int, Sequence[Batches]], object] = lambda position, batches: None
    on_synced: Callable[[int], object] = lambda position: None
    cluster: Member | None = None
    filler: Filler | None = None
    handover: Handover = attrs.field(factory=Handover, init=False)
    refusal: str = attrs.field(default="this server follows, and accepts nothing", init=False)
    leading: bool = attrs.field(default=False, init=False)
    unfit: str = attrs.field(default="", init=False)
    unreachable: str = attrs.field(default="", init=False)
    returning: bool = attrs.field(default=False, init=False)
    #: Whether this server has led since its journal was opened.
    _led: bool = attrs.field(default=False, init=False)
    #: How many records this server has released while it led.
    released: int = attrs.field(default=0, init=False)
    _journal: FileJournal = attrs.field(init=False)
    #: The commits that are on disk here and not released yet, each with the position behind it.
    _waiting: deque[tuple[int, Commit]] = attrs.field(factory=deque, init=False)
    #: Whether publishes are refused at present although this server leads.
    _suspended: bool = attrs.field(default=False, init=False)
    _held: bool = attrs.field(default=False, init=False)  #: whether they are refused because this leader hands over

    # Methods that the journal calls: see IGate.

    def attach(self, journal: FileJournal) -> None:
        self._journal = journal
        self.handover.wrote = self._wrote

    @property
    def accepts(self) -> bool:
        """Return whether this server accepts publishes, because it leads and the shared log answers."""
        return self.leading and not self._suspended

    @property
    def standing(self) -> Standing:
        """Return what this server is in its cluster now."""
        role = ServerRole.LEADER if self._led else ServerRole.FOLLOWER
        if self.cluster is not None and self.cluster.running:
            standing = self.cluster.standing(role)
        else:
            standing = Standing(role, age=inf, caught_up=self.cluster is None and self.leading)
        if self.accepts:
            return standing
        if role is ServerRole.FOLLOWER:
            return standing.refusing(Following(self.refusal, standing.leader))
        return standing.refusing(Unreplicated(self.refusal))

    def status(self) -> ClusterStatus | None:
        """Return the figures of this server as a member of the cluster; None while the journal is not open."""
        return self.cluster.status() if self.cluster is not None and self.cluster.running else None

    def prepare(self) -> Deferred[None]:
        """Check the settings that all servers must share; fill the journal if it ends before the shared log begins."""
        settings = self._journal.settings
        if settings.durability.mode != "batch":
            return fail(ConfigError("a replicated journal needs the durability batch; remove the option durability"))
        if settings.quarantine:
            return fail(
                ConfigError(
                    "a replicated journal cannot be quarantined, because it has to be identical on every server; empty "
                    "the data directory, and copy the journal of another server with `fyrehose journal restore --exact`"
                )
            )
        return succeed(None) if self.filler is None else Deferred.fromCoroutine(self.filler.fill())

    def before_recovery(self) -> list[str]:
        directory = self._journal.directory
        self.returning = (directory / REPLICA).exists()
        return cut_at_mark(directory, self._journal.files)

    def recovered(self) -> None:
        self._journal.files.store(self._journal.directory / REPLICA, f"{self.name}\n".encode())

    def opened(self) -> None:
        if self.cluster is not None:
            self.cluster.start()

    def expect_stop(self) -> None:
        if self.cluster is not None:
            self.cluster.expect_stop()

    def stop(self) -> Deferred[None]:
        return succeed(None) if self.cluster is None else Deferred.fromCoroutine(self.cluster.stop())

    def may_write(self, size: int) -> bool:
        """Return False while a commit of *size* bytes would begin a segment before all earlier commits are released.

        Readers in other processes rely on everything in front of a segment being released.
        """
        writer = self._journal.writer
        return writer.position - writer.base + size <= writer.segment_size or writer.released >= writer.position

    def _wrote(self) -> None:
        """Hand over batches that the writer thread is syncing; ``synced`` hands over those of the reactor's thread."""
        if self.leading and not self._journal.idle:
            self._journal.reactor.callFromThread(self._hand_over)

    def _hand_over(self) -> None:
        if not self.leading:
            return
        for position, batches in self.handover.take():
            self.hand_over(position, batches)

    def synced(self, commit: Commit) -> None:
        """Hand the batches of *commit* over to the shared log, and release *commit* once the log has them."""
        assert isinstance(commit.result, Committed), "only what is on disk waits for the shared log"
        wrote = commit.result.batches or commit.result.retired
        if not wrote:
            self._journal.release(commit)
            return
        self._hand_over()
        self._waiting.append((commit.result.end, commit))
        self._journal.schedule()  # behind this commit, whose place it must not take
        self.on_synced(commit.result.durable)

    def connect(
        self, hand_over: Callable[[int, Sequence[Batches]], object], on_synced: Callable[[int], object]
    ) -> None:
        """Call these functions while this server leads."""
        self.hand_over, self.on_synced = hand_over, on_synced

    def refuse(self, why: str) -> bool:
        """Refuse publishes because of *why*, as a follower; return whether that is another reason than before."""
        before, self.refusal = self.refusal, why
        return before != why

    # Methods that the member calls to lead.

    def lead(self) -> Deferred[None]:
        """Accept publishes from now on; each one is handed over to the shared log, and waits for :meth:`release`."""
        return self._journal.lead().addCallback(self._leads)

    def _leads(self, _: None) -> None:
        self.leading, self._led, self.refusal = True, True, ""
        self._hand_over()
        self.on_synced(self._journal.writer.durable)
        self._journal.accept("this server leads")

    def release(self, position: int) -> None:
        """Acknowledge and deliver all records below *position*, because the shared log has accepted them, too."""
        writer = self._journal.writer
        assert position <= writer.durable, (
            f"{position} is to be released, and the log is on disk up to {writer.durable}"
        )
        writer.released = max(writer.released, position)
        self._release_waiting(position)
        self._journal.mark()
        self._go_on()

    def _release_waiting(self, position: int) -> None:
        while self._waiting and self._waiting[0][0] <= position:
            _, commit = self._waiting.popleft()
            batches = commit.result.batches if isinstance(commit.result, Committed) else ()
            self.released += sum(sum(map(len, runs)) for batch in batches for runs in batch.streams.values())
            self._journal.release(commit)

    def _go_on(self) -> None:
        """Once everything before it is released, schedule the commit that waits because it begins a segment."""
        writer = self._journal.writer
        if self.leading and writer.released >= writer.position:
            self._journal.schedule()

    def suspend(self, reason: str) -> bool:
        """Refuse further publishes until :meth:`resume`; accepted publishes are still released.

        :return: whether publishes were accepted until now
        """
        suspends = self.leading and self._journal.state is JournalState.WRITABLE
        if suspends:
            self.refusal, self._suspended = reason, True
            self._journal.forbid(reason)
        return suspends

    def hold(self, reason: str) -> None:
        """Refuse further publishes until :meth:`unhold`, also if :meth:`resume` is called meanwhile."""
        self.suspend(reason)
        self._held = True

    def unhold(self) -> None:
        """Accept publishes again after :meth:`hold`."""
        self._held = False
        self.resume()

    def resume(self) -> bool:
        """Accept publishes again after :meth:`suspend`; return whether anything has changed."""
        if not self._suspended or self._held:
            return False
        self._suspended, self.refusal = False, ""
        if self.leading:
            self._journal.accept("the shared log answers again")
        return True

    # Methods that the member calls to step down.

    def follow(self, position: int, reason: str) -> bool:
        """Accept no publishes from now on, and release nothing beyond *position*.

        A server that has led ends its journal, which has to be opened again: publishes that are not released now never
        are, and opening it sets aside the bytes that were not released.

        :param reason: why this server stops leading, for people
        :return: whether this server has led
        """
        led, self.leading, self.refusal = self.leading, False, reason
        self._suspended = self._held = False
        if led:
            self.release(min(position, self._journal.writer.durable))
            self._waiting.clear()
            self._journal.end(reason)
        return led
