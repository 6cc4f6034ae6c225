"""Fuzz the event bus: decoders with random messages, sessions of both sides with random bytes, and CURVE.

The messages are valid ones whose frames are cut, joined, swapped and overwritten, so that most of them pass the first
check.  A session of the server receives messages behind a valid handshake, cut anywhere and with wrong bytes here and
there, until the input is used up.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from random import Random

import harness

with harness.instrumented("fyrehose.protocols.eventbus"):
    from fyrehose.errors import Broken, RemoteProtocolError
    from fyrehose.protocols.eventbus.client_session import EventBusClientSession, EventBusOptions
    from fyrehose.protocols.eventbus.columns import Encoder, EventsByTopic
    from fyrehose.protocols.eventbus.curve import CurveClient, CurveServer, new_keys
    from fyrehose.protocols.eventbus.frames import (
        Broadcast,
        Dialect,
        Pub,
        Subtrees,
        Sync,
        SyncEnd,
        SyncStart,
        parse_sequence,
    )
    from fyrehose.protocols.eventbus.session import (
        BusMessage,
        CollectorSession,
        DealerSession,
        PublisherSession,
        PubsReceived,
        SnapshotSession,
        SubscriberSession,
    )
    from fyrehose.protocols.eventbus.zmtp import MessageRefused, Null, ZmtpSession, command, encode, frame
    from fyrehose.sessions import events_of

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

EVERYTHING = Encoder(frozenset({b""}), Dialect.BINARY)
SERVER, CLIENT = new_keys(), new_keys()


def greet(session: ZmtpSession, client: ZmtpSession) -> None:
    """Let both sessions complete their handshake."""
    while session.out or client.out:
        client.receive_data(b"".join(session.data_to_send()))
        session.receive_data(b"".join(client.data_to_send()))


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

    def wire(self) -> bytes:
        """Return some messages and commands as they are sent, seldom with a wrong byte."""
        random = self.random
        data = b""
        for _ in range(random.choice([1, 1, 2, 5])):
            kind = random.randrange(8)
            if kind == 0:
                name = random.choice([b"PING", b"PONG", b"SUBSCRIBE", b"CANCEL", b"ERROR", b"READY", b"X", b""])
                data += command(name, self.piece())
            elif kind == 1:
                data += frame(self.piece(), random.randrange(8))
            else:
                data += encode(self.message(), more=random.random() < 0.05)
        if data and random.random() < 0.2:
            at = random.randrange(len(data))
            data = data[:at] + random.randbytes(1) + data[at + random.choice([0, 1, 2]) :]
        return data

    def server(self) -> None:
        """Check that the server's sessions never raise, keep limits, and do not depend on how their bytes were cut."""
        random = self.random
        dialect = random.choice(list(Dialect))
        make = random.choice(
            [
                lambda: CollectorSession(Null(), 300, "s"),
                lambda: SnapshotSession(Null(), dialect),
                lambda: PublisherSession(Null(), dialect),
            ]
        )
        one, other = make(), make()
        kind = SubscriberSession if isinstance(one, PublisherSession) else DealerSession
        wire = b"" if random.random() < 0.9 else self.piece()
        for session in (one, other) if not wire else ():
            greet(session, kind())
        while random:
            wire += self.wire()
        whole = list(events_of(one, wire))
        cut, at = [], 0
        while at < len(wire):
            size = random.choice([1, 2, 9, 64, 400])
            cut += events_of(other, wire[at : at + size])
            at += size
            assert other.buffered <= 8 * 300 + (70 << 10), other.buffered
        assert shown(whole) == shown(cut), (wire, whole, cut)
        assert not any(isinstance(event, Broken) for event in whole[:-1])

    def both(self) -> None:
        """Check that events which a client sends are broadcast unchanged."""
        session, client = CollectorSession(Null(), 1 << 20, "s"), DealerSession()
        greet(session, client)
        while self.random:
            message = self.message() or [b""]
            client.send(message)
            (event,) = events_of(session, b"".join(client.data_to_send()))
            if isinstance(event, PubsReceived):
                piece = EventsByTopic([run.numbered(1, 1) for run in event.runs]).piece(EVERYTHING)
                back = DealerSession()
                joined = SnapshotSession(Null(), Dialect.BINARY)
                greet(joined, back)
                (received,) = events_of(back, piece.data)
                assert isinstance(received, BusMessage)
                sent = message[-6:]
                assert [received.frames[0], *received.frames[2:]] == [sent[0], *sent[2:]], message
            else:
                assert isinstance(event, MessageRefused), event

    def curve(self) -> None:
        """Check that a changed handshake or box of CURVE is refused, by either side, without an exception."""
        random = self.random
        server = CollectorSession(CurveServer(SERVER.public, SERVER.secret), 300, "s")
        client = DealerSession(CurveClient(SERVER.public, CLIENT.public, CLIENT.secret))
        for _ in range(8):
            for sender, receiver in ((client, server), (server, client)):
                data = b"".join(sender.data_to_send())
                if data and random.random() < 0.2:
                    at = random.randrange(len(data))
                    data = (
                        data[:at] + random.randbytes(random.choice([0, 1, 4])) + data[at + random.choice([0, 1, 4]) :]
                    )
                receiver.receive_data(data)
            if client.linked:
                client.send(self.message())

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


def shown(events: list[object]) -> list[object]:
    """Return *events* without where runs begin, which depends on how the bytes were cut."""
    found: list[object] = []
    for event in events:
        if isinstance(event, PubsReceived):
            for run in event.runs:
                found += [(run.topic, run.producer, run.content_type, bytes(payload)) for payload in run.payloads()]
        else:
            found.append(str(event))
    return found


def again(parse: Callable[[Message], object], message: Message) -> None:
    """Check that parsing the encoded form of a parsed *message* returns an equal one."""
    try:
        parsed = parse(message)
    except RemoteProtocolError:
        return
    assert parse(parsed.serialize()) == parsed, message  # type: ignore[attr-defined]


DECODERS = {
    "decoders": lambda data: Fuzzer(data).decoders(),
    "server": lambda data: Fuzzer(data).server(),
    "client": lambda data: Fuzzer(data).client(),
    "both": lambda data: Fuzzer(data).both(),
    "curve": lambda data: Fuzzer(data).curve(),
}
