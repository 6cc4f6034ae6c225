# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The relink kernels, natively; ``fyrehose.kernels.pure.relink`` says what they do, and is what they are tested against."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

cdef enum:
    SMALL = 0x11
    LARGE = 0x51
    MEANT = 0x7F
    MAX_SMALL = 0xFFFF


cdef Py_ssize_t place_of(Py_ssize_t id_size) except -1:
    """Where a small size is, from the first byte of a message."""
    if id_size != 0 and id_size != 1 and id_size != 2 and id_size != 4 and id_size != 8:
        raise ValueError(f"channel ids have 0, 1, 2, 4 or 8 bytes, not {id_size}")
    return (2 + id_size + 1) & ~1


# This machine is little-endian, as the wire is: fyrehose.records sees to that.
cdef inline Py_ssize_t size_at(const uint8_t* p) noexcept nogil:
    cdef uint16_t size
    memcpy(&size, p, 2)
    return size


def scan(
    const uint8_t[::1] buffer not None,
    Py_ssize_t start,
    Py_ssize_t id_size,
    Py_ssize_t largest,
    Py_ssize_t most,
    Py_ssize_t most_count,
):
    cdef Py_ssize_t place = place_of(id_size)
    cdef Py_ssize_t head = (place + 2 + 7) & ~7
    cdef const uint8_t* base = &buffer[0] if buffer.shape[0] else NULL
    cdef Py_ssize_t end = buffer.shape[0]
    cdef Py_ssize_t position = start
    cdef Py_ssize_t count = 0, total = 0, size, padded, i
    cdef const uint8_t* frame
    if start < 0:
        raise ValueError("a position that cannot be")
    # First where the run ends and how much it holds, so that its columns are allocated once and in their size.
    while end - position >= head and count < most_count:
        frame = base + position
        if frame[0] & MEANT != SMALL or frame[1] != 1:
            break
        size = size_at(frame + place)
        padded = (size + 7) & ~7
        if padded > largest or padded > end - position - head:
            break
        if count and (memcmp(frame + 2, base + start + 2, id_size) != 0 or total + size > most):
            break
        count += 1
        total += size
        position += head + padded

    cdef bytes lengths = PyBytes_FromStringAndSize(NULL, 4 * count)
    cdef bytes payload = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t* length = <uint8_t*>PyBytes_AS_STRING(lengths)
    cdef uint8_t* data = <uint8_t*>PyBytes_AS_STRING(payload)
    cdef uint32_t narrow
    frame = base + start
    for i in range(count):
        size = size_at(frame + place)
        narrow = <uint32_t>size
        memcpy(length, &narrow, 4)
        memcpy(data, frame + head, size)
        length += 4
        data += size
        frame += head + ((size + 7) & ~7)
    return position, lengths, payload


def frames(Py_ssize_t id_size, channel, lengths, payload):
    cdef Py_ssize_t place = place_of(id_size)
    cdef Py_ssize_t head = (place + 2 + 7) & ~7
    cdef const uint8_t[::1] sizes = memoryview(lengths).cast("B")
    cdef const uint8_t[::1] source = memoryview(payload).cast("B")
    cdef Py_ssize_t count = sizes.shape[0] // 4
    cdef const uint8_t* length = &sizes[0] if count else NULL
    cdef const uint8_t* data = &source[0] if source.shape[0] else NULL
    cdef uint64_t total = 0, whole = 0, wide
    cdef uint32_t size = 0
    cdef uint16_t narrow
    cdef Py_ssize_t i
    for i in range(count):
        memcpy(&size, length + 4 * i, 4)
        total += size
        whole += head + ((<uint64_t>size + 7) & ~<uint64_t>7)
        if size > MAX_SMALL:
            whole += 8
    if sizes.shape[0] % 4 or total != <uint64_t>source.shape[0] or channel < 0 or channel >> (8 * id_size):
        raise ValueError("a run whose columns or channel cannot be framed")

    cdef uint64_t id_ = channel
    cdef bytes result = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>whole)
    cdef uint8_t* out = <uint8_t*>PyBytes_AS_STRING(result)
    for i in range(count):
        memcpy(&size, length + 4 * i, 4)
        memset(out, 0, head)
        out[0] = SMALL if size <= MAX_SMALL else LARGE
        out[1] = 1
        memcpy(out + 2, &id_, id_size)
        if size <= MAX_SMALL:
            narrow = <uint16_t>size
            memcpy(out + place, &narrow, 2)
        else:
            out += 8
            wide = size
            memcpy(out + head - 8, &wide, 8)
        out += head
        memcpy(out, data, size)
        data += size
        out += size
        memset(out, 0, -<Py_ssize_t>size & 7)
        out += -<Py_ssize_t>size & 7
    return result
