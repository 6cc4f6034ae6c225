"""One of the two peers of relink_world.py: its link, its connections, and the application above them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from fyrehose.errors import Broken
from fyrehose.protocols.relink import events, linklog
from fyrehose.protocols.relink.channels import ReceiveChannel, SendChannel, Sending
from fyrehose.protocols.relink.frames import Ack, Op
from fyrehose.protocols.relink.link import Link
from fyrehose.protocols.relink.messages import column_of
from fyrehose.protocols.relink.session import HelloReceived, Linked, LinkUnknown

if TYPE_CHECKING:
    from relink_world import World

CHANNELS = (0, 1)


class Violation(Exception):
    """A rule that must always hold was broken."""


class WorldLink(Link):
    """A link whose numbers begin anywhere, so that some wrap at 2^32; it may trust ``received`` for ever."""

    origin = 0
    #: whether earlier ``received`` count even if the peer, after a crash, reports that it has fewer messages
    believes = False

    def attach(self, *, resumed: bool) -> None:
        held = {id_: channel.recv for id_, channel in self.sending.items()}
        super().attach(resumed=resumed)
        for id_, recv in held.items() if self.believes else ():
            self.sending[id_].recv = max(recv, self.sending[id_].recv)
        for channel in self.sending.values():
            channel.reported = self.origin - 1

    def channel(self, channel: int) -> SendChannel:
        new = channel not in self.sending
        found = super().channel(channel)
        if new:
            found.next = found.base = self.origin
            found.recv = found.dec = found.settled = self.origin - 1
        return found

    def _open(self, channel: int, again: bool = False) -> ReceiveChannel:
        found = super()._open(channel, again)
        found.next = self.origin
        found.dec = found.done = found.consumed = found.acknowledged = self.origin - 1
        return found


class Connection:
    """The bytes under way in a connection, and which of the two peers believes that it is open."""

    def __init__(self) -> None:
        self.to = {"A": bytearray(), "B": bytearray()}
        self.up = {"A": True, "B": True}


class Side:
    """A peer: its link, its connections, and the application above them."""

    def __init__(self, name: str, world: World, durable: bool) -> None:
        self.name, self.world, self.durable = name, world, durable
        self.other: Side
        self.link: Link | None = None
        self.session: Any = None
        self.connection: Connection | None = None
        self.stale: list[tuple[Any, Connection]] = []
        self.inbox: dict[int, deque[tuple[int, bytes, bool]]] = {}
        self.flying: deque[tuple[list[tuple[Any, bytes, Any]], bytes, Any]] = deque()
        self.saved: bytes | None = None
        self.leaving = False
        self.done = False
        self.produced: dict[int, list[bytes]] = {}

    # The application as a sender:

    @property
    def believes(self) -> bool:
        return isinstance(self.link, WorldLink) and self.link.believes

    @property
    def sends_from_journal(self) -> bool:
        return self.link is not None and not self.link.kept

    def send(self, channels: list[int]) -> None:
        link, world = self.link, self.world
        if link is None or link.over:
            return
        if self.sends_from_journal:
            self.produce()
            return
        for channel in set(channels):
            if channel not in link.sending and self.leaving:
                return
            sent = link.channel(channel)
            if sent.room < channels.count(channel) or (self.believes and sent.dec >= sent.base):
                # A side that trusts ``received`` has one transaction at a time: later messages would get the same
                # numbers.
                return
        keys = [(self.name, channel, world.incarnation(self, channel)) for channel in channels]
        seqs, ahead = [], {}
        for channel in channels:
            seqs.append(link.channel(channel).next + ahead.setdefault(channel, 0))
            ahead[channel] += 1
        payload = repr((keys, seqs)).encode()
        rnd = world.rnd
        parts = (payload, *(b"x" * rnd.randrange(20) for _ in range(rnd.choice((0, 0, 0, 1, 2)))))
        if link.send(channels, parts) != tuple(seqs):
            raise Violation("the link has given other numbers than expected")
        for key in keys:
            world.sent.setdefault(key, []).append(payload)

    def produce(self) -> None:
        """Send records of a server's stream, which can be read again from its journal."""
        link, world = self.link, self.world
        assert link is not None
        if self.leaving and 0 not in link.sending:
            return
        channel = link.channel(0)
        key = (self.name, 0, 0)
        made = self.produced.setdefault(0, [])
        if not link.may_send or channel.room < 1 or channel.unsure:
            return
        first = channel.next - world.origin
        last = first + min(channel.room, world.rnd.choice((1, 1, 2, 4)))
        while len(made) < last and not self.leaving:
            payload = repr(([key], [world.origin + len(made)])).encode()
            made.append(payload)
            world.sent.setdefault(key, []).append(payload)
        if made[first:last]:
            link.send_run(0, column_of(made[first:last]))

    def decide(self, channel: int, all_of_it: bool = False) -> None:
        link, rnd = self.link, self.world.rnd
        found = link.sending.get(channel) if link is not None else None
        if link is None or found is None or not found.undecided or found.mode is not Sending.OPEN:
            return
        op = Op.COMMIT if rnd.random() < 0.6 else Op.ROLLBACK
        count = found.undecided if all_of_it or self.believes else rnd.randint(1, found.undecided)
        first, last = link.decide(channel, op, found.dec + count)
        for seq in range(first, last + 1):
            self.world.decided[self.world.key(self, channel), seq] = op

    def close(self, channel: int) -> None:
        link = self.link
        found = link.sending.get(channel) if link is not None else None
        if link is None or found is None or found.mode is not Sending.OPEN or found.undecided:
            return
        if not found.kept:
            all_sent = found.next - self.world.origin == len(self.produced.get(0, ()))
            if not self.leaving or not link.may_send or not all_sent:
                return  # a server closes the channel of its stream when its subscriber leaves
        link.close(channel)

    # The application as a receiver:

    def process(self, channel: int) -> None:
        """Finish the oldest message."""
        link, rnd, world = self.link, self.world.rnd, self.world
        box = self.inbox.get(channel)
        if link is None or not box:
            return
        seq, payload, commit = box.popleft()
        if not payload:
            self.refuse(channel, seq, commit)
            return
        result = None
        if link.peer_transactions and commit:
            result = Ack.COMMITTED if rnd.random() < 0.7 else Ack.UNCOMMITTED
        effects = []
        key = world.key_in(payload, channel, seq)
        if result is not Ack.UNCOMMITTED and (commit or not link.peer_transactions):
            effects.append((key, payload, None))
        if result is not None:
            effects.append((key, payload, (seq, result)))
        link.stage(channel, seq, result)
        self.fly(effects, ("settle", channel, seq))

    def refuse(self, channel: int, last: int, commit: bool) -> None:
        """Finish messages that the peer has forgotten or does not have any more."""
        assert self.link is not None
        first, key = self.link.receiving[channel].done + 1, self.world.key(self.other, channel)
        refused = [(key, b"", (seq, Ack.UNCOMMITTED)) for seq in range(first, last + 1)] if commit else []
        self.link.stage(channel, last, Ack.UNCOMMITTED if commit else None)
        self.world.refused += len(refused)
        self.fly(refused, ("settle", channel, last))

    def fly(self, effects: list[tuple[Any, bytes, Any]], then: Any) -> None:
        assert self.link is not None
        self.flying.append((effects, linklog.save_snapshot(self.link) if self.durable else b"", then))
        if not self.durable:
            self.land()

    def land(self) -> None:
        """Complete the oldest write, which makes it durable."""
        if not self.flying:
            return
        effects, saved, (what, channel, seq) = self.flying.popleft()
        for key, payload, result in effects:
            if result is None:
                self.world.delivered.setdefault(key, []).append((seq, payload))
            else:
                self.world.result[key, result[0]] = result[1]
        if self.durable and not self.leaving:
            self.saved = saved
        assert self.link is not None
        if what == "settle":
            self.link.settle(channel, seq)
        else:
            self.take(self.link.forget(channel))

    # Events:

    def take(self, found: list[Any]) -> None:
        for event in found:
            getattr(self, f"on_{type(event).__name__.lower()}")(event)

    def on_helloreceived(self, event: HelloReceived) -> None:
        world, hello = self.world, event.hello
        if hello.terms != world.terms:
            raise Violation("other terms arrived than were sent")
        while self.flying:
            self.land()
        known = self.link is not None and hello.link_id == self.link.id and hello.epoch == world.epoch
        if known:
            for session, _ in self.stale:
                if "fence" not in world.broken:
                    session.fenced()  # rule L4
            assert self.link is not None
            if self.link.attached:
                self.link.detach()  # still attached only if the rule "fence" was removed
            if self.durable:
                self.inbox.clear()
            self.take(self.session.accept(self.link, resumed=True))
            return
        if self.link is not None:
            self.lose(self.link)
        self.link = world.new_link(self, world.epoch, world.next_id())
        if self.durable:
            self.link.channel(0)  # a channel that is not in the snapshot would begin again
            self.saved = linklog.save_snapshot(self.link)
        self.take(self.session.accept(self.link, resumed=False))

    def on_linked(self, event: Linked) -> None:
        if event.lost is not None:
            old = event.lost
            if self.leaving and old.shutdown_ever_sent and not old.sending:
                self.done = True  # the listener had already ended the link in order
                self.world.ends += 1
                return
            self.lose(old)
        if self.link is not event.link:
            self.link = event.link
            self.inbox.clear()

    def lose(self, link: Link) -> None:
        """Report the messages whose outcome is unknown, because the link is lost."""
        self.world.was_lost = True
        self.inbox.clear()
        for message in link.unsettled():
            self.world.reported.add((self.world.key(self, message.channel), message.seq))
        for channel in link.sending:
            self.world.next_incarnation(self, channel)

    def on_linkunknown(self, event: LinkUnknown) -> None:
        raise Violation("the peer refused a link that was not required to exist")

    def on_resumed(self, event: events.Resumed) -> None:
        self.world.resumes += 1

    def on_received(self, event: events.Received) -> None:
        box = self.inbox.setdefault(event.channel, deque())
        for seq, parts in enumerate(event.messages, event.first):
            box.append((seq, parts[0], True))

    def on_decided(self, event: events.Decided) -> None:
        box = self.inbox.setdefault(event.channel, deque())
        for seq, parts in enumerate(event.messages, event.first):
            box.append((seq, parts[0], event.commit))
        if event.dropped is not None:
            box.append((event.last, b"", event.commit))

    def on_resulted(self, event: events.Resulted) -> None:
        key = self.world.key(self, event.channel)
        for seq in range(event.first, event.last + 1):
            if (key, seq) in self.world.known:
                raise Violation("the peer reported a result twice")
            self.world.known[key, seq] = event.result

    def on_consumed(self, event: events.Consumed) -> None:
        if event.last < event.first:
            raise Violation("a Consumed event contains no message")

    def on_rewound(self, event: events.Rewound) -> None:
        if event.next - self.world.origin > len(self.produced.get(0, ())):
            raise Violation("the peer acknowledged a message that was never sent")

    def on_channelclosed(self, event: events.ChannelClosed) -> None:
        self.world.next_incarnation(self, event.channel)

    def on_finished(self, event: events.Finished) -> None:
        assert self.link is not None
        if not self.link.receiving[event.channel].leaving:
            self.link.receiving[event.channel].leaving = True
            self.fly([], ("forget", event.channel, 0))

    def on_peershutdown(self, event: events.PeerShutdown) -> None:
        if not self.leaving:
            raise Violation("the peer shut down before this side was leaving")

    def on_ended(self, event: events.Ended) -> None:
        self.done = True

    def on_broken(self, event: Broken) -> None:
        raise Violation(f"{self.name} says that {self.other.name} broke a rule: {event.error}")
