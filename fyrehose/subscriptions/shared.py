"""Shared subscriptions: let requests for records wait, settle records with results, and copy dead letters.

lease -> wake -> LeasePool.lease -> records              also when something is durable, and every half second
act   -> LeasePool.act -> one append with the results    -> durable -> answer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred, fail, inlineCallbacks, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.broker.state_stream import Steps
from fyrehose.errors import FyrehoseError, PayloadTooLarge, PublishError, SubscriptionConflict, SubscriptionGone
from fyrehose.net.turns import ROUND, SteppedWork
from fyrehose.records import Run, halves
from fyrehose.subscriptions import letters
from fyrehose.subscriptions.keys import keys_of
from fyrehose.subscriptions.lane import Draft, Lane, LeasedRange, Track
from fyrehose.subscriptions.pool import Item, LeasePool, WorkOutcome
from fyrehose.subscriptions.progress import SOURCE, StreamProgress
from fyrehose.subscriptions.subscription import NamedSubscription, PublishBatch

log = Logger()

#: The largest payload of one answer with several records, in bytes.
ANSWER_BYTES = 4 << 20
#: How many dead letters one draft has at most, and their payload in bytes beyond the first one.
MOST_LETTERS, LETTER_BYTES = 500, 1 << 20
#: How many requests that wait are answered in one turn, and what each costs the network of the subscription, in bytes.
MOST_ANSWERS, ANSWER_COST = 32, 16 << 10
#: How many bytes one request reads to publish dead letters again.
REDRIVE_BYTES = 1 << 20


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
class SharedSubscription(NamedSubscription):
    """A subscription whose records are leased to workers, and the requests that wait for some.

    :ivar new: whether it was just created, so that none of its records was ever leased, and none has to wait
    """

    new: bool = False
    pool: LeasePool = attrs.field(init=False)
    waiting: list[WaitingWorker] = attrs.field(factory=list, init=False)
    _waking: bool = attrs.field(default=False, init=False)
    _again: bool = attrs.field(default=False, init=False)
    _queued: bool = attrs.field(default=False, init=False)
    #: why the requests that wait are refused, if the subscription is gone
    _reason: FyrehoseError | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        table = self.table
        self.pool = LeasePool(
            self.options,
            lambda draft: table.append_by_itself(self, draft) is None,
            table.clock.seconds,
            lambda: bool(table.journal.standing.leads_alone),
            copy=self._copy,
            wall=lambda: table.now(),
            before=self.saved.epoch,
            paused=self.saved.paused,
        )
        if self.new:
            self.pool.hold_until = 0.0
        self.tracks = self.pool.lanes

    @property
    def epoch(self) -> int:
        return max(self.saved.epoch, self.pool.epoch)

    def add_stream(self, stream: str, progress: StreamProgress) -> None:
        key, journal, reader = self.options.key, self.table.journal, self.table.reader
        keys = None if key is None else lambda first, last: keys_of(reader, stream, key, first, last)
        Lane(stream, progress, self.pool, lambda: journal.bounds(stream), keys)
        self.table.by_stream.setdefault(stream, []).append(self)

    def remove_stream(self, stream: str) -> None:
        del self.pool.lanes[stream]
        self.pool.stirred.pop(stream, None)
        others = self.table.by_stream[stream]
        others.remove(self)
        if not others:
            del self.table.by_stream[stream]

    def may_forget(self, track: Track) -> bool:
        """Return whether all records of a retired stream are final, and no dead letter may be published to it again."""
        dead, journal = self.options.dead, self.table.journal
        if track.durable_floor < journal.bounds(track.stream)[1]:
            return False
        if dead is None or not track.progress.counts["dead"]:
            return True
        oldest, last = journal.bounds(dead)
        return max(oldest - 1, self.saved.redriven) >= last

    def arrived(self, stream: str, last: int) -> bool:
        """Record that *stream* has durable records up to *last*; return whether requests wait, which need a turn."""
        self.pool.lanes[stream].arrived(last)
        wakes = bool(self.waiting) and not self._queued
        self._queued |= wakes
        return wakes

    def pause(self, paused: bool) -> Deferred[Any]:
        """Stop leasing (*paused*), or lease again; the Deferred fires when the change is durable."""
        return self.append(Draft(whole={"paused": paused}))

    @inlineCallbacks
    def release(self, consumer: str) -> Steps[int]:
        """Return all records that *consumer* has now, as not tried; fires with their number when that is durable.

        They are returned in parts, each when the one before is durable (rule 21).
        """
        released, most = 0, self.pool.held[consumer]
        for draft in self.pool.release(consumer):
            if released >= most or self.gone:
                break
            held = self.pool.held[consumer]
            written = self.append(draft) if draft.changes else None
            released += held - self.pool.held[consumer]
            yield written or SteppedWork(self.table.turns, iter(()), self.network).later()
        return released

    def end(self, reason: FyrehoseError) -> None:
        self._reason = reason
        self._end_some()

    def _end_some(self) -> int:
        """Refuse requests that wait, as many as one turn allows, because the subscription was deleted."""
        part = self.waiting[:MOST_ANSWERS]
        for waiting in part:
            self.answer(waiting, Failure(self._reason))
        if self.waiting:
            self._want_turn()
        return len(part)

    def stop(self) -> None:
        """Answer the requests that wait, and write what the next start needs (rule 22)."""
        for waiting in list(self.waiting):
            self.answer(waiting, [])
        if self.table.journal.standing.leads_alone and (draft := self.pool.stop()).changes:
            self.table.append_by_itself(self, draft)

    def check(self, ends: Mapping[str, int]) -> None:
        self.pool.tick(look=True)
        if self.pool.blocked is not None:
            self.table.say(self, "cannot write dead letters, and tries again: {why}", why=str(self.pool.blocked))
        super().check(ends)
        self.wake()

    # What was appended.

    def take(self, draft: Draft) -> None:
        if draft.epoch > self.pool.epoch:  # It was rewound.
            self.pool.epoch, self.pool.before = draft.epoch, 0  # So tokens from before are refused.
        self.pool.paused = self.saved.paused
        self.pool.accept(draft)

    def settle(self, _: object, draft: Draft, answer: Any) -> Any:
        self.pool.durable(draft)
        self.one_durable()
        if self.waiting or self.pool.more:
            self.wake()
        return answer

    # Leasing.

    def lease(self, consumer: str, request: int | None, most: int, wait: float) -> Deferred[list[LeasedRun]]:
        """Lease up to *most* records, waiting up to *wait* seconds for the first one.

        :param request: see :meth:`.pool.LeasePool.lease`
        :return: a Deferred that fires with the leased records; cancelling it ends the request, so that nothing is
            leased
        """
        if (refusal := self.table.journal.standing.refusal) is not None:
            return fail(refusal)
        found: Deferred[list[LeasedRun]] = Deferred(lambda _: self.answer(waiting, []))
        waiting = WaitingWorker(consumer, request, most, found, self.table.clock.seconds() + wait)
        if wait:
            waiting.timer = self.table.clock.callLater(wait, self._want_turn)
        self.waiting.append(waiting)
        self.wake()
        return found

    def wake(self) -> int:
        """Lease records to the requests that wait, in their order; return how many requests were answered."""
        if self.gone:
            return self._end_some()
        self._again, answered = bool(self.waiting), 0
        if self._waking:
            return 0
        self._waking = True
        try:
            while self._again:
                self._again = False
                answered += self._serve()
        finally:
            self._waking = False
        if self.pool.more:
            self._continue()
        return answered

    def _continue(self) -> None:
        """Do what is left in another turn, so that other peers get theirs first, when all is durable (rule 21)."""
        if not self.gone and self.durable == self.appended:
            self._want_turn()

    def _want_turn(self) -> None:
        if not self._queued:
            self._queued = True
            self.table.turns.ready(self, self.network)

    def take_turn(self) -> int:
        """Do the next part of what is left; if there is more, it costs a round, so that the reactor runs."""
        self._queued, answered = False, 0
        if self.gone:
            answered = self._end_some()
        elif not self.pool.stopped:
            self.pool.more = False
            self.pool.tick()
            answered = self.wake()
        return ROUND if self._queued else answered * ANSWER_COST

    def failed(self, failure: Failure) -> None:
        """Log *failure*, by which a turn has ended; the next check goes on."""
        log.failure("a turn of subscription {name!r} failed; please report this bug", failure, name=self.name)

    def _serve(self) -> int:
        now, empty, answered = self.table.clock.seconds(), False, 0
        waits = list(self.waiting)
        share = max(1, -(-self.pool.available() // len(waits))) if len(waits) > 1 else max(1, self.options.most)
        for waiting in waits:
            if waiting.answer.called or self.gone:
                continue
            if answered == MOST_ANSWERS:
                self.pool.more = True
                break
            held = self.pool.held[waiting.consumer]
            found: list[LeasedRun] = []
            if not empty or self.pool.repeats(waiting.consumer, waiting.request):
                found = self._take(waiting, min(waiting.most, share))
            busy = self.durable < self.appended or self._again or self.pool.more
            if found or (waiting.deadline <= now and not busy):
                refusal = None if found else self.table.journal.standing.refusal
                self.answer(waiting, found if refusal is None else Failure(refusal))
                answered += 1
            elif held < self.options.most:
                empty = True  # Other requests would find nothing either, except for a repetition of an earlier one.
        return answered

    def _take(self, waiting: WaitingWorker, most: int) -> list[LeasedRun]:
        found: list[LeasedRun] = []
        left, gone = ANSWER_BYTES, Draft()
        for leased in self.pool.lease(waiting.consumer, waiting.request, most):
            lane, first = leased.lane, leased.first
            while first <= leased.last:
                if found and left <= 0:
                    lane.withdraw(first, leased.last)
                    break
                run = self.table.reader.holding(lane.stream, first)
                if run is None:
                    # Look up the end of the gap instead of trying each number, because a gap may have any length.
                    end = self.table.reader.behind(first) - 1
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
            self.table.append_by_itself(self, gone)
        return found

    def answer(self, waiting: WaitingWorker, found: list[LeasedRun] | Failure) -> None:
        """End a request that waits, with records, or with the failure that ends it."""
        if waiting in self.waiting:
            self.waiting.remove(waiting)
        if waiting.timer is not None and waiting.timer.active():
            waiting.timer.cancel()
        waiting.timer = None
        waiting.answer.callback(found)

    # Settling.

    def act(
        self,
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
        if self.gone:
            return fail(SubscriptionGone(f"shared subscription {self.name!r} was deleted"))
        pool = self.pool
        ready = pool.trusted() and pool.stored_epoch == pool.epoch
        if not proven and not ready and (pool.refuses_any(items) or any(item.kind == "extend" for item in items)):
            # Another server may have taken over and leased the record again.  Until an append shows that it has not,
            # extend no lease, and refuse no token, because the token may be one of that server.  Also wait until the
            # epoch is durable.
            written = self.append(pool.proof())
            return written.addCallback(lambda _: self.act(items, consumer, runs, publish, proven=True))
        try:
            outcome = pool.act(items, consumer, whole=bool(runs))
        except PublishError as refusal:
            return fail(refusal)
        if pool.more:
            self._continue()
        self.active = self.table.now()
        draft = outcome.draft
        if not draft.changes and (outcome.refused or not runs):
            pool.accept(draft)
            # What is refused as final may not be durable yet (rule 19).
            return self.when_durable().addCallback(lambda _: outcome)
        return self.table.append(self, draft, runs, publish, outcome)

    def redrive(self, publish: PublishBatch) -> Deferred[tuple[int, int]]:
        """Publish the next dead letters to the streams that they come from, and record that in the same commit.

        :param publish: publishes with the rights of the peer
        :return: a Deferred that fires with the number of dead letters that were published, and about how many are left,
            when that is durable; fails with a SubscriptionError or a PublishError
        """
        dead = self._redrivable()
        runs: list[Run] = []
        seq, last = self.saved.redriven, self.table.journal.bounds(dead)[1]
        left = self.table.most_redriven
        for found in self.table.journal.read(dead, seq + 1, REDRIVE_BYTES):
            run = found.slice(0, left)
            stream = run.producer or ""
            if run.source == SOURCE and stream in self.pool.lanes:
                runs.append(attrs.evolve(run, stream=stream, first_seq=0, time=0))
                left -= len(run)
            seq = run.last_seq
            if not left:
                break
        if seq == self.saved.redriven:
            return succeed((0, 0))
        written = self.table.append(self, Draft(whole={"redriven": seq}), runs, publish)
        return written.addCallback(lambda _: (sum(map(len, runs)), max(0, last - seq)))

    def _redrivable(self) -> str:
        """Return the stream of the dead letters, after checking that they can be published again.

        :raises SubscriptionError: they cannot be published again
        """
        dead, name = self.options.dead, self.name
        if dead is None:
            raise SubscriptionConflict(f"subscription {name!r} has no stream of dead letters, so none are kept")
        for other in self.table.entries.values():
            if other is self or other.options.dead != dead:
                continue
            for stream in self.tracks.keys() & other.tracks.keys():
                raise SubscriptionConflict(
                    f"subscription {other.name!r} has its dead letters of stream {stream!r} in {dead!r}, too: the "
                    "server cannot tell them apart; give each subscription its own stream of dead letters"
                )
        return dead

    def _copy(self, draft: Draft, lane: Lane, first: int, last: int) -> int:
        """Add to *draft* the dead letters of records *first* to *last*; return the last one that it has room for.

        The producer of a dead letter is the stream of its record, and ``producer_seq`` the number of the record.  One
        that the creator may not publish, or that its stream cannot take, is left out for good, and counted (rule 23).

        :raises PublishError: it cannot be published now
        """
        dead = self.options.dead
        while dead is not None and first <= last:
            run = self.table.reader.holding(lane.stream, first)
            if run is None:  # Retention has deleted the record, which becomes final without a copy.
                first = self.table.reader.behind(first)
                continue
            begin, left = first - run.first_seq, LETTER_BYTES - draft.size
            part = run.slice(
                begin, min(last, run.last_seq, first + MOST_LETTERS - draft.looked - 1) - run.first_seq + 1
            )
            if not len(part) or left <= 0 or (draft.letters and part.sizes[0] > left):
                return first - 1
            part = part.slice(0, part.fitting(left))
            letter = attrs.evolve(part, stream=dead, source=SOURCE, producer=lane.stream, producer_seq=first)
            letter = attrs.evolve(letter, first_seq=0, time=0, event_ids=None, event_times=None)
            self._add_letters(draft, lane, letter)
            draft.looked += len(part)
            first += len(part)
        return last

    def _add_letters(self, draft: Draft, lane: Lane, found: Run) -> None:
        try:
            draft.created += self.table.admit(self.options.creator, found)
        except FyrehoseError as error:
            if not letters.keeps(letters.KEEP_FORBIDDEN, error):
                raise
            if len(found) > 1 and isinstance(error, PayloadTooLarge):
                for (half,) in halves([found]):
                    self._add_letters(draft, lane, half)
                return
            draft.of(lane).lost += len(found)
            self.table.say(self, "has dead records without a copy: {why}", why=str(error))
        else:
            draft.letters.append(found)
            draft.size += len(found.payload)
