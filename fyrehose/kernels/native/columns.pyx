# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Native version of ``fyrehose.kernels.pure.columns``, which specifies the functions and is the reference in tests."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy


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
