"""The broker, which every message passes.

    publisher.py -> the journal -> durable -> cursors deliver, and publishers settle

Nothing leaves the server before it is durable: :meth:`Broker.durable` triggers deliveries, and a publish is
acknowledged when its publisher settles it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from threading import get_ident
from typing import Any, TypeVar
from weakref import WeakMethod

import attrs
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from fyrehose.broker.fanout import Cursor, Fanout
from fyrehose.broker.guard import Guard
from fyrehose.broker.once import KEPT, MOST_KEYS, PublishedOnce
from fyrehose.broker.peer import Peer, RightsWait
from fyrehose.broker.publisher import PublishTotals, fire, publish_deferred
from fyrehose.broker.quotas import STREAMS, NamedRoom, NewStreams, PeerLimits, Subscriptions
from fyrehose.broker.run_checks import check_names
from fyrehose.broker.sequencer import Sequencer
from fyrehose.broker.stream_watch import StreamWatch
from fyrehose.broker.streams import UNLIMITED, StreamRules
from fyrehose.errors import (
    Closed,
    FyrehoseError,
    InvalidRun,
    NewStreamForbidden,
    NoSuchStream,
    OutcomeUnknown,
    PayloadTooLarge,
    PublishError,
    StreamInUse,
    TooManyStreams,
    WrongThread,
)
from fyrehose.identity import Action, Identity
from fyrehose.interfaces import (
    IJournal,
    IJournalObserver,
    ISink,
    JournalState,
)
from fyrehose.net.inflight import InFlight
from fyrehose.net.turns import SteppedWork, Turns
from fyrehose.observe.counters import Counters
from fyrehose.observe.listeners import Listener
from fyrehose.observe.meters import Stalls
from fyrehose.records import MAX_PAYLOAD, Run
from fyrehose.standing import ServerRole
from fyrehose.subscriptions import letters
from fyrehose.subscriptions.progress import Creator
from fyrehose.subscriptions.table import SubscriptionTable

log = Logger()
T = TypeVar("T")

#: The largest valid ``max_streams``; it is limited because every segment begins with a batch that holds the last number
#: of each stream.
MAX_STREAMS = 200_000
#: How many streams for dead letters of listeners may be created beyond ``max_streams``.
RESERVED = 16
#: A server that has at most this many changes to replay leads at once; these take some hundredths of a second.
FEW_CHANGES = 5_000


@implementer(IJournalObserver)
@attrs.define(eq=False)
class Broker(Peer):
    """The broker: it numbers published runs, appends them to the journal, and delivers them once they are durable.

    The broker itself is the peer with all rights; :meth:`identified` returns one with those of an identity.

    :ivar clock: the reactor, or a Clock: spreads deliveries over several turns of the reactor
    :ivar max_streams: the largest number of streams that the server may hold
    :ivar limits: limits of the state that one peer may create
    :ivar rules: the limits of streams, which are chosen by the name of a stream
    :ivar guard: the access policy in force
    :ivar watch: called with the new state of the journal and the reason for the change
    """

    broker: Broker = attrs.field(init=False)
    rights: None = attrs.field(default=None, init=False)
    clock: IReactorTime
    journal: IJournal
    sequencer: Sequencer
    counters: Counters = attrs.field(factory=Counters, kw_only=True)
    budget: InFlight = attrs.field(factory=InFlight, kw_only=True)
    turns: Turns = attrs.field(default=attrs.Factory(lambda self: Turns(self.clock), takes_self=True), kw_only=True)
    #: the turns of the reactor that took too long, as counted by the server's watchdog
    stalls: Stalls = attrs.field(factory=Stalls, kw_only=True)
    max_streams: int = attrs.field(default=100_000, kw_only=True, validator=attrs.validators.le(MAX_STREAMS))
    limits: PeerLimits = attrs.field(factory=PeerLimits, kw_only=True)
    rules: StreamRules = attrs.field(default=UNLIMITED, kw_only=True)
    guard: Guard = attrs.field(factory=Guard, kw_only=True)
    watch: Callable[[JournalState, str], None] = attrs.field(default=lambda state, reason: None, kw_only=True)
    #: whether the server will stop soon, so that new clients should use another server; it still answers all requests
    draining: bool = attrs.field(default=False, init=False)
    #: open listeners, for operators
    listeners: list[Listener] = attrs.field(factory=list, init=False)
    #: totals of publishes, by source; a publish counts for the source of its first run
    published: dict[str, PublishTotals] = attrs.field(factory=dict, init=False)
    #: streams that grew since an observer emptied this set; None: there is no observer
    grown: set[str] | None = attrs.field(default=None, init=False)
    #: payload published to each stream of ``grown``, in bytes; the observer empties this mapping, too
    grown_bytes: dict[str, int] = attrs.field(factory=dict, init=False)
    #: subscriptions of peers, by address
    subscriptions: Subscriptions = attrs.field(init=False)
    #: what waits with rights of peers, besides cursors
    waiting: dict[RightsWait, None] = attrs.field(factory=dict, init=False)
    #: all subscriptions
    table: SubscriptionTable = attrs.field(init=False)
    #: publishes with a key
    once: PublishedOnce = attrs.field(init=False)
    #: the largest number of named subscriptions
    named_subscriptions: int = attrs.field(default=1_000, kw_only=True)
    #: the shortest time for which the keys of publishes are kept, in seconds
    keys_kept: float = attrs.field(default=KEPT, kw_only=True)
    #: the largest number of such keys
    most_keys: int = attrs.field(default=MOST_KEYS, kw_only=True)
    #: whether another server writes the journal, so that this broker only replays the state that it will lead with
    follows: bool = attrs.field(default=False, init=False)
    #: whether the log says already that a reader has seen more than this journal has
    _reader_ahead: bool = attrs.field(default=False, init=False)
    _awaiting_lead: list[Deferred[None]] = attrs.field(factory=list, init=False)
    #: the publishes of an embedding program that are not durable, in their order
    _awaited: dict[Deferred[Any], None] = attrs.field(factory=dict, init=False)
    #: called when publishes have waited too long for the journal
    _stuck: list[WeakMethod[Callable[[str], None]]] = attrs.field(factory=list, init=False)
    _new_streams: NewStreams = attrs.field(init=False)
    fanout: Fanout = attrs.field(init=False)
    #: who is told of new streams
    stream_watch: StreamWatch = attrs.field(init=False)
    #: the largest payload that each stream takes, in bytes
    largest: dict[str, int] = attrs.field(factory=dict, init=False)
    _restricted: dict[str, int] = attrs.field(factory=dict, init=False)
    #: the thread in which the journal was opened, which is the reactor's; 0 before that
    _thread: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.broker = self
        self.budget.window = lambda: min(self.journal.window, self.budget.limit // 2)
        self.turns.long = lambda kind: self.counters.add("server", f"long-turn-{kind}")
        super().__attrs_post_init__()
        self.fanout = Fanout(self.turns, self.journal.read, self.journal.expired)
        self.subscriptions = Subscriptions(self.budget, self.limits.subscriptions)
        self._new_streams = NewStreams(self._most_new_streams)
        self.stream_watch = StreamWatch(self.turns)
        publish = partial(publish_deferred, self.publisher(None, fire))
        self.once = PublishedOnce(
            self.journal, self.sequencer, self.budget, self.counters, self.keys_kept, self.most_keys, turns=self.turns
        )
        self.table = SubscriptionTable(
            self.clock,
            self.journal,
            publish,
            NamedRoom(self.budget, self.named_subscriptions),
            streams=lambda: self.largest.keys(),
            admit=self.admit_letter,
            forget_streams=self.forget_streams,
            now=self.journal.clock.now,
            turns=self.turns,
        )

    def open(self) -> Deferred[None]:
        """Open the journal, and continue the numbering of its streams."""
        self.journal.why_not_ready = self._why_not_ready
        opening: Deferred[Mapping[str, int]] = self.journal.open(self)
        return opening.addCallback(self._opened)

    def _opened(self, ends: Mapping[str, int]) -> None:
        self._thread = get_ident()
        self._recover(ends)
        self.follows = self.standing.role is ServerRole.FOLLOWER
        if self.follows:
            self.once.stream.follow()
        else:
            self.once.open()

    def _why_not_ready(self) -> str:
        """Return why this server would be silent for long if it led now; empty: it would not."""
        lag = max(state.lag for state in (self.table.stream, self.once.stream))
        return f"it has {lag} changes of its state to replay" if self.follows and lag > FEW_CHANGES else ""

    def check_thread(self) -> None:
        """Check that the caller is in the reactor's thread.

        :raises WrongThread: it is in another one
        """
        if self._thread and get_ident() != self._thread:
            raise WrongThread(
                "the broker was called in another thread than the reactor's; call it by "
                "reactor.callFromThread(function, ...), or by blockingCallFromThread to wait for the result"
            )

    def when_leading(self) -> Deferred[None]:
        if not self.follows:
            return succeed(None)
        self._awaiting_lead.append(Deferred())
        return self._awaiting_lead[-1]

    def _recover(self, ends: Mapping[str, int]) -> None:
        self._restore(ends)
        self.largest = {stream: self._max_payload(stream) for stream in ends}
        self.table.open()
        self.journal.keeper.unread = self.table.unread

    def close(self) -> Deferred[None]:
        """Commit everything that was published, then close the journal and end every subscription."""
        self.table.close()
        return self.journal.close().addBoth(self._closed)

    def _closed(self, result: None) -> None:
        self.fanout.close(Closed("the server is closing"))
        self._end_awaited("the server was closed")
        return result

    def until_closed(self, published: Deferred[T]) -> Deferred[T]:
        """Return *published*, which fails with OutcomeUnknown if this broker ends before it fires."""

        def fired(result: Any) -> Any:
            del self._awaited[published]
            return result

        if not published.called:
            self._awaited[published] = None
            published.addBoth(fired)
        return published

    def _end_awaited(self, why: str) -> None:
        for published in list(self._awaited):
            published.errback(OutcomeUnknown(f"{why}; whether this is stored is unknown"))

    def when_stuck(self, let_go: Callable[[str], None]) -> None:
        self._stuck.append(WeakMethod(let_go))

    def stuck(self, reason: str) -> None:
        """Let go the peers that wait for publishes."""
        self._stuck = [each for each in self._stuck if each() is not None]
        for each in self._stuck:
            let_go = each()
            if let_go is not None:
                let_go(reason)

    def subscribe_as(self, owner: Peer | None, stream: str, after: int | None, sink: ISink) -> Cursor:
        """Subscribe for *owner*, whose ``unsubscribed`` is called when the subscription has ended."""
        oldest, last = self.journal.bounds(stream)
        position = last if after is None else max(after, oldest - 1)
        if self.is_beyond(stream, position, last):
            position = oldest - 1  # the number is one of another journal
        return self.fanout.subscribe(stream, position, last, sink, owner)

    def is_beyond(self, stream: str, position: int, last: int) -> bool:
        """Return whether number *position*, which a reader has seen, is one of another journal; log the first such one.

        :param last: the last number of the stream here
        """
        other = position > last and not self._may_come(stream, position)
        if other:
            self._note_position(stream, position, last)
        return other

    def _may_come(self, stream: str, seq: int) -> bool:
        """Return whether another server of the cluster may have delivered record *seq*, which is not here yet.

        A follower may lag behind the leader.  The leader numbers all records, and may be the last to store them.
        """
        role = self.standing.role
        return role is ServerRole.FOLLOWER or (role is ServerRole.LEADER and seq <= self.sequencer.last(stream))

    def _note_position(self, stream: str, position: int, last: int) -> None:
        """Log, once, that a reader has seen number *position*, which *stream* has not reached: the journal is older."""
        if self._reader_ahead:
            return
        self._reader_ahead = True
        log.warn(
            "a reader asks for what comes after number {position} of stream {stream!r}, which ends at {last}: if it "
            "has seen that number here, this journal is an older copy, and gives out numbers again; stop the server, "
            "run `fyrehose journal restore` from its directory into a new one, and start it there",
            position=position,
            stream=stream,
            last=last,
        )

    def retire_as(self, by: str, streams: Sequence[str]) -> Deferred[None]:
        """Retire *streams* without asking for rights.

        :param by: for the log, the peer or the option that requested it
        """
        streams = tuple(dict.fromkeys(streams))
        try:
            self.standing.check_writable()
            for stream in streams:
                self._check_retirable(stream)
        except FyrehoseError as refusal:
            return fail(refusal)
        # Forget them now, so that a later publish creates them again with the next numbers.
        for stream in streams:
            del self.largest[stream]
        retiring: Deferred[None] = self.journal.retire(streams)
        return retiring.addCallback(self._retired, streams, by)

    def retirable(self, stream: str) -> bool:
        """Return whether *stream* exists, does not belong to the server, and has no listener bound to it."""
        return stream in self.largest and not stream.startswith(".") and self._bound_to(stream) is None

    def is_empty(self, stream: str) -> bool:
        """Return whether no record of *stream* is served, and none is being written."""
        oldest, last = self.journal.bounds(stream)
        return bool(oldest > last == self.sequencer.last(stream))

    def end_forbidden(self) -> Deferred[int]:
        """End, in steps, the subscriptions that the policy does not allow now; fires with how many these were."""
        return SteppedWork(self.turns, self._end_forbidden()).begin()

    def _end_forbidden(self) -> Generator[None, None, int]:
        ended = 0
        every: tuple[Cursor | RightsWait, ...] = (*self.fanout.cursors, *self.waiting)
        for each in every:
            try:
                ended += self._ended_cursor(each) if isinstance(each, Cursor) else self._ended_wait(each)
            except Exception:  # an error of one must not let the others read on
                log.failure("a subscription could not be ended by the policy; please report this bug")
            yield
        return ended

    def _ended_cursor(self, cursor: Cursor) -> bool:
        """End *cursor* if the policy does not allow it; return whether it did not."""
        rights = None if cursor.owner is None or cursor.stopped else cursor.owner.rights
        if rights is None or rights.permits(Action.SUBSCRIBE, cursor.stream):
            return False
        cursor.end(rights.refusal(Action.SUBSCRIBE, cursor.stream))
        return True

    def _ended_wait(self, waiting: RightsWait) -> bool:
        """End what waits with rights if the policy does not allow one of them; return whether it did not."""
        rights = waiting.peer.rights
        lost = next((each for each in waiting.rights if rights is not None and not rights.permits(*each)), None)
        if rights is None or lost is None or waiting not in self.waiting:
            return False
        waiting.end(rights.refusal(*lost))
        return True

    def restrict(self, stream: str, max_payload: int) -> None:
        self._restricted[stream] = max_payload
        if stream in self.largest:
            self.largest[stream] = self._max_payload(stream)

    def change_limits(self, rules: StreamRules, limits: PeerLimits, max_streams: int, named_subscriptions: int) -> None:
        """Use other limits from now on, in each stream after a few turns; streams and subscriptions above them stay."""
        self.rules, self.limits, self.max_streams = rules, limits, max_streams
        SteppedWork(self.turns, self._limit_payloads()).begin()
        self.subscriptions.change(limits.subscriptions)
        self._new_streams.most = self._most_new_streams
        self.named_subscriptions = named_subscriptions
        self.table.room.change(named_subscriptions)

    def _limit_payloads(self) -> Iterator[None]:
        """Apply the present rules to the payloads of all streams, one in each step."""
        for stream in list(self.largest):
            if stream in self.largest:
                self.largest[stream] = self._max_payload(stream)
                yield

    @property
    def _most_new_streams(self) -> int:
        """Return how many streams one peer may create."""
        return self.limits.streams or min(STREAMS, max(1, self.max_streams // 2))

    def durable(self, ends: Mapping[str, int]) -> None:
        """Pass the durable records first to the server's replayed states, then to all kinds of subscriptions."""
        if self.grown is not None:
            self.grown.update(ends)
        if self.follows:
            for state in (self.table.stream, self.once.stream):
                if state.name in ends:
                    state.follow()
            for stream in ends:
                if stream not in self.largest:  # the leader has created it
                    self.largest[stream] = self._max_payload(stream)
                    self.stream_watch.unborn.add(stream)
        if self.stream_watch.unborn:
            self.stream_watch.durable(ends)
        if self.fanout.cursors:
            self.fanout.durable(ends)
        if self.table.entries:
            self.table.durable(ends)

    def state_changed(self, state: JournalState, reason: str) -> None:
        """Take over the streams if this server leads from now on; let all peers go if the journal has failed."""
        waiting: list[Deferred[None]] = []
        if self.follows and state is JournalState.WRITABLE:
            # This server leads from now on, and other servers have written its log until now.
            self.follows = False
            self._recover(self.journal.ends())
            self.once.open()
            waiting, self._awaiting_lead = self._awaiting_lead, waiting
        elif state is JournalState.FAILED:
            self.stuck(reason)
            self._end_awaited(reason)  # Not before: the peers are told nothing.
        self.budget.proceed()  # the journal accepts or refuses now what has waited for it
        self.watch(state, reason)
        for leading in waiting:
            leading.callback(None)

    def _restore(self, ends: Mapping[str, int]) -> None:
        """Continue the numbers of every stream, even a retired one, after its last number in the journal."""
        self.sequencer.restore({**self.journal.retired(), **ends}, self.journal.floor)

    def _check_retirable(self, stream: str) -> None:
        if stream.startswith("."):
            raise StreamInUse(
                f"stream {stream!r} cannot be retired: names that begin with a dot are reserved for the server"
            )
        if stream not in self.largest:
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
            self.fanout.forget_stream(stream)
        self.counters.add("server", "streams-retired", len(streams))
        if len(streams) == 1:
            log.info("stream {stream!r} was retired by {by}", stream=streams[0], by=by)
        else:
            log.info("{count} streams were retired by {by}", count=len(streams), by=by)

    def create_streams(self, runs: Sequence[Run], own: Sequence[Run], peer: Identity | None) -> list[str]:
        """Check the streams, sizes and labels of runs, and create the streams that do not exist.

        :param own: whether the server itself publishes the runs, so that no limits apply
        :param peer: the peer whose limits new streams of *runs* count against; None: the server
        :return: the streams that were created
        :raises PublishError: a run may not be published; no stream was created
        """
        created: list[str] = []
        try:
            for run in runs:
                self._check(run, created, peer)
            if created and peer is not None:
                self._new_streams.charge(peer, created)
            for run in own:
                self._check(run, created, None)
        except PublishError:
            self.forget_streams(created)
            raise
        return created

    def admit_letter(self, creator: Creator, run: Run) -> list[str]:
        """Check that the *creator* of a subscription may publish the dead letter *run*, and create its stream.

        :return: the streams that were created
        :raises Forbidden: the creator may not publish it
        :raises PublishError: a limit does not allow it
        """
        rights = self.identified(creator.identity).rights if creator.host else None
        if rights is not None and not creator.signed and not rights.permits(Action.PUBLISH, run.stream):
            raise rights.refusal(Action.PUBLISH, run.stream)
        return self.create_streams([run], (), None if rights is None else creator.identity)

    def forget_streams(self, streams: Iterable[str]) -> None:
        """Forget *streams*, which were created for a publish that is refused."""
        for stream in streams:
            del self.largest[stream]
            self.stream_watch.unborn.discard(stream)

    def _check(self, run: Run, created: list[str], peer: Identity | None) -> None:
        check_names(run)
        if not run.lengths:
            raise InvalidRun(f"a run without records was published to {run.stream!r}; expected at least one record")
        largest = self.largest.get(run.stream)
        if largest is None:
            largest = self._create(run.stream, peer)
            created.append(run.stream)
        if len(run.payload) > largest and max(run.sizes) > largest:
            raise PayloadTooLarge(
                f"payload of {max(run.sizes)} bytes exceeds the limit of {largest} bytes of stream {run.stream!r}"
            )

    def _bound_to(self, stream: str) -> Listener | None:
        """Return the listener that is bound to *stream* by its settings, or None."""
        return next((listener for listener in self.listeners if listener.stream == stream), None)

    def _max_payload(self, stream: str) -> int:
        """Return the largest payload that *stream* takes, in bytes, by :meth:`restrict` and by the configuration."""
        return min(self._restricted.get(stream, MAX_PAYLOAD), self.rules.max_payload(stream))

    def _create(self, stream: str, peer: Identity | None) -> int:
        """Create *stream* for *peer* (None: the server), and return its limit of payloads, in bytes."""
        reserved = RESERVED if peer is None and stream.startswith(letters.PREFIX) else 0
        if len(self.largest) >= self.max_streams + reserved:
            raise TooManyStreams(
                f"stream {stream!r} cannot be created: the server has reached its limit of {self.max_streams} streams; "
                "raise --max-streams, or publish to a stream that exists"
            )
        if peer is not None and not self.rules.new_streams(stream) and self._bound_to(stream) is None:
            raise NewStreamForbidden(
                f"stream {stream!r} does not exist, and the configuration lets no peer create it; publish to a stream "
                "that exists, or set new-streams = true in a [[stream]] table"
            )
        largest = self.largest[stream] = self._max_payload(stream)
        self.stream_watch.unborn.add(stream)
        self.table.stream_created(stream)
        return largest
