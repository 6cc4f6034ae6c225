"""Sources of messages to publish: arguments, lines of files or of standard input, and whole files.

Files are read in pieces; only one piece is in memory at a time.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred

from fyrehose.errors import FyrehoseError
from fyrehose.records import MAX_PAYLOAD

#: A function that runs a blocking function in a thread.
Call = Callable[[Callable[[], Any]], Deferred[Any]]

#: Size of one read, in bytes.
CHUNK = 64 << 10


class Unreadable(FyrehoseError):
    """A file cannot be read, or a message in it is too large."""


class Source(Protocol):
    """Source of messages, read in batches."""

    @property
    def total(self) -> int | None:
        """Return the total size in bytes, or None if it is unknown."""

    def batches(self, call: Call) -> AsyncIterator[tuple[int, list[bytes]]]:
        """Yield, for each read, its number of bytes and the messages that are complete with it."""


@attrs.frozen
class Arguments:
    """Messages from the command line."""

    messages: list[bytes]
    total: int | None

    async def batches(self, call: Call) -> AsyncIterator[tuple[int, list[bytes]]]:
        for message in self.messages:
            yield len(message), [message]


@attrs.frozen
class LineSource:
    """The lines of files, one message each, without the line feed; all other bytes are kept."""

    paths: tuple[str, ...]
    total: int | None

    async def batches(self, call: Call) -> AsyncIterator[tuple[int, list[bytes]]]:
        """Yield the lines of each file, chunk by chunk.

        :raises Unreadable: a file cannot be read, or a line is too long for a message
        """
        for path in self.paths:
            fd = await call(partial(_open, path))
            rest = bytearray()
            try:
                while chunk := await call(partial(_read, fd, path)):
                    rest += chunk
                    *lines, rest = rest.split(b"\n") if b"\n" in chunk else (rest,)
                    if len(rest) > MAX_PAYLOAD:
                        raise Unreadable(f"{path} has a line of more than {MAX_PAYLOAD} bytes, the limit of a message")
                    yield len(chunk), [bytes(line) for line in lines]
                if rest:
                    yield 0, [bytes(rest)]
            finally:
                if fd:
                    os.close(fd)


@attrs.frozen
class WholeFiles:
    """Files, each of which is one message."""

    paths: tuple[str, ...]
    total: int | None

    async def batches(self, call: Call) -> AsyncIterator[tuple[int, list[bytes]]]:
        for path in self.paths:
            content = await call(partial(_read_whole, path))
            yield len(content), [content]


def arguments(messages: Sequence[str]) -> Source:
    """Return a source of the arguments ``messages``, as the bytes that the shell passed."""
    encoded = [os.fsencode(message) for message in messages]
    return Arguments(encoded, sum(map(len, encoded)))


def lines_of(paths: Sequence[str]) -> Source:
    """Return a source of the lines of the files at ``paths``; ``-`` is standard input."""
    return LineSource(tuple(paths), _total(paths))


def whole_files(paths: Sequence[str]) -> Source:
    """Return a source with each file of ``paths`` as one message; without paths, standard input is one message."""
    paths = tuple(paths) or ("-",)
    return WholeFiles(paths, _total(paths))


def _total(paths: Sequence[str]) -> int | None:
    """Return the total size of the files in bytes, or None if a pipe or a terminal is among them.

    :raises Unreadable: a file is missing or unreadable; this is checked for all files before the first is published
    """
    total: int | None = 0
    for path in paths:
        try:
            about = os.fstat(0) if path == "-" else Path(path).stat()
        except OSError as error:
            raise _unreadable(path, error) from error
        if path != "-" and not os.access(path, os.R_OK):
            raise _unreadable(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
        if stat.S_ISDIR(about.st_mode):
            raise _unreadable(path, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
        total = None if total is None or not stat.S_ISREG(about.st_mode) else total + about.st_size
    return total


def _open(path: str) -> int:
    try:
        return 0 if path == "-" else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(path, error) from error


def _read(fd: int, path: str) -> bytes:
    try:
        return os.read(fd, CHUNK)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> Unreadable:
    return Unreadable(f"cannot read {'standard input' if path == '-' else path}: {error.strerror}")


def _read_whole(path: str) -> bytes:
    fd = _open(path)
    content = bytearray()
    try:
        while len(content) <= MAX_PAYLOAD and (chunk := _read(fd, path)):
            content += chunk
    finally:
        if fd:
            os.close(fd)
    if len(content) > MAX_PAYLOAD:
        raise Unreadable(f"{path} has more than {MAX_PAYLOAD} bytes, the limit of a message; publish its lines instead")
    return bytes(content)
