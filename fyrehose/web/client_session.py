"""The client's side of HTTP/1.1, sans-I/O: requests, answers, and which answers are the server's own.

    request("GET", "/streams") -> bytes to send      events(bytes) -> ServerAnswer (its head), pieces of its body, END

A proxy answers for a server that does not: with a page of its own, often with status 502.  Clients treat such an answer
as a lost connection; docs/protocols/http.md, "Behind a proxy", has the rule.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any

import attrs
import h11

from fyrehose.errors import RemoteProtocolError
from fyrehose.jsontext import json_object
from fyrehose.records import Buffer
from fyrehose.web.tokens import authorization

#: Statuses after which the same request may succeed later, whoever has sent them.
TEMPORARY = (408, 429, 502, 503, 504)
#: Statuses that only a proxy sends.
_OF_A_PROXY = (502, 504)
#: The longest time that ``Retry-After`` delays a request, in seconds: nobody may stop a client for a day.
LONGEST_RETRY_AFTER = 30.0
#: The largest answer that is kept in memory, in bytes.
LARGEST = 64 << 20
#: The longest part of a reason that is shown, in characters.
MOST_DETAIL = 4 << 10
#: Pieces of a body that are smaller are kept together, in bytes.
_SMALL = 4 << 10
#: The event at the end of an answer.
END = b""

FieldLines = tuple[tuple[str, str], ...]


@attrs.frozen(slots=False)
class ServerAnswer:
    """The answer to one request, or only its head, without the body.

    :ivar headers: the values of its fields, by lower-case name
    """

    status: int
    headers: Mapping[bytes, bytes] = attrs.field(factory=dict)
    body: bytes = b""

    @property
    def media_type(self) -> str:
        """Return the type of the body, in lower case and without parameters."""
        return self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")

    @cached_property
    def json_object(self) -> dict[str, Any] | None:
        """Return the object of a complete answer of the server; {} if it has no content; None: another program's."""
        if self.status == 204:
            return {}
        if self.media_type != "application/json" or self.status in _OF_A_PROXY:
            return None
        try:
            found = json_object(self.body)
        except ValueError:
            return None
        if self.status >= 400 and not isinstance(found.get("error"), str):
            return None
        return found

    @property
    def cut(self) -> bool:
        """Return whether the JSON of the answer ends early: a proxy may have lost the server in the middle of it."""
        try:
            json.loads(self.body)
        except (ValueError, RecursionError):
            return self.status == 200 and self.media_type == "application/json"
        return False

    @property
    def detail(self) -> str:
        """Return the reason of a refusal of the server, or that the answer is another program's."""
        found = self.json_object
        if found is None:
            return "the answer is not that of a Fyrehose server"
        return str(found.get("error", ""))[:MOST_DETAIL]

    def passes(self, own: bool, met: bool) -> bool:
        """Return whether the request is to be sent again later, as after a lost connection.

        :param own: whether the answer is the server's own
        :param met: whether the server itself has answered this client before.  If not, an answer of another program
            shows that the address is wrong, unless the status says that the program has trouble.
        """
        return self.status in TEMPORARY or (not own and (met or self.status >= 500 or self.cut))

    @property
    def retry_after(self) -> float:
        """Return after how many seconds the answer asks to retry, up to LONGEST_RETRY_AFTER; 0: it does not say."""
        return retry_after(self.headers, LONGEST_RETRY_AFTER)


def retry_after(headers: Mapping[bytes, bytes], most: float) -> float:
    """Return after how many seconds an answer with these *headers* asks to retry, up to *most*; 0: it does not say."""
    value = headers.get(b"retry-after", b"").decode("latin-1")
    try:
        if value.isdecimal():
            seconds = float(value[:9])
        else:  # a date, which is compared with the clock of the program that sent it
            date = parsedate_to_datetime(headers.get(b"date", b"").decode("latin-1"))
            seconds = (parsedate_to_datetime(value) - date).total_seconds()
    except (ValueError, TypeError):
        return 0.0
    return min(max(seconds, 0.0), most)


class ClientSession:
    """The client's side of one connection, with one request at a time.

    :param authority: the value of the ``Host`` header
    :param token: the bearer token that is sent, if any
    """

    def __init__(self, authority: str, token: str | None = None) -> None:
        known = {} if token is None else {"Authorization": authorization(token)}
        self._headers = [("Host", authority), *known.items()]
        self._http = h11.Connection(h11.CLIENT)

    def request(self, method: str, target: str, body: bytes | None = None, headers: FieldLines = ()) -> bytes:
        """Return the bytes of a request: the first one, or one after a complete answer."""
        size = [] if body is None else [("Content-Length", str(len(body)))]
        lines = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in (*self._headers, *size, *headers)]
        events: list[h11.Event] = [h11.Request(method=method, target=target, headers=lines)]
        events += [] if body is None else [h11.Data(data=body)]
        return b"".join(self._http.send(event) or b"" for event in (*events, h11.EndOfMessage()))

    def events(self, data: bytes) -> Iterator[ServerAnswer | Buffer]:
        """Yield the head of an answer, the pieces of its body, and :data:`END`, as far as *data* has them.

        :param data: the bytes that have arrived; b"" at the end of the input, which may complete an answer
        :raises RemoteProtocolError: the bytes are not HTTP, or the input has ended before the answer
        """
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Response):
                    yield ServerAnswer(event.status_code, {bytes(name): bytes(value) for name, value in event.headers})
                elif isinstance(event, h11.Data):
                    yield event.data
                elif isinstance(event, h11.EndOfMessage):
                    yield END
                elif isinstance(event, h11.ConnectionClosed):
                    return
        except h11.ProtocolError as error:
            raise RemoteProtocolError(str(error)) from error

    def next_request(self) -> bool:
        """Return whether the connection can be used for another request, after the end of an answer."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True


@attrs.define
class CollectedAnswer:
    """An answer whose body is kept in memory until it is complete.

    :ivar largest: limit of the body, in bytes
    :ivar size: how many bytes of the body have arrived
    """

    largest: int = LARGEST
    _head: ServerAnswer = attrs.field(default=ServerAnswer(0), init=False)
    _pieces: list[Buffer] = attrs.field(factory=list, init=False)
    size: int = attrs.field(default=0, init=False)

    def add(self, event: ServerAnswer | Buffer) -> ServerAnswer | None:
        """Add an event of a session; return the answer at its end.

        :raises RemoteProtocolError: the body is larger than the limit
        """
        if isinstance(event, ServerAnswer):
            self._head = event
        elif event:
            self._add_piece(event)
            if self.size > self.largest:
                raise RemoteProtocolError(f"the answer exceeds {self.largest} bytes")
        else:
            body = b"".join(self._pieces)
            self._pieces, self.size = [], 0
            return attrs.evolve(self._head, body=body)
        return None

    def _add_piece(self, piece: Buffer) -> None:
        """Keep *piece*, a small one together with others: a peer may send millions of pieces of one byte."""
        last = self._pieces[-1] if self._pieces else None
        if len(piece) >= _SMALL:
            self._pieces.append(piece)
        elif isinstance(last, bytearray) and len(last) < _SMALL:
            last += piece
        else:
            self._pieces.append(bytearray(piece))
        self.size += len(piece)
