"""Copy the journal of another server of a cluster, which serves it with ``fyrehose journal serve``."""

from __future__ import annotations

import time
from pathlib import Path

from twisted.logger import Logger

from fyrehose.journal.files import Files
from fyrehose.journal.offline.backup import Backup
from fyrehose.journal.offline.places import place
from fyrehose.journal.offline.replica import Replica
from fyrehose.options import shown_size

log = Logger()

#: How often the progress is logged, in seconds.
EVERY = 5.0


class CopyLog:
    """Logs how much was copied, once in a while."""

    def __init__(self) -> None:
        self._logged = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self._logged >= EVERY:
            self._logged = time.monotonic()
            log.info("replication: copied {done} of {total}", done=shown_size(done), total=shown_size(total))


def copy_journal(token_file: str, url: str, directory: Path, files: Files) -> int:
    """Copy everything that is durable in the journal at *url*, and missing in *directory*; blocks.

    :param token_file: file with the token of that server; empty: it needs none
    :param files: the system calls
    :return: the position where the copy ends
    :raises JournalError: it cannot be copied
    """
    with Replica(directory, files) as replica:
        Backup(place(url, token_file or None), replica, progress=CopyLog()).run()
        return replica.position
