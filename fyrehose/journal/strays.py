"""Set aside files that are not part of the log, although they are named like its segments.

A segment of another journal, or an old copy of a segment, may have a name that this log would give to a segment.  Two
files then have bytes for the same positions.  If the previous segment goes on with undamaged batches where the stray
file begins, only that file is
set aside, and no record is lost.

    in: a directory      out: renamed and truncated files, messages for the log
"""

from __future__ import annotations

from pathlib import Path

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.files import Files
from fyrehose.journal.recovery import cut, last_byte


def set_strays_aside(directory: Path, files: Files) -> list[str]:
    """Rename every segment file that begins where the previous segment goes on; return messages about them.

    Bytes of a segment file behind the start of the next segment are also set aside, if they are not part of the log.

    :raises JournalCorrupt: two files of this journal have the same positions, and nothing tells which one is right
    """
    notes = []
    found = scan.segments(directory)
    while len(found) > 1:
        segment, after = found[:2]
        del found[0]
        with scan.SegmentReader(segment.path, segment.base, files) as reader:
            end = last_byte(reader, after.base, segment.end)
            # A batch may end with zeros, so zeros do not show where the last batch ends.
            goes_on = segment.end > after.base and _undamaged_end(reader, segment.end) > after.base
            header = reader.look_at_header()
        if goes_on:
            if header is None or _is_of(after, header.identity, files):
                raise JournalCorrupt(
                    f"{segment.path} and {after.path} both have the log at position {after.base}, and nothing tells "
                    "which one is right, as if copies of the journal from different times were mixed; put the files "
                    "back from one copy"
                )
            aside = free_name(directory / f"quarantine-{after.base:016x}.segment.bytes")
            files.rename(after.path, aside)
            files.unlink(scan.index_path_of(directory, after.base))
            files.sync_directory(directory)
            notes.append(f"{after.path.name}, which is no part of this journal, was set aside in {aside.name}")
            found[0] = segment
        elif end > after.base:
            notes.append(_cut(segment, after.base, end, files))
    return notes


def _undamaged_end(reader: scan.SegmentReader, stop: int) -> int:
    """Return the position up to which the batches of a segment are undamaged and follow each other."""
    position = reader.base + fmt.SEGMENT_HEADER.size
    try:
        for header, _ in reader.batches(position, stop):
            position = header.end
    except fmt.Damage:
        pass  # the next bytes are damaged, or belong to no batch
    return position


def _is_of(segment: scan.Segment, identity: bytes, files: Files) -> bool:
    """Return whether the header of *segment* is undamaged, and of the journal with this *identity*."""
    with scan.SegmentReader(segment.path, segment.base, files) as reader:
        header = reader.look_at_header()
    return header is not None and header.identity in (fmt.UNKNOWN, identity)


def _cut(segment: scan.Segment, start: int, stop: int, files: Files) -> str:
    """Move the bytes of a segment file from *start* to its end *stop* to another file; return a message."""
    aside = free_name(segment.path.with_name(f"quarantine-{start:016x}.bytes"))
    cut(segment, start, stop, aside, files)
    size, name = stop - start, segment.path.name
    return f"{size} bytes of {name} behind the start of the next segment were set aside in {aside.name}"


def free_name(path: Path) -> Path:
    """Return *path*, or a similar path that is free: files from an interrupted quarantine must not be overwritten."""
    tried, number = path, 1
    while tried.exists():
        number += 1
        tried = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return tried
