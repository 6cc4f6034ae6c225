# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Native version of ``fyrehose.kernels.pure.figg``, which specifies the functions and is the reference in tests."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from fyrehose.kernels.native.grouping cimport GROUPS, Slots, clear, next_slot, slot_of_bytes
from fyrehose.kernels.native.wire cimport get32, get64, put32, put64

# header (8) and size of the topic (4); number (8) and size of the data (4)
cdef enum:
    HEADER = 8
    HEAD = 12
    TAIL = 12
    MAX_NAME = 255
    VERSION = 1
    # Copies of at least so many bytes let other threads run meanwhile: a commit waits for the interpreter several times.
    LARGE = 256 << 10


cdef struct Frame:
    const uint8_t* topic
    uint32_t topic_size
    uint64_t number
    const uint8_t* data
    uint32_t data_size
    Py_ssize_t size  # of the whole frame


cdef inline bint take(const uint8_t* at, Py_ssize_t left, uint32_t head, uint64_t largest, Frame* frame) noexcept nogil:
    """Return whether a complete, well-formed frame starts at ``at``, where ``left`` bytes follow."""
    cdef uint64_t size
    if left < HEAD or get32(at) != head:
        return False
    size = get32(at + 4)
    frame.topic_size = get32(at + HEADER)
    if frame.topic_size < 1 or frame.topic_size > MAX_NAME or size < <uint64_t>(HEAD - HEADER + TAIL) + frame.topic_size:
        return False
    if size > <uint64_t>(left - HEADER):
        return False
    frame.topic = at + HEAD
    frame.number = get64(at + HEAD + frame.topic_size)
    frame.data_size = get32(at + HEAD + frame.topic_size + 8)
    frame.data = at + HEAD + frame.topic_size + TAIL
    frame.size = HEADER + <Py_ssize_t>size
    return <uint64_t>(HEAD - HEADER + TAIL) + frame.topic_size + frame.data_size == size and frame.data_size <= largest


def scan(const uint8_t[::1] buffer not None, Py_ssize_t start, uint32_t kind, uint64_t largest, uint64_t most):
    cdef const uint8_t* base = &buffer[0] if buffer.shape[0] else NULL
    cdef Py_ssize_t end = buffer.shape[0]
    cdef Py_ssize_t position = start
    cdef Py_ssize_t count = 0
    cdef uint32_t head = (kind << 16) | VERSION
    cdef uint64_t total = 0
    cdef Frame first, frame

    if start < 0 or kind > 0xFFFF:
        raise ValueError("invalid position or type")
    memset(&first, 0, sizeof(first))
    # Find the end and the size of the run first, so that its columns are allocated once with their final size.
    while take(base + position, end - position, head, largest, &frame):
        if count == 0:
            first = frame
        elif (
            frame.topic_size != first.topic_size
            or memcmp(frame.topic, first.topic, first.topic_size) != 0
            or frame.number - first.number != <uint64_t>count
            or frame.number < first.number
            or total + frame.data_size > most
        ):
            break
        count += 1
        total += frame.data_size
        position += frame.size
    if not count:
        return start, b"", 0, 0, b"", b""

    cdef bytes lengths = PyBytes_FromStringAndSize(NULL, 4 * count)
    cdef bytes payload = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
    cdef uint8_t* length = <uint8_t*>PyBytes_AS_STRING(lengths)
    cdef uint8_t* data = <uint8_t*>PyBytes_AS_STRING(payload)
    cdef const uint8_t* at = base + start
    cdef uint32_t data_size
    cdef Py_ssize_t i
    for i in range(count):
        at += HEAD + first.topic_size + TAIL
        data_size = get32(at - 4)
        memcpy(length, &data_size, 4)
        memcpy(data, at, data_size)
        length += 4
        data += data_size
        at += data_size
    cdef bytes name = PyBytes_FromStringAndSize(<const char*>first.topic, first.topic_size)
    return position, name, first.number, count, lengths, payload


cdef struct Group:
    const uint8_t* topic
    uint32_t topic_size
    bint consecutive
    Py_ssize_t count
    uint64_t first
    uint64_t total
    uint8_t* number  # where the next number is written; NULL if the numbers are consecutive
    uint8_t* length
    uint8_t* data


def gather(const uint8_t[::1] buffer not None, Py_ssize_t start, uint32_t kind, uint64_t largest, uint64_t most):
    cdef const uint8_t* base = &buffer[0] if buffer.shape[0] else NULL
    cdef Py_ssize_t end = buffer.shape[0]
    cdef Py_ssize_t position = start
    cdef Py_ssize_t count = 0
    cdef uint32_t head = (kind << 16) | VERSION
    cdef uint64_t total = 0, last = 0
    cdef Group[GROUPS] groups
    cdef Slots slots  # by topic
    cdef int known = 0, which = 0
    cdef uint32_t slot
    cdef Group* group
    cdef Frame frame
    cdef uint16_t* of  # group number of each frame
    cdef list names = []

    if start < 0 or kind > 0xFFFF:
        raise ValueError("invalid position or type")
    of = <uint16_t*>malloc(2 * (max(end - start, 0) // (HEAD + TAIL + 1) + 1))
    if of == NULL:
        raise MemoryError()
    try:
        while take(base + position, end - position, head, largest, &frame):
            if count and (frame.number <= last or total + frame.data_size > most):
                break
            group = &groups[which]
            if known == 0 or group.topic_size != frame.topic_size or memcmp(group.topic, frame.topic, frame.topic_size):
                if known == 0:
                    clear(slots)
                slot = slot_of_bytes(frame.topic, frame.topic_size)
                while slots[slot] >= 0:
                    group = &groups[slots[slot]]
                    if group.topic_size == frame.topic_size and not memcmp(group.topic, frame.topic, frame.topic_size):
                        break
                    slot = next_slot(slot)
                if slots[slot] < 0:
                    if known == GROUPS:
                        break
                    try:
                        names.append(PyUnicode_DecodeUTF8(<const char*>frame.topic, frame.topic_size, NULL))
                    except UnicodeDecodeError:
                        break
                    slots[slot] = <int16_t>known
                    group = &groups[known]
                    known += 1
                    group.topic, group.topic_size = frame.topic, frame.topic_size
                    group.consecutive, group.count, group.first, group.total = True, 0, frame.number, 0
                which = slots[slot]
            if frame.number - group.first != <uint64_t>group.count:
                group.consecutive = False
            of[count] = <uint16_t>which
            group.count += 1
            group.total += frame.data_size
            count += 1
            total += frame.data_size
            last = frame.number
            position += frame.size
        return position, last, _columns(base + start, count, of, groups, names)
    finally:
        free(of)


cdef list _columns(const uint8_t* at, Py_ssize_t count, const uint16_t* of, Group* groups, list names):
    """Return the columns of ``count`` frames that were checked."""
    cdef list runs = []
    cdef bytes numbers, lengths, payload
    cdef Group* group
    cdef int which
    cdef uint64_t total = 0
    for which in range(len(names)):
        group = &groups[which]
        total += group.total
        lengths = PyBytes_FromStringAndSize(NULL, 4 * group.count)
        payload = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>group.total)
        group.length = <uint8_t*>PyBytes_AS_STRING(lengths)
        group.data = <uint8_t*>PyBytes_AS_STRING(payload)
        group.number = NULL
        numbers = None
        if not group.consecutive:
            numbers = PyBytes_FromStringAndSize(NULL, 8 * group.count)
            group.number = <uint8_t*>PyBytes_AS_STRING(numbers)
        runs.append((names[which], group.first if numbers is None else numbers, lengths, payload))
    if total < LARGE:
        fill(at, count, of, groups)
    else:
        with nogil:
            fill(at, count, of, groups)
    return runs


cdef void fill(const uint8_t* at, Py_ssize_t count, const uint16_t* of, Group* groups) noexcept nogil:
    """Fill the columns of ``count`` frames."""
    cdef Group* group
    cdef uint64_t number
    cdef uint32_t data_size
    cdef Py_ssize_t i
    for i in range(count):
        group = &groups[of[i]]
        at += HEAD + group.topic_size
        data_size = get32(at + 8)
        memcpy(group.length, &data_size, 4)
        memcpy(group.data, at + TAIL, data_size)
        if group.number != NULL:
            number = get64(at)
            memcpy(group.number, &number, 8)
            group.number += 8
        group.length += 4
        group.data += data_size
        at += TAIL + data_size


def frames(kind, bytes topic not None, first, lengths, payload):
    cdef const uint8_t[::1] sizes = memoryview(lengths).cast("B")
    cdef const uint8_t[::1] source = memoryview(payload).cast("B")
    cdef Py_ssize_t count = sizes.shape[0] // 4
    cdef Py_ssize_t topic_size = len(topic)
    cdef const uint8_t* length = &sizes[0] if count else NULL
    cdef const uint8_t* data = &source[0] if source.shape[0] else NULL
    cdef const uint8_t* name = <const uint8_t*>PyBytes_AS_STRING(topic)
    cdef uint64_t total = 0
    cdef uint32_t size = 0
    cdef Py_ssize_t i
    for i in range(count):
        memcpy(&size, length + 4 * i, 4)
        total += size
    if (
        sizes.shape[0] % 4
        or total != <uint64_t>source.shape[0]
        or not 1 <= topic_size <= MAX_NAME
        or first < 0
        or first + count > 1 << 64
    ):
        raise ValueError(
            "the records cannot be framed: expected lengths that add up to the payload, "
            "a topic of 1 to 255 bytes, and numbers of 64 bits"
        )

    cdef uint64_t number = first if count else 0
    cdef uint32_t head = (<uint32_t>kind << 16) | VERSION
    cdef uint32_t fixed = <uint32_t>(HEAD - HEADER + topic_size + TAIL)
    cdef Py_ssize_t whole = count * (HEAD + topic_size + TAIL) + source.shape[0]
    cdef bytes result = PyBytes_FromStringAndSize(NULL, whole)
    cdef uint8_t* out = <uint8_t*>PyBytes_AS_STRING(result)
    for i in range(count):
        memcpy(&size, length + 4 * i, 4)
        put32(out, head)
        put32(out + 4, fixed + size)
        put32(out + HEADER, <uint32_t>topic_size)
        memcpy(out + HEAD, name, topic_size)
        out += HEAD + topic_size
        put64(out, number + <uint64_t>i)
        put32(out + 8, size)
        memcpy(out + TAIL, data, size)
        out += TAIL + size
        data += size
    return result
