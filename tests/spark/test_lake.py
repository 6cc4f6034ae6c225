"""The lake's log: a round counts once or not at all."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from fyrehose.errors import JournalError, JournalLocked
from fyrehose.spark.lake import Commit, File, Lake, round_files


def commit(start: int, end: int, directory: str = "") -> Commit:
    return Commit(start=start, end=end, chain=7, directory=directory, rows=1, gaps=(("ü", 3, 9),), time=5)


def test_commits_follow_on_each_other(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path / "lake")
    assert lake.commits() == []
    lake.lock()
    made = [commit(0, 10), commit(10, 30), commit(30, 31)]
    for one in made:
        lake.commit(one)
    assert Lake.at(f"file://{tmp_path}/lake").commits() == made
    lake.unlock()
    lake.unlock()


def test_a_commit_is_what_it_was_packed_from() -> None:
    whole = Commit(
        start=1,
        end=2,
        chain=None,
        directory="round=x",
        rows=4,
        files=(File(path="a/b.parquet", rows=4, size=9, stream=None, first=1, last=4),),
    )
    assert Commit.unpacked(whole.packed()) == whole
    with pytest.raises(ValueError, match="another version"):
        Commit.unpacked(whole.packed().replace(b'"version": 1', b'"version": 2'))


def test_damaged_or_missing_commit_is_an_error(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lake.lock()
    for i in range(3):
        lake.commit(commit(i, i + 1))
    second = tmp_path / "_fyrehose" / "000000000002.json"
    data = second.read_bytes()
    second.write_bytes(data[:20])
    with pytest.raises(JournalError, match=f"{second} is damaged"):
        lake.commits()
    second.unlink()
    with pytest.raises(JournalError, match="one is missing"):
        lake.commits()
    lake.unlock()


def test_lake_is_locked_by_its_writer(tmp_path: Path) -> None:
    one, other = Lake.at(tmp_path), Lake.at(tmp_path)
    one.lock()
    with pytest.raises(JournalLocked, match="one at a time"):
        other.lock()
    one.unlock()
    other.lock()
    # Where locks do not work, over a network, the log itself says no.
    one._entry(1).write_bytes(b"{}")
    other_commits = Lake.commits
    try:
        Lake.commits = lambda self: []  # type: ignore[method-assign]
        with pytest.raises(JournalLocked, match="is there already"):
            other.commit(commit(0, 1))
    finally:
        Lake.commits = other_commits  # type: ignore[method-assign]
    assert list(tmp_path.glob("_fyrehose/*.new")) == []
    other.unlock()


def test_uncommitted_rounds_are_removed(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lake.lock()
    good, bad = lake.begin(0, 10), lake.begin(0, 10)
    assert good != bad
    for directory in (good, bad):
        directory.mkdir(parents=True)
        directory.joinpath("x").write_text("x")
    lake.commit(commit(0, 10, good.name))
    (tmp_path / "_fyrehose" / "000000000002.new").write_text("left over")
    assert lake.clean() == [bad.name]
    assert [path.name for path in lake.data.iterdir()] == [good.name]
    assert lake.clean() == []
    assert len(lake.commits()) == 1
    lake.unlock()


def test_files_are_known_by_their_footers(tmp_path: Path) -> None:
    one = pa.table({"stream": ["a", "a"], "seq": [7, 9]})
    two = pa.table({"stream": ["a", "b"], "seq": [1, 2]})
    none = pa.table({"stream": pa.array([], pa.string()), "seq": pa.array([], pa.int64())})
    for name, table in (("1", one), ("2", two), ("3", none)):
        (tmp_path / name).mkdir()
        parquet.write_table(table, tmp_path / name / "x.parquet")
    found = [(file.path, file.rows, file.stream, file.first, file.last) for file in round_files(tmp_path)]
    assert found == [("1/x.parquet", 2, "a", 7, 9), ("2/x.parquet", 2, None, 1, 2), ("3/x.parquet", 0, None, 0, 0)]


def test_url_of_object_storage_is_refused() -> None:
    with pytest.raises(JournalError, match="on a file system"):
        Lake.at("s3a://bucket/lake")
