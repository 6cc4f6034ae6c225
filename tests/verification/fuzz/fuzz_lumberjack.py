"""Fuzz lumberjack with random bytes: the server's session, the writer's, and single frames.

Sessions receive frames whole and in pieces, and must return the same events; the kept inputs begin with valid frames.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import harness

with harness.instrumented("fyrehose.protocols.lumberjack", "fyrehose.kernels.pure"):
    from fyrehose import inflate
    from fyrehose.errors import Broken, RemoteProtocolError
    from fyrehose.inflate import ENGINE, PIECE, WHOLE
    from fyrehose.protocols.lumberjack import frames
    from fyrehose.protocols.lumberjack.server import LumberjackSettings
    from fyrehose.protocols.lumberjack.session import LumberjackLimits, LumberjackServerSession, LumberjackWriterSession
    from fyrehose.records import Run

#: Marks the parts of an input that are compressed before a session reads them: random bytes are no zlib streams.
FENCE = b"|C|"
JSON = (b"{}", b'{"@metadata":{"beat":"x"}}', b'{"@metadata":{"beat":[1,"\\u00fc')


def session_of(
    limits: LumberjackLimits, chunks: list[bytes]
) -> tuple[list[tuple[bytes, int, str | None, str]], str | None]:
    """Return the events of a session that reads ``chunks``, and the cause of the error that ended it."""
    session, events, cause, turns = LumberjackServerSession(limits), [], None, 0
    total = sum(map(len, chunks))
    made: list[Any] = []

    def take(found: list[Any]) -> None:
        made.extend(found)
        session.durable(sum(len(event) for event in found if not isinstance(event, Broken)))
        session.data_to_send()

    for chunk in chunks:
        take(session.receive_data(chunk))
        while session.more_work:
            turns += 1
            assert turns < 100_000, "the session does not finish"
            take(session.next_events())
            assert session.buffered <= 2 * total + WHOLE + PIECE + ENGINE + (256 << 10)
        assert session.expected <= 2 * limits.max_event + PIECE + ENGINE
    for event in made:
        assert cause is None, "an event follows Broken"
        if isinstance(event, Broken):
            cause = event.error.cause
            continue
        run = Run(
            stream="s",
            source="x",
            lengths=event.lengths,
            payload=event.payload,
            producer_seq=event.producer_seq,
        )
        assert sum(run.sizes) == len(run.payload)
        seqs = run.producer_seqs() or ()
        for payload, seq in zip(run.payloads(), seqs, strict=True):
            events.append((bytes(payload), seq, event.topic, event.content_type))
    return events, cause


def compressed(data: bytes, version: int = 2) -> bytes:
    """Return a C frame with *data*."""
    packed = zlib.compress(data, 1)
    return b"%dC" % version + len(packed).to_bytes(4, "big") + packed


def window(dice: harness.Dice, version: int) -> bytes:
    """Return a window whose number of frames mostly matches its header; some frames are compressed or damaged."""
    wire = b""
    count = dice.byte() % 7
    for number in range(count):
        sequence = number + 1 if not dice.one_in(4) else dice.number(32)
        if version == 1 or dice.one_in(6):
            pairs = tuple((dice.blob(), dice.blob()) for _ in range(dice.byte() % 3))
            made = frames.Data(version=version, sequence=sequence, pairs=pairs).serialize()
        else:
            payload = dice.choice(
                (b"{}", b'{"@metadata":{"beat":"x"}}', b'{"@metadata":{"beat":[1,"\\u00fc', dice.blob())
            )
            made = frames.Json(sequence=sequence, payload=payload).serialize()
        made = dice.damaged(made)
        wire += compressed(made, version) if dice.one_in(6) else made
    for _ in range(dice.byte() % 3):
        wire = dice.damaged(compressed(wire, version))
    said = count if not dice.one_in(8) else dice.number(32)
    return dice.damaged(b"%dW" % version + said.to_bytes(4, "big")) + wire


def reader(data: bytes) -> None:
    """Check that the server's session reads random windows the same however they are cut."""
    dice = harness.Dice(data)
    size, events, version, stream = dice.byte() or 1, dice.byte() % 16 + 1, dice.choice((1, 2, 2)), b""
    while dice and len(stream) < 8000:
        stream += window(dice, version)
    read(stream, size, events)


def raw(data: bytes) -> None:
    """Check that the server's session reads random bytes, compressed between fences, however they are cut."""
    size, events, data = (data[0] or 1, (data[1] & 15) + 1, data[2:]) if len(data) > 1 else (1, 1, data)
    parts = data.split(FENCE)
    read(b"".join(compressed(part) if number % 2 else part for number, part in enumerate(parts)), size, events)


def read(stream: bytes, size: int, events: int) -> None:
    """Check that the server's session returns the same for any chunks, turns and sizes of its decompression pieces."""
    wanted = session_of(LumberjackLimits(), [stream])
    size = max(size, len(stream) // 50)
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    defaults = LumberjackSettings(refused="close").limits
    assert session_of(defaults, chunks) == session_of(defaults, [stream])
    found = session_of(LumberjackLimits(turn_events=events, turn_bytes=64 * events), chunks)
    assert found == wanted, (found, wanted)
    with streaming(size):
        events_found, cause = session_of(LumberjackLimits(), chunks)
    # The events of a damaged or incomplete compressed frame may have been published before the error was found.
    assert cause is not None or wanted[1] is None, wanted
    assert events_found[: len(wanted[0])] == wanted[0], (events_found, wanted)


@contextmanager
def streaming(size: int) -> Iterator[None]:
    """Decompress frames of a few bytes in pieces, as large ones are, before their checksums are known."""
    small = {"PIECE": size, "WHOLE": 2 * size, "SLICE": size + 3, "_INPUT": size // 2 + 1}
    before = {name: getattr(inflate, name) for name in small}
    try:
        for name, value in small.items():
            setattr(inflate, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(inflate, name, value)


def writer(data: bytes) -> None:
    """Check that the writer's session accepts any acknowledgements of windows, and never more than it has sent."""
    for size in (len(data) or 1, 1, 5):
        session = LumberjackWriterSession(2, 0)
        for count in (1, 3, 200):
            session.send_window((1).to_bytes(4, "little") * count, b"x" * count)
        acknowledged = 0
        for at in range(0, len(data), size):
            events = session.receive_data(data[at : at + size])
            assert not any(isinstance(event, Broken) for event in events[:-1])
            acknowledged += sum(getattr(event, "count", 0) for event in events)
        assert acknowledged <= 204


def single(data: bytes) -> None:
    """Scan D frames in pieces."""
    for final in (False, True):
        fields = frames.PairScanner()
        try:
            for end in range(0, len(data) + 1, 3):
                fields.advance(data, 0, end, final=final and end == len(data))
        except RemoteProtocolError:
            pass
    frames.to_json(((data[:5], data[5:]), (data, data)))


DECODERS = {"reader": reader, "raw": raw, "writer": writer, "single": single}
