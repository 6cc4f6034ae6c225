"""What is durable about shared subscriptions: ranges, changes, checkpoints."""

from __future__ import annotations

import json
import random

import attrs
import pytest

from fyrehose.broker.state_stream import Replayed, replay
from fyrehose.errors import JournalCorrupt
from fyrehose.records import Run
from fyrehose.spans import NumberSet, merged
from fyrehose.subscriptions.progress import (
    SOURCE,
    STREAM,
    SavedSubscription,
    SavedSubscriptions,
    StreamProgress,
    SubscriptionOptions,
    pack,
    pack_checkpoint,
    packed_ranges,
)

OPTIONS = SubscriptionOptions(stream="s")


@pytest.mark.parametrize("seed", range(20))
def test_random_ranges_of_final_numbers_agree_with_a_set(seed: int) -> None:
    dice = random.Random(seed)
    ranges, known = NumberSet(3), {1, 2, 3}
    for _ in range(40):
        first = dice.randint(1, 40)
        last = first + dice.choice((0, 0, 1, 5))
        added = set(range(first, last + 1)) - known
        assert ranges.add(first, last) == len(added)
        known |= added
        floor = next(number for number in range(50) if number + 1 not in known)
        assert ranges.floor == floor
        assert [number for number in range(1, 50) if number in ranges] == sorted(known)
        assert all(first > floor + 1 and last >= first for first, last in ranges.above())
        gaps = [number for first, last in ranges.gaps(5, 30) for number in range(first, last + 1)]
        assert gaps == [number for number in range(5, 31) if number not in known]


def test_single_numbers_are_merged_into_ranges() -> None:
    assert packed_ranges(merged([(7, 8), (5, 5), (1, 2), (2, 3)])) == [(1, 3), 5, (7, 8)]


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


def test_the_progress_is_the_sum_of_all_changes() -> None:
    change = {"epoch": 2, "reach": 9, "final": [[6, 7]], "dead": [9], "expired": [], "ends": [[8, 8, 2, 1]]}
    saved, _ = found(created(s=5), changed(stream="s", **change), pack("other", 0, {"stream": "s", "epoch": 9}))
    share = saved.entries["work"]
    done = share.progress("s")
    assert (share.epoch, done.final.floor, done.final.above(), done.reach) == (2, 7, [(9, 9)], 9)
    assert (list(done.counts.values()), done.ends.within(1, 9)) == ([2, 1, 0], [(8, 8, (2, 1))])


def test_a_record_that_becomes_final_loses_its_failures() -> None:
    saved, _ = found(created(s=0), changed(stream="s", ends=[[1, 1, 1, 1]]), changed(stream="s", dead=[1]))
    assert saved.entries["work"].progress("s").ends.within(1, 9) == []


def test_a_rewind_forgets_everything_but_the_counters() -> None:
    changes = [changed(stream="s", final=[[1, 4]], reach=9), changed(stream="s", rewind=2, epoch=7)]
    saved, _ = found(created(s=0), *changes)
    share = saved.entries["work"]
    assert share.epoch == 7
    done = share.progress("s")
    assert (done.reach, done.counts) == (2, {"settled": 4, "dead": 0, "expired": 0})
    assert share.progress("s").final.floor == 2


def test_pauses_and_deletions_are_remembered() -> None:
    assert found(created(s=0), changed(paused=True))[0].entries["work"].paused
    assert found(created(s=0), changed(set=None))[0].entries == {}


def test_a_checkpoint_of_several_records_has_all_subscriptions() -> None:
    done = StreamProgress(NumberSet(3, [(5, 6)]), 9, counts={"settled": 4, "dead": 1, "expired": 0})
    done.ends.set(7, 7, (2, 1))
    shares = {name: SavedSubscription(OPTIONS, 3, True, {"s": done}) for name in "abc"}
    payloads = pack_checkpoint(shares, size=10)
    assert len(payloads) == 3
    saved, replayed = found(created(s=0), *payloads)
    assert sorted(saved.entries) == ["a", "b", "c"]
    assert json.dumps(saved.entries["b"].packed()) == json.dumps(shares["b"].packed())
    assert saved.entries["b"].progress("s").packed()["above"] == [(5, 6)]
    assert (replayed.checkpoint, replayed.missing) == (2, 0)


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
        b'{"v": 2, "all": [0, 1], "entries": {"a": {}}}',
        b'{"v": 2, "all": 5, "entries": {}}',
    ],
)
def test_invalid_records_are_errors(payload: bytes) -> None:
    with pytest.raises(JournalCorrupt, match=r"record 1 of stream \.subscriptions"):
        found(payload)


@pytest.mark.parametrize("ranges", [[0], [[5, 4]], ["x"], [[1]], [None]])
def test_invalid_ranges_are_errors(ranges: object) -> None:
    with pytest.raises(JournalCorrupt, match=r"record 2 of stream \.subscriptions"):
        found(created(s=0), changed(stream="s", final=ranges))
