"""Check that bytes are one JSON text (RFC 8259) in UTF-8, without building any object; nesting is limited.

The same pass finds values by the keys that lead to them: it knows which strings are keys, and how deep they are.
"""

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
    #: the most keys of a path
    MOST_KEYS = 8


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


cdef struct Path:
    int count
    const char* keys[MOST_KEYS]  # as they are written, without a quote in them
    Py_ssize_t sizes[MOST_KEYS]
    int level  # how many keys led to the present object; -1: the search has ended
    const uint8_t* value  # the first byte of the value; NULL: it is not found


cdef struct Search:
    Path* paths
    int count


cdef inline int begin_search(Search* search) noexcept nogil:
    """Begin with a text; return what :func:`note_key` does."""
    cdef int k
    for k in range(search.count):
        search.paths[k].level, search.paths[k].value = (0 if search.paths[k].count else -1), NULL
    return search.count > 0


cdef inline const uint8_t* value_after(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return the first byte of the value after the colon that follows, or *end* if there is none."""
    while at < end and (at[0] == 0x20 or at[0] == 0x09 or at[0] == 0x0A or at[0] == 0x0D or at[0] == 0x3A):
        at += 1
    return at


cdef inline int note_key(
    Search* search, int depth, const uint8_t* key, const uint8_t* close, const uint8_t* end
) noexcept nogil:
    """Follow the paths along the key that begins with the quote at *key*, in an object at *depth*.

    *close* is its closing quote; NULL if the text has no escapes, so that the next quote closes it.  Return the deepest
    object in which one of them needs the next key; 0 if none does.
    """
    cdef int k, deepest = 0
    cdef Py_ssize_t size
    cdef Path* path
    cdef const uint8_t* value
    for k in range(search.count):
        path = &search.paths[k]
        if depth <= path.level:
            path.level = -1  # the object with the next key has ended, and of equal keys the first counts
        if path.level < 0:
            continue
        if depth == path.level + 1:
            size = path.sizes[path.level]
            if close != NULL and close - key - 1 != size:
                pass
            elif end - key > size + 1 and key[size + 1] == 0x22 and memcmp(key + 1, path.keys[path.level], size) == 0:
                value = value_after(key + size + 2, end)
                if path.level + 1 == path.count:
                    path.value = value if value < end else NULL
                    path.level = -1
                    continue
                if value == end or value[0] != 0x7B:
                    path.level = -1
                    continue
                path.level += 1
        deepest = max(deepest, path.level + 1)
    return deepest


cdef inline const uint8_t* after_key(
    const uint8_t* at, const uint8_t* end, Search* search, int depth, int* deepest
) noexcept nogil:
    """Return the position behind the colon of the key at *at*; NULL if there is no key."""
    cdef const uint8_t* key
    at = key = after_blank(at, end)
    if at == end or at[0] != 0x22:
        return NULL
    at = after_string(at, end)
    if at == NULL:
        return NULL
    if depth <= deepest[0]:
        deepest[0] = note_key(search, depth, key, at - 1, end)
    at = after_blank(at, end)
    return at + 1 if at < end and at[0] == 0x3A else NULL


cdef inline bint is_json(const uint8_t* at, const uint8_t* end, Search* search) noexcept nogil:
    """Return whether the bytes are one JSON text, nested at most MOST_DEPTH deep; find the values of *search*."""
    cdef int deepest = begin_search(search)
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
                    at = after_key(at, end, search, depth, &deepest)
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
                    at = after_key(at, end, search, depth, &deepest)
                    if at == NULL:
                        return False
                break
            if at[0] != (0x7D if is_object else 0x5D):
                return False
            at += 1
            depth -= 1
