"""Two Relink sessions in a simulated network, and checks of the rules of RELINK.md on real bytes.

A connects, B listens.  Bytes wait in the network until a step delivers some of them, cut anywhere; connections break at
one end or both, within packets and within handshakes; A reconnects while B still believes in the old connection, whose
bytes continue to arrive.  B may be a server whose link survives it: the results of B become durable later, and a crash
loses those that are not.  Then A may be a peer that trusts an earlier ``received`` after such a crash, and decides
messages that B no longer has.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from relink_sides import CHANNELS, Connection, Side, Violation, WorldLink

from fyrehose.protocols.relink import linklog
from fyrehose.protocols.relink.frames import Ack, Hello, Op, Terms
from fyrehose.protocols.relink.link import Link, LinkLimits
from fyrehose.protocols.relink.session import ConnectorSession, HelloReceived, Linked, ListenerSession

#: What schedules count, by attribute of a World: a run in which one of them never happens proves nothing about it.
COUNTED = {
    "cuts": "cuts",
    "resumes": "resumes",
    "crashes": "crashes",
    "lost_links": "links lost",
    "ends": "one-sided ends",
    "refused": "forgotten messages",
}


def missed(ran: Mapping[str, int], losses: bool) -> list[str]:
    """Return what never happened in the schedules that counted *ran*; crashes and lost links exclude each other."""
    never = ("crashes", "refused") if losses else ("lost_links",)
    return [words for name, words in COUNTED.items() if not ran[name] and name not in never]


class World:
    """One schedule."""

    def __init__(self, seed: int, broken: frozenset[str] = frozenset(), losses: bool = False) -> None:
        rnd = self.rnd = random.Random(seed)
        self.broken, self.losses = broken, losses
        self.limits = LinkLimits(window=rnd.choice((1, 2, 4, 9)), backlog=rnd.choice((3, 16)), results=2)
        if self.limits.window > self.limits.backlog:
            self.limits = LinkLimits(window=self.limits.window, backlog=self.limits.window, results=2)
        durable = not losses and rnd.random() < 0.35
        self.terms = Terms(
            endpoint="e" * rnd.randrange(12),
            connector_size=rnd.choice((1, 2, 4, 8)),
            listener_size=rnd.choice((1, 2, 4, 8)),
            connector_transactions=rnd.random() < 0.5,
            listener_transactions=not durable and rnd.random() < 0.5,
        )
        #: whether A trusts every ``received``, and does not send a message again when B has lost it in a crash
        self.believes = durable and self.terms.connector_transactions and rnd.random() < 0.8
        self.origin = rnd.choice((0, (1 << 32) - 5, (1 << 32) - 1))
        self.epoch = 1_000
        self.ids = 0
        self.incarnations: dict[tuple[str, int], int] = {}
        self.sent: dict[Any, list[bytes]] = {}
        self.decided: dict[Any, Op] = {}
        self.result: dict[Any, Ack] = {}
        self.known: dict[Any, Ack] = {}
        self.delivered: dict[Any, list[tuple[int, bytes]]] = {}
        self.reported: set[Any] = set()
        self.was_lost = False
        self.cuts = self.resumes = self.crashes = self.lost_links = self.ends = self.refused = 0
        self.a, self.b = Side("A", self, False), Side("B", self, durable)
        self.a.other, self.b.other = self.b, self.a

    # Identities:

    def next_id(self) -> int:
        self.ids += 1
        return self.ids

    def incarnation(self, side: Side, channel: int) -> int:
        return self.incarnations.setdefault((side.name, channel), 0)

    def next_incarnation(self, side: Side, channel: int) -> None:
        self.incarnations[side.name, channel] = self.incarnation(side, channel) + 1

    def key(self, side: Side, channel: int) -> Any:
        return side.name, channel, self.incarnation(side, channel)

    def key_in(self, payload: bytes, channel: int, seq: int) -> Any:
        """Return the key of the channel that ``payload`` was sent on; it must be this channel, and have this number."""
        keys, seqs = eval(payload)
        for key, number in zip(keys, seqs, strict=True):
            if key[1] == channel and number == seq:
                return key
        raise Violation(f"message {payload!r} arrived as number {seq} of channel {channel}")

    def new_link(self, side: Side, epoch: int, id_: int) -> Link:
        link = WorldLink(
            self.terms, side is self.a, epoch, id_, self.limits, durable=side.durable, kept=not side.durable
        )
        link.origin = self.origin
        link.believes = self.believes and side is self.a
        return link

    # The network:

    def connect(self) -> None:
        a, b = self.a, self.b
        connection = a.connection = Connection()
        old = a.link
        hello = Hello(terms=self.terms, epoch=old.epoch if old else 0, link_id=old.id if old else 0)
        a.session = ConnectorSession(
            self.limits, old, hello=hello, new_link=lambda epoch, id_: self.new_link(a, epoch, id_)
        )
        if b.session is not None and b.connection is not None and b.connection.up["B"]:
            b.stale.append((b.session, b.connection))
        b.session, b.connection = ListenerSession(self.limits), connection
        self.flush()

    def flush(self) -> None:
        for side in (self.a, self.b):
            for session, connection in [(side.session, side.connection), *side.stale]:
                if session is None or connection is None:
                    continue
                data = b"".join(session.data_to_send())
                if connection.up[side.name] and connection.up[side.other.name]:
                    connection.to[side.other.name] += data

    def deliver(self, side: Side, everything: bool = False) -> None:
        """Deliver some bytes to ``side``, sometimes on an old connection that it should have given up."""
        ends = [(side.session, side.connection), *side.stale]
        session, connection = ends[0] if everything or self.rnd.random() < 0.5 else self.rnd.choice(ends)
        if session is None or connection is None or not connection.up[side.name]:
            return
        waiting = connection.to[side.name]
        size = len(waiting) if everything else min(len(waiting), self.rnd.choice((1, 5, 8, 8, 16, 40, 100, 1000)))
        if size or session.waiting:
            chunk = bytes(waiting[:size])
            del waiting[:size]
            found = session.receive_data(chunk)
            fresh = session is side.session
            side.take(found if fresh else [event for event in found if not fresh and _harmless(event)])
            if any(isinstance(event, (HelloReceived, Linked)) for event in found):
                side.take(session.receive_data(b""))

    def cut(self) -> None:
        """Break the connection; both sides notice it, or one of them notices it later."""
        self.cuts += 1
        connection = self.a.connection
        if connection is None:
            return
        kind = self.rnd.random()
        if kind < 0.8:
            self.hang_up(self.a, connection)
        if kind < 0.5 or kind >= 0.8:
            self.hang_up(self.b, connection)

    def hang_up(self, side: Side, connection: Connection) -> None:
        if not connection.up[side.name]:
            return
        connection.up[side.name] = False
        for session, mine in [(side.session, side.connection), *side.stale]:
            if mine is connection and session is not None:
                side.take(session.receive_eof())
        side.stale = [(session, mine) for session, mine in side.stale if mine is not connection]
        if side.connection is connection:
            side.session = side.connection = None

    def crash(self) -> None:
        """Kill B's process, and start it again."""
        b = self.b
        self.crashes += 1
        for connection in {b.connection, *(mine for _, mine in b.stale)} - {None}:
            connection.up["B"] = False
        b.session = b.connection = None
        b.stale.clear()
        b.flying.clear()
        b.inbox.clear()
        if b.link is not None:
            id_ = b.link.id
            b.link = None
            if b.saved is not None:
                b.link = self.new_link(b, self.epoch, id_)
                linklog.restore_snapshot(b.link, b.saved)

    def lose_link(self) -> None:
        """Let B lose its link, which begins another epoch."""
        self.lost_links += 1
        self.epoch += 1
        b = self.b
        for connection in {b.connection, *(mine for _, mine in b.stale)} - {None}:
            self.hang_up(b, connection)
        if b.link is not None:
            b.lose(b.link)
            b.link.over = True
            b.link = None

    # A schedule:

    def step(self) -> None:
        rnd = self.rnd
        side = self.a if rnd.random() < 0.5 else self.b
        what = rnd.random()
        channel = rnd.choice(CHANNELS)
        if what < 0.18:
            for _ in range(rnd.choice((1, 1, 1, 2, 3))):
                side.send(rnd.choice(([channel], [channel], [channel], [0, 1], [channel, channel])))
        elif what < 0.28:
            side.decide(channel)
        elif what < 0.31:
            side.close(channel)
        elif what < 0.50:
            side.process(channel)
            if side.durable and rnd.random() < 0.6:
                side.land()
        elif what < 0.96:
            self.deliver(side)
        elif what < 0.985:
            self.cut()
        elif side.durable and (what < 0.995 or self.believes):
            self.crash()
        self.notice()
        if self.losses and rnd.random() < 0.004:
            self.lose_link()
        self.flush()

    def notice(self) -> None:
        """Let A notice a half-open connection, and connect again, at some time."""
        connection = self.a.connection
        if connection is not None and not connection.up["B"] and self.rnd.random() < 0.2:
            self.hang_up(self.a, connection)
        if self.a.connection is None and not self.a.done and self.rnd.random() < 0.25:
            self.connect()

    def drain(self) -> None:
        """Finish the schedule: no new messages; all are decided, processed and closed, and both sides shut down."""
        self.a.leaving = self.b.leaving = True
        if self.a.connection is None:
            self.connect()
        cuts = self.rnd.choice((0, 0, 1, 3))
        for _ in range(600):
            for side in (self.a, self.b):
                self.deliver(side, everything=True)
                self.finish(side)
                self.flush()
            if cuts and self.rnd.random() < 0.05:
                cuts -= 1
                self.cut()
            if self.over():
                return
            self.notice()
            self.flush()
        raise Violation(f"the schedule does not end: {self.describe()}")

    def finish(self, side: Side) -> None:
        link = side.link
        if side.done or link is None:
            return
        for channel in CHANNELS:
            side.decide(channel, all_of_it=True)
            if side.sends_from_journal and channel == 0:
                side.produce()
            while side.inbox.get(channel):
                side.process(channel)
            while side.flying:
                side.land()
            if not link.over:
                side.close(channel)
        if not link.over:
            side.take(link.shutdown())

    def over(self) -> bool:
        a, b = self.a, self.b
        if a.done and not b.done and (b.link is None or self.rnd.random() < 0.5):
            # A has discarded the link and will not come back, so B's link expires; it must be empty.
            if b.link is not None and (b.link.sending or b.link.receiving or not b.link.shutdown_ever_sent):
                raise Violation("one side has ended the link, but the other has messages left")
            self.ends += 1
            b.done = True
        if b.done and b.link is not None and b.link.over:
            b.link = None  # discarded: if A comes back, the link is unknown
        return a.done and b.done

    def describe(self) -> str:
        return "; ".join(
            f"{side.name}: done {side.done}, " + ("no link" if side.link is None else f"{_channels(side.link)}")
            for side in (self.a, self.b)
        )

    # Rules:

    def check(self) -> None:
        for key, sent in self.sent.items():
            side = self.a if key[0] == "A" else self.b
            transactional = self.terms.connector_transactions if side is self.a else self.terms.listener_transactions
            got = self.delivered.get(key, [])
            if transactional:
                self.check_results(key, sent)
            if self.was_lost:
                self.check_lost(key, sent, got, transactional)
                continue
            want = [
                (seq, payload) for seq, payload in enumerate(sent, self.origin) if self.wanted(key, seq, transactional)
            ]
            if got != want:
                raise Violation(f"channel {key}: {len(sent)} sent, {len(want)} wanted, {len(got)} got")

    def wanted(self, key: Any, seq: int, transactional: bool) -> bool:
        return not transactional or self.result.get((key, seq)) is Ack.COMMITTED

    def check_results(self, key: Any, sent: list[bytes]) -> None:
        for seq in range(self.origin, self.origin + len(sent)):
            known, result, op = (table.get((key, seq)) for table in (self.known, self.result, self.decided))
            if op is not Op.COMMIT and result is not None:
                raise Violation(f"message {seq} of {key} was processed without a commit")
            if known is not None and known is not result:
                raise Violation(f"the sender was told {known} for message {seq} of {key}, but it is {result}")
            if not self.was_lost and op is Op.COMMIT and known is not result:
                raise Violation(f"the sender was not told {result} for message {seq} of {key}")

    def check_lost(self, key: Any, sent: list[bytes], got: list[bytes], transactional: bool) -> None:
        there = set(got)
        if len(got) != len(there) or [one for one in enumerate(sent, self.origin) if one in there] != got:
            raise Violation(f"channel {key}: repeated, or out of order, after its link was lost")
        for seq, payload in enumerate(sent, self.origin):
            settled = self.decided.get((key, seq)) is Op.ROLLBACK or self.known.get((key, seq)) is Ack.UNCOMMITTED
            if (seq, payload) not in there and (key, seq) not in self.reported and not (transactional and settled):
                raise Violation(f"message {seq} of {key} is lost without being reported")


def _harmless(event: Any) -> bool:
    """Return whether a replaced connection may still produce *event*: it no longer asks for the link."""
    return not isinstance(event, (HelloReceived, Linked))


def _channels(link: Link) -> str:
    ours = {id_: (c.mode.name, c.base, c.next, c.recv, c.dec) for id_, c in link.sending.items()}
    theirs = {id_: (c.mode.name, c.consumed, c.done, c.dec, c.next) for id_, c in link.receiving.items()}
    return f"sends {ours}, receives {theirs}"


def run(seed: int, broken: frozenset[str] = frozenset(), losses: bool = False, steps: int = 150) -> World:
    """Run the schedule of *seed*.

    :raises Violation: a rule was broken
    """
    world = World(seed, broken, losses)
    world.connect()
    for _ in range(steps):
        world.step()
    world.drain()
    world.check()
    return world
