"""Plans of parts cover the journal once and keep to limits; errors name missing segments."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise, product
from random import Random
from typing import Any

import pytest

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import scan
from fyrehose.offline.walk import Batch, Log, walk
from fyrehose.records import Run
from fyrehose.spark.columns import arrow_schema
from fyrehose.spark.plan import FOLLOWED, Planner, admitted, headers
from fyrehose.spark.reading import PartReader
from fyrehose.spark.selection import Bounds, Selection

Opener = Callable[..., Any]
#: A stream and its lost numbers, as an error names them.
NAMED = re.compile(r"'(\w+)' (\d+)-(\d+)")


def test_consecutive_parts_cover_the_journal_without_gaps(written: Opener) -> None:
    journal = written()
    journal.fill(300)
    parts = Planner(journal.place, Selection(), piece=20_000).parts()
    assert len(parts) > len(journal.segments) > 2
    batches = (found.header for found in walk(Log.of(journal.directory)) if isinstance(found, Batch))
    chains = {header.position: header.chain for header in batches}
    for part, after in pairwise(parts):
        joined = after.base == part.base
        assert after.first == (part.ranges[-1][1] if joined else after.base + 64)
        assert part.chain == (chains[after.first] if joined else None), "the next batch continues this checksum"
    assert all(part.size < 120_000 for part in parts)
    assert parts[-1].ranges[-1][1] == scan.read_mark(journal.directory)


def test_empty_journal_has_no_parts(written: Opener) -> None:
    journal = written()
    mark = journal.place.view().mark
    assert Planner(journal.place).parts(mark) == []
    assert Planner(journal.place).parts(mark, mark) == []


def test_segments_of_another_time_are_not_planned(written: Opener) -> None:
    journal = written()
    journal.fill(300)
    times = sorted(record.time for record in journal.records)
    late = Planner(journal.place, Selection(start=Bounds(time=times[-1]))).parts()
    early = Planner(journal.place, Selection(end=Bounds(time=times[0]))).parts()
    assert {part.base for part in late} == {journal.segments[-1].base}
    assert {part.base for part in early} == {0}


def test_parts_of_a_random_selection_have_its_records_once(written: Opener) -> None:
    """The bounds are times, numbers and positions at which a segment, a part or a step of the index may begin."""
    journal, dice = written(), Random(4)
    marks, batch_of = [journal.place.view().mark], dict[tuple[str, int], int]()
    for number in range(60):
        journal.now[0] -= dice.choice((0, 1_000_000))  # some commits have the time of the one before
        before = len(journal.records)
        streams = dice.sample(["a", "b", "c", "d", "rare"], dice.randint(1, 2))
        if number % 20 == 10:
            streams = [f"many-{n}" for n in range(FOLLOWED + 1)]
        sizes = [dice.choice((10, 9_000, 45_000)) for _ in range(3)]
        journal.append(*(Run.of(s, [bytes(n) for n in sizes[: dice.randint(1, 3)]], source="test") for s in streams))
        batch_of |= {(record.stream, record.seq): number for record in journal.records[before:]}
        marks.append(journal.place.view().mark)
    assert len(journal.segments) > 6
    times = sorted({record.time for record in journal.records})
    for _ in range(250):
        since, until = (dice.choice((None, each)) for each in sorted(dice.choices(times, k=2)))
        first, last = ({dice.choice("ab*"): dice.randint(1, 40)} if dice.random() < 0.5 else {} for _ in range(2))
        chosen = Selection(
            streams=dice.choice((None, frozenset(dice.sample("abcd", 2)), frozenset(["rare", "many-7", "none"]))),
            start=Bounds(first, since),
            end=Bounds(last, until),
        )
        begin, end = sorted(dice.sample(range(len(marks)), 2)) if dice.random() < 0.5 else (0, len(marks) - 1)
        piece = dice.choice((1_000, 30_000, 1 << 20))
        found = journal.brief(journal.read(chosen, piece=piece, start=marks[begin], stop=marks[end]))
        expected = journal.rows(
            lambda record, chosen=chosen, begin=begin, end=end: (
                chosen.wants(record.stream)
                and chosen.accepts(record.time)
                and chosen.seqs(record.stream)[0] <= record.seq <= chosen.seqs(record.stream)[1]
                and begin <= batch_of[record.stream, record.seq] < end
            )
        )
        assert found == expected, f"{len(found)} of {len(expected)} records, {chosen}, {begin} to {end}, {piece}"


def test_records_of_every_range_of_numbers_are_those_that_the_plan_reads(written: Opener) -> None:
    """The index of a segment has some numbers of each stream, where a bound must not leave any out."""
    journal, dice = written(), Random(6)
    for number in range(60):
        stream = "rare" if number % 5 == 0 else "usual"
        journal.append(Run.of(stream, [bytes(30_000)] * dice.randint(1, 2), source="test"))
    last = journal.next["rare"] - 1
    for first in range(1, last + 1):
        for end in range(first, last + 1):
            chosen = Selection(streams=frozenset({"rare"}), start=Bounds({"rare": first}), end=Bounds({"rare": end}))
            found = [seq for _, seq, _ in journal.brief(journal.read(chosen))]
            assert found == list(range(first, end + 1))


def test_admitted_range_is_the_longest_within_random_limits(written: Opener) -> None:
    """All batches are listed here; the limits count from the start, over any number of segments."""
    journal, dice = written(), Random(5)
    journal.fill(300)
    view = journal.place.view()
    for stop in (view.mark, view.mark + 8):
        assert admitted(journal.place, 0, stop, 1 << 40, 1 << 40) == view.mark
    assert len(view.segments) > 3
    ends = [(each, each.base + 64, min(each.end, view.mark)) for each in view.segments]
    batches = [header for each, first, stop in ends for header in headers(journal.place, each, first, stop)]
    for _ in range(100):
        at = dice.randrange(len(batches))
        rows, size = (dice.choice((1, dice.randrange(1, most), most)) for most in (1 << 12, 1 << 20))
        start, position, count = batches[at].position, batches[at].end, batches[at].records
        for header in batches[at + 1 :]:
            count += header.records
            if count > rows or header.end - start > size:
                break
            position = header.end
        assert admitted(journal.place, start, view.mark, rows, size) == position, (start, rows, size)


def test_position_of_another_journal_is_an_error(written: Opener) -> None:
    journal = written()
    journal.fill(3)
    with pytest.raises(JournalCorrupt, match=r"ends at position .* another journal"):
        Planner(journal.place).parts(0, 1 << 40)
    mark = journal.place.view().mark
    with pytest.raises(JournalCorrupt, match=r"was read up to .* another journal"):
        Planner(journal.place).parts(mark + 8)
    assert Planner(journal.place).parts(mark) == []


def test_position_at_which_no_batch_begins_is_an_error(written: Opener) -> None:
    journal = written()
    journal.fill(100)
    begins = [found.header.position for found in walk(Log.of(journal.directory)) if isinstance(found, Batch)]
    for position in begins[:3]:
        Planner(journal.place).parts(position)
        with pytest.raises(JournalCorrupt, match=f"no batch begins at position {position + 8}"):
            Planner(journal.place).parts(position + 8)


def test_segment_deleted_while_it_is_measured_is_an_error(written: Opener) -> None:
    journal = written()
    journal.fill(300)
    view = journal.place.view()
    place = journal.place
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(place), "view", lambda self: view)
        journal.segments[0].path.unlink()
        with pytest.raises(JournalCorrupt, match="was deleted before it was read"):
            admitted(place, view.start, view.mark, 1 << 40, 1 << 40)


def test_data_deleted_by_retention_is_an_error(written: Opener) -> None:
    journal = written()
    journal.fill(300)
    gone = journal.segments[0]
    gone.path.unlink()
    with pytest.raises(JournalCorrupt, match=r"retention deleted what was before.*'s0' 1-"):
        Planner(journal.place).parts(gone.base)
    assert Planner(journal.place).parts(), "what is there can be read"


def test_missing_segments_are_reported_with_all_their_numbers_and_no_others(written: Opener) -> None:
    """One or two are missing anywhere in the middle, behind one with an index or without; streams come and go."""
    journal, dice = written(), Random(9)
    for number in range(100):
        streams = dice.sample(["a", "b", "c", "early" if number < 30 else "late"], 2)
        journal.append(*(Run.of(stream, [bytes(9_000)] * dice.randint(1, 2), source="test") for stream in streams))
    segments = journal.segments
    assert len(segments) > 6
    for first, count in product(range(1, len(segments) - 2), (1, 2)):
        gone, after = segments[first : first + count], segments[first + count]
        expected: dict[str, list[int]] = {}
        for row in journal.read(columns=("stream", "seq"), start=gone[0].base, stop=after.base):
            expected.setdefault(row["stream"], []).append(row["seq"])
        for each in gone:
            each.path.rename(each.path.with_suffix(".gone"))
        index = scan.index_path_of(journal.directory, segments[first - 1].base)
        for path in (index, index.with_suffix(".gone")):
            with pytest.raises(JournalCorrupt, match="is missing or cut off") as raised:
                Planner(journal.place).parts()
            ranges = {stream: [*range(int(a), int(b) + 1)] for stream, a, b in NAMED.findall(str(raised.value))}
            assert ranges == expected, f"{count} segments from the {first}th on are missing"
            path.rename(index.with_suffix(".gone") if path == index else index)
        for each in gone:
            each.path.with_suffix(".gone").rename(each.path)


def test_truncated_segment_is_an_error(written: Opener) -> None:
    journal = written()
    journal.fill(300)
    short = journal.segments[1]
    with short.path.open("r+b") as file:
        file.truncate(short.size - 100)
    with pytest.raises(JournalCorrupt, match=r"is missing or cut off.*numbers among"):
        Planner(journal.place).parts()


def test_damaged_header_is_an_error(written: Opener) -> None:
    journal = written()
    journal.append(Run.of("s", [b"x"], source="test"))
    journal.flip(64 + 20)
    extent = journal.place.view().segments[0]
    with pytest.raises(JournalCorrupt, match="damaged at byte 64"):
        list(headers(journal.place, extent, 64, extent.end))


@pytest.mark.parametrize("size", [10_000, 200_000])
@pytest.mark.parametrize("patterns", [("*",), ("a",), ("rare",)])
def test_number_of_parts_is_independent_of_the_size_of_batches(
    written: Opener, size: int, patterns: tuple[str, ...]
) -> None:
    journal = written(segment_size=16 << 20)
    for i in range(24_000_000 // size):
        # Every fourth batch, or group of small batches, has a record of "rare".
        stream = "rare" if i % max(4, 800_000 // size) == 0 else "ab"[i % 2]
        journal.append(Run.of(stream, [bytes(size)], source="test"))
    chosen = Selection(patterns=patterns)
    parts = Planner(journal.place, chosen, piece=4 << 20).parts()
    assert len(parts) <= 7
    rows = [
        row
        for part in parts
        for batch in PartReader(journal.place, part, chosen, arrow_schema(("stream", "seq", "payload"))).read()
        for row in batch.to_pylist()
    ]
    assert journal.brief(rows) == journal.rows(lambda r: chosen.wants(r.stream))
