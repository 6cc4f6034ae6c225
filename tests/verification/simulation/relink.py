"""Simulate Relink clients, whose links outlive connections and the server, and check what becomes of their messages.

a message is stored at most once, and never if its transaction was rolled back or it was refused
the messages of a channel are stored in their order; a transaction is stored completely or not at all
a link that was used is never lost, and over one link a subscriber gets each record once
the position of a named subscription never goes back, and never passes what its consumer has accepted
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import attrs
from history import History, Reader, Sent
from links import Endpoint
from server import Server
from sides import Side
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from world import Host, Violation, World

from fyrehose.errors import Closed, LocalProtocolError
from fyrehose.net.clients import ConnectionOptions
from fyrehose.protocols.relink.client import RelinkClient
from fyrehose.protocols.relink.events import Uncommitted, UnknownOutcome, Unsettled
from fyrehose.protocols.relink.link import LinkLimits
from fyrehose.protocols.relink.messages import join
from fyrehose.protocols.relink.plugin import plugin
from fyrehose.protocols.relink.reader import RelinkReader
from fyrehose.protocols.relink.registry import Registry
from fyrehose.protocols.relink.service import RelinkFactory, RelinkService
from fyrehose.protocols.relink.settings import RelinkSettings
from fyrehose.records import Run

PORT = 7733
STREAM = "relink"
#: The stream in which the server keeps its links.
LINKS = ".relink/links"
#: The stream in which the server keeps the positions of named subscriptions.
POSITIONS = ".subscriptions"


@attrs.define(eq=False)
class Group:
    """The messages of one transaction, or a single message.

    :ivar may_be_stored: False if it was rolled back or refused
    """

    payloads: list[bytes] = attrs.field(factory=list)
    may_be_stored: bool = True

    def copies(self) -> int:
        return int(self.may_be_stored)


class Client:
    """The common base of publishers and subscribers."""

    def __init__(self, side: Relink, number: int, name: str, **options: Any) -> None:
        self.side, self.name = side, f"relink-{number}"
        world, dice = side.world, side.world.random
        self.connected = self.closed = self.used = False
        self.published = 0
        window = dice.choice((1, 4, 64))
        self.client = RelinkClient(
            world.clock,
            Endpoint(world, self.name, PORT, servers=side.server.names),
            name,
            limits=LinkLimits(window=window, backlog=window * 4),
            on_lost=self.lost,
            on_state=partial(setattr, self, "connected"),
            connection_options=ConnectionOptions(retry=lambda failures: 0.3 * min(failures, 6) * (0.5 + dice.random())),
            **options,
        )
        self.client.connect().addErrback(lambda failure: failure.trap(Closed))

    def lost(self, unsettled: list[Unsettled]) -> None:
        if self.used:
            self.side.history.wrong(
                f"{self.name}: its link was lost although it was used, with {len(unsettled)} messages"
            )

    def close(self) -> None:
        self.closed = True
        self.client.close()


class Publisher(Client):
    """A client that publishes single messages or transactions."""

    def __init__(self, side: Relink, number: int) -> None:
        dice = side.world.random
        super().__init__(side, number, f"publish:{STREAM}", transactional=dice.random() < 0.5)
        self.groups: list[Group] = []
        self.waiting = 0

    def act(self) -> None:
        dice = self.side.world.random
        channel = dice.choice((0, 0, 1))
        if self.client.transactional:
            self._begin()
            self._settle(Deferred.fromCoroutine(self._transaction(channel)), lambda: None)
            return
        for _ in range(dice.choice(self.side.world.bursts)):
            if self.closed or not self.client.room(channel):
                return
            group = Group()
            self.groups.append(group)
            parts = self._message(channel, group)
            self._begin()
            self._settle(self.client.send(parts, channel), partial(self._acknowledged, group))

    def _begin(self) -> None:
        self.waiting += 1

    def _settle(self, done: Deferred[Any], acknowledged: Any) -> None:
        done.addCallback(lambda _: acknowledged()).addErrback(self._failed).addBoth(
            lambda _: setattr(self, "waiting", self.waiting - 1)
        )

    def _failed(self, failure: Failure) -> None:
        # A transaction that waits to begin when its client is closed fails with LocalProtocolError.
        failure.trap(UnknownOutcome, Closed, Violation, *((LocalProtocolError,) if self.closed else ()))

    async def _transaction(self, channel: int) -> None:
        dice = self.side.world.random
        transaction = self.client.transaction(channel)
        await transaction.begin()
        counts = dice.random() < 0.7
        group = Group(may_be_stored=counts)
        for _ in range(min(dice.choice(self.side.world.bursts), self.client.limits.window)):
            await transaction.send(self._message(channel, group))
        if not counts:
            transaction.rollback()
            return
        self.groups.append(group)
        try:
            await transaction.commit()
        except Uncommitted:
            group.may_be_stored = False
            if any(self.side.history.stored.get(STREAM, {}).get(payload) for payload in group.payloads):
                self.side.history.wrong(f"{self.name}: {group.payloads[0][:40]!r} was refused, but is stored")
            return
        self._acknowledged(group)

    def _message(self, channel: int, group: Group) -> bytes | tuple[bytes, ...]:
        """Return the parts of the next message, after adding its payload to ``group``."""
        dice = self.side.world.random
        self.published += 1
        whole = f"{self.name}:{self.published}:".encode() + b"." * self.side.world.size()
        parts = (whole,) if dice.random() < 0.8 else (whole, b"", whole[:3])
        payload = whole if len(parts) == 1 else join(parts)
        sent = Sent(f"{self.name}/{channel}", self.published, group.copies)
        self.side.history.send(STREAM, payload, sent)
        group.payloads.append(payload)
        return parts

    def _acknowledged(self, group: Group) -> None:
        self.used = True
        for payload in group.payloads:
            self.side.history.acknowledge(STREAM, payload)

    def owed(self) -> str:
        """Return what this publisher still waits for, or an empty string."""
        stored = self.side.history.stored.get(STREAM, {})
        for group in self.groups:
            found = sum(payload in stored for payload in group.payloads)
            if 0 < found < len(group.payloads):
                return f"of a transaction of {self.name} {found} of {len(group.payloads)} messages are stored"
        if not self.closed and (self.waiting or not self.connected):
            return f"{self.name} is connected: {self.connected}, and waits for {self.waiting} acknowledgements"
        return ""


class Subscriber(Client):
    """A client that accepts each record, at once or after a while."""

    def __init__(self, side: Relink, number: int, stream: str, after: int) -> None:
        self.after = after
        self.reader = Reader(side.history, stream, f"relink-{number}", after)
        super().__init__(side, number, f"subscribe:{stream}@{after}", on_message=self._take)

    def lost(self, unsettled: list[Unsettled]) -> None:
        if not self.side.server.was_full:
            super().lost(unsettled)
        # A link that was made while the disk was full is lost in a restart; its reader begins again.
        self.reader.position = self.after

    def _take(self, channel: int, number: int, parts: tuple[bytes, ...]) -> Any:
        self.used = True
        payload = parts[0] if len(parts) == 1 else join(parts)
        if channel or number != (self.reader.position or 0) - self.after:
            self.side.history.wrong(f"{self.name} gets number {number} of channel {channel} at {self.reader.position}")
        self.reader.take((self.reader.position or 0) + 1, [payload])
        world = self.side.world
        if world.random.random() < 0.7:
            return None
        taken: Deferred[None] = Deferred()
        world.clock.callLater(world.random.random() * 0.1, taken.callback, None)
        return taken

    def act(self) -> None:
        (self.client.pause if self.side.world.random.random() < 0.3 else self.client.resume)()

    def owed(self) -> str:
        """Return what this subscriber still waits for, or an empty string."""
        end = len(self.side.history.truth.get(self.reader.stream, ()))
        if self.closed or (self.connected and self.reader.position == end):
            return ""
        return f"{self.name} is connected: {self.connected}, and has {self.reader.position} of {end}"


class Numbered:
    """A reader that knows the numbers of records, so that it gets each record once even if its links are lost."""

    #: the name of its subscription, or None
    subscription: str | None = None

    def __init__(self, side: Relink, number: int, stream: str, after: int) -> None:
        self.side, self.name = side, f"relink-{number}"
        world, dice = side.world, side.world.random
        self.connected = self.closed = False
        self.published = 0
        self.read = Reader(side.history, stream, self.name, after)
        endpoint = Endpoint(world, self.name, PORT, servers=side.server.names)
        options = ConnectionOptions(retry=lambda failures: 0.3 * min(failures, 6) * (0.5 + dice.random()))
        self.client = RelinkReader(world.clock, endpoint, connection_options=options)
        self.client.subscribe(stream, self._take, after, self._missed, name=self.subscription)
        self.client.on_state = partial(setattr, self, "connected")
        self.client.connect().addErrback(lambda failure: failure.trap(Closed))

    def _take(self, run: Run) -> Any:
        self.read.take(run.first_seq, [bytes(run.payload)])
        world = self.side.world
        if world.random.random() < 0.7:
            return None
        taken: Deferred[None] = Deferred()
        world.clock.callLater(world.random.random() * 0.1, taken.callback, None)
        return taken

    def _missed(self, first: int, last: int) -> None:
        self.side.history.wrong(f"{self.name} was told that {first} to {last} are gone")

    def act(self) -> None:
        dice = self.side.world.random
        connection = self.client.connection
        if dice.random() < 0.2 and self.client.link is not None and connection is not None:
            self.client.protocol_broken()  # act as if the listener had violated the protocol
            connection.leave()
            return
        (self.client.pause if dice.random() < 0.3 else self.client.resume)()

    def owed(self) -> str:
        """Return what this reader still waits for, or an empty string."""
        end = len(self.side.history.truth.get(self.read.stream, ()))
        if self.closed or (self.connected and self.read.position == end):
            return ""
        return f"{self.name} is connected: {self.connected}, and has {self.read.position} of {end}"

    def close(self) -> None:
        self.closed = True
        self.client.close()


class Consumer(Numbered):
    """A reader with a named subscription, whose position the server keeps."""

    def __init__(self, side: Relink, number: int, stream: str, after: int) -> None:
        self.subscription = f"relink-{number}"
        self.done, self.known = after, 0
        super().__init__(side, number, stream, after)

    def _take(self, run: Run) -> Any:
        taken = super()._take(run)
        if taken is None:
            self.done = run.last_seq
            return None
        return taken.addCallback(lambda _: setattr(self, "done", run.last_seq))

    def check(self, broker: Any) -> None:
        """Check that the position on the server has not gone back and does not pass the records that were accepted."""
        named = broker.table.entries.get(self.subscription)
        if named is None:
            if self.known:
                self.side.history.wrong(f"{self.name}: its subscription is lost, whose position was {self.known}")
            return
        if not self.known <= named.seq <= self.done:
            self.side.history.wrong(
                f"{self.name}: its position is {named.seq} after {self.known}, and it accepted up to {self.done}"
            )
        if named.durable or not named.appended:  # until then its creation may be lost
            self.known = named.seq

    def owed(self) -> str:
        owed = super().owed()
        if owed or self.closed:
            return owed
        end = len(self.side.history.truth.get(self.read.stream, ()))
        return "" if self.known == end else f"the position of {self.name} is {self.known} of {end}"


class Relink(Side):
    """All Relink clients of a simulation.

    :param topics: further streams that clients read, which clients of other protocols publish
    :param herd: how many clients there are, of a server with default options; 0 means a few
    """

    #: whether its clients cope with records that were lost or deleted
    gaps = False
    topics = (STREAM,)

    def __init__(
        self, world: World, server: Server, history: History, topics: tuple[str, ...] = (), herd: int = 0
    ) -> None:
        dice = world.random
        self.world, self.server, self.history = world, server, history
        self.readable = (STREAM, STREAM, *topics)
        history.internal |= {LINKS, POSITIONS}
        self.settings = (
            RelinkSettings() if herd else RelinkSettings(window=dice.choice((2, 1024)), backlog=dice.choice((64, 1024)))
        )
        server.listen(self._listener, plugin.abilities.only_leading)
        self.clients: list[Publisher | Subscriber | Numbered] = []
        self.made = 0
        for _ in range(herd or dice.randint(1, 3)):
            self.connect()

    def _listener(self, host: Host, broker: Any) -> RelinkService:
        randbits = Random(self.world.random.random()).getrandbits
        registry = Registry(broker, host, self.settings, LINKS, randbits)
        return RelinkService(host, f"tcp:{PORT}", RelinkFactory(broker, self.settings, host, registry))

    def connect(self) -> None:
        dice = self.world.random
        self.made += 1
        if dice.random() < 0.6:
            self.clients.append(Publisher(self, self.made))
            return
        stream = dice.choice(self.readable)
        known, leading = len(self.history.truth.get(stream, ())), self.server.leading_broker()
        if leading is not None:
            # A follower may show a record moments before the leader does (docs/cluster.md).
            known = min(known, leading.bounds(stream)[1])
        kind = dice.choice((Subscriber, Numbered, Consumer))
        self.clients.append(kind(self, self.made, stream, dice.choice((0, dice.randint(0, known)))))

    def _check_positions(self) -> None:
        """Check the positions of named subscriptions while a server accepts messages."""
        broker = self.server.leading_broker()
        if broker is not None:
            for client in self.clients:
                if isinstance(client, Consumer):
                    client.check(broker)

    def step(self) -> None:
        self._check_positions()
        dice = self.world.random
        living = [client for client in self.clients if not client.closed]
        what = dice.random()
        if what < 0.1 and len(living) < 4:
            self.connect()
        elif what < 0.15 and len(living) > 1:
            dice.choice(living).close()
        elif living:
            dice.choice(living).act()

    def everybody(self) -> None:
        """Publish a message with every publisher of a herd."""
        for client in self.clients:
            if isinstance(client, Publisher):
                client.act()

    def calm(self) -> None:
        for client in self.clients:
            client.client.resume()

    def settled(self) -> str:
        """Return which messages clients still wait for, or an empty string."""
        self._check_positions()
        return super().settled()

    def close(self) -> None:
        for client in self.clients:
            if not client.closed:
                client.close()
