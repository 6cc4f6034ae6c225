"""Copy the journal of another server of a cluster, which serves it with ``fyrehose journal serve``."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

from twisted.logger import Logger

from fyrehose.errors import JournalError
from fyrehose.journal.files import Files
from fyrehose.offline.backup import Backup
from fyrehose.offline.mirror import Replica
from fyrehose.offline.places import place
from fyrehose.offline.view import differ
from fyrehose.options import shown_size

log = Logger()

#: How often the progress is logged, in seconds.
EVERY = 5.0


class CopyLog:
    """A progress log of the copying, which also ends the copying by an error when *stopping* is set.

    :param seconds: the monotonic clock
    """

    def __init__(self, stopping: Event, seconds: Callable[[], float] = time.monotonic) -> None:
        self._stopping, self._seconds = stopping, seconds
        self._logged = seconds()

    def __call__(self, done: int, total: int) -> None:
        if self._stopping.is_set():
            raise JournalError("the copying was stopped, because this server is stopping; the next start continues it")
        if self._seconds() - self._logged >= EVERY:
            self._logged = self._seconds()
            log.info("replication: copied {done} of {total}", done=shown_size(done), total=shown_size(total))


def copy_journal(token_file: str, url: str, directory: Path, files: Files, identity: bytes, stopping: Event) -> int:
    """Copy from the journal at *url* to *directory* all durable bytes that are missing there; the call blocks.

    :param token_file: file with the token of that server; empty: the server requires no token
    :param files: the system calls
    :param identity: the identity of the cluster's journal; UNKNOWN: the cluster has no journal yet
    :param stopping: set by another thread when the copying is to end
    :return: the position where the copy ends
    :raises JournalError: the server serves another journal, the journal cannot be copied, or *stopping* was set
    """
    source = place(url, token_file or None)
    if differ(found := source.view().identity, identity):
        raise JournalError(
            f"{url} serves another journal ({found.hex()}) than that of this cluster ({identity.hex()}); correct the "
            "option `journal` of that server, or what `fyrehose journal serve` serves there"
        )
    with Replica(directory, files) as replica:
        Backup(source, replica, progress=CopyLog(stopping), vouches=False).run()
        return replica.position
