"""The protocol of the backbone's server: connects a UDP port and the session to the broker.

    port -> session -> Pushed  -> one run per source and turn -> broker.publish
                       Replay  -> broker.read, one slice per turn -> port
    broker.subscribe -> deliver -> serialized once -> every live subscriber -> port

A PUSH has no acknowledgement but its DELIVER, which is sent only when the broker delivers the record, so the record is
durable.  Messages that the journal refuses are dropped and counted; their publishers receive no DELIVER (rule 5 of the
client).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random, SystemRandom
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import FyrehoseError, JournalCorrupt
from fyrehose.identity import Action
from fyrehose.interfaces import IBroker, IRelay, ISubscription
from fyrehose.net.udp import is_local
from fyrehose.net.udp_server import UDPServerProtocol
from fyrehose.protocols.backbone.frames import HEADER, MAX_DATA, Address
from fyrehose.protocols.backbone.gso_batches import Delivers, Train, serialize_delivers
from fyrehose.protocols.backbone.ranges import Range, Ranges, Replays
from fyrehose.protocols.backbone.session import BackboneServerSession, Dropped, Pushed, Replay
from fyrehose.protocols.backbone.settings import BackboneSettings
from fyrehose.protocols.backbone.subscribers import KnownClient
from fyrehose.records import LAST_SEQ, Delivery, Publish, Run
from fyrehose.standing import ServerRole

log = Logger()

PROTOCOL = "backbone"
#: Causes that are counted and not logged, because they are normal.
QUIET = frozenset({"request-repeated", "request-of-nothing"})
#: Counters of the backbone, and the causes for which it drops datagrams.
EVENTS = (
    *QUIET,
    "answers-dropped",
    "delivers",
    "dropped-by-kernel",
    "fragmented-pushes",
    "held-back",
    "pushed-bytes",
    "pushes",
    "replayed",
    "skipped",
    "too-large-for-a-datagram",
)
REFUSALS = (
    "backward-range",
    "destination-rate",
    "empty",
    "foreign-address",
    "impossible-address",
    "journal-behind",
    "journal-corrupt",
    "not-for-servers",
    "own-address",
    "push-rate",
    "receive-error",
    "replays-behind",
    "request-rate",
    "request-without-keepalive",
    "subscriber-displaced",
    "too-many-subscribers",
    "unknown-type",
    "wrong-size",
)
#: Bytes of a replay for one destination before the next one has its turn.
SLICE = 64 << 10
#: Destinations of replays that one turn looks at, until one may be sent a slice.
SLICES = 8
#: Ranges in one slice: cutting many small ranges out of a long run takes time.
SLICE_RANGES = 64
#: Delay before the next turn if the rates of all destinations are exhausted, in seconds.
REPLAY_WAIT = 0.01
#: Answers (ACKs and FORWARDs) are dropped while this many trains of datagrams wait to be sent.
MOST_WAITING = 4_096


@implementer(IRelay)
class BackboneProtocol(UDPServerProtocol):
    """The server's protocol: it publishes PUSHes, delivers the stream's records, and answers REQUESTs from the journal.

    It works with any ``reactor.listenUDP(port, BackboneProtocol(broker))``; over a :class:`~.udp.UDPPort` it moves many
    datagrams per system call.  One instance serves one port.

    :param reactor: schedules calls; None: the global reactor
    :param random: chooses the clients that receive FORWARDs
    """

    name = PROTOCOL

    def __init__(
        self,
        broker: IBroker,
        settings: BackboneSettings | None = None,
        reactor: Any = None,
        random: Random | None = None,
    ) -> None:
        if reactor is None:
            from twisted.internet import reactor
        settings = settings or BackboneSettings()
        super().__init__(broker, settings, reactor, EVENTS, REFUSALS)
        # Restrict the stream here, not when the port is bound: other listeners may publish to it before that.
        broker.restrict(settings.stream, MAX_DATA)
        bounds = lambda: broker.bounds(settings.stream)  # noqa: E731
        self._session = BackboneServerSession(settings, bounds, self._is_own, random or SystemRandom(), self._permits)
        self._pushed: dict[Address, list[Pushed]] = {}
        self._published = 0
        self._sent = (0, 0)
        self._subscription: ISubscription | None = None
        self._replays = Replays()
        self._replaying = False  #: whether the next slice waits for its turn

    @property
    def subscribers(self) -> int:
        """Return the number of live subscribers."""
        now = self.reactor.seconds()
        return len(self._session.subscribers.receivers(now))

    def change(self, settings: BackboneSettings) -> None:
        """Use other settings, of the same stream, from now on."""
        super().change(settings)
        self._session.change(settings)

    def drain(self) -> Deferred[None]:
        self._replays.clear()
        return super().drain()

    # Called by the port.

    def startProtocol(self) -> None:
        """Start to deliver."""
        host = self.transport.getHost()
        self._address: Address = (host.host, host.port)
        super().startProtocol()
        self._subscription = self.broker.subscribe(self.settings.stream, None, self)
        self._subscription.resumeProducing()

    def stopProtocol(self) -> None:
        """Stop to deliver, because the port is closed."""
        self._replays.clear()
        if self._subscription is not None:
            self._subscription.stopProducing()
            self._subscription = None
        super().stopProtocol()

    def datagrams_received(self, data: memoryview, segment: int, source: Address) -> None:
        """Process datagrams that arrived together; messages wait for :meth:`turn_over` to be published.

        :param data: the datagrams, each of *segment* bytes, except that the last one may be shorter
        :param source: the address that they came from
        """
        if self.drained is not None:
            return
        for event in self._session.receive_datagrams(data, segment, source, self.reactor.seconds()):
            if isinstance(event, Pushed):
                self._pushed.setdefault(source, []).append(event)
            elif isinstance(event, Replay) and self._cannot_know(event):
                self._drop(Dropped(source=event.destination, cause="request-of-nothing"))
            elif isinstance(event, Replay):
                if not self._replays.add(event.destination, event.first, event.last):
                    self._drop(Dropped(source=event.destination, cause="replays-behind"))
                self._schedule_replay()
            else:
                self._drop(event)

    def _cannot_know(self, event: Replay) -> bool:
        """Return whether this server of a cluster may lack records that another one has delivered to the client.

        From an answer without them, the client would conclude that the sequences have begun again.
        """
        behind = event.last < LAST_SEQ and event.last > self.broker.bounds(self.settings.stream)[1]
        return behind and self.broker.standing.role is not ServerRole.ALONE

    def turn_over(self) -> None:
        """Send the answers to the datagrams of this turn of the reactor, and publish their messages."""
        answers = self._session.data_to_send()
        if answers and self.waiting < MOST_WAITING:
            for train, destination in answers:
                self.send(train, destination)
            self.flush()
        elif answers:
            self.counters.add(PROTOCOL, "answers-dropped", len(answers))
        if self._pushed:
            self._publish()

    def congested(self) -> None:
        if self._subscription is not None:
            self._subscription.pauseProducing()

    def relieved(self) -> None:
        if self._subscription is not None:
            self._subscription.resumeProducing()
        self._schedule_replay()
        self.check_drained()

    # Called by the broker, with durable records of the stream.

    @property
    def subscriber(self) -> tuple[str, str]:
        return PROTOCOL, f"{self.audience} client{'s' * (self.audience != 1)}"

    @property
    def audience(self) -> int:
        return self.subscribers

    @property
    def sent(self) -> tuple[int, int]:
        return self._sent

    def deliver(self, delivery: Delivery) -> None:
        """Send DELIVERs to all live subscribers; to one with a ration, only as many bytes as the ration allows."""
        now = self.reactor.seconds()
        receivers = self._session.subscribers.receivers(now)
        if receivers:
            self._deliver(delivery.encoded(serialize_delivers), delivery, receivers, now)
            self.flush()
        if self.drained is not None:
            self.check_drained()

    def skipped(self, first: int, last: int) -> None:
        """Count records that retention removed before they were delivered."""
        self.counters.add(PROTOCOL, "skipped", last - first + 1)

    def ended(self, reason: Exception) -> None:
        self._subscription = None
        log.error("{protocol}: delivery has ended: {reason}", protocol=PROTOCOL, reason=str(reason))
        self.check_drained()

    def _permits(self, host: str, action: Action) -> bool:
        permitted: bool = self.identified(host).permits(action, self.settings.stream)
        return permitted

    def _is_own(self, address: Address) -> bool:
        host, port = self._address
        return address[1] == port and (address[0] == host or (host == "0.0.0.0" and is_local(address[0])))

    def _drop(self, event: Dropped) -> None:
        counters = self.counters
        if event.cause in QUIET:
            counters.add(PROTOCOL, event.cause, event.count)
            return
        counters.refuse(log, PROTOCOL, event.cause, event.source[0], event.detail)
        if event.count > 1:
            counters.add(PROTOCOL, event.cause, event.count - 1)

    def _publish(self) -> None:
        """Publish the PUSHes of this turn: one run for each source, all in one batch."""
        pushed, self._pushed = self._pushed, {}
        source = next(iter(pushed))
        count = large = size = 0
        for events in pushed.values():
            for event in events:
                count += len(event.lengths) // 4
                size += len(event.payload)
                large += event.large
        if self.journal_behind:
            self._drop(Dropped(source=source, cause="journal-behind", count=count))
            return
        runs = []
        for each, events in pushed.items():
            runs.append(self._run(each, events))
        self.counters.add(PROTOCOL, "pushes", count)
        self.counters.add(PROTOCOL, "pushed-bytes", size)
        if large:
            self.counters.add(PROTOCOL, "fragmented-pushes", large)

        try:
            self.publish(runs, source)
        except Exception as error:
            self._refused(source, runs, error)

    def settle(self, items: Sequence[Publish]) -> None:
        self._published = max(self._published, items[-1].runs[-1].last_seq)
        super().settle(items)

    def _refused(self, source: Address, runs: Sequence[Run], error: Exception) -> None:
        if not isinstance(error, FyrehoseError):
            log.failure("{protocol}: publishing failed; please report this bug", Failure(error), protocol=PROTOCOL)
            return
        cause = type(error).__name__
        self._drop(Dropped(source=source, cause=cause, detail=str(error), count=sum(map(len, runs))))

    def _run(self, source: Address, events: list[Pushed]) -> Run:
        lengths, payload = events[0].lengths, events[0].payload
        if len(events) > 1:
            lengths = b"".join(event.lengths for event in events)
            payload = b"".join(event.payload for event in events)
        producer = "{}:{}".format(*source)
        return Run(stream=self.settings.stream, source=PROTOCOL, producer=producer, lengths=lengths, payload=payload)

    def _deliver(
        self, delivers: Delivers, delivery: Delivery, receivers: list[tuple[Address, KnownClient]], now: float
    ) -> None:
        rates = self._session.sent_bytes
        sent = 0
        for destination, client in receivers:
            trains = delivers.trains
            if client.credit is not None:
                trains = self._ration(client, delivers, [(delivery.first_seq, delivery.last_seq)])
            for train in trains:
                # The rate protects a victim of forged addresses; in a trusted network every DELIVER is sent (rule 3).
                if client.trusted or rates.spend(destination[0], train.size, now):
                    self.send(train, destination)
                    self._count_sent(train)
                    sent += train.count
                else:
                    self._drop(Dropped(source=destination, cause="destination-rate", count=train.count))
        self.counters.add(PROTOCOL, "delivers", sent)
        if delivers.left_out:
            self.counters.add(PROTOCOL, "too-large-for-a-datagram", delivers.left_out)

    def _ration(self, client: KnownClient, delivers: Delivers, ranges: Iterable[Range]) -> tuple[Train, ...]:
        trains = self._session.ration(client, delivers.trains, ranges)
        held = delivers.count - sum(train.count for train in trains)
        if held:
            self.counters.add(PROTOCOL, "held-back", held)
        return trains

    def _count_sent(self, train: Train) -> None:
        """Count a train of DELIVERs that was sent to one client."""
        messages, size = self._sent
        self._sent = (messages + train.count, size + train.size - HEADER * train.count)

    # Answers from the server's own journal, which takes turns with the clients that receive FORWARDs.

    def _schedule_replay(self) -> None:
        if self._replays and not self._replaying and not self.waiting:
            self._replaying = True
            self.broker.turns.ready(self)

    def take_turn(self) -> int:
        """Send a slice to the next destination whose rate allows it, and return its size in bytes."""
        self._replaying = False
        now = self.reactor.seconds()
        for _ in range(0 if self.waiting else min(SLICES, len(self._replays))):
            destination, ranges = self._replays.take()
            client = self._session.subscribers.find(destination, now)
            if client is None:
                continue
            if self._session.sent_bytes.spend(destination[0], 0, now):
                size, to = self._replay(destination, client, ranges, now)
                self._replays.put(destination, ranges.after(to))
                self._schedule_replay()
                return size
            self._replays.put(destination, ranges)
        if self._replays:
            self.timers.start(REPLAY_WAIT, self._schedule_replay)
        return 0

    def failed(self, failure: Failure) -> None:
        """Log *failure*, by which a turn has ended; its destination has to request its records again."""
        log.failure("{protocol}: answering a REQUEST failed; please report this bug", failure, protocol=PROTOCOL)
        self._schedule_replay()

    def _replay(self, destination: Address, client: KnownClient, ranges: Ranges, now: float) -> tuple[int, int]:
        """Send some of the records in *ranges*; return their size in bytes, and the last sequence that is done."""
        part = ranges.first(SLICE_RANGES)
        try:
            runs = self.broker.read(self.settings.stream, part[0][0], SLICE)
        except JournalCorrupt as damage:
            self._drop(Dropped(source=destination, cause="journal-corrupt", detail=str(damage)))
            return 0, part[0][1]
        delivers = serialize_delivers(part.select(runs))
        trains = self._ration(client, delivers, ranges)
        size = sent = 0
        for train in trains:
            # A slice is sent completely, even beyond the rate; the next slice waits until the rate has repaid the debt.
            self._session.sent_bytes.charge(destination[0], train.size, now)
            self.send(train, destination)
            self._count_sent(train)
            size, sent = size + train.size, sent + train.count
        self.flush()
        self.counters.add(PROTOCOL, "replayed", sent)
        if sent < delivers.count:
            return size, ranges[-1][1]  # the ration holds the rest back
        return size, min(part[-1][1], runs[-1].last_seq) if runs else part[-1][1]

    def is_settled(self) -> bool:
        """Return whether everything that was accepted is durable, and was delivered and sent."""
        delivered = self._subscription is None or self._subscription.position >= self._published
        return delivered and not self.waiting and super().is_settled()
