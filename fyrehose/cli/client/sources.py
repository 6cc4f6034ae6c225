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
from typing import Any

import attrs
from twisted.internet.defer import Deferred

from fyrehose.errors import FyrehoseError
from fyrehose.records import MAX_PAYLOAD

#: A function that runs a blocking function in a thread.
Call = Callable[[Callable[[], Any]], Deferred[Any]]
Batches = AsyncIterator[tuple[int, list[bytes]]]

#: Size of one read, in bytes.
CHUNK = 64 << 10


class Unreadable(FyrehoseError):
    """A file cannot be read, or a message in it is too large."""


@attrs.frozen
class Source:
    """Messages to publish.

    :ivar total: their size in bytes, or None if it is unknown
    :ivar batches: called with a function that runs blocking calls in a thread; yields, for each read, the number of
        bytes, and the messages that the read has completed
    """

    total: int | None
    batches: Callable[[Call], Batches]


def arguments(messages: Sequence[str]) -> Source:
    """Return a source of the arguments ``messages``, as the bytes that the shell passed."""
    encoded = [os.fsencode(message) for message in messages]

    async def batches(call: Call) -> Batches:
        for message in encoded:
            yield len(message), [message]

    return Source(sum(map(len, encoded)), batches)


def lines_of(paths: Sequence[str]) -> Source:
    """Return a source of the lines of the files at ``paths``, one message each; ``-`` is standard input.

    The line feed is left out; all other bytes are kept.
    """
    return Source(_total(paths), partial(_lines, paths))


def whole_files(paths: Sequence[str]) -> Source:
    """Return a source with each file of ``paths`` as one message; without paths, standard input is one message."""
    paths = paths or ("-",)

    async def batches(call: Call) -> Batches:
        for path in paths:
            content = await call(partial(_read_whole, path))
            yield len(content), [content]

    return Source(_total(paths), batches)


async def _lines(paths: Sequence[str], call: Call) -> Batches:
    """Yield the lines of each file, chunk by chunk.

    :raises Unreadable: a file cannot be read, or a line is too long for a message
    """
    for path in paths:
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


def _total(paths: Sequence[str]) -> int | None:
    """Return the total size of the files in bytes, or None if one is a pipe or a terminal, whose size is unknown.

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
