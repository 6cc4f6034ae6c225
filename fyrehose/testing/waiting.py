"""Waits for something to happen, without saying when."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater


async def until(reactor: IReactorTime, condition: Callable[[], object], patience: float = 60.0) -> None:
    """Returns when ``condition`` holds; it is asked every few milliseconds.

    :param patience: seconds, many more than a busy machine needs
    :raises AssertionError: it did not hold in that time
    """
    deadline = reactor.seconds() + patience
    while not condition():
        assert reactor.seconds() < deadline, f"not within {patience:g} s"
        await deferLater(reactor, 0.005)
