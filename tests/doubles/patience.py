"""Asking a real shared log until it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from fyrehose.cluster.shared_log import Unavailable


async def patiently(ask: Callable[..., Deferred[Any]], *arguments: Any) -> Any:
    """Ask until there is an answer: the first leader of a new stream may become known late, which ends requests."""
    while True:
        try:
            return await ask(*arguments)
        except Unavailable:
            await deferLater(reactor, 0.2)
