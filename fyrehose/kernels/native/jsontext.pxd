"""Check that bytes are one JSON text (RFC 8259) in UTF-8, without building any object; nesting is limited."""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef extern from *:
    """
    /* Return the index, in memory, of the first byte whose highest bit is set; the word must have one. */
    #if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define first_high(word) (__builtin_ctzll(word) >> 3)
    #else
    static inline int first_high(uint64_t word) {
        int place = 0;
        while (!(((unsigned char*)&word)[place] & 0x80)) place++;
        return place;
    }
    #endif
    """
    int first_high(uint64_t word) noexcept nogil

cdef enum:
    #: the deepest nesting of lists and objects: one bit each in so many words
    WORDS = 8
    MOST_DEPTH = 512


cdef inline const uint8_t* after_blank(const uint8_t* at, const uint8_t* end) noexcept nogil:
    while at < end and (at[0] == 0x20 or at[0] == 0x0A or at[0] == 0x0D or at[0] == 0x09):
        at += 1
    return at


cdef inline bint is_hex(uint8_t byte) noexcept nogil:
    return 0x30 <= byte <= 0x39 or 0x41 <= (byte & 0xDF) <= 0x46


cdef inline bint is_rest(uint8_t byte) noexcept nogil:
    """Return whether a byte can follow the first one of a character in UTF-8."""
    return byte & 0xC0 == 0x80


cdef inline const uint8_t* after_character(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return the end of the character beyond ASCII at *at*; NULL if it is not UTF-8."""
    cdef uint8_t first = at[0]
    cdef Py_ssize_t left = end - at
    if 0xC2 <= first <= 0xDF:
        return at + 2 if left >= 2 and is_rest(at[1]) else NULL
    if first & 0xF0 == 0xE0:
        if left < 3 or not is_rest(at[1]) or not is_rest(at[2]):
            return NULL
        if (first == 0xE0 and at[1] < 0xA0) or (first == 0xED and at[1] > 0x9F):  # too long, or half of a pair
            return NULL
        return at + 3
    if 0xF0 <= first <= 0xF4:
        if left < 4 or not is_rest(at[1]) or not is_rest(at[2]) or not is_rest(at[3]):
            return NULL
        if (first == 0xF0 and at[1] < 0x90) or (first == 0xF4 and at[1] > 0x8F):  # too long, or beyond Unicode
            return NULL
        return at + 4
    return NULL


cdef inline const uint8_t* after_escape(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return the end of the escape whose backslash is at *at*; NULL if it is invalid."""
    cdef uint8_t kind
    if end - at < 2:
        return NULL
    kind = at[1]
    if kind == 0x75:  # u
        if end - at < 6 or not (is_hex(at[2]) and is_hex(at[3]) and is_hex(at[4]) and is_hex(at[5])):
            return NULL
        return at + 6
    if (
        kind == 0x22 or kind == 0x5C or kind == 0x2F or kind == 0x62
        or kind == 0x66 or kind == 0x6E or kind == 0x72 or kind == 0x74
    ):
        return at + 2
    return NULL


cdef inline const uint8_t* after_string(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return the end of the string whose opening quote is at *at*; NULL if it is invalid."""
    cdef uint64_t word, special
    cdef uint64_t ones = 0x0101010101010101, high = 0x8080808080808080
    at += 1
    while at < end:
        if end - at >= 8:  # Eight bytes at a time, up to the first that does not stand for itself.
            memcpy(&word, at, 8)
            special = word | (word - ones * 0x20) | ((word ^ (ones * 0x22)) - ones) | ((word ^ (ones * 0x5C)) - ones)
            special &= high
            if not special:
                at += 8
                continue
            at += first_high(special)
        if at[0] == 0x22:
            return at + 1
        if at[0] == 0x5C:
            at = after_escape(at, end)
        elif at[0] < 0x20:
            return NULL
        elif at[0] < 0x80:
            at += 1
        else:
            at = after_character(at, end)
        if at == NULL:
            return NULL
    return NULL


cdef inline const uint8_t* after_digits(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return the end of one or more digits; NULL if there is none."""
    cdef const uint8_t* begin = at
    while at < end and 0x30 <= at[0] <= 0x39:
        at += 1
    return at if at > begin else NULL


cdef inline const uint8_t* after_number(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return the end of the number at *at*; NULL if it is invalid."""
    if at[0] == 0x2D:
        at += 1
    if at < end and at[0] == 0x30:
        at += 1
    else:
        at = after_digits(at, end)
    if at != NULL and at < end and at[0] == 0x2E:
        at = after_digits(at + 1, end)
    if at != NULL and at < end and (at[0] | 0x20) == 0x65:  # e
        at += 1
        if at < end and (at[0] == 0x2B or at[0] == 0x2D):
            at += 1
        at = after_digits(at, end)
    return at


cdef inline const uint8_t* after_scalar(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return the end of the string, number or word at *at*; NULL if it is invalid."""
    if at[0] == 0x22:
        return after_string(at, end)
    if end - at >= 4 and (memcmp(at, b"true", 4) == 0 or memcmp(at, b"null", 4) == 0):
        return at + 4
    if end - at >= 5 and memcmp(at, b"false", 5) == 0:
        return at + 5
    if at[0] == 0x2D or 0x30 <= at[0] <= 0x39:
        return after_number(at, end)
    return NULL


cdef inline const uint8_t* after_key(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return the position behind the colon of the key at *at*; NULL if there is no key."""
    at = after_blank(at, end)
    if at == end or at[0] != 0x22:
        return NULL
    at = after_string(at, end)
    if at == NULL:
        return NULL
    at = after_blank(at, end)
    return at + 1 if at < end and at[0] == 0x3A else NULL


cdef inline bint is_json(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return whether the bytes are one JSON text, nested at most MOST_DEPTH deep."""
    cdef uint64_t objects[WORDS]  # a bit for each level: whether it is an object
    cdef uint64_t bit
    cdef int depth = 0
    cdef bint is_object
    cdef uint8_t close
    while True:
        at = after_blank(at, end)
        if at == end:
            return False
        if at[0] == 0x7B or at[0] == 0x5B:
            if depth == MOST_DEPTH:
                return False
            is_object = at[0] == 0x7B
            close = at[0] + 2  # the matching bracket
            bit = <uint64_t>1 << (depth & 63)
            objects[depth >> 6] = objects[depth >> 6] | bit if is_object else objects[depth >> 6] & ~bit
            at = after_blank(at + 1, end)
            if at < end and at[0] == close:
                at += 1
            else:
                depth += 1
                if is_object:
                    at = after_key(at, end)
                    if at == NULL:
                        return False
                continue
        else:
            at = after_scalar(at, end)
            if at == NULL:
                return False
        while True:  # behind a value
            at = after_blank(at, end)
            if not depth:
                return at == end
            if at == end:
                return False
            is_object = objects[(depth - 1) >> 6] >> ((depth - 1) & 63) & 1
            if at[0] == 0x2C:
                at += 1
                if is_object:
                    at = after_key(at, end)
                    if at == NULL:
                        return False
                break
            if at[0] != (0x7D if is_object else 0x5D):
                return False
            at += 1
            depth -= 1
