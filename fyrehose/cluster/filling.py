"""Fill a journal that ends before the shared log begins, by copying the durable part of another server's journal.

    in: the end of this journal, the first entry of the shared log, the journals that other servers serve
    out: a longer journal

The journal is filled before it is opened.  Only the durable part is copied, and only if this journal is empty, or equal
to the beginning of the other journal.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import attrs
from twisted.internet import defer
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.cluster.entries import EntryKind, LogEntry
from fyrehose.cluster.peers import ClusterPeer, Peers
from fyrehose.cluster.shared_log import ISharedLog, Unavailable
from fyrehose.errors import ConfigError, JournalError
from fyrehose.journal import scan
from fyrehose.journal.files import Files
from fyrehose.journal.follower import REPLICA, cut_at_mark
from fyrehose.journal.format import UNKNOWN
from fyrehose.journal.recovery import newer_refused

log = Logger()

#: How long the starting server waits for an answer of the shared log, in seconds; later, a follower asks again.
PATIENCE = 5.0
#: How long this server waits for messages of other servers before it chooses the one to copy from, in seconds.
LISTEN = 1.0
#: After how many seconds copying is tried again.
RETRY = 5.0
#: How often copying is tried before the server gives up.
TRIES = 60

#: How long a server with an empty journal waits for the other servers before it begins a shared log, in seconds.
ALONE = 10.0

#: Copies the durable part of a journal.  Called with the URL of the journal, a directory, the system calls, the
#: identity that the journal must have, and an event that ends the copy; returns the position where the copy ends.
Copy = Callable[[str, Path, Files, bytes, Event], int]


def in_abandoned_thread(reactor: Any, work: Callable[..., int], *arguments: Any) -> Deferred[int]:
    """Call *work* in a thread for which the end of the process does not wait, because a request may take minutes."""
    done: Deferred[int] = Deferred()

    def run() -> None:
        try:
            result: Any = work(*arguments)
        except Exception:
            result = Failure()
        reactor.callFromThread(done.callback, result)

    Thread(target=run, name="fyrehose filling", daemon=True).start()
    return done


@attrs.define(eq=False)
class Filler:
    """An object that fills the journal in *directory* if the journal ends before the shared log begins.

    :ivar peers: has the name of this server, and learns which journals the other servers serve
    :ivar copy: copies a journal, and blocks; called by means of *in_thread*
    :ivar files: the system calls
    """

    reactor: Any
    directory: Path
    log: ISharedLog
    peers: Peers
    copy: Copy
    in_thread: Callable[..., Deferred[int]]
    files: Files = attrs.field(factory=Files)
    _here: int = attrs.field(default=0, init=False)  #: where this journal ended before it was filled
    #: Why the journal of each server could not be copied; the same reason is logged once.
    _failures: dict[str, str] = attrs.field(factory=dict, init=False)

    async def fill(self) -> None:
        """Copy another server's journal if this one ends before the shared log begins.

        The Deferred may be cancelled: the download ends at its next piece, and the synced part of the copy is kept.

        :raises ConfigError: this journal does not belong to the shared log; or this journal ends too early, and no
            other server serves its journal (a server that serves its own journal waits for the others)
        :raises JournalCorrupt: the durable mark of this journal is unknown
        """
        try:
            first = await self._first_beyond()
        except (Unavailable, defer.TimeoutError):
            return  # the shared log does not answer now; this server follows it as soon as it answers
        if first is None:
            return
        cut_at_mark(self.directory, self.files)
        for _ in range(TRIES):
            if await self._fill(first):
                return
            await deferLater(self.reactor, RETRY)
        raise too_far_behind(self._here, first.position)

    async def _first_beyond(self) -> LogEntry | None:
        """Return the first entry of the shared log if this journal ends before it; otherwise None."""
        end = self._end()
        if end is None:
            return None
        await self.log.open(self._heard, self.peers.writer).addTimeout(PATIENCE, self.reactor)
        extent = await self.log.extent()
        found = await self.log.read(extent.first, 1) if extent.first <= extent.last else []
        if not found or found[0][1].kind is EntryKind.DATA or found[0][1].position <= end:
            return None
        first = found[0][1]
        with newer_refused(self.directory):
            own = scan.identity_of(scan.segments(self.directory))
        if own != first.identity and UNKNOWN not in (own, first.identity):
            raise ConfigError(
                f"{self.directory} has another journal ({own.hex()}) than the shared log ({first.identity.hex()}); put "
                "this server's own journal back, or empty the directory, so that it is filled"
            )
        self._here = end
        return first

    def _end(self) -> int | None:
        """Return the durable mark of this journal, or None if this server was never in a cluster."""
        if not scan.segments(self.directory):
            return 0
        return scan.read_mark(self.directory) if (self.directory / REPLICA).exists() else None

    def _heard(self, message: bytes) -> None:
        self.peers.hear(message, self.reactor.seconds())

    async def _fill(self, first: LogEntry) -> bool:
        await deferLater(self.reactor, LISTEN)
        sources = [peer for peer in self.peers.others.values() if peer.journal]
        if not sources and not self.peers.settings.journal:
            raise too_far_behind(self._here, first.position)
        for peer in sorted(sources, key=lambda peer: peer.leads):  # the leader comes last, because it is the busiest
            if await self._copy(peer, first):
                return True
        return False

    async def _copy(self, peer: ClusterPeer, first: LogEntry) -> bool:
        if peer.name not in self._failures:
            log.info(
                "replication: this journal ends at position {here}, and the shared log begins at {first}: copying the "
                "journal of {name} from {url}",
                here=self._here,
                first=first.position,
                name=peer.name,
                url=peer.journal,
            )
        stopping = Event()
        try:
            end = await self.in_thread(self.copy, peer.journal, self.directory, self.files, first.identity, stopping)
        except JournalError as error:
            if self._failures.get(peer.name) != str(error):
                log.warn("replication: the journal of {name} cannot be copied: {why}", name=peer.name, why=str(error))
            self._failures[peer.name] = str(error)
            return False
        except CancelledError:
            stopping.set()
            raise
        log.info("replication: the journal is filled up to position {end}", end=end)
        return end >= first.position


def too_far_behind(here: int, first: int) -> ConfigError:
    """Return the error that stops a server whose journal has to be filled by hand."""
    return ConfigError(
        f"the journal ends at position {here}, and the shared log begins at {first}: empty the data "
        "directory, copy the journal of another server into it with `fyrehose journal restore --exact`, and start "
        "again; with the option `journal` of [replication] on the other servers this happens by itself"
    )


def waits(position: int, returning: bool, peers: Peers, listened: float) -> str:
    """Return why this server must not write the first entry of an empty shared log; "" if it may.

    If the shared log was lost, the server that takes over first might not be the server with the longest journal.

    :param position: the position where this server's journal ends
    :param returning: whether this server's journal has been used with a shared log before
    :param listened: for how long this server has received messages of the others, in seconds
    """
    if peers.stranger:
        return (
            f"the shared log is empty, and {peers.stranger} has another journal than this server; give one of the two "
            "clusters another name (cluster), or put its own journal back"
        )
    longer = [peer.name for peer in peers.others.values() if peer.position > position]
    if longer:
        return f"the shared log is empty, and {longer[0]} has a longer journal than this server; waiting for it"
    if returning and position:
        return (
            "the shared log is empty, and this journal has been used with one: it was deleted or lost; if it is gone "
            "for good, run `fyrehose cluster reseed` for the server with the longest journal"
        )
    if not position and len(peers.others) + 1 < peers.settings.members and listened < ALONE:
        return "the shared log is empty, and other servers may have a journal; waiting for them"
    return ""
