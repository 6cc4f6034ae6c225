"""What is measured and not only counted: histograms, and what a journal says of itself.

Observing costs about what adding to a counter does, and is done once a commit or a sync, never once a message.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import attrs

#: Upper bounds of commits' sizes, in bytes.
SIZES = tuple(float(1 << shift) for shift in range(8, 26, 2))
#: Upper bounds of durations, in seconds: a fast disk syncs in a tenth of a millisecond, a failing one in many seconds.
SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


@attrs.define(eq=False)
class Histogram:
    """How many observations fell between which bounds.

    :ivar bounds: ascending; an observation belongs to the first bound that is not smaller, else to the last place
    :ivar counts: one for each bound, and one for what is beyond them
    :ivar total: the sum of all observations
    """

    bounds: Sequence[float]
    counts: list[int] = attrs.field(init=False)
    total: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """One more."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """The bound that ``share`` of all observations (0 to 1) do not exceed; the last one for what is beyond it.

        None before the first observation.
        """
        wanted, seen = share * self.count, 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            if seen and seen >= wanted:
                return bound
        return self.bounds[-1] if self.count else None


@attrs.frozen
class JournalMeters:
    """What a journal measures while it works.

    :ivar commit_bytes: the size of each group commit, in bytes
    :ivar commit_seconds: from when the thread takes a commit until the reactor hears that it is durable, in seconds
    :ivar sync_seconds: each sync of a segment, in seconds
    """

    commit_bytes: Histogram = attrs.field(factory=lambda: Histogram(SIZES))
    commit_seconds: Histogram = attrs.field(factory=lambda: Histogram(SECONDS))
    sync_seconds: Histogram = attrs.field(factory=lambda: Histogram(SECONDS))


@attrs.frozen(kw_only=True)
class JournalStatus:
    """What a journal says of itself.

    :ivar durability: its mode, as on the command line
    :ivar position: where the next batch goes, in bytes of log
    :ivar durable: everything below this position is on disk
    :ivar segments: how many files there are
    :ivar size: what they hold, in bytes
    :ivar free: what the disk has left, in bytes; None where it cannot be told
    :ivar waited_for: the named reader that retention waits for, or nothing
    :ivar overtaken: how often retention went on without one
    """

    directory: str
    durability: str
    position: int
    durable: int
    segments: int
    size: int
    free: int | None
    waited_for: str
    overtaken: int
    meters: JournalMeters
