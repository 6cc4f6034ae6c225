"""Recognize ordinary JSON texts 64 bytes at a time; the exact check (jsontext.pxd) decides about all others.

Ordinary texts, such as most log events, are ASCII without control characters and without escapes, and are not nested
deeply.  Bit masks of 64 bytes show their quotes, so strings are skipped without a loop over their bytes, and only the
bytes outside of strings, and the opening quotes, are looked at.  On processors without SSE2 no text is ordinary.

The same pass finds values by the keys that lead to them, as the exact check does.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from fyrehose.kernels.native.jsontext cimport Search, after_scalar, begin_search, note_key

cdef extern from *:
    """
    #include <stdint.h>

    #if defined(__GNUC__)
    #define rarely(condition) __builtin_expect(!!(condition), 0)
    #else
    #define rarely(condition) (condition)
    #endif

    #if defined(__SSE2__) && defined(__GNUC__)
    #include <emmintrin.h>
    #define HAS_MASKS 1
    #define first_bit(mask) __builtin_ctzll(mask)

    /* Set a bit for each of 64 bytes: quotes; spaces; control characters, backslashes, and bytes beyond ASCII. */
    static inline void masks_of(const uint8_t* at, uint64_t* quotes, uint64_t* spaces, uint64_t* others) {
        const __m128i quote = _mm_set1_epi8(0x22), space = _mm_set1_epi8(0x20), escape = _mm_set1_epi8(0x5C);
        *quotes = *spaces = *others = 0;
        for (int shift = 0; shift < 64; shift += 16) {
            __m128i bytes = _mm_loadu_si128((const __m128i*)(at + shift));
            /* Compared as signed numbers, bytes beyond ASCII are less than a space, too. */
            __m128i other = _mm_or_si128(_mm_cmplt_epi8(bytes, space), _mm_cmpeq_epi8(bytes, escape));
            *quotes |= (uint64_t)_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, quote)) << shift;
            *spaces |= (uint64_t)_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, space)) << shift;
            *others |= (uint64_t)_mm_movemask_epi8(other) << shift;
        }
    }
    #else
    #define HAS_MASKS 0
    #define first_bit(mask) 0
    #define masks_of(at, quotes, spaces, others) (*(quotes) = *(spaces) = 0, *(others) = 1)
    #endif
    """
    bint HAS_MASKS
    bint rarely(bint condition) noexcept nogil
    int first_bit(uint64_t mask) noexcept nogil
    void masks_of(const uint8_t* at, uint64_t* quotes, uint64_t* spaces, uint64_t* others) noexcept nogil

cdef enum:
    BLOCK = 64
    #: the deepest nesting of an ordinary text: one bit each in a word
    LEVELS = 63

cdef enum Awaited:
    VALUE  # a value
    ITEM  # the first value of a list, or its end
    MEMBER  # the first key of an object, or its end
    KEY  # another key of an object
    COLON
    NEXT  # a comma, or the end of a list, an object or the text


cdef inline uint64_t between(uint64_t quotes) noexcept nogil:
    """Set all bits from each odd quote up to the one before the next quote."""
    quotes ^= quotes << 1
    quotes ^= quotes << 2
    quotes ^= quotes << 4
    quotes ^= quotes << 8
    quotes ^= quotes << 16
    quotes ^= quotes << 32
    return quotes


cdef struct Progress:
    Awaited awaited
    uint64_t kinds  # a bit for each open list (0) or object (1), the innermost first
    int depth
    const uint8_t* parsed  # the end of the last number or word


cdef inline void leave(Progress* progress) noexcept nogil:
    progress.kinds >>= 1
    progress.depth -= 1
    progress.awaited = NEXT


cdef inline bint follows(Progress* progress, const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return whether the byte at *at*, which is an opening quote or outside of strings, may follow what was there."""
    cdef Awaited awaited = progress.awaited
    cdef uint8_t byte = at[0]
    if awaited == NEXT:
        if at < progress.parsed:
            return True
        if not progress.depth:
            return False
        if byte == 0x2C:
            progress.awaited = KEY if progress.kinds & 1 else VALUE
            return True
        if byte == (0x7D if progress.kinds & 1 else 0x5D):
            leave(progress)
            return True
        return False
    if awaited == COLON:
        progress.awaited = VALUE
        return byte == 0x3A
    if byte == 0x22:
        progress.awaited = COLON if awaited == KEY or awaited == MEMBER else NEXT
        return True
    if awaited == KEY:
        return False
    if awaited != VALUE and byte == (0x7D if awaited == MEMBER else 0x5D):
        leave(progress)
        return True
    if awaited == MEMBER:
        return False
    if byte == 0x7B or byte == 0x5B:
        progress.kinds = progress.kinds << 1 | (byte == 0x7B)
        progress.depth += 1
        progress.awaited = MEMBER if byte == 0x7B else ITEM
        return progress.depth <= LEVELS
    progress.parsed = after_scalar(at, end)
    progress.awaited = NEXT
    return progress.parsed != NULL


cdef inline bint is_ordinary_json(const uint8_t* begin, const uint8_t* end, Search* search) noexcept nogil:
    """Return True if the bytes are an ordinary JSON text, and False if they may or may not be a JSON text.

    The values that *search* has found mean nothing if the text is not ordinary.
    """
    cdef const uint8_t* at
    cdef int deepest = begin_search(search)
    cdef uint64_t quotes, spaces, others, inside, places
    cdef uint64_t carry = 0  # all bits set if a string began before this block
    cdef uint8_t rest[BLOCK]
    cdef const uint8_t* block = begin
    cdef Progress progress
    progress.awaited, progress.kinds, progress.depth, progress.parsed = VALUE, 0, 0, begin
    if not HAS_MASKS:
        return False
    while block < end:
        if end - block >= BLOCK:
            masks_of(block, &quotes, &spaces, &others)
        else:
            memset(rest, 0x20, BLOCK)
            memcpy(rest, block, end - block)
            masks_of(rest, &quotes, &spaces, &others)
        if others:
            return False
        inside = between(quotes) ^ carry
        carry = 0 - (inside >> 63)
        places = (inside & quotes) | ~(inside | quotes | spaces)
        while places:
            at = block + first_bit(places)
            if not follows(&progress, at, end):
                return False
            if rarely(progress.depth <= deepest and progress.awaited == COLON):
                deepest = note_key(search, progress.depth, at, NULL, end)
            places &= places - 1
        block += BLOCK
    return progress.awaited == NEXT and not progress.depth and not carry
