"""What is durable about shared subscriptions: ranges, changes, checkpoints."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import attrs
import pytest

from fyrehose.broker.state_stream import Replayed, replay
from fyrehose.errors import JournalCorrupt
from fyrehose.records import Run
from fyrehose.spans import NumberSet, merged
from fyrehose.subscriptions.progress import (
    COUNTED,
    KEPT_LETTERS,
    PARTS,
    RANGES,
    SOURCE,
    STREAM,
    SavedSubscription,
    SavedSubscriptions,
    StreamProgress,
    SubscriptionOptions,
    pack,
    pack_whole,
    packed_ranges,
    pairs,
)

OPTIONS = SubscriptionOptions(stream="s")


def test_single_numbers_are_merged_into_ranges() -> None:
    assert packed_ranges(merged([(7, 8), (5, 5), (1, 2), (2, 3)])) == [(1, 3), 5, (7, 8)]


class Numbers:
    """The progress in one stream as plain tables of numbers: the model of StreamProgress, and random changes."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.totals: Counter[str] = Counter()
        self.rewinds = self.epoch = 0
        self.begin()

    def begin(self) -> None:
        """Begin without any progress; the totals stay."""
        self.final: set[int] = set()
        self.ends: dict[int, tuple[int, int]] = {}
        self.counts = dict.fromkeys(COUNTED, 0)
        self.letters: list[tuple[int, int, str, int]] = []
        self.reach = 0
        self.hold: list[tuple[int, int]] | None = None

    def count(self, kind: str, more: int) -> None:
        self.counts[kind] += more
        self.totals[kind] += more

    def ranges(self, most: int = 3) -> list[tuple[int, int]]:
        """Return random ranges, which may overlap, or lie in each other."""
        firsts = [self.dice.randint(1, 30) for _ in range(self.dice.randint(0, most))]
        return [(first, first + self.dice.choice((0, 0, 1, 6))) for first in firsts]

    def change(self) -> dict[str, Any]:
        """Return the fields of a change, which this model has seen."""
        fields: dict[str, Any] = {"stream": "s"}
        if self.dice.random() < 0.2:
            fields["epoch"], self.epoch, self.hold = self.epoch + 1, self.epoch + 1, None
        if self.dice.random() < 0.1:
            seq = fields["rewind"] = self.dice.randint(0, 20)
            self.final, self.ends, self.reach, self.hold = set(range(1, seq + 1)), {}, seq, None
            self.rewinds += 1
        for field, kind in (("final", "settled"), ("dead", "dead"), ("expired", "expired")):
            if ranges := self.ranges():
                fields[field] = packed_ranges(ranges)
                for first, last in ranges:
                    self.count(kind, len(set(range(first, last + 1)) - self.final))
                    self.final |= set(range(first, last + 1))
        if self.dice.random() < 0.3:
            fields["reach"] = self.dice.randint(1, 40)
            self.reach = max(self.reach, fields["reach"])
        if self.dice.random() < 0.1:
            fields |= {"reach": self.dice.randint(0, 40), "hold": packed_ranges(self.ranges())}
            self.reach, self.hold = fields["reach"], pairs(fields["hold"])
        if self.dice.random() < 0.3:
            fields |= {
                "lost": 1,
                "letters": [[n, 5, "limit", 7] for n in range(self.dice.choice((1, 1, KEPT_LETTERS)))],
            }
            self.count("lost", 1)
            self.letters = [*self.letters, *map(tuple, fields["letters"])][-KEPT_LETTERS:]
        if ranges := self.ranges():
            fields["ends"] = [(first, last, self.dice.randint(1, 3), 1) for first, last in ranges]
        for first, last, *ended in fields.get("ends", ()):
            self.ends |= dict.fromkeys(range(first, last + 1), tuple(ended))
        self.ends = {number: ended for number, ended in self.ends.items() if number not in self.final}
        return fields

    def agrees(self, saved: SavedSubscription) -> None:
        done = saved.streams["s"]
        assert (saved.epoch, saved.rewinds) == (self.epoch, self.rewinds), "the epoch, and how often it was rewound"
        assert {number for number in range(1, 50) if number in done.final} == self.final, "what is final"
        assert ended(done) == self.ends, "how often leases of each record have ended"
        assert (done.counts, done.letters) == (self.counts, self.letters), "the counts"
        assert {kind: saved.total(kind) for kind in COUNTED} == {kind: self.totals[kind] for kind in COUNTED}
        assert (done.reach, done.hold) == (self.reach, self.hold), "the reach, and what was leased at a stop"


@pytest.mark.parametrize("seed", range(20))
def test_random_changes_agree_with_plain_tables_also_through_records_and_checkpoints(seed: int) -> None:
    """Also if a checkpoint was cut short, and if a follower, which has replayed all before, replays it too."""
    model, saved, written = Numbers(seed), SavedSubscription(OPTIONS), [created(s=0)]
    for _ in range(60):
        if model.dice.random() < 0.05 and "s" in saved.streams:
            floor = saved.streams["s"].final.floor
            model.begin()
            model.final, model.reach = {*range(1, floor + 1)}, floor
            change = saved.forgetting(["s"])
        else:
            change = json.loads(json.dumps(model.change()))
        saved.apply(change)
        written.append(changed(**change))
        model.agrees(saved)
        if model.dice.random() < 0.2:
            checkpoint = list(pack_whole("work", 0, saved))
            saved = found(*checkpoint)[0].entries["work"]
            model.agrees(saved)
            written += checkpoint[: model.dice.randint(0, len(checkpoint))]
            model.agrees(found(*written)[0].entries["work"])


def found(*payloads: bytes, last: int | None = None) -> tuple[SavedSubscriptions, Replayed]:
    run = Run.of(STREAM, payloads, source=SOURCE).numbered(1, 1)
    saved, end = SavedSubscriptions(), last or len(payloads)

    def read(stream: str, start: int, size: int) -> tuple[Run, ...]:
        return (run.slice(start - 1, end),) if start <= end else ()

    return saved, replay(saved, read, (1, end), STREAM, SOURCE)


def changed(**fields: object) -> bytes:
    return pack("work", 0, fields)


def created(**floors: int) -> bytes:
    return changed(set=attrs.asdict(OPTIONS), floors=floors, epoch=0, redriven=0)


def test_pauses_and_deletions_are_remembered() -> None:
    assert found(created(s=0), changed(paused=True))[0].entries["work"].paused
    assert found(created(s=0), changed(set=None))[0].entries == {}


def shared_of(streams: int) -> SavedSubscription:
    names = [f"s{number}" for number in range(streams)]
    return SavedSubscription(OPTIONS, 3, True, {each: StreamProgress(NumberSet(3, [(5, 6)]), 9) for each in names})


def records(saved: SavedSubscription | SavedSubscriptions) -> list[bytes]:
    """Return the records of a checkpoint with *saved*, its streams in the order of their names."""
    saved = saved.entries["work"] if isinstance(saved, SavedSubscriptions) else saved
    saved.streams = dict(sorted(saved.streams.items()))
    return list(pack_whole("work", 0, saved))


@pytest.mark.parametrize("streams", [0, 1, PARTS, PARTS + 1, 3 * PARTS])
def test_a_checkpoint_has_each_subscription_with_all_its_streams(streams: int) -> None:
    work = shared_of(streams)
    payloads = list(pack_whole("work", 1, work))
    assert len(payloads) == max(1, -(-streams // PARTS))
    saved, replayed = found(b'{"v":2,"since":0,"name":""}', *payloads)
    assert records(saved) == records(work)
    assert (replayed.checkpoint, replayed.missing) == (1, 0)


def scattered(count: int, ends: int, streams: int = 2, behind: int = 0) -> SavedSubscription:
    """Return a subscription with *count* ranges of settled records, and in one of *ends* gaps a lease that ended.

    Behind all of them, *behind* more leases have ended.
    """
    work = shared_of(streams)
    progress = work.progress("s1")
    for number in range(10, 10 + 3 * count, 3):
        progress.apply({"final": [number], "reach": number})
        if ends and number % ends == 0:
            progress.apply({"ends": [[number + 1, number + 2, 1, number % 2]]})
    for number in range(10 + 3 * count, 10 + 3 * count + 4 * behind, 4):
        progress.apply({"ends": [[number, number, 1, 0]], "reach": number})
    return work


def ended(progress: StreamProgress) -> dict[int, tuple[int, int]]:
    """Return how often leases of each record have ended, and how often they failed."""
    return {number: span.state for span in progress.ends for number in range(span.first, span.last + 1)}


@pytest.mark.parametrize(
    ("count", "ends", "behind"),
    [
        (RANGES - 1, 0, 0),
        (RANGES, 1, 0),
        (5 * RANGES, 0, 0),
        (5 * RANGES, 1, 0),
        (999, 5, 0),
        (3, 1, 2 * RANGES),
        (RANGES, 9, RANGES),
    ],
)
def test_no_record_of_a_checkpoint_has_many_ranges_of_a_stream(count: int, ends: int, behind: int) -> None:
    """A subscription with 100,000 records here and there took 0.17 s of one turn."""
    work = scattered(count, ends, behind=behind)
    payloads = records(work)
    read = found(*payloads)[0]
    assert records(read) == payloads
    for name, progress in work.streams.items():
        assert ended(read.entries["work"].streams[name]) == ended(progress), "how often leases have ended, by record"
    for payload in payloads:
        for part in json.loads(payload)["streams"].values():
            assert len(part["above"]) <= RANGES >= len(part["ends"])
    assert len(payloads) <= 2 + (2 * count + behind) // RANGES


@pytest.mark.parametrize("cut", range(1, 4))
def test_a_checkpoint_that_was_cut_short_loses_no_progress(cut: int) -> None:
    for work in (shared_of(3 * PARTS), scattered(5 * RANGES, 1)):
        whole = records(work)
        assert records(found(*whole, *whole[:cut])[0]) == whole


def change_of(dice: random.Random, most: int) -> dict[str, Any]:
    """Return a random change of records up to number *most*, or sometimes a rewind."""
    if dice.random() < 0.1:
        return {"rewind": dice.randint(1, most // 20), "epoch": dice.randint(1, 9)}
    first, last = sorted(dice.choices(range(1, most), k=2))
    kind = dice.choice(("final", "dead", "ends", "ends"))
    return {kind: [[first, min(last, first + 20), 2, 1] if kind == "ends" else [last, last]], "reach": most}


@pytest.mark.parametrize("seed", range(60))
def test_random_changes_between_the_records_of_a_checkpoint_count(seed: int) -> None:
    """They may be about streams and records that were packed already, or later ones; a rewind is about all records."""
    dice = random.Random(seed)
    work, written = scattered(3 * RANGES, 3, streams=2 * PARTS), list[bytes]()
    for part in pack_whole("work", 0, work):
        written.append(part)
        for _ in range(dice.choice((0, 1, 3))):
            change = {"stream": dice.choice(("s0", "s1", "s1", "s99")), **change_of(dice, 9 * RANGES)}
            work.apply(change)
            work.time = 1
            written.append(changed(**change))
    assert records(found(*written)[0]) == records(work)
    for _ in pack_whole("work", 0, work):
        work.streams.clear()  # All were retired, and are forgotten, in the middle of one.


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff",
        b"[]",
        b"{}",
        b'{"v": 2}',
        b'{"v": 3, "name": "a", "since": 0}',
        b'{"v": 2, "name": "a", "since": "x"}',
        b'{"v": 2, "name": "a", "since": 0, "set": 5}',
        b'{"v": 2, "name": "a", "since": 0, "set": {"unknown": 5}, "floors": {}}',
        b'{"v": 2, "name": "a", "since": 0, "state": {}, "streams": {}}',
        b'{"v": 2, "name": "a", "since": 0, "state": 5, "streams": {}}',
    ],
)
def test_invalid_records_are_errors(payload: bytes) -> None:
    with pytest.raises(JournalCorrupt, match=r"record 1 of stream \.subscriptions"):
        found(payload)


PART: dict[str, Any] = {"floor": 0, "above": [], "reach": 0, "ends": [], "letters": [], "hold": None}


@pytest.mark.parametrize(
    "change",
    [
        *({"stream": "s", "final": ranges} for ranges in ([0], [[5, 4]], ["x"], [[1]], [None])),
        *({"streams": {"s": {**PART, "counts": [0] * count}}} for count in (0, len(COUNTED) - 1, len(COUNTED) + 1)),
    ],
)
def test_changes_with_invalid_ranges_or_counts_are_errors(change: dict[str, Any]) -> None:
    with pytest.raises(JournalCorrupt, match=r"record 2 of stream \.subscriptions"):
        found(created(s=0), changed(**change))
