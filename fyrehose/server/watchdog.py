"""Watch the reactor from a thread, and log the reactor's stack when an iteration takes too long.

    reactor:  increases a counter (a beat) every BEAT seconds; counts stalls when they have ended
    thread:   looks every LOOK seconds; no beat for long -> the stack, the peer being served -> log, service manager

The beat is the only work for the reactor, because the thread finds the peer that is being served in the stack.  Time
counts only while the thread has
run, or the reactor has used the processor.  So a process that was stopped, or whose machine was suspended, does not
count as stalled.  A call in C that lets no other thread run does count: it is counted when it has ended, and its stack
is
logged if the thread runs before the reactor continues.  If the call never ends, the service manager aborts the process,
which then writes the stacks of all threads (``faulthandler``).
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from fyrehose.broker.fanout import subscriber_of
from fyrehose.interfaces import ISink
from fyrehose.net.tcp import SessionProtocol
from fyrehose.observe.meters import LONGEST_WRITE, Stalls

if TYPE_CHECKING:
    from fyrehose.server.notify import ServiceManager

log = Logger()

#: How long an iteration of the reactor may take, in seconds.
LONGEST_TURN = 2.0
#: How often the reactor counts a beat, and how often the thread looks at that counter, in seconds.
BEAT = LOOK = 0.5
#: How long :meth:`Watchdog.stop` waits for the end of the thread, which may be writing to the log, in seconds.
LAST_LOOK = 1.0
#: Limit of the lines of a stack that are logged.
CALLS = 40


@attrs.frozen
class Watched:
    """The reactor's thread as seen from another thread: its processor time, and its stack.

    :ivar cpu: returns the processor time that the thread has used, in seconds
    :ivar frame: returns the frame that the thread executes
    """

    cpu: Callable[[], float]
    frame: Callable[[], FrameType | None]

    @classmethod
    def this_thread(cls, platform: str = sys.platform) -> Watched:
        """Return the calling thread."""
        own = threading.get_ident()
        if platform == "darwin":  # macOS has no clock for a thread; the clock of the process is near enough
            return cls(time.process_time, lambda: sys._current_frames().get(own))
        clock = time.pthread_getcpuclockid(own)
        return cls(lambda: time.clock_gettime(clock), lambda: sys._current_frames().get(own))


@attrs.define(eq=False)
class Watchdog:
    """A watchdog of *clock*, which is the reactor, from :meth:`start` to :meth:`stop`.

    :ivar seconds: the monotonic clock
    :ivar look_s: how often the thread looks, in seconds
    :ivar write_age: returns for how many seconds the writer thread of the journal has waited for the disk; the journal
        logs that itself
    """

    clock: IReactorTime
    stalls: Stalls
    manager: ServiceManager
    seconds: Callable[[], float] = time.monotonic
    look_s: float = LOOK
    write_age: Callable[[], float] = attrs.field(default=lambda: 0.0, kw_only=True)
    _watched: Watched = attrs.field(init=False)
    _thread: threading.Thread | None = attrs.field(default=None, init=False)
    _stopping: threading.Event = attrs.field(factory=threading.Event, init=False)
    # Written by the reactor only:
    _timer: IDelayedCall | None = attrs.field(default=None, init=False)
    _beats: int = attrs.field(default=0, init=False)
    _beat_at: float = attrs.field(default=0.0, init=False)
    _cpu_at_beat: float = attrs.field(default=0.0, init=False)
    _ran_at_beat: float = attrs.field(default=0.0, init=False)
    _disk_hangs: bool = attrs.field(default=False, init=False)
    # Written by the thread only:
    _ran: float = attrs.field(default=0.0, init=False)  #: how long the process had run at the last look, in seconds
    _looked_at: float = attrs.field(default=0.0, init=False)
    _cpu_at_look: float = attrs.field(default=0.0, init=False)
    _seen: int = attrs.field(default=0, init=False)  #: beats at the last look
    _ran_at_seen: float = attrs.field(
        default=0.0, init=False
    )  #: how long the process had run at the last of these beats
    _next_report: float = attrs.field(default=0.0, init=False)

    def start(self, watched: Watched | None = None, run: bool = True) -> None:
        """Start watching; the reactor calls this in its thread.  Idempotent.

        :param watched: the reactor's thread; None: the calling thread
        :param run: whether to start a thread; False in tests, which call :meth:`look` themselves
        """
        if self._timer is not None:
            return
        self._watched = Watched.this_thread() if watched is None else watched
        self._looked_at, self._cpu_at_look = self.seconds(), self._watched.cpu()
        self._note_beat()
        if run:
            self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop watching, and end the thread; idempotent."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(LAST_LOOK)
            self._thread = None

    # In the reactor's thread.

    def _beat(self) -> None:
        late = self.seconds() - self._beat_at - BEAT
        turn = max(self._ran_until_now() - self._ran_at_beat, self._watched.cpu() - self._cpu_at_beat) - BEAT
        if turn >= LONGEST_TURN:
            self.stalls.add(turn)
            log.warn("a turn of the reactor took {seconds:.1f} s; all peers are served again", seconds=turn)
            self.manager.recovered()
            self._disk_hangs = False  # if it does, the next lines say so again
        elif late >= LONGEST_TURN:
            log.warn(
                "the process did not run for {seconds:.1f} s: it was stopped, or its machine was suspended or "
                "overloaded",
                seconds=late,
            )
        self._look_at_writer()
        self._note_beat()

    def _look_at_writer(self) -> None:
        """Tell the service manager when the disk stops to end writes, and when it ends them again."""
        hangs = self.write_age() >= LONGEST_WRITE
        if hangs and not self._disk_hangs:
            self.manager.stalled(f"the disk has not ended a write for {LONGEST_WRITE:g} s: nothing is acknowledged")
        elif self._disk_hangs and not hangs:
            self.manager.recovered()
        self._disk_hangs = hangs

    def _note_beat(self) -> None:
        self._beat_at, self._cpu_at_beat = self.seconds(), self._watched.cpu()
        self._ran_at_beat = self._ran_until_now()
        self._beats += 1
        self._timer = self.clock.callLater(BEAT, self._beat)

    def _ran_until_now(self) -> float:
        """Return for how many seconds the process has run so far, without the time when it was stopped or suspended."""
        return self._ran + min(self.look_s, self.seconds() - self._looked_at)

    # In the watchdog's thread.

    def _run(self) -> None:
        while not self._stopping.wait(self.look_s):
            self.look()

    def look(self) -> None:
        """Log the reactor's stack if an iteration takes too long, and again each time its duration has doubled."""
        now, cpu = self.seconds(), self._watched.cpu()
        self._ran += max(min(now - self._looked_at, self.look_s), cpu - self._cpu_at_look)
        self._looked_at, self._cpu_at_look = now, cpu
        if self._beats != self._seen:
            self._seen = self._beats
            self._ran_at_seen = self._ran - max(min(now - self._beat_at, self.look_s), cpu - self._cpu_at_beat)
            self._next_report = BEAT + LONGEST_TURN
        waited = self._ran - self._ran_at_seen
        if waited >= self._next_report:
            self._next_report = 2 * waited
            self._report()

    def _report(self) -> None:
        frame = self._watched.frame()
        peer = served(frame)
        serving = f", serving {peer}" if peer else ""
        stack = "".join(traceback.format_stack(frame)[-CALLS:]).rstrip()
        del frame  # because a reference to the frame would keep the frame's local variables alive
        self.manager.stalled(f"a turn of the reactor takes more than {LONGEST_TURN:g} s{serving}")
        log.error(
            "a turn of the reactor takes more than {limit:g} s{serving}; nobody else is served until it ends:\n{stack}",
            limit=LONGEST_TURN,
            serving=serving,
            peer=peer,
            stack=stack,
        )


def served(frame: FrameType | None) -> str:
    """Return the protocol and the address of the peer that *frame* serves; empty if that is unknown."""
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, SessionProtocol):
            return " ".join(owner.subscriber)
        if ISink.providedBy(owner) and any(subscriber_of(owner)):
            return " ".join(subscriber_of(owner))
        frame = frame.f_back
    return ""
