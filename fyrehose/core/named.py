"""Named subscriptions: positions in streams that the server keeps for consumers.

    acknowledge, rewind, delete -> a record in the stream ``.subscriptions`` -> durable -> the Deferred fires

A position moves when that is durable, and not before.  While one change of a subscription is being written, later
ones wait and are written together.  Retention keeps what subscriptions have not acknowledged, see :meth:`unread`.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.core import positions
from fyrehose.core.budget import Budget
from fyrehose.core.positions import STREAM, Position
from fyrehose.errors import (
    FyrehoseError,
    InvalidPosition,
    JournalCorrupt,
    NoSuchSubscription,
    PublishError,
    SubscriptionError,
    SubscriptionInUse,
    TooManyNamedSubscriptions,
)
from fyrehose.interfaces import FileHold, IJournal, JournalState, Unread
from fyrehose.records import Run

log = Logger()

#: The largest valid ``named-subscriptions``: a checkpoint with all of them is one record.
MOST_NAMED = 10_000
#: The charge of one named subscription to the memory budget, in bytes.
ENTRY = 2 << 10
#: Seconds between two looks at checkpoints and lags, and the subscriptions whose lag in seconds is found in one look.
CHECK, LOOKS = 1.0, 20
#: A checkpoint is written when the records behind the last one exceed this many bytes, and four times its own size.
CHECKPOINT = 256 << 10

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Consumer(Protocol):
    """The connection that a subscription delivers to at present."""

    def displaced(self, reason: SubscriptionError) -> None:
        """Stop consuming, because the subscription was rewound or deleted, or another consumer has taken it over."""


@attrs.define(eq=False)
class Named:
    """A named subscription.

    :ivar stored: its durable state; None: it is being created
    :ivar wanted: its state when everything is written that waits; None: it is being deleted
    :ivar appended: the state that was passed to the journal last
    :ivar consumer: the present consumer; None: there is none
    :ivar active: when a consumer last used it or had nothing left to read, in microseconds since 1970 UTC
    """

    name: str
    wanted: Position | None
    stored: Position | None = None
    appended: Position | None = None
    consumer: Consumer | None = None
    active: int = 0
    #: number and time of the oldest record that is not acknowledged, when it was last looked up
    oldest: tuple[int, int] = (0, 0)
    writing: bool = False
    #: whether the memory budget was charged for it
    charged: bool = False
    waiting: list[Deferred[None]] = attrs.field(factory=list)

    @property
    def state(self) -> Position:
        """Return the durable state.

        :raises NoSuchSubscription: the subscription was deleted
        """
        if self.stored is None:
            raise NoSuchSubscription(f"subscription {self.name!r} was deleted")
        return self.stored


@attrs.define(eq=False)
class NamedSubscriptions:
    """All named subscriptions of a server.

    :ivar publish: publishes records of the server's own
    :ivar most: the most subscriptions; one network may create half of them
    :ivar now: the wall clock, in microseconds since 1970 UTC
    """

    clock: IReactorTime
    journal: IJournal
    publish: Callable[[Sequence[Run]], Deferred[Any]]
    budget: Budget
    most: int = 1_000
    now: Callable[[], int] = attrs.field(default=lambda: time.time_ns() // 1000, kw_only=True)
    entries: dict[str, Named] = attrs.field(factory=dict, init=False)
    _checkpoint: int = attrs.field(default=0, init=False)
    _checkpoint_size: int = attrs.field(default=0, init=False)
    _bytes_since: int = attrs.field(default=0, init=False)
    _checkpointing: bool = attrs.field(default=False, init=False)
    _loop: LoopingCall | None = attrs.field(default=None, init=False)
    _next_look: int = attrs.field(default=0, init=False)

    # Opening and closing.

    def open(self) -> None:
        """Recover the subscriptions from the journal, which is open; those that are known are forgotten.

        :raises JournalCorrupt: their records cannot be read
        """
        for named in list(self.entries.values()):
            self._displace(named, SubscriptionInUse("another server has led until now; ask again"))
            self._forget(named)
        try:
            found = positions.recover(self.journal.read, self.journal.bounds(STREAM))
        except ValueError as damage:
            raise JournalCorrupt(f"the positions of named subscriptions cannot be read: {damage}") from damage
        now = self.now()
        for name, position in found.positions.items():
            self.entries[name] = Named(name, position, position, position, active=now, charged=self.budget.keep(ENTRY))
        self._checkpoint = found.checkpoint
        if found.missing:
            log.warn(
                "{count} records are missing in stream {stream}: named subscriptions may have fallen back, and "
                "subscriptions that are missing begin again when their consumers come back",
                count=found.missing,
                stream=STREAM,
            )
        if self.entries:
            log.info("recovered {count} named subscriptions", count=len(self.entries))
            self._start()

    def close(self) -> None:
        """Stop the periodic checks."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.stop()

    def _start(self) -> None:
        if self._loop is None:
            self._loop = LoopingCall(self._check)
            self._loop.clock = self.clock
            self._loop.start(CHECK, now=False).addErrback(
                lambda f: log.failure("the check of named subscriptions failed", f)
            )

    # Subscriptions.

    def find(self, name: str) -> Named:
        """Return the subscription *name*.

        :raises NoSuchSubscription: there is none
        """
        named = self.entries.get(name)
        if named is None or named.stored is None or named.wanted is None:
            raise NoSuchSubscription(f"there is no subscription {name[:80]!r}")
        return named

    def create(self, name: str, stream: str, after: int, creator: str) -> Deferred[Named]:
        """Create the subscription *name* of *stream* behind number *after*.

        :param creator: the network of the peer, which may create half of all subscriptions; empty: the server
        :return: fires when it is durable; fails with a SubscriptionError or a PublishError
        """
        try:
            self._check_new(name, creator)
        except FyrehoseError as refusal:
            return fail(refusal)
        position = Position(stream=stream, seq=after, creator=creator, time=self.now())
        named = self.entries.get(name)
        if named is None:
            named = self.entries[name] = Named(name, position, charged=self.budget.keep(ENTRY))
        elif named.wanted is None:  # It is being deleted.
            named.wanted = position
        named.active = self.now()
        self._start()
        return self._store(named).addCallback(lambda _: named)

    def _check_new(self, name: str, creator: str) -> None:
        if not _NAME.fullmatch(name) or name.endswith(".new"):
            raise SubscriptionError(
                f"invalid name of a subscription: {name[:80]!r}; use 1 to 64 letters, digits, '_', '.' and '-', the "
                "first a letter or a digit, and no '.new' at the end"
            )
        if name in {hold.name for hold in self.journal.keeper.holds()}:
            raise SubscriptionInUse(f"a program that reads the journal's files has registered the name {name!r}")
        created = Counter(named.wanted.creator for named in self.entries.values() if named.wanted is not None)
        if len(self.entries) >= self.most or (creator and 2 * created[creator] >= self.most):
            raise TooManyNamedSubscriptions(
                f"subscription {name!r} cannot be created: the server has {len(self.entries)}, {created[creator]} of "
                f"them by {creator or 'itself'}; the limit is {self.most}, half of that for one address; delete some, "
                "or raise server.named-subscriptions"
            )
        if 2 * (self.budget.kept + ENTRY) > self.budget.limit:
            raise TooManyNamedSubscriptions(
                "the memory budget has no room for another subscription; raise server.memory"
            )

    def settled(self, named: Named) -> Deferred[None]:
        """Return a Deferred that fires when no change of *named* is being written."""
        return self._store(named) if named.writing else succeed(None)

    def attach(self, named: Named, consumer: Consumer, owner: str = "", takeover: bool = False) -> Position:
        """Make *consumer* the consumer of *named*, and return where it begins.

        :param owner: name of a consumer that outlives its connections; the same owner may always continue
        :param takeover: displace the present consumer
        :raises SubscriptionInUse: another consumer is connected
        """
        position = named.wanted or named.state
        present = named.consumer
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

    def owner(self, named: Named) -> str:
        """Return the consumer that may continue without taking over; empty if there is none."""
        return "" if named.wanted is None else named.wanted.owner

    def detach(self, named: Named, consumer: Consumer) -> None:
        """Record that *consumer* has disconnected."""
        if named.consumer is consumer:
            named.consumer = None

    def acknowledge(self, named: Named, seq: int, generation: int | None = None) -> Deferred[Position]:
        """Move the position forward to *seq*; a number that was acknowledged already changes nothing.

        :param generation: the generation that the consumer knows; None: any
        :return: fires with the durable state; fails with InvalidPosition or a PublishError
        """
        wanted = named.wanted
        if wanted is None:
            return fail(NoSuchSubscription(f"subscription {named.name!r} was deleted"))
        last = self.journal.bounds(wanted.stream)[1]
        if generation is not None and generation != wanted.generation:
            return fail(
                InvalidPosition(
                    f"subscription {named.name!r} was rewound or taken over: its generation is {wanted.generation}, "
                    f"not {generation}; read again before acknowledging"
                )
            )
        if seq > last:
            return fail(
                InvalidPosition(f"number {seq} cannot be acknowledged: stream {wanted.stream!r} ends at {last}")
            )
        named.active = self.now()
        if seq > wanted.seq:
            named.wanted = attrs.evolve(wanted, seq=seq, time=self.now())
        elif not named.writing:
            return succeed(named.state)
        return self._store(named).addCallback(lambda _: named.state)

    def rewind(self, named: Named, seq: int) -> Deferred[Position]:
        """Set the position to *seq*, in either direction, and displace the consumer.

        :return: fires with the durable state; fails with InvalidPosition or a PublishError
        """
        wanted = named.wanted or named.state
        last = self.journal.bounds(wanted.stream)[1]
        if seq > last:
            return fail(InvalidPosition(f"cannot set a position to {seq}: stream {wanted.stream!r} ends at {last}"))
        self._displace(named, SubscriptionInUse(f"subscription {named.name!r} was rewound"))
        generation = wanted.generation + 1
        named.wanted = attrs.evolve(
            wanted, seq=seq, generation=generation, rewinds=wanted.rewinds + 1, owner="", time=self.now()
        )
        return self._store(named).addCallback(lambda _: named.state)

    def delete(self, named: Named) -> Deferred[None]:
        """Delete *named*, and displace its consumer.

        :return: fires when that is durable; fails with a PublishError
        """
        self._displace(named, NoSuchSubscription(f"subscription {named.name!r} was deleted"))
        named.wanted = None
        return self._store(named)

    def _displace(self, named: Named, reason: SubscriptionError) -> None:
        consumer, named.consumer = named.consumer, None
        if consumer is not None:
            consumer.displaced(reason)

    # For operators, and for retention.

    def lag(self, named: Named) -> tuple[int, float | None]:
        """Return how many records *named* has not acknowledged, and the age of the oldest of them in seconds.

        The age is None until it has been looked up; that happens for some subscriptions every second.
        """
        state = named.state
        oldest, last = self.journal.bounds(state.stream)
        records = max(0, last - max(state.seq, oldest - 1))
        if not records:
            return 0, 0.0
        return records, max(0, self.now() - named.oldest[1]) / 1e6 if named.oldest[1] else None

    def unread(self) -> list[Unread]:
        """Return the records that retention keeps for subscriptions, and for the recovery of their positions."""
        found = [
            Unread(named.name, named.stored.stream, named.stored.seq, named.active)
            for named in self.entries.values()
            if named.stored is not None
        ]
        if found:
            found.append(Unread("", STREAM, max(0, self._checkpoint - 1), self.now(), pinned=True))
        return found

    # Writing.

    def _store(self, named: Named) -> Deferred[None]:
        """Write the wanted state of *named*; a write that is under way is finished first."""
        stored: Deferred[None] = Deferred()
        named.waiting.append(stored)
        if not named.writing:
            self._write(named)
        return stored

    def _write(self, named: Named) -> None:
        named.writing = True
        wanted = named.appended = named.wanted
        waiting, named.waiting = named.waiting, []
        self._append({named.name: wanted}).addCallbacks(
            self._stored, self._not_stored, (named, wanted, waiting), errbackArgs=(named, waiting)
        )

    def _append(self, changes: Mapping[str, Position | None]) -> Deferred[Any]:
        record = positions.pack(changes, self._checkpoint)
        self._bytes_since += len(record.payload)
        return self.publish([record])

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
        for each in waiting:
            each.errback(failure)

    def _forget(self, named: Named) -> None:
        if self.entries.pop(named.name, None) is not None and named.charged:
            self.budget.forget(ENTRY)

    def _not_noted(self, failure: Failure) -> None:
        failure.trap(PublishError)
        log.warn("the consumer of a named subscription was not recorded: {why}", why=failure.getErrorMessage())

    # Periodic checks.

    def _check(self) -> None:
        now, ends = self.now(), self.journal.ends()
        for named in self.entries.values():
            if named.stored is not None and ends.get(named.stored.stream, 0) <= named.stored.seq:
                named.active = now
        self._look_up_ages()
        due = self._bytes_since > max(CHECKPOINT, 4 * self._checkpoint_size)
        if (due or self._must_move()) and not self._checkpointing and self.journal.state is JournalState.WRITABLE:
            self._write_checkpoint()

    def _must_move(self) -> bool:
        """Return whether the checkpoint pins an older segment than necessary."""
        try:
            return bool(self.entries) and self.journal.keeper.is_sealed(STREAM, self._checkpoint)
        except JournalCorrupt:
            return False  # Retention logs it.

    def _look_up_ages(self) -> None:
        """Look up the time of the oldest unacknowledged record of some subscriptions."""
        entries = list(self.entries.values())
        self._next_look %= max(1, len(entries))
        for named in islice(cycle(entries), self._next_look, self._next_look + min(LOOKS, len(entries))):
            if named.stored is None:
                continue
            first = named.stored.seq + 1
            if named.oldest[0] != first:
                try:
                    runs = self.journal.read(named.stored.stream, first, 1)
                except JournalCorrupt as damage:
                    log.warn("the lag of subscription {name} is unknown: {why}", name=named.name, why=str(damage))
                    runs = ()
                named.oldest = (first, runs[0].time) if runs else (0, 0)
        self._next_look += LOOKS

    def _write_checkpoint(self) -> None:
        self._checkpointing = True
        behind, self._bytes_since = self._bytes_since, 0
        # In the order of the log: what was appended before the checkpoint, durable or not, is in it.
        every = {named.name: named.appended for named in self.entries.values() if named.appended is not None}

        record = positions.pack(every, None)

        def durable(firsts: tuple[int, ...]) -> None:
            self._checkpointing = False
            self._checkpoint, self._checkpoint_size = firsts[0], len(record.payload)

        def refused(failure: Failure) -> None:
            self._checkpointing = False
            self._bytes_since += behind
            failure.trap(PublishError)
            log.warn("the positions of named subscriptions were not written: {why}", why=failure.getErrorMessage())

        self.publish([record]).addCallbacks(durable, refused)


def describe(table: NamedSubscriptions, named: Named) -> dict[str, object]:
    """Return the durable state of *named* as an object for JSON; times are in microseconds since 1970 UTC."""
    state = named.state
    lag, seconds = table.lag(named)
    return {
        "name": named.name,
        "kind": "stream",
        "stream": state.stream,
        "position": state.seq,
        "lag": lag,
        "lag_seconds": seconds,
        "generation": state.generation,
        "consumer": named.consumer is not None,
        "active": named.active,
    }


def described(hold: FileHold) -> dict[str, object]:
    """Return a subscription to the journal's files as an object for JSON."""
    return {"name": hold.name, "kind": "files", "behind_bytes": hold.behind, "active": hold.time}
