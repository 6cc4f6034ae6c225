"""Counts of the rounds to come, from the headers of a journal's batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from fyrehose.errors import JournalCorrupt
from fyrehose.journal.files import Files
from fyrehose.journal.format import Kind, entries
from fyrehose.offline.places import place
from fyrehose.offline.walk import Batch, Log, walk
from fyrehose.records import Run
from fyrehose.spark import counting
from fyrehose.spark.counting import Ahead, RangeCounts, account_of
from fyrehose.spark.jobs.archive import archive

Opener = Callable[..., Any]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list to which the position of each header is added when it is read."""
    positions: list[int] = []
    walk = counting.walk

    def walking(*words: Any) -> Any:
        for header in walk(*words):
            positions.append(header.position)
            yield header

    monkeypatch.setattr(counting, "walk", walking)
    return positions


def quarantined(written: Opener, dice: Random) -> Any:
    """Return a journal of several segments in which --quarantine has replaced some batches, also the first of one."""
    journal = written(segment_size=32 << 10)
    journal.fill(90)
    journal.close()
    begins = [found.header.position for found in walk(Log.of(journal.directory)) if isinstance(found, Batch)]
    firsts = [position for position in begins if position - 64 in {each.base for each in journal.segments}]
    for position in {*dice.sample(begins[1:-1], 6), firsts[2]}:
        journal.flip(position + 90)
    journal = written(segment_size=32 << 10, quarantine=True)
    journal.fill(30)
    return journal


def test_counts_of_every_range_are_those_of_a_plain_sum(written: Opener) -> None:
    """Some batches have no records, or replace a damaged range; the counts are made at once, or continued."""
    dice, happened = Random(3), Counter[str]()
    journal = quarantined(written, dice)
    source, view = journal.place, journal.place.view()
    found = [each for each in walk(Log.of(journal.directory)) if isinstance(each, Batch)]
    for first in range(len(found)):
        some, most = found[first : dice.randint(first + 1, len(found))], dice.choice((None, 1, 9_000, 60_000))
        start, stop = some[0].header.position, some[-1].header.end
        room = start + (stop if most is None else most)
        chosen = [each.header for n, each in enumerate(some) if not n or each.header.end <= room]
        gaps = [
            (entry.stream, entry.first, entry.last, each.header.position)
            for each in some[: len(chosen)]
            if each.header.kind is Kind.GAP
            for entry in entries(each.body, each.header.parts)
        ]
        expected = RangeCounts(
            start=start,
            end=chosen[-1].end,
            full=len(chosen) < len(some),
            rows=sum(header.records for header in chosen),
            since=next((header.time for header in chosen if header.records), None),
            continued=None if chosen[0].mended else chosen[0].chain,
            chain=None if chosen[-1].mended else chosen[-1].checksum,
            gaps=tuple(gaps),
        )
        assert account_of(source, view, start, stop, most) == expected, f"from {start} to {stop}, at most {most}"
        begun = account_of(source, view, start, dice.choice(chosen).end, most)
        assert account_of(source, view, begun.end, stop, most, begun) == expected, f"continued from {begun.end} on"
        happened.update({"full": expected.full, "gaps": bool(gaps), "continued": begun.end < expected.end})
        happened.update({"none": not expected.rows, "late": expected.since not in (None, chosen[0].time)})
        happened.update({"mended first": chosen[0].mended, "mended last": chosen[-1].mended})
    assert len(+happened) == 7, f"not all happened: {happened}"
    journal.segments[0].path.unlink()
    with pytest.raises(JournalCorrupt, match="was deleted before it was archived"):
        account_of(source, view, view.start, view.mark)


def test_rounds_and_lag_read_each_header_once(written: Opener, tmp_path: Path, read: list[int]) -> None:
    journal = written()
    journal.fill(100)
    lags: list[int] = []

    def progress(done: Any, view: Any) -> None:
        if done.rounds in (1, 3):
            journal.fill(20)

    done = archive(
        None,
        str(journal.directory),
        tmp_path / "lake",
        round_bytes=200_000,
        progress=progress,
        monitor=lambda state: lags.append(state.behind.records),
    )
    assert done.rows == len(journal.records)
    assert max(lags) > min(lags) == 0
    # A header at which a round ends is looked at again by the next one.
    assert len(read) - len(set(read)) <= done.rounds


def test_lag_of_records_that_retention_has_deleted_is_their_size_alone(written: Opener) -> None:
    journal = written()
    journal.fill(200)
    view = journal.place.view()
    later = attrs.evolve(view, segments=view.segments[1:])
    assert later.start > view.start
    found = Ahead(journal.place, 100_000).behind(later, view.start)
    assert (found.records, found.size, found.since) == (0, view.mark - view.start, None)


def test_bodies_of_large_batches_are_not_read_to_be_counted(written: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = written(segment_size=4 << 20)
    for _ in range(20):
        journal.append(Run.of("s", [bytes(500_000)], source="test"))
    sizes: list[int] = []
    read = Files.read

    def counted(files: Files, fd: int, size: int, offset: int) -> bytes:
        sizes.append(size)
        return read(files, fd, size, offset)

    source = place(str(journal.directory))
    view = source.view()
    monkeypatch.setattr(Files, "read", counted)
    assert account_of(source, view, view.start, view.mark, 1 << 30).rows == 20
    assert sum(sizes) < (view.mark - view.start) // 4
