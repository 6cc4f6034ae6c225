"""Decide which worker gets which record of one stream, and when its lease ends: a state machine without I/O.

    lease, judge, due -> a draft -> pool.append -> accept(change) -> durable(change)

A *lane* is one stream of a shared subscription: a map from ranges of records to their states.  The *reach* of a lane is
the highest number that may have been leased; a *dead letter* is a copy of a record that workers failed to handle.  The
rules, which random schedules check (tests/verification/consumers):

1.  Only a durable record is leased, lowest number first.
2.  A record is leased to nobody else until its lease has ended.
3.  Settling, returning and extending need the token ``EPOCH.NUMBER`` of the record's last lease.
4.  A late settling counts while nobody else has had the record.  Late returning and extending do not count.
5.  A change counts when it is appended, and is answered when it is durable.
6.  Settling with results is one batch, all or nothing.
7.  A dead letter and the end of its record are one batch.
8.  The end of a lease is durable before the record is leased again.
9.  The ``limit``-th failure makes a record a dead letter.
10. Each start of a server has an epoch, which is durable before its first lease.
11. A record is leased for the first time only when a durable ``reach`` includes it.
12. After a start, records up to ``reach`` wait for one lease time.  A worker of the epoch before can settle or extend
    them meanwhile, if the number of its token is the next one after those that were written.
13. A server leases and extends only while no other server can have taken over.
14. Leases count on a clock that does not step.
15. A record waits while an earlier one of its key is not final, durably.
16. A new record is leased while fewer than ``window`` records at or below it are not final.
17. A record that retention deletes expires: at once if it waits, else when its lease or the wait of rule 12 ends.
18. A checkpoint holds what was appended.
19. All that a request changes is one batch, and its answer waits for all of it.  Only what a dead worker has may be
    returned by several batches.
20. A change is encoded and accepted before memory changes; what is accepted becomes durable, or the server ends.
21. One turn handles a bounded number of records and bytes; the rest waits for the next turn.
22. After a start only what can have been leased waits: an orderly stop writes the exact reach and what is leased, and
    ``reach`` is raised in steps that fit what is leased.  What was published after a start was never leased.
23. A dead letter is a publish of the subscription's creator.  Without the right, the record is dead without a copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import attrs

from fyrehose.records import LAST_SEQ, Run
from fyrehose.spans import Ranges, Spans, merged
from fyrehose.subscriptions.progress import KEPT_LETTERS, DeadLetter, Ended, StreamProgress, packed_ranges

if TYPE_CHECKING:
    from fyrehose.subscriptions.pool import Item, LeasePool

#: A record may be returned as not tried this many times its ``limit``; then each further return counts as a failure.
UNTRIED = 10
#: How many records with keys one request for records looks at.
LOOKS = 100
#: How many ranges of records with a lease that ends one draft has at most (rule 21).
MOST_ENDS = 250

#: The token of a lease: the epoch of the server, and how many leases the record has had.
Token = tuple[int, int]


@attrs.frozen(eq=False, slots=True)
class Leased:
    """The state of records that one worker has until the time *end*.

    :ivar held: whether the server before gave the lease, so that its token still counts: the worker may not have got
        the answer with the new one
    """

    ended: Ended
    consumer: str
    end: float
    held: bool = False


@attrs.frozen(eq=False, slots=True)
class Waiting:
    """The state of records that nobody has.

    :ivar until: when they may be leased
    :ivar held: whether the server before may have leased them (rule 12)
    :ivar writing: whether the end of their last lease is being written (rule 8)
    """

    ended: Ended = (0, 0)
    until: float = 0.0
    held: bool = False
    writing: bool = False

    @property
    def delayed(self) -> bool:
        return self.until > 0 and not self.held

    @property
    def end(self) -> float:
        """Return when the records leave this state by themselves; 0: when they are leased."""
        return 0.0 if self.writing else self.until


State = Leased | Waiting
#: A range of records with their state, None: they have none; and why an action on them is refused, empty: it is not.
Judged = tuple[int, int, State | None, str]


@attrs.frozen
class LeasedRange:
    """Consecutive records that are leased to a worker.

    :ivar failures: how many earlier leases of each of these records have failed
    """

    lane: Lane
    first: int
    last: int
    token: Token
    failures: int = 0

    def __len__(self) -> int:
        return self.last - self.first + 1


@attrs.define(eq=False)
class Change:
    """Collect what a draft changes in one lane; one record in the stream of state stores it.

    :ivar returned: the ranges whose leases end without a settling, each with its next state
    :ivar hold: the records that are leased at an orderly stop, for which *reach* is exact (rule 22); None: no stop
    :ivar rewind: everything about the stream is forgotten, and it continues behind this number; None: no rewind
    :ivar floor: the floor of the lane after this change, and :ivar generation: how often it was rewound by then
    """

    settled: Ranges = attrs.field(factory=list)
    dead: Ranges = attrs.field(factory=list)
    expired: Ranges = attrs.field(factory=list)
    returned: list[tuple[int, int, Waiting]] = attrs.field(factory=list)
    letters: deque[DeadLetter] = attrs.field(factory=partial(deque, maxlen=KEPT_LETTERS))
    lost: int = 0
    reach: int = 0
    hold: Ranges | None = None
    rewind: int | None = None
    floor: int = attrs.field(default=0, init=False)
    generation: int = attrs.field(default=0, init=False)
    _fields: dict[str, object] | None = attrs.field(default=None, init=False)

    @property
    def ended(self) -> Ranges:
        """Return the ranges that become final."""
        return [*self.settled, *self.dead, *self.expired]

    def fields(self) -> dict[str, object]:
        """Return the fields of the record that stores the change, which must not change any more."""
        if self._fields is not None:
            return self._fields
        found: dict[str, object] = {} if self.rewind is None else {"rewind": self.rewind}
        if self.settled:
            found["final"] = packed_ranges(self.settled)
        if self.dead:
            found |= {"dead": packed_ranges(self.dead), "letters": list(self.letters), "lost": self.lost}
        if self.expired:
            found["expired"] = packed_ranges(self.expired)
        if self.returned:
            found["ends"] = [(first, last, *state.ended) for first, last, state in self.returned]
        if self.reach:
            found["reach"] = self.reach
        if self.hold is not None:
            found |= {"reach": self.reach, "hold": packed_ranges(self.hold)}
        self._fields = found
        return found


@attrs.define(eq=False)
class Draft:
    """Everything that one request, or one turn of the clock, changes: it becomes one batch, or nothing (rule 19).

    :ivar epoch: the epoch that begins; 0: none does
    :ivar whole: what changes of the subscription as a whole: ``paused``, ``owner`` or ``redriven``
    :ivar ends: how many ranges of records have a lease that it ends without a settling
    :ivar full: whether it has no room for the end of a further lease
    :ivar letters: the dead letters
    :ivar size: their payload, in bytes; *looked* is how many records were looked at for them
    :ivar created: the streams that the dead letters create
    :ivar extended: what memory alone notes when the draft is accepted: leases that are extended
    """

    changes: dict[Track, Change] = attrs.field(factory=dict)
    epoch: int = 0
    whole: dict[str, object] = attrs.field(factory=dict, kw_only=True)
    ends: int = 0
    full: bool = False
    letters: list[Run] = attrs.field(factory=list)
    size: int = 0
    looked: int = 0
    created: list[str] = attrs.field(factory=list)
    extended: list[tuple[Lane, int, int, Leased]] = attrs.field(factory=list)

    def of(self, track: Track) -> Change:
        """Return the change of *track* in this draft."""
        change = self.changes.get(track)
        if change is None:
            begin = track.progress.final.floor if track.progress.unwritten else None
            change = self.changes[track] = Change(rewind=begin)
        return change

    def head(self) -> dict[str, object]:
        """Return the fields of a record for what changes of the subscription as a whole."""
        return {"epoch": self.epoch, **self.whole} if self.epoch else self.whole


@attrs.define(eq=False)
class Track:
    """The progress of a subscription in one stream.

    :ivar progress: all that was appended; a checkpoint stores it
    :ivar durable_floor: the floor that is durable
    :ivar generation: how often the stream was rewound since the start; :ivar durable_generation: the same, durable
    """

    stream: str
    progress: StreamProgress
    durable_floor: int = attrs.field(init=False)
    generation: int = attrs.field(default=0, init=False)
    durable_generation: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.durable_floor = self.progress.final.floor

    def accept(self, change: Change) -> None:
        """Change the progress, because the journal has accepted *change* (rule 20)."""
        self.generation += change.rewind is not None
        self.progress.apply(change.fields())
        change.floor, change.generation = self.progress.final.floor, self.generation

    def durable(self, change: Change) -> None:
        """Record that *change* is durable; a commit may tell that of a rewind before that of earlier changes."""
        if change.rewind is not None:
            self.durable_floor, self.durable_generation = change.floor, change.generation
        elif change.generation >= self.durable_generation:
            self.durable_floor = max(self.durable_floor, change.floor)


@attrs.define(eq=False)
class Lane(Track):
    """The leases of one stream of a shared subscription.

    :ivar bounds: returns the oldest and the last durable number of the stream
    :ivar keys: see :func:`~fyrehose.subscriptions.keys.keys_of`; None: records have no keys
    :ivar last: the last durable number of the stream
    :ivar seen: the highest number that was leased, or was skipped because its record is final or missing
    :ivar spans: the states of the records up to *seen* that are not final
    :ivar durable_reach: the reach that is durable
    """

    pool: LeasePool
    bounds: Callable[[], tuple[int, int]]
    keys: Callable[[int, int], tuple[dict[int, str], int]] | None = None
    last: int = attrs.field(init=False)
    seen: int = attrs.field(init=False)
    spans: Spans[State] = attrs.field(factory=Spans, init=False)
    durable_reach: int = attrs.field(init=False)
    _ready: list[tuple[int, int, int, Waiting]] = attrs.field(factory=list, init=False)
    _oldest: int = attrs.field(default=0, init=False)  #: the oldest number when deleted records expired last
    _key_of: dict[int, str] = attrs.field(factory=dict, init=False)  #: the keys of open records, and of some new ones
    _queues: dict[str, deque[int]] = attrs.field(factory=dict, init=False)  #: by key, the records that are not final
    #: the records that were open at the start, and whose keys were not read yet
    _unread_key: int = attrs.field(init=False)
    _unread_end: int = attrs.field(init=False)
    #: records that the journal lacked when their keys were read, and the changes that write ends without known keys
    _blind: Ranges = attrs.field(factory=list, init=False)
    _blind_ends: set[Change] = attrs.field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        final = self.progress.final
        self.pool.lanes[self.stream] = self
        self.durable_reach = self.progress.reach
        self.last = self.bounds()[1]
        self.seen = self._unread_end = max(final.floor, min(self.progress.reach, self.last))
        self._unread_key = final.floor + 1
        hold = Spans[bool]()
        for first, last in [(1, LAST_SEQ)] if self.progress.hold is None else self.progress.hold:
            hold.set(first, last, True)
        for begin, end in final.gaps(1, self.seen):
            for low, high, ended in self.progress.ends.over(begin, end, (0, 0)):
                for first, last, held in hold.over(low, high, False):
                    self._wait(first, last, Waiting(ended, self.pool.hold_until if held else 0.0, held=held))
        self.stir()

    def stir(self) -> None:
        """Mark this lane as one that may have records to lease, so that the next requests for records ask this lane."""
        if self.pool.lanes.get(self.stream) is self:  # else it was forgotten while a change of it was being written
            self.pool.stirred.setdefault(self.stream, self)

    def arrived(self, last: int) -> None:
        """Record that the stream has durable records up to *last*."""
        self.last = last
        self.stir()

    def has_more(self) -> bool:
        """Return whether the lane has records that can be leased as soon as the window and the reach allow that."""
        return bool(self._ready) or self.seen < self.last

    def available(self) -> int:
        """Return about how many records could be leased now."""
        new = min(self.pool.room(), max(0, self.last - self.seen))
        return sum(last - first + 1 for first, _, last, _ in self._ready[:100]) + new

    # States.

    def put(self, first: int, last: int, state: State | None) -> None:
        """Give records a *state*, or none, because they are final."""
        if state is None:
            replaced = self.spans.remove(first, last)
        else:
            replaced = self.spans.set(first, last, state)
            self.pool.count(state, last - first + 1)
        for span in replaced:
            self.pool.count(span.state, span.first - span.last - 1)

    def _wait(self, first: int, last: int, state: Waiting) -> None:
        """Let records wait for their next lease, at once or after a delay."""
        over = state.until <= self.pool.now()
        if over and state.until:
            state = Waiting(state.ended, held=state.held)  # so that they do not count as delayed
        self.put(first, last, state)
        if first < self._oldest:
            self.look_again()
        if over:
            self._make_ready(first, last, state)
        else:
            self.pool.alarm(state.until, self, first, last, state)

    def _make_ready(self, first: int, last: int, state: Waiting) -> None:
        heappush(self._ready, (first, next(self.pool.order), last, state))
        self.stir()

    def _begin(self, first: int, last: int, state: Waiting, consumer: str) -> LeasedRange:
        """Lease waiting records to *consumer*."""
        pool = self.pool
        leased, (earlier, failures) = Leased(state.ended, consumer, pool.now() + pool.options.lease), state.ended
        self.put(first, last, leased)
        pool.alarm(leased.end, self, first, last, leased)
        if earlier:
            pool.redelivered += last - first + 1
        return LeasedRange(self, first, last, (pool.epoch, earlier + 1), failures)

    def _raise_reach(self, last: int) -> None:
        if last > self.progress.reach:
            draft = Draft()
            draft.of(self).reach = last
            self.pool.append(draft)

    # Leasing.

    def lease(self, consumer: str, most: int) -> list[LeasedRange]:
        """Lease up to *most* records to *consumer*: half of them returned, half new, if there are enough of both."""
        if not self.pool.may_lease() or self.pool.paused or not (self.keys is None or self._keys_are_known()):
            return []
        picked = self._lease_returned(consumer, (most + 1) // 2) if self._ready else []
        left = most - sum(map(len, picked))
        if left and self.seen < self.last:
            picked += self._lease_new(consumer, left) if self.keys is None else self._lease_with_keys(consumer, left)
        if self._ready and (left := most - sum(map(len, picked))):
            picked += self._lease_returned(consumer, left)
        return picked

    def _lease_returned(self, consumer: str, most: int) -> list[LeasedRange]:
        """Lease records that were returned, or had to wait by rule 12 or 15."""
        picked, looks = [], LOOKS
        while most > 0 and looks > 0 and self._ready:
            first, _, last, state = heappop(self._ready)
            for low, high, present in self.spans.within(first, last):
                if present is not state:
                    continue
                end = min(high, low + most - 1)
                if self.keys is not None:
                    end = min(low, end)
                    while end >= low and end < high and looks > 0 and not self._is_first(low):
                        low, end, looks = low + 1, low + 1, looks - 1  # queued again when those before it are final
                    if end >= low and not self._is_first(low):
                        low, end = low + 1, low
                if end >= low:
                    picked.append(self._begin(low, end, state, consumer))
                    most -= end - low + 1
                if end < high:
                    self._make_ready(end + 1, high, state)
        self.pool.more |= not looks
        return picked

    def _lease_new(self, consumer: str, most: int) -> list[LeasedRange]:
        """Lease records that were never leased before (rules 1, 11, 16)."""
        room = self.pool.room()
        wanted = min(self.last, self.seen + min(most, room))
        if wanted > self.durable_reach:
            self._raise_reach(self.seen + min(room, most + self.pool.leased))
        picked, wanted = [], min(wanted, self.durable_reach)
        for first, last in self.progress.final.gaps(self.seen + 1, wanted):
            picked.append(self._begin(first, last, Waiting(), consumer))
        self.seen = max(self.seen, wanted)
        return picked

    def _lease_with_keys(self, consumer: str, most: int) -> list[LeasedRange]:
        """Lease records that were never leased before, and for whose keys no earlier record is open (rule 15)."""
        picked: list[LeasedRange] = []
        last, read = self.last, 0
        for seq in range(self.seen + 1, min(last, self.seen + LOOKS) + 1):
            if len(picked) == most or not self.pool.room():
                return picked
            if seq > self.durable_reach:
                # Records that wait for their keys count, too: else each of them would take an append.
                self._raise_reach(self.seen + min(self.pool.room(), most + self.pool.open))
                return picked
            if seq not in self.progress.final:
                if seq not in self._key_of:
                    if read:
                        break
                    read = self._read_keys(seq, min(last, seq + LOOKS))
                    if seq not in self._key_of:
                        self.pool.tick(look=True)  # Let it expire; the others wait until that is durable.
                        return picked
                self.put(seq, seq, state := Waiting())
                self._join_queue(seq)
                if self._is_first(seq):
                    picked.append(self._begin(seq, seq, state, consumer))
            self.seen = seq
        self.pool.more |= self.seen < last  # the next turn looks at more records (rule 21)
        return picked

    def withdraw(self, first: int, last: int) -> None:
        """End leases at once, because their records were not sent to the worker after all."""
        for low, high, state in self.spans.within(first, last):
            self._wait(low, high, Waiting(state.ended))

    # Keys.

    def _keys_are_known(self) -> bool:
        """Read the keys of a portion of the open records after a start; return whether all keys are known."""
        unread = self.spans.within(self._unread_key, self._unread_end)
        if unread:
            first = unread[0][0]
            self._unread_key = self._read_keys(first, min(unread[-1][1], first + LOOKS)) + 1
            self.pool.more = True
            return False
        # The key of a deleted record is unknown, so any record might have to wait for it.
        self._blind = [each for each in self._blind if self.spans.within(*each)]
        if self._blind:
            self.look_again()
        return not self._blind and not self._blind_ends

    def _read_keys(self, first: int, last: int) -> int:
        """Read the keys of a portion of records from *first* on; return the last number of the portion.

        If the journal does not have the record *first*, it has none of the portion.  These records expire, whether or
        not a later read would find them: without their keys, nobody knows which other records wait for them.
        """
        assert self.keys is not None, "the subscription has keys"
        found, end = self.keys(first, last)
        self._key_of |= found
        for low, high, _ in self.spans.within(first, end) if found else ():
            for seq in range(low, high + 1):
                self._join_queue(seq)
        if not found:
            self._blind.append((first, end))
            self.look_again()
        return end

    def _join_queue(self, seq: int) -> None:
        key = self._key_of.get(seq)
        if key is not None:
            self._queues.setdefault(key, deque()).append(seq)

    def _has_keys(self, first: int, last: int) -> bool:
        """Return whether the keys of all these records are known, which are those of no record that was deleted."""
        return last - first < len(self._key_of) and all(seq in self._key_of for seq in range(first, last + 1))

    def _is_first(self, seq: int) -> bool:
        """Return whether no earlier record with the key of record *seq* is open (rule 15)."""
        key = self._key_of.get(seq)
        return key is None or self._queues[key][0] == seq

    def _leave_queue(self, seq: int) -> None:
        """Let the next record with the key of *seq*, whose end is durable, be leased."""
        key = self._key_of.pop(seq, None)
        queue = None if key is None else self._queues.get(key)
        if key is None or queue is None or seq not in queue:
            return
        queue.remove(seq)
        if not queue:
            del self._queues[key]
            return
        for seq, _, state in self.spans.within(queue[0], queue[0]):
            if isinstance(state, Waiting) and not state.writing and state.until <= self.pool.now():
                self._make_ready(seq, seq, state)

    # Settling, returning, extending.

    def judge(self, item: Item) -> list[Judged]:
        """Return the ranges of *item* with their states, and why each is refused."""
        found, (first, last, token) = list[Judged](), (item.first, item.last, item.token)
        # Settling counts after the end of the lease as well (rule 4), and extending the lease of the server before.
        late, at = item.kind == "done" or (item.kind == "extend" and token[0] != self.pool.epoch), first
        for low, high, state in self.spans.within(first, last):
            if at < low:
                found += self._without_state(at, low - 1)
            found.append((low, high, state, "" if self._may(state, token, late) else "lease-lost"))
            at = high + 1
        return found + self._without_state(at, last) if at <= last else found

    def _without_state(self, first: int, last: int) -> list[Judged]:
        found = list[Judged]()
        for low, high in self.progress.final.gaps(first, last):
            if first < low:
                found.append((first, low - 1, None, "final"))
            found.append((low, high, None, "lease-lost"))
            first = high + 1
        return [*found, (first, last, None, "final")] if first <= last else found

    def _may(self, state: State, token: Token, late: bool) -> bool:
        """Return whether *token* is that of the present lease or, if *late*, of the last one (rules 3, 4, 12)."""
        epoch, number = token
        if state.held and epoch == self.pool.before > 0 and number == state.ended[0] + 1:  # of the server before
            return late or isinstance(state, Leased)
        if isinstance(state, Leased):
            return token == (self.pool.epoch, state.ended[0] + 1)
        return late and epoch == self.pool.epoch and number == state.ended[0] > 0

    def settle(self, change: Change, first: int, last: int) -> None:
        """Add to *change* that records are settled; raise the reach with it, or that would need a batch of its own."""
        change.settled.append((first, last))
        reach = self.seen + max(1, min(self.pool.room(), self.pool.leased))
        if reach > self.progress.reach:
            change.reach = reach

    def give_back(
        self, draft: Draft, first: int, last: int, state: Leased, *, failed: bool, delay: float | None, why: str
    ) -> int:
        """Add to *draft* that leases end without settling their records; return the last number that it has room for.

        :param failed: whether the ends count as failures
        :param delay: until the records may be leased again, in seconds; None: longer with each failure
        :param why: why the records become dead letters at once; empty: they do not
        :raises PublishError: the dead letters cannot be written now
        """
        if draft.ends == MOST_ENDS:
            draft.full = True
        if draft.full:
            return first - 1
        draft.ends += 1
        change, pool, (number, failures) = draft.of(self), self.pool, (state.ended[0] + 1, state.ended[1])
        limit = pool.options.limit
        failures += failed or bool(limit and number - failures > UNTRIED * limit)
        oldest = self.bounds()[0]
        if first < oldest:
            change.expired.append((first, min(last, oldest - 1)))
            first = oldest
        if first > last:
            return last
        if not why and not self._is_too_many(failures):
            until = pool.now() + (pool.delay(failures) if delay is None else delay)
            change.returned.append((first, last, Waiting((number, failures), until, writing=True)))
            return last
        copied = pool.copy(draft, self, first, last)
        draft.full, last = copied < last, copied
        if first <= last:
            change.dead.append((first, last))
            now = pool.wall()
            for seq in range(max(first, last - KEPT_LETTERS + 1), last + 1):
                change.letters.append((seq, failures, why or "limit", now))
        return last

    def _is_too_many(self, failures: int) -> bool:
        return 0 < self.pool.options.limit <= failures

    # Time and retention.

    def due(self, draft: Draft, first: int, last: int, state: State) -> int:
        """Handle the records from *first* to *last* whose time in *state* is over (rules 9 and 14).

        :return: the last number for which *draft* has room
        """
        for low, high, present in self.spans.within(first, last):
            if present is not state:
                continue
            if isinstance(state, Leased):
                end = self.give_back(draft, low, high, state, failed=True, delay=None, why="")
                if end < high:
                    return end
                continue
            self._wait(low, high, Waiting(state.ended, held=state.held))
        return last

    def expire(self, draft: Draft) -> None:
        """Add to *draft* that waiting records expire which the journal does not have any more (rule 17)."""
        oldest = self.bounds()[0]
        if oldest == self._oldest:
            return
        self._oldest = oldest
        expired = draft.of(self).expired
        for first, last in merged([(1, oldest - 1), *self._blind]):
            for low, high, state in self.spans.within(first, last):
                if isinstance(state, Waiting) and not state.writing and not (state.held and self.pool.in_grace()):
                    expired.append((low, high))
            expired += self.progress.final.gaps(max(first, self.seen + 1), last)

    def look_again(self) -> None:
        """Let :meth:`expire` look for deleted records again, because a draft was refused."""
        self._oldest = 0

    def missing(self, draft: Draft, first: int, last: int) -> None:
        """Add to *draft* that records expire, because the journal does not have them any more."""
        draft.of(self).expired += self.progress.final.gaps(first, last)

    # What was appended.

    def accept(self, change: Change) -> None:
        """Change the states of records, because the journal has accepted *change* (rule 20)."""
        if change.rewind is not None:
            self._rewind(change.rewind)
        super().accept(change)
        for first, last in change.ended:
            self.put(first, last, None)
            if self.keys is not None and (last > self.seen or not self._has_keys(first, last)):
                self._blind_ends.add(change)  # None of them is in the queue of its key.
        for _, last in change.expired:
            self.seen = max(self.seen, last)
        for first, last, state in change.returned:
            self.put(first, last, state)

    def _rewind(self, seq: int) -> None:
        for span in self.spans.remove(1, self.seen):
            self.pool.count(span.state, -len(span))
        self._ready.clear()
        self._key_of.clear()
        self._queues.clear()
        self._blind.clear()
        self._blind_ends.clear()
        self.seen, self._unread_key, self._unread_end, self._oldest = seq, 1, 0, 0

    def durable(self, change: Change) -> None:
        """Let records be leased for which *change* had to be durable."""
        super().durable(change)
        self.stir()
        if change.generation < self.generation:
            return  # A later rewind has forgotten the states that it is about.
        if change.rewind is not None:
            self.durable_reach = change.rewind
        self.durable_reach = max(self.durable_reach, change.reach)
        for first, last, written in change.returned:
            for low, high, state in self.spans.within(first, last):
                if state is written:
                    self._wait(low, high, Waiting(written.ended, written.until))
        if self.keys is not None:
            self._blind_ends.discard(change)
            for first, last in change.ended:
                few = last - first < len(self._key_of)
                for seq in range(first, last + 1) if few else sorted(self._key_of):
                    if first <= seq <= last:
                        self._leave_queue(seq)

    def stop(self, draft: Draft) -> None:
        """Add to *draft* the exact reach of an orderly stop, and which records are leased (rule 22)."""
        now = self.pool.now()
        busy = [s for s in self.spans if isinstance(s.state, Leased) or (s.state.held and s.state.until > now)]
        if self.progress.unwritten or self.seen < self.progress.reach or len(busy) < len(self.spans):
            change = draft.of(self)
            change.reach, change.hold = self.seen, merged((span.first, span.last) for span in busy)

    def leases(self) -> Iterator[tuple[str, int, str, float, int]]:
        """Yield the stream, number, consumer, end of the lease and failures of each record that is leased."""
        for span in self.spans:
            if isinstance(span.state, Leased):
                for seq in range(span.first, span.last + 1):
                    yield self.stream, seq, span.state.consumer, span.state.end, span.state.ended[1]
