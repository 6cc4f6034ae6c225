"""The interface of the shared log, a numbered list of entries that several machines store."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.defer import Deferred
from zope.interface import Interface

from fyrehose.cluster.entries import EntryWriter, LogEntry
from fyrehose.observe.meters import NatsStatus


class Refused(Exception):
    """The error for an append that was refused, because the shared log did not end at the expected number.

    :ivar last: the last number in the shared log at that moment
    """

    def __init__(self, last: int) -> None:
        super().__init__(f"the shared log ends at entry {last}")
        self.last = last


class Unavailable(Exception):
    """The error for a shared log that did not answer, so that it is unknown whether an append has arrived."""


@attrs.frozen
class EntryRange:
    """The range of entries that the shared log still has.

    :ivar first: number of the first entry that was not purged; *last* + 1 if no entry is left
    :ivar last: number of the last entry; 0 if there has never been an entry
    :ivar size: the size of these entries, in bytes
    :ivar limit: the size beyond which the leader must refuse messages, because the log accepts little more; 0: no limit
    :ivar nodes: the NATS servers that store the log, as far as they are known
    :ivar replicas: on how many NATS servers the log should be stored
    """

    first: int
    last: int
    size: int = attrs.field(default=0, eq=False)
    limit: int = attrs.field(default=0, eq=False)
    nodes: tuple[NatsStatus, ...] = attrs.field(default=(), eq=False)
    replicas: int = attrs.field(default=1, eq=False)


class ISharedLog(Interface):
    """A log on several machines, which accepts an entry only if the entry gets the expected number.

    Every Deferred that a method returns fails with :class:`Unavailable` if there is no answer in time.
    """

    def open(
        heard: Callable[[bytes], None], writer: EntryWriter | None = None, asked: Callable[[bytes], None] = ...
    ) -> Deferred[list[str]]:
        """Connect, and create the log if it does not exist.

        :param heard: called with each message that another server has :meth:`said <say>`
        :param writer: this server, which :meth:`is_here` of other servers then finds; None: they do not find this
            server
        :param asked: called with each request of an operator to change the members
        :return: fires with warnings for people about the settings of the log
        :raises ConfigError: the log has settings that lose entries
        """

    def append(entry: LogEntry, expect: int) -> Deferred[int]:
        """Append *entry* if the last number in the log is *expect*; a repeated call must not append it twice.

        :return: fires with the number of the entry; fails with :class:`Refused` if the last number is another one
        """

    def extent() -> Deferred[EntryRange]:
        """Return the first and the last number, and the size, as far as one server that stores the log knows."""

    def read(number: int, most: int) -> Deferred[list[tuple[int, LogEntry]]]:
        """Read at most *most* consecutive entries from *number* on.

        :return: fires with numbers and entries; empty if the log does not have the entry *number* yet, or any more
        """

    def purge(number: int) -> Deferred[None]:
        """Delete the entries before *number*."""

    def say(message: bytes) -> None:
        """Send *message* to the other servers; it may be lost."""

    def is_here(writer: EntryWriter) -> Deferred[bool]:
        """Return whether the process of *writer* is connected, as far as one node of the NATS cluster knows.

        When a process is killed, its connection ends at once; if it is frozen or busy, its connection stays open.
        """

    def close() -> Deferred[None]:
        """Disconnect."""
