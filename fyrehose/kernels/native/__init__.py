"""The kernels in Cython."""
