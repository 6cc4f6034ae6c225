"""``fyrehose journal serve``: a journal's files over HTTP, from a process of its own.

    GET /journal             {"mark": M, "segments": [[base, end], ...]}: what is durable
    GET /segments/BASE       the bytes of a segment, ranges too; nothing beyond the durable mark
    GET /indexes/BASE        its index, once it is sealed
    GET /readers             {"NAME": {"position": ..., "time": ...}, ...}
    PUT /readers/NAME        how far a named reader has come, as a decimal number

BASE is 16 hexadecimal digits, as in the names of the files.  Nothing is written but the readers' positions, and the
process that takes messages in is not asked for anything.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import BinaryIO

import attrs
from twisted.internet.interfaces import IDelayedCall, IPushProducer
from twisted.logger import Logger
from twisted.web.error import UnsupportedMethod
from twisted.web.pages import notFound
from twisted.web.resource import IResource, Resource
from twisted.web.server import NOT_DONE_YET, Request, Site
from zope.interface import implementer

from fyrehose.errors import ConfigError, FyrehoseError
from fyrehose.journal import readers, scan
from fyrehose.journal.view import look

log = Logger()

#: What is read from a file at once, in bytes.
PIECE = 1 << 20
#: How long a connection may be silent, and a reader take nothing of what it asked for, in seconds.
IDLE = 90.0
#: The most digits that a position has.
_LONGEST = 19
_BASE = re.compile(rb"[0-9a-f]{16}")
_RANGE = re.compile(rb"bytes=(\d{1,19})-(\d{0,19})")


def site(directory: Path) -> Site:
    """What listens."""
    made = Site(Root(directory), timeout=IDLE)
    made.requestFactory = _Asked
    return made


class _Asked(Request):
    """One of whose body no more is kept than anybody looks at: a position."""

    def handleContentChunk(self, data: bytes) -> None:
        if self.content is not None and self.content.tell() <= _LONGEST:
            super().handleContentChunk(data[: _LONGEST + 1])  # type: ignore[no-untyped-call]


class _Resource(Resource):
    """One that says no in a line of text."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def getChild(self, path: bytes, request: Request) -> IResource:
        return notFound()

    def render(self, request: Request) -> int | bytes:
        try:
            return super().render(request)  # type: ignore[no-any-return,no-untyped-call]
        except UnsupportedMethod:
            return _refused(request, 405, "it cannot be asked for in this way")


class _Of(_Resource):
    """Something of the journal in a directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory


class Root(_Of):
    """The four things that there are."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.putChild(b"journal", View(directory))
        self.putChild(b"segments", Segments(directory))
        self.putChild(b"indexes", Indexes(directory))
        self.putChild(b"readers", Readers(directory))


class View(_Of):
    """What is durable."""

    isLeaf = True

    def render_GET(self, request: Request) -> bytes:
        try:
            view = look(self.directory)
        except (FyrehoseError, OSError) as error:
            return _trouble(request, error)
        return _json(request, {"mark": view.mark, "segments": [[extent.base, extent.end] for extent in view.segments]})


class Segments(_Of):
    """Segments by their bases."""

    def getChild(self, path: bytes, request: Request) -> IResource:
        if not _BASE.fullmatch(path):
            return notFound()
        base = int(path, 16)
        try:
            end = next((extent.end for extent in look(self.directory).segments if extent.base == base), 0)
        except (FyrehoseError, OSError) as error:
            return Trouble(error)
        if not end:
            return notFound()
        return Bytes(scan.path_of(self.directory, base), end - base)


class Trouble(_Resource):
    """What is asked for cannot be told of now."""

    isLeaf = True

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def render(self, request: Request) -> bytes:
        return _trouble(request, self.error)


class Indexes(_Of):
    """Indexes by the bases of their segments."""

    def getChild(self, path: bytes, request: Request) -> IResource:
        if not _BASE.fullmatch(path):
            return notFound()
        return Bytes(scan.index_path_of(self.directory, int(path, 16)), None)


class Bytes(_Resource):
    """The bytes of a file, or the first ``limit`` of them."""

    isLeaf = True

    def __init__(self, path: Path, limit: int | None) -> None:
        super().__init__()
        self.path = path
        self.limit = limit

    def render_GET(self, request: Request) -> int | bytes:
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return notFound().render(request)  # type: ignore[no-any-return]
        except OSError as error:
            return _trouble(request, error)
        size = os.fstat(file.fileno()).st_size if self.limit is None else self.limit
        request.setHeader(b"content-type", b"application/octet-stream")
        request.setHeader(b"accept-ranges", b"bytes")
        asked = request.getHeader(b"range")
        start, stop = _range(asked.encode() if isinstance(asked, str) else asked, size)
        if asked is not None:
            request.setResponseCode(206 if start < stop else 416)
            request.setHeader(
                b"content-range", b"bytes %d-%d/%d" % (start, stop - 1, size) if start < stop else b"bytes */%d" % size
            )
        request.setHeader(b"content-length", b"%d" % (stop - start))
        if request.method == b"HEAD" or start == stop:
            file.close()
            return b""
        # It is read to its end though it may be deleted meanwhile.
        file.seek(start)
        sending = _Sending(request, file, stop - start)
        request.registerProducer(sending, True)
        sending.resumeProducing()
        return NOT_DONE_YET


@implementer(IPushProducer)
@attrs.define(eq=False)
class _Sending:
    """Sends ``left`` bytes of a file, as fast as they are taken."""

    request: Request
    file: BinaryIO
    left: int
    paused: bool = False
    #: who takes nothing for too long is cut off, and the file let go
    patience: IDelayedCall | None = None

    def resumeProducing(self) -> None:
        self.paused = False
        self._hope()
        while self.left and not self.paused:
            try:
                data = self.file.read(min(PIECE, self.left))
            except OSError as error:
                log.warn("an answer was cut off: {error}", error=error)
                data = b""
            if not data:  # the file was made shorter, or its disk failed: what was promised cannot be kept
                self.request.loseConnection()
                return
            self.left -= len(data)
            self.request.write(data)
        if not self.left and not self.file.closed:
            self._hope()
            self.file.close()
            self.request.unregisterProducer()
            self.request.finish()

    def pauseProducing(self) -> None:
        self.paused = True
        if self.patience is None:
            self.patience = self.request.channel.callLater(IDLE, self._give_up)

    def stopProducing(self) -> None:
        self.paused = True
        self._hope()
        self.file.close()

    def _hope(self) -> None:
        patience, self.patience = self.patience, None
        if patience is not None:
            patience.cancel()

    def _give_up(self) -> None:
        self.patience = None
        self.file.close()
        log.warn("an answer was cut off: nothing of it was taken for {seconds:g} s", seconds=IDLE)
        self.request.channel.forceAbortClient()


def _range(asked: bytes | None, size: int) -> tuple[int, int]:
    """Which bytes are asked for; none where the range lies outside or is none."""
    if asked is None:
        return 0, size
    found = _RANGE.fullmatch(asked)
    if found is None or int(found[1]) >= size:
        return 0, 0
    return int(found[1]), max(int(found[1]), min(int(found[2] or size) + 1, size))


class Readers(_Of):
    """Named readers."""

    def getChild(self, path: bytes, request: Request) -> Resource:
        return OneReader(self.directory, path.decode("latin-1")) if path else self

    def render_GET(self, request: Request) -> bytes:
        try:
            found = readers.positions(self.directory)
        except OSError as error:
            return _trouble(request, error)
        return _json(request, {r.name: {"position": r.position, "time": r.time} for r in found})


class OneReader(_Of):
    """One of them."""

    isLeaf = True

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(directory)
        self.name = name

    def render_PUT(self, request: Request) -> bytes:
        assert request.content is not None
        said = request.content.read(_LONGEST + 1)
        try:
            if not said.isdigit() or len(said) > _LONGEST:
                raise ConfigError("a position is a decimal number")
            readers.report(self.directory, self.name, int(said))
        except ConfigError as error:
            return _refused(request, 400, str(error))
        except OSError as error:
            log.warn("the position of a reader was not kept: {error}", error=error)
            return _refused(request, 507, "it could not be written")
        request.setResponseCode(204)
        return b""


def _json(request: Request, value: object) -> bytes:
    request.setHeader(b"content-type", b"application/json")
    return json.dumps(value).encode() + b"\n"


def _trouble(request: Request, error: Exception) -> bytes:
    """It may be there again later."""
    log.warn("what was asked for cannot be told: {why}", why=str(error))
    return _refused(request, 503, str(error))


def _refused(request: Request, status: int, reason: str) -> bytes:
    request.setResponseCode(status)
    request.setHeader(b"content-type", b"text/plain; charset=utf-8")
    return reason.encode(errors="replace") + b"\n"
