"""Native kernels, compiled by Cython from the ``.pyx`` files beside this module."""
