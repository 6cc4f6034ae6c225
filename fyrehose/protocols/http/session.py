"""The HTTP listener, sans-I/O: what was asked, as events; what is wrong is answered here.

    POST /streams/NAME                 a message, or a message a line  -> Publish ..., Published
    GET  /streams/NAME?from=N&limit=N  records as NDJSON               -> Read
    GET  /streams/NAME/live?from=N     records as they come, as events -> Live
    DELETE /streams/NAME               the stream's end                -> Retire
    GET  /                             what there is

A name is percent-encoded, slashes too.  Anything else is a refusal with a status, and ``{"error": ...}``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import attrs

from fyrehose.protocols.http.bodies import Body, Lines, TooLarge, Whole
from fyrehose.records import LAST_SEQ, MAX_NAME
from fyrehose.web.session import JSON, Asked, Refused, WebSession

PROTOCOL = "http"
#: Lines of JSON, by their names.
NDJSON = "application/x-ndjson"
NDJSONS = frozenset({NDJSON, "application/ndjson", "application/jsonl", "application/json-lines"})
EVENTS = "text/event-stream"
#: What curl says of everything, and means nothing by.
FORM = "application/x-www-form-urlencoded"
#: Records that one GET may ask for, and how many it gets when it does not say.
MOST_RECORDS = 1_000_000
RECORDS = 1_000

USAGE = {
    "POST /streams/NAME": f"publish the body; with Content-Type: {NDJSON} each of its lines",
    "GET /streams/NAME?from=SEQ&limit=N": "records from the oldest, or from SEQ on, a JSON object a line",
    "GET /streams/NAME/live?from=SEQ": "records as they come, or from SEQ on, as server-sent events",
    "DELETE /streams/NAME": "retire the stream",
}


@attrs.frozen(slots=True, kw_only=True)
class Publish:
    """Messages for a stream; more may follow for the same request."""

    asked: Asked
    stream: str
    content_type: str | None
    payloads: list[bytes]


@attrs.frozen(slots=True)
class Spoiled:
    """The rest of a body is not taken: to be answered when what came before it is durable."""

    why: Refused


@attrs.frozen(slots=True)
class Published:
    """There are no more messages: to be answered when all of them are durable."""


@attrs.frozen(slots=True, kw_only=True)
class Read:
    """Records ``first`` (0: from the oldest) and what follows, ``limit`` of them at the most."""

    asked: Asked
    stream: str
    first: int
    limit: int


@attrs.frozen(slots=True, kw_only=True)
class Live:
    """What follows number ``after``, for ever; None: from now on."""

    asked: Asked
    stream: str
    after: int | None


@attrs.frozen(slots=True, kw_only=True)
class Retire:
    """A stream is to be retired."""

    asked: Asked
    stream: str


@attrs.frozen(slots=True, kw_only=True)
class Limits:
    """What one request may bring.

    :ivar message: the largest message, in bytes
    :ivar body: the largest body of many messages whose length is known, in bytes
    """

    message: int
    body: int


@attrs.define(eq=False)
class HttpSession(WebSession):
    """One connection."""

    limits: Limits = attrs.field(kw_only=True)
    _asked: Asked | None = attrs.field(default=None, init=False)
    _stream: str = attrs.field(default="", init=False)
    _content_type: str | None = attrs.field(default=None, init=False)
    _body: Body | None = attrs.field(default=None, init=False)
    #: whether some of the body was published
    _begun: bool = attrs.field(default=False, init=False)

    def asked(self, asked: Asked) -> Iterable[object]:
        self._asked, self._body, self._begun = asked, None, False
        if asked.path == ("",):
            return self._usage(asked)
        if asked.path[0] != "streams" or len(asked.path) < 2 or asked.path[2:] not in ((), ("live",)):
            return self.refuse(404, "no-such-path", f"there are {', '.join(USAGE)}; a slash in NAME is written %2F")
        self._stream = asked.path[1]
        if not 1 <= len(self._stream.encode()) <= MAX_NAME:
            return self.refuse(400, "bad-name", f"a stream's name is 1 to {MAX_NAME} bytes of UTF-8")
        allowed = ("GET", "HEAD") if asked.path[2:] else ("GET", "HEAD", "POST", "DELETE")
        if asked.method not in allowed:
            listed = ", ".join(allowed)
            return self.refuse(405, "bad-method", f"{'/'.join(asked.path[::2])} takes {listed}", {"Allow": listed})
        if asked.method == "POST":
            return self._post(asked)
        if asked.length != 0:
            return self.refuse(413, "body-not-wanted", f"a {asked.method} has no body")
        return self._delete(asked) if asked.method == "DELETE" else self._get(asked)

    def body(self, data: bytes) -> Iterable[object]:
        assert self._body is not None
        try:
            return self._publish(self._body.add(data))
        except TooLarge as error:
            return [*self._publish(error.before), *self.too_large()]

    def complete(self) -> Iterable[object]:
        body, self._body = self._body, None
        if body is None:
            return ()
        try:
            return [*self._publish(body.end()), Published()]
        except TooLarge:
            return self.too_large()

    @property
    def body_expected(self) -> int:
        return 0 if self._body is None else self._body.expected

    @property
    def body_buffered(self) -> int:
        return 0 if self._body is None else self._body.buffered

    @property
    def begun(self) -> bool:
        return self._begun

    def too_large(self) -> list[object]:
        """A message is."""
        self._body = None
        detail = f"a message of more than {self.limits.message} bytes is not taken"
        if not self._begun:
            return self.refuse(413, "too-large", detail)
        self._refused = Refused(status=413, cause="too-large", detail=detail)  # what still comes is for nothing
        return [Spoiled(self._refused)]

    # Inside.

    def _usage(self, asked: Asked) -> Iterable[object]:
        if asked.method not in ("GET", "HEAD"):
            return self.refuse(405, "bad-method", "/ takes GET, HEAD", {"Allow": "GET, HEAD"})
        if asked.length != 0:
            return self.refuse(413, "body-not-wanted", "a GET has no body")
        self.respond(200, json.dumps(USAGE, indent=2).encode() + b"\n")
        return ()

    def _post(self, asked: Asked) -> Iterable[object]:
        if not asked.framed:
            return self.refuse(411, "length-required", "a POST says how long its body is, or sends it in chunks")
        if "content-encoding" in asked.headers:
            return self.refuse(415, "encoded-body", "a body is taken as it is: without a Content-Encoding")
        said = asked.headers.get("content-type", "")
        kind = said.partition(";")[0].strip().lower()
        if kind.startswith("multipart/"):
            return self.refuse(415, "multipart-body", "a body is one message, or a message a line; not a form of parts")
        if len(said) > MAX_NAME:
            return self.refuse(400, "bad-content-type", f"a content type is {MAX_NAME} characters at the most")
        many = kind in NDJSONS
        largest = self.limits.body if many else self.limits.message
        if asked.length is not None and asked.length > largest:
            return self.refuse(413, "too-large", f"a body of more than {largest} bytes is not taken")
        self._body = Lines(self.limits.message) if many else Whole(self.limits.message, asked.length)
        self._content_type = JSON if many else said if kind not in ("", FORM) else None
        return ()

    def _delete(self, asked: Asked) -> Iterable[object]:
        if asked.query:
            return self.refuse(400, "bad-query", f"{next(iter(asked.query))[:80]!r} is no parameter; a DELETE has none")
        return (Retire(asked=asked, stream=self._stream),)

    def _get(self, asked: Asked) -> Iterable[object]:
        live = asked.path[2:] == ("live",)
        numbers: dict[str, int] = {}
        for name, text in asked.query.items():
            if name not in (("from",) if live else ("from", "limit")):
                return self.refuse(400, "bad-query", f"{name[:80]!r} is no parameter; from is, and limit of a GET")
            most = LAST_SEQ if name == "from" else MOST_RECORDS
            if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= most):
                return self.refuse(400, "bad-query", f"{name} is a number from 0 to {most}")
            numbers[name] = int(text)
        if not live:
            first, limit = numbers.get("from", 0), numbers.get("limit", RECORDS)
            return (Read(asked=asked, stream=self._stream, first=first, limit=limit),)
        last = asked.headers.get("last-event-id", "")
        if last and not (last.isascii() and last.isdecimal() and len(last) < 20 and int(last) <= LAST_SEQ):
            return self.refuse(400, "bad-query", "Last-Event-ID is the number of the last record that came")
        after = int(last) if last else max(0, numbers["from"] - 1) if "from" in numbers else None
        return (Live(asked=asked, stream=self._stream, after=after),)

    def _publish(self, payloads: list[bytes]) -> Iterable[object]:
        if not payloads:
            return ()
        assert self._asked is not None
        self._begun = True
        return (Publish(asked=self._asked, stream=self._stream, content_type=self._content_type, payloads=payloads),)
