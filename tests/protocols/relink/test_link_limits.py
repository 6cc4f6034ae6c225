"""The limits, and the threats that they address: a server with its defaults, and raw bytes.

One test for each row of the table in docs/security.md, "Relink".  The details of a row -
all headers, all pairs of id sizes, every unused bit - are tested with the module that checks them.
"""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest

from fyrehose.protocols.relink import events
from fyrehose.protocols.relink.frames import (
    PING,
    Ack,
    Acknowledgement,
    Hello,
    Message,
    Op,
    Operation,
    Terms,
    pack_version,
)
from fyrehose.protocols.relink.link import LinkLimits
from fyrehose.protocols.relink.settings import RelinkSettings
from fyrehose.records import Run


def message(channel: int = 0, size: int = 2, parts: tuple[bytes, ...] = (b"x",)) -> bytes:
    return Message(channels=(channel,), parts=parts).serialize(size)


def test_default_limits_have_the_documented_values() -> None:
    limits = LinkLimits()
    assert (limits.targets, limits.parts, limits.sent_size) == (1_024, 1_024, 16 << 20)
    assert limits.message_size == RelinkSettings().limits.message_size == 16 << 20
    assert RelinkSettings().limits.sent_size == (16 << 20) + 64, "the largest record, with its number"
    assert (limits.channels, limits.backlog, limits.backlog_size, limits.window) == (4_096, 1_024, 16 << 20, 1_024)
    assert limits.results == 256
    settings = RelinkSettings()
    assert (settings.max_links, RelinkSettings(max_connections=20_000).max_links) == (10_000, 20_000)
    assert (settings.retention, settings.unused_retention, settings.handshake_timeout) == (300.0, 10.0, 10.0)
    assert (settings.ping_after, settings.drop_after) == (15.0, 45.0)


@pytest.mark.parametrize(
    ("header", "cause"),
    [
        (pack("<BBxxI", 0x13, 1, (1 << 32) - 1), "too-many-targets"),
        (pack("<BBxxI", 0x13, 1, 1_025), "too-many-targets"),
        (pack("<BBHI", 0x31, 0, 0, (1 << 32) - 1), "too-many-parts"),
        (pack("<BBH4xQ", 0x51, 1, 0, (1 << 64) - 1), "message-too-large"),
        (pack("<BBH4xQQ", 0x51, 2, 0, 1 << 63, 1 << 63), "message-too-large"),
    ],
)
def test_threat_packets_with_counts_or_sizes_above_the_limits_are_refused(
    make_server: Any, header: bytes, cause: str
) -> None:
    """Multicast count 2^32-1; parts 2^32-1; size 2^64-1; sizes whose sum wraps: refused by the header alone."""
    server = make_server()
    peer = server.linked(connector_size=2)
    peer.say(header)
    assert peer.closed
    assert server.count(cause) == 1
    assert not server.registry.entries


def test_threat_multicast_payload_is_held_once(make_server: Any) -> None:
    """A multicast's payload is held once, whatever the number of channels; without channels it is not held."""
    server = make_server(auto=False)
    peer = server.linked_durably(connector_size=2)
    peer.say(Message(channels=(), parts=(b"x" * 60_000,), multicast=True).serialize(2))
    (entry,) = server.registry.entries.values()
    assert not entry.link.receiving
    peer.say(Message(channels=tuple(range(1_024)), parts=(b"x" * 60_000,), multicast=True).serialize(2))
    assert len(entry.link.receiving) == 1_024
    assert not entry.link.blocked, "the payload is not charged to each channel, which would be 60 MB"


@pytest.mark.parametrize("sizes", [(3, 0), (0, 5), (9, 9), (255, 1), (6, 8)])
def test_threat_invalid_channel_id_sizes_are_refused(make_server: Any, sizes: tuple[int, int]) -> None:
    """The server refuses channel ids of 3, 5 to 7 and 9 to 255 bytes."""
    peer = make_server().connect()
    peer.session.data_to_send()
    peer.say(pack_version(0) + bytes([1, ord("n"), *sizes, 0]))
    assert peer.closed


def test_threat_peer_that_opens_too_many_channels_loses_its_link(make_server: Any) -> None:
    """The 4,097th channel ends the link; messages before it in the same read are written."""
    server = make_server()
    peer = server.linked(connector_size=2)
    peer.say(b"".join(message(channel) for channel in range(4_096)))
    assert not peer.closed
    peer.say(message(4_096))
    server.clock.advance(0)  # the packets are handled in turns
    assert peer.closed
    assert server.count("too-many-channels") == 1
    assert len(server.payloads()) == 4_096


@pytest.mark.parametrize("channels", [1, 3])
def test_threat_full_backlog_stops_reading(make_server: Any, channels: int) -> None:
    """While the journal commits nothing, reading stops at 1,024 messages of a channel."""
    server = make_server(auto=False)
    peer = server.linked_durably(connector_size=2)
    peer.say(b"".join(message(number % channels) for number in range(3_000 * channels)))
    (entry,) = server.registry.entries.values()
    assert entry.link.blocked
    assert max(channel.waiting for channel in entry.link.receiving.values()) == 1_024
    assert not peer.closed
    for _ in range(4):
        server.journal.commit()
        server.clock.advance(0)
    assert len(server.payloads()) == 3_000 * channels


def test_threat_full_backlog_size_stops_reading(make_server: Any) -> None:
    """While the journal commits nothing, reading stops at 16 MiB of a link."""
    server = make_server(auto=False)
    peer = server.linked_durably(connector_size=2)
    for number in range(40):
        peer.say(message(number, parts=(b"x" * (1 << 20),)))
    (entry,) = server.registry.entries.values()
    assert entry.link.blocked
    assert len(entry.link.receiving) == 16


@pytest.mark.parametrize(("messages", "result"), [(2_047, "COMMITTED"), (2_048, "COMMITTED"), (2_049, "UNCOMMITTED")])
def test_threat_undecided_messages_of_a_channel_are_bounded(make_server: Any, messages: int, result: str) -> None:
    """Undecided messages cannot block reading: beyond twice the backlog they are not kept, and their commit fails."""
    server = make_server()
    peer = server.linked(connector_size=2, connector_transactions=True)
    commit = Operation(kind=Op.COMMIT, channels=(0,), number=messages - 1).serialize(2)
    peer.link.send((1,), (b"on another channel",))
    peer.link.decide(1, Op.COMMIT)
    peer.talk()
    (entry,) = server.registry.entries.values()
    peer.say(message() * messages)
    assert entry.link.undecided <= 2_048 * 65
    peer.transport.clear()
    peer.say(commit)
    said = Acknowledgement(kind=Ack[result], channels=(0,), number=messages - 1).serialize(2)
    assert peer.transport.value().startswith(said)
    assert len(server.payloads()) == 1 + (messages if result == "COMMITTED" else 0)
    assert server.count("transactions-too-large") == (result == "UNCOMMITTED")
    assert entry.link.undecided == 0
    peer.say(message() + Operation(kind=Op.COMMIT, channels=(0,), number=messages).serialize(2))
    assert server.payloads()[-1] == b"x"
    assert not peer.closed


def test_threat_undecided_messages_of_many_links_take_little_memory(make_server: Any) -> None:
    """Beyond the memory limit the address that holds the most loses messages, whether it is connected or not."""
    server = make_server(link_memory=1 << 20)
    honest = server.linked(connector_size=2, connector_transactions=True, host="10.0.0.1")
    honest.say(message(parts=(b"x" * 50_000,)))
    greedy = [server.linked(connector_size=2, connector_transactions=True, host="10.0.0.2") for _ in range(8)]
    for peer in greedy:
        for _ in range(10):
            peer.say(message(parts=(b"x" * 50_000,)))
        peer.leave()
    links = [entry.link for entry in server.registry.entries.values()]
    taken = sum(2_048 * len(link.receiving) + link.undecided for link in links)
    assert server.registry.memory.used == taken <= 1 << 20
    assert len(server.registry.entries) == 9, "no link is lost"
    honest.say(Operation(kind=Op.COMMIT, channels=(0,), number=0).serialize(2))
    assert server.payloads() == [b"x" * 50_000]


def test_threat_links_with_many_channels_are_bounded(make_server: Any) -> None:
    """If channels take the memory, which cannot be released, the oldest links of that address are lost."""
    server = make_server(link_memory=100 * 2_048)
    honest = server.linked(connector_size=2, host="10.0.0.1")
    honest.say(b"".join(message(channel) for channel in range(40)))
    for _ in range(4):
        greedy = server.linked(connector_size=2, host="10.0.0.2")
        greedy.say(b"".join(message(channel) for channel in range(50)))
    assert server.registry.memory.used <= 100 * 2_048
    assert server.count("links-too-large") >= 1
    assert not honest.closed
    honest.leave()
    assert server.linked(old=honest.link, host="10.0.0.1").events[0].resumed


def test_threat_guessed_or_foreign_link_cannot_be_resumed(make_server: Any) -> None:
    """Link ids are random; a link is bound to its name, sizes and identity; a peer that guesses gets a new link."""
    server = make_server()
    victim = server.linked()
    for guess in (0, *range(1_000, 1_011)):
        # The first id is right, but the attacker does not know the size of the channel ids.
        hello = Hello(terms=Terms(endpoint="publish:s"), epoch=victim.link.epoch, link_id=victim.link.id + guess)
        thief = server.linked(hello=hello, host="10.0.0.9")
        assert thief.link.id != victim.link.id
    assert (server.count("resumes-mismatched"), server.count("links-unknown")) == (1, 11)
    victim.leave()
    assert server.linked(old=victim.link).events[0].resumed


def test_threat_half_open_connection_is_closed_before_its_link_is_resumed(make_server: Any) -> None:
    """The old connection is fenced before the new one gets a reply."""
    server = make_server()
    peer = server.linked(connector_size=2)
    peer.session.receive_eof()
    again = server.linked(old=peer.link)
    peer.protocol.dataReceived(message())
    assert peer.transport.aborted
    assert again.events[0].resumed
    assert server.payloads() == []


def test_threat_flood_of_links_displaces_only_links_of_its_own_address(make_server: Any) -> None:
    """A flood of handshakes displaces the oldest links of its own address, and all expire after 10 s."""
    server = make_server(max_links=100)
    honest = server.linked(host="10.0.0.1")
    honest.say(message(size=1))
    honest.leave()
    for _ in range(500):
        server.linked().leave()
    assert len(server.registry.entries) == 100
    server.clock.advance(10)
    assert len(server.registry.entries) == 1
    assert server.linked(old=honest.link, host="10.0.0.1").events[0].resumed


@pytest.mark.parametrize(
    ("name", "said", "cause"),
    [
        (
            "subscribe:s",
            Acknowledgement(kind=Ack.CONSUMED, channels=(0,), number=0).serialize(0),
            "acknowledged-unsent",
        ),
        ("publish:s", bytes([0x60]) + bytes(7), "resume-unexpected"),
        ("publish:s", message() + Operation(kind=Op.COMMIT, channels=(0,), number=1).serialize(2), "operation-on-unre"),
        ("publish:plain", message() + Operation(kind=Op.COMMIT, channels=(0,)).serialize(2), "operation-not-trans"),
        ("publish:s", bytes([0xA0]) + bytes(7), "general-unknown"),
        ("publish:s", b"\x1d" + bytes(7), "format-unknown"),
    ],
)
def test_threat_protocol_violation_ends_the_link(make_server: Any, name: str, said: bytes, cause: str) -> None:
    """Acknowledgements of unsent messages, a second resume, invalid operations, unused enumeration values."""
    server = make_server()
    transactional = name == "publish:s"
    peer = server.linked(name, connector_size=2, connector_transactions=transactional)
    peer.say(said)
    assert peer.closed
    assert not server.registry.entries, "the link is lost, too"
    assert [key for key in server.broker.counters.counts if key[1].startswith(cause)]


def test_threat_any_version_is_answered_with_version_0(make_server: Any) -> None:
    """The reply to any version is version 0."""
    server = make_server()
    for version in range(256):
        peer = server.connect()
        peer.session.data_to_send()
        peer.say(pack_version(version))
        assert peer.transport.value() == bytes(8)
        peer.leave()


def test_threat_peer_that_floods_pings_without_reading_pongs_is_closed(make_server: Any) -> None:
    """Reading stops while the peer does not read the pongs; at 1 MiB of pongs the connection is closed."""
    server = make_server()
    peer = server.linked()
    peer.say(PING.serialize() * 5_000)
    assert len(peer.transport.value()) == 8 * 5_000
    peer.protocol.pauseProducing()
    assert peer.transport.producerState == "paused"
    for _ in range(40):
        peer.say(PING.serialize() * 5_000)
    assert peer.closed
    assert len(peer.transport.value()) < 3 << 20


@pytest.mark.parametrize("name", [b"\xff", b"publish", b"subscribe:", b"other:s"])
def test_threat_connection_for_an_unknown_endpoint_is_closed_without_a_reply(make_server: Any, name: bytes) -> None:
    """A connection with an unknown endpoint name, or one that is not UTF-8, is closed without a reply."""
    server = make_server()
    peer = server.connect()
    peer.session.data_to_send()
    head = bytes([len(name)]) + name + bytes(3)
    peer.say(pack_version(0) + head + bytes(-len(head) % 8) + bytes(16))
    assert peer.closed
    assert peer.transport.value() == bytes(8), "only the version was sent"


def test_threat_slow_handshake_and_silent_peer_time_out(make_server: Any) -> None:
    """A handshake may take 10 s; a silent peer is pinged after 15 s, and dropped after 45 s."""
    server = make_server()
    slow = server.connect()
    slow.say(pack_version(0))
    server.clock.advance(10)
    assert slow.closed
    silent = server.linked()
    server.clock.pump([1.0] * 45)
    assert silent.transport.aborted


def test_threat_peer_that_never_pongs_loses_its_link(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are kept until a ping is answered, up to a number of runs: 4,096 by default, 50 here."""
    assert LinkLimits().result_runs == 4_096
    monkeypatch.setattr(RelinkSettings, "limits", property(lambda settings: LinkLimits(result_runs=50)))
    server = make_server()
    server.broker.restrict("s", 3)
    peer = server.linked(connector_size=2, connector_transactions=True)
    commit = Operation(kind=Op.COMMIT, channels=(0,)).serialize(2)
    pair = message() + commit + message(parts=(b"too large",)) + commit
    for _ in range(30):
        peer.say(pair)
        server.clock.advance(0)
        if peer.closed:
            break
    assert server.count("results-unconfirmed") == 1
    assert not [event for event in peer.events if isinstance(event, events.Resulted)]


@pytest.mark.parametrize(
    ("size", "closed"),
    [
        (RelinkSettings().max_payload - 8, False),
        (RelinkSettings().max_payload - 1, False),
        (RelinkSettings().max_payload, False),
        (RelinkSettings().max_payload + 1, True),
    ],
)
def test_message_size_limit_is_inclusive(make_server: Any, size: int, *, closed: bool) -> None:
    """The server refuses a message by the sizes in its header, which include padding."""
    server = make_server()
    peer = server.linked(connector_size=2)
    peer.say(pack("<BBH4xQ", 0x51, 1, 0, size))
    assert peer.closed is closed
    assert server.count("message-too-large") == closed


def test_subscriber_gets_at_most_a_window_of_messages(make_server: Any) -> None:
    server = make_server()
    server.broker.publish([Run.of("s", [b"x"] * (RelinkSettings().window + 1), source="test")])
    peer = server.linked("subscribe:s@0", listener_size=0)
    for _ in range(20):
        server.clock.advance(0)
        peer.talk()
    assert peer.link.receiving[0].next == RelinkSettings().window
    peer.link.consume(0, 0)
    for _ in range(20):
        peer.talk()
        server.clock.advance(0)
    assert peer.link.receiving[0].next == RelinkSettings().window + 1
