"""Sessions of both peers: every row of the tables, and random schedules over an unreliable network."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

import pytest

from fyrehose.errors import Broken, LocalProtocolError
from fyrehose.protocols.relink import events
from fyrehose.protocols.relink.frames import (
    NOP,
    PING,
    PONG,
    RESUME,
    SHUTDOWN,
    Ack,
    Acknowledgement,
    Hello,
    Message,
    Op,
    Operation,
    Terms,
    pack_reply,
    pack_version,
)
from fyrehose.protocols.relink.link import Link, LinkLimits
from fyrehose.protocols.relink.messages import MessageSequence
from fyrehose.protocols.relink.session import ConnectorSession, HelloReceived, LinkUnknown, ListenerSession
from fyrehose.testing import every_chunking, feed

TERMS = Terms(endpoint="e", connector_size=1, listener_size=2, connector_transactions=True)


def connector(old: Link | None = None, require: bool = False) -> ConnectorSession:
    hello = Hello(terms=TERMS, require=require, epoch=old.epoch if old else 0, link_id=old.id if old else 0)
    return ConnectorSession(link=old, hello=hello, new_link=lambda epoch, id_: Link(TERMS, True, epoch, id_))


def listener(resumed: bool = False, link: Link | None = None, **limits: int) -> ListenerSession:
    """Return a session whose handshake is complete."""
    session = ListenerSession(LinkLimits(**limits))
    (received,) = session.receive_data(pack_version(0) + Hello(terms=TERMS).serialize())
    assert isinstance(received, HelloReceived)
    session.accept(link or Link(TERMS, False, 5, 6, session.limits), resumed=resumed)
    session.data_to_send()
    return session


def old_link() -> Link:
    return Link(TERMS, True, 5, 6)


def cause(found: list[Any]) -> str:
    assert isinstance(found[-1], Broken)
    return found[-1].error.cause


# The handshake.


def test_handshake_between_both_sessions() -> None:
    one, other = connector(), ListenerSession()
    assert other.receive_data(b"".join(one.data_to_send())) == []
    assert one.receive_data(b"".join(other.data_to_send())) == []
    (received,) = other.receive_data(b"".join(one.data_to_send()))
    assert received == HelloReceived(hello=Hello(terms=TERMS))
    (linked,) = other.accept(Link(TERMS, False, 5, 6), resumed=False)
    assert linked.resumed is False
    (linked,) = one.receive_data(b"".join(other.data_to_send()))
    assert (linked.link.epoch, linked.link.id, linked.resumed, linked.lost) == (5, 6, False, None)
    assert one.linked
    assert other.linked


@pytest.mark.parametrize(
    ("reply", "old", "require", "expected"),
    [
        ((5, 6), True, False, "resumed"),
        ((5, 7), True, False, "lost"),
        ((4, 6), True, False, "lost"),
        ((5, 6), False, False, "new"),
        ((5, 0), True, True, "refused"),
        ((5, 0), False, True, "refused"),
        ((5, 0), True, False, "zero-link-id"),
        ((5, 0), False, False, "zero-link-id"),
        ((0, 6), False, False, "zero-epoch"),
        ((5, 1 << 63), False, False, "bad-link-id"),
    ],
)
def test_every_possible_reply_of_the_listener_is_handled(
    reply: tuple[int, int], old: bool, require: bool, expected: str
) -> None:
    data = pack_version(0) + pack_reply(*reply)
    for chunks in every_chunking(data):
        link = old_link() if old else None
        session = connector(link, require)
        found = feed(session, chunks)
        if expected in ("resumed", "lost", "new"):
            (linked,) = found
            assert linked.resumed is (expected == "resumed")
            assert linked.lost is (link if expected == "lost" else None)
            assert (linked.link is link) is (expected == "resumed")
            assert link is None or link.over is (expected == "lost")
        elif expected == "refused":
            assert found == [LinkUnknown(lost=link)]
            assert link is None or link.over
        else:
            assert cause(found) == expected
            assert link is None or not link.over, "an invalid reply does not lose the link"


@pytest.mark.parametrize("version", range(1, 256, 50))
def test_higher_version_of_the_listener_is_refused(version: int) -> None:
    assert cause(connector().receive_data(pack_version(version))) == "version-unknown"


def test_unknown_required_link_is_refused() -> None:
    session = ListenerSession()
    session.receive_data(pack_version(9) + Hello(terms=TERMS, require=True, epoch=1, link_id=2).serialize())
    session.data_to_send()
    session.refuse(77)
    assert b"".join(session.data_to_send()) == pack_reply(77, 0)
    assert not session.linked
    assert session.receive_data(MESSAGE) == []


def test_unexpected_accept_or_refuse_raises() -> None:
    with pytest.raises(LocalProtocolError):
        ListenerSession().refuse(1)
    link = old_link()
    link.attach(resumed=False)
    session = ListenerSession()
    session.receive_data(pack_version(0) + Hello(terms=TERMS).serialize())
    with pytest.raises(LocalProtocolError, match="fence"):
        session.accept(link, resumed=True)


def test_expected_size_during_the_handshake() -> None:
    one, other = connector(), ListenerSession()
    assert (one.expected, other.expected, other.buffered) == (1, 1, 0)
    other.receive_data(pack_version(0)[:5])
    assert (other.expected, other.buffered) == (1, 5)
    other.receive_data(pack_version(0)[5:])
    assert (other.expected, other.buffered) == (1, 0), "the hello"
    one.receive_data(pack_version(0))
    assert one.expected == 1, "the reply"
    other.receive_data(Hello(terms=TERMS).serialize())
    assert other.expected == 0, "the owner looks up the link"
    other.refuse(7)
    assert other.expected == 0


def test_old_link_sends_its_report_at_once() -> None:
    session = connector(old_link())
    session.receive_data(pack_version(0) + pack_reply(5, 6))
    assert b"".join(session.data_to_send()).endswith(RESUME.serialize())
    assert session.link is not None
    assert not session.link.may_send
    session.receive_data(RESUME.serialize())
    assert session.link.may_send


# Packets.

COMMIT = Operation(kind=Op.COMMIT, channels=(3,)).serialize(1)
MESSAGE = Message(channels=(3,), parts=(b"x", b"yz")).serialize(1)
LINES = [
    (MESSAGE, []),
    (COMMIT, [events.Decided(channel=3, first=0, last=0, commit=True, messages=MessageSequence.of((b"x", b"yz")))]),
    (NOP.serialize(), []),
    (PING.serialize(), []),
    (MESSAGE, []),
    (
        Operation(kind=Op.ROLLBACK, channels=(3,), number=1).serialize(1),
        [events.Decided(channel=3, first=1, last=1, commit=False, messages=MessageSequence.of((b"x", b"yz")))],
    ),
    (Message(channels=(1, 1), parts=(), multicast=True).serialize(1), []),
    (bytes([0x80]) + bytes(7), [events.PeerShutdown()]),
]


def test_events_do_not_depend_on_chunking() -> None:
    data = b"".join(line for line, _ in LINES)
    expected = [event for _, found in LINES for event in found]
    for chunks in every_chunking(data):
        assert feed(listener(), chunks) == expected


PLAIN = Terms(endpoint="e", connector_size=1)


def one_by_one(found: list[Any]) -> list[Any]:
    """Return each message as an event of its own, sorted by channel between other events.

    The number of messages in one event depends on how the bytes were cut.
    """
    plainly: list[Any] = []
    for received, some in groupby(found, lambda event: isinstance(event, events.Received)):
        if received:
            plainly += sorted((e.channel, seq, parts) for e in some for seq, parts in enumerate(e.messages, e.first))
        else:
            plainly += some
    return plainly


def plain(backlog: int) -> ListenerSession:
    limits = LinkLimits(backlog=backlog, message_size=64)
    return listener(link=Link(PLAIN, False, 5, 6, limits, durable=True, kept=False), backlog=backlog, message_size=64)


@pytest.mark.parametrize("backlog", [3, 1_000])
def test_runs_of_messages_do_not_depend_on_chunking(backlog: int) -> None:
    def one(channel: int, *parts: bytes, **fields: bool) -> bytes:
        return Message(channels=(channel,), parts=parts).serialize(1, **fields)

    said: list[tuple[bytes, Any]] = [
        (one(3, b"a"), (3, 0, (b"a",))),
        (one(3, b"bcd"), (3, 1, (b"bcd",))),
        (one(4, b""), (4, 0, (b"",))),
        (one(3, b"e"), (3, 2, (b"e",))),
        (one(3, b"f", b"g"), (3, 3, (b"f", b"g"))),
        (one(3, b"h", large=True), (3, 4, (b"h",))),
        (one(3, b"i", long=True), (3, 5, (b"i",))),
        (b"\x91" + one(3, b"j")[1:], (3, 6, (b"j",))),
        (one(3, b"k" * 64), (3, 7, (b"k" * 64,))),
    ]
    data = b"".join(wire for wire, _ in said) + one(3, b"l" * 65)
    for chunks in every_chunking(data):
        session = plain(backlog)
        link = session.link
        assert link is not None
        found: list[Any] = []
        for chunk in [*chunks, *[b""] * len(said)]:
            found += session.receive_data(chunk)
            assert all(channel.waiting <= backlog for channel in link.receiving.values())
            if session.waiting:
                for channel in link.receiving.values():
                    if channel.waiting:
                        link.consume(channel.id, channel.next - 1)
        assert cause(found) == "message-too-large"
        assert one_by_one(found[:-1]) == sorted(event for _, event in said)


@pytest.mark.parametrize("why", ["message-after-close", "channel-after-shutdown", "too-many-channels"])
def test_first_violation_among_gathered_messages_is_reported(why: str) -> None:
    """Messages before the violation are reported, on any channel, and none behind it."""

    def one(channel: int, payload: bytes) -> bytes:
        return Message(channels=(channel,), parts=(payload,)).serialize(1)

    first = {
        "message-after-close": one(4, b"-") + Operation(kind=Op.CLOSE, channels=(4,)).serialize(1),
        "channel-after-shutdown": one(3, b"-") + bytes([0x80]) + bytes(7),
        "too-many-channels": one(3, b"-") + one(5, b"-"),
    }[why]
    data = first + one(3, b"a") + one(3, b"b") + one(4, b"c") + one(3, b"d")
    expected: Any = None
    for chunks in every_chunking(data):
        limits = LinkLimits(channels=2)
        found = feed(listener(link=Link(PLAIN, False, 5, 6, limits, durable=True, kept=False), channels=2), chunks)
        assert cause(found) == why
        plainly = one_by_one(found[:-1])
        assert [one for one in plainly if isinstance(one, tuple) and one[0] == 3][-1][2] == (b"b",)
        expected = expected or plainly
        assert plainly == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (RESUME.serialize(), "resume-unexpected"),
        (COMMIT, None),
        (MESSAGE + COMMIT + COMMIT, "operation-on-unreceived"),
        (MESSAGE + Operation(kind=Op.CLOSE, channels=(3,)).serialize(1) + MESSAGE, "message-after-close"),
        (bytes([0x80]) + bytes(7) + MESSAGE, "channel-after-shutdown"),
        (b"\x1d" + bytes(7), "format-unknown"),
    ],
)
def test_nothing_is_decoded_behind_a_violation(data: bytes, expected: str | None) -> None:
    for chunks in every_chunking(data):
        session = listener()
        found = feed(session, chunks)
        if expected is None:
            assert found == [], "the channel stays unknown"
            uncommitted = Acknowledgement(kind=Ack.UNCOMMITTED, channels=(3,)).serialize(1)
            assert session.data_to_send()[-1] == uncommitted
            continue
        assert cause(found) == expected
        assert session.receive_data(MESSAGE) == []
        assert session.link is not None
        assert session.link.attached, "the owner can still acknowledge what came before"
        session.fenced()
        assert not session.link.attached
        assert session.data_to_send() == []


def test_unsolicited_pong_is_ignored() -> None:
    session = listener()
    assert session.receive_data(PONG.serialize() * 3) == []
    assert session.link is not None
    assert session.link.ping() == 1
    assert session.link.pongs == 0, "the pong of this ping has not arrived"
    session.receive_data(PONG.serialize() + MESSAGE)
    assert session.link.pongs == 1


def test_end_of_transport_keeps_the_link() -> None:
    session = listener()
    session.receive_data(MESSAGE + MESSAGE[:5])
    assert session.receive_eof() == []
    assert session.link is not None
    assert not session.link.over
    assert not session.link.attached
    assert session.receive_data(MESSAGE) == []


def test_incomplete_packet_is_dropped_with_the_connection() -> None:
    session = listener()
    session.receive_data(MESSAGE[:5])
    assert (session.expected, session.buffered) == (8, 5)
    assert session.fenced() == []
    assert (session.expected, session.buffered, session.more) == (0, 0, False)


def test_a_connection_that_fails_before_it_is_linked_detaches_no_link() -> None:
    held = listener()
    assert held.link is not None
    early = ListenerSession(LinkLimits())
    early.link = held.link
    early.fenced()
    assert held.link.attached


def test_packets_behind_the_end_of_a_link_are_ignored() -> None:
    session = listener()
    assert session.link is not None
    session.link.shutdown()
    assert session.receive_data(SHUTDOWN.serialize() + MESSAGE) == [events.PeerShutdown(), events.Ended()]
    assert session.receive_data(MESSAGE) == []


def test_messages_before_the_peers_resume_are_accepted() -> None:
    session = listener(resumed=True)
    assert session.receive_data(MESSAGE + COMMIT) != []
    assert session.receive_data(RESUME.serialize()) == [events.Resumed()]
    assert cause(session.receive_data(RESUME.serialize())) == "resume-unexpected"


def test_too_many_bytes_before_the_reply_are_refused() -> None:
    session = ListenerSession(LinkLimits(early=10))
    session.receive_data(pack_version(0) + Hello(terms=TERMS).serialize() + bytes(10))
    assert session.expected == 0
    assert cause(session.receive_data(b"\0")) == "too-early"


def test_packets_are_held_back_while_the_backlog_is_full() -> None:
    session = listener(backlog=2)
    link = session.link
    assert link is not None
    data = (MESSAGE + COMMIT) * 5
    assert len(session.receive_data(data)) == 2
    assert session.waiting
    assert session.expected == 0
    assert session.receive_data(b"") == []
    link.consume(3, 0, Ack.COMMITTED)
    assert len(session.receive_data(b"")) == 1
    link.consume(3, 2, Ack.COMMITTED)
    assert len(session.receive_data(b"")) == 2
    assert not session.waiting


# Random schedules over real bytes: see tests/verification/torture/relink_schedules.py.


@pytest.mark.parametrize("losses", [False, True])
def test_random_schedules_violate_no_rule(torture: Any, losses: bool) -> None:
    world, rules = torture("relink_world"), torture("relink_rules")
    ran: Counter[str] = Counter()
    with rules.without("letter") as broken:
        for seed in range(300):
            schedule = world.run(seed, broken, losses)
            ran.update({name: getattr(schedule, name) for name in world.COUNTED})
    assert world.missed(ran, losses) == [], "these never happened, so the schedules prove nothing about them"


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["rollback-resend", "fence", "retention", "order", "barrier", "explicit", "forgotten"])
def test_random_schedules_detect_the_removal_of_each_rule(torture: Any, rule: str) -> None:
    world, rules = torture("relink_world"), torture("relink_rules")
    with rules.without(rule) as broken:
        for seed in range(1_000):
            try:
                world.run(seed, broken)
            except world.Violation:
                return
    pytest.fail(f"no schedule needs the rule {rule}")
