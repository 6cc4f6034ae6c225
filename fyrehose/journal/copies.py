"""Detect copies of a journal that a server must not use, or that were made file by file while a server wrote.

`tar`, `cp` and `rsync` copy file by file.  The file MARK contains its own inode number, by which a copied directory is
told from the original (see :func:`fyrehose.journal.scan.look_at_mark`).
"""

from __future__ import annotations

import re
from pathlib import Path

from fyrehose.errors import ConfigError, JournalCorrupt, JournalUnusable
from fyrehose.journal.ends import END
from fyrehose.journal.files import Files
from fyrehose.journal.scan import MARK_NAME, SegmentReader, segments

#: A batch that was written never begins with this many zeros, so this many bytes at its start are looked at.
WORD = 8
#: This many zeros in a row count as a part of the file that was not written yet, because text has no zeros, and no
#: number in a record is as long.
TORN = 64
#: How many bytes are searched for zeros at a time.
WINDOW = 1 << 20
#: Name of the file that marks a directory whose restore is under way, or was interrupted.
RESTORING = "RESTORING"
#: Name of the file that marks a directory as a standby; it has the URL of the journal that the standby follows.
STANDBY = "STANDBY"

#: Names of files that a directory may have before it has a journal: the lock, and what a file system puts there.
_HARMLESS = re.compile(r"LOCK|lost\+found|\..*|.*\.new")

_ZEROS = re.compile(rb"\0{%d}" % TORN)


def written_while_copied(reader: SegmentReader, position: int, stop: int) -> bool:
    """Return whether the damage from *position* to *stop* looks as if the file was copied while it was written.

    A read during a write is not atomic: it returns zeros for the bytes that are not written yet.  Such zeros may begin
    and end anywhere in a page.
    """
    if not any(reader.read(position, WORD)):
        return True
    while stop - position >= TORN:
        data = reader.read(position, min(WINDOW, stop - position))
        if _ZEROS.search(data):
            return True
        position += len(data) - TORN + 1
    return False


def refuse_copies(directory: Path) -> None:
    """Refuse a directory whose restore was not completed, a standby that was not promoted, and a backup.

    :raises JournalCorrupt: the restore was interrupted, or is still running
    :raises ConfigError: the directory is a standby or a backup
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
    if (directory / END).exists():
        raise ConfigError(
            f"{directory} is a backup: a server that writes there would use numbers that the journal has given out, "
            "and the backup could not be continued; restore it into another directory with `fyrehose journal restore`"
        )


def followed(directory: Path) -> str:
    """Return the URL of the journal that the standby in *directory* follows, or "" if the directory is no standby."""
    path = directory / STANDBY
    return Files().content(path, 1 << 16).decode(errors="replace").strip() if path.exists() else ""


def refuse_other_files(directory: Path) -> None:
    """Refuse to make a new journal in a directory with files of other programs, which was probably named by mistake.

    :raises JournalUnusable: *directory* has no journal, but other files
    """
    try:
        names = sorted(path.name for path in directory.iterdir())
    except OSError:
        return  # there is no such directory, or opening the journal reports what is wrong with it
    if segments(directory) or {MARK_NAME, END, RESTORING, STANDBY} & {*names}:
        return
    others = [name for name in names if not _HARMLESS.fullmatch(name) and not name.startswith("QUARANTINE")]
    if others:
        shown = ", ".join(map(repr, others[:3])) + (", ..." if len(others) > 3 else "")
        raise JournalUnusable(
            f"cannot make a new journal in {directory}: it has other files ({shown}); choose an empty or new directory"
        )
