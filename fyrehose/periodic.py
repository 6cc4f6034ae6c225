"""Periodic calls that go on after an error, and loops whose members do not affect each other.

Checks.start() -> check() every some seconds -> isolation.call(member, function) for each member
                                                 an error is logged, with the member; the others go on
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

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
            if member not in self._failing:
                self._failing.add(member)
                log.failure("checking {member} failed, and is tried again; please report this bug", member=member)
        else:
            self._failing.discard(member)

    def forget(self) -> None:
        """Forget which members have failed."""
        self._failing.clear()


@attrs.define(eq=False)
class Checks:
    """Periodic calls of a function from :meth:`start` to :meth:`stop`, for state that ends with time.

    :ivar check: the function; an error of it is logged, and the next call follows in time
    :ivar seconds: the time between two calls
    :ivar what: what is checked, for the log
    :ivar isolation: for the members that *check* looks at one after the other
    """

    clock: IReactorTime
    check: Callable[[], object]
    seconds: float
    what: str
    isolation: Isolation = attrs.field(factory=Isolation, init=False)
    _loop: LoopingCall | None = attrs.field(default=None, init=False)

    @property
    def started(self) -> bool:
        """Return whether :meth:`start` was called after the last :meth:`stop`."""
        return self._loop is not None

    def start(self, now: bool = False) -> None:
        """Start the calls, unless they have started.

        :param now: whether the first call is made at once
        """
        if self._loop is None:
            self._loop = LoopingCall(self.isolation.call, self.what, self.check)
            self._loop.clock = self.clock
            self._loop.start(self.seconds, now=now)

    def stop(self) -> None:
        """Stop the calls, if they have started."""
        loop, self._loop = self._loop, None
        self.isolation.forget()
        if loop is not None and loop.running:
            loop.stop()
