"""Imports into a journal: numbers, times and gaps are kept, and nothing is imported twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fyrehose.errors import JournalError, JournalLocked
from fyrehose.offline import dump, importing
from fyrehose.offline.importing import Importer
from fyrehose.offline.verify import verify
from fyrehose.records import Run

T = 1_500_000_000_000_000


def run(first: int, count: int = 1, *, stream: str = "bus", time: int = T, mark: bytes = b"") -> Run:
    payloads = [b"%d%b" % (seq, mark) for seq in range(first, first + count)]
    return Run.of(stream, payloads, source="eventbus", topic="/a/").numbered(first, time)


def imported(directory: Path, *runs: Run, stream: str = "bus") -> tuple[int, int, int]:
    """Import *runs*; return how many records were added, were there already, and how many numbers are missing."""
    with Importer(directory, stream) as importer:
        for each in runs:
            importer.add(each)
    return importer.added, importer.present, importer.missing


def records(directory: Path, stream: str = "bus") -> list[tuple[int, int, bytes]]:
    found = (record for run in dump.runs(directory, stream) for record in run.records())
    return [(record.seq, record.time, record.payload) for record in found]


def test_an_import_keeps_the_numbers_and_the_times_of_records(tmp_path: Path) -> None:
    assert imported(tmp_path, run(1, 2), run(3, time=T + 5), run(4, time=T + 9)) == (4, 0, 0)
    assert records(tmp_path) == [(1, T, b"1"), (2, T, b"2"), (3, T + 5, b"3"), (4, T + 9, b"4")]
    report = verify(tmp_path)
    assert (report.problems, report.gaps) == ([], [])


def test_numbers_missing_in_an_import_become_gaps(tmp_path: Path) -> None:
    assert imported(tmp_path, run(5, 2), run(10)) == (3, 0, 7)
    report = verify(tmp_path)
    assert report.problems == []
    assert [(gap.stream, gap.first, gap.last) for gap in report.gaps] == [("bus", 1, 4), ("bus", 7, 9)]


def test_second_import_adds_nothing(tmp_path: Path) -> None:
    runs = [run(5, 2), run(10, 3)]
    imported(tmp_path, *runs)
    before = records(tmp_path)
    assert imported(tmp_path, *runs) == (0, 5, 0)
    assert records(tmp_path) == before


def test_import_continues_where_it_ended(tmp_path: Path) -> None:
    def interrupted() -> None:
        with Importer(tmp_path, "bus") as importer:
            importer.add(run(1, 3))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert imported(tmp_path, run(1, 5, time=T + 1), run(6, time=T + 2)) == (3, 3, 0)
    assert records(tmp_path)[3:] == [(4, T + 1, b"4"), (5, T + 1, b"5"), (6, T + 2, b"6")]
    assert verify(tmp_path).problems == []


def test_other_records_of_the_same_numbers_are_refused(tmp_path: Path) -> None:
    imported(tmp_path, run(1, 3))
    with pytest.raises(JournalError, match=r"number 2 of stream 'bus' .* is another record"):
        imported(tmp_path, run(2, 2, mark=b"!"))
    assert len(records(tmp_path)) == 3


def test_records_of_numbers_that_were_missing_before_are_not_added_later(tmp_path: Path) -> None:
    imported(tmp_path, run(1), run(4))
    with Importer(tmp_path, "bus") as importer:
        importer.add(run(1, 4))
    assert (importer.added, importer.present, importer.gone) == (0, 2, 2)
    assert [seq for seq, _, _ in records(tmp_path)] == [1, 4]


def test_an_import_leaves_other_streams_unchanged(tmp_path: Path) -> None:
    imported(tmp_path, run(1, 3, stream="log", time=T + 100), stream="log")
    assert imported(tmp_path, run(7)) == (1, 0, 6)
    assert len(records(tmp_path, "log")) == 3
    assert records(tmp_path)[0][1] > T, "the journal's times never go back"
    assert verify(tmp_path).problems == []


def test_an_import_into_a_journal_in_use_is_refused(tmp_path: Path) -> None:
    with Importer(tmp_path, "bus"), pytest.raises(JournalLocked):
        imported(tmp_path, run(1))


def test_a_failed_import_releases_the_lock(tmp_path: Path) -> None:
    (tmp_path / "RESTORING").touch()
    with pytest.raises(JournalError, match="not complete"):
        imported(tmp_path, run(1))
    (tmp_path / "RESTORING").unlink()
    assert imported(tmp_path, run(1)) == (1, 0, 0)


def test_numbers_that_retired_streams_have_used_are_refused(tmp_path: Path) -> None:
    with Importer(tmp_path, "bus") as importer:
        importer.add(run(1, 5))
        importer._writer.retire(["bus"])
    with pytest.raises(JournalError, match="has used the numbers up to 5"):
        imported(tmp_path, run(2))


def test_an_import_seals_segments_and_reads_them_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "SYNC_BYTES", 1 << 10)
    with Importer(tmp_path, "bus") as importer:
        importer._writer.segment_size = 64 << 10
        for n in range(60):
            importer.add(run(1 + 50 * n, 50, time=T + n, mark=bytes(100)))
    assert len([*tmp_path.glob("*.segment")]) > 3
    assert [seq for seq, _, _ in records(tmp_path)] == [*range(1, 3001)]
    assert verify(tmp_path).problems == []


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(-5, 50)), max_size=12), st.data())
def test_an_import_in_pieces_has_the_result_of_one_import(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    runs, seq, time = [], 1, T
    for skip, count, later in steps:
        seq, time = seq + skip, time + later
        runs.append(run(seq, count, time=time))
        seq += count
    whole, pieces = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("pieces")
    imported(whole, *runs)
    cuts = [*data.draw(st.lists(st.integers(0, len(runs)), max_size=3)), len(runs)]
    for cut in cuts:
        imported(pieces, *runs[:cut])
    assert [(seq, payload) for seq, _, payload in records(pieces)] == [(seq, p) for seq, _, p in records(whole)]
    assert verify(pieces).problems == verify(whole).problems == []
