"""``fyrehose journal serve``: a journal's files over HTTP, from a process of its own.

    GET /journal             what is durable: {"mark": M, "segments": [[base, end], ...], "snapshots": [position, ...],
                             "identity": HEX}
    GET /segments/BASE       the bytes of a segment, ranges too; nothing beyond the durable mark
    GET /indexes/BASE        its index, once it is sealed
    GET /snapshots/POSITION  a snapshot of all streams
    GET /readers             {"NAME": {"position": ..., "time": ...}, ...}
    PUT /readers/NAME        how far a named reader has come, as a decimal number

BASE and POSITION are 16 hexadecimal digits, as in the names of the files.  Nothing is written but the readers'
positions, and the process that takes messages in is not asked for anything.  Host and Origin are checked as by the
other listeners that speak HTTP; with a token every request has to carry it.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import BinaryIO, cast

import attrs
from twisted.internet.interfaces import IDelayedCall, IPushProducer
from twisted.logger import Logger
from twisted.web.error import UnsupportedMethod
from twisted.web.pages import notFound
from twisted.web.resource import IResource, Resource
from twisted.web.server import NOT_DONE_YET, Request, Site
from zope.interface import implementer

from fyrehose.errors import ConfigError, FyrehoseError
from fyrehose.journal import holds as readers
from fyrehose.journal import scan
from fyrehose.journal.offline.view import look
from fyrehose.net.peers import host_of
from fyrehose.observe.counters import Counters
from fyrehose.web.places import FOREIGN_ORIGIN, foreign_host, host_in, same_origin
from fyrehose.web.tokens import same, token_in

log = Logger()

#: What is read from a file at once, in bytes.
PIECE = 1 << 20
#: How long a connection may be silent, and a reader take nothing of what it asked for, in seconds.
IDLE = 90.0
#: The most digits that a position has.
_LONGEST = 19
_BASE = re.compile(rb"[0-9a-f]{16}")
_RANGE = re.compile(rb"bytes=(\d{1,19})-(\d{0,19})")


def site(directory: Path, hosts: frozenset[str] | None = None, token: str | None = None) -> Site:
    """Build the factory of a listener.

    :param hosts: the names by which it may be asked for; None: by any
    :param token: the token that every request has to carry; None: none
    """
    made = _Site(Root(directory), timeout=IDLE)
    made.hosts, made.token = hosts, token
    made.requestFactory = _Asked
    return made


class _Site(Site):
    """A site that refuses requests of other sites' pages, and requests without its token."""

    hosts: frozenset[str] | None = None
    token: str | None = None

    def __init__(self, root: Resource, timeout: float) -> None:
        super().__init__(root, timeout=timeout)  # type: ignore[no-untyped-call]
        self.counters = Counters()

    def refusal(self, request: Request) -> tuple[int, str, str] | None:
        """Return status, cause and reason if ``request`` may not be answered."""
        headers: dict[str, str] = {}
        for name in ("host", "origin", "sec-fetch-site", "authorization"):
            said = request.requestHeaders.getRawHeaders(name.encode()) or []
            if len(said) > 1:
                return 400, "bad-request", f"two {name} headers are one too many"
            if said:
                headers[name] = said[0].decode("latin-1")
        if self.hosts is not None and host_in(headers.get("host", "")) not in self.hosts:
            return 421, "foreign-host", foreign_host(self.hosts)
        if not same_origin(headers):
            return 403, "foreign-origin", FOREIGN_ORIGIN
        if self.token is not None and not same(token_in(headers.get("authorization", "")), self.token):
            return 401, "bad-token", "this needs the token: Authorization: Bearer TOKEN, as in --token-file"
        return None


class _Asked(Request):
    """A request that keeps no more of its body than a position has."""

    def process(self) -> None:
        """Answer, or refuse before anything is looked up."""
        site = cast("_Site", self.channel.site)  # type: ignore[attr-defined]
        refusal = site.refusal(self)
        if refusal is None:
            super().process()  # type: ignore[no-untyped-call]
            return
        status, cause, reason = refusal
        site.counters.refuse(log, "journal-serve", cause, host_of(self.client), reason)
        if status == 401:
            self.responseHeaders.setRawHeaders(b"www-authenticate", [b"Bearer"])
        body = _refused(self, status, reason)
        self.responseHeaders.setRawHeaders(b"content-length", [b"%d" % len(body)])
        self.write(body)  # type: ignore[no-untyped-call]
        self.finish()  # type: ignore[no-untyped-call]

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
    """The resources below ``/``."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.putChild(b"journal", View(directory))
        self.putChild(b"segments", Segments(directory))
        self.putChild(b"indexes", Indexes(directory))
        self.putChild(b"snapshots", Snapshots(directory))
        self.putChild(b"readers", Readers(directory))


class View(_Of):
    """What is durable."""

    isLeaf = True

    def render_GET(self, request: Request) -> bytes:
        try:
            view = look(self.directory)
            snapshots = scan.snapshots(self.directory)  # after the segments, so that all they refer to are listed
        except (FyrehoseError, OSError) as error:
            return _trouble(request, error)
        segments = [[extent.base, extent.end] for extent in view.segments]
        said = {"mark": view.mark, "segments": segments, "snapshots": snapshots, "identity": view.identity.hex()}
        return _json(request, said)


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


class Snapshots(_Of):
    """Snapshots of all streams, by the positions at which they were made."""

    def getChild(self, path: bytes, request: Request) -> IResource:
        if not _BASE.fullmatch(path):
            return notFound()
        return Bytes(scan.snapshot_path_of(self.directory, int(path, 16)), None)


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
                self.file.close()
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
