"""The kernels in Python: the specification, and the fallback."""
