"""Hash table with open addressing that maps keys to group numbers.

The kernels compare their keys themselves, because the keys have different types.  Usage::

    clear(slots)                            # before the first key
    slot = slot_of_bytes(key, size)
    while slots[slot] >= 0 and KEY OF GROUP slots[slot] DIFFERS:
        slot = next_slot(slot)
    if slots[slot] < 0:                     # a new key
        slots[slot] = number of the new group
"""

from libc.stdint cimport int16_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

cdef enum:
    GROUPS = 256  # at most, as in the pure kernels
    SLOTS = 1024  # four times GROUPS keeps the table sparse

#: The number of a group in each slot, or -1 in a free one.
ctypedef int16_t[SLOTS] Slots


cdef inline void clear(int16_t* slots) noexcept nogil:
    memset(slots, 0xFF, SLOTS * sizeof(int16_t))


cdef inline uint32_t slot_of_bytes(const uint8_t* key, uint32_t size) noexcept nogil:
    cdef uint32_t value = 2166136261  # FNV-1a
    cdef uint32_t i
    for i in range(size):
        value = (value ^ key[i]) * 16777619
    return value % SLOTS


cdef inline uint32_t slot_of_number(uint64_t key) noexcept nogil:
    return <uint32_t>((key * 0x9E3779B97F4A7C15ULL) >> 32) % SLOTS


cdef inline uint32_t next_slot(uint32_t slot) noexcept nogil:
    return (slot + 1) % SLOTS
