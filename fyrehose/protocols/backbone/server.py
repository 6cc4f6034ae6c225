"""The server of the backbone: connects the UDP port and the session to the broker.

    port -> session -> Pushed  -> one run per source and turn -> broker.publish
                       Replay  -> broker.read, one slice per turn -> port
    broker.subscribe -> deliver -> encoded once -> every live subscriber -> port

A PUSH has no acknowledgement but its DELIVER, which is sent only when the broker delivers the record, so the record is
durable.  Messages that the journal refuses are dropped and counted; their publishers receive no DELIVER (rule 5 of the
client).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import FyrehoseError, JournalCorrupt
from fyrehose.identity import Action, Identity
from fyrehose.interfaces import IBroker, ISink, ISubscription
from fyrehose.protocols.backbone.frames import Address
from fyrehose.protocols.backbone.replays import Replays
from fyrehose.protocols.backbone.server_session import Dropped, Pushed, Replay, ServerSession
from fyrehose.protocols.backbone.settings import Settings
from fyrehose.protocols.backbone.trains import Delivers, Train, serialize_delivers
from fyrehose.records import Delivery, Run

log = Logger()

PROTOCOL = "backbone"
#: Causes that are counted and not logged, because they are normal.
QUIET = frozenset({"request-repeated", "request-of-nothing"})
#: Bytes of a replay for one destination before the next one has its turn.
SLICE = 64 << 10
#: Slices of replays in one turn of the reactor.
SLICES = 8
#: Delay before the next turn if the rates of all destinations are exhausted, in seconds.
REPLAY_WAIT = 0.01
#: How long a stopping server waits until accepted messages are durable and delivered, in seconds.
STOP_TIMEOUT = 10.0
#: Number of hosts whose permissions are cached.
HOSTS = 4_096
#: Memory of a run besides its columns, in bytes; a generous estimate.
RUN_OVERHEAD = 1 << 10


class Port(Protocol):
    """The part of :class:`fyrehose.protocols.backbone.udp.UDPPort` that the server uses."""

    address: Address

    @property
    def waiting(self) -> int: ...

    def answer(self, datagram: bytes, destination: Address) -> None: ...

    def send(self, train: Train, destination: Address) -> None: ...

    def flush(self) -> None: ...

    def stop_reading(self) -> None: ...

    def close(self) -> None: ...


@implementer(ISink)
class BackboneServer:
    """Publishes PUSHes, delivers the records of the stream, and answers REQUESTs from the journal.

    :param clock: schedules calls; the reactor
    :param random: chooses the clients that receive FORWARDs
    :param is_local: returns whether an address belongs to this machine; used if the port is bound to all addresses
    """

    port: Port

    def __init__(
        self,
        clock: IReactorTime,
        broker: IBroker,
        settings: Settings,
        random: Random,
        is_local: Callable[[str], bool],
    ) -> None:
        self._clock = clock
        self._broker = broker
        self._settings = settings
        self._is_local = is_local
        self._session = ServerSession(
            settings, lambda: broker.bounds(settings.stream), self._is_own, random, self._permits
        )
        self._brokers: dict[str, IBroker] = {}
        self._account = broker.budget.account(self)
        self._journal_behind = False
        self._pushed: dict[Address, list[Pushed]] = {}
        self._in_flight = 0
        self._published = 0
        self._subscription: ISubscription | None = None
        self._congested = False
        self._replays = Replays()
        self._replaying: IDelayedCall | None = None
        self._stopped: Deferred[None] | None = None
        self._deadline: IDelayedCall | None = None

    @property
    def subscribers(self) -> int:
        """Number of live subscribers."""
        now = self._clock.seconds()
        return len(self._session.established(now)) + len(self._session.newcomers(now))

    def start(self, port: Port) -> None:
        """Start to serve at *port*, which is bound."""
        self.port = port
        self._subscription = self._broker.subscribe(self._settings.stream, None, self)
        self._subscription.resumeProducing()

    def stop(self) -> Deferred[None]:
        """Stop serving.

        :return: fires when accepted messages are durable and delivered, or after STOP_TIMEOUT
        """
        self._stopped = Deferred()
        stopped = self._stopped
        self.port.stop_reading()
        self._replays.clear()
        self._deadline = self._clock.callLater(STOP_TIMEOUT, self._stop_now)
        self._check_stopped()
        return stopped

    # Called by the budget.

    def pauseProducing(self) -> None:
        """Drop PUSHes from now on, because the journal is behind; UDP senders cannot be paused."""
        self._journal_behind = True

    def resumeProducing(self) -> None:
        self._journal_behind = False

    # Called by the port.

    def datagrams_received(self, data: memoryview, segment: int, source: Address) -> None:
        for event in self._session.receive_datagrams(data, segment, source, self._clock.seconds()):
            if isinstance(event, Pushed):
                self._pushed.setdefault(source, []).append(event)
            elif isinstance(event, Replay):
                self._replay(event)
            else:
                self._drop(event)

    def turn_over(self) -> None:
        for destination, datagram in self._session.data_to_send():
            self.port.answer(datagram, destination)
        self.port.flush()
        if self._pushed:
            self._publish()

    def congested(self) -> None:
        self._congested = True
        if self._subscription is not None:
            self._subscription.pauseProducing()

    def relieved(self) -> None:
        self._congested = False
        if self._subscription is not None:
            self._subscription.resumeProducing()
        self._schedule_replay(0)
        self._check_stopped()

    # Called by the broker, with durable records of the stream.

    @property
    def subscriber(self) -> tuple[str, str]:
        return PROTOCOL, "all subscribers"

    def deliver(self, delivery: Delivery) -> None:
        now = self._clock.seconds()
        established = self._session.established(now)
        newcomers = self._session.newcomers(now)
        if established or newcomers:
            encoded = delivery.encoded(serialize_delivers)
            self._send(encoded, established, now)
            for destination, client in newcomers:
                for train in self._session.ration(client, encoded.trains, delivery.last_seq):
                    self.port.send(train, destination)
                    self._broker.counters.add(PROTOCOL, "delivers", train.count)
            self.port.flush()
        self._check_stopped()

    def skipped(self, first: int, last: int) -> None:
        """Count records that retention removed before they were delivered."""
        self._broker.counters.add(PROTOCOL, "skipped", last - first + 1)

    def ended(self, reason: Exception) -> None:
        self._subscription = None
        log.error("{protocol}: delivery has ended: {reason}", protocol=PROTOCOL, reason=str(reason))
        self._check_stopped()

    def _permits(self, host: str, action: Action) -> bool:
        broker = self._brokers.get(host)
        if broker is None:
            if len(self._brokers) >= HOSTS:
                self._brokers.clear()
            broker = self._brokers[host] = self._broker.identified(Identity(host=host))
        permitted: bool = broker.permits(action, self._settings.stream)
        return permitted

    def _is_own(self, address: Address) -> bool:
        host, port = self.port.address
        return address[1] == port and (address[0] == host or (host == "0.0.0.0" and self._is_local(address[0])))

    def _drop(self, event: Dropped) -> None:
        counters = self._broker.counters
        if event.cause in QUIET:
            counters.add(PROTOCOL, event.cause, event.count)
            return
        counters.refuse(log, PROTOCOL, event.cause, event.source[0], event.detail)
        if event.count > 1:
            counters.add(PROTOCOL, event.cause, event.count - 1)

    def _publish(self) -> None:
        """Publish the PUSHes of this turn: one run for each source, all in one batch."""
        pushed, self._pushed = self._pushed, {}
        count = sum(len(event.lengths) // 4 for events in pushed.values() for event in events)
        counters = self._broker.counters
        if self._journal_behind:
            self._drop(Dropped(source=next(iter(pushed)), cause="journal-behind", count=count))
            return
        runs = [self._run(source, events) for source, events in pushed.items()]
        size = sum(run.size + RUN_OVERHEAD for run in runs)
        counters.add(PROTOCOL, "pushes", count)
        counters.add(PROTOCOL, "pushed-bytes", sum(len(run.payload) for run in runs))
        large = sum(event.large for events in pushed.values() for event in events)
        if large:
            counters.add(PROTOCOL, "fragmented-pushes", large)
        self._in_flight += 1
        self._account.hold(size)

        def durable(firsts: tuple[int, ...]) -> None:
            self._published = max(self._published, firsts[-1] + len(runs[-1]) - 1)

        def refused(failure: Failure) -> None:
            failure.trap(FyrehoseError)
            cause = type(failure.value).__name__
            self._drop(Dropped(source=runs_from, cause=cause, detail=str(failure.value), count=count))

        def settle(result: Any) -> Any:
            self._in_flight -= 1
            self._account.release(size)
            self._check_stopped()
            return result

        runs_from = next(iter(pushed))
        self._broker.publish(runs).addCallbacks(durable, refused).addBoth(settle)

    def _run(self, source: Address, events: list[Pushed]) -> Run:
        lengths, payload = events[0].lengths, events[0].payload
        if len(events) > 1:
            lengths = b"".join(event.lengths for event in events)
            payload = b"".join(event.payload for event in events)
        return Run(
            stream=self._settings.stream,
            source=PROTOCOL,
            producer="{}:{}".format(*source),
            lengths=lengths,
            payload=payload,
        )

    def _send(self, encoded: Delivers, destinations: list[Address], now: float) -> None:
        counters = self._broker.counters
        sent = 0
        for destination in destinations:
            for train in encoded.trains:
                if self._session.ready(destination, now):
                    self._session.charge(destination, train.size, now)
                    self.port.send(train, destination)
                    sent += train.count
                else:
                    self._drop(Dropped(source=destination, cause="destination-rate", count=train.count))
        counters.add(PROTOCOL, "delivers", sent)
        if encoded.left_out:
            counters.add(PROTOCOL, "too-large-for-a-datagram", encoded.left_out)

    # Answers from the server's own journal, which takes turns with the clients that receive FORWARDs.

    def _replay(self, event: Replay) -> None:
        if self._stopped is not None:
            return
        if not self._replays.add(event.destination, event.first, event.last):
            self._drop(Dropped(source=event.destination, cause="replays-behind"))
        self._schedule_replay(0)

    def _schedule_replay(self, delay: float) -> None:
        if self._replays and self._replaying is None and not self._congested:
            self._replaying = self._clock.callLater(delay, self._replay_turn)

    def _replay_turn(self) -> None:
        self._replaying = None
        now = self._clock.seconds()
        sent = False
        for _ in range(min(SLICES, len(self._replays))):
            if self._congested or not self._replays:
                break
            destination, first, last = self._replays.next()
            if self._session.ready(destination, now):
                self._replays.sent(destination, self._replay_slice(destination, first, last, now))
                sent = True
        self._schedule_replay(0 if sent else REPLAY_WAIT)

    def _replay_slice(self, destination: Address, first: int, last: int, now: float) -> int:
        """Send some of the records *first* to *last*; return the sequence up to which the range is finished."""
        try:
            runs = self._broker.read(self._settings.stream, first, SLICE)
        except JournalCorrupt as damage:
            self._drop(Dropped(source=destination, cause="journal-corrupt", detail=str(damage)))
            return last
        wanted = tuple(run.slice(0, last - run.first_seq + 1) for run in runs if run.first_seq <= last)
        if not wanted:
            return last
        encoded = serialize_delivers(wanted)
        for train in encoded.trains:
            # A slice is sent completely, even beyond the rate; the next slice waits for the debt.
            self._session.charge(destination, train.size, now)
            self.port.send(train, destination)
        self.port.flush()
        self._broker.counters.add(PROTOCOL, "replayed", encoded.count)
        return wanted[-1].last_seq

    # Stopping.

    def _check_stopped(self) -> None:
        if self._stopped is None or self._in_flight or self.port.waiting:
            return
        if self._subscription is None or self._subscription.position >= self._published:
            self._stop_now()

    def _stop_now(self) -> None:
        stopped, self._stopped = self._stopped, None
        assert stopped is not None
        for timer in (self._deadline, self._replaying):
            if timer is not None and timer.active():
                timer.cancel()
        if self._subscription is not None:
            self._subscription.stopProducing()
            self._subscription = None
        self._account.close()
        self.port.close()
        stopped.callback(None)
