"""All shared subscriptions of a server: connects their lanes with the journal, and lets requests wait for records.

lease -> wake -> Work.lease -> records              also when something is durable, and every half second
act   -> Work.act -> one append with the results    -> durable -> answer
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred, fail, inlineCallbacks, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.broker.state_stream import StateStream, Steps
from fyrehose.errors import (
    NoRoomForSubscription,
    NoSuchSubscription,
    PublishError,
    SubscriptionConflict,
    SubscriptionGone,
    TooManyNamedSubscriptions,
)
from fyrehose.interfaces import IJournal, Unread
from fyrehose.net.inflight import InFlight
from fyrehose.patterns import Pattern
from fyrehose.periodic import Checks
from fyrehose.records import Run
from fyrehose.subscriptions import progress
from fyrehose.subscriptions.lags import SubscriptionLags
from fyrehose.subscriptions.lane import Group, Lane, LaneChange, Leased
from fyrehose.subscriptions.progress import (
    SOURCE,
    STREAM,
    FinalNumbers,
    SavedShare,
    SavedShares,
    ShareOptions,
    StreamProgress,
)
from fyrehose.subscriptions.work import Item, Work, WorkOutcome

log = Logger()

#: Seconds between two checks for leases that have ended, delays that are over, and deleted records.
CHECK = 0.5
#: Memory that a subscription is charged for each record of its window, in bytes.
ENTRY_BYTES = 256
#: Size of one read, in bytes.
READ_BYTES = 256 << 10
#: The largest payload of one answer with several records, in bytes.
ANSWER_BYTES = 4 << 20
#: The largest number of dead letters that one request publishes again, and how many bytes it reads for that.
MOST_REDRIVEN = 1_000
REDRIVE_BYTES = 1 << 20

Publish = Callable[[Sequence[Run], Sequence[Run]], Deferred[Any]]


@attrs.frozen
class LeasedRun:
    """Leased records, and the lease of all of them."""

    lease: Leased
    run: Run


@attrs.define(eq=False)
class Waiting:
    """A request of a worker for records, which waits until there are some to lease."""

    consumer: str
    request: int | None
    most: int
    answer: Deferred[list[LeasedRun]]
    deadline: float
    timer: IDelayedCall | None = None


@attrs.define(eq=False)
class SharedSubscription:
    """A shared subscription: its options, its records, and the requests that wait for some.

    :ivar appending: how many appends are under way
    :ivar active: when something was settled last, in microseconds since 1970 UTC
    :ivar gone: whether it was deleted
    :ivar redriven: see :attr:`SavedShare.redriven`
    :ivar oldest: number and time of the oldest record that is not final, by stream, when it was last looked up
    """

    name: str
    options: ShareOptions
    group: Group
    work: Work
    waiting: list[Waiting] = attrs.field(factory=list)
    appending: int = 0
    active: int = 0
    gone: bool = False
    pattern: Pattern | None = None
    redriven: int = 0
    redriving: bool = False
    oldest: dict[str, tuple[int, int]] = attrs.field(factory=dict)
    _waking: bool = False
    _again: bool = False

    def saved(self) -> SavedShare:
        """Return the state that a checkpoint stores: with all changes that were appended, durable or not."""
        streams = {stream: lane.appended() for stream, lane in self.work.lanes.items()}
        return SavedShare(self.options, self.group.appended_epoch, self.group.paused, streams, self.redriven)

    @property
    def places(self) -> dict[str, int]:
        """Return the floor of each stream: the number up to which all records are final."""
        return {stream: lane.progress.final.floor for stream, lane in self.work.lanes.items()}


@attrs.define(eq=False)
class SharedSubscriptions:
    """All shared subscriptions of a server.

    :ivar publish: publishes runs, and records of the server's own, in one batch
    :ivar taken: returns whether the given name belongs to a named subscription that is not shared
    :ivar most: the largest number of shared subscriptions
    """

    clock: IReactorTime
    journal: IJournal
    publish: Publish
    budget: InFlight
    taken: Callable[[str], bool] = attrs.field(default=lambda name: False, kw_only=True)
    most: int = attrs.field(default=1_000, kw_only=True)
    #: how many dead letters one redrive publishes again at most
    most_redriven: int = attrs.field(default=MOST_REDRIVEN, kw_only=True)
    now: Callable[[], int] = attrs.field(default=lambda: time.time_ns() // 1000, kw_only=True)
    entries: dict[str, SharedSubscription] = attrs.field(factory=dict, init=False)
    stream: StateStream = attrs.field(init=False)
    lags: SubscriptionLags = attrs.field(init=False)
    _saved: SavedShares = attrs.field(factory=SavedShares, init=False)
    _by_stream: dict[str, list[SharedSubscription]] = attrs.field(factory=dict, init=False)
    #: how many changes of whole subscriptions are being written; a checkpoint has to wait, because it would miss them
    _changing: int = attrs.field(default=0, init=False)
    _lanes: int = attrs.field(default=0, init=False)
    #: by the name of a subscription that is being created: the waiting requests for the same name
    _creating: dict[str, list[Deferred[None]]] = attrs.field(factory=dict, init=False)
    #: streams that were created while subscriptions are being written
    _appeared: dict[str, None] = attrs.field(factory=dict, init=False)
    _checks: Checks = attrs.field(init=False)
    _reader: RunReader = attrs.field(init=False)

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
        """Stop the periodic checks, and answer the requests that wait."""
        self._checks.stop()
        for shared in self.entries.values():
            for waiting in list(shared.waiting):
                self._answer(shared, waiting, [])

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
        while name in self._creating:
            self._creating[name].append(Deferred())
            yield self._creating[name][-1]
            self._check_leading()
        present = self.entries.get(name)
        if present is not None:
            if attrs.evolve(present.options, creator="") != attrs.evolve(options, creator=""):
                raise SubscriptionConflict(
                    f"subscription {name!r} exists with other options; delete it, or use another name"
                )
            return present
        if self.taken(name):
            raise SubscriptionConflict(f"subscription {name!r} exists and is exclusive")
        if len(self.entries) + len(self._creating) >= self.most:
            raise TooManyNamedSubscriptions(
                f"the server has reached its limit of {self.most} shared subscriptions; delete some, or raise "
                "server.named-subscriptions"
            )
        if not self.budget.keep(ENTRY_BYTES * options.window):
            raise NoRoomForSubscription(
                f"the memory budget has no room for a window of {options.window} records; choose a smaller "
                "window, or raise server.memory"
            )
        self.budget.forget(ENTRY_BYTES * options.window)  # Only a check: _add() charges it for good.
        self._creating[name] = []
        # Begin above the epochs of an earlier subscription of this name: each epoch took a record of this stream.
        epoch = self.journal.bounds(STREAM)[1]
        redriven = 0 if options.dead is None else self.journal.bounds(options.dead)[1]
        begun = {"set": attrs.asdict(options), "floors": dict(floors), "epoch": epoch, "redriven": redriven}
        try:
            yield self._change(progress.pack(name, self.stream.checkpoint, **begun))
            streams = {stream: StreamProgress(FinalNumbers(seq), seq) for stream, seq in floors.items()}
            shared = self._add(name, SavedShare(options, epoch, False, streams, redriven), new=True)
        except Exception:
            self._end_creating(name)
            raise
        self._end_creating(name)  # not by "finally": that would also run when a server that ended is collected
        return shared

    def _end_creating(self, name: str) -> None:
        """Continue the calls that wait until the subscription *name* was created, or could not be."""
        for waiting in self._creating.pop(name):
            waiting.callback(None)
        if not self._creating:
            self._appeared.clear()

    def _add(self, name: str, saved: SavedShare, new: bool = False) -> SharedSubscription:
        options = saved.options
        self.budget.keep(ENTRY_BYTES * options.window)
        shared: SharedSubscription

        def append(batches: Sequence[LaneChange]) -> None:
            self._append(shared, batches).addErrback(self._not_written, shared)

        group = Group(
            options,
            append,
            self.clock.seconds,
            lambda: bool(self.journal.standing.leads_alone),
            wall=lambda: self.now(),
            before=saved.epoch,
            paused=saved.paused,
        )
        if new:
            group.hold_until = 0.0  # No record of a new subscription was leased, so none has to wait.
        work = Work(group, OrderedDict())
        shared = SharedSubscription(name, options, group, work, active=self.now(), redriven=saved.redriven)
        if options.pattern:
            shared.pattern = Pattern(options.stream)
        self.entries[name] = shared
        known = [stream for stream in [*self.journal.ends(), *self._appeared] if self._matches(shared, stream)]
        for stream in dict.fromkeys([*saved.streams, *known, *(() if options.pattern else (options.stream,))]):
            self._add_lane(shared, stream, saved.progress(stream))
        self._checks.start()
        return shared

    def _matches(self, shared: SharedSubscription, stream: str) -> bool:
        if stream.startswith(".") or stream == shared.options.dead or shared.pattern is None:
            return False
        return shared.pattern.covers(stream)

    def _add_lane(self, shared: SharedSubscription, stream: str, done: StreamProgress) -> None:
        if shared.pattern is not None and self._lanes >= self.most:
            log.warn(
                "shared subscription {name!r} leaves out stream {stream!r}: the server has reached its limit of {most} "
                "streams of shared subscriptions; raise server.named-subscriptions",
                name=shared.name,
                stream=stream,
                most=self.most,
            )
            return
        self._lanes += 1
        key, journal = shared.options.key, self.journal
        keys = None if key is None else lambda first, last: keys_of(journal, stream, key, first, last)
        shared.work.lanes[stream] = Lane(shared.group, stream, done, lambda: journal.bounds(stream), keys)
        self._by_stream.setdefault(stream, []).append(shared)

    def _remove_lane(self, shared: SharedSubscription, stream: str) -> None:
        self._lanes -= 1
        self._by_stream[stream].remove(shared)
        if not self._by_stream[stream]:
            del self._by_stream[stream]

    def stream_created(self, stream: str) -> None:
        """Add *stream* to the subscriptions whose patterns match it, beginning with its first record."""
        if self._creating:
            self._appeared[stream] = None
        for shared in self.entries.values():
            if self._matches(shared, stream) and stream not in shared.work.lanes:
                self._add_lane(shared, stream, StreamProgress())

    @inlineCallbacks
    def delete(self, shared: SharedSubscription) -> Steps[None]:
        """Delete *shared*; the Deferred fires when the deletion is durable."""
        yield self._forget_records(shared, [progress.pack(shared.name, self.stream.checkpoint, set=None)])
        self._forget(shared)

    def _forget(self, shared: SharedSubscription) -> None:
        if self.entries.get(shared.name) is shared:
            del self.entries[shared.name]
            self.budget.forget(ENTRY_BYTES * shared.options.window)
            for stream in shared.work.lanes:
                self._remove_lane(shared, stream)
        shared.gone = True
        gone = SubscriptionGone(f"shared subscription {shared.name!r} was deleted")
        for waiting in list(shared.waiting):
            self.fail(shared, waiting, gone)

    @inlineCallbacks
    def pause(self, shared: SharedSubscription, paused: bool) -> Steps[None]:
        """Stop leasing (*paused*), or lease again; the Deferred fires when the change is durable."""
        yield self._change(progress.pack(shared.name, self.stream.checkpoint, paused=paused))
        shared.group.paused = paused
        self.wake(shared)

    @inlineCallbacks
    def rewind(self, shared: SharedSubscription, seqs: Mapping[str, int]) -> Steps[None]:
        """Forget the progress in the streams of *seqs*, and continue behind these numbers, in a new epoch."""
        if not seqs:
            return
        group, epoch = shared.group, shared.group.epoch + 1
        yield self._forget_records(
            shared,
            [
                progress.pack(shared.name, self.stream.checkpoint, stream=stream, rewind=seq, epoch=epoch)
                for stream, seq in seqs.items()
            ],
        )
        for stream, seq in seqs.items():
            old = shared.work.lanes.pop(stream)
            counts = old.appended()  # committed() may not have been called for all of this commit yet.
            old.abandon()
            self._remove_lane(shared, stream)
            self._add_lane(shared, stream, attrs.evolve(counts, final=FinalNumbers(seq), reach=seq, ends={}))
        group.epoch = group.stored_epoch = max(epoch, group.epoch)
        group.before = 0  # So tokens from before the rewind are refused.
        self.wake(shared)

    @inlineCallbacks
    def _forget_records(self, shared: SharedSubscription, payloads: Sequence[bytes]) -> Steps[None]:
        """Append a rewind or deletion, and no change of a record until it is durable; then the Deferred fires."""
        if shared.gone or shared.group.rewinding:
            why = "was deleted" if shared.gone else "is being rewound or deleted already; try again"
            raise SubscriptionConflict(f"shared subscription {shared.name!r} {why}")
        shared.group.rewinding = True
        try:
            yield self._change(*payloads)
        except Exception:
            shared.group.rewinding = False
            for lane in shared.work.lanes.values():
                lane.resume()
            raise
        shared.group.rewinding = False

    @inlineCallbacks
    def redrive(self, shared: SharedSubscription, publish: Publish) -> Steps[tuple[int, int]]:
        """Publish the next dead letters to the streams that they come from, and record that in the same commit.

        :param publish: publishes with the rights of the peer
        :return: a Deferred that fires with the number of dead letters that were published, and about how many are left,
            when that is durable; fails with a SubscriptionError or a PublishError
        """
        dead = self._redrivable(shared)
        runs, seq, last = [], shared.redriven, self.journal.bounds(dead)[1]
        for run in self.journal.read(dead, seq + 1, REDRIVE_BYTES):
            for record in run.records():
                seq = record.seq
                stream = (record.producer or "").rpartition("/")[0]
                if record.source == SOURCE and stream in shared.work.lanes:
                    labels = {"topic": record.topic, "content_type": record.content_type, "producer": record.producer}
                    runs.append(Run.of(stream, [record.payload], source=SOURCE, **labels))
                if len(runs) == self.most_redriven:
                    break
            if len(runs) == self.most_redriven:
                break
        if seq == shared.redriven:
            return 0, 0
        shared.redriving = True

        try:
            payload = progress.pack(shared.name, self.stream.checkpoint, redriven=seq)
            yield self._change(payload, runs=runs, publish=publish)
        finally:
            shared.redriving = False
        shared.redriven = max(shared.redriven, seq)
        return len(runs), max(0, last - seq)

    def _redrivable(self, shared: SharedSubscription) -> str:
        """Return the stream of the dead letters of *shared*, after checking that they can be published again.

        :raises SubscriptionError: they cannot be published again
        """
        dead, name = shared.options.dead, shared.name
        if dead is None:
            raise SubscriptionConflict(f"subscription {name!r} has no stream of dead letters, so none are kept")
        if shared.redriving:
            raise SubscriptionConflict(f"dead letters of subscription {name!r} are being published again already")
        for other in self.entries.values():
            if other is shared or other.options.dead != dead:
                continue
            for stream in shared.work.lanes.keys() & other.work.lanes.keys():
                raise SubscriptionConflict(
                    f"subscription {other.name!r} has its dead letters of stream {stream!r} in {dead!r}, too: the "
                    "server cannot tell them apart; give each subscription its own stream of dead letters"
                )
        return dead

    @inlineCallbacks
    def _change(self, *payloads: bytes, runs: Sequence[Run] = (), publish: Publish | None = None) -> Steps[None]:
        """Append a change of a whole subscription, such as a deletion, and publish *runs* in the same commit."""
        self._changing += 1
        try:
            yield (publish or self.publish)(runs, [self.stream.draft(*payloads)])
        finally:
            self._changing -= 1

    # Leasing.

    def lease(
        self, shared: SharedSubscription, consumer: str, request: int | None, most: int, wait: float
    ) -> Deferred[list[LeasedRun]]:
        """Lease up to *most* records, waiting up to *wait* seconds for the first one.

        :param request: see :meth:`.work.Work.lease`
        :return: a Deferred that fires with the leased records; cancelling it ends the request, so that nothing is
            leased
        """
        if (refusal := self.journal.standing.refusal) is not None:
            return fail(refusal)
        found: Deferred[list[LeasedRun]] = Deferred(lambda _: self._answer(shared, waiting, []))
        waiting = Waiting(consumer, request, most, found, self.clock.seconds() + wait)
        if wait:
            waiting.timer = self.clock.callLater(wait, self.wake, shared)
        shared.waiting.append(waiting)
        self.wake(shared)
        return found

    def wake(self, shared: SharedSubscription) -> None:
        """Lease records to the requests that wait, in their order, and answer these requests."""
        shared._again = True
        if shared._waking:
            return
        shared._waking = True
        try:
            while shared._again:
                shared._again = False
                self._serve(shared)
        finally:
            shared._waking = False

    def _serve(self, shared: SharedSubscription) -> None:
        now, empty = self.clock.seconds(), False
        waits = list(shared.waiting)
        share = max(1, -(-shared.work.available() // len(waits))) if waits else 0
        for waiting in waits:
            if waiting.answer.called:
                continue
            held = shared.group.held[waiting.consumer]
            found: list[LeasedRun] = []
            if not empty or shared.work.repeats(waiting.consumer, waiting.request):
                found = self._take(shared, waiting, min(waiting.most, share))
            if waiting.answer.called:  # the request failed, because a record that its lease needs was not written
                continue
            if found or (waiting.deadline <= now and not shared.appending and not shared._again):
                self._answer(shared, waiting, found)
            elif held < shared.options.most:
                empty = True  # Other requests would find nothing either, except for a repetition of an earlier one.

    def _take(self, shared: SharedSubscription, waiting: Waiting, most: int) -> list[LeasedRun]:
        found: list[LeasedRun] = []
        left = ANSWER_BYTES
        for leased in shared.work.lease(waiting.consumer, waiting.request, most):
            lane, first = leased.lane, leased.first
            while first <= leased.last:
                if found and left <= 0:
                    lane.withdraw(first, leased.last)
                    break
                run = self._reader.holding(lane.stream, first)
                if run is None:
                    lane.missing(first, first)
                    # Look up the end of the gap instead of trying each number, because a gap may have any length.
                    lane.expire_unseen(self._reader.behind(first) - 1)
                    first += 1
                    continue
                part = run.slice(first - run.first_seq, min(leased.last, run.last_seq) - run.first_seq + 1)
                if len(part.payload) > left:
                    part, left = part.slice(0, part.fitting(left) if not found or part.sizes[0] <= left else 0), 0
                if len(part):
                    found.append(LeasedRun(attrs.evolve(leased, first=first, last=first + len(part) - 1), part))
                    first += len(part)
                    left -= len(part.payload)
        return found

    def _answer(self, shared: SharedSubscription, waiting: Waiting, found: list[LeasedRun]) -> None:
        self._remove(shared, waiting)
        waiting.answer.callback(found)

    def fail(self, shared: SharedSubscription, waiting: Waiting, error: BaseException) -> None:
        """End a request that waits, because of *error*."""
        self._remove(shared, waiting)
        waiting.answer.errback(Failure(error))

    def _remove(self, shared: SharedSubscription, waiting: Waiting) -> None:
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
            with a
            PublishError, or if the subscription was deleted meanwhile.
        """
        if shared.gone:
            return fail(SubscriptionGone(f"shared subscription {shared.name!r} was deleted"))
        ready = shared.group.trusted() and shared.group.stored_epoch == shared.group.epoch
        if not proven and not ready and any(item.kind == "extend" or shared.work.refusals(item) for item in items):
            # Another server may have taken over and leased the record again.  Until an append shows that it has not,
            # extend no lease, and refuse no token, because the token may be one of that server.  Also wait until the
            # epoch is durable.
            written = self._append(shared, [shared.group.begin()])
            return written.addCallback(lambda _: self.act(shared, items, consumer, runs, publish, proven=True))
        outcome = shared.work.act(items, consumer, whole=bool(runs))
        shared.active = self.now()
        if not outcome.batches and (outcome.refused or not runs):
            return succeed(outcome)
        return self._append(shared, outcome.batches, runs, publish).addCallback(lambda _: outcome)

    # Writing.

    def _append(
        self,
        shared: SharedSubscription,
        batches: Sequence[LaneChange],
        runs: Sequence[Run] = (),
        publish: Publish | None = None,
    ) -> Deferred[Any]:
        """Append the changes *batches* and the messages *runs* in one commit: all become durable, or none."""
        payloads, own = [], []
        for batch in batches:
            place = {} if batch.lane is None else {"stream": batch.lane.stream}
            payloads.append(progress.pack(shared.name, self.stream.checkpoint, **place, **batch.fields()))
            if batch.letter is not None and batch.lane is not None and shared.options.dead is not None:
                own += self._letter(shared.options.dead, batch.lane.stream, batch.letter[0])
        if payloads:
            own.append(self.stream.draft(*payloads))
        shared.appending += 1

        def durable(result: Any) -> Any:
            shared.appending -= 1
            for batch in batches:
                shared.group.committed(batch)
            self.wake(shared)
            return result

        def refused(failure: Failure) -> Failure:
            shared.appending -= 1
            for batch in batches:
                shared.group.undone(batch)
            for waiting in list(shared.waiting):
                if waiting.deadline <= self.clock.seconds():
                    self.fail(shared, waiting, failure.value or failure)
            return failure

        return (publish or self.publish)(runs, own).addCallbacks(durable, refused)

    def _letter(self, dead: str, stream: str, seq: int) -> list[Run]:
        """Return a copy of record *seq* for *dead*, the stream of dead letters; its producer is ``stream/seq``."""
        run = self._reader.holding(stream, seq)
        if run is None:
            return []  # Retention has deleted the record, which becomes final without a copy.
        record = next(iter(run.slice(seq - run.first_seq, seq - run.first_seq + 1).records()))
        fields = {"producer": f"{stream}/{seq}"[-255:], "topic": record.topic, "content_type": record.content_type}
        return [Run.of(dead, [record.payload], source=SOURCE, **fields)]

    def _not_written(self, failure: Failure, shared: SharedSubscription) -> None:
        failure.trap(PublishError)
        log.warn(
            "the state of shared subscription {name!r} was not written, and is tried again: {why}",
            name=shared.name,
            why=failure.getErrorMessage(),
        )

    def _everything(self) -> list[bytes]:
        return progress.pack_checkpoint({name: shared.saved() for name, shared in self.entries.items()})

    # Called by the broker.

    def durable(self, ends: Mapping[str, int]) -> None:
        """Wake the requests that wait for records of these streams."""
        for stream in ends:
            for shared in self._by_stream.get(stream, ()):
                shared.work.lanes[stream].stir()
                if shared.waiting:
                    self.wake(shared)

    def unread(self) -> list[Unread]:
        """Return the records that retention keeps for shared subscriptions, and for the recovery of their state."""
        found = [
            Unread(shared.name, stream, lane.progress.final.floor, shared.active)
            for shared in self.entries.values()
            for stream, lane in shared.work.lanes.items()
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
        if not self._changing:
            self.stream.maintain(bool(self.entries) and self.journal.keeper.is_sealed(STREAM, self.stream.checkpoint))

    def _check_one(self, shared: SharedSubscription) -> None:
        lanes = shared.work.lanes
        for stream, lane in list(lanes.items()):
            self._checks.isolation.call(f"shared subscription {shared.name!r} in stream {stream!r}", lane.tick)
        if all(lane.progress.final.floor >= lane.bounds()[1] for lane in lanes.values()):
            shared.active = self.now()  # All records are final, so the subscription is not abandoned.
        if shared.waiting:
            self.wake(shared)


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


def keys_of(journal: IJournal, stream: str, key: str, first: int, last: int) -> dict[int, str]:
    """Return the keys of the records from *first* to *last*; a record without a key gets a key of its own."""
    found: dict[int, str] = {}
    for run in journal.read(stream, first, 1 << 20):
        for record in run.records():
            if record.seq > last:
                return found
            labels = {"topic": record.topic, "producer": record.producer}
            value = labels[key] if key in labels else _member(record.payload, key)
            found[record.seq] = f"#{record.seq}" if value is None else f"={value}"
    return found


def _member(payload: bytes, key: str) -> str | None:
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    value = fields.get(key) if isinstance(fields, dict) else None
    return None if value is None else json.dumps(value)
