"""The table of gaps lists the numbers that a journal lacks."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.streams import StreamLimits
from fyrehose.records import Run
from fyrehose.spark.gaps import Lost, describe, starting_ends, survey
from fyrehose.spark.source import with_holes

Opener = Callable[..., Any]


def lost(journal: Any) -> list[Lost]:
    segments = journal.place.view().segments
    found: list[Lost] = []
    for i, extent in enumerate(segments):
        found += survey(journal.place, extent, segments[i + 1] if i + 1 < len(segments) else None)
    return found


def fill(journal: Any, count: int) -> None:
    for _ in range(count):
        journal.append(Run.of("s", [bytes(500)] * 10, source="test"), Run.of("t", [b"x"], source="test"))


def test_intact_journal_has_no_gaps(written: Opener) -> None:
    journal = written()
    fill(journal, 100)
    assert lost(journal) == []


def test_stream_that_was_retired_and_begins_again_has_no_gap(written: Opener) -> None:
    journal = written(segment_size=16 << 10)
    fill(journal, 5)
    journal.journal.retire(["s"])
    for _ in range(40):
        journal.append(Run.of("t", [bytes(999)], source="test"))
    fill(journal, 5)
    assert len(journal.segments) > 2
    assert lost(journal) == []


@pytest.mark.parametrize("seed", range(10))
def test_gaps_of_random_damage_are_the_numbers_that_it_took(written: Opener, seed: int) -> None:
    """Batches are damaged, segments are deleted, and indexes are there or not."""
    journal, dice = written(segment_size=16 << 10, stream_limits=StreamLimits(inline=seed % 2 or 99)), Random(seed)
    batches = list[tuple[int, set[tuple[str, int]]]]()
    for _ in range(200):
        before, position = len(journal.records), journal.place.view().mark
        streams = dice.sample(["common", "usual", "rare-1", "rare-2", "early"][: 4 + (len(batches) < 20)], 2)
        streams += [f"new-{len(batches)}"] * (dice.random() < 0.1)
        journal.append(*(Run.of(stream, [bytes(99)] * dice.randint(1, 3), source="test") for stream in streams))
        batches.append((position, {(record.stream, record.seq) for record in journal.records[before:]}))
    segments = journal.segments
    *hit, newest = *dice.sample(segments[:-1], 4), segments[-1]
    # The beginning of a segment states what is lost at the end of the one before.
    hit = [each for each in hit if each.end != hit[0].base]
    kinds: dict[str, set[tuple[str, int]]] = {"damaged": set(), "missing": set()}
    for number, segment in enumerate([*hit, newest]):
        inside = [each for each in batches if segment.base <= each[0] < segment.end]
        if number == 0 and segment.base:
            segment.path.unlink()
            if dice.random() < 0.5:
                scan.index_path_of(journal.directory, segments[segments.index(segment) - 1].base).unlink()
            kinds["missing"] |= set[tuple[str, int]]().union(*(records for _, records in inside))
        elif number:
            damaged = sorted(dice.sample(inside[1:], 2))
            for position, records in damaged:
                journal.flip(position + dice.randrange(60, 100))
                kinds["damaged"] |= records
    # In the newest segment, only the numbers before one that is still there are known to be lost.
    whole = {each for position, records in inside for each in records if (position, records) not in damaged}
    kinds["damaged"] -= {
        (stream, seq)
        for _, records in damaged
        for stream, seq in records
        if not any(other == stream and there > seq for other, there in whole)
    }
    found = [lost for part in with_holes(journal.place.view()) for lost in survey(journal.place, *part)]
    for kind, expected in kinds.items():
        # Damage whose numbers were all found behind other damage has a row without them.
        rows = [each for each in found if each.kind == kind and each.first_seq and each.last_seq]
        numbers = [(each.stream, n) for each in rows for n in range(each.first_seq or 0, (each.last_seq or 0) + 1)]
        assert sorted(numbers, key=str) == sorted(expected, key=str)
    more = [each.position for each in found if each.reason.endswith("the lost numbers are unknown")]
    assert more == [
        at for n, (at, _) in enumerate(damaged) if not n or inside[inside.index(damaged[1]) - 1] != damaged[0]
    ]
    assert {lost.file for lost in found} == {
        str(each.path) for each in (*hit, newest) if each.base or each is not hit[0]
    }


def test_damage_in_the_middle_or_at_the_end_of_a_segment_is_a_gap(written: Opener) -> None:
    journal = written()
    fill(journal, 100)
    first = journal.segments[0]
    headers = [h for h, _ in scan.SegmentReader(first.path, 0).batches(64, first.end)]
    journal.flip(headers[10].position + 70)
    journal.flip(headers[-1].position + 3)
    at = headers[10].position
    last = starting_ends(journal.place, journal.place.view().segments[1])
    found = {(one.stream, one.first_seq, one.last_seq, one.kind, one.position) for one in lost(journal)}
    assert len(lost(journal)) == len(found)
    assert found == {
        ("s", 91, 100, "damaged", at),
        ("t", 10, 10, "damaged", at),
        ("s", last["s"] - 9, last["s"], "damaged", headers[-1].position),
        ("t", last["t"], last["t"], "damaged", headers[-1].position),
    }


@pytest.mark.parametrize("count", [1, 5, 6, 7])
def test_error_of_damage_names_five_ranges_and_counts_the_others(written: Opener, count: int) -> None:
    journal = written()
    fill(journal, 3)
    position = journal.place.view().mark
    journal.append(*(Run.of(f"s{number}", [b"x"] * 2, source="test") for number in range(count)))
    journal.append(*(Run.of(f"s{number}", [b"x"], source="test") for number in range(count)))
    path, end = journal.flip(position + 100), journal.place.view().mark
    said = str(describe(journal.place, 0, position, end, fmt.Damage("no sense")))
    ranges = ", ".join(f"'s{number}' 1-2" for number in range(min(count, 5)))
    more = f" and {count - 5} more ranges" if count > 5 else ""
    assert f"{path} is damaged at byte {position} (position {position}): no sense; lost are {ranges}{more}; put" in said
    said = str(describe(journal.place, 0, end, end, fmt.Damage("no sense")))
    assert f"(position {end}): no sense; the lost numbers are unknown; put the file back" in said


def test_range_in_quarantine_is_declared_lost(written: Opener) -> None:
    journal = written()
    fill(journal, 20)
    journal.close()
    headers = [
        h for h, _ in scan.SegmentReader(journal.segments[0].path, 0).batches(64, scan.read_mark(journal.directory))
    ]
    journal.flip(headers[5].position + 70)
    journal = written(quarantine=True)
    found = {(one.stream, one.first_seq, one.last_seq, one.kind) for one in lost(journal)}
    assert found == {("s", 41, 50, "declared"), ("t", 5, 5, "declared")}
