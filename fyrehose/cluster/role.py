"""The role of a server - follower, candidate or leader - which decides the actions that its owner has to carry out.

    events    entries that were read, answers to appends, what the journal has synced      (methods)
    actions   append to the shared log, write to the journal, truncate it, fill it, stop    (:meth:`Role.take`)

A follower applies the entries that count.  It takes over by an append under the condition that the shared log has not
grown.  So only one server's append is accepted, whatever each server believes about the old leader.  A leader has
several appends in flight; each is repeated unchanged until its outcome is known.  An entry that does not count takes a
number of the shared log, and has no other effect: followers skip it, and a leader gives its appends in flight new
numbers.

The *durable mark* of a replicated journal is the position up to which the log is synced here **and** accepted by the
shared log; nothing beyond it is acknowledged or delivered.

This module imports neither Twisted nor a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum

import attrs

from fyrehose.cluster.entries import MAX_DATA, EntryKind, EntryWriter, LogEntry, Piece, Validity, divide, joined
from fyrehose.cluster.members import LEAST, UNLISTED, Members
from fyrehose.journal.exchange import Batches
from fyrehose.journal.format import SEGMENT_MAGIC, UNKNOWN, Damage

#: Limit of the number of appends to the shared log that are under way at once.
WINDOW = 8
#: While EAGER appends or more are under way, only entries of at least LARGE bytes follow.  Smaller ones wait, and are
#: joined, because the shared log spends more time on an entry than on its bytes.
EAGER = 2
LARGE = 256 << 10
#: After this many consecutive signs that the shared log has lost entries, the role stops; at most four signs come in a
#: second.  A NATS server that was frozen, or cut off, answers with outdated numbers for some seconds.
SIGNS = 80
#: A server that is no member stops after this many answers of the shared log, at most four in a second, if it has
#: applied all entries that the answers mention.
OUTSIDE = 20
#: How many bytes of entries a follower writes to its journal with one sync.
WRITE = 4 << 20


class State(Enum):
    """The states that a server's role can be in."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"  #: its take-over is under way
    LEADER = "leader"
    STOPPED = "stopped"  #: this role has stopped for good, for the reason in :class:`Changed`


@attrs.frozen
class Append:
    """The action to append *entry* to the shared log if the last number there is *expect*; idempotent.

    :ivar since: the shared log had at least this many entries when the append was sent
    """

    entry: LogEntry
    expect: int
    since: int


@attrs.frozen
class LookAt:
    """The action to read the entry with this number, and pass it to :meth:`Role.found`."""

    number: int


@attrs.frozen
class Write:
    """The action to append whole batches to the journal at *position*, where the journal ends."""

    position: int
    data: bytes

    def take_following(self, actions: deque[Action]) -> bytes:
        """Join this write with the writes in *actions* that continue it, so that one sync serves them all.

        The joined writes are removed from *actions*.  A segment begins with a write of its own.

        :return: the bytes of all of them
        """
        pieces, end = [self.data], self.position + len(self.data)
        while actions and end - self.position < WRITE:
            after = actions[0]
            if not isinstance(after, Write) or after.position != end or after.data.startswith(SEGMENT_MAGIC):
                break
            actions.popleft()
            pieces.append(after.data)
            end += len(after.data)
        return joined(pieces)


@attrs.frozen
class Compare:
    """The action to check that the journal has these bytes; if not, :meth:`Role.contradicted` is to be called."""

    position: int
    data: bytes


@attrs.frozen
class Cut:
    """The action to set aside the bytes of the journal beyond *position*, and then call :meth:`Role.was_cut`.

    A server that has led does so by opening its journal again, with another role.

    :ivar reason: why, for people
    """

    position: int
    reason: str = attrs.field(default="", eq=False)


@attrs.frozen
class Fill:
    """The action to copy another server's journal, because this journal ends before the shared log begins."""

    position: int


@attrs.frozen
class Reopen:
    """The action to open the journal again, with a new role that reads the shared log from its first entry on.

    :ivar reason: why, for people
    """

    reason: str


@attrs.frozen
class Purge:
    """The action to delete the entries of the shared log before *number*."""

    number: int


@attrs.frozen
class Listed:
    """The news that the members have changed."""

    members: Members


@attrs.frozen
class Changed:
    """The news that the state of the role has changed."""

    state: State
    reason: str


Action = Append | LookAt | Write | Compare | Cut | Fill | Reopen | Purge | Listed | Changed


@attrs.define(eq=False)
class UnsettledAppend:
    """An append of the leader whose outcome may be unknown."""

    entry: LogEntry
    expect: int
    known: bool = False  #: whether the entry is known to be in the shared log at its number


@attrs.define(eq=False)
class Role:
    """The role of one server from one start to the next.

    :ivar writer: the name and incarnation of this server
    :ivar position: the position up to which the journal agrees with the entries that count; at the start, its durable
        mark
    :ivar identity: of the journal; UNKNOWN while it is empty
    :ivar chain: the checksum from which the journal continues at *position*
    :ivar synced: the position up to which the journal is on disk
    :ivar size: the number of members of a new shared log that this server begins
    :ivar ready: returns whether this server could accept messages at once if it led
    :ivar validity: decides which entries count
    :ivar applied: the number of the last entry of the shared log that was processed
    :ivar leader: the writer of the last take-over that counted; None before the first
    :ivar reported: the number of the last entry up to which everything is on disk here, even after a power cut; this is
        sent to the other servers
    :ivar last_confirmed: the last entry of this server that was confirmed
    """

    writer: EntryWriter
    position: int
    window: int = WINDOW
    most: int = MAX_DATA
    eager: int = EAGER
    size: int = 3
    identity: bytes = UNKNOWN
    chain: int = 0
    ready: Callable[[], bool] = lambda: True
    validity: Validity = attrs.field(factory=Validity)
    synced: int = attrs.field(init=False)
    state: State = attrs.field(default=State.FOLLOWER, init=False)
    applied: int = attrs.field(default=0, init=False)
    reported: int = attrs.field(default=0, init=False)
    leader: EntryWriter | None = attrs.field(default=None, init=False)
    last_confirmed: LogEntry | None = attrs.field(default=None, init=False)
    #: Numbers of the checkpoints before which the shared log is purged once the other servers have synced all earlier
    #: entries.
    checkpoints: list[int] = attrs.field(factory=list, init=False)
    trimmed: int = attrs.field(default=0, init=False)  #: no leader has trimmed the shared log beyond this entry
    inflight: deque[UnsettledAppend] = attrs.field(factory=deque, init=False)
    _start: int = attrs.field(init=False)  #: the durable mark at the start
    _end: int = attrs.field(init=False)  #: where the leader's journal ends
    _end_chain: int = attrs.field(init=False)  #: the checksum from which the journal continues there
    _queue: deque[Piece] = attrs.field(factory=deque, init=False)
    _parts: list[bytes] = attrs.field(factory=list, init=False)
    #: For each entry that is not reported yet: its number, and the position where the journal ended after it.
    _ends: deque[tuple[int, int]] = attrs.field(factory=deque, init=False)
    _actions: list[Action] = attrs.field(factory=list, init=False)
    #: True while the journal is being truncated or filled; the role ignores all other events meanwhile.
    _waiting: bool = attrs.field(default=False, init=False)
    #: Whether further appends wait for the append in flight, because that was sent with a new number (rule 14).
    _alone: bool = attrs.field(default=False, init=False)
    _signs: int = attrs.field(default=0, init=False)
    _outside: int = attrs.field(default=0, init=False)  #: how often in a row this server was found to be no member
    _outside_last: int = attrs.field(default=0, init=False)  #: the last entry that answers have mentioned meanwhile
    _listed: Members | None = attrs.field(default=None, init=False)  #: the members after all entries that were sent

    def __attrs_post_init__(self) -> None:
        self.synced = self._start = self._end = self.position
        self._end_chain = self.chain

    @property
    def mark(self) -> int:
        """Return the durable mark: below this position, bytes are synced here and accepted by the shared log."""
        return min(self.synced, self.position)

    @property
    def pending(self) -> bool:
        """Return whether the outcome of an append is unknown, or entries wait to be appended."""
        return bool(self.inflight or self._queue)

    @property
    def members(self) -> Members:
        """Return the members of the cluster, or UNLISTED if no entry has listed them yet, as for no leader."""
        return self.validity.members or UNLISTED

    @property
    def admitted(self) -> bool:
        """Return whether this server may take part, according to the entries that were applied so far."""
        return self.members.admits(self.writer.name)

    def take(self) -> list[Action]:
        """Return the actions that were decided since the last call; the caller performs them in this order."""
        actions, self._actions = self._actions, []
        return actions

    def was_begun(self, identity: bytes) -> None:
        """Record the identity of the journal, which a journal that was empty gets when this server leads."""
        self.identity = identity

    # Follow.

    def read(self, number: int, entry: LogEntry) -> None:
        """Apply the next entry of the shared log or, if that was purged, the first entry that the shared log still has.

        A leader and a candidate ignore the entry, because the answers to their own appends show what the shared log
        has.

        :param number: the number of the entry; at most :attr:`applied` + 1, unless the entries in between were purged
        """
        if self.state is not State.FOLLOWER or self._waiting or number <= self.applied:
            return
        if (number > self.applied + 1 or number == 1) and not self._begin(entry):
            return
        self.applied = number
        if self._counts(entry):
            self._apply(entry)
        if self._is_of_this_journal():
            self._ends.append((number, self.position))

    def _begin(self, entry: LogEntry) -> bool:
        """Start at *entry*, the first that the shared log still has; return False if the journal ends before it.

        In that case, another server's journal has to be copied first (rule 10).
        """
        if entry.kind is not EntryKind.DATA and entry.position > self.position:
            self._actions.append(Fill(entry.position))
            self._waiting = True  # this role ignores everything else: after the journal is filled, a new one begins
            return False
        try:
            self.validity.begin(entry)
        except Damage as damage:
            self._stop(f"{damage}; entries were deleted by something else than this server")
            return False
        self._parts.clear()
        return True

    def _counts(self, entry: LogEntry) -> bool:
        before = self.members
        counts = self.validity.counts(entry)
        if counts and entry.kind is EntryKind.CHECKPOINT and self.state is not State.LEADER:
            self.trimmed = self.applied  # another leader may trim up to its checkpoint; purge() sets this for our own
        if self.members != before:
            self._actions.append(Listed(self.members))
        return counts

    def _is_of_this_journal(self) -> bool:
        """Return whether the shared log belongs to this journal; if identity or checksum differ, stop (rule 11)."""
        log = self.validity
        if self.identity == UNKNOWN:
            self.identity = log.identity
        if log.identity not in (self.identity, UNKNOWN):
            self._stop(f"its journal is {log.identity.hex()}, and this one is {self.identity.hex()}")
        elif log.end == self.position and log.chain != self.chain:
            self._stop(f"the journal differs from it before position {self.position}")
        return self.state is not State.STOPPED

    def _apply(self, entry: LogEntry) -> None:
        if entry.kind is not EntryKind.DATA:
            self._parts.clear()
            self.leader = entry.writer
            return
        self._parts.append(entry.data)
        if entry.part:
            return
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        begin = entry.end - len(data)
        known = min(len(data), max(0, self.position - begin))
        if known:  # the journal has these bytes already, from before this start
            self._actions.append(Compare(begin, data[:known]))
        if known < len(data):
            self._actions.append(Write(begin + known, data[known:]))
            self.position = self._end = entry.end
            self.chain = self._end_chain = entry.after

    def learned_last(self, last: int, since: int) -> None:
        """Record that the shared log ends at entry *last*, according to NATS.

        If answer after answer lacks entries that this server has, the shared log has lost them, and this server stops
        (rule 7).

        :param since: the value of :attr:`applied` when the request was sent
        """
        if self.state is State.LEADER and last > self.applied + len(self.inflight):
            self._actions.append(LookAt(self.applied + 1))  # another server has written to the shared log
        if self.state is not State.FOLLOWER or self._waiting:
            return
        if last < since:
            self._sign(f"it ends at entry {last}, and this server has applied {since}")
        elif last == self.applied and self.validity.end < self._start and last:
            self._sign(f"it ends at position {self.validity.end}, and this journal is durable up to {self._start}")
        else:
            self._signs = 0
            self._leave_if_outside(last)

    def _leave_if_outside(self, last: int) -> None:
        """Stop if this server is no member although it has applied all entries (rule 18).

        Several answers are needed, because an answer may be late: an entry after *last* may have added this server
        already.
        """
        if self.admitted:
            self._outside = self._outside_last = 0
        elif self._outside < OUTSIDE:
            self._outside, self._outside_last = self._outside + 1, max(self._outside_last, last)
        elif self.applied >= self._outside_last:
            name = self.writer.name
            self._give_up(
                f"this server, {name}, is not a member of the cluster, whose members are {self.members}; run `fyrehose "
                f"cluster add {name}`, or `fyrehose cluster replace` if it takes the place of one of them, and start "
                "it again"
            )

    def contradicted(self, position: int) -> None:
        """Record that the durable part of the journal differs from the shared log at *position*."""
        self._stop(f"the journal differs from it at position {position}")

    # Take over.

    def take_over(self, last: int, reason: str = "no leader was heard") -> bool:
        """Try to become the leader, if everything in the shared log is applied and synced here (rule 4).

        :param last: the last number in the shared log, according to NATS
        :param reason: why this server takes over, for the log
        :return: whether the take-over is under way
        """
        if not self._may_take_over(last):
            return False
        self._set(State.CANDIDATE, reason)
        name = self.writer.name
        self._listed = Members.founded(name, self.size) if self.members is UNLISTED else self.members.added(name)
        self._send(self._here(EntryKind.TAKEOVER), self.validity.epoch + 1)
        return True

    def _may_take_over(self, last: int) -> bool:
        return (
            self.state is State.FOLLOWER
            and not self._waiting
            and self.admitted
            and self.applied >= last
            and self.synced >= self.position
            and self.ready()
            and (self.applied == 0 or self.validity.end == self.position)
        )

    def _here(self, kind: EntryKind, members: Members | None = None) -> Piece:
        """Return the content for an entry without data, whose position is the end of the journal."""
        return Piece(self._end, b"", False, self._end_chain, self._end_chain, kind, members)

    # Lead.

    def append(self, position: int, batches: Sequence[Batches]) -> None:
        """Append *batches* to the shared log, which this leader has appended to its journal at *position*."""
        assert self.state is State.LEADER, "only the leader appends"
        assert position == self._end, f"the journal ends at {self._end}, not at {position}"
        for piece in divide(position, self._end_chain, batches, self.most):
            self._queue.append(piece)
            self._end, self._end_chain = piece.position + len(piece.data), piece.after
        self._pump()

    def add_checkpoint(self) -> bool:
        """Append a checkpoint to the shared log, so that the entries before it can be purged later (rule 9).

        :return: False if this is not possible now, or another checkpoint is under way
        """
        adds = self.state is State.LEADER and not self._is_under_way(EntryKind.CHECKPOINT)
        if adds:
            self._queue_first(EntryKind.CHECKPOINT)
        return adds

    def change_members(self, members: Members) -> bool:
        """Append *members* to the shared log, as the list that is valid from that entry on (rule 18).

        :return: False if this is not possible now, or another change is under way
        """
        changes = self.state is State.LEADER and not self.changes_members
        if changes:
            self._queue_first(EntryKind.MEMBERS, members)
        return changes

    def is_on_two(self, members: Members, reported: Mapping[str, int]) -> bool:
        """Return whether at least two of *members* have on disk all entries that may have been trimmed.

        :param reported: as in :meth:`purge`
        """
        has = {**reported, self.writer.name: self.reported}
        return sum(has.get(name, 0) >= self.trimmed for name in members.names) >= LEAST

    @property
    def changes_members(self) -> bool:
        """Return whether a change of the members is under way."""
        return self._is_under_way(EntryKind.MEMBERS)

    def _is_under_way(self, kind: EntryKind) -> bool:
        return any(item.entry.kind is kind for item in self.inflight) or any(
            piece.kind is kind for piece in self._queue
        )

    def _queue_first(self, kind: EntryKind, members: Members | None = None) -> None:
        """Put an entry without data at the head of the queue, because a full shared log accepts few more entries.

        If a part of a batch was sent already, the entry is queued behind the rest of that batch.
        """
        within = bool(self.inflight) and self.inflight[-1].entry.part
        at, here = len(self._queue), self._here(kind, members)
        for number, piece in enumerate(self._queue):
            if not within:
                at, here = number, Piece(piece.position, b"", False, piece.chain, piece.chain, kind, members)
                break
            within = piece.part
        self._queue.insert(at, here)
        self._pump()

    def _pump(self) -> None:
        large = min(LARGE, self.most)
        while self._queue and len(self.inflight) < (1 if self._alone else self.window):
            if len(self.inflight) >= self.eager and sum(len(piece.data) for piece in self._queue) < large:
                return
            self._send(self._take_queued())

    def _take_queued(self) -> Piece:
        """Take the next entry from the queue, joined with as many of the following entries as fit into one."""
        first = self._queue.popleft()
        pieces, size, after = [first.data], len(first.data), first.after
        while self._queue and first.kind is EntryKind.DATA and not first.part:
            more = self._queue[0]
            fits = more.kind is EntryKind.DATA and size + len(more.data) <= self.most
            if not fits or more.part or more.begins_segment:
                break
            self._queue.popleft()
            pieces.append(more.data)
            size += len(more.data)
            after = more.after
        return attrs.evolve(first, data=joined(pieces), after=after)

    def _send(self, piece: Piece, epoch: int = 0) -> None:
        self._listed = piece.members or self._listed
        entry = LogEntry(
            piece.kind,
            epoch or self.validity.epoch,
            self.writer,
            piece.position,
            piece.data,
            piece.part,
            self.identity,
            piece.chain,
            piece.after,
            None if piece.kind is EntryKind.DATA else self._listed,
        )
        item = UnsettledAppend(entry, self.applied + len(self.inflight))
        self.inflight.append(item)
        self._actions.append(Append(entry, item.expect, self.applied))

    def repeat(self) -> None:
        """Repeat every append whose outcome is unknown, unchanged (rule 3); called after a time-out."""
        self._actions += [Append(item.entry, item.expect, self.applied) for item in self.inflight if not item.known]

    def accepted(self, entry: LogEntry, number: int) -> None:
        """Record that the shared log has accepted *entry* as its number *number* (rule 2)."""
        item = self._find(entry)
        if item is None:
            return
        self._signs = 0
        if number == item.expect + 1:
            item.known = True
            self._confirm()
        # Otherwise the answer is for an earlier append of the same entry, with another number.
        elif number > item.expect:
            self._actions.append(LookAt(item.expect + 1))

    def refused(self, entry: LogEntry, last: int, since: int) -> None:
        """Record that the shared log has refused *entry*, because its last number was *last*.

        If *last* is less than expected, an earlier append has not arrived yet; *entry* is repeated later.

        :param since: the field ``since`` of the :class:`Append` that was refused
        """
        item = self._find(entry)
        if item is None:
            return
        if last > item.expect:
            self._actions.append(LookAt(item.expect + 1))
        elif last < since and item is self.inflight[0]:
            self._sign(f"it ends at entry {last}, and entry {since} was confirmed")

    def found(self, number: int, entry: LogEntry | None) -> None:
        """Record that *entry* has this number; step down if *entry* is None, because another leader has purged it."""
        item = next((item for item in self.inflight if item.expect + 1 == number), None)
        if item is not None and (item.known or item.entry == entry):
            item.known = True
            self._confirm()
        elif self.state in (State.LEADER, State.CANDIDATE) and number == self.applied + 1:
            if entry is not None and number > 1 and not attrs.evolve(self.validity).counts(entry):
                self._skip(number)
            else:
                by = "another server" if entry is None else f"{entry.writer.name!r}, epoch {entry.epoch},"
                self._step_down(f"{by} has written to the shared log")

    def _skip(self, number: int) -> None:
        """Assign new numbers to the entries in flight, behind an entry that does not count (rule 14).

        If the shared log later accepts an append with an old number, that entry does not count, because an entry before
        it is missing.  But it uses up one of the next numbers, so only the first append is sent again until it is
        accepted.
        """
        self.applied = number
        self._ends.append((number, self.position))
        while len(self.inflight) > 1:
            later = self.inflight.pop().entry
            members = later.members if later.kind is EntryKind.MEMBERS else None
            self._queue.appendleft(
                Piece(later.position, later.data, later.part, later.chain, later.after, later.kind, members)
            )
        for item in self.inflight:
            self._alone, self._listed = True, item.entry.members or self.members
            item.expect, item.known = number, False
            self._actions.append(Append(item.entry, number, number))

    def _find(self, entry: LogEntry) -> UnsettledAppend | None:
        return next((item for item in self.inflight if item.entry == entry and not item.known), None)

    def _confirm(self) -> None:
        """Process the oldest appends whose outcome is known, up to the first whose outcome is still unknown."""
        while self.inflight and self.inflight[0].known:
            item = self.inflight.popleft()
            self._alone = False
            self.applied = item.expect + 1
            if self.applied == 1:
                self.validity.begin(item.entry)
            if not self._counts(item.entry):
                self._step_down("the shared log has accepted an append that does not count")
                return
            self._confirmed(item.entry)
            self._ends.append((self.applied, self.position))
        self._pump()

    def _confirmed(self, entry: LogEntry) -> None:
        self.last_confirmed = entry
        if entry.kind is EntryKind.TAKEOVER:
            self.leader = self.writer
            self._parts.clear()
            self._set(State.LEADER, f"its take-over was accepted, epoch {entry.epoch}")
        elif entry.kind is EntryKind.CHECKPOINT:
            self.checkpoints.append(self.applied)
        elif not entry.part:
            self.position, self.chain = entry.end, entry.after

    def _step_down(self, reason: str) -> None:
        """Become a follower, and truncate the log at the confirmed position: no later byte counts (rule 5)."""
        self._drop_pending()
        self._alone = False
        self.checkpoints.clear()
        self.leader = None
        self._waiting = True
        self._end, self._end_chain = self.position, self.chain
        self.synced = min(self.synced, self.position)
        self._actions.append(Cut(self.position, reason))
        self._set(State.FOLLOWER, reason)

    def was_cut(self) -> None:
        """Record that the journal ends at :attr:`position` again."""
        self._waiting = False

    # Disk.

    def was_synced(self, position: int) -> None:
        """Record that the journal is on disk up to *position*."""
        if not self._waiting:
            self.synced = max(self.synced, position)

    def noted(self, position: int) -> None:
        """Record that the durable mark was synced to disk as *position*, so that it survives a power cut."""
        while self._ends and self._ends[0][1] <= position:
            self.reported = self._ends.popleft()[0]

    # Trim.

    def purge(self, reported: Mapping[str, int], absent: Collection[str] = (), alone: bool = False) -> None:
        """Delete the entries before the last checkpoint that this server and the other members have on disk.

        Nothing is deleted while a change of the members is under way, because the change may remove a member with a
        needed copy.  A leader that was removed deletes nothing either, because its own disk does not count.

        :param reported: the number of the last entry up to which each other server has everything on disk
        :param absent: members for whose copies the purge does not wait
        :param alone: whether the copy on this server's disk is enough
        """
        if self.state is not State.LEADER or self.changes_members or self.writer.name not in self.members.names:
            return
        others = [reported.get(name, 0) for name in {*self.members.names} - {self.writer.name, *absent}]
        mine = [number for number in self.checkpoints if self.reported >= number]
        done = [number for number in mine if alone or self._copied(others, number)]
        if done:
            self.trimmed = done[-1]
            self._actions.append(Purge(self.trimmed))
            del self.checkpoints[: len(done)]

    def _copied(self, others: Sequence[int], number: int) -> bool:
        return bool(others) and all(reported >= number for reported in others)

    # States.

    def _sign(self, what: str) -> None:
        self._signs += 1
        if self._signs >= SIGNS:
            self._drop_pending()
            self.state = State.STOPPED
            self._actions.append(Reopen(f"the shared log has lost entries: {what}"))

    def _stop(self, what: str) -> None:
        self._give_up(f"the shared log has lost entries, or is of another cluster: {what}")

    def _give_up(self, reason: str) -> None:
        self._drop_pending()
        self._set(State.STOPPED, reason)

    def _drop_pending(self) -> None:
        self.inflight.clear()
        self._queue.clear()

    def _set(self, state: State, reason: str) -> None:
        self.state = state
        self._actions.append(Changed(state, reason))
