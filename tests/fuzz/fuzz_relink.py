"""Random bytes for Relink: handshakes, packets, sessions of both sides, links' records.

    python tests/fuzz/fuzz_relink.py [EXECUTIONS [SEED]]

Prints what it did; ends with an error at the first crash, execution that takes more than a second, or growth of more
than 64 MiB.  Bytes are valid packets, cut, joined and overwritten, so that most get past the first check; each session
gets them twice, whole and in pieces, and has to say the same.
"""

from __future__ import annotations

import resource
import sys
import time
from itertools import groupby
from random import Random
from typing import Any

import attrs

from fyrehose.errors import Broken
from fyrehose.protocols.relink import events, linklog, snapshot
from fyrehose.protocols.relink.frames import (
    NOP,
    PING,
    PONG,
    RESUME,
    SHUTDOWN,
    Ack,
    Acknowledgement,
    Message,
    Op,
    Operation,
)
from fyrehose.protocols.relink.handshake import Hello, Terms, pack_reply, pack_version
from fyrehose.protocols.relink.limits import Limits
from fyrehose.protocols.relink.link import Link
from fyrehose.protocols.relink.session import ConnectorSession, ListenerSession, Session
from fyrehose.records import Run

#: How long one execution may take, in seconds, and how much the process may grow, in KiB.
SLOWEST = 1.0
GROWTH = 64 << 10

LIMITS = Limits(channels=3, backlog=4, backlog_size=4_000, window=5, results=2, result_runs=3)
CONSTANT = (NOP, PING, PONG, RESUME, SHUTDOWN)


class Fuzzer:
    """Makes bytes, and gives them to everything that takes some."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def terms(self) -> Terms:
        random = self.random
        return Terms(
            endpoint="publish:s",
            connector_size=random.choice((0, 1, 2)),
            listener_size=random.choice((0, 1, 2)),
            connector_transactions=random.random() < 0.5,
            listener_transactions=random.random() < 0.5,
        )

    def packet(self, ours: int, theirs: int) -> bytes:
        """A packet of a peer whose ids have ``ours`` bytes."""
        random = self.random
        multicast = random.random() < 0.2
        channels = (
            tuple(random.randrange(3) for _ in range(random.randrange(4))) if multicast else (random.randrange(3),)
        )
        number = random.choice((None, None, 0, 1, 2, 3, (1 << 32) - 1))
        kind = random.randrange(8)
        if kind < 3:
            parts = tuple(random.randbytes(random.choice((0, 1, 9, 300))) for _ in range(random.randrange(3)))
            size, packet = ours, Message(channels=channels, parts=parts, multicast=multicast)
        elif kind < 5:
            op = random.choice((Op.COMMIT, Op.ROLLBACK, Op.CLOSE))
            number = None if op is Op.CLOSE else number
            size, packet = ours, Operation(kind=op, channels=channels, number=number, multicast=multicast)  # type: ignore[assignment]
        elif kind < 7:
            ack = random.choice(list(Ack))
            number = None if ack is Ack.CLOSED else number
            size, packet = theirs, Acknowledgement(kind=ack, channels=channels, number=number, multicast=multicast)  # type: ignore[assignment]
        else:
            return random.choice(CONSTANT).serialize()
        return packet.serialize(size) if size else type(packet).serialize(_without_ids(packet), 0)

    def bytes_of(self, ours: int, theirs: int) -> bytes:
        """A few packets, now and then damaged."""
        random = self.random
        data = bytearray(b"".join(self.packet(ours, theirs) for _ in range(random.randrange(12))))
        for _ in range(random.choice((0, 0, 0, 1, 3))):
            if data:
                at = random.randrange(len(data))
                if random.random() < 0.5:
                    data[at] ^= 1 << random.randrange(8)
                else:
                    del data[at : at + random.choice((1, 8))]
        return bytes(data)

    def pieces(self, data: bytes) -> list[bytes]:
        cuts = sorted(self.random.randrange(len(data) + 1) for _ in range(self.random.randrange(5)))
        return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def sessions(self) -> None:
        """Whole and in pieces it is the same, and what comes of it stays within its limits."""
        random = self.random
        terms, resumed, connector = self.terms(), random.random() < 0.3, random.random() < 0.5
        sent = [tuple(random.randrange(2) for _ in range(1)) for _ in range(random.randrange(6))]
        sizes = (terms.connector_size, terms.listener_size)
        ours, theirs = sizes[::-1] if connector else sizes
        data = self.bytes_of(ours, theirs)
        found = []
        for chunks in ([data], self.pieces(data)):
            session = self.linked(terms, resumed, connector)
            link = session.link
            assert link is not None
            for channels in sent:
                if link.our_size or channels == (0,):
                    link.send(channels, (b"x",))
            got: list[Any] = []
            for chunk in chunks:
                got += session.receive_data(chunk)
            got += self.settle(session, link)
            assert len(link.receiving) <= LIMITS.channels
            session.data_to_send()
            session.receive_eof()
            link.unknown()
            found.append(_plainly(got))
        assert found[0] == found[1], data.hex()

    def settle(self, session: Session, link: Link) -> list[Any]:
        """An owner that finishes everything, in order."""
        got: list[Any] = []
        while not link.over:
            for id_, channel in list(link.receiving.items()):
                last = channel.dec if channel.transactional else channel.next - 1
                if last > channel.done:
                    link.consume(id_, last, Ack.COMMITTED if channel.transactional else None)
            more = session.receive_data(b"") if session.waiting else []
            if not more:
                return got
            got += more
        return got

    def linked(self, terms: Terms, resumed: bool, connector: bool) -> Session:
        if connector:
            old = Link(terms, True, 5, 6, LIMITS) if resumed else None
            hello = Hello(terms=terms, epoch=5 if resumed else 0, link_id=6 if resumed else 0)
            session = ConnectorSession(LIMITS, old, hello=hello, fresh=lambda e, i: Link(terms, True, e, i, LIMITS))
            session.receive_data(pack_version(0) + pack_reply(5, 6))
            return session
        listener = ListenerSession(LIMITS)
        listener.receive_data(pack_version(0) + Hello(terms=terms).serialize())
        listener.accept(Link(terms, False, 5, 6, LIMITS), resumed=resumed)
        return listener

    def handshakes(self) -> None:
        """Any bytes at all, and damaged hellos."""
        random = self.random
        data = bytearray(pack_version(random.randrange(3)) + Hello(terms=self.terms(), epoch=1, link_id=2).serialize())
        for _ in range(random.randrange(4)):
            data[random.randrange(len(data))] = random.randrange(256)
        found = []
        for chunks in ([bytes(data)], self.pieces(bytes(data))):
            session = ListenerSession(LIMITS)
            got = [event for chunk in chunks for event in session.receive_data(chunk)]
            found.append([e if isinstance(e, events.Asked) else str(e.error) for e in got])  # type: ignore[union-attr]
        assert found[0] == found[1], data.hex()

    def disks(self) -> None:
        """Damaged snapshots and records are refused, or are something."""
        random = self.random
        link = Link(Terms(endpoint="e"), False, durable=True, kept=False)
        for _ in range(random.randrange(4)):
            link.message(Message(channels=(0,), parts=()))
            link.consume(0, link.receiving[0].next - 1)
        data = bytearray(snapshot.save(link))
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        try:
            snapshot.restore(Link(link.terms, False, durable=True, kept=False), bytes(data))
        except ValueError:
            pass
        entry = linklog.pack_entry(bytes(8), link.terms, b"", [(0, 1)], snapshot.save(link))
        records = [bytearray(record) for record in linklog.pack_checkpoint(5, [entry])]
        records.append(bytearray(linklog.pack(linklog.Kind.ENTRY, 5, 1, entry)))
        damaged = random.choice(records)
        damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
        run = Run.of("l", records, source=linklog.SOURCE).numbered(1, 1)
        try:
            linklog.recover(
                lambda stream, start, size: (run.slice(max(0, start - 1), 2),) if start <= 2 else (), "l", (1, 2)
            )
        except ValueError as error:
            raise AssertionError(bytes(damaged).hex()) from error


def _plainly(found: list[Any]) -> list[Any]:
    """How many messages come together depends on how the bytes were cut: here each is by itself, and those of a channel
    are together where they followed each other."""
    plainly: list[Any] = []
    for received, some in groupby(found, lambda event: isinstance(event, events.Received)):
        if received:
            messages = [(e.channel, seq, parts) for e in some for seq, parts in enumerate(e.messages, e.first)]
            plainly += sorted(messages)
        else:
            plainly += [(type(e), str(e.error)) if isinstance(e, Broken) else e for e in some]
    return plainly


def _without_ids(packet: Any) -> Any:
    return attrs.evolve(packet, channels=(0,) * len(packet.channels))


def run(executions: int, seed: int) -> None:
    """So many executions of each target in turn; raises at the first that is wrong."""
    fuzzer = Fuzzer(seed)
    targets = [fuzzer.sessions, fuzzer.handshakes, fuzzer.disks]
    before, began, slowest = 0, time.monotonic(), 0.0
    for n in range(executions):
        if n == 10_000:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.process_time()
        for target in targets:
            target()
        took = time.process_time() - started
        slowest = max(slowest, took)
        assert took < SLOWEST, f"execution {n} of seed {seed} took {took:.1f} s"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before if before else 0
    assert grown < GROWTH, f"grew by {grown} KiB"
    print(
        f"relink: {executions} executions of each of {len(targets)} targets, seed {seed}, in "
        f"{time.monotonic() - began:.0f} s; slowest {slowest * 1000:.0f} ms, grown by {grown} KiB"
    )


if __name__ == "__main__":
    run(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
