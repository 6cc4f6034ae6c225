"""Every session of a byte stream keeps the contract in fyrehose/sessions.py."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random
from struct import pack
from typing import Any

import attrs
import pytest

import fyrehose
from fyrehose.errors import Broken
from fyrehose.protocols.eventbus.frames import Dialect
from fyrehose.protocols.eventbus.session import (
    CollectorSession,
    DealerSession,
    PublisherSession,
    PubsReceived,
    SnapshotSession,
    SubscriberSession,
)
from fyrehose.protocols.eventbus.zmtp import Null, ZmtpSession, encode, pack_metadata
from fyrehose.protocols.figg.frames import Publish
from fyrehose.protocols.figg.session import FiggClientSession, FiggServerSession
from fyrehose.protocols.http.session import HttpSession, RequestLimits
from fyrehose.protocols.lumberjack.session import LumberjackLimits, LumberjackServerSession, LumberjackWriterSession
from fyrehose.protocols.relink.events import Received
from fyrehose.protocols.relink.frames import Hello, Message, Terms, pack_reply, pack_version
from fyrehose.protocols.relink.link import Link, LinkLimits
from fyrehose.protocols.relink.session import ConnectorSession, ListenerSession
from fyrehose.protocols.syslog.session import RelpClientSession, SyslogServerSession
from fyrehose.sessions import ByteSession, events_of
from fyrehose.testing import every_chunking
from fyrehose.web.session import WebSession

TERMS = Terms(endpoint="publish:s", connector_size=1)


def figg_publishes() -> bytes:
    client = FiggClientSession()
    for number in (1, 2, 3):
        client.send(Publish(topic="t", number=number, data=b"%d" % number))
    return b"".join(client.data_to_send())


def lumberjack_windows(count: int, compressed: bool) -> bytes:
    """Return *count* windows of one event each."""
    events = [b"2J" + pack(">II", 1, 7) + b'{"n":%d}' % (number % 10) for number in range(count)]
    frames = [b"2C" + pack(">I", len(zlib.compress(event))) + zlib.compress(event) for event in events]
    return b"".join(b"2W" + pack(">I", 1) + frame for frame in (frames if compressed else events))


def linked_listener() -> ListenerSession:
    listener = ListenerSession(LinkLimits(backlog=2))
    listener.receive_data(pack_version(0) + Hello(terms=TERMS).serialize())
    listener.accept(Link(TERMS, False, 5, 6, LinkLimits(backlog=2)), resumed=False)
    return listener


def linked_connector() -> ConnectorSession:
    connector = ConnectorSession(hello=Hello(terms=TERMS), new_link=lambda epoch, id_: Link(TERMS, True, epoch, id_))
    connector.receive_data(pack_version(0) + pack_reply(5, 6))
    return connector


def from_peer(peer: ZmtpSession, *messages: bytes) -> bytes:
    """Return the handshake of *peer*, and then *messages*."""
    ready = Null().begin(pack_metadata({b"Socket-Type": peer.socket_type}))
    return b"".join([peer.out[0], ready, *messages])


BUS_EVENT = encode((b"/a/", b"null", b"me", b"2024-05-01T10:20:30.123Z", b"7d444840-9dc0-41d1-b245-5ffdce74fad2", b"x"))


@attrs.frozen
class Case:
    """A session, its peer's bytes, a function that reacts to its events, and the number of messages or events."""

    session: Callable[[], Any]
    data: bytes
    react: Callable[[Any, Any], object]
    count: Callable[[Any], int]
    expected: int


def nothing(session: Any, event: Any) -> None:
    """Ignore an event."""


def one(event: Any) -> int:
    return 1


def consume(session: Any, event: Any) -> None:
    """Settle received messages, so that a link without room continues to decode."""
    if isinstance(event, Received):
        session.link.consume(event.channel, event.first + len(event.messages) - 1)


def sent_by_relp() -> RelpClientSession:
    """Return the session of a client that waits for the answers to two messages."""
    session = RelpClientSession()
    session.receive_data(b"1 rsp 6 200 OK\n")
    session.send([b"one", b"two"])
    return session


CASES = {
    FiggServerSession: Case(FiggServerSession, figg_publishes(), nothing, lambda event: sum(map(len, event.runs)), 3),
    FiggClientSession: Case(FiggClientSession, b"", nothing, one, 0),
    LumberjackServerSession: Case(
        lambda: LumberjackServerSession(LumberjackLimits(max_windows=2, turn_bytes=8)),
        lumberjack_windows(6, compressed=True) + lumberjack_windows(6, compressed=False),
        lambda session, event: session.durable(len(event)),
        len,
        12,
    ),
    LumberjackWriterSession: Case(LumberjackWriterSession, b"", nothing, one, 0),
    RelpClientSession: Case(sent_by_relp, b"2 rsp 6 200 OK\n3 rsp 8 500 full\n", nothing, lambda e: len(e.answers), 2),
    ListenerSession: Case(
        linked_listener,
        b"".join(Message(channels=(n % 2,), parts=(b"x",)).serialize(1) for n in range(9)),
        consume,
        lambda event: len(event.messages),
        9,
    ),
    ConnectorSession: Case(linked_connector, Message(channels=(0,), parts=(b"x",)).serialize(0), consume, one, 1),
    CollectorSession: Case(
        lambda: CollectorSession(Null(), 1_000, "s"),
        from_peer(DealerSession(), *[BUS_EVENT] * 3, encode((b"too few",))),
        nothing,
        lambda event: sum(map(len, event.runs)) if isinstance(event, PubsReceived) else 1,
        1 + 3 + 1,
    ),
    SnapshotSession: Case(
        lambda: SnapshotSession(Null(), Dialect.BINARY),
        from_peer(DealerSession(), encode((b"SYNCSTART", b"", b"0")) * 40),
        nothing,
        one,
        1 + 40,
    ),
    PublisherSession: Case(
        lambda: PublisherSession(Null(), Dialect.BINARY),
        from_peer(SubscriberSession(), *(encode((b"\1%d" % n,)) for n in range(40))),
        nothing,
        one,
        1 + 40,
    ),
    DealerSession: Case(
        DealerSession, from_peer(CollectorSession(Null(), 1, "s"), encode((b"a", b"b")) * 40), nothing, one, 1 + 40
    ),
    SubscriberSession: Case(
        SubscriberSession, from_peer(PublisherSession(Null(), Dialect.BINARY), BUS_EVENT * 3), nothing, one, 1 + 3
    ),
    SyslogServerSession: Case(SyslogServerSession, b"<1>x\n" * 600, nothing, lambda event: len(event.payloads), 600),
    WebSession: Case(
        WebSession,
        b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n" * 3,
        lambda session, event: session.respond(200, b"{}"),
        one,
        3,
    ),
    HttpSession: Case(
        lambda: HttpSession(limits=RequestLimits(message=1_000, body=1_000)),
        b"GET /streams HTTP/1.1\r\nHost: h\r\n\r\n" * 3,
        lambda session, event: session.respond(200, b"{}"),
        one,
        3,
    ),
}


#: Sessions whose incomplete frames are not charged to a connection.
UNCHARGED = (LumberjackWriterSession, RelpClientSession)


def public_sessions() -> set[type]:
    """Return every public session class that receives a stream of bytes."""
    root = Path(fyrehose.__file__).parent
    found = set()
    for path in [*root.glob("protocols/*/*session.py"), *root.glob("web/session.py"), *root.glob("admin/*.py")]:
        module = import_module(".".join(("fyrehose", *path.relative_to(root).with_suffix("").parts)))
        for name, value in vars(module).items():
            own = isinstance(value, type) and value.__module__ == module.__name__
            if own and hasattr(value, "receive_data") and not name.startswith("_"):
                found.add(value)
    return found


def test_every_session_of_a_byte_stream_has_the_contract() -> None:
    sessions = public_sessions()
    assert all(issubclass(session, ByteSession) for session in sessions)
    bases = {base for session in CASES for base in session.__mro__}
    assert sessions <= bases, "each has a case"
    assert set(CASES) <= sessions


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_events_of_a_session_are_yielded_until_there_are_no_more(kind: type) -> None:
    case = CASES[kind]
    for chunks in every_chunking(case.data, sizes=(1, 7, 64)):
        session, count = case.session(), 0
        for chunk in chunks:
            for event in events_of(session, chunk):
                count += case.count(event)
                case.react(session, event)
            assert not session.more
            assert session.next_events() == []
        assert count == case.expected


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_session_that_has_ended_keeps_nothing_and_returns_nothing(kind: type) -> None:
    """Valid bytes of random length are followed by random ones, and some peers leave within a frame."""
    case, broken = CASES[kind], 0
    for seed in range(40):
        dice = Random(seed)
        data = case.data[: dice.choice((0, dice.randint(0, len(case.data))))]
        data += dice.choice((b"\xff" * 64, dice.randbytes(64), b""))
        session, at = case.session(), 0
        ended = False
        while at < len(data) and not ended:
            size = dice.choice((1, 7, 64, 1000))
            for event in events_of(session, data[at : at + size]):
                assert not ended, "an event follows the end"
                ended = isinstance(event, Broken)
                if not ended:
                    case.react(session, event)
            at += size
        if not ended and kind is not RelpClientSession:
            ended = any(isinstance(event, Broken) for event in session.receive_eof())
        if ended:
            broken += 1
            assert (session.more, session.next_events()) == (False, [])
            assert list(events_of(session, case.data or b"x")) == [], "bytes behind the end have events"
        if ended and kind not in UNCHARGED:
            assert (session.expected, session.buffered) == (0, 0), "the connection is charged for what is over"
    assert broken, "no random bytes violate the protocol"


def test_session_that_waits_for_its_owner_has_no_more() -> None:
    """Otherwise a loop that runs while there are more events would never end."""
    limited = LumberjackServerSession(LumberjackLimits(max_windows=2))
    first = sum(map(len, events_of(limited, lumberjack_windows(3, compressed=False))))
    assert 0 < first < 3
    assert not limited.more
    limited.durable(first)
    assert limited.more
    rest = 0
    for event in events_of(limited, b""):
        rest += len(event)
        limited.durable(len(event))
    assert rest == 3 - first
