"""Fuzz Figg with random bytes: the sessions of both sides, and single frames.

Sessions receive frames of every type, some of them damaged, once whole and once in pieces, and must return the same
events.
"""

from __future__ import annotations

from typing import Any

import harness

with harness.instrumented("fyrehose.protocols.figg", "fyrehose.kernels.pure"):
    from fyrehose.errors import Broken, RemoteProtocolError
    from fyrehose.protocols.figg import frames
    from fyrehose.protocols.figg.session import FiggClientSession, FiggServerSession
    from fyrehose.records import MAX_PAYLOAD, Run

TOPICS = ("t", "topic/\N{SNOWMAN}", "x" * 255, "a\0b")
#: The payload limits of the sessions: a small one, which inputs reach, and the default.
LIMITS = (1000, MAX_PAYLOAD)


def frame(dice: harness.Dice) -> bytes:
    """Return a random frame of any type; its numbers are often at an edge."""
    topic, kind = dice.choice(TOPICS), dice.byte() % 13
    if kind == 0:
        made: Any = frames.Attach(topic=topic, offset=dice.choice((None, 0, 1, (1 << 64) - 1)))
    elif kind == 1:
        made = frames.Attached(topic=topic, offset=dice.number(48))
    elif kind < 4:
        made = dice.choice((frames.Detach, frames.Detached))(topic=topic)
    elif kind < 6:
        made = dice.choice((frames.Ack, frames.Ping, frames.Pong))(number=dice.number(64))
    elif kind < 11:
        number, message = dice.number(64), dice.choice((frames.Publish, frames.Data))
        count = 1 + dice.byte() % 4
        return b"".join(
            message(topic=topic, number=(number + i) % (1 << 64), data=dice.blob()).serialize() for i in range(count)
        )
    elif kind == 11:
        # The frame announces about as much as the default limit allows, and ends early: the rest would be 16 MiB.
        name, size = topic.encode(), MAX_PAYLOAD - 2 + dice.byte() % 260
        message = dice.choice((frames.Publish, frames.Data))
        announced = frames.HEADER.pack(message.type, frames.VERSION, 16 + len(name) + size)
        fields = (frames.SIZE.pack(len(name)), name, frames.NUMBER.pack(1), frames.SIZE.pack(size))
        return b"".join((announced, *fields))[: dice.choice((8, 11, 12, 13, 600))] + dice.blob()
    else:
        return frames.HEADER.pack(dice.number(16), dice.number(16), dice.number(32)) + dice.blob()
    return bytes(made.serialize())


def messages(topic: str, numbers: Any, lengths: Any, payload: Any) -> list[tuple[str, int, bytes]]:
    """Return the messages of a run as (topic, number, payload)."""
    run = Run(stream="x", source="x", producer_seq=numbers, lengths=lengths, payload=payload)
    assert sum(run.sizes) == len(run.payload)
    found = zip(run.producer_seqs() or (), run.payloads(), strict=True)
    return [(topic, number, bytes(data)) for number, data in found]


def said(session: Any, chunks: list[bytes]) -> tuple[list[Any], str | None]:
    """Return the session's events, with runs split into messages, and the cause of the error that ended it."""
    events: list[Any] = []
    cause = None
    for chunk in chunks:
        found = session.receive_data(chunk)
        assert session.expected <= frames.HEADER.size + session.max_payload + 600
        events += found
    events += session.receive_eof()
    flat: list[Any] = []
    for event in events:
        assert cause is None, "an event follows Broken"
        if isinstance(event, Broken):
            cause = event.error.cause
        elif isinstance(event, frames.DataRun):
            flat += messages(event.topic, event.first, event.lengths, event.payload)
        elif isinstance(event, frames.Published):
            taken = [m for run in event.runs for m in messages(run.stream, run.producer_seq, run.lengths, run.payload)]
            # messages of one topic that are published together have rising numbers
            flat += sorted(taken, key=lambda message: message[1])
            assert flat[-1][1] == event.last
            assert len({number for _, number, _ in taken}) == len(taken)
        else:
            flat.append(event)
    return flat, cause


def session(data: bytes, side: Any) -> None:
    dice = harness.Dice(data)
    wire = b""
    while dice and len(wire) < 8000:
        wire += dice.damaged(frame(dice))
    pieces = dice.pieces(wire)
    for limit in LIMITS:
        assert said(side(limit), pieces) == said(side(limit), [wire])


def server(data: bytes) -> None:
    """Check that a server session handles whole and split frames alike."""
    session(data, FiggServerSession)


def client(data: bytes) -> None:
    """Check that a client session handles whole and split frames alike."""
    session(data, FiggClientSession)


def raw(data: bytes) -> None:
    """Check both sides' sessions, and that every frame that a parser accepts is encoded to an equal one."""
    for side in (FiggServerSession, FiggClientSession):
        for limit in LIMITS:
            assert said(side(limit), [data]) == said(side(limit), [data[:3], data[3:]])
    for kind in frames.FRAMES.values():
        try:
            parsed = kind.parse(data)
        except RemoteProtocolError:
            continue
        assert kind.parse(parsed.serialize()[frames.HEADER.size :]) == parsed


DECODERS = {"server": server, "client": client, "raw": raw}
