"""A standby: a copy of the journal of a running server, always up to date, that can replace that server.

    in: a journal that is served, a directory      out: the same log there; after promote(), a journal of its own

The bytes are copied as for a backup.  Until the standby is promoted, a file in its directory names the journal that it
follows, and no server starts there.

This module does not import Twisted.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import attrs

from fyrehose.errors import ConfigError
from fyrehose.journal import scan
from fyrehose.journal.copies import STANDBY, followed
from fyrehose.journal.ends import END
from fyrehose.journal.files import Files
from fyrehose.journal.follower import REPLICA
from fyrehose.offline.backup import Backup, is_empty
from fyrehose.offline.branching import Branch, begin_branch

#: How long the server that was followed may take to accept a connection, in seconds.
PATIENCE = 3.0


@attrs.frozen
class Lag:
    """How far a standby is behind its source.

    :ivar size: how many bytes that were durable at the source at the last look are missing in the standby
    :ivar seconds: how long ago the standby had everything that was durable at the source
    :ivar reachable: whether the source answers
    """

    size: int
    seconds: float
    reachable: bool


@attrs.define(eq=False)
class Standby:
    """A standby that follows the source of the backup *copying*.

    The time is that of the backup's clock.

    :ivar observe: called with the lag from time to time
    :ivar sleep: waits for so many seconds
    """

    copying: Backup
    observe: Callable[[Lag], object] = attrs.field(default=lambda lag: None)
    sleep: Callable[[float], object] = time.sleep
    _began: float = attrs.field(init=False)
    _noted: str = attrs.field(default="", init=False)  #: the source that the directory names

    def __attrs_post_init__(self) -> None:
        self._began = self.copying.seconds()

    @property
    def lag(self) -> Lag:
        """Return how far the standby is behind; until it is complete once, the seconds count from the start."""
        copying = self.copying
        since = max(self._began, copying.looked)
        return Lag(max(0, copying.mark - copying.replica.position), copying.seconds() - since, copying.reachable)

    def catch_up(self, run: Callable[[], object]) -> None:
        """Copy the missing bytes by calling *run*, a method of the backup, and mark the directory as a standby.

        A directory that has a journal already is marked only after a check that its log begins like that of the source.

        :raises JournalError: see :meth:`.Backup.run`
        """
        directory = self.copying.replica.directory
        if is_empty(directory):
            self._note()
        run()
        if self.copying.reachable:
            self._note()
        self.observe(self.lag)

    def follow(self, every: float, say: Callable[[str], object]) -> None:
        """Copy new bytes again and again, until an exception such as KeyboardInterrupt; see :meth:`.Backup.follow`."""

        def sleep(seconds: float) -> None:
            if self.copying.reachable:
                self._note()
            self.observe(self.lag)
            self.sleep(seconds)

        self.copying.follow(every, say, sleep)

    def _note(self) -> None:
        replica, url = self.copying.replica, str(self.copying.source)
        if url != self._noted:
            self._noted = url
            replica.files.store(replica.directory / STANDBY, f"{url}\n".encode())


def promote(directory: Path, files: Files) -> Branch:
    """Make the standby in *directory* a journal of its own; after an interruption, the same call completes it.

    :raises ConfigError: the directory is no standby, or nothing was copied into it yet
    :raises JournalLocked: `fyrehose journal follow` or a server uses the directory
    :raises JournalError: see :func:`~.branching.begin_branch`
    """
    check_standby(directory)
    return begin_branch(directory, files, "cannot be promoted", (END, STANDBY, REPLICA))


def check_standby(directory: Path) -> None:
    """Check that *directory* is a standby that can be promoted.

    :raises ConfigError: it is not
    """
    if not (directory / STANDBY).exists():
        raise ConfigError(
            f"{directory} is no standby: `fyrehose journal follow` never copied a journal into it, or it was promoted "
            "already"
        )
    if not scan.segments(directory):
        raise ConfigError(f"{directory} has no messages yet: nothing was copied from {followed(directory)}")


def answers(url: str) -> bool:
    """Return whether a program accepts connections at *url*."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), PATIENCE).close()
    except OSError:
        return False
    return True
