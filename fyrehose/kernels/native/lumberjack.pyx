# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Native version of ``fyrehose.kernels.pure.lumberjack``, which specifies the functions and is the reference in tests."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from fyrehose.kernels.native.jsonblocks cimport is_ordinary_json
from fyrehose.kernels.native.jsontext cimport (
    MOST_DEPTH, MOST_KEYS, Path, Search, begin_search, first_high, is_json, note_key
)
from fyrehose.kernels.native.wire cimport get32, put32

# version (1), type (1), sequence (4), length (4)
cdef enum:
    HEAD = 10
    JSON = 0x4A
    QUOTE = 0x22
    COMMA = 0x2C
    COLON = 0x3A
    ESCAPE = 0x5C
    OPEN_LIST = 0x5B
    CLOSE_LIST = 0x5D
    OPEN_OBJECT = 0x7B
    CLOSE_OBJECT = 0x7D


cdef enum:
    MOST_PATHS = 8
    MOST_CLASSES = 64


cdef inline bint is_blank(uint8_t byte) noexcept nogil:
    return byte == 0x20 or byte == 0x09 or byte == 0x0A or byte == 0x0D


cdef inline bint is_digit(uint8_t byte) noexcept nogil:
    return 0x30 <= byte <= 0x39


def scan(
    const uint8_t[::1] buffer not None,
    Py_ssize_t start,
    uint8_t version,
    uint64_t largest,
    uint64_t most,
    Py_ssize_t most_count,
):
    cdef const uint8_t* base = &buffer[0] if buffer.shape[0] else NULL
    cdef Py_ssize_t end = buffer.shape[0]
    cdef Py_ssize_t position = start
    cdef Py_ssize_t count = 0
    cdef uint32_t first = 0, sequence = 0, length = 0
    cdef uint64_t total = 0, wide
    cdef bint consecutive = True
    cdef const uint8_t* frame
    if start < 0:
        raise ValueError("invalid position")
    # Find the end and the size of the run first, so that its columns are allocated once with their final size.
    while end - position >= HEAD and count < most_count:
        frame = base + position
        length = get32(frame + 6)
        if frame[0] != version or frame[1] != JSON or length > largest:
            break
        if length > <uint64_t>(end - position - HEAD) or (count and total + length > most):
            break
        if not count:
            first = get32(frame + 2)
        elif get32(frame + 2) != <uint64_t>first + <uint64_t>count:
            consecutive = False
        sequence = get32(frame + 2)
        count += 1
        total += length
        position += HEAD + <Py_ssize_t>length

    cdef bytes lengths = PyBytes_FromStringAndSize(NULL, 4 * count)
    cdef bytes payload = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
    cdef bytes column = b"" if consecutive else PyBytes_FromStringAndSize(NULL, 8 * count)
    cdef uint8_t* length_out = <uint8_t*>PyBytes_AS_STRING(lengths)
    cdef uint8_t* payload_out = <uint8_t*>PyBytes_AS_STRING(payload)
    cdef uint8_t* column_out = <uint8_t*>PyBytes_AS_STRING(column)
    cdef Py_ssize_t i
    frame = base + start
    for i in range(count):
        length = get32(frame + 6)
        memcpy(length_out + 4 * i, &length, 4)
        memcpy(payload_out, frame + HEAD, length)
        if not consecutive:
            wide = get32(frame + 2)
            memcpy(column_out + 8 * i, &wide, 8)
        payload_out += length
        frame += HEAD + length
    return position, count, (first if consecutive else column), sequence, lengths, payload


def frames(version, first, lengths, payload):
    cdef const uint8_t[::1] sizes = memoryview(lengths).cast("B")
    cdef const uint8_t[::1] source = memoryview(payload).cast("B")
    cdef Py_ssize_t count = sizes.shape[0] // 4
    cdef const uint8_t* length = &sizes[0] if count else NULL
    cdef const uint8_t* data = &source[0] if source.shape[0] else NULL
    cdef uint64_t total = 0
    cdef uint32_t size = 0
    cdef Py_ssize_t i
    for i in range(count):
        memcpy(&size, length + 4 * i, 4)
        total += size
    if (
        sizes.shape[0] % 4
        or total != <uint64_t>source.shape[0]
        or not 0 <= version < 256
        or not 0 <= first < 1 << 32
    ):
        raise ValueError(
            "the documents cannot be framed: expected lengths that add up to the payload, "
            "a version of 8 bits, and a sequence of 32 bits"
        )
    cdef uint8_t digit = version
    cdef uint32_t sequence = first
    cdef bytes result = PyBytes_FromStringAndSize(NULL, count * HEAD + source.shape[0])
    cdef uint8_t* out = <uint8_t*>PyBytes_AS_STRING(result)
    for i in range(count):
        memcpy(&size, length + 4 * i, 4)
        out[0] = digit
        out[1] = JSON
        put32(out + 2, sequence + <uint32_t>i)
        put32(out + 6, size)
        if size:
            memcpy(out + HEAD, data, size)
            data += size
        out += HEAD + size
    return result


cdef const uint8_t* skip_blank(const uint8_t* at, const uint8_t* end) noexcept nogil:
    while at < end and is_blank(at[0]):
        at += 1
    return at


cdef inline uint64_t first_of(uint64_t word, uint64_t byte) noexcept nogil:
    """Set the high bit of the first byte of *word* that equals *byte*; those of later bytes are undefined."""
    cdef uint64_t ones = 0x0101010101010101, high = 0x8080808080808080
    word ^= ones * byte
    return (word - ones) & ~word & high


cdef const uint8_t* string_end(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return the closing quote of the string that starts at ``at``; NULL if it has none."""
    cdef uint64_t word, special
    at += 1
    while at < end:
        if end - at >= 8:  # Eight bytes at a time, up to the first quote or backslash.
            memcpy(&word, at, 8)
            special = first_of(word, QUOTE) | first_of(word, ESCAPE)
            if not special:
                at += 8
                continue
            at += first_high(special)
        if at[0] == ESCAPE:
            at += 1
        elif at[0] == QUOTE:
            return at
        at += 1
    return NULL


cdef const uint8_t* skip_value(const uint8_t* at, const uint8_t* end) noexcept nogil:
    cdef Py_ssize_t depth = 0
    while at < end:
        if at[0] == QUOTE:
            at = string_end(at, end)
            if at == NULL:
                return end
        elif at[0] == OPEN_OBJECT or at[0] == OPEN_LIST:
            depth += 1
        elif at[0] == CLOSE_OBJECT or at[0] == CLOSE_LIST:
            if depth == 0:
                return at
            depth -= 1
        elif at[0] == COMMA and depth == 0:
            return at
        at += 1
    return end


cdef const uint8_t* member(const uint8_t* at, const uint8_t* end, bytes key) noexcept:
    """Return the value of ``key`` in the object that starts at ``at``; NULL if it has none."""
    cdef const char* name = PyBytes_AS_STRING(key)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(key)
    cdef const uint8_t* begin
    cdef const uint8_t* close
    if at >= end or at[0] != OPEN_OBJECT:
        return NULL
    at = skip_blank(at + 1, end)
    while at < end and at[0] == QUOTE:
        begin = at + 1
        close = string_end(at, end)
        if close == NULL:
            return NULL
        at = skip_blank(close + 1, end)
        if at >= end or at[0] != COLON:
            return NULL
        at = skip_blank(at + 1, end)
        if close - begin == size and memcmp(begin, name, size) == 0:
            return at
        at = skip_blank(skip_value(at, end), end)
        if at >= end or at[0] != COMMA:
            return NULL
        at = skip_blank(at + 1, end)
    return NULL


cdef const uint8_t* value_at(const uint8_t* at, const uint8_t* end, tuple path) except? NULL:
    """Find the value at ``path``; return NULL if there is none."""
    cdef bytes key
    at = skip_blank(at, end)
    for key in path:
        at = member(at, end, key)
        if at == NULL:
            return NULL
    return at if path and at < end else NULL


cdef const uint8_t* locate(const uint8_t* at, const uint8_t* end, tuple path, Py_ssize_t* size) except? NULL:
    """Find the string at ``path``, without its quotes; return NULL if there is none."""
    cdef const uint8_t* close
    at = value_at(at, end, path)
    if at == NULL or at[0] != QUOTE:
        return NULL
    close = string_end(at, end)
    if close == NULL:
        return NULL
    size[0] = close - at - 1
    return at + 1


cdef inline bint is_number(uint8_t byte) noexcept nogil:
    return is_digit(byte) or byte == 0x2B or byte == 0x2D or byte == 0x2E or byte == 0x45 or byte == 0x65


cdef const uint8_t* scalar_end(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return the end of the string or number that starts at ``at``; NULL if there is none."""
    cdef const uint8_t* begin = at
    if at[0] == QUOTE:
        at = string_end(at, end)
        return NULL if at == NULL else at + 1
    while at < end and is_number(at[0]):
        at += 1
    return at if at > begin else NULL


cdef extern from *:
    """
    #include <stdint.h>
    /* Multiply two words, and combine the halves of the product. */
    static inline uint64_t multiplied(uint64_t a, uint64_t b) {
    #if defined(__SIZEOF_INT128__)
        unsigned __int128 product = (unsigned __int128)a * b;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    #else
        uint64_t low = (uint32_t)a * (uint64_t)(uint32_t)b, high = (a >> 32) * (b >> 32);
        uint64_t one = (a >> 32) * (uint32_t)b, two = (b >> 32) * (uint32_t)a;
        uint64_t middle = (low >> 32) + (uint32_t)one + (uint32_t)two;
        return ((middle << 32) | (uint32_t)low) ^ (high + (one >> 32) + (two >> 32) + (middle >> 32));
    #endif
    }
    static inline uint64_t high_half(uint64_t a, uint64_t b) {
    #if defined(__SIZEOF_INT128__)
        return (uint64_t)(((unsigned __int128)a * b) >> 64);
    #else
        uint64_t low = (uint32_t)a * (uint64_t)(uint32_t)b;
        uint64_t one = (a >> 32) * (uint32_t)b, two = (b >> 32) * (uint32_t)a;
        return (a >> 32) * (b >> 32) + (one >> 32) + (two >> 32)
            + (((low >> 32) + (uint32_t)one + (uint32_t)two) >> 32);
    #endif
    }
    """
    uint64_t multiplied(uint64_t a, uint64_t b) noexcept nogil
    uint64_t high_half(uint64_t a, uint64_t b) noexcept nogil


cdef struct Hash:
    uint64_t a
    uint64_t b


cdef struct Level:
    Hash sum
    Hash key
    bint is_object
    bint has_key


cdef enum:
    #: bytes of a fingerprint, and of a slot: a fingerprint and the number of a group
    FINGERPRINT = 12
    SLOT = 16


cdef inline Hash mixed(Hash one, Hash two, const uint64_t* seed) noexcept nogil:
    cdef Hash result
    result.a = multiplied(one.a ^ seed[0], two.a ^ seed[1])
    result.b = multiplied(one.b ^ seed[2], two.b ^ seed[3])
    return result


cdef inline Hash hash_of(const uint8_t* at, Py_ssize_t size, const uint64_t* seed) noexcept nogil:
    """Return the hash of a scalar as it is written."""
    cdef uint64_t one = 0, two = 0
    cdef Py_ssize_t left = size
    cdef Hash result
    result.a, result.b = seed[0] ^ <uint64_t>size, seed[1] + <uint64_t>size
    while left > 16:
        memcpy(&one, at, 8)
        memcpy(&two, at + 8, 8)
        result.a = multiplied(one ^ seed[2], two ^ result.a)
        result.b = multiplied(one ^ result.b, two ^ seed[3])
        at += 16
        left -= 16
    # The last words overlap those before, or each other.
    if size >= 16:
        memcpy(&one, at + left - 16, 8)
        memcpy(&two, at + left - 8, 8)
    elif size >= 8:
        memcpy(&one, at, 8)
        memcpy(&two, at + size - 8, 8)
    elif size >= 4:
        memcpy(&one, at, 4)
        memcpy(&two, at + size - 4, 4)
    elif size:
        one = at[0] | <uint64_t>at[size >> 1] << 8 | <uint64_t>at[size - 1] << 16
    result.a = multiplied(one ^ seed[2], two ^ result.a)
    result.b = multiplied(one ^ result.b, two ^ seed[3])
    return result


cdef inline const uint8_t* plain_end(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return the end of the number or word at *at*."""
    while at < end and not (is_blank(at[0]) or at[0] == COMMA or at[0] == CLOSE_LIST or at[0] == CLOSE_OBJECT):
        at += 1
    return at


cdef bint digest(
    const uint8_t* at, const uint8_t* end, Search* search, const uint64_t* seed, Level* levels, Hash* result
) noexcept nogil:
    """Compute the hash of a JSON text, which the order of members does not change; return False if it is no JSON text.

    An object is the sum of its members, a list the sequence of its items; equal keys and the form of numbers count.
    """
    cdef int depth = 0, deepest = begin_search(search)
    cdef Level* top = NULL
    cdef Hash value, kind
    cdef const uint8_t* close
    while at < end:
        if at[0] == QUOTE:
            close = string_end(at, end)
            if close == NULL:
                return False
            value = hash_of(at, close + 1 - at, seed)
            if depth and top.is_object and not top.has_key:
                if depth <= deepest:
                    deepest = note_key(search, depth, at, close, end)
                top.key, top.has_key = value, True
                at = close + 1
                continue
            at = close + 1
        elif at[0] == OPEN_OBJECT or at[0] == OPEN_LIST:
            if depth == MOST_DEPTH:
                return False
            top = &levels[depth]
            depth += 1
            top.is_object, top.has_key = at[0] == OPEN_OBJECT, False
            top.sum.a = top.sum.b = 0
            at += 1
            continue
        elif at[0] == CLOSE_OBJECT or at[0] == CLOSE_LIST:
            if not depth:
                return False
            kind.a = kind.b = at[0]
            value = mixed(top.sum, kind, seed)
            depth -= 1
            top = &levels[depth - 1] if depth else NULL
            at += 1
        elif is_blank(at[0]) or at[0] == COMMA or at[0] == COLON:
            at += 1
            continue
        else:
            close = plain_end(at, end)
            value = hash_of(at, close - at, seed)
            at = close
        if not depth:
            result[0] = value
            return True
        if top.is_object:
            value = mixed(top.key, value, seed)
            top.sum.a += value.a
            top.sum.b += value.b
            top.has_key = False
        else:
            top.sum = mixed(top.sum, value, seed)
    return False


cdef bint identity_of(const Path* paths, int count, const uint8_t* end, const uint64_t* seed, Hash* result) noexcept nogil:
    """Combine the strings or numbers at *paths*; return False if one of them is missing."""
    cdef const uint8_t* value
    cdef const uint8_t* close
    cdef int k
    result.a = result.b = 0
    for k in range(count):
        value = paths[k].value
        close = value if value == NULL else scalar_end(value, end)
        if close == NULL:
            return False
        result[0] = mixed(result[0], hash_of(value, close - value, seed), seed)
    return count > 0


def fingerprints(lengths, payload, tuple alternatives not None, bint whole, const uint8_t[::1] key not None):
    cdef const uint8_t[::1] sizes = memoryview(lengths).cast("B")
    cdef const uint8_t[::1] source = memoryview(payload).cast("B")
    cdef Py_ssize_t count = check(sizes, source.shape[0])
    cdef const uint8_t* at = &source[0] if source.shape[0] else NULL
    cdef uint32_t size = 0
    cdef Py_ssize_t i
    cdef int begin, k
    cdef uint64_t seed[4]
    cdef Path followed[MOST_PATHS]
    cdef Search search
    cdef Hash value, identity
    cdef tuple each, paths = sum(alternatives, ())
    if not 0 < len(paths) <= MOST_PATHS or key.shape[0] != 32:
        raise ValueError(f"expected 1 to {MOST_PATHS} paths, and a key of 32 bytes")
    memcpy(seed, &key[0], 32)
    prepare(&search, followed, paths)
    if not search.count:
        raise ValueError(f"a path has more than {MOST_KEYS} keys, or a key has a quote")
    cdef list ends = [len(each) for each in alternatives]
    cdef bytes found = bytes(FINGERPRINT * count)
    cdef uint8_t* out = <uint8_t*>PyBytes_AS_STRING(found)
    cdef Level levels[MOST_DEPTH]
    for i in range(count):
        memcpy(&size, &sizes[4 * i], 4)
        if size and digest(at, at + size, &search, seed, levels, &value):
            begin = 0
            for k in ends:
                if identity_of(followed + begin, k, at + size, seed, &identity):
                    if whole:
                        identity = value
                    memcpy(out, &identity.a, 8)
                    memcpy(out + 8, &identity.b, 4)
                    if not out[0] and not any_byte(out):
                        out[0] = 1  # 0 stands for a document without an identity
                    break
                begin += k
        out += FINGERPRINT
        at += size
    return found


cdef inline bint any_byte(const uint8_t* at) noexcept nogil:
    """Return whether a fingerprint has any byte that is not 0."""
    cdef int k
    for k in range(FINGERPRINT):
        if at[k]:
            return True
    return False


cdef inline uint8_t* slot_of(uint8_t* slots, uint64_t count, const uint8_t* fingerprint) except NULL nogil:
    """Return the slot that has *fingerprint*, or the free one that it would take; one must be free."""
    cdef uint64_t begin = 0, at, i
    cdef uint32_t group = 0
    memcpy(&begin, fingerprint, 8)
    at = high_half(begin, count)
    for i in range(count):
        memcpy(&group, slots + SLOT * at + FINGERPRINT, 4)
        if not group or memcmp(slots + SLOT * at, fingerprint, FINGERPRINT) == 0:
            return slots + SLOT * at
        at += 1
        if at == count:
            at = 0
    with gil:
        raise AssertionError("a table of fingerprints has no free slot")


def remember(uint8_t[::1] slots not None, const uint8_t[::1] found not None, uint32_t group):
    cdef Py_ssize_t i, count = slots.shape[0] // SLOT, used = 0
    cdef uint8_t* slot
    for i in range(found.shape[0] // FINGERPRINT):
        if not any_byte(&found[FINGERPRINT * i]):
            continue
        slot = slot_of(&slots[0], count, &found[FINGERPRINT * i])
        used += 1
        memcpy(slot, &found[FINGERPRINT * i], FINGERPRINT)
        memcpy(slot + FINGERPRINT, &group, 4)
    return used


def recall(uint8_t[::1] slots not None, const uint8_t[::1] found not None):
    cdef Py_ssize_t i, count = slots.shape[0] // SLOT, wanted = found.shape[0] // FINGERPRINT
    cdef bytes groups = bytes(4 * wanted)
    cdef uint8_t* out = <uint8_t*>PyBytes_AS_STRING(groups)
    cdef bint any_found = False
    cdef uint32_t group = 0
    for i in range(wanted if count else 0):
        if any_byte(&found[FINGERPRINT * i]):
            memcpy(&group, slot_of(&slots[0], count, &found[FINGERPRINT * i]) + FINGERPRINT, 4)
            if group:
                any_found = True
                memcpy(out + 4 * i, &group, 4)
    return groups if any_found else b""


def retain(const uint8_t[::1] slots not None, uint8_t[::1] target not None, const uint8_t[::1] living not None):
    cdef Py_ssize_t i
    cdef uint32_t group = 0, number = 0
    cdef uint8_t* slot
    for i in range(slots.shape[0] // SLOT):
        memcpy(&group, &slots[SLOT * i + FINGERPRINT], 4)
        if group >= living.shape[0] // 4:
            raise IndexError("a slot has the number of no group")
        memcpy(&number, &living[4 * group], 4)
        if number:
            slot = slot_of(&target[0], target.shape[0] // SLOT, &slots[SLOT * i])
            memcpy(&number, slot + FINGERPRINT, 4)
            if not number:
                memcpy(slot, &slots[SLOT * i], SLOT)


def find(const uint8_t[::1] document not None, tuple path not None):
    cdef const uint8_t* base = &document[0] if document.shape[0] else NULL
    cdef Py_ssize_t size = 0
    cdef const uint8_t* found = locate(base, base + document.shape[0], path, &size) if base != NULL else NULL
    return None if found == NULL else PyBytes_FromStringAndSize(<const char*>found, size)


cdef int prepare(Search* search, Path* followed, tuple paths) except -1:
    """Let *search* find the values at *paths*, or nothing if one of these cannot be compared byte by byte."""
    cdef tuple path
    cdef bytes key
    cdef int k = 0, n
    search.paths, search.count = followed, 0
    for path in paths:
        if len(path) > MOST_KEYS or any([QUOTE in key for key in path]):
            return 0
        followed[k].count = <int>len(path)
        for n in range(followed[k].count):
            key = path[n]
            followed[k].keys[n], followed[k].sizes[n] = PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
        k += 1
    search.count = k
    return 0


cdef int strings_of(
    const uint8_t* at,
    Py_ssize_t size,
    tuple paths,
    Search* search,
    const uint8_t** found,
    Py_ssize_t* found_sizes,
) except -1:
    """Find the string at each of *paths* in a document, NULL if there is none; return whether the document is JSON."""
    cdef const uint8_t* end = at + size
    cdef const uint8_t* value
    cdef const uint8_t* close
    cdef Py_ssize_t k, wanted = len(paths)
    cdef bint parses = is_ordinary_json(at, end, search) or is_json(at, end, search)
    for k in range(wanted):
        found[k], found_sizes[k] = NULL, 0
        if parses and search.count == wanted:
            value = search.paths[k].value
            if value != NULL and value[0] == QUOTE:
                close = string_end(value, end)
                if close != NULL:
                    found[k], found_sizes[k] = value + 1, close - value - 1
        elif size:
            found[k] = locate(at, end, <tuple>paths[k], &found_sizes[k])
    return parses


def split(lengths, payload, tuple paths not None):
    cdef const uint8_t[::1] sizes = memoryview(lengths).cast("B")
    cdef const uint8_t[::1] source = memoryview(payload).cast("B")
    cdef Py_ssize_t count = check(sizes, source.shape[0])
    cdef const uint8_t* length = &sizes[0] if count else NULL
    cdef const uint8_t* at = &source[0] if source.shape[0] else NULL
    cdef uint32_t size = 0
    cdef Py_ssize_t i, k
    cdef Py_ssize_t wanted = len(paths)
    if wanted > MOST_PATHS:
        raise ValueError(f"too many paths: {wanted}, and at most {MOST_PATHS} are possible")

    cdef list segments = []
    # The strings of the segment, and those of the document.
    cdef const uint8_t* strings[MOST_PATHS]
    cdef Py_ssize_t string_sizes[MOST_PATHS]
    cdef const uint8_t* found[MOST_PATHS]
    cdef Py_ssize_t found_sizes[MOST_PATHS]
    cdef Py_ssize_t held = 0
    cdef bint parses = False, alike
    cdef Path followed[MOST_PATHS]
    cdef Search search
    prepare(&search, followed, paths)
    for i in range(count):
        memcpy(&size, length + 4 * i, 4)
        alike = strings_of(at, size, paths, &search, found, found_sizes)
        if held and (alike != parses or not equal(strings, string_sizes, found, found_sizes, wanted)):
            segments.append((held, texts(strings, string_sizes, wanted), parses))
            held = 0
        if not held:
            parses = alike
            for k in range(wanted):
                strings[k], string_sizes[k] = found[k], found_sizes[k]
        held += 1
        at += size
    if held:
        segments.append((held, texts(strings, string_sizes, wanted), parses))
    return segments


cdef tuple texts(const uint8_t** strings, Py_ssize_t* sizes, Py_ssize_t count):
    """Return the strings as a tuple of bytes; None for a NULL."""
    cdef Py_ssize_t k
    return tuple(
        [None if strings[k] == NULL else PyBytes_FromStringAndSize(<const char*>strings[k], sizes[k]) for k in range(count)]
    )


def classify(lengths, payload, tuple paths not None):
    cdef const uint8_t[::1] sizes = memoryview(lengths).cast("B")
    cdef const uint8_t[::1] source = memoryview(payload).cast("B")
    cdef Py_ssize_t count = check(sizes, source.shape[0])
    cdef const uint8_t* length = &sizes[0] if count else NULL
    cdef const uint8_t* at = &source[0] if source.shape[0] else NULL
    cdef uint32_t size = 0
    cdef Py_ssize_t i, k, g
    cdef Py_ssize_t wanted = len(paths)
    if wanted > MOST_PATHS:
        raise ValueError(f"too many paths: {wanted}, and at most {MOST_PATHS} are possible")
    cdef bytes of = PyBytes_FromStringAndSize(NULL, count)
    cdef uint8_t* class_of = <uint8_t*>PyBytes_AS_STRING(of)
    # The strings of each class, and those of the document.
    cdef const uint8_t* strings[MOST_CLASSES][MOST_PATHS]
    cdef Py_ssize_t string_sizes[MOST_CLASSES][MOST_PATHS]
    cdef bint parses[MOST_CLASSES]
    cdef const uint8_t* found[MOST_PATHS]
    cdef Py_ssize_t found_sizes[MOST_PATHS]
    cdef Py_ssize_t classes = 0
    cdef bint alike
    cdef Path followed[MOST_PATHS]
    cdef Search search
    prepare(&search, followed, paths)
    for i in range(count):
        memcpy(&size, length + 4 * i, 4)
        alike = strings_of(at, size, paths, &search, found, found_sizes)
        g = 0
        while g < classes and not (parses[g] == alike and equal(strings[g], string_sizes[g], found, found_sizes, wanted)):
            g += 1
        if g == MOST_CLASSES:
            return [], b""
        if g == classes:
            classes += 1
            parses[g] = alike
            for k in range(wanted):
                strings[g][k], string_sizes[g][k] = found[k], found_sizes[k]
        class_of[i] = <uint8_t>g
        at += size
    return [(texts(strings[g], string_sizes[g], wanted), parses[g]) for g in range(classes)], of


def scatter(const uint8_t[::1] of not None, Py_ssize_t parts, sequences, lengths, payload):
    cdef const uint8_t[::1] sizes = memoryview(lengths).cast("B")
    cdef const uint8_t[::1] source = memoryview(payload).cast("B")
    cdef Py_ssize_t count = check(sizes, source.shape[0])
    cdef const uint8_t* at = &source[0] if source.shape[0] else NULL
    cdef bint numbered = isinstance(sequences, int)
    cdef uint64_t number = sequences if numbered else 0
    cdef const uint8_t[::1] numbers = b"" if numbered else memoryview(sequences).cast("B")
    cdef uint32_t size = 0
    cdef Py_ssize_t i, g
    cdef Py_ssize_t counts[256]
    cdef Py_ssize_t bytes_of[256]
    if not 0 <= parts <= 256 or of.shape[0] != count or (not numbered and numbers.shape[0] != 8 * count):
        raise ValueError("expected one sequence and one valid part for each length")
    for g in range(parts):
        counts[g] = bytes_of[g] = 0
    for i in range(count):
        g = of[i]
        if g >= parts:
            raise ValueError("expected one sequence and one valid part for each length")
        memcpy(&size, &sizes[4 * i], 4)
        counts[g] += 1
        bytes_of[g] += size

    cdef uint8_t* to_numbers[256]
    cdef uint8_t* to_lengths[256]
    cdef uint8_t* to_payload[256]
    cdef list made = []
    cdef bytes number_column, length_column, data
    for g in range(parts):
        number_column = PyBytes_FromStringAndSize(NULL, 8 * counts[g])
        length_column = PyBytes_FromStringAndSize(NULL, 4 * counts[g])
        data = PyBytes_FromStringAndSize(NULL, bytes_of[g])
        to_numbers[g] = <uint8_t*>PyBytes_AS_STRING(number_column)
        to_lengths[g] = <uint8_t*>PyBytes_AS_STRING(length_column)
        to_payload[g] = <uint8_t*>PyBytes_AS_STRING(data)
        made.append((counts[g], number_column, length_column, data))
    for i in range(count):
        g = of[i]
        memcpy(&size, &sizes[4 * i], 4)
        memcpy(to_lengths[g], &size, 4)
        if numbered:
            memcpy(to_numbers[g], &number, 8)
            number += 1
        else:
            memcpy(to_numbers[g], &numbers[8 * i], 8)
        if size:
            memcpy(to_payload[g], at, size)
        to_lengths[g] += 4
        to_numbers[g] += 8
        to_payload[g] += size
        at += size
    return made


cdef Py_ssize_t check(const uint8_t[::1] sizes, Py_ssize_t whole) except -1:
    """Return the number of lengths; raise ValueError if they do not add up to ``whole``."""
    cdef Py_ssize_t count = sizes.shape[0] // 4
    cdef uint64_t total = 0
    cdef uint32_t size = 0
    cdef Py_ssize_t i
    for i in range(count):
        memcpy(&size, &sizes[4 * i], 4)
        total += size
    if sizes.shape[0] % 4 or total != <uint64_t>whole:
        raise ValueError("the lengths do not add up to the payload")
    return count


cdef bint equal(
    const uint8_t** strings, Py_ssize_t* sizes, const uint8_t** others, Py_ssize_t* other_sizes, Py_ssize_t count
) noexcept:
    """Return whether two lists of strings, of which some are NULL, are the same."""
    cdef Py_ssize_t k
    for k in range(count):
        if (strings[k] == NULL) != (others[k] == NULL) or sizes[k] != other_sizes[k]:
            return False
        if sizes[k] and memcmp(strings[k], others[k], sizes[k]) != 0:
            return False
    return True
