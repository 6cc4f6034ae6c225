"""Decides how long the commit of a single publish waits for a second one, so that both share a sync.

    in: what each small commit had, and how long it took      out: how long the next one may wait

While messages arrive one by one, each costs a commit of its own, and the commits of a few thousand messages a second
keep a core busy.  If others arrive anyway, a short wait saves more than it costs.  A publisher that sends one message
at a time, each after the acknowledgement of the last, must never wait: nobody else arrives.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import attrs

#: Waiting is considered from this share of commits on that had more than one message.
SHARED = 0.05
#: Commits with more messages than this on average are cheap enough.
ENOUGH = 8
#: Weight of one commit in the averages.
WEIGHT = 1 / 16
#: The longest wait, in seconds, however long commits take.
LONGEST = 500e-6
#: After two waits in vain there are none for so many seconds; each time for twice as many, up to the second number.
REST, LONGEST_REST = 1.0, 64.0


class Linger(Protocol):
    """Decides how long a commit waits."""

    def wait(self) -> float:
        """Return how long the commit of a single publish may wait for another, in seconds; 0: not at all."""

    def committed(self, messages: int, seconds: float) -> None:
        """Process a small commit: how many messages it had, and how long it took."""

    def waited(self, company: bool) -> None:
        """Process the end of a wait: whether another publish arrived."""


@attrs.frozen
class Fixed:
    """Every commit of a single publish may wait for so many seconds."""

    seconds: float

    def wait(self) -> float:
        return self.seconds

    def committed(self, messages: int, seconds: float) -> None:
        """Nothing depends on it."""

    def waited(self, company: bool) -> None:
        """Nothing depends on it."""


@attrs.define(eq=False)
class Fitting:
    """Follows the traffic: waits for at most the length of a commit, and only while others arrive meanwhile.

    :ivar seconds: a monotonic clock
    """

    seconds: Callable[[], float] = time.monotonic
    _shared: float = attrs.field(default=0.0, init=False)
    _messages: float = attrs.field(default=1.0, init=False)
    _took: float = attrs.field(default=0.0, init=False)
    _in_vain: int = attrs.field(default=0, init=False)
    _rest: float = attrs.field(default=REST, init=False)
    _again_at: float = attrs.field(default=float("-inf"), init=False)

    def wait(self) -> float:
        if self._shared < SHARED or self._messages > ENOUGH or self.seconds() < self._again_at:
            return 0.0
        return self._took

    def committed(self, messages: int, seconds: float) -> None:
        self._shared += WEIGHT * ((messages > 1) - self._shared)
        self._messages += WEIGHT * (messages - self._messages)
        self._took += WEIGHT * (min(seconds, LONGEST) - self._took)

    def waited(self, company: bool) -> None:
        if company:
            self._in_vain, self._rest = 0, REST
            return
        self._in_vain += 1
        if self._in_vain == 2:
            self._again_at = self.seconds() + self._rest
            self._in_vain, self._rest = 0, min(2 * self._rest, LONGEST_REST)
