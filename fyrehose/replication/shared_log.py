"""The interface of the shared log, a numbered list of entries that several machines store."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.defer import Deferred
from zope.interface import Interface

from fyrehose.observe.meters import NatsStatus
from fyrehose.replication.entries import EntryWriter, LogEntry


class Refused(Exception):
    """An append was refused, because the shared log did not end at the expected number.

    :ivar last: the last number in the shared log at that moment
    """

    def __init__(self, last: int) -> None:
        super().__init__(f"the shared log ends at entry {last}")
        self.last = last


class Unavailable(Exception):
    """The shared log did not answer: whether an append has arrived is unknown."""


@attrs.frozen
class EntryRange:
    """The range of entries that the shared log still has.

    :ivar first: number of the first entry that is left; *last* + 1 if none is
    :ivar last: number of the last entry; 0 if there has never been one
    :ivar size: of these entries, in bytes
    :ivar limit: the size beyond which the leader must stop, because the engine accepts little more; 0: none
    :ivar nodes: the servers of the engine that store it, as far as it says that
    """

    first: int
    last: int
    size: int = attrs.field(default=0, eq=False)
    limit: int = attrs.field(default=0, eq=False)
    nodes: tuple[NatsStatus, ...] = attrs.field(default=(), eq=False)


class ISharedLog(Interface):
    """A log on several machines, which accepts an entry only if it gets the expected number.

    Every Deferred fails with :class:`Unavailable` if there is no answer in time.
    """

    def open(
        heard: Callable[[bytes], None], writer: EntryWriter | None = None, asked: Callable[[bytes], None] = ...
    ) -> Deferred[list[str]]:
        """Connect, and create the log if it does not exist.

        :param heard: called with each message that another server has :meth:`said <say>`
        :param writer: this server, so that :meth:`is_here` of other servers finds it; None: they do not find it
        :param asked: called with each request of an operator to change the members
        :return: fires with warnings for people about the settings of the log
        :raises ConfigError: the log has settings that lose entries
        """

    def append(entry: LogEntry, expect: int) -> Deferred[int]:
        """Append *entry* if the last number is *expect*; repeating it must not append it twice.

        :return: fires with the number of the entry; fails with :class:`Refused`
        """

    def extent() -> Deferred[EntryRange]:
        """Return the first and the last number, and the size, as far as one machine of the log knows."""

    def read(number: int, most: int) -> Deferred[list[tuple[int, LogEntry]]]:
        """Read at most *most* consecutive entries from *number* on.

        :return: fires with numbers and entries; nothing if there is none with this number (yet, or any more)
        """

    def purge(number: int) -> Deferred[None]:
        """Delete the entries before *number*."""

    def say(message: bytes) -> None:
        """Send *message* to the other servers; it may be lost."""

    def is_here(writer: EntryWriter) -> Deferred[bool]:
        """Return whether the process of *writer* is connected, as far as one machine of the engine knows.

        When a process is killed, its connection ends at once.  That of a process that is frozen or busy does not.
        """

    def close() -> Deferred[None]:
        """Disconnect."""
