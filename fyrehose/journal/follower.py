"""Set aside the bytes of the log beyond the durable mark, in the directory of a server of a cluster.

MARK says up to where the log is on disk here *and* released (see :mod:`fyrehose.cluster`).  Bytes beyond MARK when
the journal is opened are moved to a file ``torn-POSITION.bytes``: only the shared log tells which bytes follow the
mark.  If the shared log is lost, these files may have the only copy of the bytes, so they can be appended to the log
again.
"""

from __future__ import annotations

import os
from pathlib import Path

import attrs

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.exchange import start_of
from fyrehose.journal.files import Files
from fyrehose.journal.recovery import last_byte
from fyrehose.journal.writer import Writer

#: Name of the file that marks a directory as a replica; the file contains the name of the server.
REPLICA = "REPLICA"
#: Limit of the size of a file that was set aside, in bytes.
ASIDE_LIMIT = 1 << 30


def set_aside_beyond(directory: Path, position: int, files: Files) -> list[str]:
    """Move the bytes of the log beyond *position* to files; no other process may write in *directory* meanwhile.

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
        with scan.SegmentReader(segment.path, segment.base, files) as reader:
            stop = last_byte(reader, begin, segment.end)
        with files.opened(segment.path, os.O_RDWR) as fd:
            if stop > begin:
                aside = _aside(directory, begin)
                files.store(aside, files.pieces(fd, begin - segment.base, stop - segment.base))
                notes.append(f"set aside {stop - begin} bytes beyond the durable mark; they are in {aside.name}")
            if begin > segment.base:
                files.truncate(fd, begin - segment.base)
                files.sync(fd)
        if begin == segment.base:
            files.unlink(segment.path)
            files.unlink(scan.index_path_of(directory, segment.base))
            files.sync_directory(directory)
    return notes


def cut_at_mark(directory: Path, files: Files) -> list[str]:
    """Set aside the bytes beyond the durable mark; do nothing if the directory was not used in a cluster before.

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


@attrs.frozen
class SetAside:
    """A file with bytes of the log that were set aside, from *position* to *end*."""

    path: Path
    position: int
    end: int


def continuing(directory: Path, position: int, identity: bytes, chain: int) -> list[SetAside]:
    """Return the files that were set aside and continue the log of *directory* behind *position*, in order.

    :param identity: of the journal
    :param chain: the checksum from which the log continues
    """
    found = []
    while (path := _aside(directory, position)).exists():
        end, chain = _whole(bytearray(Files().content(path, ASIDE_LIMIT)), position, identity, chain)
        if end == position:
            break
        found.append(SetAside(path, position, end))
        position = end
    return found


def bring_back(writer: Writer, found: list[SetAside], files: Files) -> None:
    """Append the files that were set aside to the log again, durably, and delete them.

    :param found: see :func:`continuing`
    :raises NoRoom: the disk is full; the same call continues later
    """
    for aside in found:
        size = aside.end - aside.position
        writer.apply(aside.position, files.content(aside.path, ASIDE_LIMIT)[:size].ljust(size, b"\0"))
        files.unlink(aside.path)


def _aside(directory: Path, position: int) -> Path:
    """Return the path of the file that is set aside from *position* on."""
    return directory / f"torn-{position:016x}.bytes"


def _whole(data: bytearray, position: int, identity: bytes, chain: int) -> tuple[int, int]:
    """Return where the whole batches in *data* that continue a log at *position* end, and their last checksum.

    The file lacks the zeros at the very end of the last batch, although the batch's checksum covers them.
    """
    begin = position
    try:
        if data.startswith(fmt.SEGMENT_MAGIC):
            _batch(data, fmt.SEGMENT_HEADER.size, begin)
            size, chain = start_of(begin, bytes(data), identity, chain, begun=False)
            position += size
        while position - begin < len(data):
            header, body = _batch(data, position - begin, begin)
            if header.chain != chain:
                break
            header.check(body)
            position, chain = header.end, header.checksum
    except fmt.Damage:
        pass  # the last batch was not written as a whole
    return position, chain


def _batch(data: bytearray, at: int, begin: int) -> tuple[fmt.BatchHeader, bytes]:
    """Return the header and the body of the batch at *at*; add the zeros that are missing at the end of *data*."""
    body = at + fmt.BATCH_HEADER.size
    data.extend(bytes(max(0, body - len(data))))
    header = fmt.BatchHeader.unpack(data[at:body], begin + at)
    data.extend(bytes(max(0, body + header.length - len(data))))
    return header, bytes(data[body : body + header.length])
