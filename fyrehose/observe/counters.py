"""Count events by protocol and name, and log refusals at a limited rate."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

import attrs
from twisted.logger import Logger

from fyrehose import errors
from fyrehose.identity import network_of
from fyrehose.observe.writers import WriterTable

#: Limit of the log lines per second about one cause.
MOST_LINES = 10
#: Limit of the kinds of log lines whose last time is remembered; beyond it, the kind used least recently is forgotten.
MOST_KINDS = 4_096
#: For how many protocols, causes and networks together the last refusal is kept.
MOST_RECENT = 100
#: How much of a refusal's detail is kept, in characters.
DETAIL = 300
#: The causes with which the broker refuses a publish or a subscription.
BROKER_REFUSALS = tuple(
    sorted(
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, (errors.PublishError, errors.Forbidden))
    )
)


@attrs.frozen(slots=True)
class LastRefusal:
    """The last refusal of a network for one cause.

    :ivar at: when it happened, in seconds of the monotonic clock
    :ivar count: how many refusals of the network for this cause there were since it is listed
    """

    peer: str
    detail: str
    at: float
    count: int


@attrs.define
class Counters:
    """The counters and gauges of a server by ``(protocol, name)``; never global, but passed to the code that counts.

    :ivar seconds: the monotonic clock, in seconds
    :ivar counts: how often each event has happened
    :ivar refusals: the keys of ``counts`` that count refusals and drops
    :ivar gauges: current values, for example the number of connections
    :ivar peaks: the largest value that each gauge has had
    :ivar recent: the last refusals by protocol, cause and network, the latest last
    :ivar writers: the writers of lumberjack by name
    :ivar known: the counters of open listeners, also those at 0; the value says whether the counter counts refusals
    """

    seconds: Callable[[], float] = time.monotonic
    counts: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    refusals: set[tuple[str, str]] = attrs.field(factory=set, init=False)
    gauges: Counter[tuple[str, str]] = attrs.field(factory=Counter, init=False)
    peaks: Counter[tuple[str, str]] = attrs.field(factory=Counter, init=False)
    known: dict[tuple[str, str], bool] = attrs.field(factory=dict, init=False)
    recent: OrderedDict[tuple[str, str, str], LastRefusal] = attrs.field(factory=OrderedDict, init=False)
    writers: WriterTable = attrs.field(
        default=attrs.Factory(lambda self: WriterTable(lambda: self.seconds()), takes_self=True), init=False
    )
    #: For each kind of line, in the order of last use: when it was last logged, and how many lines were left out since.
    _logged: OrderedDict[tuple[str, str, str], tuple[float, int]] = attrs.field(factory=OrderedDict, init=False)
    #: For each cause: the second in which lines about it were last logged, and the number of lines in that second.
    _bursts: dict[tuple[str, str], tuple[int, int]] = attrs.field(factory=dict, init=False)

    def declare(self, protocol: str, events: Iterable[str] = (), refusals: Iterable[str] = ()) -> None:
        """Declare the counters of a listener, so that metrics begin at 0 and alerts see the first increase."""
        self.known.update(dict.fromkeys(((protocol, name) for name in events), False))
        self.known.update(dict.fromkeys(((protocol, name) for name in (*BROKER_REFUSALS, *refusals)), True))

    def counts_refusals(self, key: tuple[str, str]) -> bool:
        """Return whether the counter *key* counts refusals or drops."""
        return key in self.refusals or self.known.get(key, False)

    def add(self, protocol: str, name: str, n: int = 1) -> None:
        """Add *n* to a counter; *protocol* and *name* come from the code, never from a peer."""
        self.counts[protocol, name] += n

    def gauge(self, protocol: str, name: str, change: int) -> None:
        """Add *change*, which may be negative, to a gauge."""
        key = (protocol, name)
        self.gauges[key] += change
        if self.gauges[key] > self.peaks[key]:
            self.peaks[key] = self.gauges[key]

    def refuse(
        self,
        log: Logger,
        protocol: str,
        cause: str,
        peer: str,
        detail: str = "",
        *,
        apart: str = "",
        every: float = 1.0,
    ) -> None:
        """Count a refusal or a drop, and log it, but at most one line every *every* seconds for each cause.

        :param apart: a text, such as a network: lines with different texts are limited separately.  It may come from a
            peer, so there are also at most :data:`MOST_LINES` lines per second for each cause
        """
        self.counts[protocol, cause] += 1
        self.refusals.add((protocol, cause))
        now, kind = self.seconds(), (protocol, cause, apart)
        self._remember((protocol, cause, network_of(peer)), peer, detail, now)
        last, skipped = self._logged.pop(kind, (float("-inf"), 0))
        logged = now - last >= every and self._take_line(protocol, cause, now)
        self._logged[kind] = (now, 0) if logged else (last, skipped + 1)
        if len(self._logged) > MOST_KINDS:
            self._logged.popitem(last=False)
        if logged:
            log.warn(
                "{protocol}: {cause} from {peer}{detail}{more}",
                protocol=protocol,
                cause=cause,
                peer=peer,
                detail=f": {detail}" if detail else "",
                more=f" (and {skipped} more in between)" if skipped else "",
            )

    def _remember(self, key: tuple[str, str, str], peer: str, detail: str, now: float) -> None:
        """Keep a refusal as the latest one of its protocol, cause and network."""
        before = self.recent.pop(key, None)
        self.recent[key] = LastRefusal(peer, detail[:DETAIL], now, 1 if before is None else before.count + 1)
        if len(self.recent) > MOST_RECENT:
            self.recent.popitem(last=False)

    def _take_line(self, protocol: str, cause: str, now: float) -> bool:
        """Return whether another line about *cause* may be logged in this second; if so, count it."""
        second, lines = self._bursts.get((protocol, cause), (int(now), 0))
        if second != int(now):
            lines = 0
        if lines >= MOST_LINES:
            return False
        self._bursts[protocol, cause] = (int(now), lines + 1)
        return True
