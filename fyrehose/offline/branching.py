"""Let the copy of a journal go its own way: a new branch of the log, which uses no number that was given out already.

    in: a directory with the copy      out: the same log there, then a batch in which every stream skips numbers

The server whose journal was copied may have given out numbers that the copy does not have: those of messages that it
acknowledged later, and that subscribers or a lake have seen.  Every stream skips numbers, so that no two messages get
the same one.  From the batch with these gaps on, the two logs differ.  A program that remembers a position also
remembers the checksum of the log before that position, by which it finds out which of the two logs it has read.
Relink's links, which are in a stream, too, are lost by the gap in that stream: the listener takes a new epoch.

This module does not import Twisted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from fyrehose.errors import JournalError, os_reason
from fyrehose.journal.files import Files
from fyrehose.journal.recovery import recover
from fyrehose.journal.settings import JournalSettings
from fyrehose.journal.writer import Writer
from fyrehose.offline.changing import changing

#: How many numbers every stream skips: more than a server gives out in six hours at three million a second, or in a
#: week at 100,000 a second.  A stream has 2^48 numbers.
SKIPPED = 1 << 36


@attrs.frozen
class Branch:
    """The beginning of a branch.

    :ivar position: where the log of the copy ended
    :ivar time: the time of its last batch, in microseconds since 1970 UTC
    :ivar streams: how many streams it has, without retired streams
    """

    position: int
    time: int
    streams: int


def begin_branch(directory: Path, files: Files, failure: str, markers: Sequence[str]) -> Branch:
    """Begin a new branch of the journal in *directory*, then delete the files *markers*, which kept servers from it.

    After an interruption, the same call completes it.

    :param failure: for errors: what could not be done, such as "cannot be promoted"
    :raises JournalLocked: another process uses the directory
    :raises JournalFull: the disk is full
    :raises JournalError: the journal cannot be recovered or written
    """
    try:
        with changing(directory, failure):
            journal = recover(directory, files)
            branch = Branch(journal.position, journal.time, len(journal.streams.ends))
            _part(Writer(directory, journal, JournalSettings().segment_size, files=files), journal.time)
            for name in markers:
                files.unlink(directory / name)
            files.sync_directory(directory)
    except OSError as error:
        raise JournalError(
            f"{directory} {failure}: {os_reason(error)}; check the disk, and run the same command again"
        ) from error
    return branch


def _part(writer: Writer, time: int) -> None:
    """Append a gap durably, so that every stream skips numbers and the log differs from others; close the log."""
    try:
        writer.open(time)
        # The random part makes the checksums differ if two copies begin branches at the same position.
        writer.skip_numbers(SKIPPED + int.from_bytes(writer.files.random(4), "little"))
    except BaseException:
        writer.close(in_order=False)
        raise
    writer.close(in_order=True)
