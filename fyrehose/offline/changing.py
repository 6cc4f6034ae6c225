"""Change the journal of a stopped server: lock the journal, and turn the writer's errors into errors for people.

This module does not import Twisted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fyrehose.errors import JournalFailed, JournalFull
from fyrehose.journal.files import lock
from fyrehose.journal.writer import NoRoom, SyncFailed


@contextmanager
def changing(directory: Path, failure: str) -> Iterator[None]:
    """Lock the journal in *directory* while the body of the ``with`` statement changes it.

    :param failure: for the error about a full or failed disk: what the disk prevents, such as "cannot be promoted"
    :raises JournalLocked: a server, or another command, writes there
    :raises JournalFull: the disk is full
    :raises JournalFailed: a sync failed
    """
    locked = lock(directory)
    try:
        yield
    except (NoRoom, SyncFailed) as error:
        kind = JournalFull if isinstance(error, NoRoom) else JournalFailed
        raise kind(
            f"{directory} {failure}: {error}; free some space, or check the disk, and run the same command again"
        ) from error
    finally:
        os.close(locked)
