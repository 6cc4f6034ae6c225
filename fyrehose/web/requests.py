"""Read the requests on one HTTP/1.1 connection (RFC 9112), sans-I/O.

    add(bytes) -> next(): Head, then the pieces of the body -> begin() -> the next Head

If bytes can be read in two ways, a proxy in front of the server may see other requests in them than this server.  So
all ambiguous requests are refused: those with a line that ends without CR, a line that continues the previous line, a
character that is not allowed, several lengths, or a coding of the body other than chunks.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

import attrs

from fyrehose.errors import RemoteProtocolError

#: Limit, in bytes, of the head of a request, of the first line of a chunk, and of the trailer, each.
MAX_HEAD = 16 << 10

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(rf"({_TOKEN}) ([\x21-\x7e]+) HTTP/1\.([0-9])\r\n")
_FIELD = re.compile(rf"({_TOKEN}):([^\x00-\x08\x0a-\x1f\x7f]*)\r\n")
_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?")
#: Lines between two requests, which old clients send behind a body, and which are skipped (RFC 9112, 2.2).
_EMPTY_LINES = re.compile(rb"(?:\r\n)*")
#: Matches LF without CR, and the beginning of a line that continues the previous line (RFC 9112, 2.2 and 5.2).
_AMBIGUOUS = re.compile(rb"(?<!\r)\n|\n[ \t]")


class RequestPart(Enum):
    """The part of a request that comes next."""

    HEAD = "the head"
    BODY = "the body, whose length is known"
    SIZE = "the line that begins a chunk"
    CHUNK = "the bytes of a chunk"
    CHUNK_END = "the line end behind a chunk"
    TRAILER = "the lines behind the last chunk"
    DONE = "nothing: the request is complete"


#: The parts of a request that consist of lines.
_LINES = (RequestPart.SIZE, RequestPart.CHUNK_END, RequestPart.TRAILER)


class MalformedRequest(RemoteProtocolError):
    """The error for bytes that are not HTTP/1.1, or can be read in two ways; no bytes behind them can be read.

    :ivar status: the status of the answer
    :ivar detail: what is wrong, for the peer
    """

    def __init__(self, detail: str, status: int = 400) -> None:
        super().__init__("head-too-large" if status == 431 else "bad-http", detail)
        self.status, self.detail = status, detail


class Head(NamedTuple):
    """The head of a request, as the peer sent it.

    :ivar minor: the minor version of HTTP/1
    :ivar fields: the headers, as names in lower case and values
    :ivar length: the length of the body, in bytes; None: the body is in chunks
    :ivar last: whether the connection ends with this request
    :ivar waits: whether the peer waits for the answer 100 (Continue) before it sends the body
    """

    method: str
    target: str
    minor: int
    fields: list[tuple[str, str]]
    length: int | None
    last: bool
    waits: bool


@attrs.define(eq=False, slots=True)
class RequestReader:
    """A reader that turns the bytes of a peer into heads and bodies, one request at a time.

    :ivar part: the part of the request that comes next
    :ivar in_body: whether the head of the request was returned, and its body is incomplete
    """

    part: RequestPart = RequestPart.HEAD
    in_body: bool = False
    _data: bytes = b""
    #: How many of the received bytes were read.
    _at: int = 0
    #: How many bytes of an incomplete head were checked to be unambiguous.
    _checked: int = 0
    #: How many bytes of the body or the chunk are still to come, or how many bytes the trailer may still have.
    _left: int = 0

    def add(self, data: bytes) -> None:
        """Add *data*, which the peer has sent, to the bytes to read."""
        self._data = self._data[self._at :] + data
        self._at = 0

    def begin(self) -> bool:
        """Begin to read the next request, because the present request is complete; return whether bytes wait."""
        assert self.part is RequestPart.DONE, f"{self.part.value} of a request comes next"
        self.part = RequestPart.HEAD
        return len(self._data) > self._at

    @property
    def unread(self) -> int:
        """Return the number of bytes that were received and not returned yet."""
        return len(self._data) - self._at

    def next(self) -> Head | bytes | None:
        """Return the next head or piece of a body; a body in chunks ends with an empty piece.

        :return: None if further bytes are needed, or the request is complete
        :raises MalformedRequest: the peer breaks the protocol; this reader must not be used any more
        """
        if self.part is RequestPart.HEAD:
            return self._next_head()
        if self.part in _LINES and self._read_lines():
            return b""
        if self.part is RequestPart.BODY or self.part is RequestPart.CHUNK:
            piece = self._data[self._at : self._at + self._left]
            self._at += len(piece)
            self._left -= len(piece)
            if not self._left:
                self.in_body = self.part is RequestPart.CHUNK
                self.part = RequestPart.CHUNK_END if self.in_body else RequestPart.DONE
            # Free the bytes that were read, but do not copy the rest for each piece.
            if 2 * self._at >= len(self._data):
                self._data, self._at = self._data[self._at :], 0
            return piece or None
        return None

    def check_end(self) -> None:
        """Check that the peer has not ended its data within a request.

        :raises MalformedRequest: the data ends within a request
        """
        if self.in_body or (self.part is RequestPart.HEAD and self.unread):
            raise MalformedRequest("the connection ended within a request")

    def _next_head(self) -> Head | None:
        data, begin = self._data, self._at
        if data.startswith(b"\r", begin):
            begin = self._at = _EMPTY_LINES.match(data, begin).end()  # type: ignore[union-attr]  # it always matches
            self._checked = 0
        end = data.find(b"\r\n\r\n", begin + max(0, self._checked - 3), begin + MAX_HEAD)
        limit = min(len(data), begin + MAX_HEAD) if end < 0 else end + 4
        found = _AMBIGUOUS.search(data, begin + max(0, self._checked - 1), limit)
        if found is not None:
            if len(found[0]) > 1:
                raise MalformedRequest("a line of the head continues the line before it; write both as one line")
            raise MalformedRequest("a line of the head ends with a bare LF; end each with CR LF")
        if end < 0:
            self._checked = len(data) - begin
            if self._checked >= MAX_HEAD:
                raise MalformedRequest(f"request head exceeds the limit of {MAX_HEAD} bytes", 431)
            if self._checked and data[begin] < ord("!") and data[begin:] != b"\r":
                raise _no_request()
            return None
        head = _parsed(data[begin : end + 2].decode("latin-1"))
        self._data, self._at = (data, limit) if limit < len(data) else (b"", 0)
        self._checked, self._left, self.in_body = 0, head.length or 0, head.length != 0
        if head.length is None:
            self.part = RequestPart.SIZE
        else:
            self.part = RequestPart.BODY if head.length else RequestPart.DONE
        return head

    def _read_lines(self) -> bool:
        """Read the lines between chunks and behind the last one, until the next part or an incomplete line.

        :return: whether the body is complete
        """
        while self.part in _LINES:
            end = self._data.find(b"\r\n", self._at, self._at + MAX_HEAD)
            if end < 0:
                if self.unread >= MAX_HEAD:
                    raise MalformedRequest(f"a line between chunks exceeds the limit of {MAX_HEAD} bytes")
                break
            line, self._at = self._data[self._at : end], end + 2
            if self.part is RequestPart.CHUNK_END:
                if line:
                    raise MalformedRequest("a chunk is longer than the line before it says")
                self.part = RequestPart.SIZE
            elif self.part is RequestPart.SIZE:
                found = _CHUNK.fullmatch(line)
                if found is None:
                    raise MalformedRequest("a chunk does not begin with its size in hexadecimal digits")
                self._left = int(found[1], 16)
                self.part = RequestPart.CHUNK if self._left else RequestPart.TRAILER
                self._left = self._left or MAX_HEAD
            elif not line:  # the fields of a trailer have no meaning here
                self.part, self.in_body = RequestPart.DONE, False
            else:
                self._left -= len(line) + 2
                if self._left < 0 or _FIELD.fullmatch(line.decode("latin-1") + "\r\n") is None:
                    raise MalformedRequest("the lines behind the last chunk are not headers, or too many")
        return not self.in_body


def _no_request() -> MalformedRequest:
    return MalformedRequest("the first line is not a request such as GET /path HTTP/1.1")


def _parsed(text: str) -> Head:
    """Return the head whose lines are *text*.

    :raises MalformedRequest: the head is not valid, or does not say clearly where the body ends
    """
    line = _REQUEST_LINE.match(text)
    if line is None:
        raise _no_request()
    fields, size, minor = [], line.end(), int(line[3])
    hosts, coding, last, waits = 0, None, not minor, False
    lengths: set[str] = set()
    while size < len(text):
        found = _FIELD.match(text, size)  # unlike findall, this does not search further in a line that is no header
        if found is None:
            raise MalformedRequest("a line of the head is not a header such as Name: value")
        size = found.end()
        name, value = found[1].lower(), found[2].strip(" \t")
        fields.append((name, value))
        if name == "host":
            hosts += 1
        elif name == "content-length":
            lengths.add(value)
        elif name == "transfer-encoding":
            coding = value.lower() if coding is None else f"{coding}, {value}"
        elif name == "connection":
            last = last or "close" in _items(value)
        elif name == "expect":
            waits = minor > 0 and "100-continue" in _items(value)
    if hosts > 1 or (minor and not hosts):
        raise MalformedRequest("the request has several Host headers" if hosts else "the request has no Host header")
    if coding is not None and coding != "chunked":
        raise MalformedRequest("the body has a Transfer-Encoding other than chunked", 501)
    if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        raise MalformedRequest(
            "Content-Length is not a number" if len(lengths) == 1 else "several Content-Lengths differ"
        )
    length = None if coding else int(lengths.pop()) if lengths else 0
    return Head(line[1], line[2], minor, fields, length, last, waits and length != 0)


def _items(value: str) -> list[str]:
    """Return the items of a comma-separated list, in lower case."""
    return [item.strip(" \t") for item in value.lower().split(",")]
