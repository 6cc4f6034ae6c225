# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Native version of ``fyrehose.kernels.pure.columns``, which specifies the functions and is the reference in tests."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from fyrehose.kernels.native.jsontext cimport after_character, first_high

AROUND, CHARACTER = 64, 6


def build_run(self, *, lengths, payload, stream, source, producer=None, topic=None, content_type=None,
              producer_seq=None, event_ids=None, event_times=None, first_seq=0, time=0):
    cdef Py_ssize_t count = len(lengths), size = len(payload) + count, names = len(stream) + len(source)
    if event_ids is not None:
        size += len(event_ids)
    if event_times is not None:
        size += len(event_times)
    if producer_seq is not None and not isinstance(producer_seq, int):
        size += len(producer_seq)
    if producer is not None:
        names += len(producer)
    if topic is not None:
        names += len(topic)
    if content_type is not None:
        names += len(content_type)
    self.lengths = lengths
    self.payload = payload
    self.stream = stream
    self.source = source
    self.producer = producer
    self.topic = topic
    self.content_type = content_type
    self.producer_seq = producer_seq
    self.event_ids = event_ids
    self.event_times = event_times
    self.first_seq = first_seq
    self.time = time
    self.last_seq = first_seq + (count // 4 - 1)
    self.size = size
    self.room = size + 64 + 6 * names


def count(self):
    return len(self.lengths) // 4


def build_delivery(self, runs):
    cdef Py_ssize_t count = 0, payload_size = 0, size = 0
    first = None
    for run in runs:
        if first is None:
            first = run
        count += len(run.lengths) // 4
        payload_size += len(run.payload)
        size += <Py_ssize_t>run.size
    self.runs = runs
    if first is None:
        raise IndexError("a delivery has no runs")
    self.first_seq = first.first_seq
    self.last_seq = run.last_seq
    self.payload_size = payload_size
    self.size = size
    self.count = count
    self._encoded = {}


def encoded(self, encode):
    cdef dict known = self._encoded
    found = known.get(encode)
    if found is None:
        found = known[encode] = encode(self.runs)
    return found


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


cdef inline bint is_line_end(const uint8_t* at) noexcept nogil:
    """Return whether the character beyond ASCII at *at* is U+0085, U+2028 or U+2029; see jsontext.py."""
    return at[0] == 0xC2 and at[1] == 0x85 or at[0] == 0xE2 and at[1] == 0x80 and at[2] & 0xFE == 0xA8


cdef inline Py_ssize_t escaped_size(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return how many bytes a text has in a JSON string without line ends; -1 if it is not UTF-8."""
    cdef uint64_t word, special
    cdef uint64_t ones = 0x0101010101010101, high = 0x8080808080808080
    cdef const uint8_t* begin
    cdef Py_ssize_t size = end - at
    while at < end:
        if end - at >= 8:  # Eight bytes at a time, up to the first that does not stand for itself.
            memcpy(&word, at, 8)
            special = word | (word - ones * 0x20) | ((word ^ (ones * 0x22)) - ones) | ((word ^ (ones * 0x5C)) - ones)
            special &= high
            if not special:
                at += 8
                continue
            at += first_high(special)
        if at[0] >= 0x80:
            begin, at = at, after_character(at, end)
            if at == NULL:
                return -1
            if is_line_end(begin):
                size += 6 - (at - begin)
            continue
        if at[0] == 0x22 or at[0] == 0x5C:
            size += 1
        elif at[0] < 0x20:
            size += 1 if 0x08 <= at[0] <= 0x0D and at[0] != 0x0B else 5
        at += 1
    return size


cdef inline uint8_t* escape(uint8_t* out, const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Write a text as it stands in a JSON string without line ends; return the end of what was written."""
    cdef const char* digits = b"0123456789abcdef"
    cdef const char* letters = b"btn?fr"
    while at < end:
        if at[0] == 0x22 or at[0] == 0x5C:
            out[0], out[1] = 0x5C, at[0]
            out += 2
        elif at[0] >= 0x80 and is_line_end(at):
            memcpy(out, b"\\u0085" if at[0] == 0xC2 else b"\\u2028" if at[2] == 0xA8 else b"\\u2029", 6)
            out += 6
            at += 1 if at[0] == 0xC2 else 2
        elif at[0] >= 0x20:
            out[0] = at[0]
            out += 1
        elif 0x08 <= at[0] <= 0x0D and at[0] != 0x0B:
            out[0], out[1] = 0x5C, letters[at[0] - 0x08]
            out += 2
        else:
            memcpy(out, b"\\u00", 4)
            out[4], out[5] = digits[at[0] >> 4], digits[at[0] & 0x0F]
            out += 6
        at += 1
    return out


cdef inline Py_ssize_t decimal(uint8_t* out, uint64_t number) noexcept nogil:
    """Write a number, and return how many digits it has."""
    cdef uint8_t digits[20]
    cdef Py_ssize_t count = 0, at
    while True:
        digits[count] = 0x30 + number % 10
        number //= 10
        count += 1
        if not number:
            break
    for at in range(count):
        out[at] = digits[count - 1 - at]
    return count


def texts(
    const uint8_t[::1] lengths not None,
    const uint8_t[::1] payload not None,
    uint64_t first,
    bytes head not None,
    bytes middle not None,
    bytes end not None,
):
    cdef Py_ssize_t count = lengths.shape[0] // 4, total = payload.shape[0], begin = 0, room = 0, at, size, more
    cdef const uint8_t* sizes = &lengths[0] if count else NULL
    cdef const uint8_t* data = &payload[0] if total else NULL
    cdef uint8_t* buffer
    cdef uint8_t* out
    if lengths.shape[0] % 4:
        raise TypeError("a column of u32 has a multiple of four bytes")
    for at in range(count):
        size = u32(sizes + 4 * at)
        if begin + size > total:
            raise IndexError(f"record {at} ends beyond the {total} bytes of the payloads")
        more = escaped_size(data + begin, data + begin + size)
        if more < 0:
            return None
        room += more
        begin += size
    room += count * (len(head) + len(middle) + len(end) + 20)
    buffer = <uint8_t*> malloc(room + 1)
    if buffer == NULL:
        raise MemoryError
    try:
        out, begin = buffer, 0
        for at in range(count):
            size = u32(sizes + 4 * at)
            memcpy(out, <const char*> head, len(head))
            out += len(head)
            out += decimal(out, first + at)
            memcpy(out, <const char*> middle, len(middle))
            out = escape(out + len(middle), data + begin, data + begin + size)
            memcpy(out, <const char*> end, len(end))
            out += len(end)
            begin += size
        return PyBytes_FromStringAndSize(<char*> buffer, out - buffer)
    finally:
        free(buffer)
