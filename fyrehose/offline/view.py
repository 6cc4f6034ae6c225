"""A consistent view of a journal for other processes, while a server writes, rolls over and deletes.

    in: a directory      out: the durable mark, and the segments below it

This module does not import Twisted.
"""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import attrs

from fyrehose.errors import JournalError
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.ends import vouched_end
from fyrehose.journal.files import Files
from fyrehose.journal.recovery import check_front, damaged, durable_beyond, newer_refused, noted_end

#: How often a directory is read again if it changes during the read, and the pause between two tries, in seconds.
_TRIES = 5
_PAUSE = 0.01


@attrs.frozen(slots=True, order=True)
class Extent:
    """The durable part of a segment, from the position *base* to the position *end*."""

    base: int
    end: int


@attrs.frozen(slots=True)
class View:
    """The durable content of a journal at one moment.

    :ivar mark: the durable mark; nothing from this position on may be read
    :ivar segments: in the order of their positions; positions between two segments, or between the last and the mark,
        are missing in the journal
    :ivar identity: of the journal, 16 bytes; zeros if it has none yet
    :ivar vouched: whether MARK or the file END says that this is the end of the log; if not, newer records may be
        missing
    :ivar noted: the end that the MARK of such a copy names; 0: none
    """

    mark: int
    segments: tuple[Extent, ...]
    identity: bytes = fmt.UNKNOWN
    vouched: bool = True
    noted: int = 0

    @property
    def start(self) -> int:
        """Return the oldest position that is kept."""
        return self.segments[0].base if self.segments else self.mark

    def doubt(self, where: object) -> str:
        """Return why records of the journal at *where* may be missing behind the mark; "" if its end is vouched for."""
        if self.vouched:
            return ""
        what = f"it reaches to position {self.mark}, and newer records may be missing"
        if self.noted > self.mark:
            what = f"it reaches to position {self.mark}, {beyond(self.noted, self.mark)}"
        return (
            f"{where} is a copy, and nothing vouches for its end: its file END is missing, and MARK is missing, "
            f"damaged, or of another moment; {what}"
        )


def beyond(noted: int, end: int) -> str:
    """Return text about a copy that reaches to the position *end*, with a MARK that says *noted*."""
    return (
        f"and its MARK to {noted}: {noted - end} bytes are missing, which were written while the files were copied, or "
        "the copy is truncated"
    )


def differ(first: bytes, second: bytes) -> bool:
    """Return whether both identities are known, and are different."""
    return any(first) and any(second) and first != second


def look(directory: Path) -> View:
    """Return the durable content of the journal in *directory*.

    :raises JournalError: there is no such directory
    :raises JournalCorrupt: it has a file END, and the log does not reach the end that this names
    """
    if not directory.is_dir():
        raise JournalError(f"{directory} is no journal: there is no such directory")
    for _ in range(_TRIES):
        # The mark is read first, so that segments that are created afterwards have no bytes below it.
        vouched = vouched_mark(directory)
        mark = vouched.durable or durable_by_batches(directory)
        found = [segment for segment in scan.segments(directory) if segment.base < mark]
        ends = [segment.base for segment in found[1:]] + [mark] * bool(found)
        extents = tuple(Extent(s.base, min(s.end, end)) for s, end in zip(found, ends, strict=True))
        if all(extent.end == after.base for extent, after in pairwise(extents)):
            break
        # A segment was deleted while the directory was read.  Those before it were deleted, too, so read it again.
        time.sleep(_PAUSE)
    try:
        with newer_refused(directory):
            identity = scan.identity_of(found)
    except FileNotFoundError:
        identity = fmt.UNKNOWN  # the only segment was deleted at this moment
    noted = scan.look_at_mark(directory, Files()).durable if vouched.copied else 0
    return View(mark, extents, identity, vouched.durable > 0 or not found, noted)


def vouched_mark(directory: Path) -> scan.Mark:
    """Return the end of the log for which MARK or the file END vouches.

    :return: an empty Mark if neither does
    :raises JournalCorrupt: the file END is damaged, or the log does not reach the end that it, or a copied MARK, proves
    """
    files = Files()
    mark, end = believed_mark(directory), vouched_end(directory, files)
    if end is not None and mark.durable < end.position:
        return scan.Mark(end.position, end.begin)
    if not mark.copied:
        return mark
    noted, found = scan.look_at_mark(directory, files), scan.segments(directory)
    if not found:
        return mark
    check_front(directory, found[0].base, noted)
    last, (known, intact) = found[-1], noted_end(directory, found, noted, files)
    if intact < known:
        raise damaged(last.path, intact, last.base, f"the log reached to position {known}, as MARK says")
    return scan.Mark(known, noted.begin) if known else mark


def believed_mark(directory: Path) -> scan.Mark:
    """Return the content of MARK; an empty Mark if the file is missing, damaged, or from another directory."""
    path = directory / scan.MARK_NAME
    mark = scan.Mark()
    for _ in range(_TRIES):
        mark = scan.look_at_mark(directory, Files())
        if mark.durable or not path.exists() or not path.stat().st_size:
            break
        time.sleep(_PAUSE)  # the file is being written at this moment
    return mark.trusted


def durable_by_batches(directory: Path) -> int:
    """Return the durable position according to the headers of batches, which is a little older than that in MARK.

    :raises JournalCorrupt: a newer version has written a batch
    """
    found = scan.segments(directory)
    if not found:
        return 0
    last = scan.without_hole(found[-1], Files())
    with scan.SegmentReader(last.path, last.base) as reader, newer_refused(last.path):
        return max(durable_beyond(reader, last.base, last.end), last.base)
