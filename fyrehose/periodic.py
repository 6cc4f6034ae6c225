"""Periodic work of the server, which takes turns, goes on after an error, and whose members do not affect each other.

Checks.start() -> check() every some seconds -> steps, some in each turn -> isolation.call(member, function)
                                                an error is logged, with the member; the others go on
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.net.turns import SteppedWork, Turns

log = Logger()


@attrs.define(eq=False)
class Isolation:
    """Calls of functions, one for each member of a loop, in which an error of one does not affect the others."""

    #: the members whose last call has failed, so that each failure is logged once
    _failing: set[str] = attrs.field(factory=set, init=False)

    def call(self, member: str, function: Callable[..., object], *args: Any) -> None:
        """Call *function* with *args*; log an error, unless the last call for *member* has failed, too.

        :param member: the member, as text for the log
        """
        try:
            function(*args)
        except Exception:
            self.failed(member, Failure())
        else:
            self.succeeded(member)

    def failed(self, member: str, failure: Failure) -> None:
        """Log that a call for *member* has failed, unless the last one has, too."""
        if member not in self._failing:
            self._failing.add(member)
            log.failure("checking {member} failed, and is tried again; please report this bug", failure, member=member)

    def succeeded(self, member: str) -> None:
        """Note that a call for *member* has not failed."""
        self._failing.discard(member)

    def forget(self) -> None:
        """Forget which members have failed."""
        self._failing.clear()


@attrs.define(eq=False)
class Checks:
    """Periodic work from :meth:`start` to :meth:`stop`, for state that ends with time.

    :ivar check: begins the work, and yields after each step, which may not take long; an error of it is logged, and
        the next work follows in time
    :ivar seconds: the time between two beginnings; work that takes longer is not begun again meanwhile
    :ivar what: what is checked, for the log
    :ivar turns: gives the work its turns
    :ivar isolation: for the members that *check* looks at one after the other
    """

    clock: IReactorTime
    check: Callable[[], Iterator[None]]
    seconds: float
    what: str
    turns: Turns
    isolation: Isolation = attrs.field(factory=Isolation, init=False)
    _timer: IDelayedCall | None = attrs.field(default=None, init=False)
    #: the work that has begun, and has not ended
    _steps: SteppedWork | None = attrs.field(default=None, init=False)

    @property
    def started(self) -> bool:
        """Return whether :meth:`start` was called after the last :meth:`stop`."""
        return self._timer is not None

    def start(self) -> None:
        """Start the checks, unless they have started."""
        if self._timer is None:
            self._timer = self.clock.callLater(self.seconds, self._due)

    def begin(self) -> None:
        """Begin a check before its time, if they have started, and none is under way; its first turn may be now."""
        if self._timer is not None and self._steps is None:
            self._steps = SteppedWork(self.turns, self.check())
            self._steps.done.addBoth(self._ended)
            self.turns.run(self._steps)

    def stop(self) -> None:
        """Stop the checks, if they have started."""
        timer, self._timer = self._timer, None
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.stop()
        self.isolation.forget()
        if timer is not None:
            timer.cancel()

    def _due(self) -> None:
        self._timer = self.clock.callLater(self.seconds, self._due)
        self.begin()

    def _ended(self, result: object) -> None:
        """Note that the work has ended, or log the error by which it has; it begins again in time."""
        self._steps = None
        if isinstance(result, Failure):
            self.isolation.failed(self.what, result)
        else:
            self.isolation.succeeded(self.what)
