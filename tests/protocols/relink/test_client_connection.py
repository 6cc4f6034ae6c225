"""A client's connection: its timers, and a listener that violates the protocol."""

from __future__ import annotations

from typing import Any

from fyrehose.protocols.relink.frames import PING
from fyrehose.protocols.relink.link import LinkLimits


def test_silent_listener_is_pinged_then_dropped(make_client: Any) -> None:
    client, wire = make_client()
    wire.near.transport.clear()
    wire.server.clock.pump([1.0] * 15)
    assert wire.near.transport.value() == PING.serialize()
    wire.server.clock.pump([1.0] * 29)
    assert not wire.near.transport.aborted
    wire.server.clock.pump([1.0] * 2)
    assert wire.near.transport.aborted
    assert client.link is not None
    assert not client.link.over


def test_slow_handshake_times_out(make_client: Any, make_server: Any) -> None:
    server = make_server(auto=False)
    _, wire = make_client(server=server)
    server.clock.pump([1.0] * 9)
    assert not wire.near.transport.aborted
    server.clock.pump([1.0] * 2)
    assert wire.near.transport.aborted
    server.journal.auto = True
    server.journal.commit()


def test_paused_client_stops_reading(make_client: Any) -> None:
    got: list[bytes] = []
    client, wire = make_client(
        "subscribe:s@0", on_message=lambda channel, seq, parts: got.append(parts[0]), limits=LinkLimits(backlog=2)
    )
    client.pause()
    wire.server.publish("s", *(b"%d" % i for i in range(6)))
    wire.pump()
    assert wire.near.transport.producerState == "paused"
    client.resume()
    wire.pump()
    assert wire.near.transport.producerState == "producing"
    assert got == [b"%d" % i for i in range(6)]


def test_protocol_violation_of_the_listener_loses_the_link(make_client: Any) -> None:
    lost: list[Any] = []
    client, wire = make_client(on_lost=lost.append)
    first = client.link
    wire.near.dataReceived(bytes([0xA0]) + bytes(7))
    assert wire.near.transport.disconnecting
    wire.pump()
    wire.reconnect()
    assert first.over
    assert len(lost) == 1
    assert client.link is not first
