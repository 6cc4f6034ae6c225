"""The backbone kernels."""
