"""Retention: which of the oldest segments are not kept any more.

Segments that the settings do not keep are deleted as soon as every named reader (journal/readers.py) has read them.
Waiting has two bounds, so that a reader that died or lags for ever cannot fill the disk: it must have been heard of
lately, and only so many bytes wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from fyrehose.journal.files import Files
from fyrehose.journal.holds import Reader
from fyrehose.journal.scan import INDEX_SUFFIX, snapshot_path_of, snapshots
from fyrehose.journal.settings import JournalSettings
from fyrehose.journal.store import Store


@attrs.frozen(slots=True)
class Verdict:
    """What becomes of the oldest segments.

    :ivar expired: how many, from the oldest on, are not kept any more
    :ivar waiting: how many more would not be, but for ``waited_for``
    :ivar overtaken: readers that have not read all of what is not kept
    """

    expired: int
    waiting: int = 0
    waited_for: Reader | None = None
    overtaken: tuple[Reader, ...] = ()


class Deletion:
    """Deletes segments one after the other: one that is gone while an older one is there would be a hole.

    :ivar segments: what is still to be deleted, the oldest first, each with the position where the log begins after it,
        and that of the oldest snapshot that is needed then
    """

    def __init__(self, directory: Path, files: Files) -> None:
        self.segments: list[tuple[Path, int, int]] = []
        self._directory, self._files = directory, files
        self._at_work = False

    def is_due(self) -> bool:
        """Whether :meth:`work` is to be called; if so, it has to be."""
        due = bool(self.segments) and not self._at_work
        self._at_work = self._at_work or due
        return due

    def work(self, keep_from: Callable[[int], object]) -> None:
        """Delete what is due; blocks.  Where it fails, it goes on the next time.

        :param keep_from: notes durably where the log begins, so that a segment that is lost can be told from these
        :raises OSError: the oldest of them could not be deleted, or not durably
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
    readers: Callable[[], Sequence[Reader]],
    doubted: bool = False,
) -> Verdict:
    """What the settings do not keep, and the readers do not need or are not waited for.

    :param now: microseconds since 1970 UTC
    :param readers: gives them, those first that are furthest behind; asked only if something could be deleted
    :param doubted: see :func:`expired`
    """
    count = expired(store, settings, now, doubted)
    if not count:
        return Verdict(0)
    sealed, everyone = store.sealed, readers()
    alive = [reader for reader in everyone if now - reader.time <= settings.reader_wait * 1_000_000]
    done = count
    if alive:
        done = sum(end <= alive[0].position for _, end in sealed[:count])
        waiting = sealed[count - 1][1] - sealed[done][0] if done < count else 0
        while waiting > settings.reader_bytes:
            waiting -= sealed[done][1] - sealed[done][0]
            done += 1
    deleted = sealed[done - 1][1] if done else 0
    overtaken = tuple(reader for reader in everyone if reader.position < deleted)
    return Verdict(done, count - done, alive[0] if done < count else None, overtaken)


def expired(store: Store, settings: JournalSettings, now: int, doubted: bool = False) -> int:
    """How many segments, from the oldest on, the settings do not keep.

    Whole sealed segments only: the one that is being written stays, and so do the numbers of every stream.

    :param now: microseconds since 1970 UTC
    :param doubted: whether *now* may be wrong; then at most one segment expires by its age
    """
    sealed = store.sealed
    count = 0
    if settings.keep_bytes and sealed:
        size = store.active.end - sealed[0][0]
        while count < len(sealed) and size > settings.keep_bytes:
            size -= sealed[count][1] - sealed[count][0]
            count += 1
    if settings.keep_age:
        oldest = now - int(settings.keep_age * 1_000_000)
        # A segment was created when the last record of the one before was written.
        most = min(count + 1, len(sealed)) if doubted else len(sealed)
        while count < most and store.created_after(sealed[count][0]) < oldest:
            count += 1
    return count
