"""Retention of an open journal; :mod:`fyrehose.journal.retention` decides which segments are kept.

in: the store, the clock, the named subscriptions      out: deleted segments (by the writer thread), log lines
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import JournalError
from fyrehose.interfaces import FileLag, Unread
from fyrehose.journal.clock import RecordClock
from fyrehose.journal.retention import Deletion, Verdict, expired, judge
from fyrehose.journal.settings import JournalSettings
from fyrehose.journal.store import Store
from fyrehose.journal.subscriptions import FileSubscription, delete, registered

log = Logger()

#: How often it is looked whether subscriptions were used while no segment is to be deleted, in seconds.
LOOK = 60.0


@attrs.define(eq=False)
class Uses:
    """When each subscription was used last, by a clock of this server that never steps.

    A subscription has the time of its last use by another clock: that of the program that reads the files, or a wall
    clock that was wrong at that time.  So that time is compared only with itself: once it changes, or the position in
    the file does, the subscription was used.

    :ivar monotonic: that clock, in microseconds
    """

    monotonic: Callable[[], int]
    _looked: float = attrs.field(default=float("-inf"), init=False)
    #: name -> what the subscription said last, and when it began to say so
    _seen: dict[str, tuple[object, int]] = attrs.field(factory=dict, init=False)

    def is_due(self) -> bool:
        """Return whether the last :meth:`look` is long ago."""
        return self.monotonic() - self._looked >= LOOK * 1_000_000

    def look(self, said: Mapping[str, object]) -> None:
        """Note which subscriptions were used since the last look; forget those that do not exist any more.

        :param said: by name, a value that changes whenever the subscription is used
        """
        now, before = self.monotonic(), self._seen
        self._looked = now
        self._seen = {
            name: before[name] if name in before and before[name][0] == value else (value, now)
            for name, value in said.items()
        }

    def idle(self, name: str) -> int:
        """Return for how many microseconds the subscription *name*, which the last look has seen, was not used."""
        return self.monotonic() - self._seen[name][1]


@attrs.define(eq=False)
class Keeper:
    """The retention of an open journal: deletes its oldest segments, and logs that.

    :ivar run: runs a function in the writer thread
    :ivar unread: returns the records that the named subscriptions of streams have not acknowledged
    :ivar held_by: name of the subscription that keeps the oldest segments; empty if none does
    :ivar overrun_subscriptions: how often a subscription lost segments that it had not read, because they were deleted
    """

    directory: Path
    settings: JournalSettings
    store: Store
    clock: RecordClock
    deletion: Deletion
    run: Callable[[Callable[[], None]], Deferred[None]]
    unread: Callable[[], Iterable[Unread]] = attrs.field(default=tuple, init=False)
    held_by: str = attrs.field(default="", init=False)
    overrun_subscriptions: int = attrs.field(default=0, init=False)
    #: Uses of the subscriptions to the files, and of those to streams, which may have the same names.
    _of_files: Uses = attrs.field(init=False)
    _of_streams: Uses = attrs.field(init=False)
    #: (stream, number of a record) -> base of the segment that has the record
    _places: dict[tuple[str, int], int] = attrs.field(factory=dict, init=False)
    #: The last error that was logged, so that the same error is not logged every second.
    _last_error: str = attrs.field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        self._of_files, self._of_streams = Uses(self.clock.monotonic), Uses(self.clock.monotonic)

    def check(self, keep_from: Callable[[int], object]) -> Iterator[None]:
        """Delete the segments that neither the settings nor the subscriptions keep any longer, in steps.

        :param keep_from: called in the writer thread with the position where the log begins, to store it durably
        """
        try:
            if self._of_streams.is_due():
                self._files()
                yield from self._look(None)
            count = expired(self.store, self.settings, self.clock.now(), self.clock.in_doubt)
            subscriptions = (yield from self._every_subscription()) if count else []
            verdict = judge(
                self.store, self.settings, self.clock.now(), count, subscriptions, doubted=self.clock.in_doubt
            )
            self._log_subscriptions(verdict)
            for _ in range(verdict.expired):
                self.deletion.segments.append(self.store.drop_oldest())
                log.info("retention deletes {path}", path=self.deletion.segments[-1][0])
                yield
        except (JournalError, OSError):
            self._failed(Failure(), "retention deletes nothing: {why}")
        if self.deletion.is_due():
            self.run(lambda: self.deletion.work(keep_from)).addErrback(
                self._failed, "retention could not delete a segment, and will try again: {why}"
            )

    def subscriptions(self) -> list[FileLag]:
        """Return the subscriptions to the journal's files, the one that is furthest behind first."""
        end = self.store.active.end
        return [FileLag(each.name, max(0, end - each.position), each.time) for each in self._files()]

    def delete(self, name: str) -> bool:
        """Delete the subscription *name* to the journal's files; return whether it existed."""
        return any(each.name == name for each in registered(self.directory)) and delete(self.directory, name)

    def is_sealed(self, stream: str, seq: int) -> bool:
        """Return whether record *seq* of *stream* is in a sealed segment, or was deleted.

        :raises JournalCorrupt: an index is damaged
        """
        return self.store.before(self.store.active.base, stream) >= seq

    def _look(self, found: list[Unread] | None) -> Iterator[None]:
        """Note which subscriptions to streams were used, and add their records to *found*."""
        said: dict[str, object] = {}
        for each in self.unread():
            said[each.name] = each.time
            if found is not None:
                found.append(each)
            yield
        self._of_streams.look(said)

    def _files(self) -> list[FileSubscription]:
        """Return the subscriptions to the files, with the times of their last uses by this server's clock."""
        files, now = registered(self.directory), self.clock.now()
        self._of_files.look({each.name: (each.position, each.time) for each in files})
        return [attrs.evolve(each, time=now - self._of_files.idle(each.name)) for each in files]

    def _every_subscription(self) -> Generator[None, None, list[FileSubscription]]:
        """Return the subscriptions to files and those to streams, the one that is furthest behind first.

        Their times are those of this server's clock.
        """
        unread: list[Unread] = []
        yield from self._look(unread)
        found, now = self._files(), self.clock.now()
        furthest: dict[str, FileSubscription] = {}
        places, self._places = self._places, {}
        for each in unread:
            record = each.stream, each.seq + 1
            place = places[record] if record in places else self.store.place(*record)
            if place < self.store.active.base:  # Remember the segment: a record in a sealed segment stays there.
                self._places[record] = place
            # A subscription of a pattern has many streams; of these, the stream that is furthest behind counts.
            if each.name not in furthest or place < furthest[each.name].position:
                used = now - self._of_streams.idle(each.name)
                furthest[each.name] = FileSubscription(each.name, place, used, each.pinned)
            yield
        return sorted([*found, *furthest.values()], key=lambda each: (each.position, each.name))

    def _failed(self, failure: Failure, message: str) -> None:
        why = failure.getErrorMessage()
        if why != self._last_error:
            log.error(message, why=why)
        self._last_error = why

    def _log_subscriptions(self, verdict: Verdict) -> None:
        held_by = "" if verdict.held_by is None else verdict.held_by.name
        if held_by != self.held_by:
            self.held_by = held_by
            if held_by:
                log.info("subscription {name} keeps segments that would be deleted without it", name=held_by)
        for subscription in verdict.overrun:
            self.overrun_subscriptions += 1
            log.warn(
                "retention deletes segments that subscription {name} has not read: it is at position {position}, and "
                "timed out or kept too much; see the options subscription-timeout and subscription-bytes, and "
                "`fyrehose journal subscriptions`",
                name=subscription.name,
                position=subscription.position,
            )
