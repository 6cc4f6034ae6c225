"""Decompression that cannot be made to hog: in pieces, with a limit that is known before it begins.

The limit is what a compressed frame may come to: 64 MiB, and 200 times its own size beyond the first MiB.  zlib itself
reaches 1,028 times, and a frame of 16 MiB would come to 16 GiB.  A stream's checksum is at its end, so nothing of a
frame is used before all of it was inflated.

    in: the payload of a C frame      out: the frames in it, as bytes that were checked
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from typing import Any

import attrs

from fyrehose.errors import RemoteProtocolError

engine: Any = zlib
with suppress(ImportError):  # which is two and a half times as fast
    from isal import isal_zlib

    engine = isal_zlib

#: What is inflated in one call at the most, in bytes.
SLICE = 64 << 10
#: What goes into one call: what zlib does not take, it copies.
_INPUT = 16 << 10
_ERRORS: tuple[type[Exception], ...] = (zlib.error, engine.error)


@attrs.frozen(kw_only=True)
class InflateLimits:
    """What a compressed frame may come to, in bytes."""

    largest: int = 64 << 20
    ratio: int = 200
    free: int = 1 << 20

    def most(self, compressed: int) -> int:
        """What ``compressed`` bytes may come to."""
        return min(self.largest, max(self.free, self.ratio * compressed))


@attrs.define(eq=False)
class Inflation:
    """One compressed frame on its way.

    :ivar most: what it may come to, in bytes
    :ivar data: what it has come to; to be used when it is done
    :ivar at: how much of that has been used
    :ivar done: whether it was inflated to its end and found to be right
    """

    payload: bytes
    most: int
    data: bytearray = attrs.field(factory=bytearray, init=False)
    at: int = attrs.field(default=0, init=False)
    done: bool = attrs.field(default=False, init=False)
    _taken: int = attrs.field(default=0, init=False)
    _tail: bytes = attrs.field(default=b"", init=False)
    _engine: Any = attrs.field(factory=lambda: engine.decompressobj(), init=False)

    @property
    def begun(self) -> bool:
        """Whether anything was inflated."""
        return self.done or self._taken > 0

    @property
    def held(self) -> int:
        """What it holds, and from its beginning to its end what it may come to, in bytes."""
        return len(self.payload) + (self.most if self.begun and not self.done else len(self.data))

    def inflate(self, most: int) -> int:
        """Go on for ``most`` bytes, a piece more or less; how many were made.

        :raises RemoteProtocolError: it is no zlib stream, ends too early, or comes to more than it may
        """
        before = len(self.data)
        while not self.done and len(self.data) - before < most:
            try:
                piece = self._engine.decompress(self._tail or self._next(), SLICE)
            except _ERRORS as error:
                raise RemoteProtocolError("bad-compression", str(error)) from None
            self._tail = self._engine.unconsumed_tail
            self.data += piece
            if len(self.data) > self.most:
                raise RemoteProtocolError(
                    "decompression-bomb", f"{len(self.payload)} bytes come to more than {self.most}"
                )
            if self._engine.eof:
                self._finish()
            elif not piece and not self._tail and self._taken >= len(self.payload):
                raise RemoteProtocolError("bad-compression", "the stream ends too early")
        return len(self.data) - before

    def _next(self) -> bytes:
        piece = self.payload[self._taken : self._taken + _INPUT]
        self._taken += len(piece)
        return piece

    def _finish(self) -> None:
        # Bytes behind the end of the stream occur, and say nothing.
        self.done = True
        self.payload = self._tail = b""
        self._engine = None
