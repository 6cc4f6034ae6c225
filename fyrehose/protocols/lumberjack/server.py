"""Lumberjack's server: connects a session in the TCP shell to the broker.

    bytes -> session -> EventRun -> broker.publish -> durable -> session.durable -> A, when a window is complete
               ^  |
        turns  +--+  large or compressed data, a limited amount per turn

The server acknowledges durable events only.  While a writer of version 2 waits, the server sends A 0 as a keep-alive.
A writer of version 1 would take that for the acknowledgement of its window, so it gets no keep-alive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import attrs
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import Forbidden, FyrehoseError, PayloadTooLarge, PublishError, RemoteProtocolError
from fyrehose.identity import Action
from fyrehose.interfaces import IBroker
from fyrehose.net.connections import SessionFactory
from fyrehose.net.lifecycle import Phase
from fyrehose.net.tcp import ClosesIdle, SessionProtocol, on
from fyrehose.net.tls import TLSSettings
from fyrehose.observe.writers import MOST_DECODED, WriterRow, agent_of
from fyrehose.options import duration, fixed, name, option, size
from fyrehose.protocols.lumberjack import resent
from fyrehose.protocols.lumberjack.frames import DIGITS, MAX_FRAME, PROTOCOL, EventRun
from fyrehose.protocols.lumberjack.ledger import EventIdentity, identity
from fyrehose.protocols.lumberjack.lookback import SharedRepetitions
from fyrehose.protocols.lumberjack.resent import Repetitions, Sender
from fyrehose.protocols.lumberjack.session import LumberjackLimits, LumberjackServerSession
from fyrehose.records import Publish, Run
from fyrehose.routes import Route, Routes, routes
from fyrehose.subscriptions import letters

#: Interval of keep-alives to waiting writers of version 2, in seconds; the shortest time-out of known writers is 5 s.
KEEP_ALIVE = 4.0
#: A writer of version 1 that is silent this long within a window gets an acknowledgement of the durable events; in
#: seconds.
SILENCE = 1.0
#: Largest read of a connection, in bytes: a window of a usual writer, which one turn then publishes at once.
READ = 1 << 20
#: How long a server that stops reads on to the end of a writer's open window, in seconds.
LAST_WINDOW = 2.0


def _path(text: str) -> str:
    if text and not all(text.split(".")):
        raise ValueError(f"expected keys joined by dots, such as @metadata.beat, or nothing, not {text!r}")
    return text


@attrs.frozen(kw_only=True)
class LumberjackSettings(TLSSettings):
    """Lumberjack's options."""

    stream: str = option("lumberjack", name, "stream to which events are published")
    routes: tuple[Route, ...] = option((), routes, "streams by content, such as logs.{fields.service}")
    topic: str = option("@metadata.beat", _path, "field of an event that holds its topic; empty: no topics")
    idle_timeout: float = option(
        6 * 3600.0, duration, "time without a complete frame after which a connection is closed"
    )
    max_frame: int = option(MAX_FRAME, size, "largest event", least=1)
    refused: str = option(
        letters.KEEP_FORBIDDEN, letters.choice, "refused messages: close, dead-letter or dead-letter+policy"
    )
    resent: str = option(
        resent.DROP, resent.choice, "events that are sent again: store, or drop those with an identity"
    )
    identity: EventIdentity = option(
        EventIdentity(), identity, "what makes events the same: filebeat, or fields such as @metadata._id"
    )
    resent_events: int = fixed(1 << 24)  #: most events that are remembered with resent=drop, if there is the memory
    resent_age: float = fixed(600.0)  #: how long events of a lost connection are remembered: Beats retry in a minute

    def __attrs_post_init__(self) -> None:
        if self.idle_timeout <= 2 * KEEP_ALIVE:
            raise ValueError(f"idle_timeout must be more than {2 * KEEP_ALIVE:g} s, not {self.idle_timeout:g} s")

    @property
    def silent_timeout(self) -> float:
        """Return 0, no limit but the idle timeout, because writers connect before they have an event to send."""
        return 0.0

    @property
    def limits(self) -> LumberjackLimits:
        """Return the limits of each session."""
        return LumberjackLimits(
            max_frame=self.max_frame,
            kept=0 if self.refused == letters.CLOSE else letters.MOST,
            topic=tuple(key.encode() for key in self.topic.split(".") if key),
            fields=Routes(self.routes).paths,
        )


class LumberjackProtocol(ClosesIdle):
    """One connection of a writer."""

    protocol_name: ClassVar[str] = PROTOCOL
    log: ClassVar[Logger] = Logger()

    session: LumberjackServerSession
    settings: LumberjackSettings

    def __init__(self, factory: LumberjackFactory) -> None:
        super().__init__(factory, LumberjackServerSession(factory.limits))
        self._frames = 0
        self._acknowledged_at = self._received_at = 0.0
        self._writer: WriterRow | None = None  #: the row of the table of writers, from the first event on
        self._sender: Sender | None = (
            None  #: finds events that are stored already; None: events that are sent again are stored again
        )

    # Called by the reactor.

    def connectionMade(self) -> None:
        """Give the session its routes."""
        super().connectionMade()
        if self.factory.routes is not None:
            self.session.use(self._route)
        self._acknowledged_at = self._received_at = self.clock.seconds()
        if self.factory.repetitions is not None:
            self._sender = self.factory.repetitions.connected(self.network, self._originals_settled)

    @property
    def has_more(self) -> bool:
        """Return whether the session can continue: it inflates in memory that the account must have."""
        return self.session.more and not self.account.paused

    def take(self, data: bytes) -> None:
        """Pass *data* to the session, or postpone it until the records that may be sent again are known."""
        shared = self.factory.shared
        if shared is not None and not shared.ready:
            self.waiting_input.postpone(data)
            return
        self._received_at = self.heard_at
        super().take(data)

    def park(self, proceed: Callable[[], object]) -> bool:
        shared = self.factory.shared
        parked = (shared is not None and shared.park(proceed)) or super().park(proceed)
        if parked:
            self.timers.start(KEEP_ALIVE, self._keep_alive)
        return parked

    def take_eof(self) -> None:
        if self.session.more_work and self.phase is Phase.OPEN:
            self.waiting_input.end()  # process the received data first
        else:
            super().take_eof()

    def pauseProducing(self) -> None:
        self.reading.pause_for(
            "unread acknowledgements"
        )  # a writer that does not read acknowledgements must not send more
        super().pauseProducing()

    def resumeProducing(self) -> None:
        super().resumeProducing()
        self.reading.resume_after("unread acknowledgements")

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        super().connectionLost(reason)
        if self._writer is not None:
            self._writer.connections -= 1
        self._forget_sender()

    # Called by the TCP shell.

    def received(self, events: Sequence[object]) -> None:
        """Publish all events of one turn by one call, however many topics they have, and start the timer of answers."""
        count = len(events)
        if count and not isinstance(events[-1], EventRun):  # the last event is Broken
            count -= 1
        super().received([tuple(events[:count]), *events[count:]] if count else events)
        if self.session.ending and not self.session.unfinished:
            self.finish()
        if self.session.more_work and self.session.windows_full:
            self.reading.pause_for("windows")
        if self.session.frames != self._frames:
            self._frames = self.session.frames
            self.active_at = self.clock.seconds()
        if self.session.version == 1:
            self.timers.start(SILENCE, self._acknowledge_silence)
        else:
            self.timers.start(KEEP_ALIVE, self._keep_alive)

    def published(self, events: tuple[EventRun, ...]) -> None:
        """Publish the events; when they are durable, acknowledge the windows that they complete."""
        runs: list[Run] = []
        writer = self._writer or self._meet(events[0])
        for event in events:
            run = Run(
                stream=self.settings.stream if event.stream is None else event.stream,
                source=PROTOCOL,
                producer=self.producer,
                topic=event.topic,
                content_type=event.content_type,
                producer_seq=event.producer_seq,
                lengths=event.lengths,
                payload=event.payload,
            )
            if event.too_large:
                self._publish_new(runs)
                runs = []
                self._refuse_large(run, event.too_large)
            else:
                runs.append(run)
        self._publish_new(runs)
        writer.add(sum(map(len, events)), self.broker.counters.seconds())
        if self.factory.routes is not None:
            unrouted = sum(len(event) for event in events if event.stream is None)
            self.broker.counters.add(PROTOCOL, "unrouted", unrouted)
            writer.missed += unrouted

    def _meet(self, first: EventRun) -> WriterRow:
        """Return the row of the writer whose *first* events have arrived, by its certificate or ``agent.name``."""
        name, agent = agent_of(bytes(first.payload[: min(first.sizes[0], MOST_DECODED)]))
        table = self.broker.counters.writers
        self._writer = table.connected(self.identity.name or name or self.peer, agent, self.address)
        return self._writer

    def _route(self, topic: str | None, strings: Sequence[str | None]) -> str | None:
        """Return the stream of an event of this writer, or None for the stream of the listener."""
        routes, certificate = self.factory.routes, self.identity.name
        stream: str | None = routes.stream(strings, topic, certificate)
        why = "" if stream else routes.miss(strings, topic, certificate)
        if why and why not in self.factory.misses:
            self.factory.misses.add(why)
            self.log.warn(
                "lumberjack: an event of {producer} goes to {stream!r}, because no route fits: {why}; further events "
                "for this reason are only counted",
                producer=self.producer,
                stream=self.settings.stream,
                why=why,
            )
        return None if stream == self.settings.stream else stream

    handlers = SessionProtocol.handlers | on(tuple, published)

    def _refuse_large(self, run: Run, size: int) -> None:
        """Store the beginning of an event of *size* bytes as a dead letter."""
        if self.phase is not Phase.OPEN:
            return
        if self._sender is not None:
            self._sender.begin(1, 1, ())
        limit = self.settings.max_frame
        error = PayloadTooLarge(
            f"an event of {size} bytes; the limit is {limit}; lower the max_bytes of the writer's input, or raise the "
            "option lumberjack.max-frame"
        )
        if not self.keep_refused([run], None, error, size):
            self.refused(error)

    def _publish_new(self, runs: list[Run]) -> None:
        """Publish the events of *runs* that are not stored already."""
        sender = self._sender
        if not runs or self.phase is not Phase.OPEN:
            return
        if sender is None:
            self.publish(runs)
            return
        records = sum(map(len, runs))
        fresh, originals = sender.sift(runs, partial(self.broker.permits, Action.PUBLISH))
        repeated = records - sum(map(len, fresh))
        if repeated:
            self.broker.counters.add(PROTOCOL, "resent-dropped", repeated)
        self.unsettled += sender.begin(records, records - repeated, originals)
        if fresh:
            self.publish_part(fresh)
        if repeated:
            self.durable(())  # some windows may have waited only for repetitions

    def publish_part(self, runs: list[Run]) -> None:
        if self._sender is not None:
            self._sender.publishing(runs, *self.session.windows)
        self.publish(runs)

    def not_published(self, runs: list[Run], note: Any, error: PublishError | Forbidden) -> None:
        if self._sender is not None:
            self._sender.refused(runs)
        super().not_published(runs, note, error)

    def _originals_settled(self) -> None:
        """Acknowledge a turn whose repetitions waited for their originals."""
        self.unsettled -= 1
        self.durable(())
        self.settled()

    def durable(self, items: Sequence[Publish]) -> None:
        """Acknowledge the events of *items* to the writer, and repetitions whose originals are durable by now."""
        runs: list[Run] = []
        for item in items:
            runs += item.runs
        self.session.durable(sum(map(len, runs)) if self._sender is None else self._sender.durable(runs))
        if "windows" in self.reading.reasons and not self.session.windows_full:
            self.reading.resume_after("windows")
        self.active_at = self.clock.seconds()
        if self.session.out:
            self._acknowledged_at = self.active_at
            if self._writer is not None:
                self._writer.acknowledged_at = self.broker.counters.seconds()
            self.flush()

    def keep_refused(self, runs: list[Run], note: Any, error: FyrehoseError, size: int | None = None) -> bool:
        kept = super().keep_refused(runs, note, error, size)
        if kept and sum(map(len, runs)) == 1:
            self._count_refused()
        return kept

    def refused(self, error: FyrehoseError) -> None:
        self._count_refused()
        super().refused(error)

    def drop(self, error: RemoteProtocolError) -> None:
        self._count_refused()
        super().drop(error)

    def _count_refused(self) -> None:
        if self._writer is not None:
            self._writer.refused += 1

    def finish(self) -> None:
        super().finish()
        self._forget_sender()

    def stop(self) -> None:
        """Finish the open window first: a writer sends all of it again, and events that are stored would be doubled."""
        if self.phase is Phase.OPEN and self.session.unfinished:
            self.session.ending = True
            self.timers.start(LAST_WINDOW, self.finish)
        else:
            super().stop()

    def is_idle(self) -> bool:
        return super().is_idle() and not self._busy

    @property
    def waiting(self) -> bool:
        return self._busy or self.session.expected > 0  # an incomplete frame has its own deadline

    # Helpers.

    @property
    def _busy(self) -> bool:
        """Return whether the writer waits for the server, so that the server must not close the connection as idle."""
        return self.unsettled > 0 or self.session.more_work or self.account.paused or self.waiting_input.waits

    def _forget_sender(self) -> None:
        """Expect the writer's last events again on another connection, because this connection reads no more."""
        if self._sender is not None:
            self._sender.close(*self.session.windows)

    # Timers; they are started again when data arrives.

    def _keep_alive(self) -> None:
        """Send a keep-alive to a waiting writer of version 2, or acknowledge what it has sent, every KEEP_ALIVE s."""
        version = self.session.version or DIGITS.get(int.from_bytes(self.beginning[:1], "big"))
        if self.phase is not Phase.OPEN or version != 2 or not (self._busy or self.session.ack_pending):
            return
        now = self.clock.seconds()
        if self._acknowledged_at + KEEP_ALIVE <= now:
            if self._busy:
                self.session.keep_alive(version)
            elif self.session.silence_ack_due:
                self.session.acknowledge_silence()
            self.flush()
            self._acknowledged_at = now
        self.timers.start(self._acknowledged_at + KEEP_ALIVE - now, self._keep_alive)

    def _acknowledge_silence(self) -> None:
        """Acknowledge durable events to a writer of version 1 that is silent for SILENCE seconds."""
        if self.phase is not Phase.OPEN or self.session.version != 1 or not self.session.ack_pending:
            return
        now = self.clock.seconds()
        if self._received_at + SILENCE <= now and not self._busy and self.session.silence_ack_due:
            self.session.acknowledge_silence()
            self.flush()
        self.timers.start(max(self._received_at, now) + SILENCE - now, self._acknowledge_silence)


class LumberjackFactory(SessionFactory):
    """The factory of the connections of writers: ``endpoint.listen(LumberjackFactory(broker))``."""

    protocol = LumberjackProtocol
    defaults = LumberjackSettings()
    refusals = (
        "bad-compression",
        "bad-frame",
        "bad-type",
        "bad-version",
        "frame-too-large",
        "key-too-large",
        "mixed-versions",
        "nested-compression",
        "partial-frame",
        "too-many-pairs",
        "too-many-windows",
    )
    fixed_options = ("resent", "identity")
    events = ("unrouted", "resent-dropped", "resent-forgotten")
    largest_read = READ
    settings: LumberjackSettings

    def __init__(self, broker: IBroker, settings: LumberjackSettings | None = None, reactor: Any = None) -> None:
        super().__init__(broker, settings, reactor)
        self.shared: SharedRepetitions | None = None  #: kept until the last connection ends, for a new listener
        self.repetitions: Repetitions | None = None
        self.configure(self.settings)

    def configure(self, settings: LumberjackSettings) -> None:
        super().configure(settings)
        self.limits = settings.limits
        self.routes = Routes(settings.routes) if settings.routes else None
        self.misses: set[str] = set()  #: why no route fitted an event, as far as that is logged

    def startFactory(self) -> None:
        """Search the journal for events that writers may send again, because a server may have stopped."""
        super().startFactory()  # type: ignore[no-untyped-call]
        if self.settings.resent == resent.DROP:
            settings = self.settings
            shared = SharedRepetitions.of(
                self.broker, self.clock, settings.resent_events, settings.resent_age, settings.identity
            )
            self.shared, self.repetitions = shared, shared.table
            shared.open(self)

    def stopFactory(self) -> None:
        super().stopFactory()  # type: ignore[no-untyped-call]
        if self.shared is not None:
            self.shared.close(self)
