"""Inflate compressed data in slices, so that neither the data nor its content is ever held completely.

zlib reaches a ratio of 1,028, and honest writers come near it: a line of spaces has 779.  So neither a ratio nor a size
distinguishes a bomb from a log.  The server is protected because it inflates little at a time, in fair turns, and
parses the inflated frames immediately: a bomb costs its own connection time, and no memory.

A zlib stream has its checksum at the end.  The events of an ordinary compressed frame (at most :data:`PIECE` bytes with
a content of at most :data:`WHOLE`) are used after the checksum was verified.  The events of a larger one are published
while it is inflated, and acknowledged after its checksum was verified.  A stream that was flushed and not ended has no
checksum; it is accepted, as the established servers do.

    in: the payload of a C frame of lumberjack, or the body of an HTTP request, in pieces      out: its content
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import attrs

from fyrehose.errors import RemoteProtocolError
from fyrehose.imports import ZSTD
from fyrehose.records import Buffer

engine: Any = zlib
with suppress(ImportError):  # ISA-L inflates two and a half times as fast as zlib
    from isal import isal_zlib

    engine = isal_zlib

#: Largest output of one call of the decompressor, in bytes; one turn inflates as much.  The value is large because each
#: call also copies the last 32 KiB of the output.
SLICE = 256 << 10
#: Part of a compressed frame that must arrive before inflating starts, in bytes; smaller frames must arrive completely.
PIECE = 256 << 10
#: Size of the inflated data at which the frames in it are parsed, in bytes: the content of a usual window.
WHOLE = 1 << 20
#: The best level of ISA-L.
FAST = 3
#: Memory of a decompressor (its window and tables), in bytes.
ENGINE = 96 << 10
#: The end of a zlib stream that was flushed and not ended: an empty block that is not compressed.
FLUSHED = b"\0\0\xff\xff"
#: Input of one call, in bytes; small, because zlib copies the input that it does not consume.
_INPUT = 16 << 10
#: Smallest output that one call may produce, in bytes, even if less than that is left of a turn.
_OUTPUT = 16 << 10
_ERRORS: tuple[type[Exception], ...] = (zlib.error, engine.error, ValueError)
#: The largest window of zstd, as a power of two: what a sender may use in HTTP (RFC 9659).
_WINDOW_LOG = 23
#: The value of ``unconsumed_tail`` of a decompressor that keeps its input itself.
_KEPT = b"\0"


def deflated(data: Buffer, level: int, wbits: int = zlib.MAX_WBITS) -> bytes:
    """Return *data*, compressed as zlib does: up to level 3 ISA-L, if it is installed, takes a third of the time.

    :param wbits: as for :func:`zlib.compress`; with 16 more the result is gzip
    """
    return bytes((engine if level <= FAST else zlib).compress(data, level, wbits))


class ZstdInflater:
    """A decompressor of zstd with the interface of those of zlib."""

    def __init__(self) -> None:
        from backports import zstd

        options = {int(zstd.DecompressionParameter.window_log_max): _WINDOW_LOG}
        self._engine, self._error = zstd.ZstdDecompressor(options=options), zstd.ZstdError
        self.unconsumed_tail = b""

    @property
    def eof(self) -> bool:
        """Return whether the frame was inflated to its end."""
        return bool(self._engine.eof)

    @property
    def unused_data(self) -> bytes:
        """Return the input behind the end of the frame."""
        return bytes(self._engine.unused_data)

    def decompress(self, data: bytes, most: int) -> bytes:
        """Return at most *most* bytes of the content.

        :raises ValueError: *data* is no zstd
        """
        try:
            piece: bytes = self._engine.decompress(b"" if data is _KEPT else data, most)
        except self._error as error:
            raise ValueError(str(error)) from None
        self.unconsumed_tail = b"" if self.eof or self._engine.needs_input else _KEPT
        return piece


@attrs.define(eq=False)
class Inflation:
    """The state of one compressed frame or body while it arrives.

    :ivar left: number of bytes of the frame's payload that are not consumed, whether they have arrived or not; of a
        body whose end is not known, those that have arrived
    :ivar whole: whether no bytes follow those of ``left``
    :ivar memory: the most bytes that the decompressor takes; it takes less as long as it has inflated little
    :ivar inflated: number of bytes inflated so far
    :ivar frame_size: size of the frame at the start of ``data``, as far as it is known; 0 between frames
    :ivar trailing: whether bytes followed the end of the stream in the input that was consumed with it
    :ivar done: True if the stream was inflated to its end, and its checksum matches if it has one
    """

    left: int
    inflated: int = attrs.field(default=0, init=False)
    frame_size: int = attrs.field(default=0, init=False)
    trailing: bool = attrs.field(default=False, init=False)
    done: bool = attrs.field(default=False, init=False)
    _data: bytearray = attrs.field(factory=bytearray, init=False)
    #: the bytes that were inflated since ``data`` was last read, and their number
    _pieces: list[bytes] = attrs.field(factory=list, init=False)
    _pieces_size: int = attrs.field(default=0, init=False)
    _tail: bytes = attrs.field(default=b"", init=False)
    _last: bytes = attrs.field(default=b"", init=False)  #: the last bytes that were taken from the payload
    whole: bool = attrs.field(default=True, kw_only=True)
    memory: int = attrs.field(default=ENGINE, kw_only=True)
    _engine: Any = attrs.field(factory=lambda: engine.decompressobj(), alias="engine", kw_only=True)

    @property
    def data(self) -> bytearray:
        """Return the inflated bytes that are not parsed yet; the caller removes those that it has parsed."""
        if self._pieces:
            # Join all pieces at once, because a bytearray that grows piece by piece is copied several times.
            self._data = bytearray().join((self._data, *self._pieces))
            self._pieces, self._pieces_size = [], 0
        return self._data

    @property
    def unparsed(self) -> int:
        """Return the size of ``data`` in bytes."""
        return len(self._data) + self._pieces_size

    @property
    def full(self) -> bool:
        """Return whether ``data`` must be parsed before more is inflated."""
        return self.done or len(self._data) + self._pieces_size > max(WHOLE, self.frame_size)

    @property
    def input_needed(self) -> int:
        """Return the number of bytes of the payload that must be buffered before inflating continues.

        If a frame within the compressed frame is incomplete, the rest is inflated only when enough input for all of it
        is buffered.  So for a peer that falls silent the server holds about as many bytes as the peer sent, and not a
        thousand times as many.
        """
        missing = self.frame_size - len(self._data) - self._pieces_size
        return min(self.left, max(PIECE, missing + (missing >> 10) + 64))

    @property
    def needs(self) -> int:
        """Return the size in bytes to which ``data`` may grow before a frame can be parsed."""
        unparsed = len(self._data) + self._pieces_size
        if self.done:
            return unparsed
        return max(unparsed, self.frame_size, WHOLE) + PIECE

    @property
    def held(self) -> int:
        """Return the memory in use, in bytes."""
        return (
            self.unparsed
            + len(self._tail)
            + (min(self.memory, ENGINE + self.inflated) if self._engine is not None and self.inflated else 0)
        )

    def inflate(self, source: bytearray, at: int, most: int) -> int:
        """Inflate about *most* more bytes from the payload in *source* at *at*.

        :return: the position of the payload that was not consumed
        :raises RemoteProtocolError: the payload is no zlib stream, or ends early
        """
        stop = self.inflated + most
        while not self.done and self.inflated < stop:
            if not self._tail:
                size = min(_INPUT, self.left, len(source) - at)
                if not size and self.left:
                    break  # the rest has not arrived
                self._tail = bytes(memoryview(source)[at : at + size])
                self._last = (self._last + self._tail)[-len(FLUSHED) :]
                self.left -= size
                at += size
            try:
                piece = self._engine.decompress(self._tail, min(SLICE, max(_OUTPUT, stop - self.inflated)))
            except _ERRORS as error:
                raise RemoteProtocolError("bad-compression", str(error)) from None
            self._tail = self._engine.unconsumed_tail
            self._pieces.append(piece)
            self._pieces_size += len(piece)
            self.inflated += len(piece)
            ended = not piece and not self._tail and not self.left and self.whole
            if self._engine.eof or (ended and self._last == FLUSHED):
                self.done, self.trailing = True, bool(self._engine.unused_data)
                self._tail, self._engine = b"", None
            elif ended:
                raise RemoteProtocolError("bad-compression", "the compressed data ends early")
            elif not (piece or self._tail or self.left or self.whole):
                break  # the rest has not arrived
        return at

    def skip(self, available: int) -> int:
        """Skip bytes after the end of the zlib stream, which some writers send; return their number."""
        size = min(self.left, available)
        self.left -= size
        return size


def _body(make: Callable[[], Any], memory: int = ENGINE) -> Callable[[], Inflation]:
    return lambda: Inflation(0, whole=False, engine=make(), memory=memory)


#: The content codings of HTTP that can be inflated, each with what begins a body.
CODINGS: dict[str, Callable[[], Inflation]] = {
    "gzip": _body(lambda: engine.decompressobj(31)),
    "deflate": _body(lambda: engine.decompressobj()),
}
if ZSTD.installed:
    CODINGS["zstd"] = _body(ZstdInflater, 1 << _WINDOW_LOG)
