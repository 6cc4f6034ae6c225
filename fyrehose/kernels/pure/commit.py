"""The kernel of a small commit, which every single message passes: encode a batch, write it, sync it, and write MARK.

    runs, grouped by stream -> header | runs -> CRC32C -> write -> sync -> is the file still there? -> MARK

docs/journal-format.md describes the bytes.  MARK is written last, so that the durable mark in it is never beyond the
bytes on disk.
"""

from __future__ import annotations

import errno
import os
import time as clocks
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

from crc32c import crc32c

from fyrehose.kernels.buffers import Buffer

#: The step of a commit that has failed.  If it is WRITE, a part of the batch may have been written.
DONE, WRITE, SYNC, UNLINKED, MARK = range(5)

#: Limit of the bytes that one system call writes.  With ext4 of Linux 6.18 a call that writes more than 2 MiB into
#: allocated space takes fourteen times as long: 46 ms for 16 MiB, while all other commits wait.
LONGEST_WRITE = 1 << 20

_HEADER = Struct("<3sBBB2xIIIIQQqqI")
_RUN = Struct("<IIQQIHHHHBB2x")
_MARK = Struct("<QIQQI")
_CRC = Struct("<I")
_PADDING = tuple(bytes(size) for size in range(8))
_CONTIGUOUS, _PRODUCER_SEQS, _EVENT_IDS, _EVENT_TIMES = 8, 16, 32, 64

#: Encodes the strings of a run: (stream, source, producer, topic, content type) -> the bits of the strings that are
#: present, their lengths as in the header of a run, and the padded bytes.
Names = Callable[[str, str, str | None, str | None, str | None], tuple[int, tuple[int, ...], bytes]]


class Calls:
    """The system calls of a commit; each raises OSError only."""

    def write(self, fd: int, data: Buffer, offset: int) -> None:
        """Write all of *data* at *offset*; after an error, a part of it may have been written."""
        view = memoryview(data)
        while view:
            written = os.pwrite(fd, view[:LONGEST_WRITE], offset)
            if not written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            view, offset = view[written:], offset + written

    def sync(self, fd: int) -> None:
        """Sync the data to disk, and the metadata without which the data could not be read."""
        os.fdatasync(fd)

    def is_linked(self, fd: int) -> bool:
        """Return whether the open file still has a name; the data of a deleted file is lost when it is closed."""
        return os.fstat(fd).st_nlink > 0


def commit(*batch: Any) -> tuple[int, int, int, float, int, int]:
    """Write *batch* as :func:`stepwise` does, by the system calls of the operating system."""
    return stepwise(Calls(), *batch)


def stepwise(
    calls: Calls,
    segment: int,
    offset: int,
    mark: int,
    runs: Sequence[Any],
    names: Names,
    position: int,
    durable: int,
    time: int,
    clock: int,
    chain: int,
    begin: int,
    inode: int,
    generation: int,
) -> tuple[int, int, int, float, int, int]:
    """Write *runs*, which are numbered and grouped by stream, as one batch, sync it, and write MARK.

    :param calls: the system calls, which a test may count, or make fail
    :param segment, mark: descriptors of the files
    :param offset: the offset of the batch in the segment
    :param position: the position of the batch in the log
    :param durable: the position below which all bytes were on disk before
    :param time: the time of the records, in microseconds since 1970 UTC
    :param clock: the wall clock, in microseconds since 1970 UTC
    :param chain: checksum of the previous batch
    :param begin, inode, generation: the rest of MARK: the position of the oldest segment, and the identity of the file
    :return: the length of the body, its checksum, the number of records, how long the sync took in seconds, the step
        that has failed, and its errno
    """
    pieces: list[Buffer] = []
    records = 0
    for run in runs:
        records += len(run.lengths) // 4
        pieces += run_pieces(run, names)
    body = b"".join(pieces)
    checksum = crc32c(body, chain)
    head = _HEADER.pack(b"FYB", 1, 0, 0, len(body), len(runs), records, chain, position, durable, time, clock, checksum)
    seconds, step = 0.0, WRITE
    try:
        calls.write(segment, b"".join((head, _CRC.pack(crc32c(head)), body)), offset)
        step, began = SYNC, clocks.monotonic()
        calls.sync(segment)
        step, seconds = UNLINKED, clocks.monotonic() - began
        if calls.is_linked(segment):
            step = MARK
            calls.write(mark, _mark(position + len(head) + _CRC.size + len(body), begin, inode, generation), 0)
            step = DONE
        failed = 0
    except OSError as error:
        failed = error.errno or errno.EIO
    return len(body), checksum, records, seconds, step, failed


def run_pieces(run: Any, names: Names) -> list[Buffer]:
    """Return the bytes of one run of records, in pieces."""
    has, sizes, strings = names(run.stream, run.source, run.producer, run.topic, run.content_type)
    columns: list[Buffer] = []
    first_producer_seq = 0
    if isinstance(run.producer_seq, int):
        has |= _CONTIGUOUS
        first_producer_seq = run.producer_seq
    elif run.producer_seq is not None:
        has |= _PRODUCER_SEQS
        columns.append(run.producer_seq)
    if run.event_ids is not None:
        has |= _EVENT_IDS
        columns.append(run.event_ids)
    if run.event_times is not None:
        has |= _EVENT_TIMES
        columns.append(run.event_times)
    size, count = len(run.payload), len(run.lengths) // 4
    columns += run.lengths, _PADDING[-4 * count % 8], run.payload, _PADDING[-size % 8]
    length = _RUN.size + len(strings) + sum(map(len, columns))
    return [_RUN.pack(length, count, run.first_seq, first_producer_seq, size, has, *sizes), strings, *columns]


def wall_clock() -> int:
    """Return the wall clock, in microseconds since 1970 UTC."""
    return clocks.time_ns() // 1000


def monotonic_clock() -> int:
    """Return a clock that never steps, in microseconds; it also runs while the machine is suspended."""
    return clocks.clock_gettime_ns(clocks.CLOCK_BOOTTIME) // 1000


def _mark(durable: int, begin: int, inode: int, generation: int) -> bytes:
    """Return the content of MARK."""
    packed = _MARK.pack(durable, crc32c(durable.to_bytes(8, "little")), begin, inode, generation)
    return packed + _CRC.pack(crc32c(packed))
