"""Copies of a journal that were made file by file while a server wrote: `tar`, `cp` and `rsync` make such.

MARK says of itself which file it is (see :func:`fyrehose.journal.scan.look_at_mark`), so a directory that was copied is
known for one.  Here is how a segment looks that was being written meanwhile, and how a copy is known that
``fyrehose journal restore`` did not finish.
"""

from __future__ import annotations

from pathlib import Path

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal.scan import SegmentReader

#: Programs that copy files read them in multiples of this, in bytes.
PAGE = 4 << 10
#: A directory that has a file of this name is being restored, or was when that was interrupted.
RESTORING = "RESTORING"


def written_while_copied(reader: SegmentReader, position: int, stop: int) -> bool:
    """Return whether damage from *position* to *stop* looks like what copying a file leaves that is being written.

    Programs that copy read a file piece by piece, in order.  What is written meanwhile is missing at the end of one
    piece, where there were only zeros yet, and there in the next one; pieces end at multiples of a page.
    """
    for offset in range((position - reader.base) // PAGE * PAGE + PAGE, stop - reader.base + 1, PAGE):
        at = max(position, reader.base + offset - fmt.BATCH_HEADER.size)
        if not any(reader.read(at, reader.base + offset - at)):
            return True
    return False


def refuse_half_restored(directory: Path) -> None:
    """See that a journal was restored to its end.

    :raises JournalCorrupt: it was not
    """
    if (directory / RESTORING).exists():
        raise JournalCorrupt(
            f"{directory} is not complete: `fyrehose journal restore` was interrupted, or is still running; run it "
            "again with the same arguments, and start the server when it has ended"
        )
