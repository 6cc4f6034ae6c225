"""The type of the bytes that kernels read; other modules import the type from :mod:`fyrehose.records`."""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview
