# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Native version of ``fyrehose.kernels.pure.relink``, which specifies the functions and is the reference in tests."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from fyrehose.kernels.native.grouping cimport GROUPS, Slots, clear, next_slot, slot_of_number

cdef enum:
    SMALL = 0x11
    LARGE = 0x51
    MEANT = 0x7F
    MAX_SMALL = 0xFFFF

CHANNELS = GROUPS


cdef Py_ssize_t place_of(Py_ssize_t id_size) except -1:
    """Return the position of a small size in a message."""
    if id_size != 0 and id_size != 1 and id_size != 2 and id_size != 4 and id_size != 8:
        raise ValueError(f"channel ids have 0, 1, 2, 4 or 8 bytes, not {id_size}")
    return (2 + id_size + 1) & ~1


# The wire is little-endian, and so is this machine: fyrehose.records checks that on import.
cdef inline Py_ssize_t size_at(const uint8_t* p) noexcept nogil:
    cdef uint16_t size
    memcpy(&size, p, 2)
    return size


cdef inline uint64_t id_at(const uint8_t* p, Py_ssize_t id_size) noexcept nogil:
    cdef uint64_t channel = 0
    memcpy(&channel, p, id_size)
    return channel


cdef struct Group:
    uint64_t channel
    Py_ssize_t count
    Py_ssize_t total  # bytes of payload
    uint8_t* length  # where the next length is written
    uint8_t* data  # where the next payload is written


def gather(
    const uint8_t[::1] buffer not None,
    Py_ssize_t start,
    Py_ssize_t id_size,
    Py_ssize_t largest,
    Py_ssize_t most,
    Py_ssize_t most_each,
    Py_ssize_t most_channels = GROUPS,
):
    cdef Py_ssize_t place = place_of(id_size)
    cdef Py_ssize_t head = (place + 2 + 7) & ~7
    cdef const uint8_t* base = &buffer[0] if buffer.shape[0] else NULL
    cdef Py_ssize_t end = buffer.shape[0]
    cdef Py_ssize_t position = start
    cdef Py_ssize_t count = 0, total = 0, size, padded
    cdef Group[GROUPS] groups
    cdef Slots slots  # by channel
    cdef int known = 0, which = 0
    cdef uint64_t channel
    cdef uint32_t slot
    cdef const uint8_t* frame
    cdef uint16_t* of  # group number of each message

    if start < 0:
        raise ValueError("invalid position")
    of = <uint16_t*>malloc(2 * (max(end - start, 0) // head + 1))
    if of == NULL:
        raise MemoryError()
    try:
        # Measure the data of each channel first, so that its columns are allocated once with their final size.
        while end - position >= head:
            frame = base + position
            if frame[0] & MEANT != SMALL or frame[1] != 1:
                break
            size = size_at(frame + place)
            padded = (size + 7) & ~7
            if padded > largest or padded > end - position - head or (count and total + size > most):
                break
            channel = id_at(frame + 2, id_size)
            if known == 0 or groups[which].channel != channel:
                if known == 0:
                    clear(slots)
                slot = slot_of_number(channel)
                while slots[slot] >= 0 and groups[slots[slot]].channel != channel:
                    slot = next_slot(slot)
                if slots[slot] < 0:
                    if known >= most_channels or known == GROUPS or most_each < 1:
                        break
                    slots[slot] = <int16_t>known
                    groups[known].channel, groups[known].count, groups[known].total = channel, 0, 0
                    known += 1
                which = slots[slot]
            if groups[which].count >= most_each:
                break
            of[count] = <uint16_t>which
            groups[which].count += 1
            groups[which].total += size
            count += 1
            total += size
            position += head + padded
        return position, columns(base + start, count, of, groups, known, place, head)
    finally:
        free(of)


cdef list columns(
    const uint8_t* frame, Py_ssize_t count, const uint16_t* of, Group* groups, int known, Py_ssize_t place, Py_ssize_t head
):
    """Return the columns of ``count`` messages that were checked."""
    cdef list runs = []
    cdef bytes lengths, payload
    cdef Group* group
    cdef int which
    cdef Py_ssize_t i, size
    cdef uint32_t wide
    for which in range(known):
        group = &groups[which]
        lengths = PyBytes_FromStringAndSize(NULL, 4 * group.count)
        payload = PyBytes_FromStringAndSize(NULL, group.total)
        group.length = <uint8_t*>PyBytes_AS_STRING(lengths)
        group.data = <uint8_t*>PyBytes_AS_STRING(payload)
        runs.append((group.channel, lengths, payload))
    for i in range(count):
        group = &groups[of[i]]
        size = size_at(frame + place)
        wide = <uint32_t>size
        memcpy(group.length, &wide, 4)
        memcpy(group.data, frame + head, size)
        group.length += 4
        group.data += size
        frame += head + ((size + 7) & ~7)
    return runs


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
        raise ValueError(
            "the payloads cannot be framed: expected lengths that add up to the payload, "
            f"and a channel that fits into {id_size} bytes"
        )

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
