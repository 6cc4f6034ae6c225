"""``fyrehose journal serve``: serve a journal's files over HTTP, from a process of its own.

    GET /journal             the durable part: {"mark": M, "segments": [[base, end], ...], "snapshots": [position, ...],
                             "identity": HEX, "vouched": whether the mark is known to be the end of the log}
    GET /segments/BASE       the bytes of a segment, also ranges of them; nothing beyond the durable mark
    GET /indexes/BASE        the index of a sealed segment
    GET /snapshots/POSITION  a snapshot of all streams
    GET /subscriptions       the named subscriptions to the files: {"NAME": {"position": ..., "time": ...}, ...}
    PUT /subscriptions/NAME  create a subscription, or move it to the position in the body, a decimal number

BASE and POSITION are 16 hexadecimal digits, as in the names of the files.  Only subscriptions are written, and the
message server is not involved.  The headers Host and Origin are checked like those of requests to HTTP listeners.  If a
token is set, every request must carry it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import attrs
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.broker.callback import CallbackBroker
from fyrehose.errors import ConfigError, FyrehoseError, JournalCorrupt
from fyrehose.interfaces import ISubscription
from fyrehose.journal import scan, subscriptions
from fyrehose.journal.files import Files
from fyrehose.net.connections import SessionFactory
from fyrehose.net.tcp import on
from fyrehose.offline.view import look
from fyrehose.sessions import PIECE
from fyrehose.web.session import RequestBody, RequestHead, WebSession
from fyrehose.web.shell import WebProtocol, WebSettings, token_of
from fyrehose.web.tokens import same

PROTOCOL = "journal-serve"
#: Timeout of idle connections, in seconds.
IDLE = 90.0
#: How many decimal digits a position has at most.
_MAX_DIGITS = 19
_BASE = re.compile(r"[0-9a-f]{16}")
_RANGE = re.compile(r"bytes=([0-9]{1,19})-([0-9]{0,19})")
_BYTES = "application/octet-stream"


@attrs.frozen
class Asked:
    """A request that was received completely.

    :ivar body: the beginning of its body, up to one byte more than the digits of a position, so that a body that is too
        long is noticed
    """

    request: RequestHead
    body: bytes


@attrs.define(eq=False)
class Asking(RequestBody):
    """Keeps the beginning of the body of a request."""

    request: RequestHead
    body: bytes = b""

    def add(self, data: bytes) -> Iterable[object]:
        self.body = (self.body + data)[: _MAX_DIGITS + 1]
        return ()

    def end(self) -> Iterable[object]:
        return (Asked(self.request, self.body),)

    @property
    def expected(self) -> int:
        return _MAX_DIGITS + 1

    @property
    def buffered(self) -> int:
        return len(self.body)


@attrs.define(eq=False)
class ServeSession(WebSession):
    """A session that checks the token of requests, and keeps only the beginning of their bodies."""

    token: str | None = attrs.field(default=None, kw_only=True)

    def on_request(self, request: RequestHead) -> Iterable[object]:
        if self.token is None or same(token_of(request), self.token):
            self.exchange.body = Asking(request)
            return ()
        detail = "missing or wrong token; send Authorization: Bearer TOKEN, as in --token-file"
        return self.refuse(401, "bad-token", detail, {"WWW-Authenticate": "Bearer"})


class ServeProtocol(WebProtocol):
    """A connection of a client, whose requests are answered from the files of the journal in *directory*."""

    protocol_name: ClassVar[str] = PROTOCOL
    log: ClassVar[Logger] = Logger()
    directory: Path

    def __init__(self, factory: ServeFactory) -> None:
        super().__init__(factory, ServeSession(factory.hosts, token=factory.token))
        self.directory = factory.directory

    def answer(self, asked: Asked) -> None:
        """Answer the request *asked*, or begin to send the file that it asks for."""
        request = asked.request
        methods = ("PUT",) if request.path[0] == "subscriptions" and any(request.path[1:]) else ("GET", "HEAD")
        if request.method not in methods:
            allowed = ", ".join(methods)
            self.session.refuse(405, "bad-method", f"method not allowed; use {allowed}", {"Allow": allowed})
            return
        try:
            match request.path:
                case ("journal",):
                    self._respond(self._view())
                case ("segments", base) if _BASE.fullmatch(base):
                    self._send_segment(request, int(base, 16))
                case ("indexes", base) if _BASE.fullmatch(base):
                    self._send_file(request, scan.index_path_of(self.directory, int(base, 16)))
                case ("snapshots", position) if _BASE.fullmatch(position):
                    self._send_file(request, scan.snapshot_path_of(self.directory, int(position, 16)))
                case ("subscriptions",) | ("subscriptions", ""):
                    found = subscriptions.registered(self.directory)
                    self._respond({each.name: {"position": each.position, "time": each.time} for each in found})
                case ("subscriptions", name):
                    self._update_subscription(name, asked.body)
                case _:
                    self._refuse(404, "unknown path")
        except FileNotFoundError:
            self._refuse(404, "there is no such file, or it was deleted")
        except JournalCorrupt as error:
            self.log.warn("cannot answer a request: {why}", why=str(error))
            self._refuse(409, str(error))
        except (FyrehoseError, OSError) as error:  # the journal may be readable again later
            self.log.warn("cannot answer a request: {why}", why=str(error))
            self._refuse(503, str(error))

    handlers = WebProtocol.handlers | on(Asked, answer)

    # Internals.

    def _refuse(self, status: int, reason: str) -> None:
        self.session.refuse(status, "refused", reason)

    def _respond(self, value: object) -> None:
        self.session.respond(200, json.dumps(value).encode() + b"\n")

    def _view(self) -> dict[str, Any]:
        view = look(self.directory)
        # The snapshots are listed after the segments, so that every snapshot that a segment refers to is included.
        snapshots = scan.snapshots(self.directory)
        segments = [[extent.base, extent.end] for extent in view.segments]
        return {
            "mark": view.mark,
            "segments": segments,
            "snapshots": snapshots,
            "identity": view.identity.hex(),
            "vouched": view.vouched,
        }

    def _update_subscription(self, name: str, body: bytes) -> None:
        try:
            if not body.isdigit() or len(body) > _MAX_DIGITS:
                raise ConfigError(f"invalid position of a subscription: expected 1 to {_MAX_DIGITS} decimal digits")
            subscriptions.update(self.directory, name, int(body))
        except ConfigError as error:
            self._refuse(400, str(error))
        except OSError as error:
            self.log.warn("cannot store a subscription: {error}", error=error)
            self._refuse(507, "the subscription could not be stored")
        else:
            self.session.respond_without_content()

    def _send_segment(self, request: RequestHead, base: int) -> None:
        end = next((extent.end for extent in look(self.directory).segments if extent.base == base), base)
        if end == base:
            raise FileNotFoundError
        self._send_file(request, scan.path_of(self.directory, base), end - base)

    def _send_file(self, request: RequestHead, path: Path, limit: int | None = None) -> None:
        """Send the file at *path*, at most its first *limit* bytes, or the range of these that the request asks for."""
        file = os.fdopen(Files().open(path, os.O_RDONLY), "rb")
        size = os.fstat(file.fileno()).st_size if limit is None else limit
        asked = request.headers.get("range")
        start, stop = _range(asked, size)
        headers = {"Accept-Ranges": "bytes"}
        status = 200
        if asked is not None:
            status = 206 if start < stop else 416
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}" if start < stop else f"bytes */{size}"
        self.session.start(status, _BYTES, headers, stop - start)
        if request.method == "HEAD" or start == stop:
            file.close()
            self.session.end()
            return
        # The open file can be read to its end even if retention deletes it meanwhile.
        file.seek(start)
        self.attach(FileSending(self, file, start, stop))


class ServeFactory(SessionFactory):
    """The factory of the connections of clients that read the journal in *directory*.

    :param hosts: host names that requests may use; None: any host name
    :param token: the token that every request must carry; None: no token is required
    """

    protocol = ServeProtocol
    defaults = WebSettings(idle_timeout=IDLE)
    proofs = None

    def __init__(
        self,
        directory: Path,
        hosts: frozenset[str] | None = None,
        token: str | None = None,
        reactor: Any = None,
        piece: int = PIECE,
    ) -> None:
        # Only the counters and limits of this broker are used, because clients publish nothing.
        super().__init__(CallbackBroker(lambda run: None), reactor=reactor)
        self.directory, self.hosts, self.token, self.piece = directory, hosts, token, piece


@implementer(ISubscription)
@attrs.define(eq=False)
class FileSending:
    """A producer that sends the bytes of a file from *position* to *stop* as fast as the client reads them."""

    protocol: ServeProtocol
    file: BinaryIO
    position: int
    stop: int
    paused: bool = True
    _queued: bool = attrs.field(default=False, init=False)

    def resumeProducing(self) -> None:
        self.paused = False
        if not self._queued:
            self._queued = True
            self.protocol.broker.turns.ready(self, self.protocol.network)

    def take_turn(self) -> int:
        """Send the next piece of the file; after the last piece, complete the answer."""
        self._queued = False
        if self.paused:
            return 0
        try:
            data = self.file.read(min(self.protocol.factory.piece, self.stop - self.position))
        except OSError as error:
            self.protocol.log.warn("closing a connection, because a file cannot be read: {error}", error=error)
            data = b""
        if not data:  # the file was truncated, or its disk failed, so the promised content length cannot be sent
            self.protocol.finish()
            return 0
        self.position += len(data)
        self.protocol.session.send(data)
        self.protocol.flush()
        if self.position == self.stop:
            self.protocol.session.end()
            self.protocol.detach(self)
            self.protocol.proceed()
        elif not self.paused:
            self.resumeProducing()
        return len(data)

    def failed(self, failure: Failure) -> None:
        """End the connection, because the rest of the file cannot be sent."""
        self.protocol.failed(failure)

    def pauseProducing(self) -> None:
        self.paused = True

    def stopProducing(self) -> None:
        self.paused = True
        self.file.close()


def _range(header: str | None, size: int) -> tuple[int, int]:
    """Return the first byte and the end of the range that a Range *header* asks for.

    Return an empty range if the header is malformed, or if its range begins behind the end of the file.
    """
    if header is None:
        return 0, size
    found = _RANGE.fullmatch(header)
    if found is None or int(found[1]) >= size:
        return 0, 0
    return int(found[1]), max(int(found[1]), min(int(found[2] or size) + 1, size))
