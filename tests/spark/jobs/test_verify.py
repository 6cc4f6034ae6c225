"""The lake against the journal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fyrehose.errors import JournalError
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.jobs.verify import BLOCK, Verified, verify
from fyrehose.spark.lake import Lake

Opener = Callable[..., Any]


@pytest.mark.slow
def test_a_lake_that_is_right_and_one_that_is_not(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    place = str(journal.directory)
    with pytest.raises(JournalError, match="is no lake"):
        verify(spark, place, lake)
    holder = Lake.at(lake)
    holder.lock()
    holder.unlock()
    assert verify(spark, place, lake) == Verified(checked=0, unchecked=0, differences=())
    journal.fill(150)
    archive(spark, place, lake, round_bytes=250_000)
    records = len(journal.records)
    journal.fill(5)
    assert verify(spark, place, lake) == Verified(checked=records, unchecked=0, differences=())
    # Retention deletes the oldest segment: a round that began in it cannot be compared any more.
    journal.segments[0].path.unlink()
    rest = verify(spark, place, lake)
    assert rest.differences == ()
    assert rest.checked + rest.unchecked == records
    assert 0 < rest.unchecked < records
    # A file of the last round is put in place of another that has other payloads.
    last = Lake.at(lake).commits()[-1]
    path = lake / "data" / last.directory / next(file.path for file in last.files if file.stream == "s0")
    changed = spark.read.parquet(str(path)).selectExpr("* except (payload)", "reverse(hex(payload)) p")
    changed.selectExpr("* except (p)", "cast(p as binary) payload").coalesce(1).write.parquet(str(tmp_path / "new"))
    path.write_bytes(next((tmp_path / "new").glob("*.parquet")).read_bytes())
    path.with_name(f".{path.name}.crc").unlink()
    found = verify(spark, place, lake).differences
    assert [(one.stream, one.first, one.last, one.in_lake == one.in_journal) for one in found] == [
        ("s0", 0, BLOCK - 1, True)
    ]


@pytest.mark.slow
def test_a_journal_that_has_nothing_of_it_any_more(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(150)
    archive(spark, str(journal.directory), lake)
    journal.segments[0].path.unlink()
    assert verify(spark, str(journal.directory), lake) == Verified(
        checked=0, unchecked=len(journal.records), differences=()
    )
