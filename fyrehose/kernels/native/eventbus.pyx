# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Native version of ``fyrehose.kernels.pure.eventbus``, which specifies the functions and is the reference in tests."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from fyrehose.kernels.native.wire cimport get64, put64

cdef enum:
    TIMESTAMP = 24
    UUID = 36
    MAX_LABEL = 64
    MAX_RUNS = 256
    # flags of a frame
    MORE = 1
    LONG = 2
    # the smallest event: headers of six frames, timestamp and UUID
    LEAST = 12 + TIMESTAMP + UUID
    # Copies of at least so many bytes let other threads run meanwhile: a commit waits for the interpreter several times.
    LARGE = 256 << 10

# Range of dates that can be formatted: days since 1970 of the years 1 and 10000.
cdef int64_t FIRST_DAY = -719162
cdef int64_t END_DAY = 2932897
cdef int64_t DAY = 86_400_000_000
cdef const char* DIGITS = b"0123456789abcdef"


cdef inline int two(const uint8_t* p) noexcept nogil:
    """Parse two ASCII digits; return a negative number if they are not digits."""
    cdef int high = p[0] - 0x30
    cdef int low = p[1] - 0x30
    if high < 0 or high > 9 or low < 0 or low > 9:
        return -10_000
    return 10 * high + low


cdef inline int64_t days_of(int64_t year, int64_t month, int64_t day) noexcept nogil:
    """Return the days since 1970; internally years start in March, so that a leap day is the last day of its year."""
    if month <= 2:
        year -= 1
    cdef int64_t era = year // 400
    cdef int64_t of_era = year - 400 * era
    cdef int64_t of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146097 + 365 * of_era + of_era // 4 - of_era // 100 + of_year - 719468


cdef inline int days_in(int year, int month) noexcept nogil:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


cdef bint read_time(const uint8_t* p, int64_t* micros) noexcept nogil:
    """Parse YYYY-MM-DDTHH:MM:SS.mmmZ."""
    if p[4] != 0x2D or p[7] != 0x2D or p[10] != 0x54 or p[13] != 0x3A or p[16] != 0x3A or p[19] != 0x2E or p[23] != 0x5A:
        return False
    cdef int year = 100 * two(p) + two(p + 2)
    cdef int month = two(p + 5)
    cdef int day = two(p + 8)
    cdef int hour = two(p + 11)
    cdef int minute = two(p + 14)
    cdef int second = two(p + 17)
    cdef int hundredths = two(p + 20)
    cdef int thousandths = p[22] - 0x30
    if year < 1 or two(p + 2) < 0 or month < 1 or month > 12 or day < 1 or day > days_in(year, month):
        return False
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return False
    if hundredths < 0 or thousandths < 0 or thousandths > 9:
        return False
    micros[0] = (
        days_of(year, month, day) * DAY
        + ((hour * 60 + minute) * 60 + second) * <int64_t>1_000_000
        + (10 * hundredths + thousandths) * 1_000
    )
    return True


cdef inline int nibble(uint8_t byte) noexcept nogil:
    if 0x30 <= byte <= 0x39:
        return byte - 0x30
    if 0x61 <= byte <= 0x66:
        return byte - 0x57
    return -1


cdef bint read_uuid(const uint8_t* p, uint8_t* out) noexcept nogil:
    cdef int i = 0, high, low, at = 0
    for i in range(16):
        if i == 4 or i == 6 or i == 8 or i == 10:
            if p[at] != 0x2D:
                return False
            at += 1
        high = nibble(p[at])
        low = nibble(p[at + 1])
        if high < 0 or low < 0:
            return False
        out[i] = <uint8_t>(high << 4 | low)
        at += 2
    return True


cdef struct Event:
    const uint8_t* topic
    const uint8_t* producer
    const uint8_t* data
    uint8_t topic_size
    uint8_t producer_size
    uint8_t[16] id
    int64_t micros
    uint64_t data_size
    Py_ssize_t size  # of the whole event


cdef struct Place:
    const uint8_t* data
    uint32_t size


cdef inline const uint8_t* label(const uint8_t* at, const uint8_t* end, uint8_t* size) noexcept nogil:
    """Return the begin of a short frame that others follow, and its size; NULL if ``at`` has no such frame."""
    if end - at < 2 or at[0] != MORE or end - at - 2 < at[1]:
        return NULL
    size[0] = at[1]
    return at + 2


cdef bint take(const uint8_t* at, const uint8_t* end, uint64_t largest, Event* event) noexcept nogil:
    """Return whether a complete event with labels of the usual forms starts at ``at``."""
    cdef const uint8_t* begin = at
    cdef uint8_t size = 0
    event.topic = label(at, end, &event.topic_size)
    if event.topic == NULL:
        return False
    at = label(event.topic + event.topic_size, end, &size)
    if at == NULL or size > MAX_LABEL:
        return False
    event.producer = label(at + size, end, &event.producer_size)
    if event.producer == NULL or event.producer_size > MAX_LABEL:
        return False
    at = label(event.producer + event.producer_size, end, &size)
    if at == NULL or size != TIMESTAMP or not read_time(at, &event.micros):
        return False
    at = label(at + size, end, &size)
    if at == NULL or size != UUID or not read_uuid(at, event.id):
        return False
    at += UUID
    if end - at < 2:
        return False
    if at[0] == 0:
        event.data_size = at[1]
        at += 2
    elif at[0] == LONG and end - at >= 9:
        event.data_size = get64(at + 1)
        at += 9
    else:
        return False
    if event.data_size > largest or event.data_size > <uint64_t>(end - at):
        return False
    event.data = at
    event.size = at + event.data_size - begin
    return True


cdef str text(const uint8_t* at, Py_ssize_t size):
    """Return UTF-8 as text, or None if it is not UTF-8."""
    try:
        return PyUnicode_DecodeUTF8(<const char*>at, size, NULL)
    except UnicodeDecodeError:
        return None


def gather(const uint8_t[::1] buffer not None, Py_ssize_t start, uint64_t largest, uint64_t most):
    cdef const uint8_t* base = &buffer[0] if buffer.shape[0] else NULL
    cdef const uint8_t* end = base + buffer.shape[0]
    cdef Py_ssize_t position = start
    cdef Py_ssize_t count = 0, first = 0, room
    cdef uint64_t total = 0, of_run = 0
    cdef list runs = []
    cdef str topic, producer
    cdef Event event, head
    cdef uint8_t* columns
    cdef uint8_t* ids
    cdef int64_t* times
    cdef Place* found

    if start < 0 or start > buffer.shape[0]:
        raise ValueError("invalid position")
    if not take(base + position, end, largest, &event):
        return start, runs
    head = event
    room = (buffer.shape[0] - start) // LEAST + 1
    columns = <uint8_t*>malloc(room * (sizeof(Place) + 8 + 16))
    if columns == NULL:
        raise MemoryError()
    found, times, ids = <Place*>columns, <int64_t*>(columns + room * sizeof(Place)), columns + room * (sizeof(Place) + 8)
    topic = producer = None
    try:
        while True:
            if count and total + event.data_size > most:
                break
            if (
                count == first
                or event.topic_size != head.topic_size
                or event.producer_size != head.producer_size
                or memcmp(event.topic, head.topic, head.topic_size)
                or memcmp(event.producer, head.producer, head.producer_size)
            ):
                if count > first:
                    runs.append(columns_of(topic, producer, first, count, of_run, found, times, ids))
                    first, of_run = count, 0
                if len(runs) == MAX_RUNS:
                    break
                head, topic, producer = event, text(event.topic, event.topic_size), text(event.producer, event.producer_size)
                if topic is None or producer is None:
                    break
            found[count].data, found[count].size = event.data, <uint32_t>event.data_size
            times[count] = event.micros
            memcpy(ids + 16 * count, event.id, 16)
            count += 1
            total += event.data_size
            of_run += event.data_size
            position += event.size
            if not take(base + position, end, largest, &event):
                break
        if count > first:
            runs.append(columns_of(topic, producer, first, count, of_run, found, times, ids))
        return position, runs
    finally:
        free(columns)


cdef tuple columns_of(
    str topic, str producer, Py_ssize_t first, Py_ssize_t count, uint64_t total, Place* found, int64_t* times, uint8_t* ids
):
    """Return the run of the events ``first`` to ``count`` (exclusive)."""
    cdef bytes lengths = PyBytes_FromStringAndSize(NULL, 4 * (count - first))
    cdef bytes payload = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
    cdef uint8_t* length = <uint8_t*>PyBytes_AS_STRING(lengths)
    cdef uint8_t* data = <uint8_t*>PyBytes_AS_STRING(payload)
    if total < LARGE:
        fill(found, first, count, length, data)
    else:
        with nogil:
            fill(found, first, count, length, data)
    return (
        topic,
        producer,
        PyBytes_FromStringAndSize(<const char*>ids + 16 * first, 16 * (count - first)),
        PyBytes_FromStringAndSize(<const char*>(times + first), 8 * (count - first)),
        lengths,
        payload,
    )


cdef void fill(const Place* found, Py_ssize_t first, Py_ssize_t count, uint8_t* length, uint8_t* data) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(first, count):
        memcpy(length, &found[i].size, 4)
        memcpy(data, found[i].data, found[i].size)
        length += 4
        data += found[i].size


cdef inline void put_two(uint8_t* out, int64_t value) noexcept nogil:
    out[0] = <uint8_t>(0x30 + value // 10)
    out[1] = <uint8_t>(0x30 + value % 10)


cdef inline int digits(uint64_t value) noexcept nogil:
    cdef int count = 1
    while value >= 10:
        value //= 10
        count += 1
    return count


cdef inline uint8_t* put_label(uint8_t* out, const uint8_t* label, Py_ssize_t size) noexcept nogil:
    out[0], out[1] = MORE, <uint8_t>size
    memcpy(out + 2, label, size)
    return out + 2 + size


cdef uint8_t* put_sequence(uint8_t* out, uint64_t value, bint decimal) noexcept nogil:
    cdef int size = digits(value) if decimal else 8
    cdef int i
    out[0], out[1] = MORE, <uint8_t>size
    if decimal:
        for i in range(size - 1, -1, -1):
            out[2 + i] = <uint8_t>(0x30 + value % 10)
            value //= 10
    else:
        put64(out + 2, value)
    return out + 2 + size


cdef inline int64_t days_before(int64_t micros) noexcept nogil:
    """Return the whole days since 1970, rounded towards minus infinity, like Python."""
    cdef int64_t days = micros // DAY
    return days - 1 if micros < 0 and days * DAY != micros else days


cdef uint8_t* put_time(uint8_t* out, int64_t micros) noexcept nogil:
    cdef int64_t days = days_before(micros)
    cdef int64_t of_day = (micros - days * DAY) // 1_000
    cdef int64_t shifted = days + 719468  # day 0 is the 1st of March of the year 0; frames() refuses earlier days
    cdef int64_t year, of_year, month, day
    cdef int64_t era = shifted // 146097
    cdef int64_t of_era = shifted - era * 146097
    cdef int64_t year_of_era = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    out = put_label(out, <const uint8_t*>b"0000-00-00T00:00:00.000Z", TIMESTAMP) - TIMESTAMP
    put_two(out, year // 100)
    put_two(out + 2, year % 100)
    put_two(out + 5, month)
    put_two(out + 8, day)
    put_two(out + 11, of_day // 3_600_000)
    put_two(out + 14, of_day // 60_000 % 60)
    put_two(out + 17, of_day // 1_000 % 60)
    put_two(out + 20, of_day % 1_000 // 10)
    out[22] = <uint8_t>(0x30 + of_day % 10)
    return out + TIMESTAMP


cdef uint8_t* put_uuid(uint8_t* out, const uint8_t* event_id) noexcept nogil:
    cdef int i
    out[0], out[1] = MORE, UUID
    out += 2
    for i in range(16):
        if i == 4 or i == 6 or i == 8 or i == 10:
            out[0] = 0x2D
            out += 1
        out[0] = DIGITS[event_id[i] >> 4]
        out[1] = DIGITS[event_id[i] & 15]
        out += 2
    return out


def frames(
    bytes head not None, bytes topic not None, bytes producer not None, first, event_times, event_ids, lengths, payload, bint decimal
):
    cdef const uint8_t[::1] times = memoryview(event_times).cast("B")
    cdef const uint8_t[::1] ids = memoryview(event_ids).cast("B")
    cdef const uint8_t[::1] sizes = memoryview(lengths).cast("B")
    cdef const uint8_t[::1] source = memoryview(payload).cast("B")
    cdef Py_ssize_t count = sizes.shape[0] // 4
    cdef Py_ssize_t head_size = len(head), topic_size = len(topic), producer_size = len(producer)
    if sizes.shape[0] % 4 or times.shape[0] != 8 * count or ids.shape[0] != 16 * count or max(topic_size, producer_size) > 255:
        raise ValueError("the events cannot be framed: expected a time and a UUID for each, and labels of 255 bytes")
    if first < 0 or first + count > 1 << 64:
        raise ValueError("the events cannot be framed: expected sequences of 64 bits")

    cdef uint64_t number = first if count else 0
    cdef const uint8_t* data = &source[0] if source.shape[0] else NULL
    cdef uint64_t total = 0
    cdef Py_ssize_t whole = 0
    cdef Py_ssize_t fixed = head_size + 2 + topic_size + 2 + 2 + producer_size + 2 + TIMESTAMP + 2 + UUID
    cdef uint32_t size = 0
    cdef int64_t micros = 0, days
    cdef Py_ssize_t i
    for i in range(count):
        memcpy(&size, &sizes[4 * i], 4)
        # A column may start at any address of a mapped file, so access must not assume alignment.
        memcpy(&micros, &times[8 * i], 8)
        days = days_before(micros)
        if days < FIRST_DAY or days >= END_DAY:
            raise ValueError("time is outside the years 1 to 9999")
        total += size
        whole += fixed + (digits(number + <uint64_t>i) if decimal else 8) + (2 if size < 256 else 9) + size
    if total != <uint64_t>source.shape[0]:
        raise ValueError("the events cannot be framed: expected lengths that add up to the payload")

    cdef bytes result = PyBytes_FromStringAndSize(NULL, whole)
    cdef uint8_t* out = <uint8_t*>PyBytes_AS_STRING(result)
    cdef const uint8_t* before = <const uint8_t*>PyBytes_AS_STRING(head)
    cdef const uint8_t* name = <const uint8_t*>PyBytes_AS_STRING(topic)
    cdef const uint8_t* by = <const uint8_t*>PyBytes_AS_STRING(producer)
    for i in range(count):
        memcpy(&size, &sizes[4 * i], 4)
        memcpy(&micros, &times[8 * i], 8)
        memcpy(out, before, head_size)
        out = put_label(out + head_size, name, topic_size)
        out = put_sequence(out, number + <uint64_t>i, decimal)
        out = put_label(out, by, producer_size)
        out = put_time(out, micros)
        out = put_uuid(out, &ids[16 * i])
        if size < 256:
            out[0], out[1] = 0, <uint8_t>size
            out += 2
        else:
            out[0] = LONG
            put64(out + 1, size)
            out += 9
        memcpy(out, data, size)
        out += size
        data += size
    return result
