"""Fuzz the backbone with random datagrams: the sessions of server and client, and single frames.

Sessions receive datagrams of every type, alone and in GRO batches, some of them damaged, from several sources and at
random times.
"""

from __future__ import annotations

import struct
from random import Random

import harness

with harness.instrumented("fyrehose.protocols.backbone", "fyrehose.kernels.pure"):
    from fyrehose.errors import LocalProtocolError, RemoteProtocolError
    from fyrehose.identity import in_networks
    from fyrehose.options import networks
    from fyrehose.protocols.backbone import frames
    from fyrehose.protocols.backbone.gso_batches import serialize_delivers
    from fyrehose.protocols.backbone.session import (
        BackboneClientSession,
        BackboneOptions,
        BackboneServerSession,
        Dropped,
        PushConfirmed,
        Pushed,
        PushTimedOut,
        RecordsSkipped,
        Replay,
    )
    from fyrehose.protocols.backbone.settings import BackboneSettings
    from fyrehose.records import Run

SERVER = ("10.0.0.1", 2323)
SOURCES = (SERVER, ("10.0.0.2", 4000), ("10.0.0.2", 4001), ("10.0.0.3", 1))
SAID = (*SOURCES, ("0.0.0.0", 4000), ("224.0.0.1", 9), ("10.0.0.9", 0), ("255.255.255.255", 5))
LAST = (1 << 48) - 1
DELIVERS = serialize_delivers((Run.of("backbone", [bytes(91)] * 9, source="x").numbered(5, 0),)).trains


def datagram(dice: harness.Dice, tokens: list[bytes]) -> bytes:
    """Return a random datagram of any type; its numbers are often near each other or at an edge."""
    kind = dice.byte() % 10
    first = dice.number(48)
    last = min(first + dice.byte() % 20, LAST) if not dice.one_in(5) else dice.number(48)
    if kind < 4:
        made = frames.Deliver(seq=first, data=dice.blob()).serialize()
    elif kind < 6:
        made = frames.Push(data=dice.blob()).serialize()
    elif kind == 6:
        made = frames.Request(address=dice.choice(SAID), first=first, last=last).serialize()
    elif kind == 7:
        made = frames.Forward(address=dice.choice(SAID), first=first, last=last).serialize()
    elif kind == 8:
        flags = frames.Flags(dice.byte() % 4)
        made = frames.KeepAlive(address=dice.choice(SAID), flags=flags, token=dice.take(16).ljust(16)).serialize()
    else:
        token = dice.choice(tokens) if tokens else bytes(16)
        made = frames.KeepAliveAck(token=token).serialize()
    return dice.damaged(made)


def train(dice: harness.Dice, tokens: list[bytes]) -> tuple[bytes, int]:
    """Return a datagram, or several of one size and a shorter one joined as GRO does, and the common size."""
    first = datagram(dice, tokens)
    if not first or not dice.one_in(3):
        return first, max(len(first), 1)
    parts = [first]
    while dice and dice.byte() % 4:
        parts.append(datagram(dice, tokens)[: len(first)].ljust(len(first), b"\0"))
    return b"".join(parts) + first[: dice.below(len(first) % 256 + 1)], len(first)


def server(data: bytes) -> None:
    """Check server sessions with small and default limits: they raise nothing, and answer only known hosts."""
    serve(data, BackboneSettings(push_rate=50, subscribers=3), ())
    trusted = networks("10.0.0.2/32")
    serve(data, BackboneSettings(trusted=trusted), (frames.MAX_DATA, frames.MAX_SEQUENCES))


def make_session(settings: BackboneSettings) -> BackboneServerSession:
    """Return the session of a server that anybody may use."""
    return BackboneServerSession(
        settings, lambda: (5, LAST - 3), lambda address: address == SERVER, Random(1), lambda host, action: True
    )


def serve(data: bytes, settings: BackboneSettings, edges: tuple[int, ...]) -> None:
    dice = harness.Dice(data, edges)
    session = make_session(settings)
    now = 0.0
    heard: set[tuple[str, int]] = set()
    while dice:
        now += dice.choice((0, 0, 0.01, 0.2, 6))
        source = dice.choice(SOURCES)
        wire, segment = train(dice, [])
        for event in session.receive_datagrams(wire, segment, source, now):
            if isinstance(event, Pushed):
                sizes = struct.unpack(f"<{len(event.lengths) // 4}I", event.lengths)
                assert sum(sizes) == len(event.payload) <= len(wire)
                assert event.large <= len(sizes) <= settings.push_rate
            elif isinstance(event, Replay):
                assert event.destination[0] == source[0]
                assert 5 <= event.first <= event.last <= LAST - 3
                assert event.last - event.first < frames.MAX_SEQUENCES
            else:
                assert isinstance(event, Dropped)
                assert event.count > 0
        heard.add(source)
        for sent, (host, _) in session.data_to_send():
            assert sent.size <= 26
            assert any(host == known for known, _ in heard), "the server sends a datagram to a host that sent nothing"
        receivers = dict(session.subscribers.receivers(now))
        assert len(receivers) <= settings.subscribers
        assert SERVER not in receivers
        for address, client in receivers.items():
            before = client.credit
            trains = session.ration(client, DELIVERS, [(5, 13)])
            sent = sum(train.size for train in trains)
            assert sent == 9 * 100 if before is None else sent <= before
            assert client.held.sequences <= frames.MAX_SEQUENCES
            assert client.trusted == in_networks(address[0], settings.trusted)


def client(data: bytes) -> None:
    """Check that a client session delivers rising numbers, and settles each push once."""
    dice = harness.Dice(data)
    after = dice.choice((None, None, 0, 3))
    options = BackboneOptions(subscribe=not dice.one_in(9), store=dice.choice((0, 300)), window=3, retries=1)
    session = BackboneClientSession(SERVER, SOURCES[1], options, Random(1), 0.0, after)
    now, pushed, position = 0.0, 0, -1
    settled: set[int] = set()
    tokens: list[bytes] = []
    while dice:
        now += dice.choice((0, 0, 0.05, 0.6, 3))
        events = session.tick(now) if dice.one_in(3) else []
        if dice.one_in(6):
            try:
                session.push(dice.blob(), pushed)
                pushed += 1
            except LocalProtocolError:
                assert after is not None or not options.subscribe
        if dice.one_in(50):
            session.move(SERVER, dice.choice(SOURCES), now)
        wire, segment = train(dice, tokens)
        source = SERVER if not dice.one_in(5) else dice.choice(SOURCES)
        events += session.receive_datagrams(wire, segment, source, now)
        for event in events:
            if isinstance(event, Run):
                assert event.first_seq > position
                position = event.last_seq
            elif isinstance(event, RecordsSkipped):
                assert event.last >= event.first > position
                position = event.last
            elif isinstance(event, PushConfirmed | PushTimedOut):
                assert event.handle not in settled
                settled.add(event.handle)
        for sent, _ in session.data_to_send():
            tokens += [bytes(sent.data[-16:])] if len(sent.data) == 29 else []
        assert session.next_due(now) >= 0
    for event in session.abandon():
        assert event.handle not in settled  # type: ignore[union-attr]
        settled.add(event.handle)  # type: ignore[union-attr]
    assert settled == set(range(pushed))


def single(data: bytes) -> None:
    """Check that encoding a decoded frame yields an equal frame of the same length."""
    dice = harness.Dice(data)
    for wire in (data, datagram(dice, [])):
        try:
            frame = frames.decode(wire)
        except RemoteProtocolError:
            continue
        assert frames.decode(frame.serialize()) == frame
        assert len(frame.serialize()) == len(wire)


DECODERS = {"server": server, "client": client, "single": single}
