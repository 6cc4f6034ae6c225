"""Turns of the reactor that took too long, for operators."""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class Stalls:
    """Turns of the reactor that took longer than the watchdog allows; nobody is served during such a turn.

    :ivar count: number of these turns since the start
    :ivar longest: duration of the longest of them, in seconds
    """

    count: int = 0
    longest: float = 0.0

    def add(self, seconds: float) -> None:
        """Count a turn that has ended after *seconds*."""
        self.count += 1
        self.longest = max(self.longest, seconds)
