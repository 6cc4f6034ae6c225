# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Native version of ``fyrehose.kernels.pure.backbone``, which specifies the functions and is the reference in tests."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

HEADER = 9
MAX_DATA = 65_507 - 9
LAST_SEQ = (1 << 48) - 1

cdef enum:
    HEAD = 9
    MOST = 65498
    DELIVER = 0x1
    PUSH = 0x2


cdef inline uint32_t length_at(const unsigned char* column, Py_ssize_t i) noexcept nogil:
    # A column may start at any address of a mapped file, so access must not assume alignment.
    cdef uint32_t length
    memcpy(&length, column + 4 * i, 4)
    return length


cdef inline uint64_t sequence_at(const unsigned char* p) noexcept nogil:
    return (
        (<uint64_t>p[0] << 40) | (<uint64_t>p[1] << 32) | (<uint64_t>p[2] << 24)
        | (<uint64_t>p[3] << 16) | (<uint64_t>p[4] << 8) | <uint64_t>p[5]
    )


cdef int check(Py_ssize_t size, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t segment) except -1:
    if not (0 <= start <= stop <= size) or segment < 1:
        raise ValueError("0 <= start <= stop <= len(data) and segment >= 1 must hold")
    return 0


cdef tuple columns(const unsigned char* base, Py_ssize_t start, Py_ssize_t end, Py_ssize_t segment, Py_ssize_t count):
    """Return the columns of ``count`` datagrams that were checked."""
    cdef bytes lengths = PyBytes_FromStringAndSize(NULL, 4 * count)
    cdef bytes payload = PyBytes_FromStringAndSize(NULL, end - start - HEAD * count)
    cdef char* length_out = PyBytes_AS_STRING(lengths)
    cdef char* payload_out = PyBytes_AS_STRING(payload)
    cdef Py_ssize_t at = start
    cdef Py_ssize_t i
    cdef uint32_t size
    for i in range(count):
        size = <uint32_t>((segment if end - at > segment else end - at) - HEAD)
        memcpy(length_out + 4 * i, &size, 4)
        memcpy(payload_out, base + at + HEAD, size)
        payload_out += size
        at += size + HEAD
    return lengths, payload


def scan_pushes(const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t segment, bint total=False):
    check(data.shape[0], start, stop, segment)
    if start == stop:
        return start, 0, b"", b""
    cdef const unsigned char* base = &data[0]
    cdef Py_ssize_t at = start
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t whole, length
    while at < stop:
        whole = segment if stop - at > segment else stop - at
        if whole < HEAD or whole > MOST + HEAD or base[at] != PUSH:
            break
        length = (<Py_ssize_t>base[at + 1] << 8) | base[at + 2]
        if length != whole - HEAD and not (total and length == whole):
            break
        count += 1
        at += whole
    lengths, payload = columns(base, start, at, segment, count)
    return at, count, lengths, payload


def scan_delivers(const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t segment):
    check(data.shape[0], start, stop, segment)
    if start == stop:
        return start, 0, 0, b"", b""
    cdef const unsigned char* base = &data[0]
    cdef Py_ssize_t at = start
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t whole, length
    cdef uint64_t first = 0
    cdef uint64_t seq
    while at < stop:
        whole = segment if stop - at > segment else stop - at
        if whole < HEAD or whole > MOST + HEAD or base[at] != DELIVER:
            break
        length = (<Py_ssize_t>base[at + 1] << 8) | base[at + 2]
        seq = sequence_at(base + at + 3)
        if length != whole - HEAD or seq == 0 or (count and seq != first + <uint64_t>count):
            break
        if not count:
            first = seq
        count += 1
        at += whole
    lengths, payload = columns(base, start, at, segment, count)
    return at, count, first, lengths, payload


cdef bytes encode(unsigned char kind, uint64_t seq, const unsigned char[::1] lengths, const unsigned char[::1] payload):
    if lengths.shape[0] % 4:
        raise ValueError("lengths are four bytes each")
    cdef Py_ssize_t count = lengths.shape[0] // 4
    cdef Py_ssize_t size = payload.shape[0]
    if not count:
        if size:
            raise ValueError("the lengths do not add up to the payload")
        return b""
    cdef const unsigned char* column = &lengths[0]
    cdef const unsigned char* source = &payload[0] if size else NULL
    cdef Py_ssize_t i
    cdef Py_ssize_t begin = 0
    cdef uint32_t length
    for i in range(count):
        length = length_at(column, i)
        if length > MOST:
            raise ValueError(f"{length} bytes of DATA do not fit into a datagram; expected at most {MOST}")
        begin += length
    if begin != size:
        raise ValueError("the lengths do not add up to the payload")
    cdef bytes datagrams = PyBytes_FromStringAndSize(NULL, size + HEAD * count)
    cdef unsigned char* out = <unsigned char*>PyBytes_AS_STRING(datagrams)
    cdef uint64_t step = 1 if seq else 0
    for i in range(count):
        length = length_at(column, i)
        out[0] = kind
        out[1] = <unsigned char>(length >> 8)
        out[2] = <unsigned char>length
        out[3] = <unsigned char>(seq >> 40)
        out[4] = <unsigned char>(seq >> 32)
        out[5] = <unsigned char>(seq >> 24)
        out[6] = <unsigned char>(seq >> 16)
        out[7] = <unsigned char>(seq >> 8)
        out[8] = <unsigned char>seq
        if length:
            memcpy(out + HEAD, source, length)
            source += length
        out += HEAD + length
        seq += step
    return datagrams


def encode_delivers(first_seq, const unsigned char[::1] lengths, const unsigned char[::1] payload):
    if first_seq < 1 or first_seq + lengths.shape[0] // 4 - 1 > LAST_SEQ:
        raise ValueError("sequences are 1 to 2^48 - 1")
    return encode(DELIVER, first_seq, lengths, payload)


def encode_pushes(const unsigned char[::1] lengths, const unsigned char[::1] payload):
    return encode(PUSH, 0, lengths, payload)


def cut_trains(const unsigned char[::1] lengths, Py_ssize_t most_bytes, Py_ssize_t most_segments):
    if lengths.shape[0] % 4:
        raise ValueError("lengths are four bytes each")
    cdef list pieces = []
    cdef Py_ssize_t size = 0
    cdef Py_ssize_t segment = 0
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t last = 0
    cdef Py_ssize_t datagram, i
    if not lengths.shape[0]:
        return pieces
    cdef const unsigned char* column = &lengths[0]
    for i in range(lengths.shape[0] // 4):
        datagram = <Py_ssize_t>length_at(column, i) + HEAD
        if count and (last < segment or datagram > segment or count == most_segments or size + datagram > most_bytes):
            pieces.append((size, segment))
            count = 0
        if not count:
            size = 0
            segment = datagram
        size += datagram
        last = datagram
        count += 1
    if count:
        pieces.append((size, segment))
    return pieces
