"""Compressed frames of Lumberjack, as a writer sends them."""

from __future__ import annotations

import zlib

from fyrehose.protocols.lumberjack.frames import Compressed


def compressed_frame(inner: bytes, version: int = 2, level: int = 3) -> bytes:
    """Return the bytes of the compressed frame that has the frames *inner*."""
    return Compressed(version=version, payload=zlib.compress(inner, level)).serialize()
