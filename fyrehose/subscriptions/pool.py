"""Requests of workers to a shared subscription, without I/O: lease records; settle, return, reject and extend them.

lease(consumer, request, most) -> leased records
act(items, consumer)           -> a draft of what is appended, and what is refused
tick()                         -> the leases and delays whose time is over

draft -> append -> encoded, and accepted by the journal -> accept(draft) -> durable(draft) -> the answer
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

import attrs

from fyrehose.errors import PublishError
from fyrehose.spans import NumberSet, Ranges, merged
from fyrehose.subscriptions.lane import Draft, Judged, Lane, Leased, LeasedRange, State, Token
from fyrehose.subscriptions.progress import SubscriptionOptions

#: How many consumers' last requests are remembered at most.
MOST_CONSUMERS = 1_000
#: The delay after the first failure, in seconds; each further failure doubles the delay, up to the longest one.
FIRST_DELAY, LONGEST_DELAY = 1.0, 300.0
#: The heap of times is rebuilt without outdated entries when it has twice as many entries as were left then, and this
#: many more.
SPARE = 100
#: Seconds between two appends that only show that no other server has taken over.
BETWEEN_PROOFS = 0.1
#: How many entries of the heap one turn handles, how many ranges of records one request changes, and how many one turn
#: looks at to find those of a worker (rule 21).
TURN = 1_000


def backoff(failures: int) -> float:
    """Return how long a record waits after this number of failures, in seconds."""
    return min(LONGEST_DELAY, FIRST_DELAY * (1 << min(20, max(0, failures - 1))))


def no_copy(draft: Draft, lane: Lane, first: int, last: int) -> int:
    """Add no dead letters to *draft*, which has room for all of them."""
    return last


@attrs.frozen
class Item:
    """The verdict of a worker on consecutive records.

    :ivar kind: ``done``, ``failed``, ``untried``, ``reject`` or ``extend``
    :ivar stream: the stream of the records; empty: the subscription has only one
    :ivar delay: until a returned record may be leased again, in seconds; None: longer with each failure
    :ivar why: the reason of a rejection
    """

    kind: str
    first: int
    last: int
    token: Token
    stream: str = ""
    delay: float | None = None
    why: str = ""

    def __len__(self) -> int:
        return self.last - self.first + 1

    def part(self, first: int, last: int) -> Item:
        """Return this verdict on the records from *first* to *last* alone."""
        whole = (first, last) == (self.first, self.last)
        return self if whole else attrs.evolve(self, first=first, last=last)


@attrs.define
class WorkOutcome:
    """The outcome of a worker's request: what the request changes, and which of its items are refused.

    :ivar draft: what is to be appended, with the results of the request
    :ivar settled: the records that are done, by stream
    :ivar refused: the items that were refused, and why
    :ivar extended: the items that extended a lease, each with its token
    """

    draft: Draft = attrs.field(factory=Draft)
    settled: dict[str, Ranges] = attrs.field(factory=dict)
    refused: list[tuple[Item, str]] = attrs.field(factory=list)
    extended: list[tuple[Item, Token]] = attrs.field(factory=list)

    def refuse(self, item: Item, first: int, last: int, why: str) -> None:
        """Add that *item* is refused for the records from *first* to *last*."""
        self.refused.append((item.part(first, last), why))


def _order(item: Item) -> tuple[bool, bool]:
    """Return the rank of *item* in its request: what settles records comes first, what extends leases last."""
    return item.kind != "done", item.kind == "extend"


@attrs.define(eq=False)
class LeasePool:
    """The workers of one subscription, and the state that its lanes share.

    :ivar append: appends a draft; returns whether it was accepted, after a call of :meth:`accept`.  When the draft is
        durable, the caller calls :meth:`durable`, in the order of appends.
    :ivar now: returns the monotonic time, in seconds
    :ivar trusted: returns whether no other server can have taken over
    :ivar delay: returns how long a record waits after a number of failures, in seconds
    :ivar copy: adds the dead letters of some records of a lane to a draft, and returns the last number for which the
        draft has room
    :ivar wall: returns the time of day, which is shown to people, in microseconds since 1970 UTC
    :ivar epoch: the epoch of this server; *before* is the epoch of the server that led before
    :ivar hold_until: until when records that may have been leased before the start wait (rule 12)
    :ivar open: how many records of all lanes are not final, of those that were leased or may have been
    :ivar held: how many records each consumer has; *leased* is their sum
    :ivar delayed: how many returned records wait for their delay
    :ivar held_records: how many records are waiting that the server before may have leased
    :ivar stirred: the lanes that may have records to lease, by stream, in the order in which they are asked for some
    :ivar stopped: whether the server is stopping, and leases nothing any more
    :ivar more: whether the last call has left work for another turn (rule 21)
    """

    options: SubscriptionOptions
    append: Callable[[Draft], bool]
    now: Callable[[], float]
    trusted: Callable[[], bool] = lambda: True
    delay: Callable[[int], float] = backoff
    copy: Callable[[Draft, Lane, int, int], int] = attrs.field(default=no_copy, kw_only=True)
    wall: Callable[[], int] = attrs.field(default=lambda: 0, kw_only=True)
    before: int = attrs.field(default=0, kw_only=True)
    paused: bool = attrs.field(default=False, kw_only=True)
    lanes: OrderedDict[str, Lane] = attrs.field(factory=OrderedDict, init=False)
    epoch: int = attrs.field(init=False)
    appended_epoch: int = attrs.field(init=False)
    stored_epoch: int = attrs.field(init=False)
    hold_until: float = attrs.field(init=False)
    open: int = attrs.field(default=0, init=False)
    leased: int = attrs.field(default=0, init=False)
    delayed: int = attrs.field(default=0, init=False)
    held_records: int = attrs.field(default=0, init=False)
    held: Counter[str] = attrs.field(factory=Counter, init=False)
    stirred: OrderedDict[str, Lane] = attrs.field(factory=OrderedDict, init=False)
    order: Iterator[int] = attrs.field(factory=count, init=False)
    redelivered: int = attrs.field(default=0, init=False)
    late: int = attrs.field(default=0, init=False)
    more: bool = attrs.field(default=False, init=False)
    stopped: bool = attrs.field(default=False, init=False)
    #: why the dead letters of leases that have ended could not be written in the last turn, for now
    blocked: PublishError | None = attrs.field(default=None, init=False)
    #: a heap of the times at which a range of a lane has to leave its state, if it is still in that state
    _alarms: list[tuple[float, int, Lane, int, int, State]] = attrs.field(factory=list, init=False)
    _most_alarms: int = attrs.field(default=SPARE, init=False)
    _requests: OrderedDict[str, tuple[int, list[LeasedRange]]] = attrs.field(factory=OrderedDict, init=False)
    _prove_after: float = attrs.field(default=-inf, init=False)  #: when the next proof may be appended

    def __attrs_post_init__(self) -> None:
        self.epoch, self.appended_epoch, self.stored_epoch = self.before + 1, self.before, self.before
        self.hold_until = self.now() + self.options.lease

    def may_lease(self) -> bool:
        """Return whether this server may lease and extend (rules 10 and 13).

        If not, the missing record is appended: the beginning of its epoch, or an empty change, which becomes durable
        only if no other server has taken over.
        """
        if self.stopped:
            return False
        if self.appended_epoch != self.epoch:
            self.append(self.proof())
        trusted = self.trusted()
        if not trusted and self.stored_epoch == self.epoch and self.now() >= self._prove_after:
            self._prove_after = self.now() + BETWEEN_PROOFS
            self.append(self.proof())
        return trusted and self.stored_epoch == self.epoch

    def proof(self) -> Draft:
        """Return the draft that must be durable before this server may lease and extend, see :meth:`may_lease`."""
        return Draft(epoch=0 if self.appended_epoch == self.epoch else self.epoch)

    def in_grace(self) -> bool:
        """Return whether records that the server before may have leased still have to wait (rule 12)."""
        return self.now() < self.hold_until

    def room(self) -> int:
        """Return how many more records may be leased for the first time within the window (rule 16)."""
        return max(0, self.options.window - self.open)

    def count(self, state: State, change: int) -> None:
        """Count *change* more records in *state*."""
        self.open += change
        if isinstance(state, Leased):
            self.leased += change
            self.held[state.consumer] += change
            if not self.held[state.consumer]:
                del self.held[state.consumer]
        elif state.delayed:
            self.delayed += change
        elif state.held:
            self.held_records += change

    def alarm(self, when: float, lane: Lane, first: int, last: int, state: State) -> None:
        """Look at records of *lane* again at the time *when*, if they are in *state* then."""
        if len(self._alarms) > self._most_alarms:
            self._set_alarms()
        heappush(self._alarms, (when, next(self.order), lane, first, last, state))

    def _set_alarms(self) -> None:
        """Set the alarms of all ranges again, each once, without those of ranges that have left their state."""
        self._alarms = [
            (span.state.end, next(self.order), lane, span.first, span.last, span.state)
            for lane in self.lanes.values()
            for span in lane.spans
            if span.state.end
        ]
        heapify(self._alarms)
        self._most_alarms = SPARE + 2 * len(self._alarms)

    # Leasing.

    def lease(self, consumer: str, request: int | None, most: int) -> list[LeasedRange]:
        """Lease up to *most* records to *consumer*.

        :param request: a number of the request: a repetition with the same number, after a lost answer, gets the same
            leases again, extended from now on; None: each request gets new leases
        """
        repeated = self._repeated(consumer) if request is not None and self.repeats(consumer, request) else []
        if repeated:
            return repeated
        left = min(most, self.options.most - self.held[consumer])
        leased: list[LeasedRange] = []
        self.tick()
        for lanes in range(len(self.stirred), 0, -1):
            if left <= 0:
                break
            stream, lane = next(iter(self.stirred.items()))
            self.stirred.move_to_end(stream)  # The streams take turns.
            before = self.leased
            found = lane.lease(consumer, -(-left // lanes))
            if not found and not lane.has_more():
                del self.stirred[stream]
            left -= self.leased - before
            leased += found
        if request is not None and leased:
            self._requests[consumer] = request, leased
            self._requests.move_to_end(consumer)
            if len(self._requests) > MOST_CONSUMERS:
                self._requests.popitem(last=False)
        return leased

    def available(self) -> int:
        """Return about how many records could be leased now."""
        return sum(lane.available() for lane in self.stirred.values())

    def repeats(self, consumer: str, request: int | None) -> bool:
        """Return whether the last request of *consumer* that got records has the number *request*."""
        return request is not None and consumer in self._requests and self._requests[consumer][0] == request

    def _repeated(self, consumer: str) -> list[LeasedRange]:
        """Extend the leases that the last request of *consumer* got, and return those that have not ended."""
        found: list[LeasedRange] = []
        if not self.may_lease():
            return found
        for leased in self._requests[consumer][1]:
            item = Item("repeat", leased.first, leased.last, leased.token)
            for low, high, state, why in leased.lane.judge(item):
                if state is not None and not why:
                    self._extend(leased.lane, low, high, self._renewed(state, consumer))
                    found.append(attrs.evolve(leased, first=low, last=high))
        return found

    def _renewed(self, state: State, consumer: str) -> Leased:
        return Leased(state.ended, consumer, self.now() + self.options.lease, state.held)

    def _extend(self, lane: Lane, first: int, last: int, state: Leased) -> None:
        lane.put(first, last, state)
        self.alarm(state.end, lane, first, last, state)

    # Settling, returning, extending.

    def _judge(self, item: Item) -> tuple[Lane | None, list[Judged]]:
        """Return the lane of *item*, and its ranges as :meth:`Lane.judge` does; no lane if its stream was retired."""
        lane = self.lanes.get(item.stream or self.options.stream)
        return lane, [(item.first, item.last, None, "lease-lost")] if lane is None else lane.judge(item)

    def refuses_any(self, items: Sequence[Item]) -> bool:
        """Return whether a part of *items* would be refused now."""
        return any(why for item in items for *_, why in self._judge(item)[1])

    def act(self, items: Sequence[Item], consumer: str, whole: bool = False) -> WorkOutcome:
        """Return what the verdicts *items* change, and what is refused; nothing has changed yet.

        :param whole: whether nothing changes if one of *items* is refused
        :raises PublishError: a dead letter cannot be written now
        """
        self.tick()
        outcome, several, left = WorkOutcome(), len(items) > 1, TURN
        taken: defaultdict[Lane, NumberSet] = defaultdict(NumberSet)  # what items of the request have decided about
        for item in sorted(items, key=_order) if several else items:
            lane, judged = self._judge(item) if left else (None, [(item.first, item.last, None, "later")])
            for first, last, state, why in judged:
                if why or state is None or lane is None or not left:
                    outcome.refuse(item, first, last, why or "later")
                    continue
                left = 0 if outcome.draft.full else left - 1
                free = taken[lane].gaps(first, last) if several else [(first, last)]
                for low, high in free:
                    self._draft(outcome, lane, item, low, high, state, consumer)
                if several:
                    taken[lane].add(first, last)
                    for low, high in NumberSet(first - 1, free).gaps(first, last) if item.kind != "done" else ():
                        outcome.refuse(item, low, high, "lease-lost")
        if outcome.refused:
            self.late += sum(len(item) for item, _ in outcome.refused)
            if whole:
                return WorkOutcome(refused=outcome.refused)
        for track, change in outcome.draft.changes.items():
            if change.settled:
                change.settled = merged(change.settled) if len(change.settled) > 1 else change.settled
                outcome.settled[track.stream] = change.settled
        return outcome

    def _draft(
        self, outcome: WorkOutcome, lane: Lane, item: Item, first: int, last: int, state: State, consumer: str
    ) -> None:
        """Add to *outcome* what the verdict *item* on records of *lane*, which may give it, changes."""
        draft = outcome.draft
        if item.kind == "done":
            lane.settle(draft.of(lane), first, last)
        elif item.kind != "extend":
            assert isinstance(state, Leased), "a lease is returned only while it lasts"
            why, failed = item.why or ("rejected" if item.kind == "reject" else ""), item.kind != "untried"
            end = lane.give_back(draft, first, last, state, failed=failed, delay=item.delay, why=why)
            if end < last:
                outcome.refuse(item, end + 1, last, "later")
        elif self.may_lease():
            renewed = self._renewed(state, consumer)
            draft.extended.append((lane, first, last, renewed))
            token = self.epoch, renewed.ended[0] + 1
            outcome.extended.append((item.part(first, last), token))
        else:
            outcome.refuse(item, first, last, "not-leading")

    def release(self, consumer: str) -> Iterator[Draft]:
        """Yield drafts that return what *consumer* has, as not tried and without a delay, each of them for one turn.

        The caller lets the journal accept each of them before it asks for the next.  A draft changes nothing if the
        turn has found only what others have.

        :raises PublishError: a dead letter cannot be written now
        """
        draft, left = Draft(), TURN
        for lane in list(self.lanes.values()):
            behind = 0
            while self.held[consumer] and (found := lane.spans.behind(behind, left)):
                for first, last, state in found:
                    behind, left = last, left - 1
                    if isinstance(state, Leased) and state.consumer == consumer:
                        behind = lane.give_back(draft, first, last, state, failed=False, delay=0, why="")
                        if draft.full:
                            break
                if draft.full or not left:
                    yield draft
                    draft, left = Draft(), TURN
        if draft.changes:
            yield draft

    # Time.

    def tick(self, look: bool = False) -> None:
        """End the leases and the delays whose time is over, as many as one turn allows.

        :param look: whether to look for records that retention has deleted, too
        """
        now, draft, self.blocked = self.now(), Draft(), None
        if not look and not (self._alarms and self._alarms[0][0] <= now):
            return
        for _ in range(TURN):
            if not self._alarms or self._alarms[0][0] > now:
                break
            alarm = heappop(self._alarms)
            _, _, lane, first, last, state = alarm
            if self.lanes.get(lane.stream) is not lane:
                continue
            try:
                end = lane.due(draft, first, last, state)
            except PublishError as error:
                self.blocked = error
                heappush(self._alarms, alarm)
                break
            if end < last:  # The draft has no room for more dead letters.
                self.alarm(alarm[0], lane, end + 1, last, state)
                break
        if self._alarms and self._alarms[0][0] <= now and self.blocked is None:
            self.more = True
        for lane in self.lanes.values() if look else ():
            lane.expire(draft)
        draft.changes = {lane: change for lane, change in draft.changes.items() if change.fields()}
        if draft.changes and not self.append(draft):
            self.more = False  # Another turn would be refused, too; the next check tries again.
            self._set_alarms()
            for lane in self.lanes.values():
                lane.look_again()

    def stop(self) -> Draft:
        """Lease nothing any more, and return what the next start needs to know (rule 22)."""
        self.stopped, draft = True, Draft()
        for lane in self.lanes.values():
            lane.stop(draft)
        return draft

    # What was appended.

    def accept(self, draft: Draft) -> None:
        """Change the state, because the journal has accepted *draft* (rule 20)."""
        if draft.epoch:
            self.appended_epoch = draft.epoch
            for lane in self.lanes.values():
                lane.progress.hold = None
        for track, change in draft.changes.items():
            track.accept(change)
        for lane, first, last, state in draft.extended:
            self._extend(lane, first, last, state)

    def durable(self, draft: Draft) -> None:
        """Record that *draft* is durable."""
        self.stored_epoch = max(self.stored_epoch, draft.epoch)
        for track, change in draft.changes.items():
            track.durable(change)

    @property
    def holds(self) -> bool:
        """Return whether records wait because the server before may have leased them (rule 22)."""
        return self.held_records > 0 and self.in_grace()
