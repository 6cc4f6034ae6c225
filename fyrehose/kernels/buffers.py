"""The type of the bytes that kernels read; :mod:`fyrehose.records` has it for everything else."""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview
