"""The server of the event bus: connects the three ports and the session to the broker.

    COLLECTOR  -> session -> runs of a turn -> broker.publish
    SNAPSHOT   -> session -> snapshots -> broker.read, a piece at a time -> SYNC ... SYNCEND -> SNAPSHOT
    broker.subscribe -> deliver -> BROADCAST -> PUBLISHER; ZeroMQ filters by subscription

The server does not answer a PUB.  Its BROADCAST is the acknowledgement; it is sent only when the broker delivers the
record, so the record is durable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, repeat

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.broker.peer import publisher_for
from fyrehose.errors import (
    FyrehoseError,
    InvalidName,
    JournalCorrupt,
    PayloadTooLarge,
    ReadOnly,
    RemoteProtocolError,
)
from fyrehose.identity import network_of
from fyrehose.interfaces import IBroker, IRelay, ISubscription
from fyrehose.net.lifecycle import Timers
from fyrehose.protocols.eventbus.columns import PROTOCOL, EventBatch, Frames, event_frames
from fyrehose.protocols.eventbus.connections import AcceptedConnection, Connections
from fyrehose.protocols.eventbus.queued_memory import BroadcastMemory, Full, MemoryFull
from fyrehose.protocols.eventbus.recognition import RecognizedSubscribers
from fyrehose.protocols.eventbus.session import FOR_REFERENCE, EventBusServerSession
from fyrehose.protocols.eventbus.settings import EventBusSettings
from fyrehose.protocols.eventbus.slow_subscribers import SlowSubscribers
from fyrehose.protocols.eventbus.snapshots import SnapshotAnswer
from fyrehose.protocols.eventbus.zmqport import Gone, ZMQPort
from fyrehose.records import Delivery, Publish, Run

log = Logger()

#: Causes that are counted and not logged, because they are normal.
QUIET = frozenset({"duplicate", "snapshot-left"})
#: Upper bounds of one turn of snapshots: events in all, and bytes of data for each client.
EVENTS_TURN = 500
#: Upper bounds of one turn of broadcasts: bytes of data, events, and events times subscribers, because ZeroMQ queues an
#: event for each subscriber.
BYTES_TURN = 256 << 10
BROADCASTS_TURN = 64
COPIES_TURN = 4_096
#: How many bytes an active snapshot may send before a waiting snapshot takes its place.
SNAPSHOT_SHARE = 1 << 20
#: Bytes that are read from the journal for a snapshot at a time.
PIECE = 64 << 10
#: Reading a piece of the journal that has no event for the client counts as this many events of a turn.
PIECE_COST = 50
#: Delay before the next turn if no snapshot can be sent, in seconds.
SNAPSHOT_WAIT = 0.05
#: Upper bound of the memory of events that wait for subscribers, in bytes.
BROADCAST_MEMORY = 32 << 20
#: How often the send queues of subscribers are checked while that memory is used up, in seconds.
BROADCAST_LOOK = 0.02
#: Delay before events that a full disk refused are published again, in seconds.
FULL_WAIT = 5.0
#: How many networks with clients that cannot read broadcasts are logged; clients of further networks are only counted.
MOST_WARNED = 1_000
#: How long a stopping server continues to read events that clients have sent, in seconds.
READ_TIMEOUT = 1.0
#: How long a stopping server waits until accepted events are durable and broadcast, in seconds.
STOP_TIMEOUT = 10.0


@implementer(IRelay)
class EventBusServer:
    """The server of an event bus, which publishes PUBs, broadcasts the stream's records, and answers SYNCSTARTs.

    :param clock: schedules calls; the reactor
    :param connections: lists and closes connections; default: there are none
    """

    _snapshot: ZMQPort
    _publisher: ZMQPort
    _collector: ZMQPort

    def __init__(
        self,
        clock: IReactorTime,
        broker: IBroker,
        settings: EventBusSettings,
        connections: Connections | None = None,
    ) -> None:
        self._clock = clock
        self._timers = Timers(clock)
        self._broker = broker
        self._settings = settings
        self._connections = Connections() if connections is None else connections
        self._session = EventBusServerSession(settings)
        self._subscribers = RecognizedSubscribers(settings.dialect)
        # Publishing: the events that are not durable yet, and those that a full disk has refused.
        self._account = broker.budget.account(self)
        self._journal = publisher_for(broker, self._account, self._settle)
        self._unsettled = 0  #: publishes that are neither durable nor refused
        self._published = 0
        self._unwritten: list[EventBatch] = []
        # Broadcasting: the delivery that is being sent.
        self._subscription: ISubscription | None = None
        self._outgoing: Iterator[tuple[bytes | None, Frames]] | None = None
        self._sent = (0, 0)
        # Snapshots.
        self._parked_checked = 0.0
        self._warned: set[str] = set()  #: networks of clients of the reference program that were logged
        # Stopping.
        self._stopping = False
        self._stopped: Deferred[None] | None = None
        self._reading_ended = False

    def start(self, snapshot: ZMQPort, publisher: ZMQPort, collector: ZMQPort, number: int = 0) -> None:
        """Start to serve at these ports, which are bound.

        :param number: the port number of SNAPSHOT; PUBLISHER uses the next one
        """
        self._snapshot, self._publisher, self._collector, self._number = snapshot, publisher, collector, number
        self._memory = BroadcastMemory(BROADCAST_MEMORY, publisher.held)
        self._slow_subscribers = SlowSubscribers(partial(self._connections.of, number + 1))
        self._subscription = self._broker.subscribe(self._settings.stream, None, self)
        self._subscription.resumeProducing()
        for port in (snapshot, publisher, collector):
            port.start()

    def change(self, settings: EventBusSettings) -> None:
        """Use other settings from now on, with the same stream and dialect."""
        self._settings = settings
        self._session.change(settings)

    def stop(self) -> Deferred[None]:
        """Stop serving.

        The server still publishes events that have arrived, and cancels snapshots, which clients request again.

        :return: a Deferred that fires when all accepted events are durable and broadcast, or after STOP_TIMEOUT
        """
        self._stopping = True
        stopped = self._stopped = Deferred()
        self._session.snapshots.clear()
        self._timers.start(READ_TIMEOUT, self._stop_reading)
        self._timers.start(STOP_TIMEOUT, self._stop_now)
        self._snapshot.pause()
        self._collector.schedule_turn()
        self.publish_turn()
        return stopped

    # Called by the budget, to pause and resume the reading of COLLECTOR.

    def pauseProducing(self) -> None:
        self._update_reading()

    def resumeProducing(self) -> None:
        self._update_reading()

    # Called by the ports.

    def pub_received(self, message: list[bytes], count: int) -> None:
        """Process a message of COLLECTOR; see :meth:`EventBusServerSession.receive_pub`."""
        error = self._session.receive_pub(message, count, self._clock.seconds())
        if error is not None:
            self._drop(error, self._collector, message[0])

    def publish_turn(self) -> None:
        """Publish all events of this turn of COLLECTOR in one batch."""
        batch = self._session.take()
        if batch is not None:
            self._broker.counters.add(PROTOCOL, "pubs", batch.count)
            self._broker.counters.add(PROTOCOL, "pub-bytes", batch.size)
            self._publish(batch)
        if self._stopping and self._collector.drained():
            self._stop_reading()

    def request_received(self, message: list[bytes], count: int) -> None:
        """Process a message of SNAPSHOT; see :meth:`EventBusServerSession.receive_request`."""
        host, descriptor, number = self._snapshot.origin
        close = partial(self._connections.close, self._number, descriptor, number)
        answer = self._session.receive_request(message, count, host, network_of(host), close)
        if isinstance(answer, RemoteProtocolError):
            self._drop(answer, self._snapshot, message[0])
            return
        self._broker.counters.add(PROTOCOL, "snapshots")
        if answer.replaced:
            self._broker.counters.add(PROTOCOL, "snapshot-replaced")
        if answer.wrong_dialect:
            self._warn_of_dialect(host)
        # A client subscribes before it sends SYNCSTART.  The socket has to process that subscription before the end of
        # the snapshot is determined, or the client would miss events between the two.
        self._publisher.process_commands()

    def _warn_of_dialect(self, host: str) -> None:
        self._broker.counters.add(PROTOCOL, "decimal-requests")
        network = network_of(host)
        if network not in self._warned and len(self._warned) < MOST_WARNED:
            self._warned.add(network)
            log.warn(
                "{protocol}: {host} at {port} sends sequences as decimal text, but subscribers of these subtrees are "
                "sent binary ones: clients of the reference program (Node) drop such events; pass {option}, or open "
                "a second listener for them (logged once for each address)",
                protocol=PROTOCOL,
                host=host,
                port=self._snapshot.name,
                option=FOR_REFERENCE,
            )

    def subscription_received(self, message: list[bytes], count: int) -> None:
        """Process a message of PUBLISHER; see :meth:`RecognizedSubscribers.received`."""
        host, descriptor, number = self._publisher.origin
        self._publisher.process_events()  # the subscriber may have left
        connection = self._connections.find(self._number + 1, descriptor, number)
        if count != 1 or connection is None:
            return
        before = self._subscribers.dialect(connection)
        try:
            change = self._subscribers.received(message[0], connection, network_of(host))
        except RemoteProtocolError as error:
            self._drop(error, self._publisher, b"")
            connection.close()
            return
        self._publisher.resubscribe(change.added, change.removed)
        if self._subscribers.dialect(connection) is not before:
            self._broker.counters.add(PROTOCOL, f"{self._subscribers.dialect(connection)}-subscribers")

    def subscriber_left(self, connection: AcceptedConnection) -> None:
        """Forget the subscriptions of a connection that has ended."""
        self._subscribers.left(connection)

    def serve_snapshots(self) -> None:
        """Send snapshots, because a turn of SNAPSHOT is over, or its socket has room again."""
        if len(self._session.snapshots):
            self._timers.start(0, self._serve)

    # Called by the broker, with durable records of the stream.

    @property
    def subscriber(self) -> tuple[str, str]:
        return PROTOCOL, f"{self.audience} client{'s' * (self.audience != 1)}"

    @property
    def audience(self) -> int:
        return self._connections.count(self._number + 1)

    @property
    def sent(self) -> tuple[int, int]:
        return self._sent

    def deliver(self, delivery: Delivery) -> None:
        assert self._subscription is not None
        self._subscription.pauseProducing()
        self._outgoing = chain.from_iterable(map(self._broadcasts, delivery.runs))
        self.take_turn()

    def _broadcasts(self, run: Run) -> Iterator[tuple[bytes | None, Frames]]:
        """Return the events of *run* in each dialect that subscribers use, each with the key that selects receivers.

        The key is None for the usual dialect: the topic itself then chooses the receivers.

        Events without a topic reach only subscribers to everything in the usual dialect, because an empty key cannot
        tell the dialects apart.
        """
        topic = (run.topic or "").encode()
        usual = None if topic else b""
        return chain(zip(repeat(usual), event_frames(run, self._subscribers.usual)), self._for_others(run, topic))

    def _for_others(self, run: Run, topic: bytes) -> Iterator[tuple[bytes, Frames]]:
        # A generator, so that subscribers are counted after the usual events were sent: some may change their dialect
        # meanwhile.
        if self._subscribers.others and topic:
            yield from zip(repeat(self._subscribers.key_of(topic)), event_frames(run, self._subscribers.other))

    def skipped(self, first: int, last: int) -> None:
        """Count records that retention removed before they were broadcast; sequences may have gaps."""
        self._broker.counters.add(PROTOCOL, "skipped", last - first + 1)

    def ended(self, reason: Exception) -> None:
        self._subscription = None
        log.error("{protocol}: broadcasting has ended: {reason}", protocol=PROTOCOL, reason=str(reason))
        self._check_stopped()

    # Publishing.

    def _publish(self, batch: EventBatch) -> None:
        self._unsettled += 1
        try:
            self._journal.publish(batch.runs, batch)
        except Exception as error:
            self._unsettled -= 1
            self._refused(batch, error)
            self._check_stopped()

    def _settle(self, items: Sequence[Publish], error: Exception | None) -> None:
        """Handle publishes that became durable, or were refused, by the same commit."""
        self._unsettled -= len(items)
        if error is None:
            self._published = max(self._published, items[-1].runs[-1].last_seq)
        else:
            for item in items:
                self._refused(item.note, error)
        self._check_stopped()

    def _refused(self, batch: EventBatch, error: Exception) -> None:
        if not isinstance(error, FyrehoseError):
            log.failure("{protocol}: publishing failed; please report this bug", Failure(error), protocol=PROTOCOL)
            return
        if isinstance(error, PayloadTooLarge | InvalidName) and batch.count > 1:
            # Publish the events separately, because a refused event must not affect the others.
            for part in batch.parts():
                self._publish(part)
            return
        self._broker.counters.refuse(log, PROTOCOL, type(error).__name__, f"{batch.count} events", str(error))
        if isinstance(error, ReadOnly) and not self._stopping:
            # Clients of the reference program do not resend, so keep the batch, pause COLLECTOR, and retry until the
            # disk has room.
            self._account.hold(batch.size)
            self._unwritten.append(batch)
            self._timers.start(FULL_WAIT, self._retry)
            self._update_reading()
        else:
            self._session.failed(batch)

    def _retry(self) -> None:
        kept, self._unwritten = self._unwritten, []
        for batch in kept:
            self._publish(batch)
            self._account.release(batch.size)
        self._update_reading()

    def _update_reading(self) -> None:
        if self._account.paused or self._unwritten or self._reading_ended:
            self._collector.pause()
        else:
            self._collector.start()

    # Broadcasting.

    def failed(self, failure: Failure) -> None:
        """Leave out the rest of the delivered records, whose broadcast failed; subscribers request what they miss."""
        log.failure("{protocol}: broadcasting failed; please report this bug", failure, protocol=PROTOCOL)
        self._outgoing = None
        if self._subscription is not None:
            self._subscription.resumeProducing()
        self._check_stopped()

    def take_turn(self) -> int:
        """Broadcast some of the delivered records, and ask for another turn if there are more; return their size."""
        outgoing, publisher, memory, audience = self._outgoing, self._publisher, self._memory, self.audience
        if outgoing is None:  # the server has stopped
            return 0
        most = max(min(BROADCASTS_TURN, COPIES_TURN // max(audience, 1)), 1)
        publisher.process_commands()
        if memory.size(audience) <= memory.limit // 2:
            self._slow_subscribers.forget()
        sent = size = 0
        for key, frames in outgoing:
            length = len(frames[-1])
            if memory.take(length, audience):
                if key is None:
                    publisher.lend(frames)
                else:
                    publisher.lend_by_key(key, frames)
            elif self._wait_for_subscribers():
                self._outgoing = chain(((key, frames),), outgoing)
                self._timers.start(BROADCAST_LOOK, self.take_turn)
                break
            else:
                # No slow subscriber can be found, so send the event to no subscriber; all have to request it.
                detail = f"an event of {length} bytes is not broadcast; subscribers have to request it"
                self._broker.counters.refuse(log, PROTOCOL, "broadcast-memory-full", "subscribers", detail)
            sent += 1
            size += length
            if sent >= most or size >= BYTES_TURN:
                self._broker.turns.ready(self)
                break
        else:
            self._outgoing = None
        self._broker.counters.add(PROTOCOL, "broadcasts", sent)
        # ZeroMQ does not tell which connections the filter by topic lets an event pass to.
        self._sent = (self._sent[0] + sent * audience, self._sent[1] + size * audience)
        if self._outgoing is None:
            if self._subscription is not None:
                self._subscription.resumeProducing()
            self._check_stopped()
        return size

    def _wait_for_subscribers(self) -> bool:
        """Close the connections of slow subscribers; return whether to continue to wait."""
        slow = self._slow_subscribers.slow(self._clock.seconds(), self._memory.released)
        for connection in slow or ():
            detail = "this subscriber delays others: connection closed; after reconnecting it can request missed events"
            where = f"{connection.host} at {self._publisher.name}"
            self._broker.counters.refuse(log, PROTOCOL, "subscriber-too-slow", where, detail)
            connection.close()
        return slow is not None

    # Snapshots.

    def _serve(self) -> None:
        """Send some messages of each active snapshot in turn, up to EVENTS_TURN in all."""
        snapshots = self._session.snapshots
        now, end = self._clock.seconds(), self._broker.bounds(self._settings.stream)[1]
        self._check_parked(now)
        left = EVENTS_TURN
        served: set[bytes] = set()
        while left > 0:
            snapshots.admit(end, now)
            snapshot = snapshots.next(served)
            if snapshot is None:
                break
            served.add(snapshot.identity)
            left = self._send_some(snapshot, left, now)
        if len(snapshots):
            self._timers.start(0 if left < EVENTS_TURN else SNAPSHOT_WAIT, self._serve)

    def _check_parked(self, now: float) -> None:
        """Queue parked snapshots whose clients have read something; cancel those that have stalled."""
        if now - self._parked_checked < SNAPSHOT_WAIT:
            return
        self._parked_checked = now
        self._session.pool.settle()
        snapshots, tries = self._session.snapshots, self._settings.snapshots
        for snapshot in list(snapshots.parked.values()):
            held, snapshot.held = snapshot.held, snapshot.account.size
            if snapshot.held < held:
                snapshots.wait(snapshot)
                snapshot.progressed = now
            elif not self._cancel_stalled(snapshot, now) and not snapshot.held and tries > 0:
                # The socket holds nothing for this client, so no release will show that it reads: try to send again.
                tries -= 1
                snapshots.wait(snapshot)

    def _send_some(self, snapshot: SnapshotAnswer, left: int, now: float) -> int:
        """Send at most *left* messages of *snapshot*; return the number that remains of *left*."""
        sent = size = 0
        envelope: Frames = (snapshot.identity, b"") if snapshot.delimiter else (snapshot.identity,)
        try:
            while left > 0 and size < BYTES_TURN and not snapshot.ended:
                message = snapshot.peek()
                if message is None:
                    snapshot.feed(self._broker.read(self._settings.stream, snapshot.next, PIECE), now)
                    if snapshot.peek() is None:
                        left -= PIECE_COST
                    continue
                self._snapshot.send((*envelope, *message), snapshot.account)
                snapshot.sent(now)
                size += len(message[-1])
                sent += 1
                left -= 1
        except Full as full:
            snapshot.starved = isinstance(full, MemoryFull) and not snapshot.account.size
            if not self._session.snapshots.waiting:
                self._cancel_stalled(snapshot, now)
            else:  # another snapshot waits to become active
                snapshot.held = snapshot.account.size
                self._session.snapshots.park(snapshot)
        except Gone:
            self._cancel(snapshot, "snapshot-left")
        except JournalCorrupt as damage:
            self._cancel(snapshot, "journal-corrupt", str(damage))
        except Exception as error:  # an error of one snapshot must not affect the others, which wait for their turns
            log.failure("{protocol}: sending a snapshot failed; please report this bug", protocol=PROTOCOL)
            self._cancel(snapshot, "snapshot-failed", str(error))
        self._broker.counters.add(PROTOCOL, "syncs", sent - snapshot.ended)
        snapshot.turn_bytes += size
        if snapshot.ended:
            self._session.snapshots.forget(snapshot)
        elif snapshot.turn_bytes >= SNAPSHOT_SHARE and self._session.snapshots.waiting:
            self._session.snapshots.wait(snapshot)
        return left

    def _cancel_stalled(self, snapshot: SnapshotAnswer, now: float) -> bool:
        """Cancel *snapshot* if its client has read nothing for too long; return whether it was cancelled."""
        timeout = self._settings.timeout
        if snapshot.starved:
            snapshot.progressed = now
        if now - snapshot.progressed <= timeout:
            return False
        detail = f"it has read nothing for {timeout:g} s: connection closed, it has to send SYNCSTART again"
        self._cancel(snapshot, "snapshot-stalled", detail)
        # Closing the connection frees the messages that ZeroMQ holds for it.
        snapshot.close()
        return True

    def _cancel(self, snapshot: SnapshotAnswer, cause: str, detail: str = "") -> None:
        self._session.snapshots.forget(snapshot)
        self._count(cause, detail, snapshot.host, self._snapshot, snapshot.identity)

    # Refused messages.

    def _drop(self, error: RemoteProtocolError, port: ZMQPort, identity: bytes) -> None:
        detail = str(error).removeprefix(error.cause).removeprefix(": ")
        self._count(error.cause, detail, port.origin[0], port, identity)

    def _count(self, cause: str, detail: str, host: str, port: ZMQPort, identity: bytes) -> None:
        if cause in QUIET:
            self._broker.counters.add(PROTOCOL, cause)
        else:
            peer = f"{host} at {port.name} (client {identity[:16].hex()})"
            self._broker.counters.refuse(log, PROTOCOL, cause, peer, detail)

    # Stopping.

    def _stop_reading(self) -> None:
        self._reading_ended = True
        self._update_reading()
        self._check_stopped()

    def _check_stopped(self) -> None:
        """Finish stopping, if every event that was read is durable and broadcast."""
        if not self._reading_ended or self._unsettled or self._outgoing is not None:
            return
        if self._subscription is None or self._subscription.position >= self._published:
            self._stop_now()

    def _stop_now(self) -> None:
        stopped, self._stopped = self._stopped, None
        if stopped is None:
            return
        self._reading_ended = True
        self._update_reading()
        self._timers.end()
        if self._subscription is not None:
            self._subscription.stopProducing()
            self._subscription = None
        for batch in self._unwritten:
            self._broker.counters.refuse(log, PROTOCOL, "not-published-at-stop", f"{batch.count} events")
        self._outgoing = None
        self._account.close()
        stopped.callback(None)
