"""Decide which worker gets which record of one stream, and when its lease ends: a state machine without I/O.

    lease, act, tick -> LaneChange -> the caller appends it -> committed(batch) or undone(batch)

The rules, which a checked model has as well:

1.  Only a durable record is leased, lowest number first.
2.  A record is leased to nobody else until its lease has ended.
3.  Settling, returning and extending need the token ``EPOCH.NUMBER`` of the record's last lease.
4.  A late settling counts while nobody else has had the record.  Returning and extending late do not.
5.  What is appended counts at once and is answered when it is durable.  What could not be written is undone.
6.  Settling with results is one batch, all or nothing.
7.  A dead letter and the end of its record are one batch.
8.  The end of a lease is durable before the record is leased again.
9.  The ``limit``-th failure makes a record a dead letter.
10. Each start of a server has an epoch, which is durable before its first lease.
11. A record is leased first when a durable ``reach`` includes it.
12. After a start, records up to ``reach`` wait for one lease time.  A worker of the epoch before can settle or extend
    them meanwhile, if the number of its token is the next one after those that were written.
13. A server leases and extends only while no other can have taken over.
14. Leases count on a clock that does not step.
15. A record waits while an earlier one of its key is not final, durably.
16. A new record is leased while fewer than ``window`` records at or below it are not final.
17. Retention ends what it deletes: a waiting record at once, another one when its lease or the grace ends.
18. A checkpoint holds what was appended, see :meth:`Lane.appended`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import attrs

from fyrehose.broker.consumers.progress import (
    KEPT_LETTERS,
    DeadLetter,
    FinalNumbers,
    ShareOptions,
    StreamProgress,
    ranges_of,
)

#: How many times ``limit`` a record may be returned as not tried before that counts as a failure.
UNTRIED = 10
#: The delay after the first failure, in seconds; each further failure doubles it, up to the longest one.
FIRST_DELAY, LONGEST_DELAY = 1.0, 300.0

#: Epoch of the server, and number of the delivery.
Token = tuple[int, int]


def backoff(failures: int) -> float:
    """Return how long a record waits after this number of failures, in seconds."""
    return min(LONGEST_DELAY, FIRST_DELAY * (1 << min(20, max(0, failures - 1))))


@attrs.define(eq=False)
class Lease:
    """One record, one worker, until a moment."""

    number: int
    end: float
    consumer: str


@attrs.define(eq=False)
class OpenRecord:
    """A record that is not final, at or below the highest one that was looked at.

    :ivar ended: deliveries that have ended, and how many of them failed; durable
    :ivar ending: the same, while the end of its lease is being written
    :ivar closing: how it becomes final (``settled``, ``dead`` or ``expired``), while that is being written
    :ivar letter: the dead letter that it becomes, while that is being written; see :attr:`LaneChange.letter`
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


@attrs.define(eq=False)
class LaneChange:
    """The records of one append: all of them become durable, or none.

    :ivar epoch: the epoch that begins; 0: none does
    :ivar letter: the record that becomes a dead letter
    """

    lane: Lane | None = None
    settled: list[int] = attrs.field(factory=list)
    expired: list[tuple[int, int]] = attrs.field(factory=list)
    ended: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    letter: DeadLetter | None = None
    reach: int = 0
    epoch: int = 0

    def fields(self) -> dict[str, object]:
        """Return the fields of its record."""
        found: dict[str, object] = {
            "epoch": self.epoch,
            "reach": self.reach,
            "final": ranges_of(self.settled),
            "dead": [] if self.letter is None else [self.letter[0]],
            "expired": self.expired,
            "ends": {str(seq): end for seq, end in self.ended.items()},
            "letters": [] if self.letter is None else [self.letter],
        }
        return {name: value for name, value in found.items() if value}


@attrs.define(eq=False)
class Group:
    """The state that all lanes of one subscription share.

    :ivar append: appends what is to become durable together; the caller then calls :meth:`committed` or :meth:`undone`
        with each part, in the order of appends
    :ivar now: the monotonic clock, in seconds
    :ivar trusted: whether no other server can have taken over
    :ivar wall: the time for people, in microseconds since 1970 UTC
    :ivar epoch: the epoch of this server, and *before* the one of the server before
    :ivar hold_until: until when records that may have been leased before the start wait
    :ivar open: records of all lanes that are not final
    :ivar held: how many records each consumer holds, and *leased* all of them
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
    redelivered: int = attrs.field(default=0, init=False)
    late: int = attrs.field(default=0, init=False)
    #: whether a rewind is being written: nothing may be appended for records of before
    rewinding: bool = attrs.field(default=False, init=False)
    _beginning: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.epoch, self.stored_epoch = self.before + 1, self.before
        self.hold_until = self.now() + self.options.lease

    def may_lease(self) -> bool:
        """Return whether this server may lease and extend; begin its epoch if it has not begun (rules 10 and 13)."""
        if self.stored_epoch != self.epoch and not self._beginning:
            self._beginning = True
            self.append([LaneChange(epoch=self.epoch)])
        return self.trusted() and self.stored_epoch == self.epoch and not self.rewinding

    @property
    def appended_epoch(self) -> int:
        """The last epoch that was appended, durable or not."""
        return self.epoch if self._beginning else self.stored_epoch

    def in_grace(self) -> bool:
        """Return whether records of the epoch before still wait (rule 12)."""
        return self.now() < self.hold_until

    def has_room(self) -> bool:
        """Return whether another new record may be leased (rule 16)."""
        return self.open < self.options.window

    def committed(self, batch: LaneChange) -> None:
        """Record that *batch* is durable."""
        if batch.epoch:
            self.stored_epoch, self._beginning = batch.epoch, False
        if batch.lane is not None:
            batch.lane.committed(batch)

    def undone(self, batch: LaneChange) -> None:
        """Record that *batch* could not be written, so that everything is as before."""
        if batch.epoch:
            self._beginning = False
        if batch.lane is not None:
            batch.lane.undone(batch)


@attrs.define(eq=False)
class Lane:
    """The leases of one stream of a shared subscription.

    :ivar progress: what is durable
    :ivar bounds: returns the oldest and the last durable number of the stream
    :ivar keys: returns the keys of the records from a number to another one; those that are missing have none
    :ivar seen: no record above it was looked at
    :ivar entries: the records up to *seen* that are not final, in their order
    """

    group: Group
    stream: str
    progress: StreamProgress
    bounds: Callable[[], tuple[int, int]]
    keys: Callable[[int, int], dict[int, str]] | None = None
    seen: int = attrs.field(init=False)
    reach: int = attrs.field(init=False)  #: appended
    hold: int = attrs.field(init=False)  #: records up to here wait for the grace
    entries: dict[int, OpenRecord] = attrs.field(factory=dict, init=False)
    _ready: list[int] = attrs.field(factory=list, init=False)
    _delayed: list[tuple[float, int]] = attrs.field(factory=list, init=False)
    _ends: list[tuple[float, int]] = attrs.field(factory=list, init=False)
    _queues: dict[str, deque[int]] = attrs.field(factory=dict, init=False)  #: by key, the records that are not final
    _blind: set[int] = attrs.field(factory=set, init=False)  #: deleted records whose key is unknown
    _known_keys: dict[int, str] = attrs.field(factory=dict, init=False)
    _oldest: int = attrs.field(default=0, init=False)
    _holding: bool = attrs.field(default=True, init=False)
    _expiring: list[tuple[int, int]] = attrs.field(factory=list, init=False)  #: records that nobody has looked at
    _unwritten: list[tuple[int, int]] = attrs.field(factory=list, init=False)  #: the same, to be appended again

    def __attrs_post_init__(self) -> None:
        self.reach = self.hold = self.progress.reach
        self.seen = max(self.progress.final.floor, min(self.reach, self.bounds()[1]))
        for first, last in self.progress.final.gaps(1, self.seen):
            for seq in range(first, last + 1):
                self._enter(seq)

    # Leasing.

    def lease(self, consumer: str, most: int) -> list[OpenRecord]:
        """Lease up to *most* records to *consumer*: new ones, and for up to a half of them those that were returned."""
        self.tick()
        unknown = self._blind or (
            self.keys is not None and (self._expiring or self._unwritten)
        )  # Deleted records, whose keys are unknown.
        if not self.group.may_lease() or self.group.paused or unknown:
            return []
        picked: list[OpenRecord] = []
        returned, last = (most + 1) // 2, self.bounds()[1]
        while len(picked) < most:
            entry = (self._next_ready() if len(picked) < returned else None) or self._next_new(last)
            if entry is None and returned < most:
                returned = most  # There are no new ones.
                continue
            if entry is None:
                break
            number, end = entry.ended[0] + 1, self.group.now() + self.group.options.lease
            self._begin_lease(entry, Lease(number, end, consumer))
            self.group.redelivered += number > 1
            heappush(self._ends, (end, entry.seq))
            picked.append(entry)
        return picked

    def token(self, entry: OpenRecord) -> Token:
        assert entry.lease is not None, "the record is leased"
        return self.group.epoch, entry.lease.number

    def is_waiting(self, entry: OpenRecord) -> bool:
        """Return whether *entry* is neither leased nor being written, and nothing holds it (rules 2, 5, 8, 12, 15)."""
        if entry.lease is not None or entry.ending is not None or entry.closing:
            return False
        return not self._is_held(entry) and self._is_first(entry)

    def _is_held(self, entry: OpenRecord) -> bool:
        return entry.seq <= self.hold and self.group.in_grace()

    def _is_first(self, entry: OpenRecord) -> bool:
        """Return whether no earlier record of its key is open (rule 15)."""
        return entry.key is None or self._queues[entry.key][0] == entry.seq

    def _next_ready(self) -> OpenRecord | None:
        """Return the next record that was returned, or has waited for the grace or its key."""
        while self._ready:
            entry = self.entries.get(heappop(self._ready))
            if entry is None or not entry.queued:
                continue
            entry.queued = False
            if self.is_waiting(entry) and entry.not_before <= self.group.now() and entry.seq >= self._oldest:
                return entry
        return None

    def _next_new(self, last: int) -> OpenRecord | None:
        """Return the next record up to *last* that nobody has had, if window and reach allow it (rules 1, 11, 16)."""
        while self.seen < last and self.group.has_room():
            if not self._is_reached(self.seen + 1):
                self._raise_reach()
                return None
            self.seen += 1
            if self.seen in self.progress.final:
                continue
            entry = self._enter(self.seen)
            if self.is_waiting(entry):
                return entry
        return None

    def _is_reached(self, seq: int) -> bool:
        """Return whether a durable reach includes *seq* (rule 11)."""
        return seq <= self.progress.reach

    def _raise_reach(self) -> None:
        if self.seen + 1 > self.reach:
            self._append(LaneChange(self, reach=self._next_reach()))

    def _next_reach(self) -> int:
        """Return the highest record that the window allows, so that a start finds no more than a window open."""
        return self.seen + max(0, self.group.options.window - self.group.open)

    def _enter(self, seq: int) -> OpenRecord:
        """Begin to look at record *seq*."""
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
        """Let *entry* be leased again when its delay is over, if nothing else holds it."""
        if entry.seq < self._oldest:
            self._expire_deleted([entry])
        elif self.is_waiting(entry) and not entry.queued:
            entry.queued = True
            if entry.not_before > self.group.now():
                heappush(self._delayed, (entry.not_before, entry.seq))
            else:
                heappush(self._ready, entry.seq)

    # Settling, returning, extending.

    def why_not(self, seq: int, token: Token) -> str:
        """Return why *seq* cannot be settled with *token* (rules 3, 4, 5 and 12); empty if it can."""
        entry = self.entries.get(seq)
        if self.group.rewinding:
            return "rewound"
        if seq in self.progress.final:
            return "final"
        if entry is None:
            return "lease-lost"
        if entry.closing:
            return "being-settled"
        return "" if self._is_last_token(entry, token) else "lease-lost"

    def _is_last_token(self, entry: OpenRecord, token: Token) -> bool:
        epoch, number = token
        if entry.lease is not None:
            return token == (self.group.epoch, entry.lease.number)
        if epoch == self.group.epoch:
            return number == entry.ended[0]  # Its lease has ended, and nobody else has had the record.
        return epoch == self.group.before > 0 and number == entry.ended[0] + 1

    def holds(self, seq: int, token: Token) -> bool:
        """Return whether *token* is the one of a lease that has not ended."""
        entry = self.entries.get(seq)
        if entry is None or entry.lease is None or entry.ending is not None or entry.closing or self.group.rewinding:
            return False
        return token == (self.group.epoch, entry.lease.number)

    def settle(self, seqs: Sequence[int], batch: LaneChange) -> None:
        """Add the end of *seqs*, which :meth:`why_not` allows, to *batch*."""
        for seq in seqs:
            self._close(self.entries[seq], "settled")
        batch.settled += sorted(seqs)
        self.reach = batch.reach = max(self.reach, self._next_reach())  # It costs nothing to write it now.

    def give_back(
        self, seq: int, batch: LaneChange, *, failed: bool, delay: float | None = None, why: str = ""
    ) -> None:
        """End the lease of *seq*, which :meth:`holds`, without settling it.

        :param batch: the end is added to it, unless the record becomes final, which is a batch of its own
        :param failed: whether it counts as a failure
        :param delay: until it may be leased again, in seconds; None: longer with each failure
        :param why: makes it a dead letter at once
        """
        entry = self.entries[seq]
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
        """Let a lease last for another lease time from now on, also one of the epoch before; return its token."""
        if not self.group.may_lease():
            return None
        entry = self.entries.get(seq)
        if entry is not None and entry.lease is None and token[0] != self.group.epoch and not self.why_not(seq, token):
            self._begin_lease(entry, Lease(token[1], 0.0, consumer))
        elif entry is None or not self.holds(seq, token):
            return None
        assert entry.lease is not None, "it was just leased, or still is"
        entry.lease.end = self.group.now() + self.group.options.lease
        heappush(self._ends, (entry.lease.end, seq))
        return self.token(entry)

    def missing(self, seq: int, behind: int) -> None:
        """End record *seq*, which was just leased, as expired: the journal has nothing from it up to *behind*.

        Numbers behind it that nobody has looked at end with it, however many they are.
        """
        self._expire(self.entries[seq])
        self._expire_unseen(behind - 1)

    def withdraw(self, seq: int) -> None:
        """Take back the lease of *seq*, which no worker was told of."""
        entry = self.entries[seq]
        self._end_lease(entry)
        entry.not_before = 0.0
        self._release(entry)

    def abandon(self) -> None:
        """Forget everything, because the subscription is rewound or deleted."""
        for entry in self.entries.values():
            self._end_lease(entry)
            self.group.open -= not entry.closing
        self.entries.clear()

    def delayed(self) -> int:
        """Return about how many records wait for their delay; those that are settled late meanwhile count, too."""
        return len(self._delayed)

    def available(self) -> int:
        """Return about how many records could be leased now."""
        room = max(0, self.group.options.window - self.group.open)
        return len(self._ready) + len(self._delayed) + min(room, max(0, self.bounds()[1] - self.seen))

    # Time and retention.

    def tick(self) -> None:
        """End the leases whose time is over, and what retention has deleted (rules 9, 14 and 17)."""
        if self.group.rewinding:
            return
        now, oldest = self.group.now(), self.bounds()[0]
        batch = LaneChange(self)
        changed, self._oldest = oldest != self._oldest, oldest
        due = []
        while self._ends and self._ends[0][0] <= now:
            due.append(heappop(self._ends)[1])
        for seq in dict.fromkeys(due):  # Not in the loop above: what cannot be written is due again at once.
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
            self._expire_unseen(self._oldest - 1)
        while self._delayed and self._delayed[0][0] <= now:
            heappush(self._ready, heappop(self._delayed)[1])

    def _expire_deleted(self, entries: Sequence[OpenRecord]) -> None:
        for entry in entries:
            busy = entry.lease is not None or entry.ending is not None or entry.closing
            if entry.seq < self._oldest and not busy and not self._is_held(entry):
                self._expire(entry)

    def _expire(self, entry: OpenRecord) -> None:
        self._close(entry, "expired")
        self._append(LaneChange(self, expired=[(entry.seq, entry.seq)]))

    def _expire_unseen(self, last: int) -> None:
        """End the numbers up to *last* that nobody has looked at: the journal does not have their records."""
        first, self.seen = self.seen + 1, max(self.seen, last)
        unwritten = [*self._unwritten, *self.progress.final.gaps(first, self.seen)]
        self._unwritten = []
        if unwritten:
            self._expiring += unwritten
            self._append(LaneChange(self, expired=unwritten))

    # What was appended.

    def _close(self, entry: OpenRecord, how: str) -> None:
        entry.closing = how
        self.group.open -= 1

    def _append(self, batch: LaneChange) -> None:
        self.reach = max(self.reach, batch.reach)
        self.group.append([batch])

    def committed(self, batch: LaneChange) -> None:
        """Record that *batch* is durable."""
        progress = self.progress
        progress.apply(batch.fields())
        final = [*batch.settled, *(seq for first, last in batch.expired if first == last for seq in (first,))]
        for seq in final if batch.letter is None else [batch.letter[0]]:
            self._forget(seq)
        for unseen in batch.expired:
            if unseen in self._expiring:
                self._expiring.remove(unseen)
        for seq, ended in batch.ended.items():
            entry = self.entries.get(seq)
            if entry is not None:
                entry.ended, entry.ending = ended, None
                self._end_lease(entry)
                self._release(entry)

    def undone(self, batch: LaneChange) -> None:
        """Make everything as it was before *batch*, which could not be written."""
        if batch.reach:
            self.reach = self.progress.reach
        numbers = [*batch.settled, *batch.ended, *(first for first, last in batch.expired if first == last)]
        for seq in numbers if batch.letter is None else [batch.letter[0]]:
            entry = self.entries.get(seq)
            if entry is None:
                continue
            if seq in batch.ended:
                entry.ending = None
            elif entry.closing:
                entry.closing, entry.letter = "", None
                self.group.open += 1
            if entry.lease is not None:
                heappush(self._ends, (entry.lease.end, seq))
            else:
                self._oldest = 0  # The next tick looks for what retention has deleted.
                self._release(entry)
        for unseen in batch.expired:
            if unseen in self._expiring:
                self._expiring.remove(unseen)
                self._unwritten.append(unseen)
                self._oldest = 0  # The next tick tries again.

    def _begin_lease(self, entry: OpenRecord, lease: Lease) -> None:
        entry.lease = lease
        self.group.held[lease.consumer] += 1
        self.group.leased += 1

    def _end_lease(self, entry: OpenRecord) -> None:
        if entry.lease is not None:
            self.group.leased -= 1
            held = self.group.held
            held[entry.lease.consumer] -= 1
            if held[entry.lease.consumer] <= 0:
                del held[entry.lease.consumer]
            entry.lease = None

    def _forget(self, seq: int) -> None:
        """Forget a record that is final, and let the next one of its key be leased (rule 15)."""
        entry = self.entries.pop(seq, None)
        if entry is None:
            return
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
        """Return what was appended, durable or not, for a checkpoint (rule 18)."""
        now = self.progress
        found = StreamProgress(
            FinalNumbers(now.final.floor, now.final.above()), self.reach, {}, now.settled, now.dead, now.expired
        )
        letters = [entry.letter for entry in self.entries.values() if entry.letter is not None]
        found.letters = [*now.letters, *letters][-KEPT_LETTERS:]
        for first, last in self._expiring:
            found.expired += found.final.add(first, last)
        for entry in self.entries.values():
            if entry.closing:
                found.end(entry.closing, entry.seq, entry.seq)
            elif entry.ending or entry.ended != (0, 0):
                found.ends[entry.seq] = entry.ending or entry.ended
        return found
