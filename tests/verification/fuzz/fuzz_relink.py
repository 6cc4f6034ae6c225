"""Fuzz Relink with random bytes: handshakes, packets, the sessions of both sides, and saved links.

The bytes are valid packets that are cut, joined and overwritten, so that most pass the first check; each session
receives them twice, whole and in pieces, and must return the same events.
"""

from __future__ import annotations

from itertools import groupby
from random import Random
from typing import Any

import attrs
import harness
from twisted.internet.task import Clock

with harness.instrumented("fyrehose.protocols.relink", "fyrehose.kernels.pure"):
    from fyrehose.broker.broker import Broker
    from fyrehose.broker.sequencer import Sequencer
    from fyrehose.broker.state_stream import replay
    from fyrehose.errors import Broken, JournalCorrupt
    from fyrehose.protocols.relink import events, linklog
    from fyrehose.protocols.relink.channels import Receiving
    from fyrehose.protocols.relink.decoder import Decoder
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
        nearest,
        pack_reply,
        pack_version,
        reply_size,
        version_size,
    )
    from fyrehose.protocols.relink.link import Link, LinkLimits
    from fyrehose.protocols.relink.service import RelinkFactory
    from fyrehose.protocols.relink.session import ConnectorSession, HelloReceived, ListenerSession, RelinkSession
    from fyrehose.protocols.relink.settings import RelinkSettings
    from fyrehose.records import Run
    from fyrehose.testing import MemoryJournal
    from fyrehose.testing.shell import ClientSide as Connection

LIMITS = LinkLimits(channels=3, backlog=4, backlog_size=4_000, window=5, results=2, result_runs=3)
DEFAULTS = LinkLimits()
#: Errors whose occurrence depends on when the owner of the link settles messages, which may differ between two runs.
TIMED = {"results-unconfirmed", "backlog-too-large"}


@attrs.frozen
class Peer:
    """The peer that sends packets.

    :ivar ours: the size of the peer's channel ids, in bytes
    :ivar theirs: the size of our channel ids, in bytes
    :ivar decides: whether its messages are in transactions
    :ivar decided: whether our messages are in transactions
    """

    ours: int
    theirs: int
    decides: bool = True
    decided: bool = True


class Fuzzer:
    """Makes bytes from random numbers, and passes them to every decoder and session."""

    def __init__(self, random: Random, limits: LinkLimits = LIMITS) -> None:
        self.random, self.limits = random, limits

    def terms(self) -> Terms:
        random = self.random
        return Terms(
            endpoint="publish:s",
            connector_size=random.choice((0, 1, 2)),
            listener_size=random.choice((0, 1, 2)),
            connector_transactions=random.random() < 0.5,
            listener_transactions=random.random() < 0.5,
        )

    def packet(self, peer: Peer) -> bytes:
        """Return a packet that ``peer`` may send, except now and then."""
        random = self.random
        multicast = random.random() < 0.2
        channels = (
            tuple(random.randrange(3) for _ in range(random.randrange(4))) if multicast else (random.randrange(3),)
        )
        number = random.choice((None, None, None, 0, 1, 2, 3, (1 << 32) - 1))
        kind, wrong = random.randrange(16), random.randrange(16) == 1
        if kind < 9:
            parts = tuple(
                bytes((random.randrange(256),)) * random.choice((0, 1, 9, 300)) for _ in range(random.randrange(3))
            )
            size, packet = peer.ours, Message(channels=channels, parts=parts, multicast=multicast)
        elif kind < 12:
            op = random.choice((Op.COMMIT, Op.COMMIT, Op.ROLLBACK, Op.CLOSE)) if peer.decides or wrong else Op.CLOSE
            number = None if op is Op.CLOSE else number
            size, packet = peer.ours, Operation(kind=op, channels=channels, number=number, multicast=multicast)  # type: ignore[assignment]
        elif kind < 14:
            ack = random.choice(list(Ack) if peer.decided or wrong else (Ack.RECEIVED, Ack.CONSUMED, Ack.CLOSED))
            number = None if ack is Ack.CLOSED else number
            size, packet = (
                peer.theirs,
                Acknowledgement(kind=ack, channels=channels, number=number, multicast=multicast),  # type: ignore[assignment]
            )
        else:
            return random.choice((PONG, RESUME) if wrong else (NOP, PING, PING, SHUTDOWN)).serialize()
        return packet.serialize(size) if size else type(packet).serialize(_without_ids(packet), 0)

    def bytes_of(self, peer: Peer) -> bytes:
        """Return the bytes of a few packets, sometimes damaged."""
        random = self.random
        data = bytearray(b"".join(self.packet(peer) for _ in range(random.randrange(12))))
        for _ in range(random.choice((0, 0, 0, 0, 0, 0, 1, 3))):
            if data:
                at = random.randrange(len(data))
                if random.random() < 0.5:
                    data[at] ^= 1 << random.randrange(8)
                else:
                    del data[at : at + random.choice((1, 8))]
        return bytes(data)

    def turns(self, peer: Peer, resumed: bool) -> list[bytes]:
        """Return chunks of packets, after each of which the owner settles; some begin with an answer to a ping."""
        random = self.random
        turns = [RESUME.serialize() if resumed and random.randrange(8) else b""]
        for _ in range(1 + random.randrange(4)):
            turns.append(PONG.serialize() * (random.randrange(12) == 1) + self.bytes_of(peer))
        return turns

    def pieces(self, data: bytes) -> list[bytes]:
        cuts = sorted(self.random.randrange(len(data) + 1) for _ in range(self.random.randrange(5)))
        return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def sessions(self, raw: bytes | None = None) -> None:
        """Check that a session returns the same events for whole and cut chunks, and keeps its limits."""
        random = self.random
        terms, resumed, connector = self.terms(), random.random() < 0.3, random.random() < 0.5
        sent = [tuple(random.randrange(2) for _ in range(1)) for _ in range(random.randrange(6))]
        of_connector = (terms.connector_size, terms.connector_transactions)
        of_listener = (terms.listener_size, terms.listener_transactions)
        theirs, ours = (of_connector, of_listener) if connector else (of_listener, of_connector)
        turns = self.turns(Peer(ours[0], theirs[0], ours[1], theirs[1]), resumed) if raw is None else [raw]
        found: list[list[Any]] = []
        for cut in (lambda turn: [turn], self.pieces):
            session = self.linked(terms, resumed, connector)
            link = session.link
            assert link is not None
            for channels in sent:
                if link.our_size or channels == (0,):
                    link.send(channels, (b"x",))
            got: list[Any] = []
            for turn in turns:
                for chunk in cut(turn):
                    got += session.receive_data(chunk)
                got += self.settle(session, link)
            assert len(link.receiving) <= self.limits.channels
            session.data_to_send()
            session.receive_eof()
            link.unsettled()
            found.append(_plainly(got))
        timed = [last for one in found for last in one[-1:] if last[0] is Broken and last[1] in TIMED]
        # Likewise for transactions that are dropped because all waiting bytes together exceed a limit.
        timed += [one for got in found for one in got if isinstance(one[0], events.Decided) and one[0].dropped]
        if not timed:
            assert found[0] == found[1], [turn.hex() for turn in turns]

    def settle(self, session: RelinkSession, link: Link) -> list[Any]:
        """Finish all received messages, in order, as an owner does; return the events that were held back."""
        got: list[Any] = []
        busy = True
        while busy and not link.over:
            busy = False
            for id_, channel in list(link.receiving.items()):
                last = channel.dec if channel.transactional else channel.next - 1
                if last > channel.done:
                    busy = True
                    link.consume(id_, last, Ack.COMMITTED if channel.transactional else None)
                if channel.mode is Receiving.FINISHED:
                    link.receiving[id_].leaving = True
                    got += link.forget(id_)
            got += session.receive_data(b"")
        assert link.over or not session.waiting, "events that were held back are never returned"
        return got

    def linked(self, terms: Terms, resumed: bool, connector: bool) -> RelinkSession:
        if connector:
            old = Link(terms, True, 5, 6, self.limits) if resumed else None
            hello = Hello(terms=terms, epoch=5 if resumed else 0, link_id=6 if resumed else 0)
            session = ConnectorSession(
                self.limits, old, hello=hello, new_link=lambda e, i: Link(terms, True, e, i, self.limits)
            )
            session.receive_data(pack_version(0) + pack_reply(5, 6))
            return session
        listener = ListenerSession(self.limits)
        listener.receive_data(pack_version(0) + Hello(terms=terms).serialize())
        listener.accept(Link(terms, False, 5, 6, self.limits), resumed=resumed)
        return listener

    def handshakes(self) -> None:
        """Check that a damaged hello has the same result whole and in pieces."""
        random = self.random
        data = bytearray(pack_version(random.randrange(3)) + Hello(terms=self.terms(), epoch=1, link_id=2).serialize())
        for _ in range(random.randrange(4)):
            data[random.randrange(len(data))] = random.randrange(256)
        found = []
        for chunks in ([bytes(data)], self.pieces(bytes(data))):
            session = ListenerSession(self.limits)
            got = [event for chunk in chunks for event in session.receive_data(chunk)]
            found.append([e if isinstance(e, HelloReceived) else str(e.error) for e in got])  # type: ignore[union-attr]
        assert found[0] == found[1], data.hex()

    def disks(self) -> None:
        """Check that damaged snapshots and records of links are either refused or read."""
        random = self.random
        link = Link(Terms(endpoint="e"), False, durable=True, kept=False)
        for _ in range(random.randrange(4)):
            link.receive(Message(channels=(0,), parts=()))
            link.consume(0, link.receiving[0].next - 1)
        data = bytearray(linklog.save_snapshot(link))
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        try:
            linklog.restore_snapshot(Link(link.terms, False, durable=True, kept=False), bytes(data))
        except ValueError:
            pass
        entry = linklog.pack_entry(bytes(8), link.terms, b"", [(0, 1)], linklog.save_snapshot(link))
        ends = linklog.pack(linklog.RecordKind.GONE, 5, 1, b"")
        records = [bytearray(linklog.pack(linklog.RecordKind.ENTRY, 5, 1, entry)), bytearray(ends)]
        damaged = random.choice(records)
        damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
        run = Run.of("l", records, source=linklog.SOURCE).numbered(1, 1)

        def read(stream: str, start: int, size: int) -> tuple[Run, ...]:
            return (run.slice(max(0, start - 1), 2),) if start <= 2 else ()

        try:
            replay(linklog.SavedLinks(), read, (1, 2), "l", linklog.SOURCE)
        except JournalCorrupt:
            pass


def _plainly(found: list[Any]) -> list[Any]:
    """Return events that do not depend on how the bytes were cut: one for each message.

    Messages of one channel that follow each other stay together.
    """
    plainly: list[Any] = []
    for received, some in groupby(found, lambda event: isinstance(event, events.Received)):
        if received:
            messages = [(e.channel, seq, parts) for e in some for seq, parts in enumerate(e.messages, e.first)]
            plainly += sorted(messages)
        else:
            plainly += [(Broken, e.error.cause, str(e.error)) if isinstance(e, Broken) else (e,) for e in some]
    return plainly


def _without_ids(packet: Any) -> Any:
    return attrs.evolve(packet, channels=(0,) * len(packet.channels))


def sessions(data: bytes) -> None:
    """Check sessions with random packets."""
    for limits in (LIMITS, DEFAULTS):
        Fuzzer(harness.Chance(data), limits).sessions()


def raw(data: bytes) -> None:
    """Check sessions with random bytes; the first 24 decide the kind of session."""
    for limits in (LIMITS, DEFAULTS):
        Fuzzer(harness.Chance(data[:24]), limits).sessions(data[24:])


def handshakes(data: bytes) -> None:
    """Check handshakes with damaged hellos."""
    Fuzzer(harness.Chance(data)).handshakes()


def disks(data: bytes) -> None:
    """Check damaged snapshots and records of links."""
    Fuzzer(harness.Chance(data)).disks()


def servers(data: bytes) -> None:
    """Check that a server acknowledges what it has stored, even if the peer then breaks a rule."""
    fuzzer, clock, journal = Fuzzer(harness.Chance(data)), Clock(), MemoryJournal()
    broker = Broker(clock, journal, Sequencer())
    broker.open()
    factory = RelinkFactory(broker, RelinkSettings(refusal_delay=0.0, backlog=4), clock)
    factory.startFactory()
    peer = Connection.connect(factory, clock)
    peer.send(pack_version(0) + Hello(terms=Terms(endpoint="publish:s", connector_size=1)).serialize())
    answers = peer.received()[version_size(b"") + reply_size(b"") :]
    for turn in fuzzer.turns(Peer(1, 0, decides=False), resumed=False):
        for piece in fuzzer.pieces(turn):
            peer.send(piece)
        answers += peer.received()
    factory.stopFactory()
    stored = sum(len(run) for run in journal.read("s", 1, 1 << 30))
    assert _consumed(answers) == stored


def _consumed(answers: bytes) -> int:
    """Return how many messages the server's *answers* acknowledge as consumed, on all channels."""
    decoder, total = Decoder(0, 1), 0
    decoder.feed(answers)
    consumed: dict[int, int] = {}
    while (packet := decoder.next_packet()) is not None:
        for channel in packet.channels if isinstance(packet, Acknowledgement) else ():
            last = consumed.setdefault(channel, -1)
            if packet.kind is Ack.CONSUMED:
                consumed[channel] = last + 1 if packet.number is None else nearest(packet.number, last)
            elif packet.kind is Ack.CLOSED:
                total += consumed.pop(channel) + 1
    return total + sum(consumed.values()) + len(consumed)


DECODERS = {
    "sessions": sessions,
    "raw": raw,
    "handshakes": handshakes,
    "disks": disks,
    "servers": servers,
}
