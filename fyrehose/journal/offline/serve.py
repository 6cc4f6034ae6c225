"""``fyrehose journal serve``: serve a journal's files over HTTP, from a process of its own.

    GET /journal             the durable part: {"mark": M, "segments": [[base, end], ...], "snapshots": [position, ...],
                             "identity": HEX}
    GET /segments/BASE       the bytes of a segment, also ranges of them; nothing beyond the durable mark
    GET /indexes/BASE        the index of a sealed segment
    GET /snapshots/POSITION  a snapshot of all streams
    GET /holds               the retention holds: {"NAME": {"position": ..., "time": ...}, ...}
    PUT /holds/NAME          register a retention hold, or move it to the position in the body, a decimal number

BASE and POSITION are 16 hexadecimal digits, as in the names of the files.  Only retention holds are written, and the
message server is not involved.  Host and Origin are checked as by the HTTP listeners; with a token, every request must
carry it.
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
from fyrehose.journal import holds, scan
from fyrehose.journal.offline.view import look
from fyrehose.net.peers import host_of
from fyrehose.observe.counters import Counters
from fyrehose.web.hosts import FOREIGN_ORIGIN, foreign_host, host_in, same_origin
from fyrehose.web.tokens import same, token_in

log = Logger()

#: How many bytes are read from a file at once.
PIECE = 1 << 20
#: Timeout of idle connections, and of clients that read nothing of the answer, in seconds.
IDLE = 90.0
#: The largest number of digits of a position.
_MAX_DIGITS = 19
_BASE = re.compile(rb"[0-9a-f]{16}")
_RANGE = re.compile(rb"bytes=(\d{1,19})-(\d{0,19})")


def site(directory: Path, hosts: frozenset[str] | None = None, token: str | None = None) -> Site:
    """Build the factory of the HTTP server.

    :param hosts: host names that requests may use; None: any
    :param token: the token that every request must carry; None: no token is required
    """
    made = _Site(Root(directory), timeout=IDLE)
    made.hosts, made.token = hosts, token
    made.requestFactory = _Request
    return made


class _Site(Site):
    """A site that refuses requests from other sites' pages, and requests without its token."""

    hosts: frozenset[str] | None = None
    token: str | None = None

    def __init__(self, root: Resource, timeout: float) -> None:
        super().__init__(root, timeout=timeout)  # type: ignore[no-untyped-call]
        self.counters = Counters()

    def refusal(self, request: Request) -> tuple[int, str, str] | None:
        """Return the status, the cause and the reason if *request* must be refused, or None."""
        headers: dict[str, str] = {}
        for name in ("host", "origin", "sec-fetch-site", "authorization"):
            values = request.requestHeaders.getRawHeaders(name.encode()) or []
            if len(values) > 1:
                return 400, "bad-request", f"more than one {name} header"
            if values:
                headers[name] = values[0].decode("latin-1")
        if self.hosts is not None and host_in(headers.get("host", "")) not in self.hosts:
            return 421, "foreign-host", foreign_host(self.hosts)
        if not same_origin(headers):
            return 403, "foreign-origin", FOREIGN_ORIGIN
        if self.token is not None and not same(token_in(headers.get("authorization", "")), self.token):
            return 401, "bad-token", "missing or wrong token; send Authorization: Bearer TOKEN, as in --token-file"
        return None


class _Request(Request):
    """A request that keeps only as much of its body as a position can have."""

    def process(self) -> None:
        """Answer the request, or refuse it before any file is touched."""
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
        if self.content is not None and self.content.tell() <= _MAX_DIGITS:
            super().handleContentChunk(data[: _MAX_DIGITS + 1])  # type: ignore[no-untyped-call]


class _Resource(Resource):
    """A resource that refuses unknown paths and methods with a line of text."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def getChild(self, path: bytes, request: Request) -> IResource:
        return notFound()

    def render(self, request: Request) -> int | bytes:
        try:
            return super().render(request)  # type: ignore[no-any-return,no-untyped-call]
        except UnsupportedMethod:
            return _refused(request, 405, "method not allowed")


class _InDirectory(_Resource):
    """A resource that is a part of the journal in *directory*."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory


class Root(_InDirectory):
    """The resources below ``/``."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.putChild(b"journal", View(directory))
        self.putChild(b"segments", Segments(directory))
        self.putChild(b"indexes", Indexes(directory))
        self.putChild(b"snapshots", Snapshots(directory))
        self.putChild(b"holds", Holds(directory))


class View(_InDirectory):
    """``/journal``: the durable part of the journal."""

    isLeaf = True

    def render_GET(self, request: Request) -> bytes:
        try:
            view = look(self.directory)
            # Listed after the segments, so that every snapshot that they refer to is included.
            snapshots = scan.snapshots(self.directory)
        except (FyrehoseError, OSError) as error:
            return _trouble(request, error)
        segments = [[extent.base, extent.end] for extent in view.segments]
        fields = {"mark": view.mark, "segments": segments, "snapshots": snapshots, "identity": view.identity.hex()}
        return _json(request, fields)


class Segments(_InDirectory):
    """``/segments``: the segments, named by their bases."""

    def getChild(self, path: bytes, request: Request) -> IResource:
        if not _BASE.fullmatch(path):
            return notFound()
        base = int(path, 16)
        try:
            end = next((extent.end for extent in look(self.directory).segments if extent.base == base), 0)
        except (FyrehoseError, OSError) as error:
            return Unavailable(error)
        if not end:
            return notFound()
        return Bytes(scan.path_of(self.directory, base), end - base)


class Unavailable(_Resource):
    """Answers 503 because of *error*."""

    isLeaf = True

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def render(self, request: Request) -> bytes:
        return _trouble(request, self.error)


class Indexes(_InDirectory):
    """``/indexes``: the indexes, named by the bases of their segments."""

    def getChild(self, path: bytes, request: Request) -> IResource:
        if not _BASE.fullmatch(path):
            return notFound()
        return Bytes(scan.index_path_of(self.directory, int(path, 16)), None)


class Snapshots(_InDirectory):
    """``/snapshots``: the snapshots of all streams, named by their positions."""

    def getChild(self, path: bytes, request: Request) -> IResource:
        if not _BASE.fullmatch(path):
            return notFound()
        return Bytes(scan.snapshot_path_of(self.directory, int(path, 16)), None)


class Bytes(_Resource):
    """The content of a file, or its first *limit* bytes."""

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
        header = request.getHeader(b"range")
        start, stop = _range(header.encode() if isinstance(header, str) else header, size)
        if header is not None:
            request.setResponseCode(206 if start < stop else 416)
            request.setHeader(
                b"content-range", b"bytes %d-%d/%d" % (start, stop - 1, size) if start < stop else b"bytes */%d" % size
            )
        request.setHeader(b"content-length", b"%d" % (stop - start))
        if request.method == b"HEAD" or start == stop:
            file.close()
            return b""
        # The open file can be read to its end even if retention deletes it meanwhile.
        file.seek(start)
        sending = _Sending(request, file, stop - start)
        request.registerProducer(sending, True)
        sending.resumeProducing()
        return NOT_DONE_YET


@implementer(IPushProducer)
@attrs.define(eq=False)
class _Sending:
    """Sends *left* bytes of a file, as fast as the client reads them."""

    request: Request
    file: BinaryIO
    left: int
    paused: bool = False
    #: Runs while sending is paused: a client that reads nothing until it fires is disconnected, and the file closed.
    stall_timer: IDelayedCall | None = None

    def resumeProducing(self) -> None:
        self.paused = False
        self._cancel_timer()
        while self.left and not self.paused:
            try:
                data = self.file.read(min(PIECE, self.left))
            except OSError as error:
                log.warn("closing a connection, because a file cannot be read: {error}", error=error)
                data = b""
            if not data:  # the file was truncated, or its disk failed: the promised content length cannot be sent
                self.file.close()
                self.request.loseConnection()
                return
            self.left -= len(data)
            self.request.write(data)
        if not self.left and not self.file.closed:
            self._cancel_timer()
            self.file.close()
            self.request.unregisterProducer()
            self.request.finish()

    def pauseProducing(self) -> None:
        self.paused = True
        if self.stall_timer is None:
            self.stall_timer = self.request.channel.callLater(IDLE, self._stalled)

    def stopProducing(self) -> None:
        self.paused = True
        self._cancel_timer()
        self.file.close()

    def _cancel_timer(self) -> None:
        timer, self.stall_timer = self.stall_timer, None
        if timer is not None:
            timer.cancel()

    def _stalled(self) -> None:
        self.stall_timer = None
        self.file.close()
        log.warn("closing a connection, because the client read nothing for {seconds:g} s", seconds=IDLE)
        self.request.channel.forceAbortClient()


def _range(header: bytes | None, size: int) -> tuple[int, int]:
    """Return the first byte and the end of the range that a Range *header* asks for.

    An empty range stands for one that is malformed or begins behind the end.
    """
    if header is None:
        return 0, size
    found = _RANGE.fullmatch(header)
    if found is None or int(found[1]) >= size:
        return 0, 0
    return int(found[1]), max(int(found[1]), min(int(found[2] or size) + 1, size))


class Holds(_InDirectory):
    """``/holds``: the retention holds."""

    def getChild(self, path: bytes, request: Request) -> Resource:
        return OneHold(self.directory, path.decode("latin-1")) if path else self

    def render_GET(self, request: Request) -> bytes:
        try:
            found = holds.registered(self.directory)
        except OSError as error:
            return _trouble(request, error)
        return _json(request, {hold.name: {"position": hold.position, "time": hold.time} for hold in found})


class OneHold(_InDirectory):
    """``/holds/NAME``: one retention hold."""

    isLeaf = True

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(directory)
        self.name = name

    def render_PUT(self, request: Request) -> bytes:
        assert request.content is not None
        body = request.content.read(_MAX_DIGITS + 1)
        try:
            if not body.isdigit() or len(body) > _MAX_DIGITS:
                raise ConfigError(f"invalid position of a retention hold: expected 1 to {_MAX_DIGITS} decimal digits")
            holds.update(self.directory, self.name, int(body))
        except ConfigError as error:
            return _refused(request, 400, str(error))
        except OSError as error:
            log.warn("cannot store a retention hold: {error}", error=error)
            return _refused(request, 507, "the retention hold could not be stored")
        request.setResponseCode(204)
        return b""


def _json(request: Request, value: object) -> bytes:
    request.setHeader(b"content-type", b"application/json")
    return json.dumps(value).encode() + b"\n"


def _trouble(request: Request, error: Exception) -> bytes:
    """Answer 503, because the journal may be readable again later."""
    log.warn("cannot answer a request: {why}", why=str(error))
    return _refused(request, 503, str(error))


def _refused(request: Request, status: int, reason: str) -> bytes:
    request.setResponseCode(status)
    request.setHeader(b"content-type", b"text/plain; charset=utf-8")
    return reason.encode(errors="replace") + b"\n"
