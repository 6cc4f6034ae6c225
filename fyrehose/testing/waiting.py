"""Wait for a condition in a test."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getsource

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater


async def until(reactor: IReactorTime, condition: Callable[[], object], patience: float = 60.0) -> None:
    """Wait until ``condition()`` is true, checking it every few milliseconds.

    :param patience: timeout in seconds; choose it much longer than a busy machine needs
    :raises AssertionError: the condition did not become true in that time
    """
    deadline = reactor.seconds() + patience
    while not condition():
        assert reactor.seconds() < deadline, f"not within {patience:g} s: {_text(condition)}"
        await deferLater(reactor, 0.005)


def _text(condition: Callable[[], object]) -> str:
    """Return the source of *condition* on one line, as far as it is known."""
    try:
        return " ".join(getsource(condition).split())
    except (OSError, TypeError):
        return repr(condition)
