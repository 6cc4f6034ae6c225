"""The room that the disk has for an open journal, and the error for publishes while it has too little.

in: the directory and its lock, once a second; writes without room      out: whether it lacks room, a ReadOnly error
"""

from __future__ import annotations

from pathlib import Path

import attrs
from twisted.logger import Logger

from fyrehose.errors import JournalFailed, ReadOnly
from fyrehose.journal.files import Files, owns_lock
from fyrehose.options import shown_size

log = Logger()


@attrs.define(eq=False)
class Room:
    """The free space at the last check, and why the last write found none.

    A write that finds no room counts until the disk is written again, whatever the free space is: a quota, or a disk
    that became read-only, does not show in it.

    :ivar free: bytes; -1: the directory was deleted; None: unknown
    :ivar lacks: whether the disk has too little room for publishes
    :ivar is_enough: whether the free space at the last check is enough to accept publishes again
    """

    directory: Path
    files: Files
    free: int | None = attrs.field(default=None, init=False)
    lacks: bool = attrs.field(default=False, init=False)
    is_enough: bool = attrs.field(default=False, init=False)
    #: Why the last write had no room; empty once there was room again.
    _full: str = attrs.field(default="", init=False)
    #: The last error of a check, so that the same error is not logged every second.
    _error: str = attrs.field(default="", init=False)

    def measure(self, lock: int, least: int) -> None:
        """Measure the free space; the disk lacks room if less than *least* bytes are free, or if that is unknown.

        :param lock: the descriptor of the directory's lock
        :raises JournalFailed: the lock was deleted or replaced, so another process may write there
        """
        try:
            # A directory that is missing because it is not mounted may come back; a deleted one does not.
            deleted = not self.files.is_linked(lock)
            self.free = -1 if deleted else self.files.free(self.directory)
            if deleted or not owns_lock(self.directory, lock):
                raise JournalFailed("its LOCK was deleted or replaced, perhaps with the directory")
            self._error = ""
        except OSError as error:
            why = error.strerror or str(error)
            if why != self._error:
                log.warn("cannot determine the free space of the disk, so none is assumed: {why}", why=why)
            self._error, self.free = why, None
        free = -1 if self.free is None else self.free
        self.lacks |= free < least
        self.is_enough = free > enough(least)

    def ran_out(self, why: str) -> None:
        """Note that a write had no room, for the reason *why*."""
        self._full, self.lacks = why, True

    def is_back(self) -> None:
        """Note that the disk was written again."""
        self._full, self.lacks = "", False

    def error(self, least: int) -> ReadOnly:
        """Return the error for publishes while the disk has too little room.

        :param least: the free space below which publishes are refused, in bytes
        """
        free = self.free
        if free is None or self._full or free > enough(least):
            what = f"the server's disk cannot be written: {self._full or 'its free space is unknown'}"
        else:
            below = f"less than journal.min-free ({shown_size(least)})" if free < least else "which is not enough yet"
            what = f"the server's disk has {shown_size(free)} free, {below}"
        return ReadOnly(
            f"{what}; messages are accepted again when more than {shown_size(enough(least))} are free: "
            "`fyrehose doctor` on the server says what to do"
        )


def enough(least: int) -> int:
    """Return how much free space lets publishes resume after it fell below *least*, in bytes."""
    return least + least // 10
