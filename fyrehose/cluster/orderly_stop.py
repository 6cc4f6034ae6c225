"""Begin the stop of a member once, and in time although listeners may still wait for appends."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall

#: How long an orderly stop waits for the shared log, in seconds; the whole stop takes at most five seconds.
PATIENCE = 3.0


@attrs.define(eq=False)
class OrderlyStop:
    """The stop of a member, which begins once, and at most :data:`PATIENCE` seconds after it was expected.

    :ivar job: stops the member
    """

    reactor: Any
    job: Callable[[], Coroutine[Any, Any, None]]
    #: The timer that begins the stop even if listeners are still open; None before a stop is expected.
    _later: IDelayedCall | None = attrs.field(default=None, init=False)
    _begun: Deferred[None] | None = attrs.field(default=None, init=False)

    def expect(self) -> None:
        """Begin in :data:`PATIENCE` seconds at the latest: listeners wait for appends that may never be accepted."""
        if self._later is None:
            self._later = self.reactor.callLater(PATIENCE, self._begin)

    async def perform(self) -> None:
        """Begin the stop, unless it has begun, and wait for its end; afterwards the member may start again."""
        await self._begin()
        self._begun = self._later = None

    @property
    def deadline(self) -> float:
        """Return when appends that are under way are not waited for any more."""
        return float(self.reactor.seconds() + PATIENCE if self._later is None else self._later.getTime())

    def _begin(self) -> Deferred[None]:
        if self._later is not None and self._later.active():
            self._later.cancel()
        if self._begun is None:
            self._begun = Deferred.fromCoroutine(self.job())
        return self._begun
