"""Counts of the rounds to come, from the headers of a journal's batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from fyrehose.journal.files import Files
from fyrehose.offline.places import place
from fyrehose.records import Run
from fyrehose.spark import counting
from fyrehose.spark.counting import Ahead, account_of
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


def test_continued_counts_equal_counts_made_at_once(written: Opener) -> None:
    journal = written()
    source = place(str(journal.directory))
    start = source.view().start
    view = source.view()
    begun = account_of(source, view, start, view.mark, 150_000)
    for _ in range(30):
        journal.fill(3)
        view = source.view()
        begun = account_of(source, view, begun.end, view.mark, 150_000, begun)
        if begun.full:
            break
    assert begun == account_of(source, view, start, view.mark, 150_000)
    assert 0 < begun.end - start <= 150_000
    assert begun.since == journal.records[0].time


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


def test_lag_is_counted_from_the_position_of_the_archive(written: Opener) -> None:
    journal = written()
    journal.fill(200)
    source = place(str(journal.directory))
    view, ahead = source.view(), Ahead(source, 100_000)
    first = ahead.next(view, view.start)
    assert ahead.behind(view, view.start).records == len(journal.records)
    rest = ahead.behind(view, first.end)
    assert (rest.records, rest.size) == (len(journal.records) - first.rows, view.mark - first.end)
    assert rest.since == journal.records[first.rows].time
    nothing = ahead.behind(view, view.mark)
    assert (nothing.records, nothing.size, nothing.since) == (0, 0, None)
    later = attrs.evolve(view, segments=view.segments[1:])
    assert later.start > view.start
    found = ahead.behind(later, view.start)
    assert (found.records, found.size, found.since) == (0, view.mark - view.start, None), "retention deleted it"


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
