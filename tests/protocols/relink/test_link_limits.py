"""The limits, and the threats that they address: a server with its defaults, and raw bytes.

Violations are a table in test_violations.py; the handshake, and links that come and go, are tested in test_server.py.
"""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest

from fyrehose.protocols.relink.frames import (
    PING,
    Ack,
    Acknowledgement,
    Message,
    Op,
    Operation,
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
    assert (limits.results, limits.result_runs) == (256, 4_096)
    settings = RelinkSettings()
    assert (settings.max_links, RelinkSettings(max_connections=20_000).max_links) == (10_000, 20_000)
    assert (settings.retention, settings.unused_retention, settings.handshake_timeout) == (300.0, 10.0, 10.0)
    assert (settings.ping_after, settings.drop_after) == (15.0, 45.0)


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
