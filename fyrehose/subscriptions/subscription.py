"""The common part of exclusive and shared subscriptions: their streams, their progress, and its lag."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from fyrehose.errors import FyrehoseError, InvalidPosition
from fyrehose.patterns import Pattern
from fyrehose.records import Run
from fyrehose.subscriptions.lane import Draft, Track
from fyrehose.subscriptions.progress import SavedSubscription, StreamProgress, SubscriptionOptions

if TYPE_CHECKING:
    from fyrehose.subscriptions.table import SubscriptionTable

#: How many streams that were retired one change forgets at most.
MOST_FORGOTTEN = 250

#: Publishes runs, and records of the server's own, in one batch.
PublishBatch = Callable[[Sequence[Run], Sequence[Run]], Deferred[Any]]


@attrs.define(eq=False)
class NamedSubscription:
    """A subscription of one stream, or of all streams that match its pattern.

    :ivar saved: its state with all changes that were appended, durable or not: the state that a checkpoint stores
    :ivar tracks: its streams, each with the progress in it
    :ivar appended: how many changes were appended; *durable* is how many of them are durable
    :ivar active: when a record was acknowledged or settled last, in microseconds since 1970 UTC
    :ivar gone: whether it was deleted
    :ivar oldest: number and time of the oldest record that is not final, by stream, when it was last looked up
    :ivar network: the network of its creator, for which it counts; empty: the server itself
    :ivar memory: what it is charged for, besides its streams, in bytes
    :ivar added: fires when a new subscription has all streams that its pattern matches
    :ivar left_out: how many streams that match the pattern are not in *tracks*, because there was no room
    """

    table: SubscriptionTable
    name: str
    saved: SavedSubscription
    active: int
    options: SubscriptionOptions = attrs.field(init=False)
    tracks: Mapping[str, Track] = attrs.field(factory=dict, init=False)
    pattern: Pattern | None = attrs.field(default=None, init=False)
    network: str = attrs.field(init=False)
    appended: int = attrs.field(default=0, init=False)
    durable: int = attrs.field(default=0, init=False)
    gone: bool = attrs.field(default=False, init=False)
    oldest: dict[str, tuple[int, int]] = attrs.field(factory=dict, init=False)
    left_out: int = attrs.field(default=0, init=False)
    memory: int = attrs.field(default=0, init=False)
    added: Deferred[Any] = attrs.field(factory=lambda: succeed(None), init=False)
    _after: deque[tuple[int, Deferred[None]]] = attrs.field(factory=deque, init=False)

    def __attrs_post_init__(self) -> None:
        self.options = self.saved.options
        self.network = self.options.creator.network
        if self.options.pattern:
            # Not Pattern.of_peer(): a pattern that is stored already may exceed the present bounds of peers.
            self.pattern = Pattern(self.options.stream)

    @property
    def epoch(self) -> int:
        """Return the latest epoch: a number that is raised when the subscription is rewound, and by each new holder."""
        return self.saved.epoch

    @property
    def places(self) -> dict[str, int]:
        """Return the durable floor of each stream: the number up to which all records are final."""
        return {stream: track.durable_floor for stream, track in self.tracks.items()}

    def add_stream(self, stream: str, progress: StreamProgress) -> None:
        """Add *stream* to the subscription."""
        raise NotImplementedError

    def remove_stream(self, stream: str) -> None:
        """Remove *stream* from the subscription."""
        raise NotImplementedError

    def had(self, stream: str) -> bool:
        """Return whether *stream* may have been a stream of the subscription until it was retired."""
        covered = self.pattern is not None and self.options.takes(self.pattern, stream)
        return covered and stream in self.table.journal.retired()

    def may_forget(self, track: Track) -> bool:
        """Return whether nobody needs the progress in a stream that was retired."""
        return True

    def numbers(self, seq: int | Mapping[str, int] | None) -> Mapping[str, int]:
        """Convert *seq*, the position that a peer asks for, to a number for each stream.

        :param seq: a number of each stream, which must be 0 with a pattern; None: the end of each stream
        :raises InvalidPosition: a number is behind the end of its stream, or the stream is not one of these
        """
        bounds = self.table.journal.bounds
        if seq and not isinstance(seq, Mapping) and self.pattern is not None:
            raise InvalidPosition(
                f"subscription {self.name!r} has the pattern {self.options.stream!r}: give a number for each stream"
            )
        if not isinstance(seq, Mapping):
            return {each: bounds(each)[1] if seq is None else self._checked(each, seq) for each in self.tracks}
        return {stream: self._checked(stream, number) for stream, number in seq.items()}

    def _checked(self, stream: str, number: int) -> int:
        if stream not in self.tracks:
            raise InvalidPosition(f"stream {stream[:80]!r} is not one of the streams of {self.name!r}")
        last = self.table.journal.bounds(stream)[1]
        if number > last:
            raise InvalidPosition(f"invalid position {number} in stream {stream!r}, which ends at {last}")
        return number

    def rewind(self, numbers: Mapping[str, int]) -> Deferred[Any]:
        """Forget the progress in the streams of *numbers*, and continue behind these, in a new epoch."""
        draft = Draft(epoch=self.epoch + 1, whole={"owner": ""})
        for stream, seq in numbers.items():
            draft.of(self.tracks[stream]).rewind = seq
        return self.append(draft)

    def end(self, reason: FyrehoseError) -> None:
        """End all that uses the subscription, which was deleted, or which another server has had meanwhile."""
        raise NotImplementedError

    def stop(self) -> None:
        """Write what the next start needs, because the server stops."""

    def check(self, ends: Mapping[str, int]) -> None:
        """Do what time demands; call it twice a second.

        :param ends: the last durable number of each stream
        """
        if all(ends.get(stream, 0) <= track.durable_floor for stream, track in self.tracks.items()):
            self.active = self.table.now()  # All records are final, so the subscription is not abandoned.
        if self.pattern is not None:
            self._forget_retired(ends)

    def _forget_retired(self, ends: Mapping[str, int]) -> None:
        """Forget the progress in streams that were retired: created again, all of their records are new."""
        streams = self.table.streams()
        gone = [
            track
            for stream, track in self.tracks.items()
            if stream not in ends and stream not in streams and self.may_forget(track)
        ][:MOST_FORGOTTEN]
        if not gone or self.append_by_itself(Draft(whole=self.saved.forgetting([each.stream for each in gone]))):
            return
        for track in gone:
            self.remove_stream(track.stream)
            self.saved.streams.pop(track.stream)
            self.oldest.pop(track.stream, None)
            self.table.room.count(self.network, 0, -1)

    # What was appended.

    def append(self, draft: Draft) -> Deferred[Any]:
        """Append *draft*; return a Deferred that fires when it is durable."""
        return self.table.append(self, draft)

    def append_by_itself(self, draft: Draft) -> BaseException | None:
        """Append *draft*, which no request waits for; return why it was refused, or None."""
        return self.table.append_by_itself(self, draft)

    def accept(self, draft: Draft) -> None:
        """Change the state, because the journal has accepted *draft* (rule 20)."""
        self.appended += 1
        if draft.epoch or draft.whole:
            self.saved.apply_whole(draft.head())
        if draft.epoch:
            self.saved.rewinds += sum(change.rewind is not None for change in draft.changes.values())
        self.take(draft)

    def take(self, draft: Draft) -> None:
        """Change the progress in each stream, because the journal has accepted *draft*."""
        for track, change in draft.changes.items():
            track.accept(change)

    def settle(self, _: object, draft: Draft, answer: Any) -> Any:
        """Record that *draft*, the oldest one that was not durable, is durable, and return *answer*."""
        for track, change in draft.changes.items():
            track.durable(change)
        self.one_durable()
        return answer

    def one_durable(self) -> None:
        """Record that the oldest change that was not durable is durable."""
        self.durable += 1
        while self._after and self._after[0][0] <= self.durable:
            self._after.popleft()[1].callback(None)

    def when_added(self) -> Deferred[None]:
        """Return a Deferred that fires when the subscription has its streams, which are added in steps if it is new."""
        complete: Deferred[None] = Deferred()
        self.added.addBoth(lambda _: complete.callback(None))
        return complete

    def when_durable(self, change: int | None = None) -> Deferred[None]:
        """Return a Deferred that fires when *change* is durable, the number of a change; None: the last one."""
        number = self.appended if change is None else change
        if number <= self.durable:
            return succeed(None)
        waiting: Deferred[None] = Deferred()
        insort(self._after, (number, waiting), key=itemgetter(0))  # others may wait for the change after *number*
        return waiting


def refusal_of(written: Deferred[Any]) -> BaseException | None:
    """Return why an append was refused at once; None if it was accepted."""
    result = written.result if written.called else None
    return result.value if isinstance(result, Failure) else None
