"""Shared subscriptions: let requests for records wait, settle records with results, and copy dead letters.

lease -> wake -> LeasePool.lease -> records              also when something is durable, and every half second
act   -> LeasePool.act -> one append with the results    -> durable -> answer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.python.failure import Failure

from fyrehose.errors import FyrehoseError, PublishError, SubscriptionConflict, SubscriptionGone
from fyrehose.records import Run
from fyrehose.subscriptions import letters
from fyrehose.subscriptions.keys import keys_of
from fyrehose.subscriptions.lane import Draft, Lane, LeasedRange
from fyrehose.subscriptions.pool import Item, LeasePool, WorkOutcome
from fyrehose.subscriptions.progress import SOURCE, StreamProgress
from fyrehose.subscriptions.subscription import NamedSubscription, PublishBatch

#: The largest payload of one answer with several records, in bytes.
ANSWER_BYTES = 4 << 20
#: How many dead letters one draft has at most, and their payload in bytes beyond the first one.
MOST_LETTERS, LETTER_BYTES = 500, 1 << 20
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
    _turn: IDelayedCall | None = attrs.field(default=None, init=False)

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
        key, journal = self.options.key, self.table.journal
        keys = None if key is None else lambda first, last: keys_of(journal, stream, key, first, last)
        Lane(stream, progress, self.pool, lambda: journal.bounds(stream), keys)

    def arrived(self, stream: str) -> None:
        """Wake the requests that wait, because records of *stream* are durable."""
        self.pool.lanes[stream].stir()
        if self.waiting:
            self.wake()

    def pause(self, paused: bool) -> Deferred[Any]:
        """Stop leasing (*paused*), or lease again; the Deferred fires when the change is durable."""
        return self.append(Draft(whole={"paused": paused}))

    def release(self, consumer: str) -> Deferred[int]:
        """Return all records that *consumer* has, as not tried; fires with their number when that is durable."""
        count = self.pool.held[consumer]
        return self.append(self.pool.release(consumer)).addCallback(lambda _: count)

    def end(self, reason: FyrehoseError) -> None:
        for waiting in list(self.waiting):
            self.fail(waiting, reason)

    def stop(self) -> None:
        """Answer the requests that wait, and write what the next start needs (rule 22)."""
        for waiting in list(self.waiting):
            self._answer(waiting, [])
        if self._turn is not None and self._turn.active():
            self._turn.cancel()
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

    def settle(self, draft: Draft) -> None:
        self.pool.durable(draft)
        self.one_durable()

    def one_durable(self) -> None:
        super().one_durable()
        self.wake()

    # Leasing.

    def lease(self, consumer: str, request: int | None, most: int, wait: float) -> Deferred[list[LeasedRun]]:
        """Lease up to *most* records, waiting up to *wait* seconds for the first one.

        :param request: see :meth:`.pool.LeasePool.lease`
        :return: a Deferred that fires with the leased records; cancelling it ends the request, so that nothing is
            leased
        """
        if (refusal := self.table.journal.standing.refusal) is not None:
            return fail(refusal)
        found: Deferred[list[LeasedRun]] = Deferred(lambda _: self._answer(waiting, []))
        waiting = WaitingWorker(consumer, request, most, found, self.table.clock.seconds() + wait)
        if wait:
            waiting.timer = self.table.clock.callLater(wait, self.wake)
        self.waiting.append(waiting)
        self.wake()
        return found

    def wake(self) -> None:
        """Lease records to the requests that wait, in their order, and answer these requests."""
        self._again = bool(self.waiting)
        if self._waking:
            return
        self._waking = True
        try:
            while self._again:
                self._again = False
                self._serve()
        finally:
            self._waking = False
        self._continue()

    def _continue(self) -> None:
        """Do what is left in another turn, so that other peers get theirs first, when all is durable (rule 21)."""
        waits = self._turn is not None and self._turn.active()
        if self.pool.more and not waits and not self.gone and self.durable == self.appended:
            self._turn = self.table.clock.callLater(0, self._take_turn)

    def _take_turn(self) -> None:
        self.pool.more = False
        self.pool.tick()
        self.wake()

    def _serve(self) -> None:
        now, empty = self.table.clock.seconds(), False
        waits = list(self.waiting)
        share = max(1, -(-self.pool.available() // len(waits))) if len(waits) > 1 else max(1, self.options.most)
        for waiting in waits:
            if waiting.answer.called:
                continue
            held = self.pool.held[waiting.consumer]
            found: list[LeasedRun] = []
            if not empty or self.pool.repeats(waiting.consumer, waiting.request):
                found = self._take(waiting, min(waiting.most, share))
            busy = self.durable < self.appended or self._again or self.pool.more
            if found or (waiting.deadline <= now and not busy):
                refusal = None if found else self.table.journal.standing.refusal
                if refusal is None:
                    self._answer(waiting, found)
                else:
                    self.fail(waiting, refusal)
            elif held < self.options.most:
                empty = True  # Other requests would find nothing either, except for a repetition of an earlier one.

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

    def _answer(self, waiting: WaitingWorker, found: list[LeasedRun]) -> None:
        self._remove(waiting)
        waiting.answer.callback(found)

    def fail(self, waiting: WaitingWorker, error: BaseException) -> None:
        """End a request that waits, because of *error*."""
        self._remove(waiting)
        waiting.answer.errback(Failure(error))

    def _remove(self, waiting: WaitingWorker) -> None:
        if waiting in self.waiting:
            self.waiting.remove(waiting)
        if waiting.timer is not None and waiting.timer.active():
            waiting.timer.cancel()
        waiting.timer = None

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
        self._continue()
        self.active = self.table.now()
        draft = outcome.draft
        if not draft.changes and (outcome.refused or not runs):
            pool.accept(draft)
            # What is refused as final may not be durable yet (rule 19).
            return self.when_durable().addCallback(lambda _: outcome)
        return self.table.append(self, draft, runs, publish).addCallback(lambda _: outcome)

    def redrive(self, publish: PublishBatch) -> Deferred[tuple[int, int]]:
        """Publish the next dead letters to the streams that they come from, and record that in the same commit.

        :param publish: publishes with the rights of the peer
        :return: a Deferred that fires with the number of dead letters that were published, and about how many are left,
            when that is durable; fails with a SubscriptionError or a PublishError
        """
        dead = self._redrivable()
        runs: list[Run] = []
        seq, last = self.saved.redriven, self.table.journal.bounds(dead)[1]
        found = self.table.journal.read(dead, seq + 1, REDRIVE_BYTES)
        for record in (each for run in found for each in run.records()):
            if len(runs) == self.table.most_redriven:
                break
            seq = record.seq
            stream = (record.producer or "").rpartition("/")[0]
            if record.source == SOURCE and stream in self.pool.lanes:
                labels = {"topic": record.topic, "content_type": record.content_type, "producer": record.producer}
                runs.append(Run.of(stream, [record.payload], source=SOURCE, **labels))
        if seq == self.saved.redriven:
            return succeed((0, 0))
        written = self.table.append(self, Draft(whole={"redriven": seq}), runs, publish)
        return written.addCallback(lambda _: (len(runs), max(0, last - seq)))

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

        A dead letter that the creator may not publish, or that the stream of dead letters cannot take, is left out for
        good, and counted (rule 23).

        :raises PublishError: it cannot be published now
        """
        dead = self.options.dead
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
                draft.created += self.table.admit(self.options.creator, letter)
            except FyrehoseError as error:
                if not letters.keeps(letters.KEEP_FORBIDDEN, error):
                    raise
                draft.of(lane).lost += 1
                self.table.say(self, "has dead records without a copy: {why}", why=str(error))
                continue
            draft.letters.append(letter)
            draft.size += len(letter.payload)
        return last

    def _letter(self, dead: str, stream: str, seq: int) -> Run | None:
        """Return a copy of record *seq* for *dead*, the stream of dead letters; its producer is ``stream/seq``."""
        run = self.table.reader.holding(stream, seq)
        if run is None:
            return None
        record = next(iter(run.slice(seq - run.first_seq, seq - run.first_seq + 1).records()))
        fields = {"producer": f"{stream}/{seq}"[-255:], "topic": record.topic, "content_type": record.content_type}
        return Run.of(dead, [record.payload], source=SOURCE, **fields)
