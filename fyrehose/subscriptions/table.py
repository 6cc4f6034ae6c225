"""All shared subscriptions of a server: connects their pools with the journal, and lets requests wait for records.

lease -> wake -> LeasePool.lease -> records              also when something is durable, and every half second
act   -> LeasePool.act -> one append with the results    -> durable -> answer
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred, fail, inlineCallbacks, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.broker.quotas import NamedRoom
from fyrehose.broker.state_stream import StateStream, Steps
from fyrehose.errors import (
    FyrehoseError,
    InvalidRun,
    NoSuchSubscription,
    PublishError,
    SubscriptionConflict,
    SubscriptionGone,
)
from fyrehose.interfaces import IJournal, Unread
from fyrehose.patterns import Pattern, PatternIndex
from fyrehose.periodic import Checks
from fyrehose.records import Run
from fyrehose.spans import NumberSet
from fyrehose.subscriptions import letters, progress
from fyrehose.subscriptions.keys import keys_of
from fyrehose.subscriptions.lags import SubscriptionLags
from fyrehose.subscriptions.lane import Draft, Lane, LeasedRange
from fyrehose.subscriptions.pool import Item, LeasePool, WorkOutcome
from fyrehose.subscriptions.progress import (
    SOURCE,
    STREAM,
    Creator,
    SavedShare,
    SavedShares,
    ShareOptions,
    StreamProgress,
)

log = Logger()

#: Seconds between two checks for leases that have ended, delays that are over, and deleted records.
CHECK = 0.5
#: Memory that a subscription is charged for each record of its window, in bytes.
ENTRY_BYTES = 256
#: Size of one read, in bytes.
READ_BYTES = 256 << 10
#: The largest payload of one answer with several records, in bytes.
ANSWER_BYTES = 4 << 20
#: How many dead letters one draft has at most, and their payload in bytes beyond the first one.
MOST_LETTERS, LETTER_BYTES = 500, 1 << 20
#: The largest number of dead letters that one request publishes again, and how many bytes it reads for that.
MOST_REDRIVEN = 1_000
REDRIVE_BYTES = 1 << 20

Publish = Callable[[Sequence[Run], Sequence[Run]], Deferred[Any]]


@attrs.frozen
class LeasedRun:
    """Leased records, and the lease of all of them."""

    lease: LeasedRange
    run: Run


@attrs.define(eq=False)
class WaitingWorker:
    """A request of a worker for records, which waits until there are some to lease."""

    consumer: str
    request: int | None
    most: int
    answer: Deferred[list[LeasedRun]]
    deadline: float
    timer: IDelayedCall | None = None


@attrs.define(eq=False)
class SharedSubscription:
    """A shared subscription: its records, and the requests that wait for some.

    :ivar appended: how many changes were appended; *durable* is how many of them are durable
    :ivar active: when something was settled last, in microseconds since 1970 UTC
    :ivar gone: whether it was deleted
    :ivar redriven: see :attr:`SavedShare.redriven`
    :ivar oldest: number and time of the oldest record that is not final, by stream, when it was last looked up
    :ivar left_out: the streams that match the pattern and have no lane, because there was no room for one, and where
        they begin
    """

    name: str
    pool: LeasePool
    waiting: list[WaitingWorker] = attrs.field(factory=list)
    appended: int = 0
    durable: int = 0
    active: int = 0
    gone: bool = False
    pattern: Pattern | None = None
    redriven: int = 0
    oldest: dict[str, tuple[int, int]] = attrs.field(factory=dict)
    left_out: dict[str, StreamProgress] = attrs.field(factory=dict)
    _after: deque[tuple[int, Deferred[None]]] = attrs.field(factory=deque)
    _waking: bool = False
    _again: bool = False
    _turn: IDelayedCall | None = None

    @property
    def options(self) -> ShareOptions:
        return self.pool.options

    def saved(self) -> SavedShare:
        """Return the state that a checkpoint stores: with all changes that were appended, durable or not."""
        streams = {**self.left_out, **{stream: lane.progress for stream, lane in self.pool.lanes.items()}}
        return SavedShare(self.options, self.pool.appended_epoch, self.pool.paused, streams, self.redriven)

    @property
    def places(self) -> dict[str, int]:
        """Return the durable floor of each stream: the number up to which all records are final."""
        return {stream: lane.durable_floor for stream, lane in self.pool.lanes.items()}

    def when_durable(self) -> Deferred[None]:
        """Return a Deferred that fires when all that was appended until now is durable."""
        if self.durable == self.appended:
            return succeed(None)
        self._after.append((self.appended, Deferred()))
        return self._after[-1][1]

    def one_durable(self) -> None:
        """Record that the oldest change that was not durable is durable."""
        self.durable += 1
        while self._after and self._after[0][0] <= self.durable:
            self._after.popleft()[1].callback(None)


@attrs.define(eq=False)
class SharedSubscriptions:
    """All shared subscriptions of a server.

    :ivar publish: publishes runs, and records of the server's own, in one batch
    :ivar room: counts subscriptions, the streams of patterns, and their memory, by creator
    :ivar taken: returns whether the given name belongs to a named subscription that is not shared
    :ivar admit: checks that the creator of a subscription may publish a dead letter; returns the streams that this
        creates, and raises the error if it may not
    :ivar forget_streams: forgets such streams, because the dead letters are refused
    """

    clock: IReactorTime
    journal: IJournal
    publish: Publish
    room: NamedRoom
    taken: Callable[[str], bool] = attrs.field(default=lambda name: False, kw_only=True)
    admit: Callable[[Creator, Run], list[str]] = attrs.field(default=lambda creator, run: [], kw_only=True)
    forget_streams: Callable[[Sequence[str]], None] = attrs.field(default=lambda streams: None, kw_only=True)
    #: returns the streams that exist or are being created
    streams: Callable[[], Iterable[str]] = attrs.field(kw_only=True)
    #: how many dead letters one redrive publishes again at most
    most_redriven: int = attrs.field(default=MOST_REDRIVEN, kw_only=True)
    now: Callable[[], int] = attrs.field(default=lambda: time.time_ns() // 1000, kw_only=True)
    entries: dict[str, SharedSubscription] = attrs.field(factory=dict, init=False)
    stream: StateStream = attrs.field(init=False)
    lags: SubscriptionLags = attrs.field(init=False)
    _saved: SavedShares = attrs.field(factory=SavedShares, init=False)
    _by_stream: dict[str, list[SharedSubscription]] = attrs.field(factory=dict, init=False)
    _patterns: PatternIndex[SharedSubscription] = attrs.field(factory=PatternIndex, init=False)
    _checks: Checks = attrs.field(init=False)
    _reader: RunReader = attrs.field(init=False)
    #: what the log says already, by subscription, so that it says each thing once
    _said: dict[str, str] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._reader = RunReader(self.journal)
        self.lags = SubscriptionLags(self.journal, lambda: self.now())
        self._checks = Checks(self.clock, self._check, CHECK, "shared subscriptions")
        self.stream = StateStream(
            STREAM,
            SOURCE,
            self._saved,
            self.journal.read,
            self.journal.bounds,
            lambda runs: self.publish((), runs),
            everything=self._everything,
            content_type="application/json",
        )

    # Opening and closing.

    def open(self) -> None:
        """Recover the subscriptions from the journal, which is open; they replace those in memory.

        :raises JournalCorrupt: their records cannot be read
        """
        for shared in list(self.entries.values()):
            self._forget(shared)
        self.stream.open()
        for name, saved in self._saved.shares.items():
            self._add(name, saved)
        if self.entries:
            log.info("recovered {count} shared subscriptions", count=len(self.entries))

    def close(self) -> None:
        """Stop the periodic checks, answer the requests that wait, and write what the next start needs (rule 22)."""
        self._checks.stop()
        for shared in self.entries.values():
            for waiting in list(shared.waiting):
                self._answer(shared, waiting, [])
            if shared._turn is not None and shared._turn.active():
                shared._turn.cancel()
            if self.journal.standing.leads_alone and (draft := shared.pool.stop()).changes:
                self._append_by_itself(shared, draft)

    # Subscriptions.

    def find(self, name: str) -> SharedSubscription:
        """Return the subscription *name*.

        :raises NoSuchSubscription: there is none
        :raises Following: another server leads, and only that one knows which subscriptions exist
        :raises Unreplicated: another server may lead
        """
        if not self.taken(name):
            self._check_leading()
        shared = self.entries.get(name)
        if shared is None:
            raise NoSuchSubscription(f"there is no shared subscription {name[:80]!r}")
        return shared

    def _check_leading(self) -> None:
        standing = self.journal.standing
        if standing.elsewhere:
            standing.check_writable()

    @inlineCallbacks
    def create(self, name: str, options: ShareOptions, floors: Mapping[str, int]) -> Steps[SharedSubscription]:
        """Create the subscription *name*, unless it exists with the same options.

        :param floors: by stream, the number behind which it begins
        :return: a Deferred that fires when the subscription is durable; fails with a SubscriptionError or a
            PublishError
        """
        self._check_leading()
        present = self.entries.get(name)
        if present is not None:
            if present.options != options:
                raise SubscriptionConflict(
                    f"subscription {name!r} exists with other options; delete it, or use another name"
                )
            yield present.when_durable()
            return present
        if self.taken(name):
            raise SubscriptionConflict(f"subscription {name!r} exists and is exclusive")
        network, memory = options.creator.network, ENTRY_BYTES * options.window
        self.room.check(name, network, 1, memory)
        # Begin above the epochs of an earlier subscription of this name: each epoch took a record of this stream.
        epoch = self.journal.bounds(STREAM)[1]
        redriven = 0 if options.dead is None else self.journal.bounds(options.dead)[1]
        fields = {"set": attrs.asdict(options), "floors": dict(floors), "epoch": epoch, "redriven": redriven}
        streams = {stream: StreamProgress(NumberSet(seq), seq) for stream, seq in floors.items()}
        saved = SavedShare(options, epoch, False, streams, redriven)
        written, shared = self._change(name, fields, lambda: self._add(name, saved, new=True))
        yield written
        found: SharedSubscription = shared
        return found

    def _change(
        self,
        name: str,
        fields: Mapping[str, object],
        then: Callable[[], Any],
        runs: Sequence[Run] = (),
        publish: Publish | None = None,
    ) -> tuple[Deferred[Any], Any]:
        """Append a change of a whole subscription, and call *then* when the journal has accepted it (rule 20).

        :return: a Deferred that fires when the change is durable, and the result of *then*
        :raises PublishError: the change was refused
        """
        own = [self.stream.draft(progress.pack(name, self.stream.checkpoint, fields))]
        written = (publish or self.publish)(runs, own)
        if refusal_of(written) is not None:
            return written, None
        found = then()
        shared = self.entries.get(name)
        if shared is not None:
            shared.appended += 1
            written.addCallback(self._one_durable, shared)
        return written, found

    def _one_durable(self, result: Any, shared: SharedSubscription) -> Any:
        shared.one_durable()
        self.wake(shared)
        return result

    def _add(self, name: str, saved: SavedShare, new: bool = False) -> SharedSubscription:
        options = saved.options
        shared: SharedSubscription
        pool = LeasePool(
            options,
            lambda draft: self._append_by_itself(shared, draft),
            self.clock.seconds,
            lambda: bool(self.journal.standing.leads_alone),
            copy=lambda draft, lane, first, last: self._copy(shared, draft, lane, first, last),
            wall=lambda: self.now(),
            before=saved.epoch,
            paused=saved.paused,
        )
        if new:
            pool.hold_until = 0.0  # No record of a new subscription was leased, so none has to wait.
        shared = SharedSubscription(name, pool, active=self.now(), redriven=saved.redriven)
        self.entries[name] = shared
        self._count(shared)
        if options.pattern:
            shared.pattern = Pattern(options.stream)
            self._patterns.add(shared.pattern, shared)
            for stream in [*saved.streams, *self.streams()]:
                self._found_stream(shared, stream, saved.progress(stream))
        else:
            self._add_lane(shared, options.stream, saved.progress(options.stream))
        self._checks.start()
        return shared

    def _count(self, shared: SharedSubscription) -> None:
        places = len(shared.pool.lanes) + 1 if shared.pattern is not None else 1
        options = shared.options
        self.room.count(shared, options.creator.network, places, ENTRY_BYTES * options.window)

    def _found_stream(self, shared: SharedSubscription, stream: str, done: StreamProgress) -> None:
        """Add *stream* to *shared* if it matches the pattern, and if there is room for it or it has some progress."""
        if shared.pattern is None or not shared.pattern.covers(stream) or stream in shared.pool.lanes:
            return
        if stream.startswith(".") or stream == shared.options.dead:
            return
        if not done.begun and not self.room.has(shared.options.creator.network, 1):
            shared.left_out[stream] = done
            self._say(
                shared,
                "leaves out stream {stream!r}, and perhaps others, until others leave room: see the option "
                "server.named-subscriptions",
                stream=stream,
            )
            return
        shared.left_out.pop(stream, None)
        self._add_lane(shared, stream, done)
        self._count(shared)

    def _add_lane(self, shared: SharedSubscription, stream: str, done: StreamProgress) -> None:
        key, journal = shared.options.key, self.journal
        keys = None if key is None else lambda first, last: keys_of(journal, stream, key, first, last)
        shared.pool.lanes[stream] = Lane(shared.pool, stream, done, lambda: journal.bounds(stream), keys)
        self._by_stream.setdefault(stream, []).append(shared)

    def stream_created(self, stream: str) -> None:
        """Add *stream* to the subscriptions whose patterns match it, beginning with its first record."""
        for shared in list(self._patterns.covering(stream)):
            self._found_stream(shared, stream, StreamProgress())

    def delete(self, shared: SharedSubscription) -> Deferred[None]:
        """Delete *shared*; the Deferred fires when the deletion is durable."""
        if shared.gone:
            return fail(SubscriptionGone(f"shared subscription {shared.name!r} was deleted"))
        written, _ = self._change(shared.name, {"set": None}, lambda: self._forget(shared))
        return written.addCallback(lambda _: None)

    def _forget(self, shared: SharedSubscription) -> None:
        if self.entries.get(shared.name) is shared:
            del self.entries[shared.name]
            self._said.pop(shared.name, None)
            self.room.forget(shared)
            for stream in shared.pool.lanes:
                self._by_stream[stream].remove(shared)
                if not self._by_stream[stream]:
                    del self._by_stream[stream]
            if shared.pattern is not None:
                self._patterns.remove(shared.pattern, shared)
        shared.gone = True
        gone = SubscriptionGone(f"shared subscription {shared.name!r} was deleted")
        for waiting in list(shared.waiting):
            self.fail(shared, waiting, gone)

    def pause(self, shared: SharedSubscription, paused: bool) -> Deferred[None]:
        """Stop leasing (*paused*), or lease again; the Deferred fires when the change is durable."""
        return self._change(shared.name, {"paused": paused}, lambda: setattr(shared.pool, "paused", paused))[0]

    def rewind(self, shared: SharedSubscription, seqs: Mapping[str, int]) -> Deferred[Any]:
        """Forget the progress in the streams of *seqs*, and continue behind these numbers, in a new epoch."""
        pool = shared.pool
        draft = Draft(epoch=max(pool.epoch, pool.appended_epoch) + 1)
        for stream, seq in seqs.items():
            draft.of(pool.lanes[stream]).rewind = seq
        return self._append(shared, draft) if seqs else succeed(None)

    def release(self, shared: SharedSubscription, consumer: str) -> Deferred[int]:
        """Return all records that *consumer* has, as not tried; fires with their number when that is durable."""
        count = shared.pool.held[consumer]
        return self._append(shared, shared.pool.release(consumer)).addCallback(lambda _: count)

    def redrive(self, shared: SharedSubscription, publish: Publish) -> Deferred[tuple[int, int]]:
        """Publish the next dead letters to the streams that they come from, and record that in the same commit.

        :param publish: publishes with the rights of the peer
        :return: a Deferred that fires with the number of dead letters that were published, and about how many are left,
            when that is durable; fails with a SubscriptionError or a PublishError
        """
        dead = self._redrivable(shared)
        runs: list[Run] = []
        seq, last = shared.redriven, self.journal.bounds(dead)[1]
        for record in (each for run in self.journal.read(dead, seq + 1, REDRIVE_BYTES) for each in run.records()):
            if len(runs) == self.most_redriven:
                break
            seq = record.seq
            stream = (record.producer or "").rpartition("/")[0]
            if record.source == SOURCE and stream in shared.pool.lanes:
                labels = {"topic": record.topic, "content_type": record.content_type, "producer": record.producer}
                runs.append(Run.of(stream, [record.payload], source=SOURCE, **labels))
        if seq == shared.redriven:
            return succeed((0, 0))
        then = lambda: setattr(shared, "redriven", max(shared.redriven, seq))  # noqa: E731
        written, _ = self._change(shared.name, {"redriven": seq}, then, runs, publish)
        return written.addCallback(lambda _: (len(runs), max(0, last - seq)))

    def _redrivable(self, shared: SharedSubscription) -> str:
        """Return the stream of the dead letters of *shared*, after checking that they can be published again.

        :raises SubscriptionError: they cannot be published again
        """
        dead, name = shared.options.dead, shared.name
        if dead is None:
            raise SubscriptionConflict(f"subscription {name!r} has no stream of dead letters, so none are kept")
        for other in self.entries.values():
            if other is shared or other.options.dead != dead:
                continue
            for stream in shared.pool.lanes.keys() & other.pool.lanes.keys():
                raise SubscriptionConflict(
                    f"subscription {other.name!r} has its dead letters of stream {stream!r} in {dead!r}, too: the "
                    "server cannot tell them apart; give each subscription its own stream of dead letters"
                )
        return dead

    # Leasing.

    def lease(
        self, shared: SharedSubscription, consumer: str, request: int | None, most: int, wait: float
    ) -> Deferred[list[LeasedRun]]:
        """Lease up to *most* records, waiting up to *wait* seconds for the first one.

        :param request: see :meth:`.pool.LeasePool.lease`
        :return: a Deferred that fires with the leased records; cancelling it ends the request, so that nothing is
            leased
        """
        if (refusal := self.journal.standing.refusal) is not None:
            return fail(refusal)
        found: Deferred[list[LeasedRun]] = Deferred(lambda _: self._answer(shared, waiting, []))
        waiting = WaitingWorker(consumer, request, most, found, self.clock.seconds() + wait)
        if wait:
            waiting.timer = self.clock.callLater(wait, self.wake, shared)
        shared.waiting.append(waiting)
        self.wake(shared)
        return found

    def wake(self, shared: SharedSubscription) -> None:
        """Lease records to the requests that wait, in their order, and answer these requests."""
        shared._again = bool(shared.waiting)
        if shared._waking:
            return
        shared._waking = True
        try:
            while shared._again:
                shared._again = False
                self._serve(shared)
        finally:
            shared._waking = False
        self._continue(shared)

    def _continue(self, shared: SharedSubscription) -> None:
        """Do what is left in another turn, so that other peers get theirs first, when all is durable (rule 21)."""
        waits = shared._turn is not None and shared._turn.active()
        if shared.pool.more and not waits and not shared.gone and shared.durable == shared.appended:
            shared._turn = self.clock.callLater(0, self._take_turn, shared)

    def _take_turn(self, shared: SharedSubscription) -> None:
        shared.pool.more = False
        shared.pool.tick()
        self.wake(shared)

    def _serve(self, shared: SharedSubscription) -> None:
        now, empty = self.clock.seconds(), False
        waits = list(shared.waiting)
        share = max(1, -(-shared.pool.available() // len(waits))) if len(waits) > 1 else max(1, shared.options.most)
        for waiting in waits:
            if waiting.answer.called:
                continue
            held = shared.pool.held[waiting.consumer]
            found: list[LeasedRun] = []
            if not empty or shared.pool.repeats(waiting.consumer, waiting.request):
                found = self._take(shared, waiting, min(waiting.most, share))
            busy = shared.durable < shared.appended or shared._again or shared.pool.more
            if found or (waiting.deadline <= now and not busy):
                refusal = None if found else self.journal.standing.refusal
                if refusal is None:
                    self._answer(shared, waiting, found)
                else:
                    self.fail(shared, waiting, refusal)
            elif held < shared.options.most:
                empty = True  # Other requests would find nothing either, except for a repetition of an earlier one.

    def _take(self, shared: SharedSubscription, waiting: WaitingWorker, most: int) -> list[LeasedRun]:
        found: list[LeasedRun] = []
        left, gone = ANSWER_BYTES, Draft()
        for leased in shared.pool.lease(waiting.consumer, waiting.request, most):
            lane, first = leased.lane, leased.first
            while first <= leased.last:
                if found and left <= 0:
                    lane.withdraw(first, leased.last)
                    break
                run = self._reader.holding(lane.stream, first)
                if run is None:
                    # Look up the end of the gap instead of trying each number, because a gap may have any length.
                    end = self._reader.behind(first) - 1
                    lane.missing(gone, first, max(end, first))
                    first = max(end, first) + 1
                    continue
                part = run.slice(first - run.first_seq, min(leased.last, run.last_seq) - run.first_seq + 1)
                if len(part.payload) > left:
                    part, left = part.slice(0, part.fitting(left) if not found or part.sizes[0] <= left else 0), 0
                if len(part):
                    found.append(LeasedRun(attrs.evolve(leased, first=first, last=first + len(part) - 1), part))
                    first += len(part)
                    left -= len(part.payload)
        if gone.changes:
            self._append_by_itself(shared, gone)
        return found

    def _answer(self, shared: SharedSubscription, waiting: WaitingWorker, found: list[LeasedRun]) -> None:
        self._remove(shared, waiting)
        waiting.answer.callback(found)

    def fail(self, shared: SharedSubscription, waiting: WaitingWorker, error: BaseException) -> None:
        """End a request that waits, because of *error*."""
        self._remove(shared, waiting)
        waiting.answer.errback(Failure(error))

    def _remove(self, shared: SharedSubscription, waiting: WaitingWorker) -> None:
        if waiting in shared.waiting:
            shared.waiting.remove(waiting)
        if waiting.timer is not None and waiting.timer.active():
            waiting.timer.cancel()
        waiting.timer = None

    # Settling.

    def act(
        self,
        shared: SharedSubscription,
        items: Sequence[Item],
        consumer: str,
        runs: Sequence[Run] = (),
        publish: Any = None,
        proven: bool = False,
    ) -> Deferred[WorkOutcome]:
        """Settle, extend or return records as their worker asks, and publish *runs* in the same commit.

        :param publish: publishes *runs* with the rights of the peer
        :param proven: whether an append has just begun the epoch, and shown that no other server has taken over
            (rules 10 and 13)
        :return: a Deferred that fires when all is durable.  With *runs*, nothing is done if any item is refused.  Fails
            with a PublishError, or if the subscription was deleted meanwhile.
        """
        if shared.gone:
            return fail(SubscriptionGone(f"shared subscription {shared.name!r} was deleted"))
        pool = shared.pool
        ready = pool.trusted() and pool.stored_epoch == pool.epoch
        if not proven and not ready and (pool.refuses_any(items) or any(item.kind == "extend" for item in items)):
            # Another server may have taken over and leased the record again.  Until an append shows that it has not,
            # extend no lease, and refuse no token, because the token may be one of that server.  Also wait until the
            # epoch is durable.
            written = self._append(shared, pool.proof())
            return written.addCallback(lambda _: self.act(shared, items, consumer, runs, publish, proven=True))
        try:
            outcome = pool.act(items, consumer, whole=bool(runs))
        except PublishError as refusal:
            return fail(refusal)
        self._continue(shared)
        shared.active = self.now()
        draft = outcome.draft
        if not draft.changes and (outcome.refused or not runs):
            pool.accept(draft)
            # What is refused as final may not be durable yet (rule 19).
            return shared.when_durable().addCallback(lambda _: outcome)
        return self._append(shared, draft, runs, publish).addCallback(lambda _: outcome)

    # Writing.

    def _append_by_itself(self, shared: SharedSubscription, draft: Draft) -> bool:
        """Append a draft that no request waits for; return whether it was accepted."""
        written = self._append(shared, draft)
        refusal = refusal_of(written)
        written.addErrback(lambda failure: None)
        if refusal is not None:
            self._say(shared, "cannot write its state, and tries again: {why}", why=str(refusal))
        elif self._said.get(shared.name, "").startswith("cannot write"):
            del self._said[shared.name]
        return refusal is None

    def _append(
        self, shared: SharedSubscription, draft: Draft, runs: Sequence[Run] = (), publish: Publish | None = None
    ) -> Deferred[Any]:
        """Append *draft* and the messages *runs* in one batch; memory changes when the journal has accepted it."""
        head: dict[str, object] = {"epoch": draft.epoch} if draft.epoch else {}
        places = [{"stream": lane.stream, **change.fields()} for lane, change in draft.changes.items()] or [{}]
        try:
            payloads = [progress.pack(shared.name, self.stream.checkpoint, {**head, **place}) for place in places]
        except ValueError as error:
            return fail(InvalidRun(f"a text of the request cannot be stored: {error}"))
        written = (publish or self.publish)(runs, [*draft.letters, self.stream.draft(*payloads)])
        if refusal_of(written) is not None:
            self.forget_streams(draft.created)
            return written
        rewound = any(change.rewind is not None for change in draft.changes.values())
        if rewound:
            shared.pool.epoch, shared.pool.before = draft.epoch, 0  # So tokens from before are refused.
        shared.pool.accept(draft)
        shared.appended += 1

        def durable(result: Any) -> Any:
            shared.pool.durable(draft)
            return self._one_durable(result, shared)

        return written.addCallback(durable)

    def _copy(self, shared: SharedSubscription, draft: Draft, lane: Lane, first: int, last: int) -> int:
        """Add to *draft* the dead letters of records *first* to *last*; return the last one that it has room for.

        A dead letter that the creator may not publish, or that the stream of dead letters cannot take, is left out for
        good, and counted (rule 23).

        :raises PublishError: it cannot be published now
        """
        dead = shared.options.dead
        if dead is None:
            return last
        for seq in range(first, last + 1):
            if draft.looked >= MOST_LETTERS or draft.size >= LETTER_BYTES:
                return seq - 1
            letter = self._letter(dead, lane.stream, seq)
            if letter is None:
                continue  # Retention has deleted the record, which becomes final without a copy.
            if draft.letters and draft.size + len(letter.payload) > LETTER_BYTES:
                return seq - 1
            draft.looked += 1
            try:
                draft.created += self.admit(shared.options.creator, letter)
            except FyrehoseError as error:
                if not letters.keeps(letters.KEEP_FORBIDDEN, error):
                    raise
                draft.of(lane).lost += 1
                self._say(shared, "has dead records without a copy: {why}", why=str(error))
                continue
            draft.letters.append(letter)
            draft.size += len(letter.payload)
        return last

    def _letter(self, dead: str, stream: str, seq: int) -> Run | None:
        """Return a copy of record *seq* for *dead*, the stream of dead letters; its producer is ``stream/seq``."""
        run = self._reader.holding(stream, seq)
        if run is None:
            return None
        record = next(iter(run.slice(seq - run.first_seq, seq - run.first_seq + 1).records()))
        fields = {"producer": f"{stream}/{seq}"[-255:], "topic": record.topic, "content_type": record.content_type}
        return Run.of(dead, [record.payload], source=SOURCE, **fields)

    def _say(self, shared: SharedSubscription, what: str, **details: object) -> None:
        """Log *what* happens to a subscription, once until something else happens to it."""
        if self._said.get(shared.name) != what:
            self._said[shared.name] = what
            log.warn("shared subscription {name!r} " + what, name=shared.name, **details)

    def _everything(self) -> list[bytes]:
        return progress.pack_checkpoint({name: shared.saved() for name, shared in self.entries.items()})

    # Called by the broker.

    def durable(self, ends: Mapping[str, int]) -> None:
        """Wake the requests that wait for records of these streams."""
        for stream in ends:
            for shared in self._by_stream.get(stream, ()):
                shared.pool.lanes[stream].stir()
                if shared.waiting:
                    self.wake(shared)

    def unread(self) -> list[Unread]:
        """Return the records that retention keeps for shared subscriptions, and for the recovery of their state."""
        found = [
            Unread(shared.name, stream, floor, shared.active)
            for shared in self.entries.values()
            for stream, floor in shared.places.items()
        ]
        if self.entries:
            found.append(Unread("", STREAM, max(0, self.stream.checkpoint - 1), self.now(), pinned=True))
        return found

    def _check(self) -> None:
        self._reader.forget()
        if not self.journal.standing.may_write:
            return
        for name, shared in list(self.entries.items()):
            self._checks.isolation.call(f"shared subscription {name!r}", self._check_one, shared)
        self.lags.look(self.entries.values())
        self.stream.maintain(bool(self.entries) and self.journal.keeper.is_sealed(STREAM, self.stream.checkpoint))

    def _check_one(self, shared: SharedSubscription) -> None:
        pool = shared.pool
        pool.tick(look=True)
        if pool.blocked is not None:
            self._say(shared, "cannot write dead letters, and tries again: {why}", why=str(pool.blocked))
        for stream, done in list(shared.left_out.items()):
            if self.room.has(shared.options.creator.network, 1):
                self._found_stream(shared, stream, done)
        if all(lane.durable_floor >= lane.bounds()[1] for lane in pool.lanes.values()):
            shared.active = self.now()  # All records are final, so the subscription is not abandoned.
        self.wake(shared)


def refusal_of(written: Deferred[Any]) -> BaseException | None:
    """Return why an append was refused at once; None if it was accepted."""
    result = written.result if written.called else None
    return result.value if isinstance(result, Failure) else None


@attrs.define
class RunReader:
    """A reader of single records, which keeps the runs of its last read, because they often have the next records."""

    journal: IJournal
    _stream: str = ""
    _runs: tuple[Run, ...] = ()
    _end: int = 0  #: the last number of the stream before the runs were read

    def holding(self, stream: str, seq: int) -> Run | None:
        """Return the run that holds record *seq*; None if the journal does not have it."""
        found = self._found(seq) if stream == self._stream else None
        if found is None:
            self._stream, self._end = stream, self.journal.bounds(stream)[1]
            self._runs = self.journal.read(stream, seq, READ_BYTES)
            found = self._found(seq)
        return found

    def behind(self, seq: int) -> int:
        """Return the first number after the missing record *seq* whose record exists, or may still be written."""
        later = (max(seq + 1, run.first_seq) for run in self._runs if run.last_seq > seq)
        return min(later, default=max(seq, self._end) + 1)

    def forget(self) -> None:
        """Drop the runs that were read, to free their memory."""
        self._stream, self._runs = "", ()

    def _found(self, seq: int) -> Run | None:
        return next((run for run in self._runs if run.first_seq <= seq <= run.last_seq), None)
