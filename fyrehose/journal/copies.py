"""Copies of a journal that were made file by file while a server wrote: `tar`, `cp` and `rsync` make such.

MARK says of itself which file it is (see :func:`fyrehose.journal.scan.look_at_mark`), so a directory that was copied is
known for one.  Here is how a segment looks that was being written meanwhile.
"""

from __future__ import annotations

from fyrehose.journal import format as fmt
from fyrehose.journal.scan import SegmentReader

#: Programs that copy files read them in multiples of this, in bytes.
PAGE = 4 << 10


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
