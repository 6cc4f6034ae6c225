"""Decide which worker gets which record of one stream, and when its lease ends: a state machine without I/O.

    lease, act, tick -> LaneChange -> the caller appends it -> committed(batch) or undone(batch)

A *lane* is one stream of a shared subscription.  The *reach* of a lane is the highest number that may have been leased;
a *dead letter* is a copy of a record that workers failed to handle.  The rules, which a checked model has as well:

1.  Only a durable record is leased, lowest number first.
2.  A record is leased to nobody else until its lease has ended.
3.  Settling, returning and extending need the token ``EPOCH.NUMBER`` of the record's last lease.
4.  A late settling counts while nobody else has had the record.  Late returning and extending do not count.
5.  A change counts when it is appended, and is answered when it is durable.  If it cannot be written, it is undone.
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
18. A checkpoint holds what was appended, see :meth:`Lane.appended`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf

import attrs

from fyrehose.subscriptions.fresh import FreshLease, FreshRange, FreshRanges
from fyrehose.subscriptions.progress import (
    KEPT_LETTERS,
    DeadLetter,
    FinalNumbers,
    Ranges,
    ShareOptions,
    StreamProgress,
    packed_ranges,
)

#: A record may be returned as not tried this many times its ``limit``; then each further return counts as a failure.
UNTRIED = 10
#: The delay after the first failure, in seconds; each further failure doubles the delay, up to the longest one.
FIRST_DELAY, LONGEST_DELAY = 1.0, 300.0

#: A heap of times is rebuilt without outdated entries when it has more than two entries for each record, and this many
#: more.
SPARE = 100
#: Seconds between two appends that only show that no other server has taken over.
BETWEEN_PROOFS = 0.1

#: The token of a lease: the epoch of the server, and how many leases the record has had.
Token = tuple[int, int]


def backoff(failures: int) -> float:
    """Return how long a record waits after this number of failures, in seconds."""
    return min(LONGEST_DELAY, FIRST_DELAY * (1 << min(20, max(0, failures - 1))))


@attrs.define(eq=False)
class Lease:
    """The lease of one record by one worker, until the time *end*."""

    number: int
    end: float
    consumer: str


@attrs.define(eq=False)
class OpenRecord:
    """One record that is not final, with its lease; records in their first lease are in :class:`FreshRanges` instead.

    :ivar ended: how many of its leases have ended, and how many of them failed; durable
    :ivar ending: the next value of ``ended``, while that is being written
    :ivar closing: how it becomes final (``settled``, ``dead`` or ``expired``), while that is being written
    :ivar letter: the dead letter that the record becomes, while that is being written; see :attr:`LaneChange.letter`
    :ivar not_before: when it may be leased again
    :ivar queued: whether it is in the heap of delayed or of ready records
    """

    seq: int
    key: str | None = None
    ended: tuple[int, int] = (0, 0)
    ending: tuple[int, int] | None = None
    closing: str = ""
    letter: DeadLetter | None = None
    lease: Lease | None = None
    not_before: float = 0.0
    queued: bool = False


@attrs.frozen
class Leased:
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
class LaneChange:
    """A change of a lane that is appended as one record, so that all of the change becomes durable, or nothing.

    :ivar ended: the leases that end without a settling, see :attr:`OpenRecord.ended`, by the number of the record
    :ivar epoch: the epoch that begins; 0: none does
    :ivar proof: whether the change is empty, and is appended only to show that no other server has taken over
    :ivar letter: the record that becomes a dead letter
    """

    lane: Lane | None = None
    settled: Ranges = attrs.field(factory=list)
    expired: Ranges = attrs.field(factory=list)
    ended: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    letter: DeadLetter | None = None
    reach: int = 0
    epoch: int = 0
    proof: bool = False

    def fields(self) -> dict[str, object]:
        """Return the fields of the record that stores the change."""
        found: dict[str, object] = {
            "epoch": self.epoch,
            "reach": self.reach,
            "final": packed_ranges(self.settled),
            "dead": [] if self.letter is None else [self.letter[0]],
            "expired": self.expired,
            "ends": {str(seq): end for seq, end in self.ended.items()},
            "letters": [] if self.letter is None else [self.letter],
        }
        return {name: value for name, value in found.items() if value}


@attrs.define(eq=False)
class Group:
    """The state that all lanes of one subscription share.

    :ivar append: appends changes that are to become durable together; the caller then calls :meth:`committed` or
        :meth:`undone` with each change, in the order of appends
    :ivar now: returns the monotonic time, in seconds
    :ivar trusted: returns whether no other server can have taken over
    :ivar wall: returns the time of day, which is shown to people, in microseconds since 1970 UTC
    :ivar epoch: the epoch of this server; *before* is the epoch of the server that led before
    :ivar hold_until: until when records that may have been leased before the start wait (rule 12)
    :ivar open: how many records of all lanes are not final, of those that were leased or may have been
    :ivar held: how many records each consumer has; *leased* is their sum
    :ivar stirred: the lanes that may have records to lease, by stream, in the order in which they are asked for some
    :ivar alarms: a heap of the times at which a lane has to look at its leases and delays
    """

    options: ShareOptions
    append: Callable[[Sequence[LaneChange]], None]
    now: Callable[[], float]
    trusted: Callable[[], bool] = lambda: True
    delay: Callable[[int], float] = backoff
    wall: Callable[[], int] = attrs.field(default=lambda: 0, kw_only=True)
    before: int = attrs.field(default=0, kw_only=True)
    paused: bool = attrs.field(default=False, kw_only=True)
    epoch: int = attrs.field(init=False)
    stored_epoch: int = attrs.field(init=False)
    hold_until: float = attrs.field(init=False)
    open: int = attrs.field(default=0, init=False)
    held: Counter[str] = attrs.field(factory=Counter, init=False)
    leased: int = attrs.field(default=0, init=False)
    stirred: OrderedDict[str, Lane] = attrs.field(factory=OrderedDict, init=False)
    alarms: list[tuple[float, int, Lane]] = attrs.field(factory=list, init=False)
    order: Iterator[int] = attrs.field(factory=count, init=False)
    redelivered: int = attrs.field(default=0, init=False)
    late: int = attrs.field(default=0, init=False)
    #: whether a rewind or the deletion is being written: until then no change of a record may be appended
    rewinding: bool = attrs.field(default=False, init=False)
    _beginning: bool = attrs.field(default=False, init=False)
    _prove_after: float = attrs.field(default=-inf, init=False)  #: when the next proof may be appended

    def __attrs_post_init__(self) -> None:
        self.epoch, self.stored_epoch = self.before + 1, self.before
        self.hold_until = self.now() + self.options.lease

    def may_lease(self) -> bool:
        """Return whether this server may lease and extend (rules 10 and 13).

        If not, the missing record is appended: the beginning of its epoch, or an empty change, which becomes durable
        only if no other server has taken over.
        """
        if self.stored_epoch != self.epoch and not self._beginning:
            self.append([self.begin()])
        trusted = self.trusted()
        if not trusted and not self._beginning and self.now() >= self._prove_after:
            self._prove_after = self.now() + BETWEEN_PROOFS
            self.append([LaneChange(proof=True)])
        return trusted and self.stored_epoch == self.epoch and not self.rewinding

    def begin(self) -> LaneChange:
        """Return the change that must be durable before this server may lease and extend, see :meth:`may_lease`."""
        if self.stored_epoch == self.epoch or self._beginning:
            return LaneChange(proof=True)
        self._beginning = True
        return LaneChange(epoch=self.epoch)

    @property
    def appended_epoch(self) -> int:
        """Return the last epoch that was appended, durable or not."""
        return self.epoch if self._beginning else self.stored_epoch

    def in_grace(self) -> bool:
        """Return whether records that the server before may have leased still have to wait (rule 12)."""
        return self.now() < self.hold_until

    def room(self) -> int:
        """Return how many more records may be leased for the first time within the window (rule 16)."""
        return max(0, self.options.window - self.open)

    def committed(self, batch: LaneChange) -> None:
        """Record that *batch* is durable."""
        if batch.epoch:
            self.stored_epoch, self._beginning = batch.epoch, False
        if batch.lane is not None:
            batch.lane.committed(batch)

    def undone(self, batch: LaneChange) -> None:
        """Undo *batch*, which could not be written."""
        if batch.epoch:
            self._beginning = False
        if batch.lane is not None:
            batch.lane.undone(batch)


@attrs.define(eq=False)
class Lane:
    """The leases of one stream of a shared subscription.

    :ivar progress: what is durable
    :ivar bounds: returns the oldest and the last durable number of the stream
    :ivar keys: returns the keys of the records from a number to another one, without those that are missing; None:
        records have no keys
    :ivar seen: the highest number that was leased, or was skipped because its record is final or missing
    :ivar entries: the records up to *seen* that are not final, except for those in *fresh*
    :ivar fresh: the records without a key in their first lease
    """

    group: Group
    stream: str
    progress: StreamProgress
    bounds: Callable[[], tuple[int, int]]
    keys: Callable[[int, int], dict[int, str]] | None = None
    seen: int = attrs.field(init=False)
    reach: int = attrs.field(init=False)  #: the last reach that was appended, durable or not
    hold: int = attrs.field(init=False)  #: records up to this number wait after a start (rule 12)
    entries: dict[int, OpenRecord] = attrs.field(factory=dict, init=False)
    fresh: FreshRanges = attrs.field(factory=FreshRanges, init=False)
    _fresh_ends: list[tuple[float, int, FreshLease]] = attrs.field(factory=list, init=False)
    _alarm: float = attrs.field(default=inf, init=False)  #: when the next tick is due
    _ready: list[int] = attrs.field(factory=list, init=False)
    _delayed: list[tuple[float, int]] = attrs.field(factory=list, init=False)
    _ends: list[tuple[float, int]] = attrs.field(factory=list, init=False)
    _queues: dict[str, deque[int]] = attrs.field(factory=dict, init=False)  #: by key, the records that are not final
    _blind: set[int] = attrs.field(factory=set, init=False)  #: open records that were deleted before their key was read
    _known_keys: dict[int, str] = attrs.field(factory=dict, init=False)
    _oldest: int = attrs.field(default=0, init=False)
    _holding: bool = attrs.field(default=True, init=False)
    _abandoned: bool = attrs.field(default=False, init=False)
    #: ranges that were never leased and expire, while that is being written
    _expiring: list[tuple[int, int]] = attrs.field(factory=list, init=False)
    #: ranges that were never leased, and whose expiry could not be written and is tried again
    _unwritten: list[tuple[int, int]] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.reach = self.hold = self.progress.reach
        self.seen = max(self.progress.final.floor, min(self.reach, self.bounds()[1]))
        for first, last in self.progress.final.gaps(1, self.seen):
            for seq in range(first, last + 1):
                self._enter(seq)
        self.stir()
        self._tick_at(self.group.hold_until)

    def stir(self) -> None:
        """Mark this lane as one that may have records to lease, so that the next requests for records ask this lane."""
        if not self._abandoned:
            self.group.stirred.setdefault(self.stream, self)

    def has_more(self) -> bool:
        """Return whether the lane has records that can be leased as soon as the window and the reach allow that."""
        return bool(self._ready) or self.seen < self.bounds()[1]

    def _tick_at(self, when: float) -> None:
        if when < self._alarm:
            self._alarm = when
            heappush(self.group.alarms, (when, next(self.group.order), self))

    # Leasing.

    def lease(self, consumer: str, most: int) -> list[Leased]:
        """Lease up to *most* records to *consumer*: half of them returned, half new, if there are enough of both."""
        self.tick()
        unknown = self._blind or (
            self.keys is not None and (self._expiring or self._unwritten)
        )  # The key of a deleted record is unknown, so by rule 15 any record might have to wait for it.
        if not self.group.may_lease() or self.group.paused or unknown:
            return []
        picked: list[Leased] = []
        found: Leased | None
        returned, left, last = (most + 1) // 2, most, self.bounds()[1]
        while left > 0:
            entry = self._next_ready() if most - left < returned else None
            if entry is None and self._is_unused(self.seen + 1):
                found = self._lease_fresh(consumer, left, last)
            else:
                entry = entry or self._next_new(last)
                found = None if entry is None else self._lease_one(entry, consumer)
            if found is not None:
                picked.append(found)
                left -= len(found)
            elif returned < most:
                returned = most  # There are no new records, so returned ones may fill the rest.
            else:
                break
        return picked

    def _lease_one(self, entry: OpenRecord, consumer: str) -> Leased:
        number, end = entry.ended[0] + 1, self.group.now() + self.group.options.lease
        self._begin_lease(entry, Lease(number, end, consumer))
        self.group.redelivered += number > 1
        self._end_one_at(end, entry.seq)
        return Leased(self, entry.seq, entry.seq, (self.group.epoch, number), entry.ended[1])

    def _is_unused(self, seq: int) -> bool:
        """Return whether *seq* and all later records were never leased and have no keys, so that ranges suffice."""
        return self.keys is None and seq > self.hold and not self.progress.final.reaches(seq)

    def _lease_fresh(self, consumer: str, most: int, last: int) -> Leased | None:
        """Lease up to *most* records up to *last* that were never leased before (rules 1, 11, 16)."""
        first = self.seen + 1
        last = min(last, self.seen + min(most, self.group.room()))
        if first > last:
            return None
        last = self._reached(last)
        if first > last:
            self._raise_reach()
            return None
        self.seen = last
        self.group.open += last - first + 1
        self._hold(consumer, last - first + 1)
        self.fresh.add(FreshRange(first, last, self._fresh_lease(first, last, consumer)))
        return Leased(self, first, last, (self.group.epoch, 1))

    def _fresh_lease(self, first: int, last: int, consumer: str) -> FreshLease:
        lease = FreshLease(first, last, self.group.now() + self.group.options.lease, consumer)
        self._end_at(lease)
        return lease

    def _end_at(self, lease: FreshLease) -> None:
        if len(self._fresh_ends) > SPARE + 2 * len(self.fresh):
            leases = {id(fresh.lease): fresh.lease for fresh in self.fresh}
            self._fresh_ends = sorted((each.end, next(self.group.order), each) for each in leases.values())
        heappush(self._fresh_ends, (lease.end, next(self.group.order), lease))
        self._tick_at(lease.end)

    def _end_one_at(self, end: float, seq: int) -> None:
        if len(self._ends) > SPARE + 2 * len(self.entries):
            leases = ((each.lease, each.seq) for each in self.entries.values())
            self._ends = sorted((lease.end, of) for lease, of in leases if lease is not None)
        heappush(self._ends, (end, seq))
        self._tick_at(end)

    def is_waiting(self, entry: OpenRecord) -> bool:
        """Return whether the record of *entry* may be leased as soon as its delay is over (rules 2, 5, 8, 12, 15)."""
        if entry.lease is not None or entry.ending is not None or entry.closing:
            return False
        return not self._is_held(entry) and self._is_first(entry)

    def _is_held(self, entry: OpenRecord) -> bool:
        return entry.seq <= self.hold and self.group.in_grace()

    def _is_first(self, entry: OpenRecord) -> bool:
        """Return whether no earlier record with the key of *entry* is open (rule 15)."""
        return entry.key is None or self._queues[entry.key][0] == entry.seq

    def _next_ready(self) -> OpenRecord | None:
        """Return the next record that waits no longer: it was returned, or had to wait by rule 12 or 15."""
        while self._ready:
            entry = self.entries.get(heappop(self._ready))
            if entry is None or not entry.queued:
                continue
            entry.queued = False
            if self.is_waiting(entry) and entry.not_before <= self.group.now() and entry.seq >= self._oldest:
                return entry
        return None

    def _next_new(self, last: int) -> OpenRecord | None:
        """Return the next record up to *last* that was never leased, if window and reach allow it (rules 1, 11, 16)."""
        while self.seen < last and self.group.room():
            if self._reached(self.seen + 1) <= self.seen:
                self._raise_reach()
                return None
            self.seen += 1
            if self.seen in self.progress.final:
                continue
            entry = self._enter(self.seen)
            if self.is_waiting(entry):
                return entry
        return None

    def _reached(self, last: int) -> int:
        """Return the highest number up to *last* that a durable ``reach`` allows to lease (rule 11)."""
        return min(last, self.progress.reach)

    def _raise_reach(self) -> None:
        if self.seen + 1 > self.reach:
            self._append(LaneChange(self, reach=self._next_reach()))

    def _next_reach(self) -> int:
        """Return the next ``reach`` to append: the highest number that the window allows to lease now."""
        return self.seen + self.group.room()

    def _enter(self, seq: int) -> OpenRecord:
        """Begin to track record *seq*: create its entry, and read its key if the subscription has keys."""
        entry = self.entries[seq] = OpenRecord(seq, ended=self.progress.ends.get(seq, (0, 0)))
        self.group.open += 1
        if self.keys is not None:
            if seq not in self._known_keys:
                self._known_keys = self.keys(seq, seq + 100)
            entry.key = self._known_keys.pop(seq, None)
            if entry.key is None and self._is_held(entry):
                self._blind.add(seq)
            elif entry.key is not None:
                self._queues.setdefault(entry.key, deque()).append(seq)
        return entry

    def _release(self, entry: OpenRecord) -> None:
        """Queue the record of *entry* for its next lease, now or when its delay is over."""
        if self.group.rewinding:
            return  # If the rewind cannot be written, resume() calls this again.
        if entry.seq < self._oldest:
            self._expire_deleted([entry])
        elif self.is_waiting(entry) and not entry.queued:
            entry.queued = True
            if entry.not_before > self.group.now():
                if len(self._delayed) > SPARE + 2 * len(self.entries):
                    queued = (self.entries.get(seq) for _, seq in self._delayed)
                    self._delayed = sorted((each.not_before, each.seq) for each in queued if each and each.queued)
                heappush(self._delayed, (entry.not_before, entry.seq))
                self._tick_at(entry.not_before)
            else:
                heappush(self._ready, entry.seq)
                self.stir()

    # Settling, returning, extending.

    def refusals(self, first: int, last: int, token: Token) -> Iterator[tuple[int, int, str]]:
        """Yield the ranges from *first* to *last* that cannot be settled with *token*, and why; see :meth:`why_not`."""
        seq = first
        while seq <= last:
            fresh = self.fresh.find(seq)
            end = seq if fresh is None else min(last, fresh.last)
            why = self.why_not(seq, token)
            if why:
                yield seq, end, why
            seq = end + 1

    def why_not(self, seq: int, token: Token) -> str:
        """Return why record *seq* cannot be settled with *token* (rules 3, 4, 5 and 12); empty if it can be settled."""
        if self.group.rewinding:
            return "rewound"
        if seq in self.progress.final:
            return "final"
        entry = self.entries.get(seq)
        if entry is None:
            fresh = self.fresh.find(seq)
            if fresh is not None and fresh.closing:
                return "being-settled"
            return "" if fresh is not None and token == (self.group.epoch, 1) else "lease-lost"
        if entry.closing:
            return "being-settled"
        return "" if self._is_last_token(entry, token) else "lease-lost"

    def _is_last_token(self, entry: OpenRecord, token: Token) -> bool:
        epoch, number = token
        if entry.lease is not None:
            return token == (self.group.epoch, entry.lease.number)
        if epoch == self.group.epoch:
            return number == entry.ended[0]  # The lease of *token* was the last one, and has ended (rule 4).
        return epoch == self.group.before > 0 and number == entry.ended[0] + 1

    def holds(self, seq: int, token: Token) -> bool:
        """Return whether *token* belongs to the present lease of record *seq*, which has not ended."""
        if self.group.rewinding:
            return False
        entry = self.entries.get(seq)
        if entry is None:
            fresh = self.fresh.find(seq)
            return fresh is not None and not fresh.closing and token == (self.group.epoch, 1)
        if entry.lease is None or entry.ending is not None or entry.closing:
            return False
        return token == (self.group.epoch, entry.lease.number)

    def settle(self, ranges: Ranges, batch: LaneChange) -> None:
        """Settle *ranges*, which do not overlap and have no :meth:`refusals`: add them to *batch*."""
        for first, last in ranges:
            for fresh in self.fresh.cut(first, last):
                fresh.closing = True
                self.group.open -= len(fresh)
            for entry in self._entries_in(first, last):
                self._close(entry, "settled")
        batch.settled += ranges
        self.reach = batch.reach = max(self.reach, self._next_reach())  # Or reach would need an append of its own.

    def _entries_in(self, first: int, last: int) -> list[OpenRecord]:
        """Return the entries of the records from *first* to *last*; records without an entry are left out."""
        if last - first < len(self.entries):
            return [self.entries[seq] for seq in range(first, last + 1) if seq in self.entries]
        return [entry for seq, entry in self.entries.items() if first <= seq <= last]

    def _single(self, seq: int) -> OpenRecord:
        """Return the entry of record *seq*; if the record belongs to a range, take it out of the range."""
        for fresh in self.fresh.remove(seq, seq):
            lease = fresh.lease
            self.entries[seq] = OpenRecord(seq, lease=Lease(1, lease.end, lease.consumer))
            self._end_one_at(lease.end, seq)
        return self.entries[seq]

    def give_back(
        self, seq: int, batch: LaneChange, *, failed: bool, delay: float | None = None, why: str = ""
    ) -> None:
        """End the lease of record *seq*, for which :meth:`holds` is true, without settling the record.

        :param batch: the end of the lease is added to it; a dead letter or an expired record is appended by itself
        :param failed: whether the end of the lease counts as a failure
        :param delay: until the record may be leased again, in seconds; None: longer with each failure
        :param why: why the record becomes a dead letter at once; empty: it does not
        """
        entry = self._single(seq)
        assert entry.lease is not None, "the lease has not ended"
        number, limit = entry.lease.number, self.group.options.limit
        failures = entry.ended[1] + (failed or bool(limit and number - entry.ended[1] > UNTRIED * limit))
        entry.not_before = self.group.now() + (self.group.delay(failures) if delay is None else delay)
        if seq < self._oldest:
            self._expire(entry)
        elif why or self._is_too_many(failures):
            self._close(entry, "dead")
            entry.letter = seq, failures, why or "limit", self.group.wall()
            self._append(LaneChange(self, letter=entry.letter))
        else:
            entry.ending = number, failures
            batch.ended[seq] = entry.ending

    def _is_too_many(self, failures: int) -> bool:
        return 0 < self.group.options.limit <= failures

    def extend(self, seq: int, token: Token, consumer: str) -> Token | None:
        """Extend a lease, even of the previous epoch, to one lease time from now; return its token, or None."""
        if not self.group.may_lease():
            return None
        entry = self.entries.get(seq)
        if entry is not None and entry.lease is None and token[0] != self.group.epoch and not self.why_not(seq, token):
            self._begin_lease(entry, Lease(token[1], 0.0, consumer))
        elif not self.holds(seq, token):
            return None
        entry = self._single(seq)
        assert entry.lease is not None, "it was just leased, or still is"
        entry.lease.end = self.group.now() + self.group.options.lease
        self._end_one_at(entry.lease.end, seq)
        return self.group.epoch, entry.lease.number

    def renew(self, leased: Leased, consumer: str) -> Iterator[Leased]:
        """Extend the leases of *leased* that have not ended to one lease time from now, and yield their records."""
        if not self.group.may_lease():
            return
        for fresh in self.fresh.cut(leased.first, leased.last):
            if self.holds(fresh.first, leased.token):
                fresh.lease = self._fresh_lease(fresh.first, fresh.last, consumer)
                yield attrs.evolve(leased, first=fresh.first, last=fresh.last)
        for entry in self._entries_in(leased.first, leased.last):
            if self.holds(entry.seq, leased.token) and self.extend(entry.seq, leased.token, consumer):
                yield attrs.evolve(leased, first=entry.seq, last=entry.seq)

    def missing(self, first: int, last: int) -> None:
        """Let records that were just leased expire, because the journal does not have them any more."""
        for seq in range(first, last + 1):
            self._expire(self._single(seq))

    def withdraw(self, first: int, last: int) -> None:
        """End leases at once, because their records were not sent to the worker after all."""
        for seq in range(first, last + 1):
            entry = self._single(seq)
            self._end_lease(entry)
            entry.not_before = 0.0
            self._release(entry)

    def resume(self) -> None:
        """Let records be leased again, because a rewind could not be written."""
        for entry in list(self.entries.values()):
            self._release(entry)

    def abandon(self) -> None:
        """Forget all records and leases of this lane, because the subscription is rewound or deleted."""
        for entry in self.entries.values():
            self._end_lease(entry)
            self.group.open -= not entry.closing
        self.entries.clear()
        for fresh in self.fresh:
            self._let_go(fresh.lease.consumer, len(fresh))
            self.group.open -= 0 if fresh.closing else len(fresh)
        self.fresh.clear()
        self._forget_unwritten()
        self._expiring.clear()
        self.group.stirred.pop(self.stream, None)
        self._abandoned = True  # committed() or undone() may still be called for changes that are being written.

    def leases(self) -> Iterator[tuple[str, int, str, float, int]]:
        """Yield the stream, number, consumer, end of the lease and failures of each record that is leased."""
        for entry in self.entries.values():
            if entry.lease is not None:
                yield self.stream, entry.seq, entry.lease.consumer, entry.lease.end, entry.ended[1]
        for fresh in self.fresh:
            for seq in range(fresh.first, fresh.last + 1):
                yield self.stream, seq, fresh.lease.consumer, fresh.lease.end, 0

    def delayed(self) -> int:
        """Return about how many returned records wait for their delay; some may have been settled late meanwhile."""
        return len(self._delayed)

    def available(self) -> int:
        """Return about how many records could be leased now."""
        new = min(self.group.room(), max(0, self.bounds()[1] - self.seen))
        return len(self._ready) + len(self._delayed) + new

    # Time and retention.

    def tick(self) -> None:
        """End the leases whose time is over, and let deleted records expire (rules 9, 14 and 17)."""
        if self.group.rewinding:
            return
        now, oldest = self.group.now(), self.bounds()[0]
        batch = LaneChange(self)
        changed, self._oldest = oldest != self._oldest, oldest
        while self._fresh_ends and self._fresh_ends[0][0] <= now:
            for seq in self._ended(heappop(self._fresh_ends)[2]):
                self.give_back(seq, batch, failed=True)
        due = []
        while self._ends and self._ends[0][0] <= now:
            due.append(heappop(self._ends)[1])
        for seq in dict.fromkeys(due):  # Not in the loop above: an end that cannot be written is due again at once.
            lease = None if seq not in self.entries else self.entries[seq].lease
            if lease is not None and lease.end <= now and self.holds(seq, (self.group.epoch, lease.number)):
                self.give_back(seq, batch, failed=True)
        if batch.ended:
            self._append(batch)
        if self._holding and not self.group.in_grace():
            self._holding = False
            self._blind = {seq for seq in self._blind if seq < oldest}
            for entry in list(self.entries.values()):
                self._release(entry)
        if changed:
            self._expire_deleted(list(self.entries.values()))
            self.expire_unseen(self._oldest - 1)
        while self._delayed and self._delayed[0][0] <= now:
            heappush(self._ready, heappop(self._delayed)[1])
            self.stir()
        if self._alarm <= now:
            self._alarm = inf
            times = [heap[0][0] for heap in (self._ends, self._fresh_ends, self._delayed) if heap]
            self._tick_at(min([*times, self.group.hold_until if self._holding else inf]))

    def _ended(self, lease: FreshLease) -> list[int]:
        """Return the numbers of the records that still have *lease*; nothing if the lease was extended."""
        ranges = self.fresh.cut(lease.first, lease.last) if lease.end <= self.group.now() else []
        due = [fresh for fresh in ranges if fresh.lease is lease and not fresh.closing]
        return [seq for fresh in due for seq in range(fresh.first, fresh.last + 1)]

    def _expire_deleted(self, entries: Sequence[OpenRecord]) -> None:
        for entry in entries:
            busy = entry.lease is not None or entry.ending is not None or entry.closing
            if entry.seq < self._oldest and not busy and not self._is_held(entry):
                self._expire(entry)

    def _expire(self, entry: OpenRecord) -> None:
        self._close(entry, "expired")
        self._append(LaneChange(self, expired=[(entry.seq, entry.seq)]))

    def expire_unseen(self, last: int) -> None:
        """Let all records up to *last* that were never leased expire, because the journal does not have them."""
        first, self.seen = self.seen + 1, max(self.seen, last)
        unwritten = [*self._unwritten, *self.progress.final.gaps(first, self.seen)]
        self._forget_unwritten()
        if unwritten:
            self._expiring += unwritten
            self._append(LaneChange(self, expired=unwritten))

    def _forget_unwritten(self) -> None:
        self.group.open -= sum(last - first + 1 for first, last in self._unwritten)
        self._unwritten = []

    # What was appended.

    def _close(self, entry: OpenRecord, how: str) -> None:
        entry.closing = how
        self.group.open -= 1

    def _append(self, batch: LaneChange) -> None:
        self.reach = max(self.reach, batch.reach)
        self.group.append([batch])

    def committed(self, batch: LaneChange) -> None:
        """Record that *batch* is durable."""
        self.stir()
        self.progress.apply(batch.fields())
        for first, last in batch.settled:
            for fresh in self.fresh.remove(first, last):
                self._let_go(fresh.lease.consumer, len(fresh))
            for entry in self._entries_in(first, last):
                self._forget(entry)
        for entry in self._single_ends(batch):
            self._forget(entry)
        for unseen in batch.expired:
            if unseen in self._expiring:
                self._expiring.remove(unseen)
        for seq, ended in batch.ended.items():
            if seq in self.entries:
                entry = self.entries[seq]
                entry.ended, entry.ending = ended, None
                self._end_lease(entry)
                self._release(entry)

    def undone(self, batch: LaneChange) -> None:
        """Undo *batch*, which could not be written."""
        self.stir()
        if batch.reach:
            self.reach = self.progress.reach
        entries = [self.entries[seq] for seq in batch.ended if seq in self.entries] + self._single_ends(batch)
        for first, last in batch.settled:
            for fresh in self.fresh.cut(first, last):
                fresh.closing = False
                self.group.open += len(fresh)
                self._end_at(fresh.lease)
            entries += self._entries_in(first, last)
        for entry in entries:
            self._reopen(entry)
        for unseen in batch.expired:
            if unseen in self._expiring:
                self._expiring.remove(unseen)
                self._unwritten.append(unseen)
                self.group.open += unseen[1] - unseen[0] + 1
                self._oldest = 0  # So the next tick appends the range again.

    def _single_ends(self, batch: LaneChange) -> list[OpenRecord]:
        """Return the entries of the dead letter and of the single expired records in *batch*."""
        numbers = [first for first, last in batch.expired if first == last]
        if batch.letter is not None:
            numbers.append(batch.letter[0])
        return [self.entries[seq] for seq in numbers if seq in self.entries]

    def _reopen(self, entry: OpenRecord) -> None:
        """Restore the state that *entry* had before a change that could not be written."""
        if entry.ending is not None:
            entry.ending = None
        elif entry.closing:
            entry.closing, entry.letter = "", None
            self.group.open += 1
        if entry.lease is not None:
            self._end_one_at(entry.lease.end, entry.seq)
        else:
            self._oldest = 0  # So the next tick looks for deleted records again.
            self._release(entry)

    def _begin_lease(self, entry: OpenRecord, lease: Lease) -> None:
        entry.lease = lease
        self._hold(lease.consumer, 1)

    def _end_lease(self, entry: OpenRecord) -> None:
        if entry.lease is not None:
            self._let_go(entry.lease.consumer, 1)
            entry.lease = None

    def _hold(self, consumer: str, count: int) -> None:
        self.group.held[consumer] += count
        self.group.leased += count

    def _let_go(self, consumer: str, count: int) -> None:
        held = self.group.held
        self.group.leased -= count
        held[consumer] -= count
        if held[consumer] <= 0:
            del held[consumer]

    def _forget(self, entry: OpenRecord) -> None:
        """Forget a record that is final, and let the next record with the same key be leased (rule 15)."""
        seq = entry.seq
        del self.entries[seq]
        self._end_lease(entry)
        self._blind.discard(seq)
        if entry.key is not None:
            queue = self._queues[entry.key]
            queue.remove(seq)
            if queue:
                self._release(self.entries[queue[0]])
            else:
                del self._queues[entry.key]

    def appended(self) -> StreamProgress:
        """Return the progress with all changes that were appended, durable or not, for a checkpoint (rule 18)."""
        now = self.progress
        found = StreamProgress(FinalNumbers(now.final.floor, now.final.above()), self.reach, counts=dict(now.counts))
        letters = [entry.letter for entry in self.entries.values() if entry.letter is not None]
        found.letters = [*now.letters, *letters][-KEPT_LETTERS:]
        for first, last in self._expiring:
            found.end("expired", first, last)
        for fresh in self.fresh:
            if fresh.closing:
                found.end("settled", fresh.first, fresh.last)
        for entry in self.entries.values():
            if entry.closing:
                found.end(entry.closing, entry.seq, entry.seq)
            elif entry.ending or entry.ended != (0, 0):
                found.ends[entry.seq] = entry.ending or entry.ended
        return found
