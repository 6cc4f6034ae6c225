"""What a journal holds at one moment, as other processes see it while a server writes, rolls and deletes.

    in: a directory      out: the durable mark, and the segments below it

Knows no Twisted.
"""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import attrs

from fyrehose.errors import JournalError
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.files import Files
from fyrehose.journal.recovery import durable_beyond, newer_refused

#: How often a directory is looked at again that changes meanwhile, and how long is waited in between, in seconds.
_TRIES = 5
_PAUSE = 0.01


@attrs.frozen(slots=True, order=True)
class Extent:
    """A segment, as far as it is there and durable: positions ``base`` to ``end``."""

    base: int
    end: int


@attrs.frozen(slots=True)
class View:
    """What a journal held at one moment.

    :ivar mark: nothing from this position on may be read
    :ivar segments: in the order of their positions; what lies between two of them, or before the mark, is missing
    :ivar identity: of the journal, 16 bytes; zeros if it has none yet
    """

    mark: int
    segments: tuple[Extent, ...]
    identity: bytes = fmt.UNKNOWN

    @property
    def start(self) -> int:
        """The oldest position that is kept."""
        return self.segments[0].base if self.segments else self.mark


def look(directory: Path) -> View:
    """What there is, and durable.

    :raises JournalError: there is no such directory
    """
    if not directory.is_dir():
        raise JournalError(f"{directory} is no journal: there is no such directory")
    for _ in range(_TRIES):
        # The mark first: a segment that is made after it holds nothing below it.
        mark = durable_mark(directory)
        found = [segment for segment in scan.segments(directory) if segment.base < mark]
        ends = [segment.base for segment in found[1:]] + [mark] * bool(found)
        extents = tuple(Extent(s.base, min(s.end, end)) for s, end in zip(found, ends, strict=True))
        if all(extent.end == after.base for extent, after in pairwise(extents)):
            break
        # Perhaps one was deleted while the directory was read; those before it are not there any more, either.
        time.sleep(_PAUSE)
    try:
        with newer_refused(directory):
            identity = scan.identity_of(found)
    except FileNotFoundError:
        identity = fmt.UNKNOWN  # the only segment was deleted at this moment
    return View(mark, extents, identity)


def durable_mark(directory: Path) -> int:
    """Return the durable mark; 0 where nothing is durable yet."""
    return believed_mark(directory).durable or durable_by_batches(directory)


def believed_mark(directory: Path) -> scan.Mark:
    """Return what MARK says, or an empty one where it is missing, damaged, or copied from another directory."""
    path = directory / scan.MARK_NAME
    mark = scan.Mark()
    for _ in range(_TRIES):
        mark = scan.look_at_mark(directory, Files())
        if mark.durable or not path.exists() or not path.stat().st_size:
            break
        time.sleep(_PAUSE)  # it is being written at this moment
    return scan.Mark() if mark.copied else mark


def durable_by_batches(directory: Path) -> int:
    """Return what batches say of those before them; MARK is only a cache of it, a little newer.

    :raises JournalCorrupt: a newer version has written them
    """
    found = scan.segments(directory)
    if not found:
        return 0
    reader = scan.SegmentReader(found[-1].path, found[-1].base)
    try:
        with newer_refused(found[-1].path):
            return max(durable_beyond(reader, found[-1].base, found[-1].end), found[-1].base)
    finally:
        reader.close()
