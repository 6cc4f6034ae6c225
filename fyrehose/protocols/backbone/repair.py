"""What a subscriber has, what it lacks, and when to ask for it.

    position   everything up to here was delivered, or given up
    waiting    runs that came early, above the position, in order, not overlapping
    gaps       what is missing below the highest number seen, in order
    tail       what may be missing above it: the last DELIVERs can be lost, too, and nothing after them says so

A gap is asked for after a short delay, because datagrams overtake each other; then again, with growing pauses; then it
is given up, by name (rules 2 and 6 of the client).  While answers come in, it is not asked for twice.

in: received(run, now), due requests      out: runs in order, lost ranges, ranges to ask for
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from itertools import pairwise
from operator import attrgetter

import attrs

from fyrehose.protocols.backbone.frames import MAX_SEQUENCES
from fyrehose.records import LAST_SEQ, Run

#: How long to wait for an answer, after each request: ten seconds in all, in which every journal had its turn and the
#: server's own, which has everything that anybody can have, many.
PAUSES = (0.15, 0.25, *[0.5] * 19)
#: How long to wait for the rest of an answer, in seconds.
STREAMING = 0.25
#: Gaps that are told apart; what would make one more is dropped, and comes again.
MOST_GAPS = 4_096
#: What may wait for a gap to close, in bytes; what comes early beyond that is dropped, and comes again.
MOST_WAITING = 64 << 20
#: What a run costs besides its columns, in bytes.
RUN_OVERHEAD = 512

_first = attrgetter("first")
_first_seq = attrgetter("first_seq")


@attrs.define(slots=True)
class Gap:
    """``first`` to ``last`` are missing.

    :ivar due: when to ask, or ask again
    :ivar asked: how often it was asked for since anything of it came
    :ivar asked_to: the last number that the answer to the last request can bring; it may lie behind the gap
    """

    first: int
    last: int
    due: float
    asked: int = 0
    asked_to: int = 0


@attrs.frozen(kw_only=True, slots=True)
class Lost:
    """``first`` to ``last`` were asked for in vain, and are left out."""

    first: int
    last: int


@attrs.define(eq=False)
class Repair:
    """The order of one stream, restored.

    :ivar position: the last number that was delivered or given up; None: begin with whatever comes first
    :ivar reorder: how long to wait for a datagram that was overtaken, in seconds
    :ivar pauses: how long to wait for an answer, after the first request, the second, ...; after the last: give up
    :ivar probe: after how long without a DELIVER to ask for what may follow, in seconds
    """

    position: int | None = None
    reorder: float = 0.02
    pauses: tuple[float, ...] = PAUSES
    probe: float = 1.0
    highest: int = attrs.field(init=False)
    duplicates: int = attrs.field(default=0, init=False)
    _gaps: list[Gap] = attrs.field(factory=list, init=False)
    _waiting: list[Run] = attrs.field(factory=list, init=False)
    _waiting_size: int = attrs.field(default=0, init=False)
    _tail_due: float = attrs.field(default=0.0, init=False)
    _tail_asked_to: int = attrs.field(default=0, init=False)
    #: whether something has come since the tail was asked for
    _tail_fresh: bool = attrs.field(default=True, init=False)

    def __attrs_post_init__(self) -> None:
        self.highest = self.position or 0

    @property
    def missing(self) -> list[tuple[int, int]]:
        """What is known to be missing."""
        return [(gap.first, gap.last) for gap in self._gaps]

    def wants(self, first: int, last: int) -> bool:
        """Whether any of these numbers has been asked for: only then may a stranger bring them."""
        if first <= self._tail_asked_to and last > self.highest:
            return True
        at = max(bisect_right(self._gaps, first, key=_first) - 1, 0)
        for gap in self._gaps[at:]:
            if gap.first > last:
                break
            if gap.asked and gap.last >= first:
                return True
        return False

    def received(self, run: Run, now: float) -> tuple[list[Run], list[Run]]:
        """``run`` came in: (what of it is new, what can be delivered now, in order)."""
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
        """At the most ``most`` ranges to ask for now."""
        ready = [gap for gap in self._gaps if gap.due <= now and not self._hopeless(gap)]
        ranges = []
        for group in _grouped(ready, most):
            first, last = group[0].first, group[-1].last
            ranges.append((first, last))
            for gap in group:
                if gap.first > first + MAX_SEQUENCES - 1:
                    break  # beyond what the answer can hold; its turn comes
                gap.due = now + self.pauses[gap.asked]
                gap.asked += 1
                gap.asked_to = first + MAX_SEQUENCES - 1
        if len(ranges) < most and self.position is not None and self._tail_due <= now and self.highest < LAST_SEQ:
            ranges.append((self.highest + 1, LAST_SEQ))
            # The first request after something came is repeated soon, because the server answers a repeat by itself.
            self._tail_due = now + (self.pauses[0] if self._tail_fresh else self.probe)
            self._tail_fresh = False
            self._tail_asked_to = min(self.highest + MAX_SEQUENCES, LAST_SEQ)
        return ranges

    def give_up(self, now: float) -> list[Lost | Run]:
        """What was asked for in vain often enough, each followed by what can be delivered now that it is left out."""
        passed: list[Lost | Run] = []
        while self._gaps and self._hopeless(self._gaps[0]) and self._gaps[0].due <= now:
            gap = self._gaps.pop(0)
            passed.append(Lost(first=gap.first, last=gap.last))
            passed.extend(self._drain())
        return passed

    def next_due(self) -> float | None:
        """When :meth:`due` or :meth:`give_up` has something; None: when something has come in."""
        times = [gap.due for i, gap in enumerate(self._gaps) if i == 0 or not self._hopeless(gap)]
        if self.position is not None:
            times.append(self._tail_due)
        return min(times, default=None)

    def restart(self, now: float) -> None:
        """There is somebody to ask again: what was asked for before does not count as asked in vain."""
        for gap in self._gaps:
            gap.due, gap.asked = now, 0
        self._tail_due, self._tail_fresh = now, True

    # Inside.

    def _hopeless(self, gap: Gap) -> bool:
        """Whether ``gap`` was asked for as often as it may be; it is given up when those before it are closed."""
        return gap.asked >= len(self.pauses)

    def _tail_progress(self, last: int, now: float) -> None:
        if last <= self.highest:
            return
        self._tail_fresh = True
        if not self._tail_asked_to:
            self._tail_due = now + self.probe
        elif last >= self._tail_asked_to:
            # The whole portion came: most likely there is more.
            self._tail_due, self._tail_asked_to = now, 0
        else:
            self._tail_due = now + STREAMING

    def _fill(self, run: Run, now: float) -> list[Run]:
        """The parts of ``run`` that are in gaps."""
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
            self._keep(part)
            rest = self._rest(gap, first, last, now)
            self._gaps[at : at + 1] = rest
            at += len(rest)
        return new

    def _has_room(self, gap: Gap, first: int, last: int) -> bool:
        """Whether this part of ``gap`` can be kept; what can be delivered at once always is."""
        if self.position is not None and first == self.position + 1:
            return True
        splits = gap.first < first and last < gap.last
        return self._waiting_size <= MOST_WAITING and not (splits and len(self._gaps) >= MOST_GAPS)

    def _rest(self, gap: Gap, first: int, last: int, now: float) -> list[Gap]:
        """What is left of ``gap`` when ``first`` to ``last`` came."""
        rest = []
        if gap.first < first:
            rest.append(Gap(gap.first, first - 1, gap.due, gap.asked, gap.asked_to))
        if gap.last > last:
            if not gap.asked:
                rest.append(Gap(last + 1, gap.last, gap.due))
            elif last >= gap.asked_to:
                rest.append(Gap(last + 1, gap.last, now))
            else:
                rest.append(Gap(last + 1, gap.last, now + STREAMING, 1, gap.asked_to))
        return rest

    def _extend(self, run: Run, now: float) -> list[Run]:
        """The part of ``run`` that is above everything seen so far."""
        early = run.first_seq > self.highest + 1
        if self._waiting_size > MOST_WAITING or (early and len(self._gaps) >= MOST_GAPS):
            return []
        if early:
            self._gaps.append(Gap(self.highest + 1, run.first_seq - 1, now + self.reorder))
        part = run.slice(max(0, self.highest + 1 - run.first_seq), len(run))
        self._keep(part)
        self.highest = run.last_seq
        return [part]

    def _keep(self, part: Run) -> None:
        insort(self._waiting, part, key=_first_seq)
        self._waiting_size += part.size + RUN_OVERHEAD

    def _drain(self) -> list[Run]:
        """What follows the position without a gap."""
        end = self._gaps[0].first - 1 if self._gaps else self.highest
        count = bisect_left(self._waiting, end + 1, key=_first_seq)
        ready, self._waiting = self._waiting[:count], self._waiting[count:]
        self._waiting_size -= sum(run.size + RUN_OVERHEAD for run in ready)
        self.position = end
        return ready


def _grouped(gaps: list[Gap], most: int) -> list[list[Gap]]:
    """``gaps`` in at the most ``most`` groups, cut where they lie farthest apart: each becomes one request."""
    if not gaps or most < 1:
        return []
    apart = sorted(range(1, len(gaps)), key=lambda i: gaps[i].first - gaps[i - 1].last, reverse=True)
    cuts = [0, *sorted(apart[: most - 1]), len(gaps)]
    return [gaps[begin:end] for begin, end in pairwise(cuts)]
