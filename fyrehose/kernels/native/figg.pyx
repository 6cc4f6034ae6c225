# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The figg kernels, natively; ``fyrehose.kernels.pure.figg`` says what they do, and is what they are tested against."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

# header (8) and size of the topic (4); number (8) and size of the data (4)
cdef enum:
    HEADER = 8
    HEAD = 12
    TAIL = 12
    MAX_NAME = 255
    VERSION = 1


cdef inline uint32_t get32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | <uint32_t>p[3]


cdef inline uint64_t get64(const uint8_t* p) noexcept nogil:
    return (<uint64_t>get32(p) << 32) | <uint64_t>get32(p + 4)


cdef inline void put32(uint8_t* p, uint32_t value) noexcept nogil:
    p[0] = <uint8_t>(value >> 24)
    p[1] = <uint8_t>(value >> 16)
    p[2] = <uint8_t>(value >> 8)
    p[3] = <uint8_t>value


cdef inline void put64(uint8_t* p, uint64_t value) noexcept nogil:
    put32(p, <uint32_t>(value >> 32))
    put32(p + 4, <uint32_t>value)


def scan(const uint8_t[::1] buffer not None, Py_ssize_t start, uint32_t kind, uint64_t largest, uint64_t most):
    cdef const uint8_t* base = &buffer[0] if buffer.shape[0] else NULL
    cdef Py_ssize_t end = buffer.shape[0]
    cdef Py_ssize_t position = start
    cdef Py_ssize_t count = 0
    cdef uint32_t head = (kind << 16) | VERSION
    cdef uint32_t topic_size = 0, name_size = 0, data_size = 0
    cdef uint64_t first = 0, number = 0, total = 0, size = 0
    cdef const uint8_t* frame
    cdef const uint8_t* topic = NULL

    if start < 0 or kind > 0xFFFF:
        raise ValueError("a position or a type that cannot be")
    # First where the run ends and how much it holds, so that its columns are allocated once and in their size.
    while end - position >= HEAD:
        frame = base + position
        if get32(frame) != head:
            break
        size = get32(frame + 4)
        name_size = get32(frame + HEADER)
        if name_size < 1 or name_size > MAX_NAME or size < <uint64_t>(HEAD - HEADER + TAIL) + name_size:
            break
        if size > <uint64_t>(end - position - HEADER):
            break
        number = get64(frame + HEAD + name_size)
        data_size = get32(frame + HEAD + name_size + 8)
        if <uint64_t>(HEAD - HEADER + TAIL) + name_size + data_size != size or data_size > largest:
            break
        if count == 0:
            topic = frame + HEAD
            topic_size = name_size
            first = number
        elif (
            name_size != topic_size
            or memcmp(topic, frame + HEAD, topic_size) != 0
            or number - first != <uint64_t>count
            or number < first
            or total + data_size > most
        ):
            break
        count += 1
        total += data_size
        position += HEADER + <Py_ssize_t>size

    cdef bytes lengths = PyBytes_FromStringAndSize(NULL, 4 * count)
    cdef bytes payload = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
    cdef uint8_t* length = <uint8_t*>PyBytes_AS_STRING(lengths)
    cdef uint8_t* data = <uint8_t*>PyBytes_AS_STRING(payload)
    cdef Py_ssize_t at = start
    cdef Py_ssize_t i
    for i in range(count):
        frame = base + at + HEAD + topic_size
        data_size = get32(frame + 8)
        memcpy(length, &data_size, 4)
        memcpy(data, frame + TAIL, data_size)
        length += 4
        data += data_size
        at += HEAD + topic_size + TAIL + data_size
    cdef bytes name = PyBytes_FromStringAndSize(<const char*>topic, topic_size) if count else b""
    return position, name, first, count, lengths, payload


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
        raise ValueError("a run whose columns, topic or numbers cannot be framed")

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
