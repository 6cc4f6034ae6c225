"""The figg kernels."""
