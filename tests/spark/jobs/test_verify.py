"""Compare a lake with its journal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyarrow import parquet

from fyrehose.errors import JournalCorrupt, JournalError
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.jobs.verify import BLOCK, Verified, _rows, verify
from fyrehose.spark.lake import Lake

Opener = Callable[..., Any]


@pytest.mark.slow
def test_undamaged_lake_passes_and_a_differing_one_fails(spark: Any, written: Opener, tmp_path: Path) -> None:
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
    column = parquet.ParquetFile(path).metadata.row_group(0).column(0)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalCorrupt, match=f"{path} is damaged"):
        verify(spark, str(journal.directory), lake)


class Unreadable(Py4JJavaError):
    """The error of Spark for a file that it cannot read."""

    def __init__(self) -> None:
        Exception.__init__(self)

    def __str__(self) -> str:
        return (
            "An error occurred while calling o429.toPythonIterator.\n: org.apache.spark.SparkException: "
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///lake/date=2023-11-14/part-0.parquet."
            "  SQLSTATE: KD001"
        )


def test_file_that_only_spark_cannot_read_is_damaged() -> None:
    class Frame:
        def toLocalIterator(self) -> Any:
            raise Unreadable

    with pytest.raises(JournalCorrupt, match=r"^/lake/date=2023-11-14/part-0\.parquet is damaged: put it back"):
        list(_rows(Frame()))  # type: ignore[arg-type]


@pytest.mark.slow
def test_lake_whose_records_the_journal_deleted_is_unchecked(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(30)
    archive(None, str(journal.directory), lake)
    records = len(journal.records)
    journal.fill(150)
    journal.segments[0].path.unlink()
    assert verify(spark, str(journal.directory), lake) == Verified(checked=0, unchecked=records, differences=())
