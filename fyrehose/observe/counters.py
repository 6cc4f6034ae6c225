"""Named counters, and log lines that a flood cannot turn into a flood of their own."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import attrs
from twisted.logger import Logger


@attrs.define
class Counters:
    """What happened how often, by ``(protocol, what)``; handed to whoever counts, never global.

    :ivar seconds: the monotonic clock, in seconds
    :ivar refusals: which of the counts are refusals and drops
    :ivar gauges: what there is at present
    :ivar peaks: the most that there ever was of it
    """

    seconds: Callable[[], float] = time.monotonic
    counts: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    refusals: set[tuple[str, str]] = attrs.field(factory=set, init=False)
    gauges: Counter[tuple[str, str]] = attrs.field(factory=Counter, init=False)
    peaks: Counter[tuple[str, str]] = attrs.field(factory=Counter, init=False)
    _logged: dict[tuple[str, str], tuple[float, int]] = attrs.field(factory=dict, init=False)

    def add(self, protocol: str, what: str, n: int = 1) -> None:
        """Count ``n`` of ``what``; both are names from our code, never bytes from a peer."""
        self.counts[protocol, what] += n

    def gauge(self, protocol: str, what: str, change: int) -> None:
        """There is so much more of ``what`` now, or less."""
        key = (protocol, what)
        self.gauges[key] += change
        if self.gauges[key] > self.peaks[key]:
            self.peaks[key] = self.gauges[key]

    def refuse(self, log: Logger, protocol: str, cause: str, peer: str, detail: str = "") -> None:
        """Count a refusal or a drop, and log at most one line a second for each cause."""
        key = (protocol, cause)
        self.counts[key] += 1
        self.refusals.add(key)
        now = self.seconds()
        last, unsaid = self._logged.get(key, (-1.0, 0))
        if now - last < 1.0:
            self._logged[key] = (last, unsaid + 1)
            return
        self._logged[key] = (now, 0)
        log.warn(
            "{protocol}: {cause} from {peer}{detail}{more}",
            protocol=protocol,
            cause=cause,
            peer=peer,
            detail=f": {detail}" if detail else "",
            more=f" (and {unsaid} more in between)" if unsaid else "",
        )
