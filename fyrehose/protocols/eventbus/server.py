"""The server of the event bus: three ports outside, a session inside, the broker behind it.

    COLLECTOR  -> session -> drafts of a turn -> broker.publish
    SNAPSHOT   -> session -> snapshots -> broker.read, a piece at a time -> SYNC ... SYNCEND -> SNAPSHOT
    broker.subscribe -> deliver -> BROADCAST -> PUBLISHER, whose subscribers are ZeroMQ's business

A PUB is never answered: its BROADCAST is the acknowledgement, and that comes from the subscription alone, so it is of
a durable record.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import cast

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import FyrehoseError, InvalidName, JournalCorrupt, PayloadTooLarge, ReadOnly
from fyrehose.identity import network_of
from fyrehose.interfaces import IBroker, ISink, ISubscription
from fyrehose.protocols.eventbus.encoding import PROTOCOL, Frames, event_frames
from fyrehose.protocols.eventbus.laggards import Laggards
from fyrehose.protocols.eventbus.lent import Lent
from fyrehose.protocols.eventbus.ports import Peers, Port
from fyrehose.protocols.eventbus.session import Batch, Refused, ServerSession
from fyrehose.protocols.eventbus.settings import Settings
from fyrehose.protocols.eventbus.snapshots import Snapshot
from fyrehose.protocols.eventbus.zmqport import Crowded, Full, Gone
from fyrehose.records import Delivery

log = Logger()

#: Drops that are everyday life: counted, not worth a line.
QUIET = frozenset({"duplicate", "snapshot-left"})
#: What goes out in one turn, of broadcasts and of snapshots each: events, and bytes of data.
EVENTS_TURN = 500
BYTES_TURN = 256 << 10
#: What a snapshot may send before it gives its place to one that waits, in bytes.
SNAPSHOT_SHARE = 1 << 20
#: What is read of the journal for a snapshot at a time, in bytes.
PIECE = 64 << 10
#: A piece that has nothing for its client counts as so many events of a turn.
PIECE_COST = 50
#: How long snapshots wait that all have to wait, when nothing else wakes them, in seconds.
SNAPSHOT_WAIT = 0.05
#: What large events may take that wait for subscribers, all together, in bytes.
BROADCAST_MEMORY = 256 << 20
#: How often subscribers are looked at when that is used up, and how long the others wait for slow ones, in seconds.
BROADCAST_LOOK = 0.02
BROADCAST_WAIT = 1.0
#: How long nothing is read after the disk was found to be full, in seconds.
FULL_WAIT = 5.0
#: How long stopping goes on reading what clients have sent, in seconds.
LAST_CALL = 1.0
#: How long stopping waits for what was accepted to be durable and broadcast, in seconds.
PATIENCE = 10.0


@implementer(ISink)
class EventBusServer:
    """Owner of the ports, sink of the stream."""

    def __init__(
        self,
        clock: IReactorTime,
        broker: IBroker,
        settings: Settings,
        peers: Peers | None = None,
    ) -> None:
        self._clock = clock
        self._broker = broker
        self._settings = settings
        self._peers = peers or Peers()
        self._laggards = Laggards(self._peers.subscribers)
        #: since when large events wait for subscribers, and when those were judged last
        self._full_since: float | None = None
        self._judged = 0.0
        self._session = ServerSession(settings)
        self._account = broker.budget.account(self)
        self._crowded = False
        self._in_flight = 0
        self._published = 0
        self._kept: list[Batch] = []
        self._retrying: IDelayedCall | None = None
        self._subscription: ISubscription | None = None
        self._outgoing: Iterator[Frames] | None = None
        self._lent = Lent(BROADCAST_MEMORY)
        self._pumping: IDelayedCall | None = None
        self._serving: IDelayedCall | None = None
        self._looked = 0.0
        self._said = False
        self._stopping = False
        self._stopped: Deferred[None] | None = None
        self._heard_all = False
        self._deadlines: list[IDelayedCall] = []

    def start(self, snapshot: Port, publisher: Port, collector: Port) -> None:
        """Serve at these ports, which are bound."""
        self._snapshot, self._publisher, self._collector = snapshot, publisher, collector
        self._subscription = self._broker.subscribe(self._settings.stream, None, self)
        self._subscription.resumeProducing()
        for port in (snapshot, publisher, collector):
            port.start()

    def stop(self) -> Deferred[None]:
        """Take nothing more in than has come already; fires when that is durable and was broadcast, or took too long.

        The past is not finished: clients ask again.
        """
        self._stopping = True
        stopped: Deferred[None] = Deferred()
        self._stopped = stopped
        self._session.snapshots.clear()
        self._deadlines = [
            self._clock.callLater(LAST_CALL, self._heard_enough),
            self._clock.callLater(PATIENCE, self._stop_now),
        ]
        self._snapshot.pause()
        self._collector.poke()
        self._collector_idle()
        return stopped

    # What the budget calls: the reading half of COLLECTOR.

    def pauseProducing(self) -> None:
        self._crowded = True
        self._switch()

    def resumeProducing(self) -> None:
        self._crowded = False
        self._switch()

    # What the ports call.

    def pub_received(self, message: list[bytes], count: int) -> None:
        """A message that came to COLLECTOR."""
        refused = self._session.receive_pub(message, count, self._clock.seconds())
        if refused is not None:
            self._drop(refused, self._collector)

    def pubs_over(self) -> None:
        """COLLECTOR's turn is over: all that came in it is published at once."""
        batch = self._session.take()
        if batch is not None:
            counters = self._broker.counters
            counters.add(PROTOCOL, "pubs", batch.count)
            counters.add(PROTOCOL, "pub-bytes", batch.size)
            self._account.hold(batch.size)
            self._publish(batch)
        self._collector_idle()

    def request_received(self, message: list[bytes], count: int) -> None:
        """A message that came to SNAPSHOT."""
        host, descriptor = self._snapshot.origin
        answer = self._session.receive_request(message, count, host, network_of(host), descriptor)
        if isinstance(answer, Refused):
            self._drop(answer, self._snapshot)
            return
        self._broker.counters.add(PROTOCOL, "snapshots")
        if answer.again:
            self._broker.counters.add(PROTOCOL, "snapshot-replaced")
        if answer.deaf:
            self._say_how_to_hear(host)
        # A client subscribes before it asks; that it did must be known before the end of its snapshot is.
        self._publisher.take_in()

    def _say_how_to_hear(self, host: str) -> None:
        counters = self._broker.counters
        counters.add(PROTOCOL, "decimal-requests")
        if not self._said:
            self._said = True
            log.warn(
                "{protocol}: {host} at {port} asks with a sequence in decimal text, and broadcasts have it binary: a "
                "client of the reference program (Node) drops every one of them; for those use "
                "--option eventbus.sequence=decimal, in a listener of their own if there are others (said once)",
                protocol=PROTOCOL,
                host=host,
                port=self._snapshot.name,
            )

    def requests_over(self) -> None:
        """SNAPSHOT's turn is over; it may also take more than before."""
        if len(self._session.snapshots):
            self._serve_soon(0)

    # What the broker calls: durable records of the stream.

    @property
    def subscriber(self) -> tuple[str, str]:
        return PROTOCOL, "all subscribers"

    def deliver(self, delivery: Delivery) -> None:
        assert self._subscription is not None
        self._subscription.pauseProducing()
        dialect = self._settings.sequence
        self._outgoing = chain.from_iterable(event_frames(run, dialect) for run in delivery.runs)
        self._pump()

    def skipped(self, first: int, last: int) -> None:
        """They are gone; sequences need not follow on."""
        self._broker.counters.add(PROTOCOL, "skipped", last - first + 1)

    def ended(self, reason: Exception) -> None:
        self._subscription = None
        log.error("{protocol}: nothing more is broadcast: {reason}", protocol=PROTOCOL, reason=str(reason))
        self._check_stopped()

    # Publishing.

    def _publish(self, batch: Batch) -> None:
        self._in_flight += 1

        def durable(firsts: tuple[int, ...]) -> None:
            self._published = max(self._published, firsts[-1] + len(batch.runs[-1]) - 1)
            self._settle(batch)

        def refused(failure: Failure) -> None:
            failure.trap(FyrehoseError)
            self._refused(batch, cast("FyrehoseError", failure.value))

        self._broker.publish(batch.runs).addCallbacks(durable, refused)

    def _settle(self, batch: Batch) -> None:
        self._in_flight -= 1
        self._account.release(batch.size)
        self._check_stopped()

    def _refused(self, batch: Batch, error: FyrehoseError) -> None:
        if isinstance(error, ReadOnly) and not self._stopping:
            # Nobody sends it again: keep it, read no further, and try until there is room.
            self._in_flight -= 1
            self._broker.counters.refuse(log, PROTOCOL, "ReadOnly", f"{batch.count} events", str(error))
            self._kept.append(batch)
            if self._retrying is None:
                self._retrying = self._clock.callLater(FULL_WAIT, self._retry)
            self._switch()
        elif isinstance(error, PayloadTooLarge | InvalidName) and batch.count > 1:
            # One that cannot be taken must not take others with it.
            self._in_flight -= 1
            self._account.release(batch.size)
            for part in _parts(batch):
                self._account.hold(part.size)
                self._publish(part)
        else:
            self._broker.counters.refuse(log, PROTOCOL, type(error).__name__, f"{batch.count} events", str(error))
            self._session.failed(batch)
            self._settle(batch)

    def _retry(self) -> None:
        self._retrying = None
        kept, self._kept = self._kept, []
        for batch in kept:
            self._publish(batch)
        self._switch()

    def _switch(self) -> None:
        if self._crowded or self._kept or self._heard_all:
            self._collector.pause()
        else:
            self._collector.start()

    # Broadcasting.

    def _pump(self) -> None:
        """Some of what was delivered; the rest when others have had their turn."""
        self._pumping = None
        if self._lent.size <= self._lent.limit // 2:
            self._full_since = None
        outgoing, publisher = self._outgoing, self._publisher
        assert outgoing is not None
        publisher.take_in()
        sent = size = 0
        for frames in outgoing:
            try:
                publisher.send(frames, self._lent)
            except Full:
                if self._wait_for_subscribers():
                    self._outgoing = chain((frames,), outgoing)
                    self._pumping = self._clock.callLater(BROADCAST_LOOK, self._pump)
                    break
                # Nobody is found whose fault it is.  All have to ask for this one.
                detail = f"an event of {len(frames[-1])} bytes is not broadcast"
                self._broker.counters.refuse(log, PROTOCOL, "broadcast-memory-full", "subscribers", detail)
            sent += 1
            size += len(frames[-1])
            if sent >= EVENTS_TURN or size >= BYTES_TURN:
                self._pumping = self._clock.callLater(0, self._pump)
                break
        self._broker.counters.add(PROTOCOL, "broadcasts", sent)
        if self._pumping is None:
            self._outgoing = None
            if self._subscription is not None:
                self._subscription.resumeProducing()
            self._check_stopped()

    def _wait_for_subscribers(self) -> bool:
        """End the connections of slow subscribers when others have waited; return whether to go on waiting."""
        now = self._clock.seconds()
        if self._full_since is None:
            self._full_since = self._judged = now
            self._laggards.begin(now)
        self._laggards.look()
        if now - self._judged < BROADCAST_WAIT:
            return True
        self._judged = now
        slow = self._laggards.slow(now)
        for host, descriptor in slow:
            detail = "others wait for it to take large events; its connection is ended, and it asks for what it missed"
            where = f"{host} at {self._publisher.name}"
            self._broker.counters.refuse(log, PROTOCOL, "subscriber-too-slow", where, detail)
            self._peers.end_subscriber(host, descriptor)
        if slow:
            self._full_since = None
        return bool(slow) or self._laggards.waits

    # The past.

    def _serve_soon(self, delay: float) -> None:
        serving = self._serving
        if serving is None:
            self._serving = self._clock.callLater(delay, self._serve)
        elif serving.getTime() > self._clock.seconds() + delay:
            serving.reset(delay)

    def _serve(self) -> None:
        """Each snapshot in its turn, until the turn is over."""
        self._serving = None
        snapshots = self._session.snapshots
        now, end = self._clock.seconds(), self._broker.bounds(self._settings.stream)[1]
        self._look_aside(now)
        left = EVENTS_TURN
        served: set[bytes] = set()
        while left > 0:
            snapshots.admit(end, now)
            row = [snapshot for snapshot in snapshots.in_turn() if snapshot.identity not in served]
            if not row:
                break
            for snapshot in row:
                served.add(snapshot.identity)
                left = self._send_some(snapshot, left, now)
                if left <= 0:
                    break
        if len(snapshots):
            self._serve_soon(0 if left < EVENTS_TURN else SNAPSHOT_WAIT)

    def _look_aside(self, now: float) -> None:
        """Have those wait for a place again whose clients have read something; cancel those that read nothing."""
        if now - self._looked < SNAPSHOT_WAIT:
            return
        self._looked = now
        self._session.pool.settle()
        tries = self._settings.snapshots
        for snapshot in list(self._session.snapshots.aside.values()):
            held, snapshot.held = snapshot.held, snapshot.account.size
            if snapshot.held < held:
                self._session.snapshots.wait(snapshot)
                snapshot.moved = now
                continue
            self._check_stalled(snapshot, now)
            if not snapshot.held and tries > 0:
                # Nothing tells whether it can be sent: some are tried each time, and the others in their turn.
                tries -= 1
                self._session.snapshots.retry(snapshot)

    def _send_some(self, snapshot: Snapshot, left: int, now: float) -> int:
        """Messages of ``snapshot``, ``left`` at the most; how many are left then."""
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
            snapshot.starved = isinstance(full, Crowded) and not snapshot.account.size
            self._step_aside(snapshot, now)
        except Gone:
            self._cancel(snapshot, "snapshot-left")
        except JournalCorrupt as damage:
            self._cancel(snapshot, "journal-corrupt", str(damage))
        self._broker.counters.add(PROTOCOL, "syncs", sent - snapshot.ended)
        snapshot.given += size
        if snapshot.ended:
            self._session.snapshots.forget(snapshot)
        elif snapshot.given >= SNAPSHOT_SHARE and self._session.snapshots.waiting:
            self._session.snapshots.wait(snapshot)
        return left

    def _step_aside(self, snapshot: Snapshot, now: float) -> None:
        """Give the place of a snapshot that cannot be sent to one that waits; alone it keeps what it has read."""
        if self._session.snapshots.waiting:
            snapshot.held = snapshot.account.size
            self._session.snapshots.step_aside(snapshot)
        else:
            self._check_stalled(snapshot, now)

    def _check_stalled(self, snapshot: Snapshot, now: float) -> None:
        if snapshot.starved:
            snapshot.moved = now
        elif now - snapshot.moved > self._settings.stall_timeout:
            timeout = f"{self._settings.stall_timeout:g} s"
            detail = f"it has taken nothing for {timeout}; its connection is ended, and it has to ask again"
            self._cancel(snapshot, "snapshot-stalled", detail)
            # What waits for it in ZeroMQ's memory goes with its connection.
            self._peers.end_snapshot(snapshot.host, snapshot.descriptor)

    def _cancel(self, snapshot: Snapshot, cause: str, detail: str = "") -> None:
        self._session.snapshots.forget(snapshot)
        self._count_drop(cause, snapshot.host, self._snapshot, snapshot.identity, detail)

    # Drops.

    def _drop(self, refused: Refused, port: Port) -> None:
        error, (host, _) = refused.error, port.origin
        detail = str(error).removeprefix(error.cause).removeprefix(": ")
        self._count_drop(error.cause, host, port, refused.identity, detail)

    def _count_drop(self, cause: str, host: str, port: Port, identity: bytes, detail: str = "") -> None:
        if cause in QUIET:
            self._broker.counters.add(PROTOCOL, cause)
        else:
            peer = f"{host} at {port.name} (client {identity[:16].hex()})"
            self._broker.counters.refuse(log, PROTOCOL, cause, peer, detail)

    # Stopping.

    def _collector_idle(self) -> None:
        if self._stopping and not self._heard_all and self._collector.drained():
            self._heard_enough()

    def _heard_enough(self) -> None:
        if not self._heard_all:
            self._heard_all = True
            self._switch()
            self._check_stopped()

    def _check_stopped(self) -> None:
        if self._stopped is None or not self._heard_all or self._in_flight or self._outgoing is not None:
            return
        if self._subscription is None or self._subscription.position >= self._published:
            self._stop_now()

    def _stop_now(self) -> None:
        stopped, self._stopped = self._stopped, None
        if stopped is None:
            return
        self._heard_all = True
        self._switch()
        for timer in (*self._deadlines, self._retrying, self._pumping, self._serving):
            if timer is not None and timer.active():
                timer.cancel()
        if self._subscription is not None:
            self._subscription.stopProducing()
            self._subscription = None
        for batch in self._kept:
            self._broker.counters.refuse(log, PROTOCOL, "not-published-at-stop", f"{batch.count} events")
        self._account.close()
        stopped.callback(None)


def _parts(batch: Batch) -> list[Batch]:
    """``batch`` in smaller ones: its runs, or the events of its only run."""
    runs = batch.runs
    if len(runs) == 1:
        runs = [runs[0].slice(row, row + 1) for row in range(len(runs[0]))]
    # Their UUIDs stay known: what is refused for good would be refused again.
    return [Batch(runs=[run], size=run.size, count=len(run)) for run in runs]
