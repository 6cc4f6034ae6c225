"""Restore the order of a stream: find missing records, and schedule the requests for them.

    position   everything up to this sequence was delivered or given up
    waiting    runs that arrived early, above the position, in order, not overlapping
    gaps       missing ranges below the highest sequence seen, in order
    tail       records that may be missing above that sequence: if the last DELIVERs are lost, no later one tells

A gap is requested after a short delay, because datagrams may arrive out of order; then again, with growing pauses; then
it is given up and reported (rules 2 and 6 of the client).  While answers arrive, a gap is not requested again.

in: received(run, now), the time      out: runs in order, lost ranges, ranges to request

:class:`RecentRuns` stores the latest records, so that the client can answer FORWARDs (rule 4 of the client).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import pairwise
from operator import attrgetter

import attrs

from fyrehose.protocols.backbone.frames import MAX_SEQUENCES
from fyrehose.records import LAST_SEQ, Run

#: How long to wait for an answer after each request, in seconds: 10 s in all.  In that time the server's own journal,
#: which has every record that is kept, has answered several times.
PAUSES = (0.15, 0.25, *[0.5] * 19)
#: How long to wait for the rest of an answer, in seconds.
STREAMING = 0.25
#: Maximum number of gaps; a run that would create another one is dropped, and requested later.
MOST_GAPS = 4_096
#: Maximum size of runs that wait for a gap to close, in bytes; further runs are dropped, and requested later.
MOST_WAITING = 64 << 20
#: Memory of a run besides its columns, in bytes; an estimate.
RUN_OVERHEAD = 512

_first = attrgetter("first")
_first_seq = attrgetter("first_seq")


@attrs.define(slots=True)
class MissingRange:
    """The records ``first`` to ``last`` are missing.

    :ivar due: when to request the records, or give them up
    :ivar requests: number of requests since one of the records has arrived
    :ivar requested_to: the highest sequence that the answer to the last request can contain
    """

    first: int
    last: int
    due: float
    requests: int = 0
    requested_to: int = 0


@attrs.frozen(kw_only=True, slots=True)
class RecordsSkipped:
    """The records ``first`` to ``last`` were requested in vain, and are skipped."""

    first: int
    last: int


@attrs.define(eq=False)
class Repair:
    """The repair of one stream: the order of its records, and the gaps.

    :ivar position: the last sequence that was delivered or given up; None: start with the first record that arrives
    :ivar reorder: how long to wait for a datagram that arrives out of order, in seconds
    :ivar pauses: how long to wait for an answer after each request, in seconds; after the last one a gap is given up
    :ivar probe: time without a DELIVER after which the tail is requested, in seconds
    :ivar most_gaps: how many ranges may be missing
    :ivar most_waiting: how many bytes of records may wait for missing ones
    :ivar waiting_size: how many bytes of records wait
    :ivar highest: the highest sequence seen
    :ivar duplicates: number of records that were dropped as duplicates, or because there was no room
    """

    position: int | None = None
    reorder: float = 0.02
    pauses: tuple[float, ...] = PAUSES
    probe: float = 1.0
    most_gaps: int = MOST_GAPS
    most_waiting: int = MOST_WAITING
    highest: int = attrs.field(init=False)
    duplicates: int = attrs.field(default=0, init=False)
    _gaps: list[MissingRange] = attrs.field(factory=list, init=False)
    _waiting: list[Run] = attrs.field(factory=list, init=False)
    waiting_size: int = attrs.field(default=0, init=False)
    _tail_due: float = attrs.field(default=0.0, init=False)
    _tail_requested_to: int = attrs.field(default=0, init=False)
    #: whether a new record has arrived since the tail was requested
    _tail_fresh: bool = attrs.field(default=True, init=False)

    def __attrs_post_init__(self) -> None:
        self.highest = self.position or 0

    @property
    def missing(self) -> list[tuple[int, int]]:
        """Return the missing ranges (first, last) below :attr:`highest`."""
        return [(gap.first, gap.last) for gap in self._gaps]

    def was_requested(self, first: int, last: int) -> bool:
        """Return whether any of these sequences was requested; if not, only the server may send their records."""
        if first <= self._tail_requested_to and last > self.highest:
            return True
        at = max(bisect_right(self._gaps, first, key=_first) - 1, 0)
        for gap in self._gaps[at:]:
            if gap.first > last:
                break
            if gap.requests and gap.last >= first:
                return True
        return False

    def received(self, run: Run, now: float) -> tuple[list[Run], list[Run]]:
        """Process received records.

        :return: the new records of *run*, and all records that can be delivered now, in order
        """
        if self.position is None:
            self.position = self.highest = run.first_seq - 1
        self._tail_progress(run.last_seq, now)
        if run.first_seq == self.highest + 1 == self.position + 1:
            self.position = self.highest = run.last_seq
            return [run], [run]
        new = self._fill(run, now)
        if run.last_seq > self.highest:
            new.extend(self._extend(run, now))
        self.duplicates += len(run) - sum(map(len, new))
        return new, self._drain()

    def due(self, now: float, most: int) -> list[tuple[int, int]]:
        """Return the ranges (first, last) to request now, at most *most* of them."""
        ready = [gap for gap in self._gaps if gap.due <= now and not self._exhausted(gap)]
        ranges = []
        for group in _group(ready, most):
            first, last = group[0].first, group[-1].last
            ranges.append((first, last))
            for gap in group:
                if gap.first > first + MAX_SEQUENCES - 1:
                    break  # the answer cannot hold this gap; a later request covers it
                gap.due = now + self.pauses[gap.requests]
                gap.requests += 1
                gap.requested_to = first + MAX_SEQUENCES - 1
        if len(ranges) < most and self.position is not None and self._tail_due <= now and self.highest < LAST_SEQ:
            ranges.append((self.highest + 1, LAST_SEQ))
            # The first request after a new record is repeated soon, because the server itself answers the repetition.
            self._tail_due = now + (self.pauses[0] if self._tail_fresh else self.probe)
            self._tail_fresh = False
            self._tail_requested_to = min(self.highest + MAX_SEQUENCES, LAST_SEQ)
        return ranges

    def give_up(self, now: float) -> list[RecordsSkipped | Run]:
        """Give up the oldest gaps with no request left; return each, followed by the runs that waited behind it."""
        passed: list[RecordsSkipped | Run] = []
        while self._gaps and self._exhausted(self._gaps[0]) and self._gaps[0].due <= now:
            gap = self._gaps.pop(0)
            passed.append(RecordsSkipped(first=gap.first, last=gap.last))
            passed.extend(self._drain())
        return passed

    def next_due(self) -> float | None:
        """Return when :meth:`due` or :meth:`give_up` has to be called; None: nothing is due until a record arrives."""
        times = [gap.due for i, gap in enumerate(self._gaps) if i == 0 or not self._exhausted(gap)]
        if self.position is not None:
            times.append(self._tail_due)
        return min(times, default=None)

    def restart(self, now: float) -> None:
        """Request all gaps anew, because the backbone answers again; forget how often they were requested."""
        for gap in self._gaps:
            gap.due, gap.requests = now, 0
        self._tail_due, self._tail_fresh = now, True

    def _exhausted(self, gap: MissingRange) -> bool:
        """Return whether *gap* was requested as often as is allowed; it is given up once no gap is left before it."""
        return gap.requests >= len(self.pauses)

    def _tail_progress(self, last: int, now: float) -> None:
        if last <= self.highest:
            return
        self._tail_fresh = True
        if not self._tail_requested_to:
            self._tail_due = now + self.probe
        elif last >= self._tail_requested_to:
            # The answer was as large as an answer can be, so there are most likely more records: request them now.
            self._tail_due, self._tail_requested_to = now, 0
        else:
            self._tail_due = now + STREAMING

    def _fill(self, run: Run, now: float) -> list[Run]:
        """Close gaps with *run*; return the parts of *run* that were in gaps."""
        new: list[Run] = []
        at = max(bisect_right(self._gaps, run.first_seq, key=_first) - 1, 0)
        while at < len(self._gaps) and self._gaps[at].first <= run.last_seq:
            gap = self._gaps[at]
            first, last = max(gap.first, run.first_seq), min(gap.last, run.last_seq)
            if first > last or not self._has_room(gap, first, last):
                at += 1
                continue
            part = run.slice(first - run.first_seq, last - run.first_seq + 1)
            new.append(part)
            self._hold(part)
            rest = self._remainder(gap, first, last, now)
            self._gaps[at : at + 1] = rest
            at += len(rest)
        return new

    def _has_room(self, gap: MissingRange, first: int, last: int) -> bool:
        """Return whether records *first* to *last* of *gap* can be stored; true if they can be delivered at once."""
        if self.position is not None and first == self.position + 1:
            return True
        splits = gap.first < first and last < gap.last
        return self.waiting_size <= self.most_waiting and not (splits and len(self._gaps) >= self.most_gaps)

    def _remainder(self, gap: MissingRange, first: int, last: int, now: float) -> list[MissingRange]:
        """Return the gaps that remain of *gap* after *first* to *last* have arrived."""
        rest = []
        if gap.first < first:
            rest.append(MissingRange(gap.first, first - 1, gap.due, gap.requests, gap.requested_to))
        if gap.last > last:
            if not gap.requests:
                rest.append(MissingRange(last + 1, gap.last, gap.due))
            elif last >= gap.requested_to:
                rest.append(MissingRange(last + 1, gap.last, now))
            else:
                rest.append(MissingRange(last + 1, gap.last, now + STREAMING, 1, gap.requested_to))
        return rest

    def _extend(self, run: Run, now: float) -> list[Run]:
        """Store the part of *run* above :attr:`highest`, and return it; empty if there is no room."""
        early = run.first_seq > self.highest + 1
        if self.waiting_size > self.most_waiting or (early and len(self._gaps) >= self.most_gaps):
            return []
        if early:
            self._gaps.append(MissingRange(self.highest + 1, run.first_seq - 1, now + self.reorder))
        part = run.slice(max(0, self.highest + 1 - run.first_seq), len(run))
        self._hold(part)
        self.highest = run.last_seq
        return [part]

    def _hold(self, part: Run) -> None:
        insort(self._waiting, part, key=_first_seq)
        self.waiting_size += part.size + RUN_OVERHEAD

    def _drain(self) -> list[Run]:
        """Remove and return the runs that follow the position without a gap."""
        end = self._gaps[0].first - 1 if self._gaps else self.highest
        count = bisect_left(self._waiting, end + 1, key=_first_seq)
        ready, self._waiting = self._waiting[:count], self._waiting[count:]
        self.waiting_size -= sum(run.size + RUN_OVERHEAD for run in ready)
        self.position = end
        return ready


def _group(gaps: list[MissingRange], most: int) -> list[list[MissingRange]]:
    """Divide *gaps* into at most *most* groups, one for each request, at the largest distances between them."""
    if not gaps or most < 1:
        return []
    apart = sorted(range(1, len(gaps)), key=lambda i: gaps[i].first - gaps[i - 1].last, reverse=True)
    cuts = [0, *sorted(apart[: most - 1]), len(gaps)]
    return [gaps[begin:end] for begin, end in pairwise(cuts)]


@attrs.define(eq=False)
class RecentRuns:
    """The latest runs, in order, not overlapping; the oldest are removed first.

    :ivar limit: maximum size, in bytes; 0: store nothing
    :ivar size: size of the stored runs, in bytes
    """

    limit: int
    size: int = attrs.field(default=0, init=False)
    _runs: list[Run] = attrs.field(factory=list, init=False)

    def add(self, run: Run) -> None:
        """Store *run*, which does not overlap the stored runs."""
        if run.size > self.limit:
            return
        insort(self._runs, run, key=_first_seq)
        self.size += run.size
        drop = 0
        while self.size > self.limit:
            self.size -= self._runs[drop].size
            drop += 1
        del self._runs[:drop]

    def read(self, first: int, last: int) -> Iterator[Run]:
        """Yield the stored records from *first* to *last*."""
        for run in self._runs:
            if run.first_seq > last:
                return
            if run.last_seq >= first:
                yield run.slice(max(0, first - run.first_seq), last - run.first_seq + 1)
