"""Helpers for tests that run both versions of a kernel: the native one, if it is built, and columns."""

from __future__ import annotations

from importlib import import_module
from struct import pack
from types import ModuleType


def native_kernel(name: str) -> ModuleType | None:
    """Return the native version of kernel *name*; None if it is not built."""
    try:
        return import_module(f"fyrehose.kernels.native.{name}")
    except ImportError:
        return None


def column(*lengths: int) -> bytes:
    """Return *lengths* as a column of u32, little-endian."""
    return pack(f"<{len(lengths)}I", *lengths)
