"""What concerns the whole process and not the server in it: signals, exit status, file descriptors.

twistd takes no exit status from the services that it runs: it ends with 0 after ``reactor.stop()``, and dies of the
signal again after SIGTERM.  We promise 0 after SIGTERM and a number of its own for each kind of failure.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from twisted.internet.error import ReactorNotRunning
from twisted.logger import Logger

log = Logger()

#: File descriptors that connections never get: for segments of the journal, the log, the reactor.
RESERVED = 64


def stop_on_signals(reactor: Any) -> None:
    """From now on SIGTERM and SIGINT stop the reactor, which stops everything in good order; a second one waits too.

    To be called while the reactor runs, when it has installed the handlers that these replace.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        reactor.callFromThread(stop_reactor, reactor, signal.Signals(number).name)

    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a shell's background job is not to be interrupted
        signal.signal(signal.SIGINT, stop)


def reload_on_hangup(reactor: Any, reload: Callable[[], None]) -> None:
    """From now on SIGHUP calls ``reload``; where it says that the terminal has gone, the reactor stops."""
    terminal = os.isatty(0)

    def hung_up() -> None:
        if terminal and not os.isatty(0):
            stop_reactor(reactor, "the terminal is gone")
        else:
            reload()

    signal.signal(signal.SIGHUP, lambda number, frame: reactor.callFromThread(hung_up))


def stop_reactor(reactor: Any, why: str) -> None:
    """Stop ``reactor``, if it does not stop already."""
    try:
        reactor.stop()
        log.info("stopping: {why}", why=why)
    except ReactorNotRunning:
        log.info("{why}: still stopping, what was accepted is being finished", why=why)


def exit_with(status: int) -> None:
    """The process ends with ``status`` when the reactor has stopped and twistd has removed its pid file."""
    # Nothing but os._exit is left by then: twistd has swallowed every exception, SystemExit too.
    atexit.register(_exit, status)


def _exit(status: int) -> None:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is not None:
            stream.flush()
    os._exit(status)


def say(line: str) -> None:
    """One line on the standard error that the process was started with; twistd has put its log in the place of ours."""
    if sys.__stderr__ is not None:
        sys.__stderr__.write(f"{line}\n")
        sys.__stderr__.flush()


def collect_seldom() -> None:
    """From now on look for garbage less often, and never among what is there already.

    Nearly everything that a message takes is freed when nobody refers to it; but the latest batches, which the journal
    keeps, are looked at again and again.  With Python's own limits that was a fifth of what a single message cost.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 10)


def raise_descriptor_limit() -> int:
    """Take as many file descriptors as the system allows; how many of them connections may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        hard = int(Path("/proc/sys/fs/nr_open").read_text())
    return max(1, hard - RESERVED)
