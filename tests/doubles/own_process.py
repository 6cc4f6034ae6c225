"""A process for servers in tests, which is neither changed nor ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fyrehose.server.process import OwnProcess


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
