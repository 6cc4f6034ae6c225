# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Native version of ``fyrehose.kernels.pure.commit``, which specifies the functions and is the reference in tests.

The lock of the interpreter is released from the first write to the last, so that another thread can go on meanwhile.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EINTR, ENOSPC, errno
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from crc32c import crc32c

cdef extern from *:
    """
    #include <stdint.h>
    #include <sys/stat.h>
    #include <time.h>
    #include <unistd.h>
    static double fyrehose_seconds(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec + now.tv_nsec * 1e-9;
    }
    static int64_t fyrehose_clock(int boot) {
        struct timespec now;
        clock_gettime(boot ? CLOCK_BOOTTIME : CLOCK_REALTIME, &now);
        return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
    }
    static int fyrehose_links(int fd) {
        struct stat found;
        return fstat(fd, &found) ? -1 : found.st_nlink > 0;
    }
    """
    double seconds_now "fyrehose_seconds"() noexcept nogil
    int64_t clock_now "fyrehose_clock"(int boot) noexcept nogil
    int links "fyrehose_links"(int fd) noexcept nogil

cdef extern from "unistd.h" nogil:
    ssize_t pwrite(int fd, const void* data, size_t size, int64_t offset)
    int fdatasync(int fd)

cdef extern from "Python.h":
    object PyMemoryView_FromMemory(char* memory, Py_ssize_t size, int flags)
    enum: PyBUF_READ

DONE, WRITE, SYNC, UNLINKED, MARK = range(5)

cdef enum:
    HEADER_SIZE = 64
    RUN_SIZE = 40
    MARK_SIZE = 36


cdef inline uint32_t crc(const uint8_t* data, Py_ssize_t size, uint32_t chain) except? 0:
    return crc32c(PyMemoryView_FromMemory(<char*>data, size, PyBUF_READ), chain)


cdef inline uint8_t* put(uint8_t* at, uint8_t* end, object data) except NULL:
    """Copy *data* to *at*; return the position behind it."""
    cdef Py_buffer view
    cdef Py_ssize_t size
    if type(data) is bytes:
        size = PyBytes_GET_SIZE(data)
        if size > end - at:
            raise ValueError("the columns of a run are larger than they were")
        memcpy(at, PyBytes_AS_STRING(data), size)
        return at + size
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    size = view.len
    if size > end - at:
        PyBuffer_Release(&view)
        raise ValueError("the columns of a run are larger than they were")
    memcpy(at, view.buf, size)
    PyBuffer_Release(&view)
    return at + size


cdef inline uint8_t* pad(uint8_t* at, const uint8_t* start) noexcept:
    """Fill up with zeros to the next multiple of 8 bytes behind *start*, the room for which is always there."""
    while (at - start) % 8:
        at[0] = 0
        at += 1
    return at


cdef uint8_t* put_run(uint8_t* start, uint8_t* end, object run, object names, uint64_t* records) except NULL:
    """Write one run at *start*; return the position behind it."""
    cdef uint8_t* at = start + RUN_SIZE
    cdef uint64_t first = run.first_seq, first_producer_seq = 0
    cdef uint32_t length, count, size
    cdef uint16_t has, short_size
    named = names(run.stream, run.source, run.producer, run.topic, run.content_type)
    has = named[0]
    sizes = named[1]
    strings = named[2]
    lengths, payload = run.lengths, run.payload
    count, size = len(lengths) // 4, len(payload)
    at = put(at, end, strings)
    column = run.producer_seq
    if isinstance(column, int):
        has |= 8
        first_producer_seq = column
    elif column is not None:
        has |= 16
        at = put(at, end, column)
    column = run.event_ids
    if column is not None:
        has |= 32
        at = put(at, end, column)
    column = run.event_times
    if column is not None:
        has |= 64
        at = put(at, end, column)
    at = pad(put(at, end, lengths), start)
    at = pad(put(at, end, payload), start)
    length = <uint32_t>(at - start)
    memcpy(start, &length, 4)
    memcpy(start + 4, &count, 4)
    memcpy(start + 8, &first, 8)
    memcpy(start + 16, &first_producer_seq, 8)
    memcpy(start + 24, &size, 4)
    memcpy(start + 28, &has, 2)
    short_size = sizes[0]
    memcpy(start + 30, &short_size, 2)
    short_size = sizes[1]
    memcpy(start + 32, &short_size, 2)
    short_size = sizes[2]
    memcpy(start + 34, &short_size, 2)
    start[36], start[37], start[38], start[39] = sizes[3], sizes[4], 0, 0
    records[0] += count
    return at


cdef int write_all(int fd, const uint8_t* data, Py_ssize_t size, int64_t offset) noexcept nogil:
    """Write all of *data*; return 0, or an errno."""
    cdef ssize_t written
    while size > 0:
        written = pwrite(fd, data, size, offset)
        if written < 0:
            if errno == EINTR:
                continue
            return errno
        if written == 0:
            return ENOSPC
        data += written
        offset += written
        size -= written
    return 0


cdef int sync(int fd) noexcept nogil:
    """Sync the data of a file; return 0, or an errno."""
    while fdatasync(fd):
        if errno != EINTR:
            return errno
    return 0


def wall_clock():
    return clock_now(0)


def monotonic_clock():
    return clock_now(1)


def commit(int segment, int64_t offset, int mark, runs, names, uint64_t position, uint64_t durable, int64_t time,
           int64_t clock, uint32_t chain, uint64_t begin, uint64_t inode, uint32_t generation):
    cdef Py_ssize_t room = HEADER_SIZE, length
    cdef uint32_t count, checksum, total
    cdef uint64_t records = 0, marked
    cdef uint8_t* at
    cdef uint8_t* end
    cdef uint8_t mark_bytes[MARK_SIZE]
    cdef uint8_t* data
    cdef double began, seconds = 0.0
    cdef int step = 1, failed = 0, linked
    for run in runs:
        room += run.room + 24  # for the zeros between the columns
    data = <uint8_t*>PyMem_Malloc(room)
    if data == NULL:
        raise MemoryError
    try:
        at, end = data + HEADER_SIZE, data + room - 24
        for run in runs:
            if end - at < RUN_SIZE:
                raise ValueError("the columns of a run are larger than they were")
            at = put_run(at, end, run, names, &records)
        length = at - data - HEADER_SIZE
        checksum = crc(data + HEADER_SIZE, length, chain)
        memset(data, 0, HEADER_SIZE)
        memcpy(data, b"FYB\x01", 4)
        total = <uint32_t>length
        memcpy(data + 8, &total, 4)
        total = <uint32_t>len(runs)
        memcpy(data + 12, &total, 4)
        total = <uint32_t>records
        memcpy(data + 16, &total, 4)
        memcpy(data + 20, &chain, 4)
        memcpy(data + 24, &position, 8)
        memcpy(data + 32, &durable, 8)
        memcpy(data + 40, &time, 8)
        memcpy(data + 48, &clock, 8)
        memcpy(data + 56, &checksum, 4)
        total = crc(data, 60, 0)
        memcpy(data + 60, &total, 4)
        marked = position + HEADER_SIZE + length
        memcpy(mark_bytes, &marked, 8)
        total = crc(mark_bytes, 8, 0)
        memcpy(mark_bytes + 8, &total, 4)
        memcpy(mark_bytes + 12, &begin, 8)
        memcpy(mark_bytes + 20, &inode, 8)
        memcpy(mark_bytes + 28, &generation, 4)
        total = crc(mark_bytes, 32, 0)
        memcpy(mark_bytes + 32, &total, 4)
        with nogil:
            failed = write_all(segment, data, HEADER_SIZE + length, offset)
            if not failed:
                step, began = 2, seconds_now()
                failed = sync(segment)
                if not failed:
                    step, seconds = 3, seconds_now() - began
                    linked = links(segment)
                    if linked < 0:
                        failed = errno
                    elif linked:
                        step = 4
                        failed = write_all(mark, mark_bytes, MARK_SIZE, 0)
                        if not failed:
                            step = 0
        return length, checksum, records, seconds, step, failed
    finally:
        PyMem_Free(data)
