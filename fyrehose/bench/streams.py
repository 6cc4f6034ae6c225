"""Load on protocols over TCP: many connections in one loop around epoll."""

from __future__ import annotations

import select
import socket
import time

from fyrehose.bench.latencies import Latencies
from fyrehose.bench.plans import LoadOutcome, Plan
from fyrehose.bench.wires import figg, http, lumberjack, relink, zmtp
from fyrehose.bench.wires.base import Job, Wire, WorkerPool, WorkerWire, Wrong

#: protocol -> the classes of its publisher, its subscriber, and its late subscriber, which reads earlier messages
WIRES: dict[str, tuple[type[Wire], type[Wire] | None, type[Wire] | None]] = {
    "figg": (figg.FiggPublisherWire, figg.FiggSubscriberWire, figg.FiggSubscriberWire),
    "lumberjack": (lumberjack.LumberjackPublisherWire, None, None),
    "http": (http.HttpPublisherWire, None, None),
    "relink": (relink.RelinkPublisherWire, relink.RelinkSubscriberWire, relink.RelinkSubscriberWire),
    "eventbus": (zmtp.ZmtpPublisherWire, zmtp.ZmtpSubscriberWire, zmtp.ZmtpSnapshotWire),
}
#: Protocols whose subscribers may be workers that share the messages; see ``leases`` in ``extra``.
WORKERS: dict[str, type[WorkerWire]] = {"http": http.HttpWorkerWire}
#: Protocols without acknowledgements; messages count as published when the first subscriber receives them.
BY_DELIVERY = {"eventbus"}
#: Limit in bytes of one read (which takes at least two messages), and of one block of messages to send.
READ = 1 << 20
WRITE = 1 << 18
#: Seconds without traffic after which the load fails.
PATIENCE = 30.0


class Flight:
    """A counter of the messages that one or several connections have sent, but that have not arrived yet.

    :ivar witness: the connection that receives the acknowledgements, or the messages if the protocol has no
        acknowledgements
    :ivar timed: records when messages arrive, if another connection than the sender does that
    """

    def __init__(self, witness: Wire, timed: Latencies | None = None) -> None:
        self.witness, self.timed = witness, timed
        self.sent = self.total = 0

    @property
    def under_way(self) -> int:
        return self.sent - self.witness.done

    @property
    def landed(self) -> bool:
        """Return whether every message has arrived."""
        return self.witness.done >= self.total


class LoadConnection:
    """One socket, with the state of its protocol.

    :param total: messages to be sent
    :param flight: the messages in flight, if several connections send them
    """

    def __init__(self, plan: Plan, port: int, wire: Wire, total: int, flight: Flight | None = None) -> None:
        self.wire, self.total = wire, total
        self.flight = flight or Flight(wire)
        self.publishes = total > 0
        self.flight.total += total
        self.finished_at = total if self.publishes else plan.expected
        self.sent = 0
        self.window = max(plan.window, wire.unit)
        self.block = max(wire.unit, min(self.window // 4, WRITE // (plan.size + 40)), 1)
        rated = plan.rate / max(1, len(plan.publishers))
        measured = plan.rate or plan.window == 1
        self.latencies = Latencies(self.finished_at, rated) if measured else None
        self.paced = bool(plan.rate)
        self._pending = memoryview(b"")
        self._data = bytearray(max(READ, 2 * plan.size))
        self._view = memoryview(self._data)
        self._kept = 0
        self.sock = socket.create_connection((plan.host, port), timeout=PATIENCE)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def open(self, late: bool) -> None:
        """Send all that the protocol requires before the messages."""
        self.wire.hello(self.sock)
        if not late:
            self.sock.sendall(self.wire.begin())
            self.wire.begun(self.sock)
        self.sock.setblocking(False)

    @property
    def finished(self) -> bool:
        return self.flight.landed if self.publishes else self.wire.done_by_all >= self.finished_at

    @property
    def next_due(self) -> float | None:
        """Return when the next message is due; None if no message waits for its time."""
        if self.paced and self.publishes and self.latencies is not None and self.sent < self.total:
            return self.latencies.when(self.sent)
        return None

    def write(self, now: float) -> bool:
        """Send as much as window and rate permit; return whether the socket had no room for some of it."""
        while True:
            if not self._pending:
                self._pending = self._more(now)
            if not self._pending:
                return False
            try:
                self._pending = self._pending[self.sock.send(self._pending) :]
            except BlockingIOError:
                return True
            if self._pending:
                return True

    def _more(self, now: float) -> memoryview:
        if self.wire.answers:
            answers = memoryview(bytes(self.wire.answers))
            self.wire.answers.clear()
            if self.latencies is not None and self.wire.settling:
                self.latencies.sent(self.wire.done + self.wire.settling, now)
            return answers
        left = self.total - self.sent
        room = self.window - self.flight.under_way
        if self.paced and self.latencies is not None and left:
            due = self.latencies.due(now) - self.sent
            count = min(left, room, due, self.block)
        else:
            count = min(left, self.block)
            count = count if count <= room else 0
        if count <= 0:
            return memoryview(b"")
        block = self.wire.block(count)
        self.sent += count
        self.flight.sent += count
        if self.latencies is not None:
            self.latencies.sent(self.sent, now)
        if self.flight.timed is not None:
            self.flight.timed.sent(self.flight.sent, now)
        return block

    def read(self) -> bool:
        """Receive into the buffer; return whether the buffer was filled, so that more may wait.

        :raises Wrong: the connection has ended, or unexpected bytes arrived
        """
        try:
            size = self.sock.recv_into(self._view[self._kept :])
        except BlockingIOError:
            return False
        if not size:
            raise Wrong(f"the server closed the connection after {self.wire.done} messages")
        end = self._kept + size
        used = self.wire.scan(self._data, end)
        self._kept = end - used
        if used and self._kept:
            self._data[: self._kept] = self._data[used:end]
        return end == len(self._data)


class StreamLoad:
    """All connections of one load maker."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.publishers: list[LoadConnection] = []
        self.subscribers: list[LoadConnection] = []
        self._poll = select.epoll()
        self._by_fd: dict[int, LoadConnection] = {}
        self._start = 0.0

    def connect(self) -> None:
        """Make all connections, and exchange what each protocol requires before messages.

        :raises OSError: the server cannot be reached
        :raises Wrong: the server sends unexpected bytes
        """
        plan = self.plan
        publisher, subscriber, reader = WIRES[plan.wire]
        kind = reader if plan.late else subscriber
        pool = WorkerPool()
        for _ in range(plan.subscribers):
            job = self._job(plan.expected, plan.late)
            if "leases" in plan.extra:
                wire: Wire = WORKERS[plan.wire](job, pool)
            elif kind is None:
                raise Wrong(f"{plan.wire} has no subscribers")
            else:
                wire = kind(job)
            self.subscribers.append(LoadConnection(plan, plan.read_port, wire, 0))
        first = self.subscribers[0] if plan.wire in BY_DELIVERY and self.subscribers else None
        flight = None if first is None else Flight(first.wire, first.latencies)
        for count in plan.publishers:
            self.publishers.append(LoadConnection(plan, plan.port, publisher(self._job(count)), count, flight))
        for connection in self.publishers + self.subscribers:
            connection.open(plan.late and not connection.publishes)
            self._by_fd[connection.sock.fileno()] = connection
            self._poll.register(connection.sock, select.EPOLLIN)

    def _job(self, messages: int, late: bool = False) -> Job:
        plan = self.plan
        return Job(stream=plan.stream, size=plan.size, messages=messages, late=late, extra=plan.extra)

    def run(self, start: float) -> LoadOutcome:
        """Send and count messages until all are done.

        :raises Wrong: unexpected bytes arrived, or nothing for a long time
        """
        everybody = self.publishers + self.subscribers
        while (early := start - time.monotonic()) > 0:
            time.sleep(early)
        before = time.process_time()
        self._start = start
        for connection in everybody:
            if connection.latencies is not None:
                connection.latencies.begin(start)
            if self.plan.late and not connection.publishes:
                connection.wire.answers += connection.wire.begin()
        self._loop(everybody)
        ended = time.monotonic()
        cpu = time.process_time() - before
        return LoadOutcome(
            began=start,
            ended=ended,
            cpu=cpu,
            acknowledged=sum(flight.witness.done for flight in {c.flight for c in self.publishers}),
            received=sum(c.wire.done for c in self.subscribers),
            latency=self._latency(),
        )

    def _loop(self, everybody: list[LoadConnection]) -> None:
        left = set(everybody)
        full: set[int] = set()
        last = time.monotonic()
        ready = left
        while left:
            now = time.monotonic()
            for connection in ready:
                stuck = connection.write(now)
                fd = connection.sock.fileno()
                if stuck != (fd in full):
                    (full.add if stuck else full.discard)(fd)
                    self._poll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if stuck else 0))
            heard = self._wait(left)
            now = time.monotonic()
            if heard:
                last = now
            elif now - last > PATIENCE:
                raise Wrong(f"nothing arrived for {PATIENCE:.0f} s; done: {[c.flight.witness.done for c in left][:8]}")
            for connection in heard:
                while connection.read() and not self.plan.reads:
                    pass
                if connection.latencies is not None:
                    connection.latencies.done(min(connection.flight.witness.done, connection.finished_at), now)
            if self.plan.reads:
                self._rest(now)
            left = {connection for connection in left if not connection.finished}
            ready = left | set(heard)

    def _rest(self, now: float) -> None:
        """Sleep for as long as the subscribers are ahead of their rate of reading."""
        ahead = max(connection.wire.done for connection in self.subscribers) / self.plan.reads - (now - self._start)
        if ahead > 0:
            time.sleep(min(ahead, PATIENCE / 10))

    def _wait(self, left: set[LoadConnection]) -> list[LoadConnection]:
        """Wait until a connection can be read or written, or a message is due; return the connections that can."""
        due = [when for connection in left if (when := connection.next_due) is not None]
        timeout = min(1.0, max(0.0, min(due) - time.monotonic())) if due else 1.0
        if due:
            # Wait by select, which counts microseconds; epoll counts milliseconds.
            select.select([self._poll], [], [], timeout)
            timeout = 0
        return [self._by_fd[fd] for fd, _ in self._poll.poll(timeout)]

    def _latency(self) -> dict[str, list[float]]:
        found = {}
        for name, group in (("acknowledged", self.publishers), ("arrived", self.subscribers)):
            if group and group[0].latencies is not None and (values := group[0].latencies.percentiles):
                found[name] = values
        return found

    def close(self) -> None:
        """Close all connections."""
        for connection in self.publishers + self.subscribers:
            connection.sock.close()
        self._poll.close()
