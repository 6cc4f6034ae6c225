"""Offsets are bound to their journal: no position of one journal is used for another one, or for a copy of it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from fyrehose.errors import JournalCorrupt
from fyrehose.journal.subscriptions import registered
from fyrehose.offline.places import place
from fyrehose.records import Run
from fyrehose.spark.columns import arrow_schema
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.lake import Lake
from fyrehose.spark.source import RecordReader, SourceOptions, StreamReader

SEQ = arrow_schema(("seq",))
Opener = Callable[..., Any]


def reader_of(directory: Path, **options: str) -> StreamReader:
    return StreamReader(SourceOptions.of({"path": str(directory), **options}), SEQ)


def append(journal: Any, count: int, text: bytes = b"x") -> None:
    for _ in range(count):
        journal.append(Run.of("s", [text], source="test"))


def copied(journal: Any, name: str) -> Path:
    """Return a copy of a journal, as it is now."""
    return Path(shutil.copytree(journal.directory, journal.directory.with_name(name)))


def test_checkpoint_of_another_journal_is_refused(written: Opener) -> None:
    one, other = written("one"), written("other")
    append(one, 20)
    append(other, 30)
    end = reader_of(one.directory).latestOffset(reader_of(one.directory).initialOffset(), ReadAllAvailable())
    other_end = reader_of(other.directory).reportLatestOffset()
    for use in (
        lambda reader: reader.latestOffset(end, ReadAllAvailable()),
        lambda reader: reader.partitions(end, other_end),
        lambda reader: reader.partitions(reader.initialOffset(), end),
    ):
        with pytest.raises(JournalCorrupt, match=r"is another journal.*begin with a new checkpoint") as raised:
            use(reader_of(other.directory))
        assert "\n" not in str(raised.value)


def test_checkpoint_of_a_copy_that_grew_differently_is_refused(written: Opener) -> None:
    journal = written("one")
    append(journal, 10)
    journal.close()
    copy = copied(journal, "copy")
    journal = written("one")
    append(journal, 10, b"y")
    end = reader_of(journal.directory).reportLatestOffset()
    other = written("copy")
    append(other, 20, b"z")
    for use in (
        lambda reader: reader.latestOffset(end, ReadAllAvailable()),
        lambda reader: reader.partitions(end, reader.reportLatestOffset()),
    ):
        with pytest.raises(JournalCorrupt, match="put back from another copy"):
            use(reader_of(copy))


@pytest.mark.parametrize("rolled", [False, True])
def test_checkpoint_is_accepted_by_its_own_journal_and_its_copies(written: Opener, rolled: bool) -> None:
    journal = written("one", segment_size=4096 if rolled else 1 << 20)
    append(journal, 40)
    reader = reader_of(journal.directory)
    ends = [reader.initialOffset(), reader.reportLatestOffset()]
    append(journal, 40)
    ends.append(reader.reportLatestOffset())
    journal.close()
    for directory in (journal.directory, copied(journal, "copy")):
        for start in ends:
            fresh = reader_of(directory)
            end = fresh.latestOffset(start, ReadAllAvailable())
            rows = [row for part in fresh.partitions(start, end) for batch in fresh.read(part) for row in batch[0]]
            assert len(rows) == {0: 80, 1: 40, 2: 0}[ends.index(start)]


def test_checkpoint_without_an_identity_is_refused(written: Opener) -> None:
    journal = written("one")
    append(journal, 5)
    with pytest.raises(JournalCorrupt, match="begin with a new checkpoint"):
        reader_of(journal.directory).latestOffset({"position": journal.place.view().start}, ReadAllAvailable())


def test_position_option_with_identity_is_checked(written: Opener) -> None:
    one, other = written("one"), written("other")
    append(one, 20)
    append(other, 30)
    offset = json.dumps(reader_of(one.directory).reportLatestOffset())
    options = SourceOptions.of({"path": str(other.directory), "startPosition": offset})
    with pytest.raises(JournalCorrupt, match="another journal"):
        RecordReader(options, SEQ).partitions()


def test_subscription_of_another_journal_is_not_moved(written: Opener) -> None:
    one, other = written("one"), written("other")
    append(one, 20)
    append(other, 30)
    with pytest.raises(JournalCorrupt, match="another journal"):
        place(str(other.directory)).update_subscription("lake", 100, one.place.view().identity)
    assert registered(other.directory) == []
    place(str(other.directory)).update_subscription("lake", 100, other.place.view().identity)
    assert [each.position for each in registered(other.directory)] == [100]


def test_archive_of_a_server_that_is_behind_waits(written: Opener, tmp_path: Path) -> None:
    journal, lake = written("one"), tmp_path / "lake"
    append(journal, 10)
    behind = copied(journal, "behind")
    append(journal, 10)
    archive(None, str(journal.directory), lake, server="one")
    append(journal, 5)
    asked: list[float] = []

    def stop() -> bool:
        asked.append(time.monotonic())
        if len(asked) == 5:  # It has waited meanwhile; now it catches up.
            journal.close()
            shutil.copytree(journal.directory, behind, dirs_exist_ok=True)
        return Lake.at(lake).table.version() > version or asked[-1] > asked[0] + 60  # type: ignore[union-attr]

    version = Lake.at(lake).table.version()  # type: ignore[union-attr]
    assert archive(None, str(behind), lake, follow=True, every=0.01, stop=stop).rows == 5


def test_archive_ends_when_its_journal_is_replaced(written: Opener, tmp_path: Path) -> None:
    one, other = written("one"), written("other")
    append(one, 20)
    append(other, 30)
    lags: list[int] = []
    until = time.monotonic() + 60

    def replace(done: Any, view: Any) -> None:
        if done.rounds == 1:
            one.close()
            other.close()
            one.directory.rename(tmp_path / "old")
            other.directory.rename(one.directory)

    with pytest.raises(JournalCorrupt, match="another journal"):
        archive(
            None,
            str(one.directory),
            tmp_path / "lake",
            follow=True,
            every=0.01,
            progress=replace,
            monitor=lambda state: lags.append(state.behind.records),
            stop=lambda: time.monotonic() > until,
        )
    assert set(lags) <= {20, 0}, "no lag of another journal is published"


def deleted(journal: Any, count: int) -> None:
    """Delete the oldest segments, as retention does."""
    for segment in journal.segments[:count]:
        segment.path.unlink()


def seqs(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    return [row.as_py() for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch[0]]


def test_retention_that_deletes_what_a_stream_has_not_read_is_an_error_or_logged(
    written: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    journal = written("one", segment_size=4096)
    append(journal, 5)
    start = reader_of(journal.directory).reportLatestOffset()
    append(journal, 95)
    planned = reader_of(journal.directory).reportLatestOffset()
    deleted(journal, 2)
    first = journal.read(columns=("seq",))[0]["seq"]
    failing = reader_of(journal.directory)
    for use in (lambda: failing.latestOffset(start, ReadAllAvailable()), lambda: seqs(failing, start, planned)):
        with pytest.raises(JournalCorrupt, match=f"retention deleted what was before.*'s' 1-{first - 1}"):
            use()
    reader_of(journal.directory, gaps="skip").latestOffset(start, ReadAllAvailable())
    assert f"'s' 1-{first - 1}" in caplog.text


def test_position_that_retention_deleted_continues_if_gaps_are_skipped(written: Opener) -> None:
    journal = written("one", segment_size=4096)
    append(journal, 100)
    position = str(journal.place.view().start)
    deleted(journal, 1)
    left = [row["seq"] for row in journal.read(columns=("seq",))]
    for gaps in ("error", "skip"):
        reader = RecordReader(
            SourceOptions.of({"path": str(journal.directory), "startPosition": position, "gaps": gaps}), SEQ
        )
        if gaps == "error":
            with pytest.raises(JournalCorrupt, match="retention deleted"):
                reader.partitions()
        else:
            parts = reader.partitions()
            assert [row.as_py() for part in parts for batch in reader.read(part) for row in batch[0]] == left
