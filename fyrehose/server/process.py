"""Control the process of the server: signals, exit status, file descriptors, garbage collection, threads.

twistd does not let its services choose the exit status: it ends with 0 after ``reactor.stop()`` and, after SIGTERM,
kills itself with that signal.  The server promises 0 after SIGTERM, and a distinct status for each kind of failure.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
from twisted.internet.error import ReactorNotRunning
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from fyrehose import allocator
from fyrehose.net.turns import LONG_S
from fyrehose.net.twisted_private import shorten_turns

log = Logger()

#: File descriptors that are reserved for segments of the journal, the log and the reactor.
RESERVED = 64
#: The switch interval of CPython, in seconds: how long a thread runs before another one may take the interpreter.
SWITCH_S = 0.0005
#: Buffers of MAPPED bytes or more are returned to the system when they are freed, beyond FREE bytes others, too.
MAPPED, FREE = 2 << 20, 32 << 20


def stop_on_signals(reactor: Any, drain: Callable[[], float] = lambda: 0.0) -> None:
    """Install handlers that stop the reactor on SIGTERM and SIGINT.

    A second signal ends draining, but does not shorten a stop that has begun.  Call this while the reactor runs,
    because it replaces the handlers that the reactor has installed.

    :param drain: called at the first SIGTERM; returns for how many seconds the reactor still runs
    """
    draining: list[IDelayedCall] = []

    def handle(number: int) -> None:
        seconds = drain() if number == signal.SIGTERM and not draining else 0.0
        if seconds:
            draining.append(reactor.callLater(seconds, stop_reactor, reactor, "SIGTERM"))
            return
        if draining and draining[0].active():
            draining[0].cancel()
        stop_reactor(reactor, signal.Signals(number).name)

    def stop(number: int, frame: FrameType | None) -> None:
        reactor.callFromThread(handle, number)

    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a background job of a shell ignores SIGINT
        signal.signal(signal.SIGINT, stop)


def has_terminal() -> bool:
    """Return whether standard input is a terminal, which the process loses when that terminal is closed."""
    return os.isatty(0)


def reload_on_hangup(
    reactor: Any, reload: Callable[[], object], has_terminal: Callable[[], bool] = has_terminal
) -> None:
    """Call *reload* on SIGHUP; stop *reactor* instead if the process has lost its terminal."""
    terminal = has_terminal()

    def hung_up() -> None:
        if terminal and not has_terminal():
            stop_reactor(reactor, "the terminal was closed")
        else:
            reload()

    signal.signal(signal.SIGHUP, lambda number, frame: reactor.callFromThread(hung_up))


def stop_reactor(reactor: Any, why: str) -> None:
    """Stop *reactor*, unless it is stopping already; log *why*."""
    try:
        reactor.stop()
        log.info("stopping: {why}", why=why)
    except ReactorNotRunning:
        log.info("{why}: still stopping, waiting for accepted messages to be durable", why=why)


def exit_with(status: int) -> None:
    """Make the process end with *status* after the reactor has stopped and twistd has removed its pid file."""
    # Only os._exit sets the status: twistd catches every exception at that point, SystemExit included.
    atexit.register(_exit, status)


def _exit(status: int) -> None:
    logging.shutdown()
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            stream.flush()
    os._exit(status)


def say(line: str) -> None:
    """Write *line* to the original standard error of the process, which twistd has replaced by its log."""
    if sys.__stderr__ is not None:
        sys.__stderr__.write(f"{line}\n")
        sys.__stderr__.flush()


def dump_stacks_on_abort() -> None:
    """Make the process write the stacks of all threads to standard error when a signal such as SIGABRT ends it.

    systemd sends SIGABRT to a server whose reactor hangs.  ``faulthandler`` needs no Python code to run, so it works
    even if a call in C never returns.
    """
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)


def reduce_garbage_collection() -> None:
    """Collect garbage less often, and exclude all existing objects from it.

    Reference counting frees nearly all memory of a message, while each collection scans the latest batches, which the
    journal keeps.  With Python's default thresholds this took a fifth of the time of a single message.  The objects of
    many peers that connect at once all survive, so the second generation is collected after 10,000 of them: the pause
    is a third of that after 30,000, and all pauses together take as long.
    """
    gc.freeze()
    gc.set_threshold(5_000, 1, 400)


def return_large_buffers() -> None:
    """Return large buffers to the system when they are freed.

    Otherwise many large messages, such as uploads by HTTP, leave holes in the heap, which took a fifth more memory.
    """
    allocator.map_from(MAPPED)
    allocator.keep(FREE)


def free_closed_objects() -> None:
    """Collect garbage now, also among objects that were excluded from that, and exclude all that are left.

    Otherwise each full collection would scan what was recovered at the start: 0.2 s with 10,000 subscriptions.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@attrs.define(eq=False)
class CollectionPauses:
    """Notice collections of garbage that take as long as a long turn, from :meth:`start` to :meth:`stop`.

    :ivar long: called after each of them
    """

    long: Callable[[], object]
    seconds: Callable[[], float] = time.perf_counter
    _began: float = attrs.field(default=0.0, init=False)

    def start(self) -> None:
        """Start to look at collections; idempotent."""
        self.stop()
        gc.callbacks.append(self._look)

    def stop(self) -> None:
        """Look at collections no more; idempotent."""
        if self._look in gc.callbacks:
            gc.callbacks.remove(self._look)

    def _look(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = self.seconds()
        elif self.seconds() - self._began >= LONG_S:
            self.long()


def share_interpreter() -> None:
    """Let a waiting thread, such as the one that commits, get the interpreter within half a millisecond.

    A waiting thread may ask for the interpreter only after the switch interval, and CPython starts the interval anew
    whenever the reactor gets the interpreter back after a system call.  With Python's default of 5 ms, commits waited
    for a busy
    reactor for up to 100 ms.
    """
    sys.setswitchinterval(SWITCH_S)


def raise_descriptor_limit() -> int:
    """Raise the limit of file descriptors to the hard limit.

    :return: the number of descriptors that connections may use
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        hard = int(Path("/proc/sys/fs/nr_open").read_text())
    return max(1, hard - RESERVED)


def prepare(reactor: Any) -> None:
    """Adapt the interpreter and *reactor* to a server with many peers and one thread that commits."""
    dump_stacks_on_abort()
    reduce_garbage_collection()
    return_large_buffers()
    share_interpreter()
    shorten_turns(reactor)


@attrs.frozen(kw_only=True)
class OwnProcess:
    """The functions by which a server changes the process that it runs in, and ends it."""

    exit_with: Callable[[int], object] = exit_with
    say: Callable[[str], object] = say
    prepare: Callable[[Any], object] = prepare
    stop_on_signals: Callable[[Any, Callable[[], float]], object] = stop_on_signals
    reload_on_hangup: Callable[[Any, Callable[[], object]], object] = reload_on_hangup
    descriptors: Callable[[], int] = raise_descriptor_limit
    has_terminal: Callable[[], bool] = has_terminal
    free_closed_objects: Callable[[], object] = free_closed_objects
