"""Kernels in pure Python: the specification of the native ones, and the fallback without a C compiler."""
