"""A process for servers in tests, which is neither changed nor ended, with a reactor and a journal in memory."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from twisted.internet.testing import MemoryReactorClock

from fyrehose.journal.gate import LocalGate
from fyrehose.server.process import OwnProcess
from fyrehose.testing import MemoryJournal


class StoppingReactor(MemoryReactorClock):
    """A reactor without sockets that says how often it was stopped."""

    stopped = 0
    running = True

    def stop(self) -> None:
        self.stopped += 1

    def callWhenRunning(self, function: Any, *args: Any) -> None:
        function(*args)


class ServedJournal(MemoryJournal):
    """A journal in memory that a server can report about, and that keeps the retention settings that it gets."""

    report: Any = SimpleNamespace(lines=list)
    settings: Any = None
    stream_age: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.gate = LocalGate()

    def change(self, settings: Any, stream_age: Any) -> None:
        self.settings, self.stream_age = settings, stream_age


class Ending(list[Any]):
    """The lines on standard error and the exit statuses that would end the process, in order.

    :ivar own: the argument for :class:`.ServerProcess`
    :ivar freed: how often the server has freed closed objects, which takes half a second in a process of many tests
    :ivar terminal: whether standard input is a terminal
    :ivar drain: the function that the server calls at the first SIGTERM, once it runs
    """

    drain: Callable[[], float]
    freed: int = 0
    terminal: bool = False

    def __init__(self) -> None:
        super().__init__()
        self.own = OwnProcess(
            exit_with=self.append,
            say=self.append,
            prepare=lambda reactor: None,
            stop_on_signals=self._on_signals,
            reload_on_hangup=lambda reactor, reload: None,
            descriptors=lambda: 20_000,
            has_terminal=lambda: self.terminal,
            free_closed_objects=self._free,
        )

    def _free(self) -> None:
        self.freed += 1

    def _on_signals(self, reactor: Any, drain: Callable[[], float]) -> None:
        self.drain = drain
