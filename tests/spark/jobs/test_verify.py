"""The lake against the journal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from fyrehose.errors import JournalCorrupt, JournalError
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
    Lake.at(lake).create()
    assert verify(spark, place, lake) == Verified(checked=0, unchecked=0, differences=())
    journal.fill(150)
    archive(None, place, lake, round_bytes=250_000)
    records = len(journal.records)
    journal.fill(5)
    assert verify(spark, place, lake) == Verified(checked=records, unchecked=0, differences=())
    # What retention deletes from the journal cannot be compared any more.
    journal.segments[0].path.unlink()
    rest = verify(spark, place, lake)
    assert rest.differences == ()
    assert rest.checked + rest.unchecked == records
    assert 0 < rest.unchecked < records
    # A file of the last round is replaced by one of the same size that has other payloads.
    path = max(lake.rglob("*.parquet"), key=lambda path: path.name)
    before = parquet.read_table(path, partitioning=None)
    payloads = [payload[::-1] for payload in before["payload"].to_pylist()]
    at = before.schema.get_field_index("payload")
    parquet.write_table(before.set_column(at, "payload", pa.array(payloads, pa.binary())), path, compression="zstd")
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patched:
        patched.setattr(Lake, "check", lambda self, files: None)
        found = verify(spark, place, lake).differences
    assert {(one.stream, one.first, one.last) for one in found} == {(f"s{i}", 0, BLOCK - 1) for i in range(3)}
    assert all(one.in_lake == one.in_journal for one in found)


@pytest.mark.slow
def test_flipped_byte_in_a_file_is_found_by_its_checksum(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(150)
    archive(None, str(journal.directory), lake)
    # Also where the journal does not have the records any more.
    journal.segments[0].path.unlink()
    path = next(lake.rglob("*.parquet"))
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalCorrupt, match=f"{path} is damaged"):
        verify(spark, str(journal.directory), lake)


@pytest.mark.slow
def test_a_journal_that_has_nothing_of_it_any_more(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(30)
    archive(None, str(journal.directory), lake)
    records = len(journal.records)
    journal.fill(150)
    journal.segments[0].path.unlink()
    assert verify(spark, str(journal.directory), lake) == Verified(checked=0, unchecked=records, differences=())
