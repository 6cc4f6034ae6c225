"""Retention: which of the oldest segments are not kept any more."""

from __future__ import annotations

from fyrehose.journal.settings import JournalSettings
from fyrehose.journal.store import Store


def expired(store: Store, settings: JournalSettings, now: int) -> int:
    """How many segments, from the oldest on, the settings do not keep.

    Whole sealed segments only: the one that is being written stays, and so do the numbers of every stream.

    :param now: microseconds since 1970 UTC
    """
    sealed = store.sealed
    count = 0
    if settings.keep_bytes:
        size = store.active.end - sealed[0][0] if sealed else 0
        while count < len(sealed) and size > settings.keep_bytes:
            size -= sealed[count][1] - sealed[count][0]
            count += 1
    if settings.keep_age:
        oldest = now - int(settings.keep_age * 1_000_000)
        # A segment was created when the last record of the one before was written.
        while count < len(sealed) and store.created_after(sealed[count][0]) < oldest:
            count += 1
    return count
