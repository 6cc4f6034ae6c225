"""Several addresses of a cluster: a reactor whose TCP connections go to one server after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zope.interface import directlyProvides, providedBy


class Several:
    """A reactor in whose place clients connect to the next of several servers each time.

    A server that follows closes its publishers' connections, so that they come to the leader.

    :param places: a reactor, host and port for each server
    """

    def __init__(self, places: Sequence[tuple[Any, str, int]]) -> None:
        self._places = places
        self._next = 0
        directlyProvides(self, providedBy(places[0][0]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._places[0][0], name)

    def connectTCP(self, host: str, port: int, factory: Any, *args: Any, **more: Any) -> Any:
        """Connect to the next server, instead of *host* and *port*."""
        reactor, host, port = self._places[self._next % len(self._places)]
        self._next += 1
        return reactor.connectTCP(host, port, factory, *args, **more)
