"""The broker: the way of every message through the server, on one page.

    publish -> number -> append -> durable -> the publisher's Deferred fires, and the cursors go on

Nothing leaves before it is durable: acknowledgements hang on the Deferred, deliveries on :meth:`Broker.durable`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import attrs
from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.core.budget import Budget
from fyrehose.core.fanout import Cursor, Fanout, Owner, Tally
from fyrehose.core.guard import Guard
from fyrehose.core.quotas import STREAMS, NewStreams, PeerLimits, Subscriptions
from fyrehose.core.streams import UNLIMITED, StreamRules
from fyrehose.errors import (
    Closed,
    FyrehoseError,
    InvalidName,
    NewStreamForbidden,
    NoSuchStream,
    PayloadTooLarge,
    PublishError,
    ReadOnly,
    StreamInUse,
    TooManyStreams,
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
from fyrehose.records import MAX_NAME, MAX_PAYLOAD, MAX_PUBLISH, Run

log = Logger()

#: No server may be told to hold more: a segment begins with all their numbers, in one batch.
MAX_STREAMS = 200_000


@attrs.define(eq=False)
class Taken:
    """What came in by one listener and became durable: publishes, their messages, and these in bytes of payload."""

    publishes: int = 0
    messages: int = 0
    bytes: int = 0


@implementer(IBroker, IJournalObserver)
@attrs.define(eq=False)
class Broker:
    """Numbers what comes in, has it written, and lets it go.

    :ivar clock: gives others their turn while much is delivered
    :ivar max_streams: a stream more than these cannot be made
    :ivar limits: what one peer may make the server remember
    :ivar rules: limits of streams by their names
    :ivar guard: who may do what; who uses the broker itself, and not as somebody, may do everything
    :ivar watch: is told when the journal can do more or less than before
    """

    clock: IReactorTime
    journal: IJournal
    sequencer: ISequencer
    counters: Counters = attrs.field(factory=Counters, kw_only=True)
    budget: Budget = attrs.field(factory=Budget, kw_only=True)
    max_streams: int = attrs.field(default=100_000, kw_only=True, validator=attrs.validators.le(MAX_STREAMS))
    limits: PeerLimits = attrs.field(factory=PeerLimits, kw_only=True)
    rules: StreamRules = attrs.field(default=UNLIMITED, kw_only=True)
    guard: Guard = attrs.field(factory=Guard, kw_only=True)
    watch: Callable[[JournalState, str], None] = attrs.field(default=lambda state, reason: None, kw_only=True)
    #: where it can be come to, for those who look after it
    listeners: list[Listener] = attrs.field(factory=list, init=False)
    #: by source; a publish is that of its first run
    taken: dict[str, Taken] = attrs.field(factory=dict, init=False)
    #: the streams that grew since an observer emptied it; None: nobody wants to know
    grown: set[str] | None = attrs.field(default=None, init=False)
    #: subscriptions of peers, by address
    subscriptions: Subscriptions = attrs.field(init=False)
    _new_streams: NewStreams = attrs.field(init=False)
    _fanout: Fanout = attrs.field(init=False)
    _largest: dict[str, int] = attrs.field(factory=dict, init=False)
    _restricted: dict[str, int] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._fanout = Fanout(self.clock, self.journal.read, self.journal.expired)
        self.subscriptions = Subscriptions(self.budget, self.limits.subscriptions)
        most = self.limits.streams or min(STREAMS, max(1, self.max_streams // 2))
        self._new_streams = NewStreams(self.limits, most, self.clock.seconds)

    def open(self) -> Deferred[None]:
        """Open the journal and go on where it ends."""
        opening: Deferred[Mapping[str, int]] = self.journal.open(self)
        return opening.addCallback(self._opened)

    def _opened(self, ends: Mapping[str, int]) -> None:
        self._restore(ends)
        self._largest = {stream: self._max_payload(stream) for stream in ends}

    def close(self) -> Deferred[None]:
        """Commit what was published, then close the journal and end every subscription."""
        return self.journal.close().addBoth(self._closed)

    def _closed(self, result: None) -> None:
        self._fanout.close(Closed("the server is closing"))
        return result

    def identified(self, identity: Identity) -> IBroker:
        return self.guard.identified(self, identity)

    def admit(self, proofs: Collection[str]) -> None:
        """Do nothing: a peer that was not identified may do everything."""

    def permits(self, action: Action, stream: str) -> bool:
        return True

    def check(self, action: Action, stream: str) -> None:
        """Whoever has the broker itself may."""

    def publish(
        self, runs: Sequence[Run], own: Sequence[Run] = (), maker: Identity | None = None
    ) -> Deferred[tuple[int, ...]]:
        """Publish for the peer *maker*, which the streams that *runs* make are charged to; None: the server."""
        new: list[str] = []
        try:
            self._check_open()
            for run in runs:
                self._check(run, new, maker)
            made = len(new)
            if own:
                for run in own:
                    self._check(run, new)
                runs = (*runs, *own)
            if (room := sum(run.room for run in runs)) > MAX_PUBLISH:
                raise PayloadTooLarge(
                    f"{room} bytes at once are too many, {MAX_PUBLISH} are the most: publish less at a time"
                )
            if made and maker is not None:
                self._new_streams.charge(maker, new[:made])
            firsts = self.sequencer.reserve([(run.stream, len(run)) for run in runs])
        except PublishError as refusal:
            for stream in new:
                del self._largest[stream]
            return fail(refusal)
        durable: Deferred[None] = self.journal.append(runs, firsts)
        return durable.addCallback(self._acknowledged, runs, firsts)

    def subscribe(self, stream: str, after: int | None, sink: ISink) -> ISubscription:
        return self.subscribe_as(None, stream, after, sink)

    def subscribe_as(self, owner: Owner | None, stream: str, after: int | None, sink: ISink) -> Cursor:
        """Subscribe for *owner*, who is told when the subscription has ended."""
        oldest, last = self.journal.bounds(stream)
        position = last if after is None else min(max(after, oldest - 1), last)
        return self._fanout.subscribe(stream, position, last, sink, owner)

    def exists(self, stream: str) -> bool:
        return stream in self.journal.ends()

    def bounds(self, stream: str) -> tuple[int, int]:
        bounds: tuple[int, int] = self.journal.bounds(stream)
        return bounds

    def read(self, stream: str, start: int, max_bytes: int) -> tuple[Run, ...]:
        runs: tuple[Run, ...] = self.journal.read(stream, start, max_bytes)
        return runs

    def retire(self, streams: Sequence[str], by: str = "the server") -> Deferred[None]:
        """Retire *streams*; *by* says for the log who wants it."""
        streams = tuple(dict.fromkeys(streams))
        try:
            self._check_open()
            for stream in streams:
                self._check_retirable(stream)
        except FyrehoseError as refusal:
            return fail(refusal)
        # At once: a publish that comes later makes the name anew, and the sequencer counts on.
        for stream in streams:
            del self._largest[stream]
        retiring: Deferred[None] = self.journal.retire(streams)
        return retiring.addCallbacks(self._retired, self._not_retired, (streams, by), errbackArgs=(streams,))

    def retirable(self, stream: str) -> bool:
        """Return whether *stream* exists, and neither is the server's own nor has a listener bound to it."""
        return stream in self._largest and not stream.startswith(".") and self._bound_to(stream) is None

    def is_empty(self, stream: str) -> bool:
        """Return whether no record of *stream* is served any more, and none is on its way to the disk."""
        oldest, last = self.journal.bounds(stream)
        return bool(oldest > last == self.sequencer.last(stream))

    def cursors(self) -> Collection[Cursor]:
        """Return every subscription, in the order in which they were made."""
        return self._fanout.cursors.keys()

    def tallies(self) -> Mapping[str, Tally]:
        """Return for each protocol the number of its subscriptions, and what they were delivered."""
        return self._fanout.tallies

    def subscribers(self, stream: str) -> int:
        """Return the number of subscriptions to *stream*."""
        return self._fanout.subscribers(stream)

    def restrict(self, stream: str, max_payload: int) -> None:
        self._restricted[stream] = max_payload
        if stream in self._largest:
            self._largest[stream] = self._max_payload(stream)

    def durable(self, ends: Mapping[str, int]) -> None:
        if self.grown is not None:
            self.grown.update(ends)
        self._fanout.durable(ends)

    def state_changed(self, state: JournalState, reason: str) -> None:
        # What was appended and not durable has failed: its numbers were never seen outside, nor its streams made.
        ends = self.journal.ends()
        self._restore(ends)
        self._largest = {stream: largest for stream, largest in self._largest.items() if stream in ends}
        self.watch(state, reason)

    def _restore(self, ends: Mapping[str, int]) -> None:
        """Let the numbers of every stream go on where the journal ends, those of retired streams, too."""
        self.sequencer.restore({**self.journal.retired(), **ends}, self.journal.floor)

    def _check_retirable(self, stream: str) -> None:
        if stream.startswith("."):
            raise StreamInUse(f"stream {stream!r} cannot be retired: names that begin with a dot are the server's own")
        if stream not in self._largest:
            raise NoSuchStream(f"there is no stream {stream!r}")
        listener = self._bound_to(stream)
        if listener is not None:
            raise StreamInUse(
                f"stream {stream!r} cannot be retired: the listener {listener.name} is bound to it by the option "
                f"{listener.name}.stream, and would make it again"
            )

    def _retired(self, _: None, streams: Sequence[str], by: str) -> None:
        self.sequencer.raise_floor(self.journal.floor)
        retired = self.journal.retired()
        for stream in streams:
            self._fanout.forget_stream(stream)
            if self.sequencer.last(stream) > retired.get(stream, self.journal.floor):
                # What was under way came after it, so the name has returned.
                self._largest.setdefault(stream, self._max_payload(stream))
        self.counters.add("server", "streams-retired", len(streams))
        if len(streams) == 1:
            log.info("stream {stream!r} is retired by {by}", stream=streams[0], by=by)
        else:
            log.info("{count} streams are retired by {by}", count=len(streams), by=by)

    def _not_retired(self, failure: Failure, streams: Sequence[str]) -> Failure:
        ends = self.journal.ends()
        for stream in streams:
            if stream in ends:
                self._largest.setdefault(stream, self._max_payload(stream))
        return failure

    def _acknowledged(self, _: None, runs: Sequence[Run], firsts: tuple[int, ...]) -> tuple[int, ...]:
        count = size = 0
        for run in runs:
            count += len(run.lengths) // 4
            size += len(run.payload)
        if runs:
            taken = self.taken.get(runs[0].source)
            if taken is None:
                taken = self.taken[runs[0].source] = Taken()
            taken.publishes += 1
            taken.messages += count
            taken.bytes += size
        return firsts

    def _check_open(self) -> None:
        state = self.journal.state
        if state is JournalState.READ_ONLY:
            raise ReadOnly("the journal's disk has no room: nothing is accepted until there is some again")
        if state is not JournalState.WRITABLE:
            raise Closed(f"the journal is {state.value}")

    def _check(self, run: Run, new: list[str], maker: Identity | None = None) -> None:
        largest = self._largest.get(run.stream)
        if largest is None:
            largest = self._admit(run.stream, maker)
            new.append(run.stream)
        if len(run.payload) > largest and max(run.sizes) > largest:
            raise PayloadTooLarge(
                f"stream {run.stream!r} takes payloads of {largest} bytes at the most, not {max(run.sizes)}"
            )
        for label in (run.producer, run.topic, run.content_type):
            if label is not None and len(label) > MAX_NAME:
                raise InvalidName(
                    f"a label of {len(label)} characters is too long, {MAX_NAME} are the most: {label[:80]!r}"
                )
        if not len(run):
            raise ValueError("a run without records was published")

    def _bound_to(self, stream: str) -> Listener | None:
        """Return the listener that its settings bind to *stream*, if there is one."""
        return next((listener for listener in self.listeners if listener.stream == stream), None)

    def _max_payload(self, stream: str) -> int:
        """Return the largest payload that *stream* takes, by its own restriction and by the configuration."""
        return min(self._restricted.get(stream, MAX_PAYLOAD), self.rules.max_payload(stream))

    def _admit(self, stream: str, maker: Identity | None) -> int:
        """Make the new stream *stream* for the peer *maker* (None: the server); return its largest payload."""
        try:
            size = len(stream.encode())
        except UnicodeEncodeError:
            size = 0
        if not 1 <= size <= MAX_NAME:
            raise InvalidName(f"a stream's name is 1 to {MAX_NAME} bytes of UTF-8, not {stream[:80]!r}")
        if len(self._largest) >= self.max_streams:
            raise TooManyStreams(
                f"stream {stream!r} would be one more than the {self.max_streams} that this server may hold; "
                "raise --max-streams, or publish to one that exists"
            )
        if maker is not None and not self.rules.new_streams(stream) and self._bound_to(stream) is None:
            raise NewStreamForbidden(
                f"stream {stream!r} does not exist, and the configuration lets no peer make it: publish to a stream "
                "that exists, or allow it with new-streams = true in a [[stream]] table"
            )
        largest = self._largest[stream] = self._max_payload(stream)
        return largest
