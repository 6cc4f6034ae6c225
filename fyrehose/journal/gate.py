"""The gate decides when a synced commit is released: from then on it may be acknowledged, delivered and read.

The journal's own work on a commit ends when it is synced.  :class:`LocalGate` releases the commit at once.  The gate of
a cluster (:mod:`fyrehose.cluster.gate`) waits until the shared log has the commit, too.

    commit -> synced -> Gate.synced(commit) -> FileJournal.release(commit): readers see it, publishers are acknowledged
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import Deferred, succeed
from zope.interface import Attribute, Interface, implementer

from fyrehose.journal.commit import Commit
from fyrehose.journal.exchange import Handover
from fyrehose.observe.meters import ClusterStatus
from fyrehose.standing import Standing

if TYPE_CHECKING:
    from fyrehose.journal.journal import FileJournal


class IGate(Interface):
    """The part of a journal that decides when a synced commit is released and whether publishes are accepted."""

    standing = Attribute("The Standing of this server as its cluster decides it: its own disk is left to the journal.")
    handover = Attribute(
        "The Handover that the writer fills for the other servers of a cluster; None without a cluster."
    )

    unfit = Attribute("Why this server is not to lead its cluster, for people; empty: it may.")

    def attach(journal: Any) -> None:
        """Become the gate of *journal*, which calls this once."""

    def prepare() -> Deferred[None]:
        """Prepare for opening the journal, for example by copying another server's; fail if it must stay closed."""

    def before_recovery() -> list[str]:
        """Prepare the journal's locked directory; return messages for the log (called in the writer thread)."""

    def recovered() -> None:
        """Note that recovery has succeeded (called in the writer thread)."""

    def opened() -> None:
        """Note that the journal is open."""

    may_write = Attribute(
        "A function that returns whether so many bytes may be written now; if not, the gate schedules commits again "
        "later.  It is called in the thread that writes.  None: they always may."
    )

    def synced(commit: Commit) -> None:
        """Release *commit*, which is on disk, at once or later; commits are released in the order of these calls."""

    def expect_stop() -> None:
        """Prepare to stop: begin it in a few seconds, unless :meth:`stop` is called before."""

    def stop() -> Deferred[None]:
        """Prepare for closing the journal, which accepts publishes until the returned Deferred fires."""

    def status() -> ClusterStatus | None:
        """Return the figures of this server as a member of its cluster; None outside a cluster or before opening."""


@implementer(IGate)
@attrs.define(eq=False)
class LocalGate:
    """The gate of a server without a cluster: releases each commit as soon as it is synced."""

    standing = Standing()
    unfit: str = ""
    handover: Handover | None = None
    may_write = None
    synced: Callable[[Commit], None] = attrs.field(init=False)

    def attach(self, journal: FileJournal) -> None:
        self.synced = journal.release

    def prepare(self) -> Deferred[None]:
        return succeed(None)

    def expect_stop(self) -> None:
        """Do nothing: this server waits only for its own disk, which does not take long."""

    def before_recovery(self) -> list[str]:
        return []

    def recovered(self) -> None:
        """Do nothing, because this gate waits for no other server."""

    def opened(self) -> None:
        """Do nothing, because this gate waits for no other server."""

    def stop(self) -> Deferred[None]:
        return succeed(None)

    def status(self) -> ClusterStatus | None:
        return None
