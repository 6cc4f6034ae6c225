"""Violations of the protocol, each behind good packets: those take effect and are acknowledged, then the link ends.

A table of every violation that a publisher, a subscriber or a listener can commit; each is tried in every chunking.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack
from typing import Any

import pytest

from fyrehose.protocols.relink import channels, events
from fyrehose.protocols.relink.events import MessageOutcome, UnknownOutcome
from fyrehose.protocols.relink.frames import RESUME, SHUTDOWN, Ack, Acknowledgement, Message, Op, Operation
from fyrehose.protocols.relink.link import LinkLimits
from fyrehose.protocols.relink.settings import RelinkSettings

#: Violations that are values of the first byte of a packet which must not be sent.
UNUSED = [
    *((kind << 5, "general-unknown") for kind in (5, 6, 7)),
    *((1 | form << 2, "format-unknown") for form in (5, 6, 7)),
    *((1 | kind << 5, "operation-unknown") for kind in range(3, 8)),
    *((1 | 2 << 2 | kind << 5, "operation-unknown") for kind in range(2, 8)),
    *((1 | 1 << 2 | kind << 5, "acknowledgement-unknown") for kind in range(5, 8)),
    *((1 | 3 << 2 | kind << 5, "acknowledgement-unknown") for kind in range(4, 8)),
]


def message(channel: int, payload: bytes = b"x") -> bytes:
    return Message(channels=(channel,), parts=(payload,)).serialize(1)


def operation(kind: Op, channel: int, number: int | None = None) -> bytes:
    return Operation(kind=kind, channels=(channel,), number=number).serialize(1)


def acknowledgement(kind: Ack, number: int | None = None) -> bytes:
    return Acknowledgement(kind=kind, channels=(0,), number=number).serialize(0)


#: Violations of any connector: their bytes, and the reason that is counted.
BY_ANYBODY = [
    *((bytes([first]) + bytes(7), cause) for first, cause in UNUSED),
    (RESUME.serialize(), "resume-unexpected"),
    (pack("<BBxxI", 0x13, 1, 1_025), "too-many-targets"),
    (pack("<BBxxI", 0x13, 1, (1 << 32) - 1), "too-many-targets"),
    (pack("<BBxxI", 0x03, 0, 1_025), "too-many-targets"),
    (pack("<BBBxI", 0x31, 0, 0, 1_025), "too-many-parts"),
    (pack("<BBBxI", 0x31, 0, 0, (1 << 32) - 1), "too-many-parts"),
    (pack("<BBB5xQ", 0x51, 1, 0, (16 << 20) + 8), "message-too-large"),
    (pack("<BBB5xQ", 0x51, 1, 0, (1 << 64) - 1), "message-too-large"),
    (pack("<BBB5xQQ", 0x51, 2, 0, 1 << 63, 1 << 63), "message-too-large"),
    (operation(Op.CLOSE, 1) + SHUTDOWN.serialize() + message(9), "channel-after-shutdown"),
    (b"".join(message(channel) for channel in range(2, 5)), "too-many-channels"),
]
#: Violations of a publisher on plain channels, and of one in transactions.
BY_PLAIN = [
    *BY_ANYBODY,
    (operation(Op.CLOSE, 0) + message(0), "message-after-close"),
    *(
        (operation(op, 0, number), "operation-not-transactional")
        for op in (Op.COMMIT, Op.ROLLBACK)
        for number in (None, 2)
    ),
]
BY_TRANSACTIONAL = [
    *BY_ANYBODY,
    (operation(Op.CLOSE, 0) + message(0), "message-after-close"),
    *(
        (operation(op, 0, number), "operation-on-unreceived")
        for op in (Op.COMMIT, Op.ROLLBACK)
        for number in (None, 3, 99)
    ),
    (message(0) * 40, "backlog-too-large"),
]
#: Violations of a subscriber, whose channel ids have no bytes.
BY_SUBSCRIBER = [
    *((data, cause) for data, cause in BY_ANYBODY if "channel" not in cause),
    (message(0), "message-to-subscription"),
    *((acknowledgement(kind, 7), "acknowledged-unsent") for kind in (Ack.RECEIVED, Ack.CONSUMED)),
    *(
        (acknowledgement(kind, number), "result-not-transactional")
        for kind in (Ack.COMMITTED, Ack.UNCOMMITTED)
        for number in (None, 4)
    ),
]


def chunkings(data: bytes) -> Iterator[list[bytes]]:
    """Yield *data* whole, cut once at every fourth byte, and byte by byte; large data only whole."""
    yield [data]
    if len(data) < 200:
        yield from ([data[:cut], data[cut:]] for cut in range(2, len(data), 3))
        yield [data[at : at + 1] for at in range(len(data))]


def named(violations: list[tuple[bytes, str]]) -> Any:
    """Return *violations* as parameters, each with its own name."""
    return pytest.mark.parametrize(
        ("data", "cause"), [pytest.param(*each, id=f"{each[1]}-{number}") for number, each in enumerate(violations)]
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the limits small that take thousands of packets otherwise."""
    limits = LinkLimits(channels=3, backlog=8, result_runs=5, window=5)
    monkeypatch.setattr(RelinkSettings, "limits", property(lambda self: limits))
    monkeypatch.setattr(channels, "MAX_WINDOW", 20)


def violate(
    make_server: Any, good: bytes, bad: bytes, auto: bool, chunks: list[bytes], **terms: Any
) -> tuple[Any, Any]:
    """Send *good* and *bad*, cut into *chunks*; return the server, and the peer with everything that it received."""
    server = make_server(auto=auto)
    peer = server.linked_durably(**terms)
    for sent in (b"0", b"1", b"2"):
        peer.link.send((0,), (sent,))
        if terms:
            peer.link.decide(0, Op.COMMIT)
    peer.session.data_to_send()  # The same packets are in *good*, and cut there.
    for chunk in chunks:
        peer.protocol.dataReceived(chunk)
        server.clock.advance(0)
    for _ in range(3):  # Only now are the messages durable, and what waited for them is decoded.
        server.journal.commit()
        server.clock.advance(0)
    peer.events += peer.session.receive_data(peer.transport.value())
    peer.transport.clear()
    return server, peer


def expect_end(server: Any, peer: Any, cause: str) -> None:
    """Check that the violation was counted, and that connection and link have ended."""
    assert server.count(cause) == 1
    assert peer.closed
    assert not server.registry.entries
    again = peer.reconnect()
    server.journal.commit()
    again.talk()
    assert again.events[0].lost is peer.link, "the peer gets a new link"


@pytest.mark.parametrize("auto", [True, False], ids=["at-once", "later"])
@named(BY_PLAIN)
@pytest.mark.usefixtures("small")
def test_messages_without_transaction_before_a_violation_are_acknowledged(
    make_server: Any, data: bytes, cause: str, auto: bool
) -> None:
    good = b"".join(message(0, payload) for payload in (b"0", b"1", b"2"))
    for chunks in chunkings(good + data):
        server, peer = violate(make_server, good, data, auto, chunks)
        assert server.payloads()[:3] == [b"0", b"1", b"2"]
        assert peer.link.sending[0].base == 3, "all three are consumed"
        expect_end(server, peer, cause)


@pytest.mark.parametrize("auto", [True, False], ids=["at-once", "later"])
@named(BY_TRANSACTIONAL)
@pytest.mark.usefixtures("small")
def test_transactions_before_a_violation_are_acknowledged(
    make_server: Any, data: bytes, cause: str, auto: bool
) -> None:
    good = b"".join(message(0, payload) + operation(Op.COMMIT, 0) for payload in (b"0", b"1", b"2"))
    for chunks in chunkings(good + data):
        server, peer = violate(make_server, good, data, auto, chunks, connector_transactions=True)
        assert server.payloads()[:3] == [b"0", b"1", b"2"]
        results = [event.result for event in peer.events if isinstance(event, events.Resulted)]
        assert set(results) == {Ack.COMMITTED}
        assert peer.link.sending[0].base == 3
        expect_end(server, peer, cause)


@pytest.mark.usefixtures("small")
def test_results_before_one_too_many_are_acknowledged(make_server: Any) -> None:
    server = make_server()
    peer = server.linked(connector_transactions=True)
    for number in range(20):
        peer.link.send((0,), (b"%d" % number,))
        peer.link.decide(0, Op.ROLLBACK if number % 2 else Op.COMMIT)
    peer.say(b"".join(peer.session.data_to_send()))
    for _ in range(3):  # Eight messages are decoded, and their results counted, at a time.
        server.clock.advance(0)
    peer.events += peer.session.receive_data(peer.transport.value())
    results = [event for event in peer.events if isinstance(event, events.Resulted)]
    assert len(results) == len(server.payloads()) == 8
    expect_end(server, peer, "results-unconfirmed")


@named(BY_SUBSCRIBER)
def test_acknowledgements_before_a_violation_move_the_position(make_server: Any, data: bytes, cause: str) -> None:
    good = acknowledgement(Ack.CONSUMED, 2)
    for chunks in chunkings(good + data):
        server = make_server()
        server.publish("s", b"1", b"2", b"3", b"4", b"5")
        peer = server.linked("subscribe:s@0?name=n")
        for chunk in chunks:
            peer.say(chunk)
            server.clock.advance(0)
        assert server.broker.named.find("n").seq == 3
        expect_end(server, peer, cause)


#: Violations of a listener, for a client in transactions.
BY_LISTENER = [
    *((bytes([first]) + bytes(7), cause) for first, cause in UNUSED),
    (RESUME.serialize(), "resume-unexpected"),
    (Acknowledgement(kind=Ack.CONSUMED, channels=(0,), number=99).serialize(4), "acknowledged-unsent"),
    (Acknowledgement(kind=Ack.CONSUMED, channels=(0,), number=1).serialize(4), "consumed-before-result"),
    (Acknowledgement(kind=Ack.COMMITTED, channels=(0,), number=2).serialize(4), "result-unasked"),
    (
        Acknowledgement(kind=Ack.COMMITTED, channels=(0,), number=1).serialize(4)
        + Acknowledgement(kind=Ack.CONSUMED, channels=(0,), number=2).serialize(4),
        "consumed-undecided",
    ),
]


@named(BY_LISTENER)
def test_acknowledgements_before_a_violation_by_the_listener_take_effect(
    make_client: Any, make_wire: Any, data: bytes, cause: str
) -> None:
    committed = b"".join(
        Acknowledgement(kind=kind, channels=(0,), number=0).serialize(4) for kind in (Ack.COMMITTED, Ack.CONSUMED)
    )
    for chunks in chunkings(committed + data):
        lost: list[Any] = []
        client, wire = make_client(transactional=True, on_lost=lost.extend)
        outcomes: list[list[Any]] = [[], []]
        for number in range(2):
            transaction = client.transaction().begin().result
            transaction.send(b"%d" % number)
            transaction.commit().addBoth(outcomes[number].append)
        client.transaction().begin().result.send(b"undecided")
        wire.server.clock.advance(0)
        for chunk in chunks:
            wire.near.dataReceived(chunk)
        assert outcomes[0] == [None]
        if cause != "consumed-undecided":
            assert outcomes[1][0].check(UnknownOutcome)
            assert [(one.parts, one.outcome) for one in lost] == [
                ((b"1",), MessageOutcome.UNKNOWN),
                ((b"undecided",), MessageOutcome.NOT_PROCESSED),
            ]
        assert wire.near.transport.aborted or wire.near.transport.disconnecting


def test_client_acknowledges_messages_before_a_violation_by_the_listener(make_client: Any) -> None:
    taken: list[bytes] = []
    _, wire = make_client("subscribe:s", on_message=lambda channel, number, parts: taken.append(parts[0]))
    wire.near.transport.clear()
    wire.near.dataReceived(Message(channels=(0,), parts=(b"one",)).serialize(4) + b"\xa0" + bytes(7))
    assert taken == [b"one"]
    assert Acknowledgement(kind=Ack.CONSUMED, channels=(0,)).serialize(4) in wire.near.transport.value()
    assert wire.near.transport.disconnecting


@pytest.mark.parametrize("transactional", [False, True])
def test_a_client_that_sends_the_lost_messages_again_doubles_none(
    make_client: Any, make_server: Any, transactional: bool
) -> None:
    """Three good messages and a violation in one write: the first three are known to be stored."""
    server = make_server(max_payload="64")
    lost: list[Any] = []
    client, wire = make_client(server=server, on_lost=lost.extend, transactional=transactional)
    outcomes: list[Any] = []
    for payload in (b"1", b"2", b"3", b"x" * 100):
        if transactional:
            transaction = client.transaction().begin().result
            transaction.send(payload)
            done = transaction.commit()
        else:
            done = client.send(payload)
        done.addBoth(outcomes.append)
    wire.pump()
    wire.reconnect()
    assert outcomes[:3] == [None] * 3
    assert outcomes[3].check(UnknownOutcome)
    assert [(one.parts, one.outcome) for one in lost] == [((b"x" * 100,), MessageOutcome.UNKNOWN)]
    assert server.payloads() == [b"1", b"2", b"3"]


def test_link_ends_although_its_connection_is_lost_before_the_messages_are_durable(make_server: Any) -> None:
    server = make_server(auto=False)
    peer = server.linked_durably()
    peer.say(message(0) + b"\xa0" + bytes(7))
    assert not peer.closed
    peer.leave()
    server.journal.commit()
    assert server.payloads() == [b"x"]
    assert not server.registry.entries


def test_link_that_is_ending_cannot_be_resumed(make_server: Any) -> None:
    server = make_server(auto=False)
    peer = server.linked_durably()
    peer.say(message(0) + b"\xa0" + bytes(7))
    again = server.linked_durably(old=peer.link)
    assert again.link.id != peer.link.id
    assert not again.closed
    assert server.payloads() == [b"x"]
