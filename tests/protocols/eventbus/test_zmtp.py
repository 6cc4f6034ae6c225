"""ZMTP without sockets: golden bytes, every cutting, limits, and what is refused."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.errors import Broken, RemoteProtocolError
from fyrehose.protocols.eventbus.zmtp import (
    MAX_COMMAND,
    Joined,
    Mechanism,
    MessageRefused,
    Null,
    ZmtpSession,
    command,
    encode,
    frame,
    head_of,
    pack_metadata,
    parse_metadata,
)
from fyrehose.testing import every_chunking, feed

#: What libzmq 4.3.5 sends for a DEALER: its greeting, and READY.
GREETING = bytes.fromhex("ff00000000000000017f0301") + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0"
LINKED = Joined(socket_type=b"DEALER", identity=b"", key=None, pings=True)


class Router(ZmtpSession):
    """A session whose events are the messages."""

    socket_type: ClassVar[bytes] = b"ROUTER"
    peers: ClassVar[frozenset[bytes]] = frozenset({b"DEALER", b"REQ"})
    most_frames: ClassVar[int] = 3
    largest_label: ClassVar[int] = 300

    def __init__(self, mechanism: Mechanism | None = None, largest: int = 1_000) -> None:
        super().__init__(mechanism or Null(), largest)

    def _message(self, frames: list[bytes], events: list[Any]) -> None:
        events.append(frames)


def linked() -> Router:
    """Return a session after the handshake."""
    session = Router()
    assert session.receive_data(GREETING + READY) == [LINKED]
    session.data_to_send()
    return session


def every(session: ZmtpSession, data: bytes) -> list[Any]:
    events = session.receive_data(data)
    while session.more:
        events += session.next_events()
    return events


def error_of(events: list[Any]) -> str:
    broken = events[-1]
    assert isinstance(broken, Broken)
    return broken.error.cause


def test_greeting_and_ready_match_their_golden_bytes() -> None:
    session = Router()
    assert session.data_to_send() == [bytes.fromhex("ff00000000000000007f0301") + b"NULL".ljust(20, b"\0") + bytes(32)]
    assert session.receive_data(GREETING) == []
    assert session.data_to_send() == [b"\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06ROUTER\x08Identity\0\0\0\0"]
    assert session.receive_data(READY) == [LINKED]
    assert session.linked


def test_server_learns_the_type_of_the_socket_before_its_own_is_known() -> None:
    session = Router(Null(answers=True))
    session.data_to_send()
    assert session.receive_data(GREETING) == []
    assert session.data_to_send() == []
    assert session.receive_data(READY) == [LINKED]
    assert session.data_to_send() == [READY.replace(b"DEALER", b"ROUTER")]


def test_frames_match_their_golden_bytes() -> None:
    assert encode((b"a", b"", b"x" * 256)) == (b"\x01\x01a" + b"\x01\x00" + b"\x02\0\0\0\0\0\0\x01\x00" + b"x" * 256)
    assert encode((b"a", b"b"), more=True) == b"\x01\x01a\x01\x01b"
    assert frame(b"x" * 255, 1)[:2] == b"\x01\xff"
    assert command(b"PING", b"\0\0") == b"\x04\x07\x04PING\0\0"
    assert (head_of(255), head_of(256)) == (b"\0\xff", b"\2\0\0\0\0\0\0\1\0")


def test_metadata_round_trip() -> None:
    assert parse_metadata(pack_metadata({b"Socket-Type": b"SUB", b"X": b""})) == {b"socket-type": b"SUB", b"x": b""}


@pytest.mark.parametrize("data", [b"\x01", b"\x01a\0\0\0", b"\x01a\0\0\0\x02b", b"\0\0\0\0\0", b"\xffa"])
def test_malformed_metadata_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_metadata(data)


@pytest.mark.parametrize(
    ("received", "cause", "said"),
    [
        (b"GET / HTTP/1.1\r\n", "wrong-protocol", "b'GET '; connect a ZeroMQ socket"),
        (b"\x16\x03\x01\x02\x00\x01", "wrong-protocol", r"b'\x16\x03\x01\x02'; connect a ZeroMQ socket"),
        (b"nonsense", "wrong-protocol", "b'nons'; connect a ZeroMQ socket"),
        (b"\x01\x00", "old-zmtp", "ZMTP 1.0"),
        (b"\xff" + bytes(8) + b"\x7f\x01\x05\x00\x00", "old-zmtp", "ZMTP 2.0, as libzmq 3.2 and older do"),
        (b"\xff" * 100, "wrong-protocol", "no greeting of ZMTP"),
        (GREETING.replace(b"NULL", b"CURV"), "wrong-mechanism", "set eventbus.server-key, or connect without keys"),
        (GREETING + READY.replace(b"DEALER", b"PUSHED"), "wrong-socket", "'PUSHED'; expected DEALER or REQ"),
        (GREETING + frame(READY[2:]), "bad-handshake", "no command arrived"),
        (GREETING + command(b"HELLO"), "bad-handshake", "expected the command READY, not b'HELLO'"),
        (GREETING + command(b"READY", b"\x0bSocket-Type"), "bad-handshake", "the metadata is malformed"),
        (GREETING + command(b"ERROR", b"\x04late"), "refused-by-peer", "b'late'"),
        (GREETING + b"\x06" + (MAX_COMMAND + 1).to_bytes(8, "big"), "frame-too-large", "8193 bytes"),
        (GREETING + b"\x05\x00", "bad-frame", "the flags 0x05"),
        (GREETING + READY + b"\x08\x00", "bad-frame", "the flags 0x08"),
        (GREETING + READY + b"\x04\x00", "bad-frame", "a command without a name"),
        (GREETING + READY + b"\x04\x02\x05P", "bad-frame", "a command without a name"),
        (GREETING + READY + command(b"ERROR", b"\x03bye"), "refused-by-peer", "b'bye'"),
    ],
)
def test_wrong_peers_are_named_however_their_bytes_are_cut(received: bytes, cause: str, said: str) -> None:
    whole = Router().receive_data(received)
    assert error_of(whole) == cause
    assert said in str(whole[-1].error)
    session, events = Router(), []
    for at in range(len(received)):
        events += session.receive_data(received[at : at + 1])
    assert [str(event) for event in events] == [str(event) for event in whole]
    assert session.receive_data(b"more") == []
    assert session.buffered == session.expected == 0


def test_peer_of_zmtp_3_0_gets_no_pings() -> None:
    old = GREETING[:11] + b"\0" + GREETING[12:]
    session = Router()
    (event,) = session.receive_data(old + READY)
    assert not event.pings
    session.data_to_send()
    assert every(session, command(b"PING", b"\0\0")) == []
    assert session.data_to_send() == []


def test_ping_is_answered_with_its_context_of_at_most_16_bytes() -> None:
    session = linked()
    assert session.receive_data(command(b"PING", b"\0\x0acontext")) == []
    assert session.data_to_send() == [command(b"PONG", b"context")]
    session.receive_data(command(b"PING", b"\0\x0a" + b"c" * 40))
    assert session.data_to_send() == [command(b"PONG", b"c" * 16)]
    session.send_ping(450)
    assert session.data_to_send() == [b"\x04\x07\x04PING\x01\xc2"]


def test_commands_may_stand_between_the_frames_of_a_message() -> None:
    """libzmq sends a heartbeat when it is due."""
    session = linked()
    ping = command(b"PING", b"\0\0")
    data = b"\x01\x01a" + ping + b"\x01\x01b" + command(b"UNKNOWN") + b"\x00\x01c"
    assert every(session, data) == [[b"a", b"b", b"c"]]
    assert session.data_to_send() == [command(b"PONG")]


MESSAGES = (
    encode((b"a", b"b", b"c" * 1_000))
    + command(b"PING", b"\0\0")
    + encode((b"",))
    + encode((b"x" * 301, b"y"))
    + encode((b"1", b"2", b"3", b"4", b"5"))
    + encode((b"z" * 1_001,))
    + encode((b"last",))
)
EVENTS = [
    [b"a", b"b", b"c" * 1_000],
    [b""],
    "label-too-long: 301 bytes, at most 300 are allowed",
    "wrong-frame-count: more than 3 frames",
    "data-too-large: 1001 bytes, at most 1000 are allowed",
    [b"last"],
]


def shown(events: list[Any]) -> list[Any]:
    return [str(event.error) if isinstance(event, MessageRefused) else event for event in events]


WIRE = GREETING + READY + MESSAGES


def test_every_chunking_gives_the_same_events() -> None:
    for chunks in every_chunking(WIRE):
        session = Router()
        assert shown(feed(session, chunks)) == [LINKED, *EVENTS]
        assert session.expected == session.buffered == 0


def test_a_skipped_frame_takes_no_memory() -> None:
    session = linked()
    (refused,) = session.receive_data(b"\x02" + (1 << 60).to_bytes(8, "big"))
    assert isinstance(refused, MessageRefused)
    for _ in range(100):
        assert session.receive_data(bytes(100_000)) == []
        assert (session.expected, session.buffered) == (1, 0)


def test_incomplete_message_is_expected_and_its_end_is_a_violation() -> None:
    session = linked()
    assert (session.expected, session.receive_eof()) == (0, [])
    session.receive_data(b"\x01\x01a\x02" + (900).to_bytes(8, "big"))
    assert (session.expected, session.buffered) == (1 + 9 + 900, 1 + 9)
    assert error_of(session.receive_eof()) == "truncated-message"


def test_one_turn_has_a_limited_number_of_messages() -> None:
    session = linked()
    events = session.receive_data(encode((b"x",)) * 100)
    assert len(events) < 100
    assert session.more
    assert len(events) + len(every(session, b"")) == 100


def test_identity_is_limited_and_reported() -> None:
    def ready(identity: bytes) -> bytes:
        return command(b"READY", pack_metadata({b"Socket-Type": b"REQ", b"identity": identity}))

    (event,) = Router().receive_data(GREETING + ready(b"i" * 255))
    assert (event.socket_type, event.identity) == (b"REQ", b"i" * 255)
    assert error_of(Router().receive_data(GREETING + ready(b"i" * 256))) == "bad-handshake"


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_refused_without_an_exception(data: bytes, greeted: bool) -> None:
    session = Router()
    events = session.receive_data(GREETING + READY if greeted else b"") + every(session, data)
    if any(isinstance(event, Broken) for event in events):
        assert isinstance(events[-1], Broken)
    assert session.buffered <= 300 + 64 + len(READY)
