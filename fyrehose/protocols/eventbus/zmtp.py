"""One side of one ZMTP connection without I/O (ZeroMQ RFC 23: ZMTP 3.0, RFC 37: ZMTP 3.1).

    bytes -> greeting -> handshake of the mechanism -> Joined, then messages and commands -> Broken

    greeting    FF 8x00 7F | 3 1 | mechanism, padded to 20 | as server u8 | 31x00
    frame       flags u8 (1: more frames follow, 2: long size, 4: command) | size u8 or u64 | body
    command     size of the name u8 | name | data
    metadata    size of the name u8 | name | size of the value u32 | value ...

A peer of ZMTP 3.0 is spoken to in 3.0.  ZMTP 1 and 2 are refused.  Commands may stand between the frames of a message.
A message that is larger than this side accepts is skipped as its bytes arrive, and only that message is refused.

Receiving never raises.  After a violation of the protocol the last event is ``Broken``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import attrs

from fyrehose.errors import Broken, RemoteProtocolError
from fyrehose.records import Buffer
from fyrehose.sessions import FramedSession

MORE, LONG, COMMAND = 1, 2, 4
#: Size of the greeting, and of the part of it that tells the version, in bytes.
GREETING, VERSION_END = 64, 12
#: Largest command, in bytes, and largest identity of a peer.
MAX_COMMAND, MAX_IDENTITY = 8 << 10, 255
_SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
_LONG_HEAD = struct.Struct(">BQ")
_SIZE = struct.Struct(">I")
#: How many bytes tell that a peer speaks another protocol.
FOREIGN = 4


@attrs.frozen(slots=True, kw_only=True)
class Joined:
    """The handshake is complete.

    :ivar socket_type: the type of the peer's socket, such as ``DEALER``
    :ivar identity: the identity that the peer has given itself, for log lines only
    :ivar key: the long-term public key that the peer has proved to own (CURVE)
    :ivar pings: whether the peer answers PING (ZMTP 3.1)
    """

    socket_type: bytes
    identity: bytes
    key: bytes | None
    pings: bool


@attrs.frozen(slots=True)
class MessageRefused:
    """A message was refused; the connection stays."""

    error: RemoteProtocolError


def frame(body: Buffer, flags: int = 0) -> bytes:
    """Return *body* as one frame."""
    size = len(body)
    return (bytes((flags, size)) if size < 256 else _LONG_HEAD.pack(flags | LONG, size)) + body


def encode(frames: Sequence[Buffer], more: bool = False) -> bytes:
    """Return *frames* as one message; *more*: without its last frames, which follow later."""
    last = len(frames) - (not more)
    return b"".join([frame(body, MORE if at < last else 0) for at, body in enumerate(frames)])


def command(name: bytes, data: bytes = b"") -> bytes:
    """Return a command."""
    return frame(bytes((len(name),)) + name + data, COMMAND)


def head_of(size: int) -> bytes:
    """Return the header of the last frame of a message, whose body has *size* bytes."""
    return bytes((0, size)) if size < 256 else _LONG_HEAD.pack(LONG, size)


def pack_metadata(properties: Mapping[bytes, bytes]) -> bytes:
    """Return *properties* as metadata."""
    return b"".join(bytes((len(name),)) + name + _SIZE.pack(len(value)) + value for name, value in properties.items())


def parse_metadata(data: bytes) -> dict[bytes, bytes]:
    """Return the properties of *data*; their names are in lower case, because they are not case-sensitive.

    :raises RemoteProtocolError: *data* is malformed
    """
    found, at = {}, 0
    while at < len(data):
        name_end = at + 1 + data[at]
        begin = name_end + _SIZE.size
        if begin > len(data) or name_end == at + 1:
            raise RemoteProtocolError("bad-handshake", "the metadata is malformed")
        end = begin + int(_SIZE.unpack_from(data, name_end)[0])
        if end > len(data):
            raise RemoteProtocolError("bad-handshake", "the metadata is malformed")
        found[data[at + 1 : name_end].lower()] = data[begin:end]
        at = end
    return found


class Mechanism(Protocol):
    """The security mechanism of one side of one connection.

    :cvar name: the name in the greeting
    :cvar as_server: whether this side is the server of the mechanism
    :cvar overhead: how many bytes longer a sealed frame is than its body; 0: frames are sent as they are
    :ivar key: the peer's long-term public key, once it is proved
    """

    name: ClassVar[bytes]
    as_server: ClassVar[bool]
    overhead: ClassVar[int]
    key: bytes | None

    def begin(self, metadata: bytes) -> bytes:
        """Return the first command of this side; empty if the peer begins.

        :raises RemoteProtocolError: no command can be made for the peer, because its key is weak
        """

    def answer(self, name: bytes, data: bytes, metadata: bytes) -> tuple[bytes, bytes | None]:
        """Handle a command of the peer.

        :param metadata: the metadata of this side
        :return: the next command of this side, or empty bytes; and the peer's metadata, with which the handshake ends
        :raises RemoteProtocolError: the command is wrong
        """

    def seal(self, body: Buffer, flags: int) -> bytes:
        """Return a frame as it is sent after the handshake."""

    def open(self, body: bytes) -> bytes:
        """Return the frame in a frame with *body*, as it is without a mechanism.

        :raises RemoteProtocolError: the frame is not one of the peer
        """


class Null:
    """The mechanism NULL: READY from both sides, and frames as they are (RFC 23).

    :param answers: whether this side sends READY only after the peer, so that it learns the type of the peer's socket:
        libzmq leaves when it reads that its own does not fit
    """

    def __init__(self, answers: bool = False) -> None:
        self._answers = answers

    name: ClassVar[bytes] = b"NULL"
    as_server: ClassVar[bool] = False
    overhead: ClassVar[int] = 0
    key: bytes | None = None

    def begin(self, metadata: bytes) -> bytes:
        return b"" if self._answers else command(b"READY", metadata)

    def answer(self, name: bytes, data: bytes, metadata: bytes) -> tuple[bytes, bytes | None]:
        if name != b"READY":
            raise RemoteProtocolError("bad-handshake", f"expected the command READY, not {name[:20]!r}")
        return command(b"READY", metadata) if self._answers else b"", data

    def seal(self, body: Buffer, flags: int) -> bytes:
        return frame(body, flags)

    def open(self, body: bytes) -> bytes:
        raise NotImplementedError("frames are sent as they are")


class ZmtpSession(FramedSession):
    """One side of one connection; subclasses say what its messages are.

    :cvar socket_type: the type of this side's socket
    :cvar peers: the types of sockets that may connect to it (RFC 28, RFC 29)
    :cvar most_frames: most frames of a message
    :cvar largest_label: the largest frame that others follow, in bytes
    :param mechanism: the security mechanism
    :param largest: the largest last frame of a message, in bytes
    """

    frame = "message"
    socket_type: ClassVar[bytes]
    peers: ClassVar[frozenset[bytes]]
    most_frames: ClassVar[int]
    largest_label: ClassVar[int]
    _most_events: ClassVar[int] = 32

    def __init__(self, mechanism: Mechanism, largest: int) -> None:
        super().__init__()
        self.largest = largest
        self._mechanism = mechanism
        self._inner = bytearray()  #: frames that were sealed
        self._greeted = self._linked = False
        self._pings = False
        self._frames: list[bytes] = []  #: the frames of the incomplete message
        self._frames_size = 0
        self._skipping = False  #: whether the rest of the message is skipped
        self._skip = 0  #: bytes of the frame that are skipped
        self._metadata = pack_metadata({b"Socket-Type": self.socket_type, b"Identity": b""})
        version = b"\3\1" + mechanism.name.ljust(20, b"\0") + bytes((mechanism.as_server,))
        self.out = [(_SIGNATURE + version).ljust(GREETING, b"\0")]

    @property
    def linked(self) -> bool:
        """Return whether the handshake is complete, so that messages can be sent."""
        return self._linked and not self._broken

    @property
    def key(self) -> bytes | None:
        """Return the peer's long-term public key, if it has proved one."""
        return self._mechanism.key

    @property
    def seals(self) -> bool:
        """Return whether each frame is sealed, so that encoded messages cannot be sent as they are."""
        return self._mechanism.overhead > 0

    @property
    def buffered(self) -> int:
        """Return how many bytes of the incomplete message are in memory."""
        return len(self._buffer) + len(self._inner) + self._frames_size

    # Receiving.

    def _parse_frames(self, source: bytes | bytearray, events: list[Any]) -> int:
        if self._linked and not self._mechanism.overhead:
            return self._receive_frames(source, 0, events)
        return self._receive_sealed(source, events)

    def _break(self, error: RemoteProtocolError) -> Broken:
        if error.cause == "unknown-key":
            self.out.append(command(b"ERROR", b"\x03400"))  # the status that ZeroMQ gives to credentials (RFC 27)
        self._inner.clear()
        self._frames, self._frames_size = [], 0
        return super()._break(error)

    def _receive_sealed(self, source: bytes | bytearray, events: list[Any]) -> int:
        """Handle the greeting, the commands of the handshake, and frames that are sealed; return their end."""
        position, end = 0, len(source)
        if not self._greeted:
            self._check_greeting(source[:GREETING])
            if end < GREETING:
                self.expected = GREETING if end else 0
                return 0
            position, self._greeted = GREETING, True
            self._send_command(self._mechanism.begin(self._metadata))
        while True:
            if self._linked and not self._mechanism.overhead:
                return self._receive_frames(source, position, events)
            found = self._next_frame(source, position, end)
            if found is None:
                break
            flags, begin, stop = found
            if self._linked:
                self._inner += self._mechanism.open(bytes(source[begin:stop]))
            else:
                self._shake_hands(flags, bytes(source[begin:stop]), events)
            position = stop
        outer = self.expected
        if self._inner or self._frames or self._skipping:
            del self._inner[: self._receive_frames(self._inner, 0, events)]
            self.expected += outer
        return position

    def _check_greeting(self, start: bytes | bytearray) -> None:
        """Check the part of the greeting that has arrived.

        :raises RemoteProtocolError: the peer does not speak ZMTP 3, or has another mechanism
        """
        if start[:1] == b"\1":
            raise _old("1.0")
        if start[:1] not in (b"", b"\xff") and len(start) >= FOREIGN:
            what = f"the peer sends {bytes(start[:FOREIGN])!r}; connect a ZeroMQ socket"
            raise RemoteProtocolError("wrong-protocol", what)
        if start[:1] != b"\xff":
            return
        if len(start) > 9 and start[9] != 0x7F:
            raise RemoteProtocolError("wrong-protocol", "the peer sends no greeting of ZMTP; connect a ZeroMQ socket")
        if len(start) > 10 and start[10] < 3:
            raise _old("2.0")
        if len(start) == GREETING:
            name = bytes(start[12:32]).rstrip(b"\0")
            if name != self._mechanism.name:
                raise RemoteProtocolError("wrong-mechanism", self._wrong_mechanism(name))
            self._pings = (start[10], start[11]) >= (3, 1)

    def _wrong_mechanism(self, name: bytes) -> str:
        own = self._mechanism.name.decode()
        if own == "CURVE":
            return f"the peer uses {name!r}, and this listener CURVE: set curve_serverkey and the client's keys"
        return f"the peer uses {name!r}, and this listener {own}: set eventbus.server-key, or connect without keys"

    def _shake_hands(self, flags: int, body: bytes, events: list[Any]) -> None:
        if not flags & COMMAND or not body or len(body) < 1 + body[0]:
            raise RemoteProtocolError("bad-handshake", "a frame that is no command arrived before the handshake ended")
        name, data = body[1 : 1 + body[0]], body[1 + body[0] :]
        if name == b"ERROR":
            raise RemoteProtocolError("refused-by-peer", f"the peer has refused the connection: {data[1:][:100]!r}")
        reply, theirs = self._mechanism.answer(name, data, self._metadata)
        self._send_command(reply)
        if theirs is None:
            return
        properties = parse_metadata(theirs)
        socket_type = properties.get(b"socket-type", b"")
        if socket_type not in self.peers:
            raise RemoteProtocolError("wrong-socket", self._wrong_socket(socket_type[:20]))
        identity = properties.get(b"identity", b"")
        if len(identity) > MAX_IDENTITY:
            raise RemoteProtocolError("bad-handshake", f"an identity of {len(identity)} bytes")
        self._linked = True
        linked = Joined(socket_type=socket_type, identity=identity, key=self._mechanism.key, pings=self._pings)
        events.append(linked)

    def _wrong_socket(self, found: bytes) -> str:
        expected = " or ".join(sorted(each.decode() for each in self.peers))
        return f"the peer has a socket of type {found.decode('ascii', 'replace')!r}; expected {expected}"

    def _send_command(self, data: bytes) -> None:
        if data:
            self.out.append(data)

    def _next_frame(self, source: bytes | bytearray, position: int, end: int) -> tuple[int, int, int] | None:
        """Return flags, begin and end of the body of the frame at *position*; None: it is incomplete.

        :raises RemoteProtocolError: its flags or its size are wrong
        """
        found = self._head(source, position, end)
        if found is None:
            return None
        flags, begin, size = found
        most = self.largest + self.largest_label + self._mechanism.overhead if self._linked else MAX_COMMAND
        if size > most:
            raise RemoteProtocolError("frame-too-large", f"a frame of {size} bytes; the limit is {most}")
        return self._complete(flags, begin, size, position, end)

    def _head(self, source: bytes | bytearray, position: int, end: int) -> tuple[int, int, int] | None:
        """Return the flags, the begin of the body, and its size, of the frame at *position*; None: not all arrived."""
        left = end - position
        flags = source[position] if left else 0
        if flags & ~(MORE | LONG | COMMAND) or (flags & COMMAND and flags & MORE):
            raise RemoteProtocolError("bad-frame", f"a frame with the flags {flags:#04x}")
        head = _LONG_HEAD.size if flags & LONG else 2
        if left < head:
            if left or self._frames:
                self._expect(head, left)
            return None
        size = _LONG_HEAD.unpack_from(source, position)[1] if flags & LONG else source[position + 1]
        return flags, position + head, size

    def _complete(self, flags: int, begin: int, size: int, position: int, end: int) -> tuple[int, int, int] | None:
        if begin + size > end:
            self._expect(begin + size - position, end - position)
            return None
        return flags, begin, begin + size

    def _expect(self, size: int, arrived: int) -> None:
        """Note that a frame of *size* bytes, with its header, has to arrive, of which *arrived* bytes are there."""
        self.expected = self._frames_size + size
        self._parse_at = size if not self._inner else 0

    def _receive_frames(self, source: bytes | bytearray, position: int, events: list[Any]) -> int:
        """Handle frames that are not sealed, up to the limit of one turn; return their end."""
        end, left = len(source), self._most_events
        while True:
            if self._skip:
                step = min(self._skip, end - position)
                position, self._skip = position + step, self._skip - step
            if position >= end or self._skip:
                break
            if left <= 0:
                self.more = True
                return position
            if not self._frames and not self._skipping:
                # Nearly all messages have the usual form, which a compiled function parses many at a time.
                position, event, cost = self._gather(source, position)
                if event is not None:
                    events.append(event)
                    left -= cost
                    continue
            before = position
            position = self._receive_frame(source, position, end, events)
            left -= 1
            if position == before:
                return position
        if self._frames or self._skipping or self._skip:
            self.expected = max(self.expected, self._frames_size + 1)
        return position

    def _receive_frame(self, source: bytes | bytearray, position: int, end: int, events: list[Any]) -> int:
        """Handle the frame at *position*; return its end, or *position* if it is incomplete."""
        found = self._head(source, position, end)
        if found is None:
            return position
        flags, begin, size = found
        if flags & COMMAND:
            if size > MAX_COMMAND:
                raise RemoteProtocolError("frame-too-large", f"a command of {size} bytes; the limit is {MAX_COMMAND}")
            if self._complete(flags, begin, size, position, end) is None:
                return position
            body = bytes(source[begin : begin + size])
            if not body or len(body) < 1 + body[0]:
                raise RemoteProtocolError("bad-frame", "a command without a name")
            self._command(body[1 : 1 + body[0]], body[1 + body[0] :], events)
            return begin + size
        if not self._skipping:
            error = self._judge(len(self._frames), size, bool(flags & MORE))
            if error is not None:
                self._frames, self._frames_size, self._skipping = [], 0, True
                events.append(MessageRefused(error))
        if self._skipping:
            self._skip, self._skipping = size, bool(flags & MORE)
            return begin
        if self._complete(flags, begin, size, position, end) is None:
            return position
        self._frames.append(bytes(source[begin : begin + size]))
        self._frames_size += size
        if not flags & MORE:
            frames, self._frames, self._frames_size = self._frames, [], 0
            self._message(frames, events)
        return begin + size

    def _judge(self, at: int, size: int, more: bool) -> RemoteProtocolError | None:
        """Return why a message is refused whose frame number *at* has *size* bytes; None: it is accepted so far.

        :param more: whether other frames follow
        """
        if at >= self.most_frames:
            return RemoteProtocolError("wrong-frame-count", f"more than {self.most_frames} frames")
        if more and size > self.largest_label:
            return RemoteProtocolError("label-too-long", f"{size} bytes, at most {self.largest_label} are allowed")
        if size > self.largest:
            return RemoteProtocolError("data-too-large", f"{size} bytes, at most {self.largest} are allowed")
        return None

    def _command(self, name: bytes, data: bytes, events: list[Any]) -> None:
        """Handle a command after the handshake; unknown ones are ignored (RFC 37)."""
        if name == b"PING" and self._pings:
            self.out.append(self._mechanism.seal(b"\4PONG" + data[2:18], COMMAND))
        elif name == b"ERROR":
            raise RemoteProtocolError("refused-by-peer", f"the peer ends the connection: {data[1:][:100]!r}")

    # For subclasses.

    def _gather(self, source: bytes | bytearray, position: int) -> tuple[int, Any, int]:
        """Parse complete messages at *position*.

        :return: their end; their event, None if the message at *position* is not of the usual form; and how many events
            it counts for
        """
        return position, None, 0

    def _message(self, frames: list[bytes], events: list[Any]) -> None:
        """Handle a complete message."""
        raise NotImplementedError

    # Sending.

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send *frames* as one message."""
        self.out.extend(self.sealed(encode(frames)))

    def send_ping(self, ttl: int) -> None:
        """Send a PING, which a peer of ZMTP 3.1 answers.

        :param ttl: the time after which the peer may give this side up, in tenths of a second
        """
        self.out.append(self._mechanism.seal(b"\4PING" + ttl.to_bytes(2, "big"), COMMAND))

    def sealed(self, data: bytes) -> list[bytes]:
        """Return *data*, complete messages that are encoded, as the mechanism sends it."""
        if not self._mechanism.overhead:
            return [data]
        view, at, out = memoryview(data), 0, []
        while at < len(view):
            flags = view[at]
            head = _LONG_HEAD.size if flags & LONG else 2
            size = _LONG_HEAD.unpack_from(view, at)[1] if flags & LONG else view[at + 1]
            out.append(self._mechanism.seal(view[at + head : at + head + size], flags & (MORE | COMMAND)))
            at += head + size
        return out


def _old(version: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        "old-zmtp", f"the peer speaks ZMTP {version}, as libzmq 3.2 and older do; expected 3.0 or 3.1: use libzmq 4"
    )
