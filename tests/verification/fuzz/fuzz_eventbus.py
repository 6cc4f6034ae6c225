"""Fuzz the event bus with random messages: decoders, labels, the sessions of server and client, and the ZAP handler.

    python tests/verification/fuzz/fuzz_eventbus.py [EXECUTIONS [SEED]] [--decoder NAME ...] [--corpus DIR]

harness.py explains the options.  The messages are valid ones whose frames are cut, joined, swapped and overwritten, so
that most of them pass the first check; sessions receive messages until the input is used up.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent))

import harness

with harness.instrumented("fyrehose.protocols.eventbus"):
    from fyrehose.errors import RemoteProtocolError
    from fyrehose.protocols.eventbus.columns import PROTOCOL, event_frames
    from fyrehose.protocols.eventbus.frames import (
        MAX_LABEL,
        MAX_SUBTREE,
        MAX_SUBTREES,
        Broadcast,
        Dialect,
        Pub,
        Subtrees,
        Sync,
        SyncEnd,
        SyncStart,
        parse_sequence,
    )
    from fyrehose.protocols.eventbus.labels import WireLabels, read_labels
    from fyrehose.protocols.eventbus.session import EventBusClientSession, EventBusOptions, EventBusServerSession
    from fyrehose.protocols.eventbus.settings import EventBusSettings
    from fyrehose.protocols.eventbus.zap import Authenticator
    from fyrehose.records import MAX_NAME, Run

Message = list[bytes]

PIECES = [
    b"",
    b"null",
    b"0",
    b"42",
    b"281474976710655",
    b"281474976710656",
    bytes(8),
    b"\0\0" + b"\xff" * 6,
    b"\x80" + bytes(7),
    b"SYNCSTART",
    b"SYNC",
    b"SYNCEND",
    b"/",
    b"/a/",
    b"/a/;/b/c/",
    b"/a/,/b/",
    b";" * 63,
    b"/" * 255,
    b"2024-05-01T10:20:30.123Z",
    b"2024-05-01T10:20:30+02:00",
    b"0001-01-01T00:00:00.000001+23:59",
    b"9999-12-31T23:59:59.999999-23:59",
    b"7d444840-9dc0-41d1-b245-5ffdce74fad2",
    b"7D444840-9DC0-41D1-B245-5FFDCE74FAD2",
    b'"; time=0Z',
    b"; producer=percent",
    b"%FF",
    b"\xff\xfe",
    "Łódź".encode(),
    b"\xdd\xff\xff\xff\xff",
    b"\x91" * 300,
    b"1.0",
    b"CURVE",
    bytes(32),
]
EVENT = [b"/a/", b"null", b"me", PIECES[18], PIECES[22], b"\x81\xa1n\x01"]


class Fuzzer:
    """Makes messages from an input, and passes them to every decoder and session."""

    def __init__(self, data: bytes) -> None:
        self.random = harness.Chance(data)
        self.now = 0.0

    def piece(self) -> bytes:
        """Return a random frame."""
        random = self.random
        piece = bytearray(random.choice(PIECES))
        for _ in range(random.choice([0, 0, 0, 1, 2, 4])):
            at = random.randint(0, len(piece))
            how = random.randrange(4)
            if how == 0:
                piece[at:at] = random.randbytes(random.choice([1, 2, 8]))
            elif how == 1:
                del piece[at : at + random.choice([1, 2, 8])]
            elif how == 2 and at < len(piece):
                piece[at] = random.randrange(256)
            else:
                piece += random.choice(PIECES)
        return bytes(piece)

    def message(self) -> Message:
        """Return a random message, mostly with a valid number of frames."""
        random = self.random
        kind = random.randrange(6)
        if kind == 0:
            message = list(EVENT)
        elif kind == 1:
            message = [b"SYNC", EVENT[0], b"%d" % random.randrange(40), *EVENT[2:]]
        elif kind == 2:
            message = [EVENT[0], struct.pack(">Q", random.randrange(40)), *EVENT[2:]]
        elif kind == 3:
            message = [random.choice([b"SYNCSTART", b"SYNCEND"]), b"/a/", b"%d" % random.randrange(40)]
        else:
            message = [self.piece() for _ in range(random.choice([0, 1, 2, 3, 3, 4, 6, 6, 6, 7, 7, 8, 16]))]
        for _ in range(random.choice([0, 0, 1, 1, 2])):
            if message:
                message[random.randrange(len(message))] = self.piece()
        if random.random() < 0.1:
            message.insert(0, b"")
        return message

    def decoders(self) -> None:
        """Check that each decoded message is encoded to an equal one."""
        message = self.message()
        for parse in (Pub.parse, Broadcast.parse, Sync.parse, SyncStart.parse, SyncEnd.parse):
            again(parse, message)
        for frame in message:
            for read in (parse_sequence, Subtrees.parse):
                try:
                    read(frame)
                except RemoteProtocolError:
                    pass

    def labels(self) -> None:
        """Check that three random labels survive a record byte for byte."""
        sent = tuple(self.piece()[:MAX_LABEL] for _ in range(3))
        labels = read_labels(*sent)
        run = Run.of(
            "s",
            [b""],
            source=PROTOCOL,
            producer=labels.producer,
            content_type=labels.content_type,
            event_ids=labels.event_id,
            event_times=None if labels.event_time is None else struct.pack("<q", labels.event_time),
        )
        written = WireLabels(run, PROTOCOL)
        assert (written.producer, written.timestamp(0), written.uuid(0)) == sent, sent

    def server(self) -> None:
        """Check that a server session stores valid messages unchanged, refuses others, and keeps its memory limit."""
        random = self.random
        dedup, dialect = random.random() < 0.5, random.choice(list(Dialect))
        default = random.random() < 0.5
        small = {"max_payload": 30, "snapshots": 2, "snapshots_memory": 4096}
        settings = EventBusSettings() if default else EventBusSettings(dedup=dedup, dialect=dialect, **small)
        session = EventBusServerSession(settings)
        while random:
            self.publishes(session, settings)

    def publishes(self, session: EventBusServerSession, settings: EventBusSettings) -> None:
        """Send one random message to a server session, as an event and as a request."""
        message = self.message()
        identity = self.piece()
        self.now += self.random.choice([0, 0.1, 100])
        count = 1 + len(message)
        session.receive_pub([identity, *message][:16], count, self.now)
        session.receive_request([identity, *message][:16], count, "", "")
        batch = session.take()
        if batch is not None:
            for run in batch.runs:
                (frames,) = event_frames(run.numbered(1, 1), Dialect.BINARY)
                sent = message[-6:]
                assert [bytes(frames[0]), *map(bytes, frames[2:])] == [sent[0], *sent[2:]], message
        assert session.snapshots.memory.used <= settings.snapshots_memory
        if self.random.random() < 0.01:
            session.snapshots.clear()

    def client(self) -> None:
        """Check that a client session limits how many bytes it holds back."""
        random = self.random
        options = EventBusOptions(subtrees=random.choice([(), ("/a/",)]), after=random.choice([None, 0, 7]))
        session = EventBusClientSession(options, Random(1), self.now)
        session.connected(self.now)
        while random:
            self.now += random.choice([0, 0, 1, 30])
            messages: Sequence[Message] = [self.message() for _ in range(3)]
            receive: Callable[..., object] = random.choice([session.receive_broadcasts, session.receive_syncs])
            receive(messages, self.now)
            session.tick(self.now)
            session.data_to_send()
            assert session._held_bytes <= 16 << 20

    def zap(self) -> None:
        """Check that the authenticator answers any ZAP request."""
        assert len(Authenticator(curve=True, clients=frozenset()).answer(self.message(), 1).frames) == 6


def limits(data: bytes) -> None:
    """Check that a length is refused if, and only if, it exceeds its default limit."""
    settings = EventBusSettings()
    specimen = harness.Specimen(
        data,
        {
            "data": settings.max_payload,
            "topic": MAX_NAME,
            "producer": MAX_LABEL,
            "time": MAX_LABEL,
            "uuid": MAX_LABEL,
            "subtree": MAX_SUBTREE,
            "subtrees": MAX_SUBTREES,
        },
    )
    session, event = EventBusServerSession(settings), list(EVENT)
    if specimen.which in ("subtree", "subtrees"):
        spec = b"/" + b"x" * (specimen.size - 2) + b"/"
        if specimen.which == "subtrees":
            spec = b";".join(b"/%d/" % n for n in range(specimen.size))
        found = session.receive_request([b"c", b"SYNCSTART", spec, bytes(8)], 4, "", "")
        assert isinstance(found, RemoteProtocolError) is specimen.over, (specimen.which, specimen.size)
        return
    place = {"topic": 0, "producer": 2, "time": 3, "uuid": 4, "data": 5}[specimen.which]
    if specimen.which == "data" and not specimen.whole:
        return  # ZeroMQ delivers complete frames only
    event[place] = b"x" * specimen.size
    refused = session.receive_pub([b"c", *event], 7, 0.0)
    assert (refused is not None) is specimen.over, (specimen.which, specimen.size)


def again(parse: Callable[[Message], object], message: Message) -> None:
    """Check that parsing the encoded form of a parsed *message* returns an equal one."""
    try:
        parsed = parse(message)
    except RemoteProtocolError:
        return
    assert parse(parsed.serialize()) == parsed, message  # type: ignore[attr-defined]


DECODERS = {
    "decoders": lambda data: Fuzzer(data).decoders(),
    "labels": lambda data: Fuzzer(data).labels(),
    "server": lambda data: Fuzzer(data).server(),
    "client": lambda data: Fuzzer(data).client(),
    "limits": limits,
    "zap": lambda data: Fuzzer(data).zap(),
}

if __name__ == "__main__":
    sys.exit(harness.main(__file__, DECODERS))
