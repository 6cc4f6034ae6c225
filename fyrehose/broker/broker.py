"""The broker, which every message passes.

    publish -> number -> append -> durable -> the publisher's Deferred fires, and cursors deliver

Nothing leaves the server before it is durable: the Deferred of a publish triggers its acknowledgement, and
:meth:`Broker.durable` triggers deliveries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache

import attrs
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.broker.budget import Budget
from fyrehose.broker.consuming import Consuming
from fyrehose.broker.fanout import Cursor, Fanout, Owner, Tally
from fyrehose.broker.guard import Guard
from fyrehose.broker.named import NamedSubscriptions
from fyrehose.broker.once import KEPT, PublishedOnce
from fyrehose.broker.quotas import STREAMS, NamedRoom, NewStreams, PeerLimits, Subscriptions
from fyrehose.broker.rounds import Intake, Producer
from fyrehose.broker.streams import UNLIMITED, StreamRules
from fyrehose.errors import (
    Closed,
    Following,
    FyrehoseError,
    InvalidName,
    NewStreamForbidden,
    NoSuchStream,
    PayloadTooLarge,
    PublishError,
    ReadOnly,
    StreamInUse,
    TooManyStreams,
    Unreplicated,
)
from fyrehose.identity import Action, Identity
from fyrehose.interfaces import (
    IBroker,
    IJournal,
    IJournalObserver,
    ISequencer,
    ISink,
    ISubscription,
    JournalState,
)
from fyrehose.observe.counters import Counters
from fyrehose.observe.listeners import Listener
from fyrehose.observe.meters import SECONDS, Histogram
from fyrehose.observe.stalls import Stalls
from fyrehose.records import MAX_NAME, MAX_PAYLOAD, MAX_PUBLISH, Run

log = Logger()

#: The most producers of one source that are counted.
MOST_PRODUCERS = 10_000
#: The largest valid ``max_streams``: a segment begins with one batch that holds the last number of every stream.
MAX_STREAMS = 200_000


@attrs.define(eq=False)
class PublishTotals:
    """Totals of one source: publishes that became durable, their messages, and the bytes of payload.

    :ivar seconds: the time from each publish until it was durable, and therefore acknowledged, in seconds
    :ivar producers: producers of these messages, without the ports of addresses, since an observer emptied this set; at
        most :data:`MOST_PRODUCERS`
    """

    publishes: int = 0
    messages: int = 0
    bytes: int = 0
    seconds: Histogram = attrs.field(factory=lambda: Histogram(SECONDS))
    producers: set[str] = attrs.field(factory=set)

    def add(self, runs: Sequence[Run], seconds: float) -> None:
        """Count a publish of *runs* that became durable after *seconds*."""
        self.publishes += 1
        self.seconds.observe(seconds)
        for run in runs:
            self.messages += len(run.lengths) // 4
            self.bytes += len(run.payload)
            if len(self.producers) < MOST_PRODUCERS:
                self.producers.add(_without_port(run.producer))


@lru_cache(4096)
def _without_port(producer: str | None) -> str:
    """Return *producer* without its port: a program that connects for each publish is one publisher."""
    host, _, port = (producer or "").rpartition(":")
    return host if host and port.rstrip(")").isdigit() else producer or ""


@implementer(IBroker, IJournalObserver)
@attrs.define(eq=False)
class Broker:
    """Numbers published runs, appends them to the journal, and delivers them once they are durable.

    Calls on the broker itself are not subject to the access policy; :meth:`identified` returns a broker that is.

    :ivar clock: schedules deliveries in several turns of the reactor
    :ivar max_streams: the most streams that the server may hold
    :ivar limits: limits of the state that one peer may create
    :ivar rules: limits of streams by their names
    :ivar guard: the access policy in force
    :ivar watch: called with the new state of the journal and the reason for the change
    """

    clock: IReactorTime
    journal: IJournal
    sequencer: ISequencer
    counters: Counters = attrs.field(factory=Counters, kw_only=True)
    budget: Budget = attrs.field(factory=Budget, kw_only=True)
    intake: Intake = attrs.field(factory=Intake, kw_only=True)
    max_streams: int = attrs.field(default=100_000, kw_only=True, validator=attrs.validators.le(MAX_STREAMS))
    limits: PeerLimits = attrs.field(factory=PeerLimits, kw_only=True)
    rules: StreamRules = attrs.field(default=UNLIMITED, kw_only=True)
    guard: Guard = attrs.field(factory=Guard, kw_only=True)
    watch: Callable[[JournalState, str], None] = attrs.field(default=lambda state, reason: None, kw_only=True)
    #: whether the server will stop soon, so that new clients should go elsewhere; it still serves everything
    draining: bool = attrs.field(default=False, init=False)
    #: turns of the reactor that took too long; the server's watchdog counts them
    stalls: Stalls = attrs.field(factory=Stalls, init=False)
    #: open listeners, for operators
    listeners: list[Listener] = attrs.field(factory=list, init=False)
    #: totals by source; a publish counts for the source of its first run
    published: dict[str, PublishTotals] = attrs.field(factory=dict, init=False)
    #: streams that grew since an observer emptied this set; None: no observer needs them
    grown: set[str] | None = attrs.field(default=None, init=False)
    #: payload published to each of these streams, in bytes, while ``grown`` is a set; the observer empties it, too
    grown_bytes: dict[str, int] = attrs.field(factory=dict, init=False)
    #: subscriptions of peers, by address
    subscriptions: Subscriptions = attrs.field(init=False)
    #: all named subscriptions
    table: NamedSubscriptions = attrs.field(init=False)
    #: publishes with a key
    once: PublishedOnce = attrs.field(init=False)
    #: the most named subscriptions
    named_subscriptions: int = attrs.field(default=1_000, kw_only=True)
    #: how long the keys of publishes are kept at least, in seconds
    keys_kept: float = attrs.field(default=KEPT, kw_only=True)
    #: whether the journal follows that of another server, which publishers have to use
    follows: bool = attrs.field(default=False, init=False)
    _awaiting_lead: list[Deferred[None]] = attrs.field(factory=list, init=False)
    _new_streams: NewStreams = attrs.field(init=False)
    _fanout: Fanout = attrs.field(init=False)
    #: called with each stream that is created
    _created: list[Callable[[str], None]] = attrs.field(factory=list, init=False)
    _largest: dict[str, int] = attrs.field(factory=dict, init=False)
    _restricted: dict[str, int] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._fanout = Fanout(self.clock, self.journal.read, self.journal.expired)
        self.subscriptions = Subscriptions(self.budget, self.limits.subscriptions)
        most = self.limits.streams or min(STREAMS, max(1, self.max_streams // 2))
        self._new_streams = NewStreams(self.limits, most, self.clock.seconds)
        room = NamedRoom(self.budget, self.named_subscriptions)
        self.table = NamedSubscriptions(self.clock, self.journal, self.publish, room)
        self.once = PublishedOnce(
            self.journal, self.sequencer, self.budget, self.counters, self.clock.seconds, self.keys_kept
        )
        self.table.now = self.journal.now
        self.table.exists = lambda stream: stream in self._largest

    @property
    def named(self) -> Consuming:
        """The named subscriptions, without limits by the access policy."""
        return Consuming(self.table, self)

    def open(self) -> Deferred[None]:
        """Open the journal, and continue the numbers of its streams."""
        opening: Deferred[Mapping[str, int]] = self.journal.open(self)
        return opening.addCallback(self._opened)

    def _opened(self, ends: Mapping[str, int]) -> None:
        self._recover(ends)
        self.once.open()
        self.follows = self.journal.state is JournalState.READ_ONLY

    def when_leading(self) -> Deferred[None]:
        if not self.follows:
            return succeed(None)
        self._awaiting_lead.append(Deferred())
        return self._awaiting_lead[-1]

    def _recover(self, ends: Mapping[str, int]) -> None:
        self._restore(ends)
        self._largest = {stream: self._max_payload(stream) for stream in ends}
        self.table.open()
        self.journal.keeper.unread = self.table.unread

    def close(self) -> Deferred[None]:
        """Commit everything that was published, then close the journal and end every subscription."""
        self.table.close()
        return self.journal.close().addBoth(self._closed)

    def _closed(self, result: None) -> None:
        self._fanout.close(Closed("the server is closing"))
        return result

    def identified(self, identity: Identity) -> IBroker:
        return self.guard.identified(self, identity)

    def admit(self, proofs: Collection[str]) -> None:
        """Admit everybody: no access policy applies to the broker itself."""

    def permits(self, action: Action, stream: str) -> bool:
        return True

    def check(self, action: Action, stream: str) -> None:
        """Allow everything: no access policy applies to the broker itself."""

    def publish(
        self, runs: Sequence[Run], own: Sequence[Run] = (), peer: Identity | None = None
    ) -> Deferred[tuple[int, ...]]:
        """Publish *runs* for *peer*; see :meth:`IBroker.publish`.

        :param peer: the peer whose limits new streams of *runs* count against; None: the server, which has none
        """
        new: list[str] = []
        counted, began = runs, self.clock.seconds()
        try:
            if self.journal.state is not JournalState.WRITABLE:
                raise self._refusal()
            for run in runs:
                self._check(run, new, peer)
            by_peer = len(new)
            if own:
                for run in own:
                    self._check(run, new)
                runs = (*runs, *own)
            room, wanted = 0, []
            for run in runs:
                room += run.room
                wanted.append((run.stream, len(run.lengths) // 4))
            if room > MAX_PUBLISH:
                raise PayloadTooLarge(
                    f"publish of {room} bytes exceeds the limit of {MAX_PUBLISH} bytes; publish less at a time"
                )
            if by_peer and peer is not None:
                self._new_streams.charge(peer, new[:by_peer])
            firsts = self.sequencer.reserve(wanted)
        except PublishError as refusal:
            for stream in new:
                del self._largest[stream]
            return fail(refusal)
        durable: Deferred[None] = self.journal.append(runs, firsts)
        return durable.addCallback(self._acknowledged, counted, firsts, began)

    def publish_once(self, runs: Sequence[Run], key: str) -> Deferred[int]:
        return self.once.publish(runs, key, self.publish)

    def subscribe(self, stream: str, after: int | None, sink: ISink) -> ISubscription:
        return self.subscribe_as(None, stream, after, sink)

    def subscribe_as(self, owner: Owner | None, stream: str, after: int | None, sink: ISink) -> Cursor:
        """Subscribe for *owner*, whose ``unsubscribed`` is called when the subscription has ended."""
        oldest, last = self.journal.bounds(stream)
        position = last if after is None else max(after, oldest - 1)
        if not self.follows:  # a server that follows may not have yet what another one has delivered
            position = min(position, last)
        return self._fanout.subscribe(stream, position, last, sink, owner)

    def streams(self) -> Collection[str]:
        return [stream for stream in self.journal.ends() if not stream.startswith(".")]

    def watch_streams(self, created: Callable[[str], None]) -> Callable[[], None]:
        self._created.append(created)
        return lambda: self._created.remove(created)

    def exists(self, stream: str) -> bool:
        return stream in self.journal.ends()

    def bounds(self, stream: str) -> tuple[int, int]:
        bounds: tuple[int, int] = self.journal.bounds(stream)
        return bounds

    def ready(self, producer: Producer) -> None:
        self._fanout.rounds.ready(producer)

    def read(self, stream: str, start: int, max_bytes: int) -> tuple[Run, ...]:
        runs: tuple[Run, ...] = self.journal.read(stream, start, max_bytes)
        return runs

    def retire(self, streams: Sequence[str], by: str = "the server") -> Deferred[None]:
        """Retire *streams*.

        :param by: for the log, the peer or the option that requested it
        """
        streams = tuple(dict.fromkeys(streams))
        try:
            if self.journal.state is not JournalState.WRITABLE:
                raise self._refusal()
            for stream in streams:
                self._check_retirable(stream)
        except FyrehoseError as refusal:
            return fail(refusal)
        # Forget them now, so that a later publish creates them again with the next numbers.
        for stream in streams:
            del self._largest[stream]
        retiring: Deferred[None] = self.journal.retire(streams)
        return retiring.addCallbacks(self._retired, self._not_retired, (streams, by), errbackArgs=(streams,))

    def retirable(self, stream: str) -> bool:
        """Return whether *stream* exists, does not belong to the server, and has no listener bound to it."""
        return stream in self._largest and not stream.startswith(".") and self._bound_to(stream) is None

    def is_empty(self, stream: str) -> bool:
        """Return whether no record of *stream* is served, and none is being written."""
        oldest, last = self.journal.bounds(stream)
        return bool(oldest > last == self.sequencer.last(stream))

    def cursors(self) -> Collection[Cursor]:
        """Return every subscription, in the order in which they were made."""
        return self._fanout.cursors.keys()

    def tallies(self) -> Mapping[str, Tally]:
        """Return the totals of the subscriptions, by protocol."""
        return self._fanout.tallies

    def subscribers(self, stream: str) -> int:
        """Return the number of clients that receive the records of *stream*."""
        return self._fanout.subscribers(stream)

    def restrict(self, stream: str, max_payload: int) -> None:
        self._restricted[stream] = max_payload
        if stream in self._largest:
            self._largest[stream] = self._max_payload(stream)

    def durable(self, ends: Mapping[str, int]) -> None:
        if self.grown is not None:
            self.grown.update(ends)
        if self.follows:
            for state in (self.table.stream, self.once.stream):
                if state.name in ends:
                    state.follow()
        self._fanout.durable(ends)

    def state_changed(self, state: JournalState, reason: str) -> None:
        """Take the numbers of the streams from the journal, which has changed its state, and tell the watchers."""
        # Appends that were not durable have failed: nobody has seen their numbers, and their streams were not created.
        ends = self.journal.ends()
        waiting: list[Deferred[None]] = []
        if self.follows and state is JournalState.WRITABLE:
            # This server leads from now on, and other servers have written its log until now.
            self.follows = False
            self._recover(ends)
            self.once.open()
            waiting, self._awaiting_lead = self._awaiting_lead, waiting
        else:
            self._restore(ends)
            self._largest = {stream: largest for stream, largest in self._largest.items() if stream in ends}
        self.watch(state, reason)
        for leading in waiting:
            leading.callback(None)

    def _restore(self, ends: Mapping[str, int]) -> None:
        """Continue the numbers of every stream, also of retired ones, where the journal ends."""
        self.sequencer.restore({**self.journal.retired(), **ends}, self.journal.floor)

    def _check_retirable(self, stream: str) -> None:
        if stream.startswith("."):
            raise StreamInUse(
                f"stream {stream!r} cannot be retired: names that begin with a dot are reserved for the server"
            )
        if stream not in self._largest:
            raise NoSuchStream(f"there is no stream {stream!r}")
        listener = self._bound_to(stream)
        if listener is not None:
            raise StreamInUse(
                f"stream {stream!r} cannot be retired: the listener {listener.name} is bound to it by the option "
                f"{listener.name}.stream, and would create it again"
            )

    def _retired(self, _: None, streams: Sequence[str], by: str) -> None:
        self.sequencer.raise_floor(self.journal.floor)
        for stream in streams:
            self._fanout.forget_stream(stream)
        self.counters.add("server", "streams-retired", len(streams))
        if len(streams) == 1:
            log.info("stream {stream!r} was retired by {by}", stream=streams[0], by=by)
        else:
            log.info("{count} streams were retired by {by}", count=len(streams), by=by)

    def _not_retired(self, failure: Failure, streams: Sequence[str]) -> Failure:
        ends = self.journal.ends()
        for stream in streams:
            if stream in ends:
                self._largest.setdefault(stream, self._max_payload(stream))
        return failure

    def _acknowledged(self, _: None, runs: Sequence[Run], firsts: tuple[int, ...], began: float) -> tuple[int, ...]:
        if runs:
            published = self.published.get(runs[0].source)
            if published is None:
                published = self.published[runs[0].source] = PublishTotals()
            published.add(runs, self.clock.seconds() - began)
            if self.grown is not None:
                grown = self.grown_bytes
                for run in runs:
                    grown[run.stream] = grown.get(run.stream, 0) + len(run.payload)
        return firsts

    def _refusal(self) -> PublishError:
        """Return the error of everything that needs a writable journal while it is not."""
        state = self.journal.state
        if state is JournalState.READ_ONLY:
            why = self.journal.refusal  # a server that follows names the leader
            if self.follows:
                return Following(why or "another server leads; publish there", self.journal.leader or "")
            if why:
                return Unreplicated(why)
            return ReadOnly("the journal's disk is full; publishing resumes when it has room again")
        return Closed(f"the journal is {state.value}")

    def _check(self, run: Run, new: list[str], peer: Identity | None = None) -> None:
        """Check that *run* may be published; add its stream to *new* if that is created for it."""
        largest = self._largest.get(run.stream)
        if largest is None:
            largest = self._create(run.stream, peer)
            new.append(run.stream)
        if len(run.payload) > largest and max(run.sizes) > largest:
            raise PayloadTooLarge(
                f"payload of {max(run.sizes)} bytes exceeds the limit of {largest} bytes of stream {run.stream!r}"
            )
        for label in (run.producer, run.topic, run.content_type):
            if label is not None and len(label) > MAX_NAME:
                raise InvalidName(f"label {label[:80]!r} has {len(label)} characters; the limit is {MAX_NAME}")
        if not run.lengths:
            raise ValueError("a run without records was published")

    def _bound_to(self, stream: str) -> Listener | None:
        """Return the listener whose settings bind it to *stream*, if any."""
        return next((listener for listener in self.listeners if listener.stream == stream), None)

    def _max_payload(self, stream: str) -> int:
        """Return the limit of payloads of *stream*, by :meth:`restrict` and by the configuration."""
        return min(self._restricted.get(stream, MAX_PAYLOAD), self.rules.max_payload(stream))

    def _create(self, stream: str, peer: Identity | None) -> int:
        """Create *stream* for *peer* (None: the server), and return its limit of payloads."""
        try:
            size = len(stream.encode())
        except UnicodeEncodeError:
            size = 0
        if not 1 <= size <= MAX_NAME:
            raise InvalidName(f"invalid stream name {stream[:80]!r}: expected 1 to {MAX_NAME} bytes of UTF-8")
        if len(self._largest) >= self.max_streams:
            raise TooManyStreams(
                f"stream {stream!r} cannot be created: the server has reached its limit of {self.max_streams} streams; "
                "raise --max-streams, or publish to a stream that exists"
            )
        if peer is not None and not self.rules.new_streams(stream) and self._bound_to(stream) is None:
            raise NewStreamForbidden(
                f"stream {stream!r} does not exist, and the configuration lets no peer create it; publish to a stream "
                "that exists, or set new-streams = true in a [[stream]] table"
            )
        largest = self._largest[stream] = self._max_payload(stream)
        self.table.stream_created(stream)
        for created in list(self._created):
            created(stream)
        return largest
