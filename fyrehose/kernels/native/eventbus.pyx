# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Native version of ``fyrehose.kernels.pure.eventbus``, which specifies the functions and is the reference in tests."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    TIMESTAMP = 24
    UUID = 36

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


def read_event(frames, Py_ssize_t most_topic, Py_ssize_t most_label, Py_ssize_t most_data):
    if len(frames) != 6:
        return None
    cdef bytes topic = <bytes?>frames[0]
    cdef bytes sequence = <bytes?>frames[1]
    cdef bytes producer = <bytes?>frames[2]
    cdef bytes timestamp = <bytes?>frames[3]
    cdef bytes uuid = <bytes?>frames[4]
    cdef bytes data = <bytes?>frames[5]
    cdef uint8_t event_id[16]
    cdef int64_t micros
    if (
        PyBytes_GET_SIZE(topic) > most_topic
        or PyBytes_GET_SIZE(sequence) > most_label
        or PyBytes_GET_SIZE(producer) > most_label
        or PyBytes_GET_SIZE(data) > most_data
        or PyBytes_GET_SIZE(timestamp) != TIMESTAMP
        or PyBytes_GET_SIZE(uuid) != UUID
        or not read_time(<const uint8_t*>PyBytes_AS_STRING(timestamp), &micros)
        or not read_uuid(<const uint8_t*>PyBytes_AS_STRING(uuid), event_id)
    ):
        return None
    try:
        return (
            PyUnicode_DecodeUTF8(PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), NULL),
            PyUnicode_DecodeUTF8(PyBytes_AS_STRING(producer), PyBytes_GET_SIZE(producer), NULL),
            PyBytes_FromStringAndSize(<const char*>event_id, 16),
            micros,
        )
    except ValueError:
        return None


cdef inline void put_two(uint8_t* out, int64_t value) noexcept nogil:
    out[0] = <uint8_t>(0x30 + value // 10)
    out[1] = <uint8_t>(0x30 + value % 10)


cdef bytes written_sequence(uint64_t value, bint decimal):
    cdef uint8_t text[20]
    cdef int at = 20, i
    if decimal:
        while True:
            at -= 1
            text[at] = <uint8_t>(0x30 + value % 10)
            value = value // 10
            if not value:
                break
        return PyBytes_FromStringAndSize(<const char*>text + at, 20 - at)
    for i in range(8):
        text[i] = <uint8_t>(value >> (56 - 8 * i))
    return PyBytes_FromStringAndSize(<const char*>text, 8)


cdef bytes written_time(int64_t micros):
    cdef int64_t days = micros // DAY
    if micros < 0 and days * DAY != micros:
        days -= 1  # round towards minus infinity, like Python
    if days < FIRST_DAY or days >= END_DAY:
        raise ValueError("time is outside the years 1 to 9999")
    cdef int64_t of_day = (micros - days * DAY) // 1_000
    cdef int64_t shifted = days + 719468  # day 0 is the 1st of March of the year 0; earlier days are refused above
    cdef int64_t year, of_year, month, day
    cdef int64_t era = shifted // 146097
    cdef int64_t of_era = shifted - era * 146097
    cdef int64_t year_of_era = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    cdef bytes result = PyBytes_FromStringAndSize(b"0000-00-00T00:00:00.000Z", TIMESTAMP)
    cdef uint8_t* out = <uint8_t*>PyBytes_AS_STRING(result)
    put_two(out, year // 100)
    put_two(out + 2, year % 100)
    put_two(out + 5, month)
    put_two(out + 8, day)
    put_two(out + 11, of_day // 3_600_000)
    put_two(out + 14, of_day // 60_000 % 60)
    put_two(out + 17, of_day // 1_000 % 60)
    put_two(out + 20, of_day % 1_000 // 10)
    out[22] = <uint8_t>(0x30 + of_day % 10)
    return result


cdef bytes written_uuid(const uint8_t* event_id):
    cdef bytes result = PyBytes_FromStringAndSize(NULL, UUID)
    cdef uint8_t* out = <uint8_t*>PyBytes_AS_STRING(result)
    cdef int i
    for i in range(16):
        if i == 4 or i == 6 or i == 8 or i == 10:
            out[0] = 0x2D
            out += 1
        out[0] = DIGITS[event_id[i] >> 4]
        out[1] = DIGITS[event_id[i] & 15]
        out += 2
    return result


def rows(uint64_t first, event_times, event_ids, Py_ssize_t start, Py_ssize_t stop, bint decimal):
    cdef const uint8_t[::1] times = memoryview(event_times).cast("B")
    cdef const uint8_t[::1] ids = memoryview(event_ids).cast("B")
    cdef Py_ssize_t count = times.shape[0] // 8
    if not 0 <= start <= stop <= count or times.shape[0] % 8 or ids.shape[0] != 16 * count:
        raise ValueError(f"columns hold no rows {start} to {stop}")
    cdef list found = []
    cdef int64_t micros
    cdef Py_ssize_t row
    for row in range(start, stop):
        # A column may start at any address of a mapped file, so access must not assume alignment.
        memcpy(&micros, &times[8 * row], 8)
        found.append((written_sequence(first + <uint64_t>row, decimal), written_time(micros), written_uuid(&ids[16 * row])))
    return found
