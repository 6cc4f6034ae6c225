"""Named subscriptions: positions in streams that the server keeps for consumers.

    acknowledge, rewind, delete -> a record in the stream ``.subscriptions`` -> durable -> the Deferred fires

A position moves when its record is durable, and not before.  While one change of a subscription is being written,
later ones wait and are written together.  Retention keeps the records that subscriptions have not acknowledged, see
:meth:`unread`.

A subscription of a pattern has one position in each stream that matches.  Streams that are created later are added, and
their positions begin at 0, so a position is written only when it moves.  An index finds the patterns that match a new
stream, and a counter tells whether there is room for it, so that a new stream costs little.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred, fail, inlineCallbacks, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.broker.quotas import NamedRoom
from fyrehose.broker.state_stream import StateStream, Steps
from fyrehose.errors import (
    FyrehoseError,
    InvalidPosition,
    JournalCorrupt,
    NoSuchSubscription,
    PublishError,
    SubscriptionConflict,
    SubscriptionError,
    SubscriptionInUse,
    TooManyNamedSubscriptions,
)
from fyrehose.interfaces import IJournal, JournalState, Unread
from fyrehose.patterns import Pattern, PatternIndex
from fyrehose.periodic import Checks
from fyrehose.records import Run
from fyrehose.subscriptions import positions
from fyrehose.subscriptions.lags import SubscriptionLags
from fyrehose.subscriptions.positions import SOURCE, STREAM, Position, SavedPositions
from fyrehose.subscriptions.subscription import Consumer, Named, PollLease
from fyrehose.subscriptions.table import SharedSubscriptions

log = Logger()

#: The largest valid ``named-subscriptions``; it is limited because a checkpoint with all subscriptions is one record.
MOST_NAMED = 10_000
#: Seconds between two checks whether a checkpoint is due, which also update the lags.
CHECK = 1.0

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@attrs.define(eq=False)
class NamedSubscriptions:
    """All named subscriptions of a server.

    :ivar publish: publishes the server's own records
    :ivar room: counts subscriptions, and the streams that match the subscriptions of patterns
    :ivar exists: whether a stream exists, or is being created
    :ivar shares: the shared subscriptions, whose names no named subscription may have; None: there are none
    :ivar now: the time of records, in microseconds since 1970 UTC
    """

    clock: IReactorTime
    journal: IJournal
    publish: Callable[[Sequence[Run]], Deferred[Any]]
    room: NamedRoom
    exists: Callable[[str], bool] = attrs.field(default=lambda stream: False, kw_only=True)
    now: Callable[[], int] = attrs.field(default=lambda: time.time_ns() // 1000, kw_only=True)
    entries: dict[str, Named] = attrs.field(factory=dict, init=False)
    shares: SharedSubscriptions | None = attrs.field(default=None, init=False)
    lags: SubscriptionLags = attrs.field(init=False)
    _patterns: PatternIndex[Named] = attrs.field(factory=PatternIndex, init=False)
    #: the stream of the positions, with the state that was replayed from it
    stream: StateStream = attrs.field(init=False)
    _saved: SavedPositions = attrs.field(factory=SavedPositions, init=False)
    _checks: Checks = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.lags = SubscriptionLags(self.journal, lambda: self.now())
        self._checks = Checks(self.clock, self._check, CHECK, "named subscriptions")
        self.stream = StateStream(
            STREAM,
            SOURCE,
            self._saved,
            self.journal.read,
            self.journal.bounds,
            self.publish,
            everything=self._everything,
            content_type="application/json",
        )

    # Opening and closing.

    def open(self) -> None:
        """Recover the subscriptions from the journal, which is open; they replace those in memory.

        :raises JournalCorrupt: their records cannot be read
        """
        for named in list(self.entries.values()):
            self._displace(named, SubscriptionInUse("another server has led until now; ask again"))
            self._forget(named)
        found, now = self.stream.open(), self.now()
        for name, position in self._saved.positions.items():
            members: set[str] | None = None if position.streams is None else set()
            self._add(Named(name, position, position, position, active=now, members=members))
        if any(named.pattern for named in self.entries.values()):
            for stream in self.journal.ends():
                self.stream_created(stream)
        if found.missing:
            log.warn(
                "{count} records are missing in stream {stream}: named subscriptions may have fallen back, and "
                "subscriptions that are missing begin again when their consumers come back",
                count=found.missing,
                stream=STREAM,
            )
        if self.entries:
            log.info("recovered {count} named subscriptions", count=len(self.entries))
            self._checks.start()

    def close(self) -> None:
        """Stop the periodic checks."""
        self._checks.stop()

    # Subscriptions.

    def find(self, name: str) -> Named:
        """Return the subscription *name*.

        :raises NoSuchSubscription: there is none
        """
        named = self.entries.get(name)
        if named is None or named.stored is None or named.wanted is None:
            raise NoSuchSubscription(f"there is no subscription {name[:80]!r}")
        return named

    def create(self, name: str, stream: str, after: int | Mapping[str, int], creator: str) -> Deferred[Named]:
        """Create the subscription *name* of *stream* behind number *after*.

        :param stream: a name, or a pattern
        :param after: for a pattern: the number behind which the subscription begins in each stream that matches
        :param creator: the network of the peer, which may create half of all subscriptions; empty: the server
        :return: a Deferred that fires when the subscription is durable; fails with a SubscriptionError or a
            PublishError
        """
        position = Position(stream=stream, seq=0, creator=creator, time=self.now())
        members: set[str] | None = None
        if isinstance(after, int):
            position = attrs.evolve(position, seq=after)
        else:
            position = attrs.evolve(position, streams={each: seq for each, seq in after.items() if seq})
            members = set(after)
        named = self.entries.get(name)
        try:
            self._check_name(name)
            self.room.check(name, creator, 1 + len(members or ()))
            if named is not None and named.wanted is None and (members, named.members) != (None, None):
                raise SubscriptionInUse(f"subscription {name!r} is being deleted; ask again")
        except FyrehoseError as refusal:
            return fail(refusal)
        if named is None:
            named = self._add(Named(name, position, members=members))
        elif named.wanted is None:  # It is being deleted.
            named.wanted = position
            self._count(named)
        named.active = self.now()
        self._checks.start()
        return self._store(named).addCallback(lambda _: named)

    def _add(self, named: Named) -> Named:
        """Add *named* to the subscriptions, and its pattern, if any, to the index of patterns."""
        self.entries[named.name] = named
        if named.members is not None and named.wanted is not None:
            # Not Pattern.of_peer(): a pattern that is stored already may exceed the present bounds of peers.
            named.pattern = Pattern(named.wanted.stream)
            self._patterns.add(named.pattern, named)
        self._count(named)
        return named

    def _count(self, named: Named) -> None:
        """Count *named*; a subscription that is being deleted counts for its creator until it is forgotten."""
        if named.wanted is not None:
            named.creator = named.wanted.creator
        self.room.count(named, named.creator, 1 + len(named.members or ()))

    def stream_created(self, stream: str) -> None:
        """Add *stream* to the subscriptions whose patterns match it, with position 0."""
        if stream.startswith("."):
            return  # see positions.takes
        for named in self._patterns.covering(stream):
            wanted, members = named.wanted, named.members
            if wanted is None or members is None or stream in members:
                continue
            # A position that the journal contains already is kept, even if the limit leaves no room for another one.
            if wanted.last(stream) or self.room.has(wanted.creator, 1):
                members.add(stream)
                self.room.count(named, named.creator, 1 + len(members))
            else:
                self._leave_out(named, wanted, stream)

    def _leave_out(self, named: Named, wanted: Position, stream: str) -> None:
        """Log that there is no room for *stream* in *named*; log only the first such stream of a subscription."""
        if named.full:
            return
        named.full = True
        try:
            self.room.check(named.name, wanted.creator, 1)
        except TooManyNamedSubscriptions as refusal:
            log.warn(
                "subscription {name!r} leaves out stream {stream!r}, and perhaps others: {why}",
                name=named.name,
                stream=stream,
                why=str(refusal),
            )

    def _check_name(self, name: str) -> None:
        if not _NAME.fullmatch(name) or name.endswith(".new"):
            raise SubscriptionError(
                f"invalid name of a subscription: {name[:80]!r}; use 1 to 64 letters, digits, '_', '.' and '-', the "
                "first a letter or a digit, and no '.new' at the end"
            )
        if self.shares is not None and name in self.shares.entries:
            raise SubscriptionConflict(
                f"subscription {name!r} is shared: lease its records with POST /subscriptions/{name}/lease"
            )
        if name in {each.name for each in self.journal.keeper.subscriptions()}:
            raise SubscriptionInUse(f"a program that reads the journal's files has registered the name {name!r}")

    def settled(self, named: Named) -> Deferred[None]:
        """Return a Deferred that fires when no change of *named* is being written."""
        return self._store(named) if named.writing else succeed(None)

    def attach(
        self, named: Named, consumer: Consumer, owner: str = "", takeover: bool = False, holder: str = ""
    ) -> Position:
        """Make *consumer* the consumer of *named*, and return the position from which it reads.

        :param owner: name of a consumer that outlives its connections; the same owner may always continue
        :param takeover: whether to displace the present consumer
        :param holder: name of a polling consumer, which may continue while it has the lease
        :raises SubscriptionInUse: another consumer is connected, or has the lease
        """
        position = named.wanted or named.state
        present = named.consumer
        if named.lease is not None and named.lease.holder != holder:
            self._end_lease(named, named.lease, takeover)
            position = attrs.evolve(position, generation=position.generation + 1)
        if present is not None and present is not consumer and not (owner and owner == position.owner):
            if not takeover:
                raise SubscriptionInUse(
                    f"subscription {named.name!r} has a consumer; stop it, or take the subscription over"
                )
            self._displace(named, SubscriptionInUse(f"another consumer has taken over subscription {named.name!r}"))
            position = attrs.evolve(position, generation=position.generation + 1)
        if position.owner != owner:
            generation = max(position.generation, named.state.generation + 1)
            position = attrs.evolve(position, owner=owner, generation=generation)
        if position != named.wanted:
            named.wanted = position
            self._store(named).addErrback(self._not_noted)
        named.consumer, named.active = consumer, self.now()
        return position

    def hold(self, named: Named, holder: str, seconds: float, sent: Mapping[str, int]) -> None:
        """Reserve *named* for *holder* for some *seconds*, or until it has acknowledged the records that were *sent*.

        :param sent: number of the last record that was sent to the consumer, by stream
        """
        wanted = named.wanted
        if wanted is not None and any(seq > wanted.last(stream) for stream, seq in sent.items()):
            named.lease = PollLease(holder, self.clock.seconds() + seconds, seconds, sent)

    def _end_lease(self, named: Named, lease: PollLease, takeover: bool) -> None:
        """End the *lease* of a polling consumer, because another consumer takes over.

        :raises SubscriptionInUse: the lease has not expired, and *takeover* is false
        """
        left = lease.until - self.clock.seconds()
        if left > 0 and not takeover:
            raise SubscriptionInUse(
                f"a consumer of subscription {named.name!r} has records that it has not acknowledged; ask again in "
                f"{left:.0f} s, or take the subscription over"
            )
        named.lease = None

    def acknowledge(
        self, named: Named, seq: int | Mapping[str, int], generation: int | None = None
    ) -> Deferred[Position]:
        """Move the position forward to *seq*; a number that was acknowledged already changes nothing.

        :param seq: a number; for a pattern, numbers by stream
        :param generation: the generation that the consumer knows; None: any generation is accepted
        :return: a Deferred that fires with the durable state; fails with InvalidPosition or a PublishError
        """
        wanted = named.wanted
        if wanted is None:
            return fail(NoSuchSubscription(f"subscription {named.name!r} was deleted"))
        if generation is not None and generation != wanted.generation:
            return fail(
                InvalidPosition(
                    f"subscription {named.name!r} was rewound or taken over: its generation is {wanted.generation}, "
                    f"not {generation}; read again before acknowledging"
                )
            )
        try:
            numbers = self._numbers(named, wanted, seq)
        except InvalidPosition as refusal:
            return fail(refusal)
        named.active = self.now()
        ahead = {stream: number for stream, number in numbers.items() if number > wanted.last(stream)}
        if ahead:
            named.wanted = attrs.evolve(wanted.moved(ahead), time=self.now())
            self._renew_lease(named)
        elif not named.writing:
            return succeed(named.state)
        return self._store(named).addCallback(lambda _: named.state)

    def _renew_lease(self, named: Named) -> None:
        """Renew the lease of a polling consumer that has acknowledged records; end it if it has acknowledged all."""
        lease, named.lease = named.lease, None
        if lease is not None:
            self.hold(named, lease.holder, lease.seconds, lease.sent)

    @inlineCallbacks
    def rewind(self, named: Named, seq: int | Mapping[str, int] | None) -> Steps[Position]:
        """Set the position to *seq*, in either direction, and displace the consumer.

        :param seq: a number, or None for the end of each stream; for a pattern 0, numbers by stream, or None
        :return: a Deferred that fires with the durable state; fails with InvalidPosition or a PublishError
        """
        wanted = named.wanted or named.state
        numbers = self._numbers(named, wanted, seq)
        self._displace(named, SubscriptionInUse(f"subscription {named.name!r} was rewound"))
        generation = wanted.generation + 1
        named.wanted = attrs.evolve(
            wanted.moved(numbers), generation=generation, rewinds=wanted.rewinds + 1, owner="", time=self.now()
        )
        yield self._store(named)
        return named.state

    def _numbers(self, named: Named, wanted: Position, seq: int | Mapping[str, int] | None) -> Mapping[str, int]:
        """Convert *seq*, the position that a peer asks for, to a number for each stream.

        :param seq: a number of each stream, which must be 0 with a pattern; None: the end of each stream
        :raises InvalidPosition: a number is behind the end of its stream, or the stream is not one of *named*
        """
        streams = {wanted.stream} if named.members is None else named.members
        if isinstance(seq, Mapping):
            numbers = dict(seq)
        elif seq and named.members is not None:
            raise InvalidPosition(
                f"subscription {named.name!r} has the pattern {wanted.stream!r}: give a number for each stream"
            )
        else:
            numbers = dict.fromkeys(streams, seq) if seq is not None else {}
        if seq is None:
            numbers = {stream: self.journal.bounds(stream)[1] for stream in streams}
        for stream, number in numbers.items():
            if stream not in streams:
                raise InvalidPosition(f"stream {stream[:80]!r} is not one of the streams of {named.name!r}")
            last = self.journal.bounds(stream)[1]
            if number > last:
                raise InvalidPosition(f"invalid position {number} in stream {stream!r}, which ends at {last}")
        return numbers

    def delete(self, named: Named) -> Deferred[None]:
        """Delete *named*, and displace its consumer.

        :return: a Deferred that fires when the deletion is durable; fails with a PublishError
        """
        self._displace(named, NoSuchSubscription(f"subscription {named.name!r} was deleted"))
        named.wanted = None
        return self._store(named)

    def _displace(self, named: Named, reason: SubscriptionError) -> None:
        consumer, named.consumer, named.lease = named.consumer, None, None
        if consumer is not None:
            consumer.displaced(reason)

    # For retention.

    def unread(self) -> list[Unread]:
        """Return the records that retention keeps for subscriptions, and for the recovery of their positions."""
        found = [
            Unread(named.name, stream, seq, named.active)
            for named in self.entries.values()
            for stream, seq in named.places.items()
        ]
        if self.entries:
            found.append(Unread("", STREAM, max(0, self.stream.checkpoint - 1), self.now(), pinned=True))
        return found

    # Writing.

    def _store(self, named: Named) -> Deferred[None]:
        """Append the wanted state of *named* after any append under way; the Deferred fires when it is durable."""
        stored: Deferred[None] = Deferred()
        named.waiting.append(stored)
        if not named.writing:
            self._write(named)
        return stored

    def _write(self, named: Named) -> None:
        named.writing = True
        wanted, before, named.appended = named.wanted, named.appended, named.wanted
        waiting, named.waiting = named.waiting, []
        change = None if wanted is None else wanted.since(before)
        self._saved.clear()  # Only a follower needs the replayed positions; here they would only take memory.
        self.stream.append(positions.pack({named.name: change}, self.stream.checkpoint)).addCallbacks(
            self._stored, self._not_stored, (named, wanted, waiting), errbackArgs=(named, waiting)
        )

    def _stored(self, _: Any, named: Named, stored: Position | None, waiting: list[Deferred[None]]) -> None:
        named.writing, named.stored = False, stored
        if stored is None and named.wanted is None:
            self._forget(named)
        if named.waiting:
            self._write(named)
        for each in waiting:
            each.callback(None)

    def _not_stored(self, failure: Failure, named: Named, waiting: list[Deferred[None]]) -> None:
        waiting, named.waiting = waiting + named.waiting, []
        named.writing, named.wanted, named.appended = False, named.stored, named.stored
        if named.stored is None:
            self._forget(named)
        else:
            self._count(named)
        for each in waiting:
            each.errback(failure)

    def _forget(self, named: Named) -> None:
        if self.entries.pop(named.name, None) is not None:
            self.room.forget(named)
            if named.pattern is not None:
                self._patterns.remove(named.pattern, named)

    def _not_noted(self, failure: Failure) -> None:
        failure.trap(PublishError)
        log.warn("the consumer of a named subscription was not recorded: {why}", why=failure.getErrorMessage())

    # Periodic checks.

    def _check(self) -> None:
        now, ends = self.now(), self.journal.ends()
        for name, named in self.entries.items():
            self._checks.isolation.call(f"subscription {name!r}", self._check_one, named, now, ends)
        self.lags.look(self.entries.values())
        if self.journal.state is JournalState.WRITABLE:
            self.stream.maintain(self._must_move())

    def _check_one(self, named: Named, now: int, ends: Mapping[str, int]) -> None:
        if named.stored is not None and all(ends.get(stream, 0) <= seq for stream, seq in named.places.items()):
            named.active = now
        self._forget_retired(named, ends)

    def _must_move(self) -> bool:
        """Return whether a checkpoint is needed so that retention may delete the segment of the last one."""
        try:
            return bool(self.entries) and self.journal.keeper.is_sealed(STREAM, self.stream.checkpoint)
        except JournalCorrupt:
            return False  # Retention logs the damage.

    def _forget_retired(self, named: Named, ends: Mapping[str, int]) -> None:
        """Forget the positions of *named* in streams that do not exist any more.

        If such a stream is created again, all of its records are new to the subscription.
        """
        gone = {stream for stream in named.members or () if stream not in ends and not self.exists(stream)}
        if gone and named.members is not None:
            named.members -= gone
            named.full = False
            self._count(named)
            named.wanted = named.wanted and named.wanted.without(gone)
            named.stored = named.stored and named.stored.without(gone)

    def _everything(self) -> list[bytes]:
        """Return the payload of a checkpoint: the positions of all subscriptions as they were appended last."""
        every = {named.name: named.appended for named in self.entries.values() if named.appended is not None}
        return [positions.pack(every, None)]
