# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Native version of ``fyrehose.kernels.pure.columns``, which specifies the functions and is the reference in tests."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy


def span(const uint8_t[::1] lengths not None, Py_ssize_t start, Py_ssize_t stop, uint64_t most):
    cdef Py_ssize_t count = lengths.shape[0] // 4
    cdef const uint8_t* sizes = &lengths[0] if count else NULL
    cdef uint64_t total = 0
    cdef uint32_t size
    cdef Py_ssize_t at
    if lengths.shape[0] % 4:
        raise TypeError("a column of u32 has a multiple of four bytes")
    if not 0 <= start <= stop <= count:
        raise IndexError(f"records {start} to {stop} of {count}")
    for at in range(start, stop):
        memcpy(&size, sizes + 4 * at, 4)
        if total + size > most:
            return at, total
        total += size
    return stop, total


cdef inline uint32_t u32(const uint8_t* at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return value


cdef inline uint64_t u64(const uint8_t* at) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, at, 8)
    return value


cdef inline uint16_t u16(const uint8_t* at) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, at, 2)
    return value


def walk(
    const uint8_t[::1] chunk not None,
    Py_ssize_t at,
    Py_ssize_t stop,
    int64_t number,
    int64_t time,
    dict known not None,
    const int64_t[:, ::1] kinds not None,
    int64_t[:, ::1] streams not None,
    int64_t[:, ::1] found not None,
    Py_ssize_t used,
):
    cdef const uint8_t* here
    cdef Py_ssize_t names, end
    cdef int64_t kind, stream, count, first, last, final, optional, lengths, payload, size
    cdef int64_t* row
    if not 0 <= at <= stop <= chunk.shape[0]:
        raise IndexError("the batch is not in the chunk")
    while stop - at >= 40:
        here = &chunk[at]
        names = u16(here + 30) + u16(here + 32) + u16(here + 34) + here[36] + here[37]
        end = at + u32(here)
        if not at + 40 + names <= end <= stop:
            break
        value = known.get(PyBytes_FromStringAndSize(<const char*> here + 28, 12 + names))
        if value is None:
            break
        kind = value
        if not 0 <= kind < kinds.shape[0]:
            raise IndexError("the kind is not in the table")
        stream = kinds[kind, 0]
        if stream >= 0:
            if stream >= streams.shape[0] or used >= found.shape[0] or found.shape[1] < 10:
                raise IndexError("a table has too few rows")
            count, first, size = u32(here + 4), <int64_t> u64(here + 8), u32(here + 24)
            last, final = streams[stream, 0], first + count - 1
            if (last >= 0 and first > last + 1) or first < streams[stream, 1] or final > streams[stream, 2]:
                break
            optional = at + kinds[kind, 1]
            lengths = optional + kinds[kind, 2] * count
            payload = lengths + 4 * count + (4 * count & 4)
            if payload + size > end:
                break
            streams[stream, 0] = final
            row = &found[used, 0]
            row[0], row[1], row[2], row[3], row[4] = kind, count, first, time, <int64_t> u64(here + 16)
            row[5], row[6], row[7], row[8], row[9] = number, optional, lengths, payload, size
            used += 1
        at = end
    return at, used


def gather(list chunks not None, const int64_t[:, ::1] pieces not None, uint8_t[::1] out not None):
    cdef Py_ssize_t i, at = 0, count = len(chunks)
    cdef int64_t number, begin, size
    cdef const uint8_t[::1] view
    cdef const uint8_t** starts = <const uint8_t**> malloc((count + 1) * sizeof(uint8_t*))
    cdef Py_ssize_t* sizes = <Py_ssize_t*> malloc((count + 1) * sizeof(Py_ssize_t))
    try:
        if starts == NULL or sizes == NULL:
            raise MemoryError
        for i in range(count):
            view = chunks[i]  # The list keeps the buffer while its address is used.
            sizes[i] = view.shape[0]
            starts[i] = &view[0] if sizes[i] else NULL
        for i in range(pieces.shape[0]):
            number, begin, size = pieces[i, 0], pieces[i, 1], pieces[i, 2]
            if not 0 <= number < count or begin < 0 or size < 0 or begin + size > sizes[number]:
                raise IndexError(f"chunk {number} has no bytes {begin} to {begin + size}")
            if at + size > out.shape[0]:
                raise IndexError(f"the pieces have more than {out.shape[0]} bytes")
            if size:
                memcpy(&out[at], starts[number] + begin, size)
            at += size
        if at != out.shape[0]:
            raise IndexError(f"the pieces have {at} bytes, and not {out.shape[0]}")
    finally:
        free(starts)
        free(sizes)
