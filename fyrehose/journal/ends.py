"""The end of a finished backup or standby, in a small file that survives every way to copy it.

MARK says how far the files are durable, but it is believed only where it was written: a copy of it may be of another
moment than the segments beside it.  A backup that is finished states in the file END where it begins and ends.  END is
text with a checksum, and depends on no inode number, time or host.  So a copy that lacks a segment, or a part of one,
is told from a whole one.

    in: a directory      out: VouchedEnd; an error if the log is not the one that END describes

This module does not import Twisted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import attrs
from crc32c import crc32c

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.files import Files
from fyrehose.options import counted

#: Name of the file.
END = "END"

_TEXT = re.compile(
    r"journal end 1\n"
    r"identity (?P<identity>[0-9a-f]{32})\n"
    r"begin (?P<begin>[0-9]{1,19})\n"
    r"segment (?P<base>[0-9]{1,19})\n"
    r"records (?P<records>[0-9]{1,19})\n"
    r"last (?P<last>[0-9]{1,19})\n"
    r"position (?P<position>[0-9]{1,19})\n"
    r"chain (?P<chain>[0-9a-f]{8})\n"
)
_CHECKSUM = re.compile(rb"crc32c ([0-9a-f]{8})\n")
#: Limit of the size of the file, in bytes.
_MOST = 1 << 10


@attrs.frozen(slots=True)
class VouchedEnd:
    """The end of a log, for which a finished backup vouches.

    :ivar identity: of the journal
    :ivar begin: the position of the oldest segment that is kept
    :ivar base: the position at which the last segment begins
    :ivar records: how many records the log has from its begin to its end
    :ivar last: the position of the last batch
    :ivar position: where the log ends
    :ivar chain: the checksum of the last batch, which covers all batches before it
    """

    identity: bytes
    begin: int
    base: int
    records: int
    last: int
    position: int
    chain: int

    def pack(self) -> bytes:
        """Return the content of the file."""
        text = (
            f"journal end 1\nidentity {self.identity.hex()}\nbegin {self.begin}\nsegment {self.base}\n"
            f"records {self.records}\nlast {self.last}\nposition {self.position}\nchain {self.chain:08x}\n"
        ).encode()
        return text + f"crc32c {crc32c(text):08x}\n".encode()

    @classmethod
    def unpack(cls, data: bytes) -> VouchedEnd:
        """Decode the content of the file.

        :raises Damage: it is damaged, truncated, or of a newer version
        """
        text, rest = data[:-16], data[-16:]
        checksum, found = _CHECKSUM.fullmatch(rest), _TEXT.fullmatch(text.decode("latin-1"))
        if checksum is None or found is None or int(checksum[1], 16) != crc32c(text):
            raise fmt.Damage("its text and its checksum do not match")
        positions = {name: int(found[name]) for name in ("begin", "base", "records", "last", "position")}
        return cls(bytes.fromhex(found["identity"]), chain=int(found["chain"], 16), **positions)

    def check(self, directory: Path, found: Sequence[scan.Segment], files: Files) -> None:
        """Check that the log in *directory* reaches this end; of the batches, only the header of the last is read.

        :param found: the segments of the directory
        :raises JournalCorrupt: segments are missing or too short, or they are those of another log
        """
        before = [segment for segment in found if segment.base <= self.base]
        if not before or before[0].base > self.begin:
            first = before[0].base if before else self.position
            raise JournalCorrupt(
                f"{directory} lacks its oldest segments: by its file {END} its log begins at position {self.begin}, "
                f"and what is there begins at {first}; copy the missing files again"
            )
        last = before[-1]
        if last.base != self.base or last.end < self.position:
            raise self._short(directory, last)
        with scan.SegmentReader(last.path, last.base, files) as reader:
            try:
                header, identity = reader.batch_header(self.last), reader.header().identity
            except fmt.Damage as damage:
                raise JournalCorrupt(
                    f"{last.path} is damaged at byte {self.last - last.base} (position {self.last}), in its last "
                    f"batch: {damage}; copy this file again"
                ) from damage
        if (header.end, header.checksum, identity) != (self.position, self.chain, self.identity):
            raise JournalCorrupt(
                f"the file {END} in {directory} is not that of its segments: it names the batch {self.last} to "
                f"{self.position} with the checksum {self.chain:08x} of the journal {self.identity.hex()}, and "
                f"{last.path.name} has one that ends at {header.end} with {header.checksum:08x} of "
                f"{identity.hex()}; copy all files again from one backup"
            )

    def _short(self, directory: Path, last: scan.Segment) -> JournalCorrupt:
        name = scan.path_of(directory, self.base).name
        if last.base == self.base:
            what = f"{name} is truncated: it ends at position {last.end}"
        else:
            what = f"{name} is missing, and what is there ends at position {last.end}"
        lost = self.records - records_between(directory, self.begin, self.position)
        return JournalCorrupt(
            f"{directory} is shorter than its file {END} says: it ended at position {self.position}, {what}, and "
            f"{lost:,} of its {counted(self.records, 'record')} are missing; copy the missing files again, or restore "
            "another copy"
        )


def records_between(directory: Path, start: int, stop: int) -> int:
    """Return how many records the segments in *directory* have, by the headers of their batches.

    A batch that is truncated does not count, nor does what follows a damaged header in the same segment.

    :param start: where a segment or a batch begins
    """
    records = 0
    for segment in scan.segments(directory):
        position, end = max(start, segment.base + fmt.SEGMENT_HEADER.size), min(segment.end, stop)
        if position >= end:
            continue
        with scan.SegmentReader(segment.path, segment.base) as reader:
            try:
                while position < end and (header := reader.batch_header(position)).end <= end:
                    records += header.records
                    position = header.end
            except fmt.Damage:
                pass  # a truncated file, or damage, which verification reports
    return records


def look_at_end(directory: Path, files: Files) -> VouchedEnd | None:
    """Read the file END; return None if there is none.

    :raises JournalCorrupt: it is damaged
    """
    path = directory / END
    try:
        return VouchedEnd.unpack(files.content(path, _MOST))
    except FileNotFoundError:
        return None
    except (OSError, fmt.Damage) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise JournalCorrupt(
            f"{path} is damaged: {why}; copy it again from the backup, or run `fyrehose journal backup` again; if "
            "there is neither, delete it, and the end of the log is unknown"
        ) from error


def vouched_end(directory: Path, files: Files) -> VouchedEnd | None:
    """Return the end for which the file END vouches, after :meth:`VouchedEnd.check`; None if there is no such file.

    A backup may be running meanwhile: it writes END before it deletes a segment.

    :raises JournalCorrupt: the file is damaged, or the log does not reach the end
    """
    end = look_at_end(directory, files)
    while end is not None:
        try:
            end.check(directory, scan.segments(directory), files)
        except JournalCorrupt:
            before, end = end, look_at_end(directory, files)
            if end == before:
                raise
        else:
            break
    return end
