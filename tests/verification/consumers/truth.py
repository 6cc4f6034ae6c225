"""The truth about the records of one shared subscription, read from its changes in ``.subscriptions`` alone.

    Truth.apply(change), for each change in order -> how records ended, and in which generation

A generation of a stream begins with the creation of the subscription or with a rewind, which forget everything before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs
from searching import check

from fyrehose.subscriptions.lane import Leased
from fyrehose.subscriptions.pool import LeasePool

#: The lists of a change, and how the records in them ended.
ENDINGS = (("final", "settled"), ("dead", "dead"), ("expired", "expired"))


def numbers(ranges: Iterable[Any]) -> Iterator[int]:
    """Yield the numbers in *ranges*, as the server writes them."""
    for each in ranges:
        first, last = (each, each) if isinstance(each, int) else each
        yield from range(first, last + 1)


def ends_of(ranges: Iterable[list[int]]) -> Iterator[tuple[int, list[int]]]:
    """Yield each record in *ranges* with its ended deliveries and its failures."""
    for first, last, *end in ranges:
        yield from ((seq, end) for seq in range(first, last + 1))


def ended_by(change: dict[str, Any]) -> Iterator[tuple[str, int, str]]:
    """Yield stream, number and end of each record that *change* makes final."""
    for field, how in ENDINGS:
        for seq in numbers(change.get(field, ())):
            yield change["stream"], seq, how


@attrs.define(eq=False)
class Truth:
    """One subscription; a record is identified by its stream and its number.

    :ivar check: called with a condition that must hold, and with a message
    :ivar begun: called with a stream when a generation of it begins; with None when one of each stream begins
    :ivar retired: the last number of each stream when it was retired: a checkpoint may forget the ends before
    :ivar exists: whether the subscription was created, and not deleted since
    :ivar final: how each record ended in its present generation; ``skipped`` if it was before the first to be leased
    :ivar ends: of records that are not final: how many deliveries have ended, and how many of them failed
    :ivar reach: the highest number that may have been leased, by stream
    :ivar counts: how many records ended since the creation, by stream and kind of end
    :ivar ended: how each record ended in any generation, by stream, number and generation
    :ivar epochs: how many generations had begun at the start of each epoch
    """

    name: str
    check: Callable[[object, str], None]
    begun: Callable[[str | None], None]
    retired: Counter[str] = attrs.field(factory=Counter)
    exists: bool = False
    final: dict[tuple[str, int], str] = attrs.field(factory=dict)
    ends: dict[tuple[str, int], list[int]] = attrs.field(factory=dict)
    reach: Counter[str] = attrs.field(factory=Counter)
    counts: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    ended: dict[tuple[str, int, int], str] = attrs.field(factory=dict)
    epochs: dict[int, int] = attrs.field(factory=dict)
    beginnings: int = 0
    _created: list[int] = attrs.field(factory=list)
    _rewound: defaultdict[str, list[int]] = attrs.field(factory=lambda: defaultdict(list))

    def generation(self, stream: str, epoch: int | None = None) -> int:
        """Return the present generation of *stream*, or the one that it had in *epoch*; 0 if there was none."""
        at = self.beginnings if epoch is None else self.epochs.get(epoch, 0)
        return max((each for each in (*self._created, *self._rewound[stream]) if each <= at), default=0)

    def apply(self, change: dict[str, Any]) -> set[tuple[str, int, str]]:
        """Apply *change*; return stream, number and end of each record that becomes final."""
        if "streams" in change:
            self._check_checkpoint(change["streams"])
            return set()
        if "set" in change:
            self._create(change)
            return set()
        if "rewind" in change:
            self._begin(change["stream"], change["rewind"])
        if "epoch" in change:
            self.epochs[change["epoch"]] = self.beginnings
        stream = change.get("stream", "")
        reach = change.get("reach", 0)
        self.reach[stream] = reach if "hold" in change else max(self.reach[stream], reach)
        self.ends |= {(stream, seq): end for seq, end in ends_of(change.get("ends", ()))}
        found = set(ended_by(change))
        for _, seq, how in found:
            known = self.final.get((stream, seq))
            self.check(known is None, f"record {seq} of {stream} is {how}, but was already {known}")
            self.final[stream, seq] = self.ended[stream, seq, self.generation(stream)] = how
            self.counts[stream, how] += 1
            self.ends.pop((stream, seq), None)
        return found

    def _create(self, change: dict[str, Any]) -> None:
        """Apply the creation or deletion of the subscription."""
        self.exists = change["set"] is not None
        self.beginnings += 1
        self._created.append(self.beginnings)
        for known in (self.final, self.ends, self.reach, self.counts):
            known.clear()
        for stream, floor in change.get("floors", {}).items():
            self._skip(stream, floor)
        self.begun(None)

    def _begin(self, stream: str, floor: int) -> None:
        self.beginnings += 1
        self._rewound[stream].append(self.beginnings)
        self.final = {place: how for place, how in self.final.items() if place[0] != stream}
        self.ends = {place: end for place, end in self.ends.items() if place[0] != stream}
        self._skip(stream, floor)
        self.begun(stream)

    def _skip(self, stream: str, floor: int) -> None:
        self.reach[stream] = floor
        self.final |= {(stream, seq): "skipped" for seq in range(1, floor + 1)}

    def _check_checkpoint(self, streams: dict[str, Any]) -> None:
        """Check that a part of a checkpoint, which is small enough to be whole, agrees with the changes before it."""
        self.check(self.exists, "a checkpoint has the subscription, which does not exist")
        for stream, progress in streams.items():
            final = {*range(1, progress["floor"] + 1), *numbers(progress["above"])}
            wrong = {
                seq for seq in final ^ {seq for name, seq in self.final if name == stream} if seq > self.retired[stream]
            }
            self.check(not wrong, f"a checkpoint does not agree about what is final in {stream}: {sorted(wrong)}")
            ends = {(stream, seq): end for seq, end in ends_of(progress["ends"])}
            known = {place: end for place, end in self.ends.items() if place[0] == stream}
            self.check(ends == known, f"a checkpoint has the failures {ends} of {stream}, not {known}")


def agrees(pool: LeasePool, what: str) -> None:
    """Check that the counts of *pool*, which people see, are those of its records; *what* has happened last."""
    kinds, held = Counter[str](), Counter[str]()
    for span in (span for lane in pool.lanes.values() for span in lane.spans):
        if isinstance(state := span.state, Leased):
            held[state.consumer] += len(span)
        else:
            kinds["delayed" if state.delayed else "held" if state.held else "ready"] += len(span)
    found = pool.open, pool.leased, pool.delayed, pool.held_records, pool.held
    true = kinds.total() + held.total(), held.total(), kinds["delayed"], kinds["held"], held
    check(found == true, f"{what}: the counts are {found}, those of the records {true}")
