"""Simulate ZeroMQ's sockets as the event bus uses them: complete messages, in order, as long as a connection lives.

    ClientPort (DEALER, SUB) ---- Channel ---- ServerPort (ROUTER, PUB)

The sockets do what libzmq does without telling anybody: messages on their way are lost with their connection, and so
are messages that a DEALER has not read, but not those that other sockets have not read; a new connection is a new peer
of a ROUTER; subscriptions take time to arrive, and a later call on the socket processes them; a PUB drops messages for
which a slow subscriber has no room; a monitor reports events a little later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from twisted.internet.error import ConnectionLost
from world import Host, World

from fyrehose.protocols.eventbus.queued_memory import Full, QueuedMessages
from fyrehose.protocols.eventbus.zmqport import CONNECTED, DISCONNECTED, Gone

Message = list[bytes]


@attrs.define(eq=False)
class Parcel:
    """A message under way; ``done`` is set when the sending socket no longer uses its memory."""

    frames: Message
    done: bool = False


@attrs.define(eq=False)
class Way:
    """One direction of a connection."""

    channel: Channel
    port: Any
    queue: deque[Parcel] = attrs.field(factory=deque)
    moving: bool = False

    def put(self, parcel: Parcel) -> None:
        self.queue.append(parcel)
        self.go()

    def go(self) -> None:
        """Deliver the messages under way after a delay."""
        if self.queue and not self.moving:
            world = self.channel.world
            self.moving = True
            world.clock.callLater(world.random.random() * (2.0 if self.channel.slow else 0.02), self._arrive)

    def _arrive(self) -> None:
        self.moving = False
        channel = self.channel
        if not channel.up or channel.is_cut_off() or self.port.is_full():
            return
        if self is channel.to_server and channel.server.frozen:
            return
        for _ in range(channel.world.random.choice((1, 3, len(self.queue)))):
            if self.queue:
                parcel = self.queue.popleft()
                parcel.done = True
                self.port.arrived(channel, parcel.frames)
        self.go()

    def lose(self) -> None:
        for parcel in self.queue:
            parcel.done = True
        self.queue.clear()


class Channel:
    """A connection of two sockets, with the interface of the world's other links."""

    def __init__(self, world: World, client: ClientPort, server: ServerPort) -> None:
        self.world, self.host, self.server = world, client.host, server.host
        self.client, self.listener = client, server
        self.identity = b"\0" + world.port().to_bytes(4, "big")
        self.up, self.slow = True, False
        self.to_server, self.to_client = Way(self, server), Way(self, client)
        world.links.append(self)

    def is_cut_off(self) -> bool:
        return bool({self.host, self.server.name} & self.world.partitioned)

    def go_on(self) -> None:
        self.to_server.go()
        self.to_client.go()

    def cut(self, reason: Exception | None = None) -> None:
        """Cut the connection; each end is told after a delay."""
        self._down()
        clock, dice = self.world.clock, self.world.random
        clock.callLater(dice.random() * 0.2, self.listener.left, self)
        clock.callLater(dice.random() * 0.2, self.client.lost, self)

    def server_crashed(self) -> None:
        self._down()
        self.world.clock.callLater(self.world.random.random(), self.client.lost, self)

    def _down(self) -> None:
        self.up = False
        self.to_server.lose()
        self.to_client.lose()
        if self in self.world.links:
            self.world.links.remove(self)


class Port:
    """A socket that reads messages in turns of the reactor, unless it is paused.

    :ivar later: the reactor's callLater
    """

    def __init__(self, later: Callable[..., object]) -> None:
        self.later = later
        self.reading = self.turning = False

    def start(self) -> None:
        self.reading = True
        self.schedule_turn()

    def pause(self) -> None:
        self.reading = False

    def schedule_turn(self) -> None:
        if self.reading and not self.turning:
            self.turning = True
            self.later(0, self._turn)

    def _turn(self) -> None:
        raise NotImplementedError


class ServerPort(Port):
    """A ROUTER or, with ``subscribers``, a PUB with the interface of :class:`fyrehose.protocols.eventbus.server.Port`.

    :ivar receive: called with each message, as in :class:`fyrehose.protocols.eventbus.zmqport.ZMQPort`
    :ivar turn_over: called after each turn, as in ``ZMQPort``
    :ivar wrote: called with each message that the server sends; for a ROUTER the routing id comes first
    :ivar waiting: how many messages may wait for one peer
    """

    def __init__(
        self,
        host: Host,
        waiting: int,
        wrote: Callable[[Message], None],
        receive: Callable[[Message, int], None] | None = None,
        turn_over: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(host.callLater)
        self.name, self.origin = "SNAPSHOT", ("10.0.0.1", -1, 0)
        self.host, self.waiting, self.wrote = host, waiting, wrote
        self.receive, self.turn_over = receive, turn_over
        self.peers: dict[bytes, Channel] = {}
        self.subscribed: dict[bytes, list[bytes]] = {}
        self.heard: deque[tuple[bytes, Message]] = deque()
        self.lent: list[Parcel] = []

    # The interface that the server calls:

    def process_commands(self) -> None:
        """Let a PUB socket process subscriptions that have arrived."""
        while self.receive is None and self.heard:
            identity, (prefix,) = self.heard.popleft()
            if identity in self.peers:
                self.subscribed.setdefault(identity, []).append(prefix)

    def drained(self) -> bool:
        return not self.heard

    def send(self, frames: Sequence[Any], account: QueuedMessages | None = None) -> None:
        parcel = Parcel([bytes(frame) for frame in frames])
        size = len(parcel.frames[-1])
        tracked = account is not None and account.tracks(size)
        self._route(parcel)
        if account is not None and tracked:
            account.add(parcel, size)
        elif account is not None:
            account.skip(size)

    def lend(self, frames: Sequence[Any]) -> None:
        parcel = Parcel([bytes(frame) for frame in frames])
        self._publish(parcel)
        self.lent.append(parcel)

    def lend_by_key(self, key: bytes, frames: Sequence[Any]) -> None:
        self.lend(frames)

    def held(self) -> tuple[int, int]:
        self.lent = [parcel for parcel in self.lent if not parcel.done]
        return len(self.lent), sum(len(frame) for parcel in self.lent for frame in parcel.frames)

    def _route(self, parcel: Parcel) -> None:
        identity, *frames = parcel.frames
        channel = self.peers.get(identity)
        if channel is None:
            raise Gone
        if len(channel.to_client.queue) >= self.waiting:
            raise Full
        self.wrote(parcel.frames)
        parcel.frames = frames
        if channel.up:
            channel.to_client.put(parcel)
        else:
            parcel.done = True

    def _publish(self, parcel: Parcel) -> None:
        self.wrote(parcel.frames)
        if self.host.world.random.random() < 0.5:
            self.process_commands()  # any call on the socket may process them
        parcel.done = True
        for identity, prefixes in self.subscribed.items():
            channel = self.peers[identity]
            full = len(channel.to_client.queue) >= self.waiting
            if parcel.frames[0].startswith(tuple(prefixes)) and channel.up and not full:
                parcel.done = False
                channel.to_client.put(parcel)

    def _turn(self) -> None:
        self.turning = False
        if not self.reading:
            return
        if self.receive is None:
            self.process_commands()
        else:
            for _ in range(self.host.world.random.choice((1, len(self.heard)))):
                if self.heard and self.reading:
                    identity, frames = self.heard.popleft()
                    channel = self.peers.get(identity)
                    self.origin = ("" if channel is None else channel.host, -1, 0)
                    self.receive([identity, *frames], 1 + len(frames))
        self.turn_over()
        if self.heard:
            self.schedule_turn()

    # The interface that the network calls:

    def is_full(self) -> bool:
        """Return False: senders never wait for this socket, which reads or keeps all that arrives."""
        return False

    def joined(self, channel: Channel) -> None:
        self.peers[channel.identity] = channel

    def arrived(self, channel: Channel, frames: Message) -> None:
        self.heard.append((channel.identity, frames))
        self.schedule_turn()

    def left(self, channel: Channel) -> None:
        self.peers.pop(channel.identity, None)
        self.subscribed.pop(channel.identity, None)


class ClientPort(Port):
    """A DEALER or, with ``subscribes``, a SUB with the interface of a client's ZMQPort.

    :ivar listener: the server's port; None if no server is reached
    :ivar happened: called with the events that a monitor reports
    :ivar room: how many messages may wait to be read, or to be sent
    """

    def __init__(
        self,
        world: World,
        host: str,
        listener: Callable[[], ServerPort | None],
        room: int,
        *,
        subscribes: bool,
        receive: Callable[[Message, int], None],
        turn_over: Callable[[], None],
        happened: Callable[[int, int], None],
    ) -> None:
        super().__init__(world.clock.callLater)
        self.world, self.host, self.listener, self.room = world, host, listener, room
        self.subscribes, self.receive, self.turn_over, self.happened = subscribes, receive, turn_over, happened
        self.socket = self  #: its only option is what is subscribed to
        self.prefixes: list[bytes] = []
        self.channel: Channel | None = None
        self.unread: deque[Message] = deque()
        self.closed = False
        self._reach_soon()

    # The interface that the client calls:

    def setsockopt(self, option: int, prefix: bytes) -> None:
        self.prefixes.append(prefix)
        if self.channel is not None and self.channel.up:
            self.channel.to_server.put(Parcel([prefix]))

    def send(self, frames: Sequence[Any]) -> None:
        channel = self.channel
        if channel is None or len(channel.to_server.queue) >= self.room:
            raise Full
        if channel.up:
            channel.to_server.put(Parcel([bytes(frame) for frame in frames]))

    def close(self, linger: int = 0) -> None:
        self.closed = True
        self.pause()
        self.unread.clear()
        if self.channel is not None and self.channel.up:
            self.channel.cut(ConnectionLost())

    # The interface that the network calls:

    def is_full(self) -> bool:
        return len(self.unread) >= self.room

    def arrived(self, channel: Channel, frames: Message) -> None:
        if not self.closed:
            self.unread.append(frames)
            self.schedule_turn()

    def lost(self, channel: Channel) -> None:
        if self.channel is not channel or self.closed:
            return
        self.channel = None
        if not self.subscribes:
            self.unread.clear()
        self._say(DISCONNECTED)
        self._reach_soon()

    # Internal:

    def _reach_soon(self) -> None:
        self.world.clock.callLater(self.world.random.random() * 0.2, self._reach)

    def _reach(self) -> None:
        if self.closed:
            return
        server = self.listener()
        if server is None or self.host in self.world.partitioned:
            self._reach_soon()
            return
        self.channel = Channel(self.world, self, server)
        server.joined(self.channel)
        for prefix in self.prefixes:
            self.channel.to_server.put(Parcel([prefix]))
        self._say(CONNECTED)

    def _say(self, event: int) -> None:
        # a constant delay, because a monitor keeps the order of events
        self.world.clock.callLater(0.01, self._said, event)

    def _said(self, event: int) -> None:
        if not self.closed:
            self.happened(event, 0)

    def _turn(self) -> None:
        self.turning = False
        if not self.reading:
            return
        for _ in range(self.world.random.choice((1, len(self.unread)))):
            if self.unread and self.reading:
                frames = self.unread.popleft()
                self.receive(frames, len(frames))
        if self.channel is not None:
            self.channel.go_on()
        self.turn_over()
        if self.unread:
            self.schedule_turn()
