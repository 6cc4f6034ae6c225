"""The directory of a server of a cluster: what lies beyond the durable mark is set aside.

MARK says up to where the log is on disk here *and* released (see :mod:`fyrehose.replication`).  Whatever lies beyond
MARK when the journal is opened is set aside in ``torn-POSITION.bytes``: the shared log has what counts.
"""

from __future__ import annotations

import os
from pathlib import Path

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import scan
from fyrehose.journal.files import Files
from fyrehose.journal.recovery import last_byte

#: Name of the file that marks a directory as a replica; it has the name of the server.
REPLICA = "REPLICA"


def set_aside_beyond(directory: Path, position: int, files: Files) -> list[str]:
    """Set aside everything that the log in *directory*, which nobody writes, has beyond *position*.

    :return: notes for the log
    :raises JournalCorrupt: the log ends before *position*
    """
    notes = []
    found = scan.segments(directory)
    if position and (not found or found[-1].end < position):
        raise JournalCorrupt(
            f"the journal {directory} ends before position {position}, its durable mark; put its files back from a "
            "copy, or empty the directory, so that it is filled from another server"
        )
    for segment in reversed(found):
        if segment.end <= position:
            break
        begin = max(position, segment.base)
        reader = scan.SegmentReader(segment.path, segment.base, files)
        try:
            stop = last_byte(reader, begin, segment.end)
        finally:
            reader.close()
        fd = files.open(segment.path, os.O_RDWR)
        try:
            if stop > begin:
                aside = directory / f"torn-{begin:016x}.bytes"
                files.store(aside, files.pieces(fd, begin - segment.base, stop - segment.base))
                notes.append(f"set aside {stop - begin} bytes beyond the durable mark; they are in {aside.name}")
            if begin > segment.base:
                files.truncate(fd, begin - segment.base)
                files.sync(fd)
        finally:
            files.close(fd)
        if begin == segment.base:
            files.unlink(segment.path)
            files.unlink(scan.index_path_of(directory, segment.base))
            files.sync_directory(directory)
    return notes


def cut_at_mark(directory: Path, files: Files) -> list[str]:
    """Set aside what lies beyond the durable mark of a replica; do nothing in a directory that was none before.

    :return: notes for the log
    :raises JournalCorrupt: the durable mark is not known
    """
    if not (directory / REPLICA).exists():
        return []
    mark = scan.look_at_mark(directory, files)
    if scan.segments(directory) and (mark.copied or mark.begin is None):
        raise JournalCorrupt(
            f"the durable mark of the replica {directory} is unknown, because {scan.MARK_NAME} is "
            f"{'of another directory' if mark.copied else 'missing or damaged'}; empty the directory, so that it is "
            "filled from another server"
        )
    return set_aside_beyond(directory, mark.durable, files)
