"""Count events by protocol and name, and log refusals at a limited rate."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

import attrs
from twisted.logger import Logger

from fyrehose import errors

#: The causes with which the broker refuses a publish or a subscription.
BROKER_REFUSALS = tuple(
    sorted(
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, (errors.PublishError, errors.Forbidden))
    )
)


@attrs.define
class Counters:
    """Counters and gauges by ``(protocol, name)``; passed to the code that counts, never global.

    :ivar seconds: the monotonic clock, in seconds
    :ivar counts: how often each event has happened
    :ivar refusals: the keys of ``counts`` that count refusals and drops
    :ivar gauges: current values, for example the number of connections
    :ivar peaks: the largest value that each gauge has had
    :ivar known: the counters of open listeners, whether or not they have counted anything; the value says whether
        they count refusals
    """

    seconds: Callable[[], float] = time.monotonic
    counts: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    refusals: set[tuple[str, str]] = attrs.field(factory=set, init=False)
    gauges: Counter[tuple[str, str]] = attrs.field(factory=Counter, init=False)
    peaks: Counter[tuple[str, str]] = attrs.field(factory=Counter, init=False)
    known: dict[tuple[str, str], bool] = attrs.field(factory=dict, init=False)
    _logged: dict[tuple[str, str], tuple[float, int]] = attrs.field(factory=dict, init=False)

    def declare(self, protocol: str, events: Iterable[str] = (), refusals: Iterable[str] = ()) -> None:
        """Declare the counters of a listener, so that metrics begin at 0 and alerts see the first increase."""
        self.known.update(dict.fromkeys(((protocol, name) for name in events), False))
        self.known.update(dict.fromkeys(((protocol, name) for name in (*BROKER_REFUSALS, *refusals)), True))

    def add(self, protocol: str, name: str, n: int = 1) -> None:
        """Add *n* to a counter; both names come from the code, never from a peer."""
        self.counts[protocol, name] += n

    def gauge(self, protocol: str, name: str, change: int) -> None:
        """Add *change*, which may be negative, to a gauge."""
        key = (protocol, name)
        self.gauges[key] += change
        if self.gauges[key] > self.peaks[key]:
            self.peaks[key] = self.gauges[key]

    def refuse(self, log: Logger, protocol: str, cause: str, peer: str, detail: str = "") -> None:
        """Count a refusal or a drop, and log at most one line per second for each cause."""
        key = (protocol, cause)
        self.counts[key] += 1
        self.refusals.add(key)
        now = self.seconds()
        last, skipped = self._logged.get(key, (-1.0, 0))
        if now - last < 1.0:
            self._logged[key] = (last, skipped + 1)
            return
        self._logged[key] = (now, 0)
        log.warn(
            "{protocol}: {cause} from {peer}{detail}{more}",
            protocol=protocol,
            cause=cause,
            peer=peer,
            detail=f": {detail}" if detail else "",
            more=f" (and {skipped} more in between)" if skipped else "",
        )
