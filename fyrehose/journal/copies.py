"""Detect copies of a journal in which no server may start, or that were made file by file while a server wrote.

`tar`, `cp` and `rsync` copy file by file.  MARK contains its own inode number, which tells a copied directory from the
original (see :func:`fyrehose.journal.scan.look_at_mark`).
"""

from __future__ import annotations

from pathlib import Path

from fyrehose.errors import ConfigError, JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal.scan import SegmentReader

#: Programs that copy files read them in multiples of this, in bytes.
PAGE = 4 << 10
#: Name of the file that marks a directory whose restore is under way, or was interrupted.
RESTORING = "RESTORING"
#: Name of the file that marks a directory as a standby; it has the URL of the journal that the standby follows.
STANDBY = "STANDBY"


def written_while_copied(reader: SegmentReader, position: int, stop: int) -> bool:
    """Return whether the damage from *position* to *stop* looks as if the file was copied while it was written.

    Copying reads a file piece by piece, in order, and pieces end at multiples of a page.  A write in between is missing
    at the end of one piece, which still has zeros there, and present in the next one.
    """
    for offset in range((position - reader.base) // PAGE * PAGE + PAGE, stop - reader.base + 1, PAGE):
        at = max(position, reader.base + offset - fmt.BATCH_HEADER.size)
        if not any(reader.read(at, reader.base + offset - at)):
            return True
    return False


def refuse_copies(directory: Path) -> None:
    """Refuse a directory whose restore was not completed, and a standby that was not promoted.

    :raises JournalCorrupt: the restore was interrupted, or is still running
    :raises ConfigError: the directory is a standby
    """
    if (directory / RESTORING).exists():
        raise JournalCorrupt(
            f"{directory} is not complete: `fyrehose journal restore` was interrupted, or is still running; run it "
            "again with the same arguments, and start the server when it has ended"
        )
    if (directory / STANDBY).exists():
        raise ConfigError(
            f"{directory} is a standby, which follows {followed(directory)}: a server that writes there would use "
            "numbers that the other one has given out; if that one is lost, run `fyrehose journal promote` first"
        )


def followed(directory: Path) -> str:
    """Return the URL of the journal that the standby in *directory* follows, or "" if it is no standby."""
    path = directory / STANDBY
    return path.read_text(errors="replace").strip() if path.exists() else ""
