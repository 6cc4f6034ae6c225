"""All links of a listener, kept in memory, and in a stream of the journal that holds nothing else (linklog.py).

The state of a link is written in the same batch as the messages that changed it, so after a crash both agree.  A link
without a connection is kept for a limited time, and the number of links is limited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from secrets import randbits
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.broker.fairness import FairShare
from fyrehose.broker.state_stream import StateStream
from fyrehose.errors import JournalCorrupt, OutcomeUnknown, PublishError, RemoteProtocolError
from fyrehose.identity import network_of
from fyrehose.interfaces import IBroker
from fyrehose.net.turns import SteppedWork
from fyrehose.periodic import Checks
from fyrehose.protocols.relink import linklog
from fyrehose.protocols.relink.frames import MAX_LINK_ID, Hello, Terms
from fyrehose.protocols.relink.link import CHANNEL_MEMORY, Link
from fyrehose.protocols.relink.linklog import Anchors, RecordKind
from fyrehose.protocols.relink.settings import RelinkSettings
from fyrehose.records import Run

if TYPE_CHECKING:
    from fyrehose.protocols.relink.server import RelinkProtocol

log = Logger()

#: How often expired links and due checkpoints are looked for, in seconds.
CHECK_INTERVAL = 1.0
#: A checkpoint is due when the records after the last checkpoint exceed this many bytes.
CHECKPOINT = 1 << 20
#: The undecided messages of a link are counted again when they have changed by this many bytes, because a small
#: transaction should cost as little as possible.
GRAIN = 1 << 10


@attrs.define(eq=False)
class LinkMemory:
    """The channels of a link, or its undecided messages, and the memory that they took when they were last counted."""

    entry: LinkEntry
    size: int = 0


@attrs.define(eq=False)
class LinkEntry:
    """A link, with the data that the listener keeps about the link.

    :ivar name: the link's public name; see :func:`~.linklog.name_of`
    :ivar identity: digest of the connector's certificate, or empty; a connector that resumes the link has to present
        the same certificate
    :ivar anchors: the records of the stream at which our channel begins and, after each gap, continues
    :ivar host: address of the last connection
    :ivar saved: whether the link survives a restart
    :ivar holder: the connection that the link is attached to
    :ivar writes: number of unfinished writes for this link
    :ivar ending: whether the link ends with its connection, once all its writes are acknowledged; it cannot be resumed
    :ivar expires: when a link without a connection is discarded, in microseconds of
        :attr:`.IBroker.monotonic`; None while it is attached
    """

    link: Link
    name: bytes
    identity: bytes
    host: str
    anchors: Anchors
    saved: bool = True
    holder: RelinkProtocol | None = None
    writes: int = 0
    #: number of the last record that the peer has consumed, if the link consumes a named subscription
    consumed: int = 0
    ending: bool = False
    expires: int | None = None
    channels: LinkMemory = attrs.field(init=False)
    undecided: LinkMemory = attrs.field(init=False)
    #: the producer name under which the link's messages are published, without the channel's ordinal
    label: str = attrs.field(init=False)
    _settled: list[Deferred[None]] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.label = self.name.hex()
        self.channels, self.undecided = LinkMemory(self), LinkMemory(self)

    def settled(self) -> Deferred[None]:
        """Return a Deferred that fires when all writes for this link are finished."""
        if not self.writes:
            return succeed(None)
        self._settled.append(Deferred())
        return self._settled[-1]

    def write_finished(self) -> None:
        """Count a write as finished; after the last unfinished one, another connection may resume the link."""
        self.writes -= 1
        if self.writes:
            return
        waiting, self._settled = self._settled, []
        for deferred in waiting:
            deferred.callback(None)


@attrs.define(eq=False)
class Registry:
    """All links of one listener.

    :ivar stream: name of the stream that holds the links
    :ivar randbits: returns the given number of unpredictable bits
    :ivar memory: the memory of all links, in bytes, by network: undecided messages, and 2 KiB for each channel
    """

    broker: IBroker
    clock: IReactorTime
    settings: RelinkSettings
    stream: str = ".relink/links"
    randbits: Callable[[int], int] = randbits
    memory: FairShare[LinkMemory] = attrs.field(init=False)
    closed: bool = attrs.field(default=True, init=False)
    epoch: int = attrs.field(default=0, init=False)
    entries: dict[bytes, LinkEntry] = attrs.field(factory=dict, init=False)
    #: the stream of the links, and the links that were replayed from it
    log: StateStream = attrs.field(init=False)
    _saved: linklog.SavedLinks = attrs.field(factory=linklog.SavedLinks, init=False)
    #: links without a connection on which the peer has sent packets
    _detached: FairShare[LinkEntry] = attrs.field(factory=FairShare, init=False)
    #: links without a connection on which the peer never sent a packet
    _unused: FairShare[LinkEntry] = attrs.field(factory=FairShare, init=False)
    _checks: Checks = attrs.field(init=False)
    _opening: list[Deferred[None]] = attrs.field(factory=list, init=False)
    #: reads the links from their stream
    _recovering: SteppedWork | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.memory = FairShare(self.broker.budget.limit // 2)
        self._checks = Checks(self.clock, self._check_links, CHECK_INTERVAL, "links of relink", self.broker.turns)
        self.log = StateStream(
            self.stream,
            linklog.SOURCE,
            self._saved,
            self.broker.read,
            self.broker.bounds,
            lambda runs: self.broker.publish((), runs),
            everything=self._everything,
            end=lambda begin: linklog.pack(RecordKind.GONE, self.epoch, begin, b""),
            turns=self.broker.turns,
            checkpoint_bytes=CHECKPOINT,
        )

    # Opening and closing.

    def open(self) -> Deferred[None]:
        """Recover the links from their stream, in steps, and write a checkpoint.

        :return: a Deferred that fires when the checkpoint is durable; fails if the checkpoint cannot be written
        """
        self.closed = False
        self._clear()
        self._recovering = SteppedWork(self.broker.turns, self._recover())
        return self._recovering.begin().addCallback(lambda _: self.log.write_checkpoint()).addBoth(self._opened)

    def _recover(self) -> Iterator[None]:
        """Read the links from their stream; yield after each step."""
        try:
            missing = (yield from self.log.steps(afresh=True)).missing
            if missing:
                raise JournalCorrupt(f"{missing} of its records are missing")
            self.epoch = self._saved.epoch or self.broker.record_time()
            for saved in self._saved.links.values():
                self._restore(saved)
                yield
        except (JournalCorrupt, ValueError) as damage:
            why = "relink: the links in stream {stream} are lost, and clients get new ones: {damage}"
            log.warn(why, stream=self.stream, damage=str(damage))
            self._clear()
            self.epoch = max(self.broker.record_time(), self._saved.epoch + 1)
        self._saved.links = {}
        log.info("relink: recovered {count} links from stream {stream}", count=len(self.entries), stream=self.stream)

    def when_open(self) -> Deferred[None]:
        """Return a Deferred that fires when links can be found and created; it fails if they cannot be written."""
        if self._checks.started:
            return succeed(None)
        self._opening.append(Deferred())
        return self._opening[-1]

    def _clear(self) -> None:
        self.entries.clear()
        self._detached, self._unused, self.memory = FairShare(), FairShare(), FairShare(self.memory.capacity)

    def _opened(self, result: Any) -> Any:
        if isinstance(result, Failure):
            self.closed = True
        else:
            self._checks.start()
        waiting, self._opening = self._opening, []
        for deferred in waiting:
            deferred.callback(result)  # A Failure makes Twisted call the errbacks.
        return result

    def close(self) -> None:
        """Stop recovering links, and checking for expired ones."""
        self.closed = True
        self._checks.stop()
        recovering = self._recovering
        if recovering is not None and not recovering.done.called:
            recovering.stop()
            recovering.done.errback(OutcomeUnknown("the listener was closed while it read its links"))

    def _restore(self, saved: linklog.Saved) -> None:
        link = self._new_link(saved.terms, 0)
        for part in saved.snapshots:
            linklog.restore_snapshot(link, part)
        link.used = True
        entry = LinkEntry(link, saved.name, saved.identity, "", saved.anchors)
        self.entries[saved.name] = entry
        self._start_retention(entry)
        self._count(entry.channels, CHANNEL_MEMORY * len(link.receiving))

    def _new_link(self, terms: Terms, link_id: int) -> Link:
        return Link(terms, False, self.epoch, link_id, self.settings.limits, durable=True, kept=False)

    # Links.

    def find(self, hello: Hello, identity: bytes, host: str) -> LinkEntry | None:
        """Return the link that *hello* requests, or None if no link has this id, these parameters and this identity.

        The peer does not learn the reason, because it gets a new link in each case.  Requests are not rate-limited: a
        guess of 63 random bits costs as much as any new link, and honest peers whose links are lost are not refused.
        """
        if not hello.link_id or hello.epoch != self.epoch:
            return None
        entry = self.entries.get(linklog.name_of(hello.epoch, hello.link_id))
        if entry is None or entry.ending or entry.link.over:
            self.broker.counters.add("relink", "links-unknown")
            return None
        if entry.link.terms != hello.terms or entry.identity != identity:
            differs = "terms" if entry.link.terms != hello.terms else "certificates"
            detail = f"link {entry.label} was made with different {differs}; the peer gets a new link"
            self.broker.counters.refuse(log, "relink", "resumes-mismatched", host, detail)
            return None
        entry.link.id = hello.link_id
        return entry

    def create(self, terms: Terms, identity: bytes, host: str, anchors: Anchors) -> LinkEntry | None:
        """Return a new link, not written to the journal yet; None if there are too many links."""
        if len(self.entries) >= self.settings.max_links and not self._make_room():
            return None
        while True:
            link_id = self.randbits(63) % MAX_LINK_ID + 1
            name = linklog.name_of(self.epoch, link_id)
            if name not in self.entries:
                break
        entry = LinkEntry(self._new_link(terms, link_id), name, identity, host, anchors)
        if anchors:
            entry.link.channel(0)
        self.entries[name] = entry
        return entry

    def _make_room(self) -> bool:
        """Discard one link without a connection, and return whether there was one.

        Links that were never used go first; then the network that has the most links loses its oldest one.
        """
        entry = self._unused.first_out() or self._detached.first_out()
        if entry is None:
            return False
        detail = f"limit of {self.settings.max_links} links reached; raise relink.max-connections"
        self.discard(entry, "links-displaced", detail)
        return True

    def attached(self, entry: LinkEntry, holder: RelinkProtocol, host: str) -> Deferred[None]:
        """Attach the link to the connection *holder*, and make its old connection ignore everything from now on.

        :return: a Deferred that fires when the link's earlier writes are finished
        """
        old, entry.holder = entry.holder, holder
        self._unused.discard(entry)
        self._detached.discard(entry)
        entry.host, entry.expires = host, None
        for part in entry.channels, entry.undecided:
            self._count(part, part.size)
        if old is not None:
            old.fenced()
        return entry.settled()

    def detached(self, entry: LinkEntry) -> None:
        """Start the retention time of a link that lost its connection, or discard the link if it cannot be resumed."""
        entry.holder = None
        if entry.ending:
            self.discard(entry)
        elif self.entries.get(entry.name) is entry:
            self._start_retention(entry)
            self.measure(entry)

    def _start_retention(self, entry: LinkEntry) -> None:
        """Start the time after which *entry* is discarded, because its connection is lost."""
        used = entry.link.used
        (self._detached if used else self._unused).add(entry, network_of(entry.host))
        keep = self.settings.retention if used else self.settings.unused_retention
        entry.expires = self.broker.monotonic() + int(keep * 1_000_000)

    def discard(self, entry: LinkEntry, why: str | None = None, detail: str = "") -> None:
        """Remove a link that has ended or is lost.

        :param why: name of the counter if the link is lost; None if it has ended or expired
        :param detail: the reason, for the log
        """
        if self.entries.pop(entry.name, None) is None:
            return
        entry.link.over = True
        for part in entry.channels, entry.undecided:
            self._count(part, 0)
        self._unused.discard(entry)
        self._detached.discard(entry)
        if why is not None:
            self.broker.counters.refuse(log, "relink", why, entry.host, f"link {entry.label} is lost: {detail}")
        self.forget(entry)

    def forget(self, entry: LinkEntry, then: Callable[[], None] = lambda: None) -> None:
        """Write a record that the link is gone, so that a restarted server does not recover it.

        :param then: called when that record is durable, or was refused
        """
        if not entry.saved:
            then()
            return
        entry.saved = False

        def ended(result: Any) -> None:
            if isinstance(result, Failure):
                result.trap(PublishError)
                log.warn("relink: the state of links was not written: {why}", why=result.getErrorMessage())
            then()

        self._publish(entry, self._record(RecordKind.GONE, entry.name), ended)

    # Memory.

    def measure(self, entry: LinkEntry) -> None:
        """Count the memory that *entry* takes; beyond the limit, the largest part of a network loses its oldest."""
        link = entry.link
        channels, undecided = CHANNEL_MEMORY * len(link.receiving), link.undecided
        same = channels == entry.channels.size and abs(undecided - entry.undecided.size) < GRAIN
        if same or entry.ending or link.over:
            return
        self._count(entry.channels, channels)
        self._count(entry.undecided, undecided)
        for part in self.memory.make_room(size=0):
            part.size = 0
            if part is part.entry.undecided:
                part.entry.link.drop_undecided()
            else:
                self._discard_large(part.entry)

    def _count(self, part: LinkMemory, size: int) -> None:
        """Count *part* of a link as the youngest of its network, whose channels and messages are apart."""
        self.memory.discard(part)
        part.size = size
        if size:
            network, channels = network_of(part.entry.host), part is part.entry.channels
            self.memory.add(part, f"#{network}" if channels else network, size)

    def _discard_large(self, entry: LinkEntry) -> None:
        """End the link *entry*, because the channels of its network take the most memory."""
        detail = "all links exceed the memory limit; raise server.memory"
        if entry.holder is None:
            self.discard(entry, "links-too-large", detail)
        else:
            entry.holder.reject(RemoteProtocolError("links-too-large", f"link {entry.label} is lost: {detail}"))
            self._count(entry.undecided, 0)  # its channels were removed by the caller

    # Writing.

    def write_entry(self, entry: LinkEntry, then: Callable[[Any], None]) -> None:
        """Write a link to disk, which is new or has a new anchor; call *then* with the result, or with a Failure."""
        entry.saved = True
        self._publish(entry, self._record(RecordKind.ENTRY, self._pack_entry(entry)), then)

    def begin_write(self, entry: LinkEntry, channels: Sequence[int]) -> Run:
        """Begin a write: return the record with the staged state of *channels*, to be published with their messages.

        The write counts as unfinished until :meth:`LinkEntry.write_finished`.
        """
        entry.writes += 1
        return self._record(RecordKind.DELTA, entry.name + linklog.save_snapshot(entry.link, channels))

    def _publish(self, entry: LinkEntry, record: Run, then: Callable[[Any], None]) -> None:
        """Publish *record* to the stream of links; the write is unfinished until *then* has returned."""
        entry.writes += 1

        def ended(result: Any) -> None:
            try:
                then(result)
            except Exception:
                log.failure("relink: handling the result of a write failed")
            entry.write_finished()

        self.broker.publish((), (record,)).addBoth(ended)

    def _pack_entry(self, entry: LinkEntry) -> bytes:
        """Return *entry* as bytes for the stream of links."""
        link = entry.link
        return linklog.pack_entry(entry.name, link.terms, entry.identity, entry.anchors, linklog.save_snapshot(link))

    def _record(self, kind: RecordKind, body: bytes) -> Run:
        return self.log.draft(linklog.pack(kind, self.epoch, self.log.checkpoint, body))

    def _everything(self) -> Iterator[bytes]:
        """Yield the payloads of a checkpoint, which describes all links that survive a restart."""
        for name, entry in list(self.entries.items()):
            if entry.saved and self.entries.get(name) is entry:
                yield linklog.pack(RecordKind.ENTRY, self.epoch, self.log.checkpoint, self._pack_entry(entry))

    # Periodic checks.

    def _check_links(self) -> Iterator[None]:
        """Discard expired links, and write a checkpoint if it is due."""
        for entry in list(self.entries.values()):
            if entry.expires is not None and entry.expires <= self.broker.monotonic():
                self.broker.counters.add("relink", "links-expired")
                self._checks.isolation.call(f"relink link {entry.name.hex()}", self.discard, entry)
            yield
        # Write another checkpoint if retention has deleted the last one, because the links cannot be recovered without
        # it.
        self.log.maintain(self.broker.bounds(self.stream)[0] > self.log.checkpoint)
