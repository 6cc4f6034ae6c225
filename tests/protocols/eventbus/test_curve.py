"""CURVE without sockets: a handshake of libzmq byte for byte, every byte flipped, wrong order, replay."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from nacl.bindings import crypto_scalarmult_base

from fyrehose.errors import Broken
from fyrehose.protocols.eventbus.curve import CurveClient, CurveServer, new_keys
from fyrehose.protocols.eventbus.keys import Keys
from fyrehose.protocols.eventbus.session import BusMessage, DealerSession
from fyrehose.protocols.eventbus.zmtp import Joined, ZmtpSession, command, encode
from fyrehose.testing import every_chunking, feed
from tests.protocols.eventbus.recorded_curve import FROM_CLIENT, FROM_SERVER, SEED

#: The keys with which the handshake was recorded.
SERVER = Keys(crypto_scalarmult_base(b"s" * 32), b"s" * 32)
CLIENT = Keys(crypto_scalarmult_base(b"c" * 32), b"c" * 32)
#: Bytes of the greeting that nobody checks: padding, a higher version, the role, and filler.
UNCHECKED = {*range(1, 9), 10, 11, *range(32, 64)}


class Router(ZmtpSession):
    socket_type: ClassVar[bytes] = b"ROUTER"
    peers: ClassVar[frozenset[bytes]] = frozenset({b"DEALER"})
    most_frames: ClassVar[int] = 7
    largest_label: ClassVar[int] = 300

    def _message(self, frames: list[bytes], events: list[Any]) -> None:
        events.append(BusMessage(frames))


class Dice:
    """Bytes that look random and are the same in each run."""

    def __init__(self, seed: int = SEED) -> None:
        self.seed = seed

    def __call__(self, size: int) -> bytes:
        self.seed += 1
        return bytes((self.seed * 37 + n * 11) % 256 for n in range(size))


def server(clients: frozenset[bytes] | None = None, seed: int = SEED) -> Router:
    return Router(CurveServer(SERVER.public, SERVER.secret, clients, Dice(seed)), 100_000)


def client(keys: Keys = CLIENT, server_key: bytes = SERVER.public) -> DealerSession:
    return DealerSession(CurveClient(server_key, keys.public, keys.secret))


def converse(one: ZmtpSession, other: ZmtpSession) -> tuple[list[Any], list[Any]]:
    """Exchange bytes until nobody has more to say; return the events of both."""
    events: tuple[list[Any], list[Any]] = [], []
    while one.out or other.out:
        events[1].extend(other.receive_data(b"".join(one.data_to_send())))
        events[0].extend(one.receive_data(b"".join(other.data_to_send())))
    return events


def test_recorded_handshake_of_libzmq_and_its_messages_are_understood() -> None:
    """The other side was libzmq 4.3.5; tests/protocols/eventbus/recorded_curve.py says how it was recorded."""
    session = server(frozenset({CLIENT.public}))
    events = session.receive_data(FROM_CLIENT)
    assert events[0] == Joined(socket_type=b"DEALER", identity=b"", key=CLIENT.public, pings=True)
    assert events[1:] == [BusMessage([b"hello", b"", b"x" * 300])]
    session.send([b"answer", b"y" * 300])
    assert b"".join(session.data_to_send()) == FROM_SERVER


def test_events_do_not_depend_on_chunking() -> None:
    for chunks in every_chunking(FROM_CLIENT, sizes=(1, 7, 64, 250)):
        assert len(feed(server(), chunks)) == 2


def test_every_flipped_byte_is_refused() -> None:
    for at in range(len(FROM_CLIENT)):
        flipped = bytearray(FROM_CLIENT)
        flipped[at] ^= 0x40
        session = server()
        events = [*session.receive_data(bytes(flipped)), *session.receive_eof()]
        if at in UNCHECKED:
            assert len(events) == 2, at
        else:
            assert isinstance(events[-1], Broken), at
            assert BusMessage([b"hello", b"", b"x" * 300]) not in events, at


def test_both_sides_understand_each_other() -> None:
    one, other = client(), server()
    events = converse(one, other)
    assert events[0] == [Joined(socket_type=b"ROUTER", identity=b"", key=SERVER.public, pings=True)]
    assert events[1] == [Joined(socket_type=b"DEALER", identity=b"", key=CLIENT.public, pings=True)]
    one.send([b"a", b"", b"x" * 90_000])
    other.send([b"b"])
    other.out += other.sealed(encode((b"c", b"d" * 300)) * 2)
    other.send_ping(10)
    assert converse(one, other) == (
        [BusMessage([b"b"]), *[BusMessage([b"c", b"d" * 300])] * 2],
        [BusMessage([b"a", b"", b"x" * 90_000])],
    )
    assert not one.out


def test_an_unknown_key_is_refused_with_the_status_of_zap() -> None:
    one, other = client(), server(frozenset({SERVER.public}))
    ours, theirs = converse(one, other)
    assert theirs[-1].error.cause == "unknown-key"
    assert ours[-1].error.cause == "refused-by-peer"
    assert "400" in str(ours[-1].error)


@pytest.mark.parametrize(
    ("key", "cause"),
    [(new_keys().public, "bad-handshake"), (bytes(32), "weak-key"), (b"\xff" * 32, "bad-handshake")],
    ids=["other", "zeros", "ones"],
)
def test_a_wrong_server_key_is_refused(key: bytes, cause: str) -> None:
    """The server notices a wrong key; the client itself a weak one, for which libsodium makes no box."""
    ours, theirs = converse(client(server_key=key), server())
    assert [event.error.cause for event in (*ours, *theirs)] == [cause]


def test_a_client_without_a_key_is_refused() -> None:
    one, other = DealerSession(), server()
    ours, theirs = converse(one, other)
    assert (ours[-1].error.cause, theirs[-1].error.cause) == ("wrong-mechanism", "wrong-mechanism")
    assert "set curve_serverkey" in str(theirs[-1].error)


def parts() -> tuple[bytes, bytes, bytes, bytes]:
    """Return greeting, HELLO, INITIATE and the messages of the recorded client."""
    hello = 64 + 2 + 6 + 194
    assert FROM_CLIENT[66:72] == b"\x05HELLO"
    begin = hello + (9 if FROM_CLIENT[hello] & 2 else 2)
    size = int.from_bytes(FROM_CLIENT[hello + 1 : begin], "big")
    return FROM_CLIENT[:64], FROM_CLIENT[64:hello], FROM_CLIENT[hello : begin + size], FROM_CLIENT[begin + size :]


@pytest.mark.parametrize("order", ["GI", "GHH", "GHM", "GHIH", "GHII", "GM", "GHIMM"])
def test_commands_out_of_order_and_repeated_messages_are_refused(order: str) -> None:
    by_name = dict(zip("GHIM", parts(), strict=True))
    events = server().receive_data(b"".join(by_name[name] for name in order))
    assert isinstance(events[-1], Broken)


def test_a_recording_is_not_accepted_by_another_connection() -> None:
    """The server's short-term key and cookie differ, so INITIATE does not fit."""
    (broken,) = server(seed=SEED + 1).receive_data(FROM_CLIENT)
    assert "cookie" in str(broken.error)


def test_a_client_refuses_welcome_twice_ready_too_early_and_boxes_of_others() -> None:
    greeting = server().data_to_send()[0]
    ours = client()
    ours.receive_data(greeting)
    (broken,) = ours.receive_data(command(b"READY", bytes(50)))
    assert broken.error.cause == "bad-handshake"
    ours = client()
    ours.receive_data(greeting)
    (broken,) = ours.receive_data(command(b"WELCOME", bytes(160)))
    assert "cannot be opened" in str(broken.error)


def test_weak_keys_are_refused() -> None:
    """libsodium refuses points of small order, with which everybody would share the key."""
    one, other = client(), server()
    hello = bytearray(b"".join(one.data_to_send()))
    other.receive_data(bytes(hello))
    one.receive_data(b"".join(other.data_to_send()))
    hello = bytearray(b"".join(one.data_to_send()))
    hello[8 + 74 : 8 + 106] = bytes(32)
    (broken,) = other.receive_data(bytes(hello))
    assert broken.error.cause == "bad-handshake"


def test_a_box_that_is_too_large_ends_the_connection() -> None:
    one, other = client(), server()
    converse(one, other)
    one.send([b"x" * 101_000])
    (broken,) = other.receive_data(b"".join(one.data_to_send()))
    assert broken.error.cause == "frame-too-large"


def test_keys_do_not_show_their_secret() -> None:
    assert "s" * 32 not in repr(SERVER)
