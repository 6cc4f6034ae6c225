"""Repair: gaps, early records, duplicates, requests, lost ranges."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fyrehose.protocols.backbone import repair
from fyrehose.protocols.backbone.frames import MAX_SEQUENCES
from fyrehose.protocols.backbone.repair import PAUSES, RUN_OVERHEAD, STREAMING, RecentRuns, RecordsSkipped, Repair
from fyrehose.records import LAST_SEQ, Run
from tests.verification.consumers.ran import Ran


def run(first: int, last: int) -> Run:
    """Return records whose payload is their sequence."""
    payloads = [str(seq).encode() for seq in range(first, last + 1)]
    return Run.of("backbone", payloads, source="backbone").numbered(first, 0)


def seqs(runs: list[Run]) -> list[int]:
    """Return the sequences of *runs*, after a check of their payloads."""
    found = []
    for each in runs:
        for i, payload in enumerate(each.payloads()):
            assert int(bytes(payload)) == each.first_seq + i
            found.append(each.first_seq + i)
    return found


def feed(order: Repair, *ranges: tuple[int, int], now: float = 0.0) -> list[int]:
    """Receive records; return the sequences that can be delivered."""
    return [seq for first, last in ranges for seq in seqs(order.received(run(first, last), now)[1])]


#: The pauses of the model: it gives a gap up after three requests.
SOME = PAUSES[:3]
#: Where records begin in the model: few in a row, and both sides of the size of one answer and of two.
EDGES = (1, 2, 3, 4, 5, *range(9_999, 10_004), 10_010, 20_001, 20_003, 25_000)


def last_of(piece: int) -> int:
    return EDGES[EDGES.index(piece) + 1] - 1


def pieces(first: int, last: int) -> list[int]:
    return [edge for edge in EDGES[:-1] if first <= edge <= last]


def joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return *ranges* with those that follow each other as one."""
    found: list[tuple[int, int]] = []
    for first, last in ranges:
        if found and found[-1][1] + 1 == first:
            first = found.pop()[0]
        found.append((first, last))
    return found


class Model:
    """The rules of the repair for single *pieces*, which are the numbers between two EDGES; a gap is many in a row.

    :ivar missing: when each missing piece is due, how often it was requested, and how far the answer can go
    """

    def __init__(self, position: int | None, most_gaps: int, most_waiting: int) -> None:
        self.position, self.highest, self.duplicates = position, position or 0, 0
        self.most_gaps, self.most_waiting = most_gaps, most_waiting
        self.missing: dict[int, tuple[float, int, int]] = {}
        self.waiting: dict[int, int] = {}  #: the bytes of the records that wait, by their first number
        self.tail_due, self.tail_to, self.tail_fresh = 0.0, 0, True

    def gaps(self) -> list[list[int]]:
        gaps: list[list[int]] = []
        for first in sorted(self.missing):
            if gaps and last_of(gaps[-1][-1]) == first - 1:
                gaps[-1].append(first)
            else:
                gaps.append([first])
        return gaps

    def received(self, first: int, last: int, now: float) -> list[int]:
        """Return the pieces that are new."""
        if self.position is None:
            self.position = self.highest = first - 1
        if last > self.highest:
            self.tail_fresh = True
            if not self.tail_to:
                self.tail_due = now + 1.0
            elif last < self.tail_to:
                self.tail_due = now + STREAMING
            else:
                self.tail_due, self.tail_to = now, 0
        new = [piece for gap in self.gaps() for piece in self._fill(gap, first, last, now)]
        early, above = pieces(self.highest + 1, first - 1), pieces(max(first, self.highest + 1), last)
        if above and self.room() and not (early and len(self.gaps()) >= self.most_gaps):
            self.missing |= dict.fromkeys(early, (now + 0.02, 0, 0))
            new += self._hold(above)
            self.highest = last
        self.duplicates += last - first + 1 - sum(last_of(piece) - piece + 1 for piece in new)
        self.drain()
        return new

    def room(self) -> bool:
        return sum(self.waiting.values()) <= self.most_waiting

    def _fill(self, gap: list[int], first: int, last: int, now: float) -> list[int]:
        came = [piece for piece in gap if first <= piece <= last]
        splits = bool(came) and came[0] != gap[0] and came[-1] != gap[-1]
        if not came or (
            came[0] - 1 != self.position and (not self.room() or (splits and len(self.gaps()) >= self.most_gaps))
        ):
            return []
        for piece in came:
            _, requests, to = self.missing.pop(piece)
        for piece in gap[gap.index(came[-1]) + 1 :]:
            if requests:  # the answer streams in, or has ended
                self.missing[piece] = (now, 0, 0) if last >= to else (now + STREAMING, 1, to)
        return self._hold(came)

    def _hold(self, came: list[int]) -> list[int]:
        self.waiting[came[0]] = 4 * (last_of(came[-1]) - came[0] + 1) + RUN_OVERHEAD
        return came

    def drain(self) -> None:
        self.position = min(self.missing, default=self.highest + 1) - 1
        self.waiting = {first: size for first, size in self.waiting.items() if first > self.position}

    def due(self, now: float, most: int) -> list[tuple[int, int]]:
        ready = [gap for gap in self.gaps() if self.missing[gap[0]][0] <= now and self.missing[gap[0]][1] < len(SOME)]
        requests = [[gap] for gap in ready] if most else []
        while len(requests) > most:  # the nearest neighbours share a request
            near = [requests[i][0][0] - last_of(requests[i - 1][-1][-1]) for i in range(1, len(requests))]
            at = max(i for i, distance in enumerate(near) if distance == min(near))
            requests[at : at + 2] = [requests[at] + requests[at + 1]]
        ranges = [(gaps[0][0], last_of(gaps[-1][-1])) for gaps in requests]
        for gaps, (first, _) in zip(requests, ranges, strict=True):
            for piece in (piece for gap in gaps if gap[0] < first + MAX_SEQUENCES for piece in gap):
                count = self.missing[piece][1]
                self.missing[piece] = (now + SOME[count], count + 1, first + MAX_SEQUENCES - 1)
        if len(ranges) < most and self.position is not None and self.tail_due <= now:
            ranges.append((self.highest + 1, LAST_SEQ))
            self.tail_due, self.tail_fresh = now + (SOME[0] if self.tail_fresh else 1.0), False
            self.tail_to = self.highest + MAX_SEQUENCES
        return ranges

    def give_up(self, now: float) -> list[tuple[int, int]]:
        given = []
        for gap in self.gaps():
            due, requests, _ = self.missing[gap[0]]
            if requests < len(SOME) or due > now:
                break
            given.append((gap[0], last_of(gap[-1])))
            for piece in gap:
                del self.missing[piece]
            self.drain()
        return given

    def restart(self, now: float) -> None:
        self.missing = {piece: (now, 0, to) for piece, (_, _, to) in self.missing.items()}
        self.tail_due, self.tail_fresh = now, True

    def next_due(self) -> float | None:
        gaps = [self.missing[gap[0]] for gap in self.gaps()]
        times = [due for i, (due, requests, _) in enumerate(gaps) if not i or requests < len(SOME)]
        return min([*times, *[self.tail_due] * (self.position is not None)], default=None)

    def was_requested(self, first: int, last: int) -> bool:
        asked = any(each[1] and piece <= last and last_of(piece) >= first for piece, each in self.missing.items())
        return asked or (first <= self.tail_to and last > self.highest)


def act(random: Random, order: Repair, model: Model, now: float) -> None:
    """Do the same to both, and compare what they return."""
    before, came = model.position, list[tuple[int, int]]()
    action = random.choice(
        ("receive", "receive", "due", "due", "give up", "restart" if random.random() < 0.3 else "due")
    )
    if action == "receive":
        at = random.randrange(len(EDGES) - 1)
        first, last = EDGES[at], last_of(EDGES[min(at + random.choice((0, 0, 1, 2, 5)), len(EDGES) - 2)])
        before = first - 1 if before is None else before
        come = Run(stream="s", source="s", lengths=bytes(4 * (last - first + 1)), payload=b"", first_seq=first)
        new, ready = order.received(come, now)
        assert joined([(each.first_seq, each.last_seq) for each in new]) == joined(
            [(piece, last_of(piece)) for piece in model.received(first, last, now)]
        )
        came = [(each.first_seq, each.last_seq) for each in ready]
    elif action == "due":
        most = random.randrange(5)
        assert order.due(now, most) == model.due(now, most)
    elif action == "give up":
        passed = order.give_up(now)
        assert [(each.first, each.last) for each in passed if isinstance(each, RecordsSkipped)] == model.give_up(now)
        came = [(e.first, e.last) if isinstance(e, RecordsSkipped) else (e.first_seq, e.last_seq) for e in passed]
    else:
        order.restart(now)
        model.restart(now)
    expected = [((before or 0) + 1, model.position or 0)] if model.position != before else []
    assert joined(came) == expected, "records are delivered or skipped in order, each once"


def test_repair_agrees_with_a_model_of_single_records() -> None:
    """Records come in any order; requests, gaps that are given up, and the time of the next action are those of rules
    2 and 6 of the client."""
    with Ran(repair) as ran:
        for seed in range(80):
            random, now = Random(seed), 0.0
            after = random.choice((None, 0, 2))
            gaps, waiting = random.choice(((99, 64 << 20), (99, 64 << 20), (3, 64 << 20), (99, 2_600)))
            order = Repair(after, pauses=SOME, most_gaps=gaps, most_waiting=waiting)
            model = Model(after, gaps, waiting)
            for _ in range(60):
                now = max(now, random.choice((now, now + 0.01, now + 0.3, model.next_due() or now)))
                act(random, order, model, now)
                assert (
                    joined(order.missing) == order.missing == joined([(m, last_of(m)) for m in sorted(model.missing)])
                )
                assert (order.position, order.highest, order.duplicates) == (
                    model.position,
                    model.highest,
                    model.duplicates,
                )
                assert order.waiting_size == sum(model.waiting.values())
                assert order.next_due() == model.next_due()
                first = random.choice(EDGES) + random.randrange(2)
                last = max(first, random.choice(EDGES))
                assert order.was_requested(first, last) == model.was_requested(first, last)
    assert {branch for branch in ran.never() if not branch.startswith("RecentRuns.")} == set()


def test_incomplete_answer_is_waited_for_before_the_gap_is_requested_again() -> None:
    order = Repair(0, reorder=0.0, probe=1e9)
    feed(order, (50_000, 50_000))
    assert order.due(0.0, 1) == [(1, 49_999)]
    feed(order, (1, MAX_SEQUENCES - 1), now=0.1)
    assert order.due(0.1, 1) == []
    feed(order, (MAX_SEQUENCES, MAX_SEQUENCES), now=0.2)
    assert order.due(0.2, 1) == [(MAX_SEQUENCES + 1, 49_999)]


def test_gap_just_beyond_the_size_of_an_answer_gets_a_separate_request() -> None:
    order = Repair(0, reorder=0.0, probe=1e9)
    feed(order, (2, MAX_SEQUENCES), (MAX_SEQUENCES + 2, MAX_SEQUENCES + 2))
    assert order.due(0.0, 1) == [(1, MAX_SEQUENCES + 1)]
    assert order.due(0.0, 1) == [(MAX_SEQUENCES + 1, MAX_SEQUENCES + 1)]
    assert order.due(0.0, 1) == []


def test_gap_is_never_given_up_while_each_answer_brings_a_part_of_it() -> None:
    order = Repair(0, reorder=0.0, pauses=(1.0, 1.0), probe=1e9)
    feed(order, (41, 41), now=0.0)
    now, got = 0.0, list[int]()
    while len(got) < 41:
        assert order.due(now, 9) == [(len(got) + 1, 40)], f"at {now:g} s"
        got += feed(order, (len(got) + 1, len(got) + 1), now=now + 0.1)
        now += 0.101 + STREAMING
        assert order.give_up(now) == []
    assert got == [*range(1, 42)]


def test_gap_is_requested_during_ten_seconds() -> None:
    assert max(PAUSES) == 0.5
    order = Repair(0, reorder=0.0, probe=1e9)
    feed(order, (2, 2))
    now, asked = 0.0, 0
    while not order.give_up(now):
        asked += len(order.due(now, 1))
        next_due = order.next_due()
        assert next_due is not None
        now = next_due
    assert (now, asked) == (pytest.approx(9.9), 21)


def test_nothing_is_requested_after_the_last_sequence() -> None:
    order = Repair(LAST_SEQ - 1)
    run_ = Run.of("s", [b"x"], source="s").numbered(LAST_SEQ, 0)
    assert order.received(run_, 0.0) == ([run_], [run_])
    assert order.due(99.0, 9) == []


def test_memory_of_waiting_runs_is_bounded() -> None:
    order = Repair(0, most_waiting=3_000)
    for seq in range(3, 5_000, 2):
        feed(order, (seq, seq))
        assert order.waiting_size <= 3_000 + 600
    assert order.highest < 50
    top = order.highest
    # Records that can be delivered at once are always accepted.
    assert feed(order, *[(seq, seq) for seq in range(1, top + 1)]) == list(range(1, top + 1))
    assert order.waiting_size == 0
    assert feed(order, (top + 1, top + 2)) == [top + 1, top + 2]


def test_record_with_a_very_high_sequence_takes_no_extra_memory() -> None:
    order = Repair(0)
    feed(order, (1, 1), (LAST_SEQ - 1, LAST_SEQ))
    assert order.missing == [(2, LAST_SEQ - 2)]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    total=st.integers(1, 120),
    after=st.none() | st.just(0),
    most=st.integers(1, 4),
)
def test_any_loss_reordering_and_repetition_is_repaired(seed: int, total: int, after: int | None, most: int) -> None:
    """The server answers three requests of four; datagrams arrive late, twice, or not at all."""
    random = Random(seed)
    order = Repair(after)
    delivered: list[int] = []

    def come(first: int, last: int) -> None:
        while first <= last:
            size = random.randrange(1, 9)
            if random.random() < 0.7:
                for _ in range(random.choice((1, 1, 2))):
                    arrivals.insert(random.randrange(len(arrivals) + 1), (first, min(last, first + size - 1)))
            first += size

    arrivals: list[tuple[int, int]] = []
    come(1, total)
    start = None if after is None else 1
    now = 0.0
    while now < 200 and not (order.position == total and not order.missing):
        for first, last in arrivals:
            _, ready = order.received(run(first, last), now)
            if start is None:
                start = first
            delivered += seqs(ready)
        arrivals = []
        now += 0.05
        for passed in order.give_up(now):
            assert not isinstance(passed, RecordsSkipped), "another request would have been answered"
        for first, last in order.due(now, most):
            if random.random() < 0.9:
                come(first, min(last, total))
        if order.position is None:
            come(1, total)
    assert delivered == list(range(start or 1, total + 1))


def test_store_has_the_latest_runs_within_its_limit_and_returns_exactly_a_range() -> None:
    """The model is a list of runs, which arrive in any order; a run larger than the limit is not stored."""
    for seed in range(100):
        random = Random(seed)
        store, kept = RecentRuns(random.choice((0, 20, 60))), list[Run]()
        edges = sorted(random.sample(range(1, 30), 12))
        came = [run(first, random.randrange(first, end)) for first, end in pairwise(edges)]
        random.shuffle(came)
        for each in came:
            store.add(each)
            kept = sorted([*kept, each] if each.size <= store.limit else kept, key=lambda one: one.first_seq)
            while sum(one.size for one in kept) > store.limit:
                del kept[0]
            assert store.size == sum(one.size for one in kept)
            first = random.randrange(32)
            last = random.randrange(first, 33)
            assert seqs(list(store.read(first, last))) == [seq for seq in seqs(kept) if first <= seq <= last]
