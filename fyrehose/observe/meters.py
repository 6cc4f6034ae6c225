"""Histograms, the measurements and status of a journal, and iterations of the reactor that took too long.

An observation costs about as much as counting, and is made for each commit or sync, never for each message.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence

import attrs

#: Upper bounds for a histogram of the sizes of commits, in bytes.
SIZES = tuple(float(1 << shift) for shift in range(8, 26, 2))
#: Upper bounds for histograms of durations, in seconds: a fast disk syncs in 0.1 ms, a failing disk in many seconds.
SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
#: How many commits ``JournalMeters.recent`` collects before they are counted in histograms.
MOST_RECENT = 64
#: A write that the disk has not ended after this many seconds is reported: in the log, by /health, and by doctor.
LONGEST_WRITE = 2.0


@attrs.define(eq=False)
class Histogram:
    """A histogram: counts of observations by ranges of their values.

    :ivar bounds: ascending upper bounds; an observation counts for the first bound that is not smaller
    :ivar counts: one count for each bound, and one for observations beyond the last
    :ivar total: the sum of all observations
    """

    bounds: Sequence[float]
    counts: list[int] = attrs.field(init=False)
    total: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one observation of *value*."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """Return the number of observations."""
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """Return the bound that *share* of all observations (0 to 1) do not exceed.

        :return: the last bound if that share exceeds it; None before the first observation
        """
        wanted, seen = share * self.count, 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            if seen and seen >= wanted:
                return bound
        return self.bounds[-1] if self.count else None


@attrs.define(eq=False)
class Stalls:
    """The stalls: iterations of the reactor, longer than the watchdog allows, during which no other peer was served.

    :ivar count: number of stalls since the start
    :ivar longest: duration of the longest stall, in seconds
    """

    count: int = 0
    longest: float = 0.0

    def add(self, seconds: float) -> None:
        """Count a stall that has ended after *seconds*."""
        self.count += 1
        self.longest = max(self.longest, seconds)


@attrs.define(eq=False)
class JournalMeters:
    """The measurements of a journal.

    A commit only appends its figures to :attr:`recent`.  They are counted when a histogram is read, and when there are
    :data:`MOST_RECENT` of them: counting many at once costs less than counting each by itself.

    :ivar seconds: the monotonic clock, in seconds
    :ivar write_began: when the writer thread began with what it does now, by that clock; None: it waits for work;
        only that thread sets it
    :ivar recent: for each commit that is not counted yet: its size, and how long the commit and its sync took; None if
        the sync was counted already
    """

    seconds: Callable[[], float] = time.monotonic
    write_began: float | None = attrs.field(default=None, init=False)
    recent: list[tuple[int, float, float | None]] = attrs.field(factory=list, init=False)
    _commit_bytes: Histogram = attrs.field(factory=lambda: Histogram(SIZES), init=False)
    _commit_seconds: Histogram = attrs.field(factory=lambda: Histogram(SECONDS), init=False)
    _sync_seconds: Histogram = attrs.field(factory=lambda: Histogram(SECONDS), init=False)

    @property
    def write_age(self) -> float:
        """Return for how many seconds the oldest write has waited for the disk; 0: none does."""
        began = self.write_began  # read once, because the writer thread changes it
        return 0.0 if began is None else max(0.0, self.seconds() - began)

    def count(self) -> None:
        """Count the commits of :attr:`recent`."""
        recent, self.recent = self.recent, []
        for size, seconds, synced in recent:
            self._commit_bytes.observe(size)
            self._commit_seconds.observe(seconds)
            if synced is not None:
                self._sync_seconds.observe(synced)

    @property
    def commit_bytes(self) -> Histogram:
        """Return the sizes of group commits, in bytes."""
        self.count()
        return self._commit_bytes

    @property
    def commit_seconds(self) -> Histogram:
        """Return the durations of commits in seconds, from the start in the writer thread to the end in the reactor."""
        self.count()
        return self._commit_seconds

    @property
    def sync_seconds(self) -> Histogram:
        """Return the durations of the syncs of segments, in seconds."""
        self.count()
        return self._sync_seconds


@attrs.frozen(kw_only=True)
class MemberStatus:
    """The status of one server of a cluster, as the leader knows it.

    :ivar role: the last role that the server has reported: follower, candidate, leader or stopped
    :ivar address: where HTTP publishers reach the server; empty if it is unknown
    :ivar alive: whether the leader has received a message of the server within ``takeover-after``
    :ivar heard: seconds since the last message of the server; 0 for the leader itself; None if there was none
    :ivar behind: how many bytes of the leader's journal the server lacks; None if no server leads
    :ivar records: about how many records these bytes are; None if it is unknown
    :ivar seconds: for how long the server has lacked the oldest of these records; None if it is unknown
    """

    name: str
    role: str
    address: str = ""
    alive: bool = True
    heard: float | None = 0.0
    behind: int | None = None
    records: int | None = None
    seconds: float | None = None


@attrs.frozen(kw_only=True)
class NatsStatus:
    """The status of a NATS server that stores the shared log, as NATS reports it.

    :ivar leads: whether the NATS server leads the stream
    :ivar current: whether the NATS server has every entry that the leader of the stream has
    :ivar offline: whether the NATS server does not answer the others
    :ivar lag: how many entries the NATS server lacks
    """

    name: str
    leads: bool
    current: bool
    offline: bool
    lag: int

    @property
    def stores(self) -> bool:
        """Return whether this NATS server has the whole log, as far as NATS knows."""
        return self.leads or (self.current and not self.offline)


@attrs.frozen(kw_only=True)
class SharedLogStatus:
    """The state of the shared log of a cluster.

    :ivar copies: how many NATS servers have the whole log; 0 if NATS does not answer
    :ivar replicas: how many should have it; 0 if NATS has never answered
    :ivar problem: what is wrong, for people; empty: nothing
    :ivar remedy: what to do about it
    """

    copies: int = 0
    replicas: int = 0
    problem: str = ""
    remedy: str = ""


@attrs.frozen(kw_only=True)
class ClusterStatus:
    """The status of a server as a member of its cluster.

    :ivar role: follower, candidate, leader or stopped
    :ivar leader: name of the server that leads; empty if none is known
    :ivar epoch: number of the last take-over that counted
    :ivar behind: how many bytes of the leader's journal are missing on this server
    :ivar silent: seconds since the last message of the leader; 0 on the leader
    :ivar takeovers: how often this process has become the leader
    :ivar entries: number of entries of the shared log that were applied
    :ivar log_size: bytes in the shared log that are not trimmed yet; 0 unless this server leads
    :ivar members: all servers that are known, sorted by their names
    :ivar nats: the NATS servers that store the shared log, sorted by their names; empty if they are not known yet
    :ivar log: on how many NATS servers the shared log is stored, and what is wrong with it
    """

    name: str
    role: str
    leader: str
    epoch: int
    behind: int
    silent: float
    takeovers: int
    entries: int
    log_size: int = 0
    members: Sequence[MemberStatus] = ()
    nats: Sequence[NatsStatus] = ()
    log: SharedLogStatus = SharedLogStatus()


@attrs.frozen(kw_only=True)
class JournalStatus:
    """The status of a journal.

    :ivar durability: the durability mode, as on the command line
    :ivar position: the position of the next batch in the log, in bytes
    :ivar durable: the position below which everything is on disk, in bytes
    :ivar segments: the number of segments
    :ivar size: the size of all segments, in bytes
    :ivar free: the free space of the disk, in bytes; None if it is unknown
    :ivar held_by: name of the subscription that keeps the oldest segments; empty if none does
    :ivar overrun_subscriptions: how often a subscription lost segments that it had not read, because they were deleted
    :ivar damage: the damage that reads have found since the start, in segments that still exist
    :ivar keep_bytes: retention deletes the oldest segments beyond this size, in bytes; 0: no limit
    :ivar keep_age: retention deletes segments that are older than this, in seconds; 0: no limit
    :ivar min_free: the free space below which messages are refused, in bytes
    :ivar cluster: the figures of this server as a member of its cluster; None: it is in none
    """

    directory: str
    durability: str
    position: int
    durable: int
    segments: int
    size: int
    free: int | None
    held_by: str
    overrun_subscriptions: int
    damage: tuple[str, ...] = ()
    keep_bytes: int = 0
    keep_age: float = 0.0
    min_free: int = 0
    cluster: ClusterStatus | None = None
    meters: JournalMeters
