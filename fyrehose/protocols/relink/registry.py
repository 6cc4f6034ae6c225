"""The links that a listener knows: in memory, and in a stream of the journal of their own (linklog.py).

What becomes of a link is written in the same batch as the messages that it is about, so after a crash the links are
where the journal is.  A link without a connection is kept for a while, and there are limits on how many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import JournalCorrupt, PublishError
from fyrehose.identity import network_of
from fyrehose.interfaces import IBroker
from fyrehose.protocols.relink import linklog, snapshot
from fyrehose.protocols.relink.crowds import Crowd
from fyrehose.protocols.relink.handshake import MAX_LINK_ID, Hello, Terms
from fyrehose.protocols.relink.link import Link
from fyrehose.protocols.relink.linklog import Anchors, Kind
from fyrehose.protocols.relink.settings import Settings
from fyrehose.records import Run

log = Logger()

#: How often links are looked through, in seconds.
LOOK = 1.0
#: A checkpoint is written when the records behind the last one have more bytes than this, and than four such.
CHECKPOINT = 1 << 20


class Holder(Protocol):
    """A connection that has a link."""

    def fenced(self) -> None:
        """Another connection takes the link over: nothing of this one counts any more."""


@attrs.define(eq=False)
class Entry:
    """A link that the listener knows.

    :ivar identity: what the connector proved to be, if anything; it has to prove it again
    :ivar anchors: where numbers of our channel lie in the stream that it reads
    :ivar host: from where it was used last
    :ivar saved: whether it is known after a restart
    :ivar writes: how many writes about it have not come to their end
    :ivar expires: when it is forgotten, while it has no connection
    """

    link: Link
    name: bytes
    identity: bytes
    host: str
    anchors: Anchors
    saved: bool = True
    holder: Holder | None = None
    writes: int = 0
    expires: float | None = None
    #: what it holds in memory, as it was measured last, in bytes
    weight: int = 0
    #: whether a write was refused, so that what it was about has to come again
    failed: bool = False
    _settled: list[Deferred[None]] = attrs.field(factory=list, init=False)

    @property
    def label(self) -> str:
        """What its messages are published under."""
        return self.name.hex()

    def settled(self) -> Deferred[None]:
        """Fires when everything that was written about it is durable, or was refused."""
        if not self.writes:
            return succeed(None)
        self._settled.append(Deferred())
        return self._settled[-1]

    def wrote(self) -> None:
        """One write has come to its end."""
        self.writes -= 1
        if self.writes:
            return
        if self.failed and not self.link.over:
            self.link.rewind()
        self.failed = False
        waiting, self._settled = self._settled, []
        for one in waiting:
            one.callback(None)


@attrs.define(eq=False)
class Registry:
    """All links of one listener.

    :ivar stream: where they are written
    :ivar now: the wall clock, in microseconds since 1970 UTC
    :ivar randbits: unguessable bits
    """

    broker: IBroker
    clock: IReactorTime
    settings: Settings
    stream: str
    now: Callable[[], int]
    randbits: Callable[[int], int]
    epoch: int = attrs.field(default=0, init=False)
    entries: dict[bytes, Entry] = attrs.field(factory=dict, init=False)
    _checkpoint: int = attrs.field(default=0, init=False)
    _checkpoint_size: int = attrs.field(default=0, init=False)
    _behind: int = attrs.field(default=0, init=False)
    _checkpointing: bool = attrs.field(default=False, init=False)
    #: links without a connection: those on which the peer ever said something, and the others
    _detached: Crowd[Entry] = attrs.field(factory=Crowd, init=False)
    _unused: Crowd[Entry] = attrs.field(factory=Crowd, init=False)
    #: what all links hold in memory, in bytes
    _weight: int = attrs.field(default=0, init=False)
    _looking: LoopingCall | None = attrs.field(default=None, init=False)

    # Opening and closing.

    def open(self) -> Deferred[None]:
        """Find the links that were; fires when it is written which there are now."""
        try:
            found = linklog.recover(self.broker.read, self.stream, self.broker.bounds(self.stream))
            links = found.links
        except JournalCorrupt as damage:
            log.warn("relink: the links in {stream} are lost: {damage}", stream=self.stream, damage=str(damage))
            found, links = linklog.Recovered(), None
        if links is not None:
            self.epoch = found.epoch
            try:
                for saved in links.values():
                    self._restore(saved)
            except ValueError as damage:
                log.warn("relink: the links in {stream} are lost: {damage}", stream=self.stream, damage=str(damage))
                links = None
        if links is None:
            self.entries.clear()
            self._detached = Crowd()
            self._weight = 0
            self.epoch = max(self.now(), found.epoch + 1)
        log.info("relink: {count} links in stream {stream}", count=len(self.entries), stream=self.stream)
        return self._write_checkpoint().addCallback(self._opened)

    def _opened(self, _: None) -> None:
        self._looking = LoopingCall(self._look)
        self._looking.clock = self.clock
        self._looking.start(LOOK, now=False).addErrback(lambda f: log.failure("looking through the links failed", f))

    def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.stop()
            self._looking = None

    def _restore(self, saved: linklog.Saved) -> None:
        link = self._link(saved.terms, 0)
        for part in saved.snapshots:
            snapshot.restore(link, part)
        link.heard = True
        entry = Entry(link, saved.name, saved.identity, "", saved.anchors)
        self.entries[saved.name] = entry
        self._leave(entry)
        self._weigh(entry, link.weight)

    def _link(self, terms: Terms, link_id: int) -> Link:
        return Link(terms, False, self.epoch, link_id, self.settings.limits, durable=True, kept=False)

    # Links.

    def find(self, hello: Hello, identity: bytes, host: str) -> Entry | None:
        """Return the link that *hello* asks for, or None if it is not known by these terms and this identity.

        The peer does not learn which of these it was: it gets a new link in either case.  So nothing is limited here: a
        guess of 63 random bits costs the same as any new link, and an honest peer whose link is lost is not refused.
        """
        if not hello.link_id or hello.epoch != self.epoch:
            return None
        entry = self.entries.get(linklog.name_of(hello.epoch, hello.link_id))
        if entry is None or entry.link.over:
            self.broker.counters.add("relink", "links-unknown")
            return None
        if entry.link.terms != hello.terms or entry.identity != identity:
            differs = "terms" if entry.link.terms != hello.terms else "a certificate"
            detail = f"link {entry.label} was made with {differs} other than these; the peer gets a new link"
            self.broker.counters.refuse(log, "relink", "resumes-mismatched", host, detail)
            return None
        entry.link.id = hello.link_id
        return entry

    def create(self, terms: Terms, identity: bytes, host: str, anchors: Anchors) -> Entry | None:
        """A new link, which is not written yet; None: there are too many."""
        if len(self.entries) >= self.settings.max_links and not self._make_room():
            return None
        while True:
            link_id = self.randbits(63) % MAX_LINK_ID + 1
            name = linklog.name_of(self.epoch, link_id)
            if name not in self.entries:
                break
        entry = Entry(self._link(terms, link_id), name, identity, host, anchors)
        if anchors:
            entry.link.channel(0)
        self.entries[name] = entry
        return entry

    def _make_room(self) -> bool:
        """Discard one link without a connection, and return whether there was one.

        Links that nothing was ever said on go first; otherwise the network that has the most links gives up its oldest.
        """
        entry = self._unused.oldest_of_largest() or self._detached.oldest_of_largest()
        if entry is None:
            return False
        self.discard(entry, "links-displaced", f"all {self.settings.max_links} links are taken; raise relink.max-links")
        return True

    def attached(self, entry: Entry, holder: Holder, host: str) -> Deferred[None]:
        """``holder`` takes the link over; fires when its state is settled, and the old connection means nothing."""
        old, entry.holder = entry.holder, holder
        self._unused.discard(entry)
        self._detached.discard(entry)
        entry.host, entry.expires = host, None
        if old is not None:
            old.fenced()
        return entry.settled()

    def detached(self, entry: Entry) -> None:
        """The link has no connection any more."""
        entry.holder = None
        if self.entries.get(entry.name) is entry:
            self._leave(entry)
            self.measure(entry)

    def _leave(self, entry: Entry) -> None:
        """Keep *entry*, which has no connection, for a while."""
        heard = entry.link.heard
        (self._detached if heard else self._unused).add(entry, network_of(entry.host))
        keep = self.settings.retention if heard else self.settings.unused_retention
        entry.expires = self.clock.seconds() + keep

    def discard(self, entry: Entry, why: str | None = None, detail: str = "") -> None:
        """The link has ended, or is lost."""
        if self.entries.pop(entry.name, None) is None:
            return
        entry.link.over = True
        self._weigh(entry, 0)
        self._unused.discard(entry)
        self._detached.discard(entry)
        if why is not None:
            self.broker.counters.refuse(log, "relink", why, entry.host, f"link {entry.label} is lost: {detail}")
        self.forget(entry)

    def forget(self, entry: Entry) -> None:
        """After a restart the link is not to be known any more."""
        if entry.saved:
            entry.saved = False
            self._write(Kind.GONE, entry.name).addErrback(self._not_written)

    # Memory.

    def measure(self, entry: Entry) -> None:
        """Note what *entry* holds in memory; where that is too much for all links together, let go of some of it."""
        weight = entry.link.weight
        if weight == entry.weight or entry.link.over:
            return
        self._weigh(entry, weight)
        if self._weight > self.settings.link_memory:
            self._relieve()

    def _weigh(self, entry: Entry, weight: int) -> None:
        self._weight += weight - entry.weight
        entry.weight = weight

    def _relieve(self) -> None:
        """Let go of an eighth of the limit, of the networks that hold the most, and there of the largest links.

        A link that still has no room without its undecided messages, because it has so many channels, is lost.
        """
        goal = self.settings.link_memory * 7 // 8
        networks: dict[str, list[Entry]] = {}
        for entry in self.entries.values():
            networks.setdefault(network_of(entry.host), []).append(entry)
        for entries in sorted(networks.values(), key=lambda entries: -sum(entry.weight for entry in entries)):
            entries.sort(key=lambda entry: -entry.weight)
            for entry in entries:
                if self._weight <= goal:
                    return
                entry.link.drop_undecided()
                self._weigh(entry, entry.link.weight)
            for entry in entries:
                if self._weight <= goal:
                    return
                holder = entry.holder
                self.discard(entry, "links-too-large", "all links hold too much; raise relink.link-memory")
                if holder is not None:
                    holder.fenced()

    # Writing.

    def write_entry(self, entry: Entry, then: Callable[[Any], None]) -> None:
        """The link is new, or its anchors are; ``then`` is called with the result, or with the Failure."""
        entry.saved = True
        self._about(entry, (), (self._record(Kind.ENTRY, self._packed(entry)),), then)

    def write_delta(
        self,
        entry: Entry,
        channels: Sequence[int],
        runs: Sequence[Run],
        then: Callable[[Any], None],
        broker: IBroker | None = None,
    ) -> None:
        """Write what is staged on ``channels`` and the messages that it is about: both, or none.

        :param broker: the broker as the peer may use it, so that new streams count as the peer's; None: the server's
        """
        body = entry.name + snapshot.save(entry.link, channels)
        self._about(entry, runs, (self._record(Kind.DELTA, body),), then, broker)

    def _about(
        self,
        entry: Entry,
        runs: Sequence[Run],
        own: Sequence[Run],
        then: Callable[[Any], None],
        broker: IBroker | None = None,
    ) -> None:
        """Whoever waits for the link hears of it when ``then`` is over."""
        entry.writes += 1

        def ended(result: Any) -> None:
            try:
                then(result)
            except Exception:
                log.failure("what became of a link's messages was not dealt with")
            entry.wrote()

        written: Deferred[Any] = (self.broker if broker is None else broker).publish(runs, own)
        written.addBoth(ended)

    def _packed(self, entry: Entry) -> bytes:
        link = entry.link
        return linklog.pack_entry(entry.name, link.terms, entry.identity, entry.anchors, snapshot.save(link))

    def _record(self, kind: Kind, body: bytes) -> Run:
        record = linklog.pack(kind, self.epoch, self._checkpoint, body)
        self._behind += len(record)
        # What Run.of would make of it, without its lists: this is done for every write.
        return Run(stream=self.stream, source=linklog.SOURCE, lengths=len(record).to_bytes(4, "little"), payload=record)

    def _write(self, kind: Kind, body: bytes) -> Deferred[Any]:
        return self.broker.publish([self._record(kind, body)])

    def _write_checkpoint(self) -> Deferred[None]:
        self._checkpointing = True
        entries = [self._packed(entry) for entry in self.entries.values() if entry.saved]
        records = linklog.pack_checkpoint(self.epoch, entries)
        size = sum(map(len, records))
        behind, self._behind = self._behind, 0

        def durable(firsts: tuple[int, ...]) -> None:
            self._checkpointing = False
            self._checkpoint, self._checkpoint_size = firsts[0], size

        def refused(failure: Failure) -> Failure:
            self._checkpointing = False
            self._behind += behind
            return failure

        written = self.broker.publish([Run.of(self.stream, records, source=linklog.SOURCE)])
        return written.addCallbacks(durable, refused)

    def _not_written(self, failure: Failure) -> None:
        failure.trap(PublishError)
        log.warn("relink: the links were not written: {why}", why=failure.getErrorMessage())

    # Now and then.

    def _look(self) -> None:
        now = self.clock.seconds()
        for entry in [one for one in self.entries.values() if one.expires is not None and one.expires <= now]:
            self.broker.counters.add("relink", "links-expired")
            self.discard(entry)
        much = self._behind > max(CHECKPOINT, 4 * self._checkpoint_size)
        # The journal keeps what it was told to keep; where that was the last checkpoint, another is due.
        gone = self.broker.bounds(self.stream)[0] > self._checkpoint
        if (much or gone) and not self._checkpointing:
            self._write_checkpoint().addErrback(self._not_written)
