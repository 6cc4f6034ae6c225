"""The sessions of syslog without I/O: a listener's, and that of a client of RELP (syslog.md, "On the wire").

    in: receive_data(bytes), receive_eof()  -> events: messages, a message that is too large, the end of a RELP session
    out: acknowledge(), send_close()        -> data_to_send()

The first bytes of a connection say whether it speaks RELP; otherwise each message says whether its octets are counted.
The client calls ``send()``, and gets the answers as events.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import attrs

from fyrehose.errors import Broken, RemoteProtocolError
from fyrehose.sessions import ByteSession

#: The largest message that a session takes unless it is told otherwise, in bytes.
MAX_MESSAGE = 1 << 20
#: The largest data of another command of RELP than ``syslog``, in bytes.
MAX_COMMAND = 4 << 10
#: The largest number of a transaction of RELP, behind which they begin with 1 again.
LAST_NUMBER = 999_999_999
#: How many messages one turn returns at most.
MOST_MESSAGES = 500
#: What the server answers to a RELP client that opens a session.
OFFERS = b"200 OK\nrelp_version=0\nrelp_software=fyrehose\ncommands=syslog"
_CLIENT_OFFERS = OFFERS.partition(b"\n")[2]

_OPEN = re.compile(rb"[0-9]{1,9} open ")
_BEGINS_OPEN = re.compile(rb"[0-9]{1,9}(?: (?:o(?:p(?:en?)?)?)?)?")
_RELP = re.compile(rb"([0-9]{1,9}) ([A-Za-z]{1,32}) ([0-9]{1,9})([ \n])")
_BEGINS_RELP = re.compile(rb"[0-9]{1,9}(?: (?:[A-Za-z]{1,32}(?: [0-9]{0,9})?)?)?")
_COUNTED = re.compile(rb"([1-9][0-9]{0,8}) (?=<)")
#: The longest header of a frame, in bytes.
_HEAD = 56


@attrs.frozen(slots=True)
class SyslogMessages:
    """Consecutive messages.

    :ivar numbers: the numbers of RELP's transactions, one for each message; empty without RELP
    """

    payloads: list[bytes]
    numbers: list[int]


@attrs.define(slots=True)
class LargeMessage:
    """A message of more bytes than the session takes.

    :ivar number: the number of its transaction; None without RELP
    :ivar left: how many bytes of its frame have not arrived; None: up to the end of the line
    :ivar size: its size in bytes, as far as it has arrived
    :ivar payload: its beginning, as many bytes as the session takes
    """

    number: int | None
    left: int | None
    size: int = 0
    payload: bytearray = attrs.field(factory=bytearray)


@attrs.frozen(slots=True)
class RelpClosed:
    """The end of a RELP session, which :meth:`SyslogServerSession.send_close` answers."""


class _Frame(NamedTuple):
    """The place of one frame in the buffer: its message is between *begin* and *stop*, the next frame at *end*."""

    begin: int
    stop: int
    end: int
    number: int | None = None
    command: bytes = b"syslog"


Event = SyslogMessages | LargeMessage | RelpClosed | Broken


class SyslogServerSession(ByteSession):
    """The server's side of one connection.

    :ivar relp: whether the peer speaks RELP; None before its first bytes say so
    :ivar expected: the size of the incomplete frame in bytes, as far as it is known; 0 between frames
    """

    more: bool = False

    def __init__(self, max_message: int = MAX_MESSAGE) -> None:
        self.max_message = max_message
        self.relp: bool | None = None
        self.expected = 0
        self.out: list[bytes] = []
        self._buffer = bytearray()
        self._parse_at = 0  #: size of the buffer at which parsing can make progress
        self._searched = 0  #: how many bytes of the buffer have no end of a line
        self._large: LargeMessage | None = None  #: the large message that is arriving
        self._closing: int | None = None  #: the transaction by which the peer has closed the session
        self._over = False

    @property
    def buffered(self) -> int:
        """Number of bytes of the incomplete frame that are in memory."""
        return len(self._buffer) + (len(self._large.payload) if self._large else 0)

    def receive_data(self, data: bytes) -> list[Event]:
        """Return the events of one turn that *data* completes, in order; after ``Broken`` always an empty list."""
        if self._over:
            return []
        self._buffer += data
        return self.next_events() if len(self._buffer) >= self._parse_at else []

    def next_events(self) -> list[Event]:
        events: list[Event] = []
        try:
            del self._buffer[: self._parse(events)]
        except RemoteProtocolError as error:
            events.append(self._end(error))
        return [event for event in events if not isinstance(event, SyslogMessages) or event.payloads]

    def receive_eof(self) -> list[Event]:
        """Handle the end of the peer's data: an incomplete line is a message, another incomplete frame an error."""
        if self._over or not self.expected:
            return []
        large = self._large
        if self.relp is not False or (_COUNTED.match(self._buffer) if large is None else large.left):
            return [self._end(RemoteProtocolError("truncated-frame", "the connection ended within a frame"))]
        self._over, self.expected = True, 0
        return [SyslogMessages([bytes(self._buffer)], []) if large is None else large]

    def acknowledge(self, numbers: Iterable[int]) -> None:
        """Answer RELP's transactions *numbers*, whose messages are durable."""
        self.out.append(b"".join([b"%d rsp 6 200 OK\n" % number for number in numbers]))

    def send_close(self) -> None:
        """Tell a RELP client that the server closes the connection; do nothing without RELP."""
        if self.relp:
            answer = b"" if self._closing is None else b"%d rsp 0\n" % self._closing
            self.out.append(answer + b"0 serverclose 0\n")

    def _end(self, error: RemoteProtocolError) -> Broken:
        self._over, self.more, self.expected, self._large = True, False, 0, None
        self._buffer.clear()
        return Broken(error=error)

    def _parse(self, events: list[Event]) -> int:
        """Parse the frames of one turn, and add their events to *events*; return the position of the rest."""
        position, end, left = 0, len(self._buffer), MOST_MESSAGES
        self.more, self.expected, self._parse_at = False, 0, 0
        messages = SyslogMessages([], [])
        events.append(messages)
        while position < end and not self._over:
            if not left:
                self.more = True
                return position
            left -= 1
            if self._large is None:
                frame = self._frame(position)
                if frame is None:
                    return position
                if frame.stop - frame.begin <= self.max_message or frame.command != b"syslog":
                    if frame.end > end:
                        self.expected = self._parse_at = frame.end - position
                        return position
                    self._take(frame, messages)
                    position = frame.end
                    continue
                is_line = frame.number is None and frame.end > frame.stop
                self._large = LargeMessage(frame.number, None if is_line else frame.end - frame.begin)
                position = frame.begin
            position = self._skip(self._large, position)
            if self._large.left == 0:
                messages = SyslogMessages([], [])
                events += [self._large, messages]
                self._large = None
        if self._closing is not None:
            events.append(RelpClosed())
        if self._large is not None:
            self.expected = len(self._large.payload) + 1
        return position

    def _frame(self, position: int) -> _Frame | None:
        """Return the frame that begins at *position*, or None if too little of it has arrived."""
        if self.relp is None and not self._detect(position):
            return None
        buffer = self._buffer
        if self.relp:
            head = _RELP.match(buffer, position)
            if head is None:
                if not _BEGINS_RELP.fullmatch(buffer, position):
                    raise RemoteProtocolError("bad-header", "no frame of RELP: expected TXNR COMMAND DATALEN")
                self.expected = _HEAD
                return None
            begin = head.end() - (head[4] == b"\n")
            command, size = head[2], int(head[3])
            if command != b"syslog" and size > MAX_COMMAND:
                raise RemoteProtocolError("frame-too-large", f"a command of {size} bytes; the limit is {MAX_COMMAND}")
            return _Frame(begin, begin + size, begin + size + 1, int(head[1]), command)
        searched, self._searched = self._searched, 0
        head = _COUNTED.match(buffer, position)
        if head is not None:
            stop = head.end() + int(head[1])
            return _Frame(head.end(), stop, stop)
        stop = buffer.find(b"\n", position + searched)
        size = len(buffer) - position
        if stop >= 0 or size > self.max_message:
            stop = stop if stop >= 0 else len(buffer)
            return _Frame(position, stop, stop + 1)
        self.expected, self._searched = size + 1, size
        return None

    def _detect(self, position: int) -> bool:
        """Find out whether the peer speaks RELP; return whether its bytes say so already."""
        begin = bytes(self._buffer[position : position + _HEAD])
        if _OPEN.match(begin):
            self.relp = True
        elif _BEGINS_OPEN.fullmatch(begin):
            self.expected = _HEAD
        elif not begin.startswith(b"<") and not _COUNTED.match(begin):
            raise RemoteProtocolError("not-syslog", f"expected a RELP session, or <PRI>, not {begin[:20]!r}")
        else:
            self.relp = False
        return self.relp is not None

    def _skip(self, large: LargeMessage, position: int) -> int:
        """Take what has arrived of *large*, which continues at *position*; return the position behind that."""
        buffer = self._buffer
        if large.left is None:
            stop = buffer.find(b"\n", position)
            after = len(buffer) if stop < 0 else stop + 1
            if stop >= 0:
                large.left = 0
            stop = len(buffer) if stop < 0 else stop
        else:
            stop = after = min(len(buffer), position + large.left)
            large.left -= stop - position
            if large.number is not None and not large.left:
                stop -= 1  # the LF behind the data
                self._check_trailer(stop)
        room = self.max_message - len(large.payload)
        large.payload += buffer[position : min(stop, position + room)]
        large.size += stop - position
        return after

    def _check_trailer(self, position: int) -> None:
        if self._buffer[position] != 10:
            raise RemoteProtocolError("bad-trailer", "no LF behind the data of a frame of RELP")

    def _take(self, frame: _Frame, messages: SyslogMessages) -> None:
        """Add the message of *frame* to *messages*, or answer another command of RELP."""
        number = frame.number
        if number is None:
            if frame.stop > frame.begin:
                messages.payloads.append(bytes(self._buffer[frame.begin : frame.stop]))
            return
        self._check_trailer(frame.stop)
        if frame.command == b"syslog":
            messages.payloads.append(bytes(self._buffer[frame.begin : frame.stop]))
            messages.numbers.append(number)
        elif frame.command == b"open":
            self.out.append(b"%d rsp %d %b\n" % (number, len(OFFERS), OFFERS))
        elif frame.command == b"close":
            self._closing, self._over = number, True
        else:
            self.out.append(b"%d rsp 25 500 command not supported\n" % number)


@attrs.frozen(slots=True)
class RelpAnswered:
    """The answers to consecutive messages, in the order of the messages.

    :ivar answers: what the server answers to each message, such as ``200 OK``
    """

    answers: list[bytes]


class RelpClientSession(ByteSession):
    """The client's side of a RELP session, which sends messages and receives an answer to each.

    :ivar opened: whether the server has accepted the session
    :ivar window: how many messages the server may owe an answer to
    :ivar last: the largest number of a transaction
    """

    def __init__(self, window: int = 128, last: int = LAST_NUMBER) -> None:
        self.window, self.last, self.opened = window, last, False
        self.out: list[bytes] = [b"1 open %d %b\n" % (len(_CLIENT_OFFERS), _CLIENT_OFFERS)]
        self._buffer = bytearray()
        self._waiting: deque[bytes] = deque()
        self._sent = self._answered = 1
        self._over = False

    def send(self, payloads: Iterable[bytes]) -> None:
        """Send messages, as many as the window takes; the others follow when earlier ones are answered."""
        self._waiting.extend(payloads)
        self._fill()

    def receive_data(self, data: bytes) -> list[RelpAnswered | Broken]:
        """Return the events that *data* completes; after ``Broken`` always an empty list."""
        if self._over:
            return []
        self._buffer += data
        answered = RelpAnswered([])
        events: list[RelpAnswered | Broken] = [answered]
        try:
            position = 0
            while position < len(self._buffer) and (end := self._parse(position, answered.answers)):
                position = end
            del self._buffer[:position]
            self._fill()
        except RemoteProtocolError as error:
            self._over = True
            events.append(Broken(error=error))
        return events if answered.answers else events[1:]

    def _fill(self) -> None:
        while self.opened and self._waiting and self._sent - self._answered < self.window:
            self._sent += 1
            payload = self._waiting.popleft()
            self.out.append(b"%d syslog %d %b\n" % (self._number(self._sent), len(payload), payload))

    def _number(self, count: int) -> int:
        """Return the number of the transaction with which *count* transactions have begun."""
        return (count - 1) % self.last + 1

    def _parse(self, position: int, answers: list[bytes]) -> int:
        """Parse the frame at *position*; return where it ends, or 0 if it is not complete."""
        head = _RELP.match(self._buffer, position)
        if head is None:
            if not _BEGINS_RELP.fullmatch(self._buffer, position):
                raise RemoteProtocolError("bad-header", "no frame of RELP: expected TXNR COMMAND DATALEN")
            return 0
        begin = head.end() - (head[4] == b"\n")
        stop = begin + int(head[3])
        if int(head[3]) > MAX_COMMAND:
            raise RemoteProtocolError("frame-too-large", f"an answer of {int(head[3])} bytes")
        if stop >= len(self._buffer):
            return 0
        if self._buffer[stop] != 10:
            raise RemoteProtocolError("bad-trailer", "no LF behind the data of a frame of RELP")
        number, said = int(head[1]), bytes(self._buffer[begin:stop])
        if head[2] == b"serverclose":
            raise RemoteProtocolError("server-closed", "the server closes the session")
        expected = self._answered + self.opened
        if head[2] != b"rsp" or number != self._number(expected) or expected > self._sent:
            raise RemoteProtocolError("bad-answer", f"no answer to message {expected}: {said[:40]!r}")
        if self.opened:
            self._answered = expected
            answers.append(said)
        elif not said.startswith(b"200"):
            raise RemoteProtocolError("not-opened", f"the server refuses the session: {said[:40]!r}")
        self.opened = True
        return stop + 1
