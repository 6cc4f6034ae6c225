"""Views of a journal by other processes, while it changes, and when parts of it are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fyrehose.errors import JournalError
from fyrehose.journal import scan
from fyrehose.offline import view


def test_view_has_the_segments_up_to_the_durable_mark(open_journal) -> None:
    bench = open_journal(segment_size=4096)
    assert view.look(bench.directory).mark == scan.read_mark(bench.directory) > 0
    for i in range(20):
        bench.append(b"%03d" % i * 300)
    seen = view.look(bench.directory)
    assert seen.mark == scan.read_mark(bench.directory)
    assert seen.start == 0
    assert [extent.base for extent in seen.segments[1:]] == [extent.end for extent in seen.segments[:-1]]
    assert seen.segments[-1].end == seen.mark


def test_a_view_has_a_hole_in_place_of_a_missing_segment(open_journal) -> None:
    bench = open_journal(segment_size=4096)
    for i in range(20):
        bench.append(b"%03d" % i * 300)
    whole = view.look(bench.directory)
    scan.path_of(bench.directory, whole.segments[2].base).unlink()
    seen = view.look(bench.directory)
    assert seen.segments == whole.segments[:2] + whole.segments[3:]


def test_a_view_is_consistent_while_retention_deletes_segments(open_journal, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = open_journal(segment_size=4096)
    for i in range(20):
        bench.append(b"%03d" % i * 300)
    there = scan.segments(bench.directory)
    listings = [[there[0], *there[2:]], there[2:]]  # the second segment was deleted before it was looked at
    monkeypatch.setattr(scan, "segments", lambda directory: listings.pop(0))
    assert [extent.base for extent in view.look(bench.directory).segments] == [s.base for s in there[2:]]


def test_durable_mark_is_read_again_while_it_is_being_written(open_journal, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = open_journal()
    bench.append(b"x")
    mark = scan.read_mark(bench.directory)
    marks = [scan.Mark(), scan.Mark(), scan.Mark(mark)]
    monkeypatch.setattr(scan, "look_at_mark", lambda directory, files: marks.pop(0))
    assert view.believed_mark(bench.directory).durable == mark
    assert marks == []


def test_without_a_mark_file_the_batches_tell_the_durable_position(open_journal) -> None:
    bench = open_journal()
    bench.append(b"one")
    after_one = scan.read_mark(bench.directory)
    bench.append(b"two")
    for text in (None, b"", b"rubbish that is no mark"):
        if text is None:
            (bench.directory / "MARK").unlink()
        else:
            (bench.directory / "MARK").write_bytes(text)
        assert view.vouched_mark(bench.directory).durable == 0
        assert view.durable_by_batches(bench.directory) == after_one


def test_missing_directory_is_reported(tmp_path: Path) -> None:
    assert view.look(tmp_path) == view.View(0, ())
    assert view.View(0, ()).start == 0
    with pytest.raises(JournalError, match="no such directory"):
        view.look(tmp_path / "not")
