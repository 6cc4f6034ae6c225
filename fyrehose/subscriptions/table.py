"""All subscriptions of a server: their names, streams, room, and their state in the journal.

create, rewind, acknowledge, settle ... -> a draft -> append -> a record in the stream ``.subscriptions``, in one batch
with what belongs to it -> accepted: memory changes -> durable: the answer

A subscription of a pattern gets each stream that matches, also those that are created later.  An index finds the
patterns that match a new stream, and a counter tells whether there is room for it, so that a new stream costs little.
Retention keeps the records that subscriptions have not acknowledged, see :meth:`SubscriptionTable.unread`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred, fail, inlineCallbacks
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from fyrehose.broker.quotas import NamedRoom
from fyrehose.broker.state_stream import StateStream, Steps
from fyrehose.errors import (
    FyrehoseError,
    InvalidRun,
    JournalCorrupt,
    NoSuchSubscription,
    SubscriptionConflict,
    SubscriptionError,
    SubscriptionGone,
    SubscriptionInUse,
)
from fyrehose.interfaces import IJournal, Unread
from fyrehose.patterns import PatternIndex
from fyrehose.periodic import Checks
from fyrehose.records import Run
from fyrehose.spans import NumberSet
from fyrehose.subscriptions import progress
from fyrehose.subscriptions.exclusive import ExclusiveSubscription
from fyrehose.subscriptions.lags import SubscriptionLags
from fyrehose.subscriptions.lane import Draft
from fyrehose.subscriptions.progress import (
    SOURCE,
    STREAM,
    Creator,
    SavedSubscription,
    SavedSubscriptions,
    StreamProgress,
    SubscriptionOptions,
)
from fyrehose.subscriptions.shared import SharedSubscription
from fyrehose.subscriptions.subscription import NamedSubscription, PublishBatch, refusal_of

log = Logger()

#: The largest valid ``named-subscriptions``.
MOST_NAMED = 10_000
#: Seconds between two checks for leases that have ended, deleted records, lags, and whether a checkpoint is due.
CHECK = 0.5
#: Memory that a shared subscription is charged for each record of its window, in bytes.
ENTRY_BYTES = 256
#: Size of one read, in bytes.
READ_BYTES = 256 << 10
#: The largest number of dead letters that one request publishes again.
MOST_REDRIVEN = 1_000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@attrs.define(eq=False)
class SubscriptionTable:
    """All subscriptions of a server.

    :ivar publish: publishes runs, and records of the server's own, in one batch
    :ivar room: counts subscriptions, the streams of patterns, and their memory, by creator
    :ivar admit: checks that the creator of a subscription may publish a dead letter; returns the streams that this
        creates, and raises the error if it may not
    :ivar forget_streams: forgets such streams, because the dead letters are refused
    :ivar streams: returns the streams that exist or are being created
    :ivar most_redriven: how many dead letters one redrive publishes again at most
    :ivar now: the time of records, in microseconds since 1970 UTC
    """

    clock: IReactorTime
    journal: IJournal
    publish: PublishBatch
    room: NamedRoom
    admit: Callable[[Creator, Run], list[str]] = attrs.field(default=lambda creator, run: [], kw_only=True)
    forget_streams: Callable[[Sequence[str]], None] = attrs.field(default=lambda streams: None, kw_only=True)
    streams: Callable[[], Collection[str]] = attrs.field(kw_only=True)
    most_redriven: int = attrs.field(default=MOST_REDRIVEN, kw_only=True)
    now: Callable[[], int] = attrs.field(default=lambda: time.time_ns() // 1000, kw_only=True)
    entries: dict[str, NamedSubscription] = attrs.field(factory=dict, init=False)
    stream: StateStream = attrs.field(init=False)
    lags: SubscriptionLags = attrs.field(init=False)
    reader: RunReader = attrs.field(init=False)
    _saved: SavedSubscriptions = attrs.field(factory=SavedSubscriptions, init=False)
    _by_stream: dict[str, list[SharedSubscription]] = attrs.field(factory=dict, init=False)
    _patterns: PatternIndex[NamedSubscription] = attrs.field(factory=PatternIndex, init=False)
    _checks: Checks = attrs.field(init=False)
    #: what the log says already, by subscription, so that it says each thing once
    _said: dict[str, str] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.reader = RunReader(self.journal)
        self.lags = SubscriptionLags(self.journal, lambda: self.now())
        self._checks = Checks(self.clock, self._check, CHECK, "subscriptions")
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
        for subscription in list(self.entries.values()):
            self._forget(subscription, SubscriptionInUse("another server has led until now; ask again"))
        found = self.stream.open()
        for name, saved in self._saved.entries.items():
            self._add(name, saved)
        if found.missing:
            log.warn(
                "{count} records are missing in stream {stream}: subscriptions may have fallen back, and those that "
                "are missing begin again when their consumers come back",
                count=found.missing,
                stream=STREAM,
            )
        if self.entries:
            log.info("recovered {count} subscriptions", count=len(self.entries))

    def close(self) -> None:
        """Stop the periodic checks, answer the requests that wait, and write what the next start needs."""
        self._checks.stop()
        for subscription in self.entries.values():
            subscription.stop()

    # Subscriptions.

    def find(self, name: str) -> NamedSubscription:
        """Return the subscription *name*.

        :raises NoSuchSubscription: there is none
        :raises Following: another server leads, and only that one knows which subscriptions exist
        :raises Unreplicated: another server may lead
        """
        self._check_leading()
        found = self.entries.get(name)
        if found is None:
            raise NoSuchSubscription(f"there is no subscription {name[:80]!r}")
        return found

    def _check_leading(self) -> None:
        standing = self.journal.standing
        if standing.elsewhere:
            standing.check_writable()

    @inlineCallbacks
    def create(self, name: str, options: SubscriptionOptions, floors: Mapping[str, int]) -> Steps[NamedSubscription]:
        """Create the subscription *name*, unless it exists with the same options.

        :param floors: by stream, the number behind which it begins
        :return: a Deferred that fires when the subscription is durable; fails with a SubscriptionError or a
            PublishError
        """
        self._check_leading()
        present = self.entries.get(name)
        if present is not None:
            if not present.options.shared and options.shared:
                raise SubscriptionConflict(f"subscription {name!r} exists and is exclusive")
            if present.options != options:
                raise SubscriptionConflict(
                    f"subscription {name!r} exists with other options; delete it, or use another name"
                )
            yield present.when_durable()
            return present
        self._check_name(name)
        self.room.check(name, options.creator.network, 1, _memory(options))
        # Begin above the epochs of an earlier subscription of this name: each epoch took a record of this stream.
        epoch = self.journal.bounds(STREAM)[1] + (0 if options.shared else 1)
        redriven = 0 if options.dead is None else self.journal.bounds(options.dead)[1]
        fields = {"set": attrs.asdict(options), "floors": dict(floors), "epoch": epoch, "redriven": redriven}
        streams = {stream: StreamProgress(NumberSet(seq), seq) for stream, seq in floors.items()}
        saved = SavedSubscription(options, epoch, streams=streams, redriven=redriven)
        written = self._change(name, fields)
        if refusal_of(written) is not None:
            yield written
        created = self._add(name, saved, new=True)
        created.appended += 1
        yield written.addCallback(lambda _: created.one_durable())
        return created

    def _check_name(self, name: str) -> None:
        if not _NAME.fullmatch(name) or name.endswith(".new"):
            raise SubscriptionError(
                f"invalid name of a subscription: {name[:80]!r}; use 1 to 64 letters, digits, '_', '.' and '-', the "
                "first a letter or a digit, and no '.new' at the end"
            )
        if name in {each.name for each in self.journal.keeper.subscriptions()}:
            raise SubscriptionInUse(f"a program that reads the journal's files has registered the name {name!r}")

    def _add(self, name: str, saved: SavedSubscription, new: bool = False) -> NamedSubscription:
        options, now = saved.options, self.now()
        added = SharedSubscription(self, name, saved, now, new) if options.shared else None
        subscription = added or ExclusiveSubscription(self, name, saved, now)
        self.entries[name] = subscription
        self.count(subscription)
        if subscription.pattern is None:
            self._add_stream(subscription, options.stream)
        else:
            self._patterns.add(subscription.pattern, subscription)
            for stream in filter(subscription.pattern.covers, [*saved.streams, *self.streams()]):
                self._found_stream(subscription, stream)
        self._checks.start()
        return subscription

    def count(self, subscription: NamedSubscription) -> None:
        """Count the subscription, its streams and its memory for its creator."""
        options = subscription.options
        places = len(subscription.tracks) + 1 if options.pattern else 1
        self.room.count(subscription, options.creator.network, places, _memory(options))

    def _found_stream(self, subscription: NamedSubscription, stream: str) -> None:
        """Add *stream*, which matches the pattern, if there is room for it or it has some progress."""
        options = subscription.options
        if stream in subscription.tracks or not options.may_have(stream):
            return
        known = subscription.saved.streams.get(stream)
        if (known is None or not known.begun) and not self.room.has(options.creator.network, 1):
            subscription.left_out.add(stream)
            self.say(
                subscription,
                "leaves out stream {stream!r}, and perhaps others, until others leave room: see the option "
                "server.named-subscriptions",
                stream=stream,
            )
            return
        subscription.left_out.discard(stream)
        self._add_stream(subscription, stream)
        self.count(subscription)

    def _add_stream(self, subscription: NamedSubscription, stream: str) -> None:
        subscription.add_stream(stream, subscription.saved.progress(stream))
        if isinstance(subscription, SharedSubscription):
            self._by_stream.setdefault(stream, []).append(subscription)

    def stream_created(self, stream: str) -> None:
        """Add *stream* to the subscriptions whose patterns match it, beginning with its first record."""
        for subscription in list(self._patterns.covering(stream)):
            self._found_stream(subscription, stream)

    def delete(self, subscription: NamedSubscription) -> Deferred[None]:
        """Delete *subscription*; the Deferred fires when the deletion is durable."""
        reason = SubscriptionGone(f"subscription {subscription.name!r} was deleted")
        if subscription.gone:
            return fail(reason)
        written = self._change(subscription.name, {"set": None})
        if refusal_of(written) is None:
            subscription.appended += 1
            self._forget(subscription, reason)
            written.addCallback(lambda _: subscription.one_durable())
        return written

    def _forget(self, subscription: NamedSubscription, reason: FyrehoseError) -> None:
        if self.entries.get(subscription.name) is subscription:
            del self.entries[subscription.name]
            self._said.pop(subscription.name, None)
            self.room.forget(subscription)
            if isinstance(subscription, SharedSubscription):
                for stream in subscription.tracks:
                    self._by_stream[stream].remove(subscription)
                    if not self._by_stream[stream]:
                        del self._by_stream[stream]
            if subscription.pattern is not None:
                self._patterns.remove(subscription.pattern, subscription)
        subscription.gone = True
        subscription.end(reason)

    # Writing.

    def _change(self, name: str, fields: Mapping[str, object]) -> Deferred[Any]:
        """Append the creation or deletion of a subscription."""
        return self.publish((), [self.stream.draft(progress.pack(name, self.stream.checkpoint, fields))])

    def append_by_itself(self, subscription: NamedSubscription, draft: Draft) -> BaseException | None:
        """Append a draft that no request waits for; return why it was refused, or None."""
        written = self.append(subscription, draft)
        refusal = refusal_of(written)
        written.addErrback(lambda failure: None)
        if refusal is not None:
            self.say(subscription, "cannot write its state, and tries again: {why}", why=str(refusal))
        elif self._said.get(subscription.name, "").startswith("cannot write"):
            del self._said[subscription.name]
        return refusal

    def append(
        self,
        subscription: NamedSubscription,
        draft: Draft,
        runs: Sequence[Run] = (),
        publish: PublishBatch | None = None,
    ) -> Deferred[Any]:
        """Append *draft* and the messages *runs* in one batch; memory changes when the journal has accepted it."""
        head = draft.head()
        places = [{"stream": track.stream, **change.fields()} for track, change in draft.changes.items()] or [{}]
        try:
            payloads = [progress.pack(subscription.name, self.stream.checkpoint, {**head, **each}) for each in places]
        except ValueError as error:
            return fail(InvalidRun(f"a text of the request cannot be stored: {error}"))
        written = (publish or self.publish)(runs, [*draft.letters, self.stream.draft(*payloads)])
        if refusal_of(written) is not None:
            self.forget_streams(draft.created)
            return written
        subscription.accept(draft)

        def durable(result: Any) -> Any:
            subscription.settle(draft)
            return result

        return written.addCallback(durable)

    def say(self, subscription: NamedSubscription, what: str, **details: object) -> None:
        """Log *what* happens to a subscription, once until something else happens to it."""
        if self._said.get(subscription.name) != what:
            self._said[subscription.name] = what
            log.warn("subscription {name!r} " + what, name=subscription.name, **details)

    def _everything(self) -> list[bytes]:
        return progress.pack_checkpoint({name: each.saved for name, each in self.entries.items()})

    # Called by the broker.

    def durable(self, ends: Mapping[str, int]) -> None:
        """Wake the requests that wait for records of these streams."""
        for stream in ends:
            for shared in self._by_stream.get(stream, ()):
                shared.arrived(stream)

    def unread(self) -> list[Unread]:
        """Return the records that retention keeps for subscriptions, and for the recovery of their state."""
        found = [
            Unread(each.name, stream, floor, each.active)
            for each in self.entries.values()
            for stream, floor in each.places.items()
        ]
        if self.entries:
            found.append(Unread("", STREAM, max(0, self.stream.checkpoint - 1), self.now(), pinned=True))
        return found

    def _check(self) -> None:
        self.reader.forget()
        self.lags.look(self.entries.values())
        if not self.journal.standing.may_write:
            return
        ends = self.journal.ends()
        for name, subscription in list(self.entries.items()):
            self._checks.isolation.call(f"subscription {name!r}", self._check_one, subscription, ends)
        self.stream.maintain(self._must_move())

    def _check_one(self, subscription: NamedSubscription, ends: Mapping[str, int]) -> None:
        for stream in list(subscription.left_out):
            if self.room.has(subscription.options.creator.network, 1):
                self._found_stream(subscription, stream)
        subscription.check(ends)

    def _must_move(self) -> bool:
        """Return whether a checkpoint is needed so that retention may delete the segment of the last one."""
        try:
            return bool(self.entries) and self.journal.keeper.is_sealed(STREAM, self.stream.checkpoint)
        except JournalCorrupt:
            return False  # Retention logs the damage.


def _memory(options: SubscriptionOptions) -> int:
    """Return how much memory the leases of a subscription may take, in bytes."""
    return ENTRY_BYTES * options.window if options.shared else 0


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
