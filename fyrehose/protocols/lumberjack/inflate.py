"""Decompression as a stream, in slices, so that neither a compressed frame nor what it comes to is held as a whole.

zlib reaches a ratio of 1,028, and honest writers come near it: a line of spaces has 779.  So no ratio tells a bomb from
a log.  What protects the server is that little is inflated at a time, that frames are taken out of it at once, and that
one compressed frame may come to ``max-inflated`` bytes in all.

A stream's checksum is at its end.  A compressed frame of an ordinary size (:data:`PIECE` bytes that come to
:data:`WHOLE` at the most) is used when it was checked.  Of a larger one events are published while it is inflated; they
are acknowledged when all of it was right.

    in: the payload of a C frame, in pieces as they arrive      out: the frames in it, as bytes
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
#: How much of a compressed frame has to be there before it is inflated, in bytes; all of one that is smaller.
PIECE = 256 << 10
#: How much is inflated before frames are taken out of it, in bytes: what a usual window comes to.
WHOLE = 1 << 20
#: What a decompressor takes, in bytes: its window and tables.
ENGINE = 96 << 10
#: What goes into one call: what zlib does not take, it copies.
_INPUT = 16 << 10
_ERRORS: tuple[type[Exception], ...] = (zlib.error, engine.error)


@attrs.define(eq=False)
class Inflation:
    """One compressed frame on its way.

    :ivar left: how many bytes of its payload have not been consumed, whether they have arrived or not
    :ivar most: what it may come to, in bytes
    :ivar data: what was inflated and not used yet
    :ivar made: what it has come to so far, in bytes
    :ivar inner: the size of the frame that ``data`` begins with, as far as it is known; 0 between frames
    :ivar done: whether it was inflated to its end and found to be right
    """

    left: int
    most: int
    data: bytearray = attrs.field(factory=bytearray, init=False)
    made: int = attrs.field(default=0, init=False)
    inner: int = attrs.field(default=0, init=False)
    done: bool = attrs.field(default=False, init=False)
    _size: int = attrs.field(init=False)
    _tail: bytes = attrs.field(default=b"", init=False)
    _engine: Any = attrs.field(factory=lambda: engine.decompressobj(), init=False)

    def __attrs_post_init__(self) -> None:
        self._size = self.left

    @property
    def full(self) -> bool:
        """Whether frames are to be taken out of ``data`` before more is inflated."""
        return self.done or len(self.data) > max(WHOLE, self.inner)

    @property
    def wanted(self) -> int:
        """How many bytes of its payload have to be there before it is inflated further.

        A frame within it that is not whole yet is inflated only when what has arrived must be enough for all of it,
        so that a peer that falls silent leaves behind what it sent, and not a thousand times as much.
        """
        missing = self.inner - len(self.data)
        return min(self.left, max(PIECE, missing + (missing >> 10) + 64))

    @property
    def needs(self) -> int:
        """Size to which ``data`` may grow before something can be taken out of it, in bytes."""
        if self.done:
            return len(self.data)
        return max(len(self.data), self.inner, WHOLE) + PIECE

    @property
    def held(self) -> int:
        """Memory that it holds, in bytes."""
        return len(self.data) + len(self._tail) + (ENGINE if self._engine is not None and self.made else 0)

    def inflate(self, source: bytearray, at: int, most: int) -> int:
        """Go on for *most* bytes, a slice more or less, with the payload in *source* from *at* on.

        :return: where the payload that was not consumed begins
        :raises RemoteProtocolError: it is no zlib stream, ends too early, or comes to more than it may
        """
        stop = self.made + most
        while not self.done and self.made < stop:
            if not self._tail:
                size = min(_INPUT, self.left, len(source) - at)
                if not size and self.left:
                    break  # the rest has not arrived
                self._tail = bytes(memoryview(source)[at : at + size])
                self.left -= size
                at += size
            try:
                piece = self._engine.decompress(self._tail, SLICE)
            except _ERRORS as error:
                raise RemoteProtocolError("bad-compression", str(error)) from None
            self._tail = self._engine.unconsumed_tail
            self.data += piece
            self.made += len(piece)
            if self.made > self.most:
                raise RemoteProtocolError(
                    "decompression-bomb",
                    f"a compressed frame of {self._size} bytes comes to more than {self.most} bytes; the writer will "
                    "send it again and again: lower its bulk_max_size, or raise the option lumberjack.max-inflated",
                )
            if self._engine.eof:
                self.done = True
                self._tail, self._engine = b"", None
            elif not piece and not self._tail and not self.left:
                raise RemoteProtocolError("bad-compression", "the stream ends too early")
        return at

    def skip(self, available: int) -> int:
        """Ignore bytes behind the end of the stream, which occur and say nothing; return how many."""
        size = min(self.left, available)
        self.left -= size
        return size
