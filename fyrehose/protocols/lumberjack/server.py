"""Lumberjack's server: a session in the TCP shell, the broker behind it.

    bytes -> session -> EventRun -> broker.publish -> durable -> session.durable -> A, when a window is whole
               ^  |
        turns  +--+  what is compressed or much, a piece at a time (turns.py)

A writer is told nothing before the journal has its events.  While it has to wait for that, one of version 2 is told to
have patience; one of version 1 would take that for an acknowledgement, and hears nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, cast

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.core.budget import Account
from fyrehose.interfaces import IBroker
from fyrehose.net.connections import SessionFactory
from fyrehose.net.tcp import SessionProtocol
from fyrehose.net.tls import TLSSettings
from fyrehose.options import duration, name, option, size
from fyrehose.protocols.lumberjack.frames import MAX_FRAME, EventRun
from fyrehose.protocols.lumberjack.session import MAX_INFLATED, Limits, LumberjackServerSession
from fyrehose.protocols.lumberjack.turns import LEAST, READ, Outcome, Turns
from fyrehose.records import Run

PROTOCOL = "lumberjack"
#: How long a writer of version 2 waits before it is told to wait, in seconds: the shortest time-out around is 5.
KEEP_ALIVE = 4.0
#: How long a writer of version 1 says nothing in mid-window before it is told how far we are, in seconds.
SILENCE = 1.0


def _path(text: str) -> str:
    if text and not all(text.split(".")):
        raise ValueError("keys joined by dots, such as @metadata.beat, or nothing")
    return text


@attrs.frozen(kw_only=True)
class Settings(TLSSettings):
    """Lumberjack's options."""

    stream: str = option("lumberjack", name, "the stream that events go to")
    topic: str = option("@metadata.beat", _path, "the field of an event that is its topic; empty: no topics")
    topic_search: int = option(4 << 10, size, "how many bytes of an event the topic is looked for in")
    idle_timeout: float = option(60.0, duration, "time without a whole frame after which a writer is closed")
    silent_timeout: float = option(0.0, duration, "time for the first byte of a new connection; 0: as idle-timeout")
    max_frame: int = option(MAX_FRAME, size, "largest event, and largest compressed frame, in bytes", least=1)
    max_inflated: int = option(MAX_INFLATED, size, "what one compressed frame may come to, in bytes", least=1)

    def __attrs_post_init__(self) -> None:
        if self.idle_timeout <= 2 * KEEP_ALIVE:
            raise ValueError(f"idle_timeout is more than {2 * KEEP_ALIVE:g} s")

    @property
    def limits(self) -> Limits:
        """What sessions take."""
        return Limits(
            max_frame=self.max_frame,
            max_inflated=self.max_inflated,
            topic=tuple(key.encode() for key in self.topic.split(".") if key),
            topic_bytes=self.topic_search,
        )


class LumberjackProtocol(SessionProtocol):
    """One writer."""

    protocol_name: ClassVar[str] = PROTOCOL
    log: ClassVar[Logger] = Logger()
    handlers: ClassVar[dict[type, str]] = {tuple: "published"}

    session: LumberjackServerSession
    settings: Settings

    def __init__(
        self,
        session: LumberjackServerSession,
        broker: IBroker,
        clock: IReactorTime,
        settings: Settings,
        turns: Turns,
    ) -> None:
        super().__init__(session, broker, clock, settings)
        self._turns = turns
        self._charged = 0  #: what the session holds, as the account has it
        self._published = 0  #: what is on its way to the disk, as ``turns`` has it
        self._working = False
        self._eof = False
        self._frames = 0
        self._active = self._spoke = self._heard = 0.0
        self._timer: IDelayedCall | None = None

    # What the reactor calls.

    def connectionMade(self) -> None:
        super().connectionMade()
        self._active = self._spoke = self._heard = self.clock.seconds()
        self._arm(self.settings.idle_timeout)

    def dataReceived(self, data: bytes) -> None:
        if self._closing:
            return
        self._heard = self.clock.seconds()
        if not self._busy and not self.session.waits:
            self._spoke = self._heard
        if self._turns.crowded and (self._published or len(data) > LEAST):
            self.session.postpone()
        super().dataReceived(data)
        self._work_on()
        self._arm(SILENCE if self.session.version == 1 else KEEP_ALIVE)

    def readConnectionLost(self) -> None:
        if self.session.more_work and not self._closing:
            self._eof = True  # what it has sent comes first
        else:
            super().readConnectionLost()

    def pauseProducing(self) -> None:
        self.reading.pauseProducing()  # whoever does not read acknowledgements need not send more
        super().pauseProducing()

    def resumeProducing(self) -> None:
        super().resumeProducing()
        self.reading.resumeProducing()

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        super().connectionLost(reason)
        self._stop_working()

    # What the shell calls.

    def received(self, events: Sequence[object]) -> None:
        # What came in one turn is published at once, however many topics it has.
        runs = tuple(event for event in events if isinstance(event, EventRun))
        super().received([runs, *events[len(runs) :]] if runs else events)
        if self.session.frames != self._frames:
            self._frames = self.session.frames
            self._active = self.clock.seconds()

    def published(self, events: tuple[EventRun, ...]) -> None:
        """Publish, and acknowledge what that completes when it is durable: there and nowhere else."""
        runs = [self._run(event) for event in events]
        self.publish(runs, partial(self._durable, sum(map(len, runs))))
        self._note_published()

    def settled(self) -> None:
        self._note_published()
        if self._closing:
            self._stop_working()
        elif self._working and not self._held_back:
            self._turns.ask(self)
        self._turns.wake()

    def finish(self) -> None:
        if not self._in_flight:
            self.session.acknowledge_part()  # what is durable need not come again
        super().finish()
        self._stop_working()

    def is_idle(self) -> bool:
        return super().is_idle() and not self._busy

    # What the turns call.

    @property
    def needs(self) -> int:
        return self.session.needs

    def take_turn(self, granted: int) -> Outcome:
        """A piece of the session's work; what came of it is published."""
        if self._held_back and not self._closing:
            return Outcome.HELD_BACK
        try:
            if not self._closing:
                self.received(self.session.go_on(granted))
            return self._after_turn()
        except Exception:
            self.log.failure(
                "{protocol}: what came from {peer} could not be dealt with", protocol=PROTOCOL, peer=self.peer
            )
            self.transport.abortConnection()
            return Outcome.DONE

    # Inside.

    def _run(self, event: EventRun) -> Run:
        return Run(
            stream=self.settings.stream,
            source=PROTOCOL,
            producer=self._who,
            topic=event.topic,
            content_type=event.content_type,
            producer_seq=event.producer_seq,
            lengths=event.lengths,
            payload=event.payload,
        )

    @property
    def _who(self) -> str:
        return self.identity.name or self.address

    @property
    def _busy(self) -> bool:
        """Whether the writer waits for us, and not we for it."""
        paused = self._account is not None and self._account.paused
        return bool(self._in_flight) or self.session.more_work or paused

    @property
    def _held_back(self) -> bool:
        return self.session.crowded or self._published > self.broker.budget.each

    def _durable(self, events: int, firsts: tuple[int, ...]) -> None:
        self.session.durable(events)
        if self._closing and self._in_flight == 1:  # this one was the last
            self.session.acknowledge_part()
        self._active = self.clock.seconds()
        if self.session.speaks:
            self._spoke = self._active
        self.flush()

    def _work_on(self) -> None:
        """See to it that what the session has kept is done, and read nothing more until then."""
        if self.session.more_work and not self._closing:
            if not self._working:
                self._working = True
                self.reading.pauseProducing()
                self._turns.ask(self)
            self._charge(self.session.held)

    def _after_turn(self) -> Outcome:
        if not self.session.more_work or self._closing:
            self._stop_working()
            if self._eof:
                super().readConnectionLost()
            return Outcome.DONE
        self._charge(self.session.held)
        return Outcome.HELD_BACK if self._held_back else Outcome.MORE

    def _stop_working(self) -> None:
        if not self._working:
            return
        self._working = False
        self._turns.leave(self)
        if self._closing:
            self.session.receive_eof()
        self._charge(0)
        if not self._disconnected():
            self.reading.resumeProducing()

    def _charge(self, held: int) -> None:
        """Have what the session holds counted."""
        account, before = cast("Account", self._account), self._charged
        if held == before:
            return
        self._charged = held
        if before:
            account.release(before)
        if held:
            account.hold(held)

    def _note_published(self) -> None:
        now = cast("Account", self._account).held - self._charged
        self._turns.in_flight += now - self._published
        self._published = now

    # Time.

    def _arm(self, delay: float) -> None:
        timer = self._timer
        if timer is None:
            self._timer = self.clock.callLater(delay, self._tick)
        elif timer.getTime() > self.clock.seconds() + delay:
            timer.reset(delay)

    def _tick(self) -> None:
        """One timer for all that may be due: an acknowledgement, patience, or the end."""
        self._timer = None
        if self._closing:
            return
        now = self.clock.seconds()
        if self._busy or self.session.expected:  # a frame that has begun has its own deadline
            self._active = now
        due = [self._active + self.settings.idle_timeout]
        if due[0] <= now:
            self.broker.counters.add(PROTOCOL, "idle")
            self.finish()
            return
        if self.session.version == 2 and (self._busy or self.session.waits):
            due.append(self._patience(now))
        elif self.session.version == 1 and self.session.waits:
            due.append(self._silence(now))
        self._arm(min(due) - now)

    def _patience(self, now: float) -> float:
        """Tell a writer of version 2 how far we are, if it has not heard for long; when to look again."""
        if self._spoke + KEEP_ALIVE <= now:
            if self._busy:
                self.session.keep_alive()
            else:
                self.session.acknowledge_part()
            self.flush()
            self._spoke = now
        return self._spoke + KEEP_ALIVE

    def _silence(self, now: float) -> float:
        """Tell a writer of version 1 how far we are, if it says nothing more; when to look again."""
        if self._heard + SILENCE <= now and not self._busy and self.session.idle_due:
            self.session.acknowledge_idle()
            self.flush()
        return max(self._heard, now) + SILENCE


def make_factory(broker: IBroker, clock: IReactorTime, settings: Settings) -> SessionFactory:
    """What listens."""
    turns, limits = Turns(clock, broker.budget), settings.limits

    def make() -> LumberjackProtocol:
        return LumberjackProtocol(LumberjackServerSession(limits), broker, clock, settings, turns)

    return SessionFactory(make, PROTOCOL, LumberjackProtocol.log, broker, clock, settings, largest_read=READ)
