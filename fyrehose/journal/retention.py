"""Retention: decide which of the oldest segments are deleted, and delete them.

A segment that the settings do not keep is deleted as soon as every named subscription has read it.  Subscriptions have
two limits, so that a reader that died or lags for ever cannot fill the disk: a subscription that was not used for
``subscription-timeout`` keeps no segments any more, and all subscriptions together keep at most ``subscription-bytes``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from fyrehose.journal.files import Files
from fyrehose.journal.scan import INDEX_SUFFIX, snapshot_path_of, snapshots
from fyrehose.journal.settings import JournalSettings
from fyrehose.journal.store import Store
from fyrehose.journal.subscriptions import FileSubscription


@attrs.frozen(slots=True)
class Verdict:
    """The decision about the oldest segments.

    :ivar expired: number of segments to delete, from the oldest on
    :ivar held: number of further segments that only subscriptions keep
    :ivar held_by: the subscription that is furthest behind, if ``held`` is not 0
    :ivar overrun: the subscriptions that lose records, because they have not read all of the segments to delete
    """

    expired: int
    held: int = 0
    held_by: FileSubscription | None = None
    overrun: tuple[FileSubscription, ...] = ()


class Deletion:
    """A deletion of segments one after the other, the oldest first, so that the log never has a hole.

    :ivar segments: the segments to delete, the oldest first: the path, the position where the log begins afterwards,
        and the position of the oldest snapshot that is still needed then
    """

    def __init__(self, directory: Path, files: Files) -> None:
        self.segments: list[tuple[Path, int, int]] = []
        self._directory, self._files = directory, files
        self._at_work = False

    def is_due(self) -> bool:
        """Return whether the caller must call :meth:`work` now; until that has ended, further calls return False."""
        due = bool(self.segments) and not self._at_work
        self._at_work = self._at_work or due
        return due

    def work(self, keep_from: Callable[[int], object]) -> None:
        """Delete :attr:`segments` and the snapshots that only they need; block; may be repeated after an error.

        :param keep_from: called with the position where the log begins, to store it durably, so that recovery can tell
            a deleted segment from a lost one
        :raises OSError: a segment could not be deleted, or not durably
        """
        try:
            while self.segments:
                segment, begin, needed = self.segments[0]
                keep_from(begin)
                self._files.unlink(segment.with_suffix(INDEX_SUFFIX))
                self._files.unlink(segment)
                self._files.sync_directory(self._directory)
                for position in snapshots(self._directory):
                    if position < needed:
                        self._files.unlink(snapshot_path_of(self._directory, position))
                del self.segments[0]
        finally:
            self._at_work = False


def judge(
    store: Store,
    settings: JournalSettings,
    now: int,
    count: int,
    subscriptions: Sequence[FileSubscription],
    doubted: bool = False,
) -> Verdict:
    """Decide how many of the oldest segments are kept neither by the settings nor by a named subscription.

    :param now: microseconds since 1970 UTC
    :param count: how many segments :func:`expired` returns
    :param subscriptions: the named subscriptions, the one that is furthest behind first
    :param doubted: whether *now* may be wrong; if so, no segment and no subscription counts as too old
    """
    if not count:
        return Verdict(0)
    sealed, registered = store.sealed, subscriptions
    pinned = min((each.position for each in registered if each.pinned), default=sealed[count - 1][1])
    count = sum(end <= pinned for _, end in sealed[:count])
    if not count:
        return Verdict(0)
    longest = settings.subscription_timeout * 1_000_000
    alive = [each for each in registered if doubted or now - each.time <= longest]
    done = count
    if alive:
        done = sum(end <= alive[0].position for _, end in sealed[:count])
        held = sealed[count - 1][1] - sealed[done][0] if done < count else 0
        while held > settings.subscription_bytes:
            held -= sealed[done][1] - sealed[done][0]
            done += 1
    deleted = sealed[done - 1][1] if done else 0
    overrun = tuple(each for each in registered if each.position < deleted)
    return Verdict(done, count - done, alive[0] if done < count else None, overrun)


def expired(store: Store, settings: JournalSettings, now: int, doubted: bool) -> int:
    """Return how many segments, from the oldest on, the settings do not keep.

    Only sealed segments count, because the active segment has the last number of every stream.

    :param now: microseconds since 1970 UTC
    :param doubted: whether *now* may be wrong; if so, no segment expires by its age
    """
    sealed = store.sealed
    count = 0
    if settings.keep_bytes and sealed:
        size = store.active.end - sealed[0][0]
        while count < len(sealed) and size > settings.keep_bytes:
            size -= sealed[count][1] - sealed[count][0]
            count += 1
    if settings.keep_age and not doubted:
        oldest = now - int(settings.keep_age * 1_000_000)
        # A segment's last record is older than the next segment, so the creation time of that one is compared.
        while count < len(sealed) and store.created_after(sealed[count][0]) < oldest:
            count += 1
    return count
