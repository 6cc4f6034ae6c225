"""Read and write big-endian integers at unaligned addresses."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t


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
