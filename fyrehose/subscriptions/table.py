"""All subscriptions of a server: their names, streams, room, and their state in the journal.

create, rewind, acknowledge, settle ... -> a draft -> append -> a record in the stream ``.subscriptions``, in one batch
with what belongs to it -> accepted: memory changes -> durable: the answer

A subscription of a pattern gets each stream that matches, also those that are created later.  An index finds the
patterns that match a new stream, and a counter tells whether there is room for it, so that a new stream costs little.
Retention keeps the records that subscriptions have not acknowledged, see :meth:`SubscriptionTable.unread`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import attrs
from twisted.internet.defer import Deferred, fail, inlineCallbacks
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from fyrehose.broker.quotas import PLACE, NamedRoom
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
from fyrehose.net.turns import SteppedWork, Turns
from fyrehose.patterns import Pattern, PatternIndex
from fyrehose.periodic import Checks
from fyrehose.records import Run
from fyrehose.spans import NumberSet
from fyrehose.subscriptions import letters, progress
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

_first_seq: Callable[[Run], int] = attrgetter("first_seq")
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
    :ivar by_stream: the shared subscriptions of each stream
    :ivar most_redriven: how many dead letters one redrive publishes again at most
    :ivar now: the time of records, in microseconds since 1970 UTC
    :ivar turns: gives the checks, and what a request has left, their turns
    """

    clock: IReactorTime
    journal: IJournal
    publish: PublishBatch
    room: NamedRoom
    admit: Callable[[Creator, Run], list[str]] = attrs.field(kw_only=True)
    forget_streams: Callable[[Sequence[str]], None] = attrs.field(kw_only=True)
    streams: Callable[[], Collection[str]] = attrs.field(kw_only=True)
    most_redriven: int = attrs.field(default=MOST_REDRIVEN, kw_only=True)
    now: Callable[[], int] = attrs.field(kw_only=True)
    turns: Turns = attrs.field(kw_only=True)
    entries: dict[str, NamedSubscription] = attrs.field(factory=dict, init=False)
    stream: StateStream = attrs.field(init=False)
    lags: SubscriptionLags = attrs.field(init=False)
    reader: RunReader = attrs.field(init=False)
    by_stream: dict[str, list[SharedSubscription]] = attrs.field(factory=dict, init=False)
    _saved: SavedSubscriptions = attrs.field(factory=SavedSubscriptions, init=False)
    _patterns: PatternIndex[NamedSubscription] = attrs.field(factory=PatternIndex, init=False)
    _checks: Checks = attrs.field(init=False)
    #: what the log says already, by subscription, so that it says each thing once
    _said: dict[str, str] = attrs.field(factory=dict, init=False)
    #: in which second the log said something last, by network, of the networks that have subscriptions
    _said_in: dict[str, int] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.reader = RunReader(self.journal)
        self.lags = SubscriptionLags(self.journal, lambda: self.now())
        self._checks = Checks(self.clock, self._check, CHECK, "subscriptions", self.turns)
        self.stream = StateStream(
            STREAM,
            SOURCE,
            self._saved,
            self.journal.read,
            self.journal.bounds,
            lambda runs: self.publish((), runs),
            everything=self._everything,
            end=lambda begin: progress.pack("", begin, {}),
            content_type="application/json",
            turns=self.turns,
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
            for _ in self._add_streams(self._add(name, saved)):
                pass
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
        standing = self.journal.standing
        if standing.refusal is not None and standing.elsewhere:  # two calls fewer for a record of a worker
            raise standing.refusal
        found = self.entries.get(name)
        if found is None:
            raise NoSuchSubscription(f"there is no subscription {name[:80]!r}")
        return found

    @inlineCallbacks
    def create(
        self, name: str, options: SubscriptionOptions, begin: Callable[[str], int] = lambda stream: 0
    ) -> Steps[NamedSubscription]:
        """Create the subscription *name*, unless it exists with the same options.

        :param begin: returns the number behind which it begins in a stream
        :return: a Deferred that fires when the subscription is durable, and has its streams; fails with a
            SubscriptionError or a PublishError
        """
        present, network = self._present(name, options), options.creator.network
        if present is None:
            self._check_name(name)
            streams = yield SteppedWork(self.turns, self._beginnings(options, begin), network).begin()
            present = self._present(name, options)
        if present is not None:
            yield present.when_added()
            yield present.when_durable()
            return present
        self.room.check(name, network, 1, _memory(options, len(streams) * options.pattern))
        # Begin above the epochs of an earlier subscription of this name: each epoch took a record of this stream.
        epoch = self.journal.bounds(STREAM)[1] + (0 if options.shared else 1)
        redriven = 0 if options.dead is None else self.journal.bounds(options.dead)[1]
        floors = {stream: each.reach for stream, each in streams.items()}
        fields = {"set": attrs.asdict(options), "floors": floors, "epoch": epoch, "redriven": redriven}
        written = self._change(name, fields)
        if refusal_of(written) is not None:
            yield written
        created = self._add(name, SavedSubscription(options, epoch, streams=streams, redriven=redriven), new=True)
        created.appended += 1
        written.addCallback(lambda _: created.one_durable())
        created.added = SteppedWork(self.turns, self._add_streams(created), network).begin()
        yield created.added
        yield written
        return created

    def _present(self, name: str, options: SubscriptionOptions) -> NamedSubscription | None:
        """Return the subscription *name* if it exists.

        :raises SubscriptionConflict: it exists with other options
        """
        try:
            present = self.find(name)
        except NoSuchSubscription:
            return None
        if not present.options.shared and options.shared:
            raise SubscriptionConflict(f"subscription {name!r} exists and is exclusive")
        if present.options != options:
            raise SubscriptionConflict(
                f"subscription {name!r} exists with other options; delete it, or use another name"
            )
        return present

    def _beginnings(
        self, options: SubscriptionOptions, begin: Callable[[str], int]
    ) -> Generator[None, None, dict[str, StreamProgress]]:
        """Return, in steps, the progress with which a new subscription begins in each of its streams."""
        streams, pattern = dict[str, StreamProgress](), Pattern(options.stream) if options.pattern else None
        for stream in (options.stream,) if pattern is None else list(self.journal.ends()):
            if pattern is None or options.takes(pattern, stream):
                seq = begin(stream)
                streams[stream] = StreamProgress(NumberSet(seq), seq)
            yield
        return streams

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
        subscription.memory = _memory(options)
        self.room.count(subscription.network, 1, 0, subscription.memory)
        if subscription.pattern is None:
            subscription.add_stream(options.stream, saved.progress(options.stream))
        else:
            self._patterns.add(subscription.pattern, subscription)
        self._checks.start()
        return subscription

    def _add_streams(self, subscription: NamedSubscription) -> Iterator[None]:
        """Add the streams that the pattern of *subscription* matches, and those in which it has a position, in steps.

        What has no room is counted, with the memory of its position.
        """
        pattern, saved = subscription.pattern, subscription.saved
        if pattern is None:
            return
        subscription.left_out = 0
        for stream in dict.fromkeys((*saved.streams, *self.streams())):
            yield
            if subscription.gone:
                return
            if pattern.covers(stream) and self._add_stream(subscription, stream, self.room.left(subscription.network)):
                self.room.count(subscription.network, 0, 1)
        memory = _memory(saved.options, len(saved.streams.keys() - subscription.tracks.keys()))
        self.room.count(subscription.network, 0, 0, memory - subscription.memory)
        subscription.memory = memory

    def _add_stream(self, subscription: NamedSubscription, stream: str, left: float, begin: int = 0) -> bool:
        """Add *stream*, which the pattern of *subscription* matches, if it is to be added, and return whether it was.

        :param left: for how many streams there is room; one in which the subscription has some progress needs none
        :param begin: the number behind which the subscription begins without any progress
        """
        if stream in subscription.tracks or not subscription.options.may_have(stream):
            return False
        saved = subscription.saved.streams.get(stream)
        if left < 1 and not (saved is not None and saved.begun):
            subscription.left_out += 1
            return False
        if saved is None and begin:  # No record has the numbers before, so none expires, and none is missed.
            subscription.saved.streams[stream] = StreamProgress(NumberSet(begin), begin, unwritten=True)
        subscription.add_stream(stream, subscription.saved.progress(stream))
        return True

    def stream_created(self, stream: str) -> None:
        """Add *stream* to the subscriptions whose patterns match it, beginning with its first record.

        A stream that was retired before goes on with its numbers.
        """
        begin = self.journal.bounds(stream)[1]
        networks: dict[str, list[NamedSubscription]] = {}
        for subscription in self._patterns.covering(stream):
            networks.setdefault(subscription.network, []).append(subscription)
        for network, found in networks.items():
            left, added = self.room.left(network), 0
            for subscription in found:
                added += self._add_stream(subscription, stream, left - added, begin)
            self.room.count(network, 0, added)

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
            streams = 0
            if subscription.pattern is not None:
                self._patterns.remove(subscription.pattern, subscription)
                streams = len(subscription.tracks)
            for stream in list(subscription.tracks) if isinstance(subscription, SharedSubscription) else ():
                subscription.remove_stream(stream)
            self.room.count(subscription.network, -1, -streams, -subscription.memory)
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
        answer: Any = None,
    ) -> Deferred[Any]:
        """Append *draft* and the messages *runs* in one batch; memory changes when the journal has accepted it.

        :return: a Deferred that fires with *answer* when that is durable
        """
        head, payloads = draft.head(), list[bytes]()
        try:
            for track, change in draft.changes.items():
                fields = {**head, "stream": track.stream, **change.fields()}
                payloads.append(progress.pack(subscription.name, self.stream.checkpoint, fields))
            if not payloads:
                payloads.append(progress.pack(subscription.name, self.stream.checkpoint, head))
        except ValueError as error:
            return fail(InvalidRun(f"a text of the request cannot be stored: {error}"))
        own = letters.joined(draft.letters) if draft.letters else ()
        written = (publish or self.publish)(runs, [*own, self.stream.draft(*payloads)])
        if refusal_of(written) is not None:
            self.forget_streams(draft.created)
            return written
        subscription.accept(draft)
        return written.addCallback(subscription.settle, draft, answer)

    def say(self, subscription: NamedSubscription, what: str, **details: object) -> None:
        """Log *what* happens to a subscription, once until something else happens to it.

        A network has at most one such line in a second.  What is left out is logged when it happens again.
        """
        second, network = int(self.clock.seconds()), subscription.network
        if self._said.get(subscription.name) != what and not (network and self._said_in.get(network) == second):
            if len(self._said_in) == MOST_NAMED:
                self._said_in.clear()
            self._said[subscription.name], self._said_in[network] = what, second
            log.warn("subscription {name!r} " + what, name=subscription.name, **details)

    def _everything(self) -> Iterator[bytes]:
        for each in list(self.entries.values()):
            for payload in () if each.gone else progress.pack_whole(each.name, self.stream.checkpoint, each.saved):
                if each.gone:
                    break
                yield payload

    # Called by the broker.

    def durable(self, ends: Mapping[str, int]) -> None:
        """Wake the requests that wait for records of these streams."""
        waking: list[SharedSubscription] = []
        for stream, last in ends.items():
            for shared in self.by_stream.get(stream, ()):
                if shared.arrived(stream, last):
                    waking.append(shared)
        for shared in waking[:-1]:
            self.turns.add(shared, shared.network)
        if waking:
            self.turns.run(waking[-1], waking[-1].network)

    def unread(self) -> Iterator[Unread]:
        """Yield the records that retention keeps for subscriptions, and for the recovery of their state.

        Subscriptions may be created and deleted meanwhile.
        """
        if self.entries:
            yield Unread("", STREAM, max(0, self.stream.checkpoint - 1), self.now(), pinned=True)
        for each in list(self.entries.values()):
            for stream, floor in () if each.gone else each.places.items():
                yield Unread(each.name, stream, floor, each.active)

    def _check(self) -> Iterator[None]:
        self.reader.forget()
        self.lags.begin()
        for subscription in list(self.entries.values()):
            if not self.journal.standing.may_write:
                return
            if subscription.left_out and self.room.left(subscription.network) > 0:
                yield from self._add_streams(subscription)
            if not subscription.gone:
                self._checks.isolation.call(f"subscription {subscription.name!r}", self._check_one, subscription)
                yield
        if self.journal.standing.may_write:
            self.stream.maintain(self._must_move())

    def _check_one(self, subscription: NamedSubscription) -> None:
        if subscription.left_out:
            self.say(
                subscription,
                "leaves out {count} streams until others leave room: see the option server.named-subscriptions",
                count=subscription.left_out,
            )
        ends = self.journal.ends()
        subscription.check(ends)
        self.lags.look(subscription, ends)

    def _must_move(self) -> bool:
        """Return whether a checkpoint is needed so that retention may delete the segments of the last one.

        Its last record counts: a checkpoint may begin in one segment and end in the next.
        """
        try:
            return bool(self.entries) and self.journal.keeper.is_sealed(STREAM, self.stream.checkpoint_end)
        except JournalCorrupt:
            return False  # Retention logs the damage.


def _memory(options: SubscriptionOptions, positions: int = 0) -> int:
    """Return how much memory a subscription may take for its leases, in bytes.

    :param positions: how many streams that have no room it has positions in, from its creation
    """
    return PLACE * positions + (ENTRY_BYTES * options.window if options.shared else 0)


@attrs.define
class RunReader:
    """A reader of single records, which keeps the runs of its last read, because they often have the next records."""

    journal: IJournal
    _stream: str = ""
    _runs: tuple[Run, ...] = ()
    _end: int = 0  #: the last number of the stream before the runs were read

    def holding(self, stream: str, seq: int) -> Run | None:
        """Return the run that holds record *seq*; None if the journal does not have it."""
        at = bisect_right(self._runs, seq, key=_first_seq) - 1
        if at >= 0 and stream == self._stream and seq <= self._runs[at].last_seq:
            return self._runs[at]
        self._stream, self._end = stream, self.journal.bounds(stream)[1]
        self._runs = self.journal.read(stream, seq, READ_BYTES)
        return self._runs[0] if self._runs and self._runs[0].first_seq <= seq else None

    def following(self, stream: str, seq: int) -> tuple[Run, ...]:
        """Return the kept runs from the one that holds record *seq* on; none if the journal lacks that record."""
        if seq < self.journal.bounds(stream)[0]:
            self.forget()  # It was deleted since it was read.
        if self.holding(stream, seq) is None:
            return ()
        return self._runs[bisect_right(self._runs, seq, key=_first_seq) - 1 :]

    def behind(self, seq: int) -> int:
        """Return the first number after the missing record *seq* whose record exists, or may still be written."""
        later = (max(seq + 1, run.first_seq) for run in self._runs if run.last_seq > seq)
        return min(later, default=max(seq, self._end) + 1)

    def forget(self) -> None:
        """Drop the runs that were read, to free their memory."""
        self._stream, self._runs = "", ()
