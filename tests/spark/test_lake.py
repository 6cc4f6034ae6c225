"""The lake's log: a round counts once or not at all, whichever archive commits it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from pyarrow import parquet

from fyrehose.errors import ConfigError, JournalCorrupt, JournalError, JournalLocked
from fyrehose.journal.format import UNKNOWN
from fyrehose.spark.lake import Lake, Progress
from fyrehose.spark.selection import Selection, selection
from fyrehose.spark.stores import LakeStore

ONE, OTHER = bytes(range(16)), bytes(range(1, 17))


def file(
    lake: Path,
    name: str,
    stream: str = "s",
    last: str | None = None,
    seqs: tuple[int, int] = (1, 9),
    rows: dict[str, Any] | None = None,
    stats: Any = None,
) -> AddAction:
    """Return a file for the log, with streams from ``stream`` to ``last``, and no other columns."""
    path = lake / "date=2026-01-01" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table({"stream": [stream, last or stream], "seq": [*seqs]} if rows is None else rows), path)
    least, most = {"stream": stream, "seq": seqs[0]}, {"stream": last or stream, "seq": seqs[1]}
    stats = {"numRecords": 2, "minValues": least, "maxValues": most, "nullCount": {}} if rows is None else stats
    return AddAction(
        f"date=2026-01-01/{name}",
        path.stat().st_size,
        {"date": "2026-01-01"},
        time.time_ns() // 1_000_000,
        True,
        json.dumps(stats),
    )


def at(position: int, chain: int | None = 7) -> Progress:
    return Progress(position=position, chain=chain)


def opened(path: Path, identity: bytes = ONE, server: str = "one") -> Lake:
    lake = Lake.at(path)
    lake.admit(identity, server, "default")
    return lake


def test_progress_is_committed_together_with_files(tmp_path: Path) -> None:
    lake = opened(tmp_path)
    assert lake.progress(ONE) is None
    lake.commit(ONE, None, at(10), [file(tmp_path, "1")])
    lake.commit(ONE, at(10), at(30, chain=None), [file(tmp_path, "2"), file(tmp_path, "3")])
    again = Lake.existing(f"file://{tmp_path}")
    assert again.progress(ONE) == at(30, chain=None)
    assert sorted(found.path for found in again.files()) == [f"date=2026-01-01/{n}" for n in "123"]
    lake.commit(ONE, at(30, chain=None), at(31, chain=2**32 - 1), [])
    assert Lake.at(tmp_path).progress(ONE) == at(31, chain=2**32 - 1)


def test_round_may_replace_files_and_the_schema_and_have_counts(tmp_path: Path) -> None:
    own = [("stream", pa.string()), ("seq", pa.int64())]
    narrow = pa.schema([*own, ("x", pa.int64()), ("date", pa.date32())])
    lake = Lake(LakeStore.at(tmp_path), narrow, ("x",))
    lake.admit(ONE, "one", "default")
    lake.commit(ONE, None, at(10), [file(tmp_path, "1"), file(tmp_path, "2")], counts={"rows": 2, "odd": 1})
    first = next(found for found in lake.files() if found.path.endswith("/1"))
    lake.commit(ONE, at(10), at(20), [file(tmp_path, "3")], counts={"rows": 3}, removed=[first])
    assert sorted(found.path[-1] for found in lake.files()) == ["2", "3"]
    lake.add_columns([pa.field("y.z", pa.string()), pa.field("x", pa.int64())])
    version = lake.table.version() if lake.table else 0
    lake.add_columns([pa.field("y.z", pa.string())])
    wide = pa.schema([*own, ("x", pa.float64()), ("y.z", pa.string()), ("date", pa.date32())])
    lake.commit(ONE, at(20), at(20), [file(tmp_path, "4")], schema=wide)
    again = Lake.existing(tmp_path)
    assert again.table is not None
    assert again.table.version() == version + 1
    assert [(field.name, field.type.type) for field in again.table.schema().fields][2:] == [
        ("x", "double"),
        ("y.z", "string"),
        ("date", "date"),
    ]
    assert [found.path[-1] for found in again.files()] == ["4"]
    assert again.counted() == {"rows": 3, "odd": 1}
    assert again.progress(ONE) == at(20)
    assert again.streams() == set()


def test_progress_remains_when_old_entries_of_the_log_are_removed(tmp_path: Path) -> None:
    lake, before = opened(tmp_path), None
    opened(tmp_path, OTHER, "other").commit(OTHER, None, at(99), [file(tmp_path, "other")])
    for position in range(1, 103):
        lake.commit(ONE, before, at(position), [file(tmp_path, str(position))] if position < 3 else [])
        before = at(position)
    log = tmp_path / "_delta_log"
    checkpoint = int(max(log.glob("*.checkpoint.parquet")).name[:20])
    for path in log.glob("*.json"):
        if int(path.stem) < checkpoint:
            path.unlink()
    again = Lake.existing(tmp_path)
    assert (again.progress(ONE), again.progress(OTHER)) == (at(102), at(99))
    assert len(again.files()) == 3
    again.commit(ONE, at(102), at(103), [])


def test_progress_is_read_again_only_after_commits_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, other, before = opened(tmp_path), opened(tmp_path, OTHER, "other"), None
    original, asked = DeltaTable.transaction_version, list[str]()
    monkeypatch.setattr(
        DeltaTable, "transaction_version", lambda table, name: asked.append(name) or original(table, name)
    )
    for position in range(1, 10):
        assert lake.progress(ONE) == before
        lake.commit(ONE, before, at(position), [])
        before = at(position)
    assert len(asked) <= 4
    del asked[:]
    other.commit(OTHER, None, at(99), [])
    lake.refresh()
    assert (lake.progress(ONE), lake.progress(OTHER)) == (before, at(99))
    assert ONE.hex() in asked


def test_old_entries_of_the_log_are_removed_with_a_checkpoint(tmp_path: Path) -> None:
    lake, before, log = opened(tmp_path), None, tmp_path / "_delta_log"
    lake.set_properties({"delta.checkpointInterval": "10"})
    numbers = []
    for position in range(1, 36):
        lake.commit(ONE, before, at(position), [file(tmp_path, str(position))])
        before = at(position)
        assert lake.table is not None
        numbers.append((lake.table.version(), len(list(log.glob("*.json")))))
        if lake.table.version() in (14, 25):
            for entry in log.iterdir():
                os.utime(entry, (0, 0))
    kept = [(version, count) for version, count in numbers if version in (14, 18, 19, 25, 28, 29)]
    assert kept == [(14, 15), (18, 19), (19, 11), (25, 17), (28, 20), (29, 11)]
    again = Lake.existing(tmp_path)
    assert (again.progress(ONE), len(again.files())) == (at(35), 35)


def test_second_archive_of_a_journal_cannot_commit_the_same_round(tmp_path: Path) -> None:
    one, other = opened(tmp_path), opened(tmp_path)
    one.commit(ONE, None, at(10), [file(tmp_path, "1")])
    with pytest.raises(JournalLocked, match="another archive of this journal has committed"):
        other.commit(ONE, None, at(10), [file(tmp_path, "2")])
    assert [found.path for found in Lake.at(tmp_path).files()] == ["date=2026-01-01/1"]
    with one.locked(ONE):
        with other.locked(OTHER):
            pass
        with (
            pytest.raises(JournalLocked, match="another archive of this journal writes to the lake"),
            other.locked(ONE),
        ):
            pass
    with other.locked(ONE):
        pass


@pytest.mark.parametrize("chain", [8, None])
def test_round_that_begins_at_the_same_position_of_another_log_is_refused(tmp_path: Path, chain: int | None) -> None:
    """A journal that was put back from a copy may have another log at the positions that the lake has."""
    lake = opened(tmp_path)
    lake.commit(ONE, None, at(10, chain=7), [file(tmp_path, "1")])
    with pytest.raises(JournalLocked, match="another archive of this journal has committed"):
        opened(tmp_path).commit(ONE, at(10, chain=chain), at(20, chain=9), [file(tmp_path, "2")])
    assert Lake.at(tmp_path).progress(ONE) == at(10, chain=7)
    assert len(Lake.at(tmp_path).files()) == 1


def test_journals_of_several_servers_commit_independently(tmp_path: Path) -> None:
    one = opened(tmp_path)
    other = opened(tmp_path, OTHER, "other")  # changes the table, which the first has loaded before
    one.commit(ONE, None, at(10), [file(tmp_path, "1")])
    other.commit(OTHER, None, at(99), [file(tmp_path, "2")])
    one.commit(ONE, at(10), at(20), [file(tmp_path, "3")])
    lake = Lake.at(tmp_path)
    assert (lake.progress(ONE), lake.progress(OTHER)) == (at(20), at(99))
    assert len(lake.files()) == 3


def test_name_of_a_server_belongs_to_one_journal(tmp_path: Path) -> None:
    lake = opened(tmp_path)
    assert lake.admit(ONE, None, "default") == "one"
    with pytest.raises(ConfigError, match=r"has this journal under the name 'one', not 'two'"):
        lake.admit(ONE, "two", "default")
    with pytest.raises(ConfigError, match=r"another journal of the server 'one'; name this one with --server"):
        lake.admit(OTHER, None, "one")
    assert lake.admit(OTHER, None, "host") == "host"
    with pytest.raises(JournalError, match="has no identity"):
        lake.admit(UNKNOWN, None, "host")


def test_lost_numbers_are_recorded_once(tmp_path: Path) -> None:
    lake = opened(tmp_path)
    assert lake.lost() == []
    gaps = [("ü", 3, 9, 5), ("s", 1, 1, 8)]
    with pytest.MonkeyPatch.context() as patched:  # killed between the two tables
        patched.setattr(DeltaTable, "create_write_transaction", lambda *args, **options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            lake.commit(ONE, None, at(10), [], gaps[:1])
    lake.commit(ONE, None, at(20), [], gaps)
    lake.commit(ONE, at(20), at(30), [], [("s", 5, 6, 25)])
    assert Lake.at(tmp_path).lost() == [("one", "s", 5, 6), ("one", "ü", 3, 9)]


def test_each_file_and_each_commit_is_synced_before_the_call_returns(tmp_path: Path) -> None:
    """The archive moves its subscription then, so that retention may delete the only other copy."""
    lake, synced, fsync = opened(tmp_path), set[str](), os.fsync

    def noted(fd: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{fd}").readlink()))
        fsync(fd)

    with patch.object(os, "fsync", noted):
        before = set(tmp_path.rglob("_delta_log/*.json"))
        lake.commit(ONE, None, at(10), [file(tmp_path, "1"), file(tmp_path, "2")], [("s", 1, 9, 5)])
        lake.replace(lake.files(), [file(tmp_path, "both")])
        entries = set(tmp_path.rglob("_delta_log/*.json")) - before
        with lake.store.writing("date=2026-01-02/new") as new:
            new.write(b"x")
    assert {str(tmp_path / path) for path in ("date=2026-01-02/new", "date=2026-01-02", "")} <= synced
    assert len(entries) >= 3, "two of the lake, and one of what is lost"
    assert {*map(str, entries), *(str(entry.parent) for entry in entries)} <= synced


def test_files_are_chosen_by_their_statistics(tmp_path: Path) -> None:
    lake = opened(tmp_path)
    lake.commit(ONE, None, at(10), [file(tmp_path, "1", "a"), file(tmp_path, "2", "b")])
    lake.refresh()
    assert [found.path for found in lake.files(Selection(streams=frozenset("bc")))] == ["date=2026-01-01/2"]
    assert lake.files(Selection(streams=frozenset("c"))) == []


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("5", "1 2 3"),
        ('{"a": 10}', "2 3"),
        ('{"a": 2, "*": 10}', "1 3"),
        ('{"a": 10, "*": 10}', "3"),
        ('{"a": 10, "b": 10, "*": 1}', "3"),
        ('{"a": 21, "*": 21}', ""),
        ('{"c": 1, "*": 21}', "3"),
    ],
)
def test_bounds_of_streams_choose_files(tmp_path: Path, start: str, expected: str) -> None:
    lake = opened(tmp_path)
    files = [file(tmp_path, "1", "a"), file(tmp_path, "2", "b"), file(tmp_path, "3", "a", "d", (1, 20))]
    lake.commit(ONE, None, at(10), files)
    lake.refresh()
    found = lake.files(selection(None, start, None))
    assert sorted(one.path[-1] for one in found) == expected.split()


def _stats(rows: int = 2, least: Any = 1, most: Any = 2) -> dict[str, Any]:
    return {"numRecords": rows, "minValues": {"seq": least}, "maxValues": {"seq": most}}


AT = datetime(2026, 1, 1, 12, 0, 0, 123456, UTC)


@pytest.mark.parametrize(
    ("rows", "stats", "said"),
    [
        ({"seq": [1, 2]}, _stats(), None),
        ({"seq": [1, 2]}, {"numRecords": 2}, None),
        ({"seq": [1.5, 2]}, _stats(), "its column 'seq' is double, and long in the table"),
        ({"seq": pa.array([1, 2], pa.int32())}, _stats(), "its column 'seq' is integer, and long in the table"),
        ({"seq": ["1", "2"]}, {"numRecords": 2}, "its column 'seq' is string, and long in the table"),
        ({"seq": [[1], [2]]}, {"numRecords": 2}, "its column 'seq' is .*, and long in the table"),
        ({"time": ["a", "b"]}, {"numRecords": 2}, "its column 'time' is string, and timestamp in the table"),
        ({"Seq": [1, 2]}, {"numRecords": 2}, "the table has no column 'Seq'"),
        ({"seq": [1, 2]}, _stats(rows=3), "its statistics count 3 rows, and it has 2"),
        ({"seq": [1, 2]}, {}, "its statistics count None rows, and it has 2"),
        ({"seq": [1, 2]}, _stats(most=1), "its statistics of 'seq' are 1 to 1, and it has 1 to 2"),
        ({"seq": [1, 2]}, _stats(least=2), "its statistics of 'seq' are 2 to 2, and it has 1 to 2"),
    ],
)
def test_file_that_disagrees_with_its_table_is_not_committed(
    tmp_path: Path, rows: dict[str, Any], stats: dict[str, Any], said: str | None
) -> None:
    lake = opened(tmp_path)
    added = file(tmp_path, "1", rows=rows, stats=stats)
    if said is None:
        lake.commit(ONE, None, at(10), [added])
        return
    with pytest.raises(JournalError, match=rf"the file {tmp_path}/\S+ was not committed to its table: {said}"):
        lake.commit(ONE, None, at(10), [added])
    lake.commit(ONE, None, at(10), [file(tmp_path, "2")])
    with pytest.raises(JournalError, match=said):
        lake.replace(lake.files(), [added])
    assert [found.path[-1] for found in lake.files()] == ["2"]


@pytest.mark.parametrize(
    ("stated", "committed"),
    [(AT, True), (AT.replace(microsecond=123000), True), (AT.replace(microsecond=122000), False)],
)
def test_times_of_statistics_may_be_cut_to_milliseconds(tmp_path: Path, stated: datetime, committed: bool) -> None:
    """Delta's protocol allows it: "Per-file Statistics"."""
    lake = opened(tmp_path)
    text = stated.isoformat().replace("+00:00", "Z")
    stats = {"numRecords": 1, "minValues": {"time": text}, "maxValues": {"time": text}}
    added = file(tmp_path, "1", rows={"time": pa.array([AT], pa.timestamp("us", "UTC"))}, stats=stats)
    if not committed:
        with pytest.raises(JournalError, match="its statistics of 'time' are"):
            lake.commit(ONE, None, at(10), [added])
        return
    lake.commit(ONE, None, at(10), [added])
    for microsecond, found in ((123456, 1), (125000, 0)):
        since = AT.replace(microsecond=microsecond, tzinfo=None).isoformat()
        assert len(lake.files(selection(None, since, None))) == found


def test_missing_or_changed_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    lake = opened(tmp_path)
    lake.commit(ONE, None, at(10), [file(tmp_path, "1"), file(tmp_path, "2")])
    lake.check(lake.files())
    path = tmp_path / "date=2026-01-01" / "2"
    size = path.stat().st_size
    path.write_bytes(b"xx")
    with pytest.raises(JournalError, match=f"{path} has 2 bytes, and the lake's log says {size}"):
        lake.check(lake.files())
    path.unlink()
    with pytest.raises(JournalError, match=f"{path} is missing from the lake"):
        lake.check(lake.files())


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda log: _cut(log / f"{3:020}.json"), f"{3:020}.json is no valid entry"),
        (lambda log: (log / f"{2:020}.json").unlink(), f"{2:020}.json is missing"),
        (lambda log: (log / f"{0:020}.json").unlink(), f"{0:020}.json is missing"),
        (
            lambda log: (_cut(_checkpoint(log)), (log / f"{1:020}.json").unlink()),
            "checkpoint.parquet is no valid checkpoint",
        ),
    ],
    ids=["truncated", "gap", "first", "damaged-checkpoint"],
)
def test_damaged_log_is_an_error_that_names_the_file(
    tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    lake = opened(tmp_path)
    lake.commit(ONE, None, at(10), [])
    lake.commit(ONE, at(10), at(20), [])
    damage(tmp_path / "_delta_log")
    with pytest.raises(JournalCorrupt) as raised:
        Lake.existing(tmp_path)
    said = str(raised.value)
    assert f"the log of the lake {tmp_path} is damaged: " in said
    assert words in said
    assert "put it back from a copy" in said
    for foreign in ("\n", "ParsedLogPath", "Kernel", "<unknown>"):
        assert foreign not in said


@pytest.mark.parametrize(
    "damage",
    [
        lambda log: _cut(_checkpoint(log)),
        lambda log: _checkpoint(log).unlink(),
        lambda log: _checkpoint(log).write_bytes(b""),
        lambda log: (log / "_last_checkpoint").write_text('{"version": 3, "size": 1}'),
        lambda log: (_checkpoint(log), (log / "_last_checkpoint").write_text("{")),
    ],
    ids=["truncated", "missing", "empty", "named", "name"],
)
@pytest.mark.parametrize("older", [False, True])
def test_damaged_checkpoint_is_fallen_back_from(
    tmp_path: Path, damage: Callable[[Path], object], older: bool, caplog: pytest.LogCaptureFixture
) -> None:
    lake = opened(tmp_path)
    lake.commit(ONE, None, at(10), [file(tmp_path, "1")])
    if older:
        DeltaTable(str(tmp_path)).create_checkpoint()
        (tmp_path / "_delta_log" / f"{0:020}.json").unlink()
    lake.commit(ONE, at(10), at(20), [file(tmp_path, "2")])
    damage(tmp_path / "_delta_log")
    again = Lake.existing(tmp_path)
    assert sorted(found.path[-1] for found in again.files()) == ["1", "2"]
    again.commit(ONE, at(20), at(30), [file(tmp_path, "3")])
    assert Lake.existing(tmp_path).progress(ONE) == at(30)
    assert Lake.existing(tmp_path).ends(ONE) == {}


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def _checkpoint(log: Path) -> Path:
    DeltaTable(str(log.parent)).create_checkpoint()
    return max(log.glob("*.checkpoint.parquet"))


def test_path_without_a_lake_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="is no lake: nothing was archived there"):
        Lake.existing(tmp_path / "not")
    with pytest.raises(ConfigError, match="expected a directory or s3://BUCKET/PATH"):
        Lake.at("gs://bucket/lake")
