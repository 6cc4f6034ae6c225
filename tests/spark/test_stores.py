"""Lakes in an object store: the same archive, maintenance and readers, by URL."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any
from urllib.error import HTTPError

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow import parquet

from fyrehose.errors import ConfigError, JournalCorrupt, JournalError
from fyrehose.records import Run
from fyrehose.spark import tables
from fyrehose.spark.fetching import fetch
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.jobs.optimize import delete, optimize
from fyrehose.spark.jobs.verify import damage_of, verify
from fyrehose.spark.lake import Lake
from fyrehose.spark.stores import LakeStore

Opener = Callable[..., Any]
ARCHIVE = [sys.executable, "-c", "from fyrehose.cli.spark import main; main()", "archive", "--engine", "local"]


def stored(lake: str, server: str | None = None) -> list[tuple[str, int, bytes]]:
    """Return the records of a lake, as delta-rs reads them."""
    rows = DeltaTable(lake).to_pyarrow_table(columns=["server", "stream", "seq", "payload"]).to_pylist()
    return sorted((r["stream"], r["seq"], r["payload"]) for r in rows if server in (None, r["server"]))


def brief(found: Any) -> list[tuple[str, int, bytes]]:
    rows = found.select("stream", "seq", "payload").collect()
    return sorted((row.stream, row.seq, bytes(row.payload)) for row in rows)


def test_urls_are_stores_and_other_schemes_are_refused(tmp_path: Path) -> None:
    assert LakeStore.at("s3a://b/a/lake/").uri == "s3://b/a/lake"
    assert LakeStore.at(f"file://{tmp_path}").directory == tmp_path
    for wrong in ("s3://", "s3:///x", "gs://b/lake", "http://127.0.0.1/lake"):
        with pytest.raises(ConfigError, match=re.escape(f"invalid lake {wrong!r}: expected")):
            LakeStore.at(wrong)


def test_one_of_several_puts_creates_an_object(bucket: str, put_object: Callable[..., None]) -> None:
    """The header for a checksum makes moto search the body between looking for an object and storing it."""

    def creates(url: str) -> bool:
        try:
            put_object(url, b"x-amz-checksum-a" * 4000, if_none_match="*", x_amz_sdk_checksum_algorithm="CRC32")
        except HTTPError as error:
            return error.code != 412
        return True

    with ThreadPoolExecutor(8) as clients:
        for number in range(10):
            assert sum(clients.map(creates, [f"{bucket}/{number}"] * 8)) == 1


def test_archive_and_maintenance_of_a_lake_in_an_object_store(written: Opener, bucket: str) -> None:
    journal, lake = written(), f"{bucket}/some/lake"
    place = str(journal.directory)
    for _ in range(3):
        journal.fill(40)
        archive(None, place, lake, server="one", round_bytes=100_000)
    assert stored(lake) == journal.rows()
    files = len(Lake.existing(lake).files())
    assert optimize(lake).files == 1 < files
    assert delete(lake, "stream = 's1'") == len(journal.rows(lambda r: r.stream == "s1"))
    assert stored(lake) == journal.rows(lambda r: r.stream != "s1")
    assert archive(None, place, lake).rounds == 0
    optimize(lake, keep=86400.0)
    assert stored(lake) == []


@pytest.mark.slow
def test_spark_archives_verifies_and_reads_an_object_store(spark: Any, written: Opener, bucket: str) -> None:
    journal, lake = written(), f"{bucket}/lake"
    place = str(journal.directory)
    journal.append(Run.of("typed", [b"\x00\xff"], source="x", producer="p", topic="t", content_type="c"))
    journal.fill(60)
    assert archive(spark, place, lake, server="one").rows == len(journal.records)
    found = verify(spark, place, lake)
    assert (found.checked, found.unchecked, found.differences) == (len(journal.records), 0, ())
    journal.fill(10)
    assert brief(tables.table(spark, lake, place)) == journal.rows()
    assert brief(tables.table(spark, lake, streams=["s1"], end="5")) == journal.rows(
        lambda r: r.stream == "s1" and r.seq <= 5
    )
    archive(None, place, lake)
    optimize(lake)
    assert brief(tables.table(spark, lake)) == journal.rows(), "delta-rs wrote these files"
    row = tables.table(spark, lake, streams=["typed"]).collect()[0]
    assert (row.server, row.producer, row.topic, row.content_type, str(row.date)) == (
        "one",
        "p",
        "t",
        "c",
        "2023-11-14",
    )


def test_missing_and_damaged_objects_are_named(written: Opener, bucket: str, put_object: Any) -> None:
    journal, lake = written(), f"{bucket}/lake"
    journal.fill(40)
    archive(None, str(journal.directory), lake)
    found = Lake.existing(lake)
    file, files = found.files()[0], found.store.files()
    with files.open_input_file(file.path) as opened:
        whole = opened.read()
    columns = parquet.read_metadata(pa.BufferReader(whole)).row_group(0)
    payload = columns.column(columns.num_columns - 1)
    last = payload.data_page_offset + payload.total_compressed_size - 1
    if payload.has_dictionary_page:
        last = payload.dictionary_page_offset + payload.total_compressed_size - 1
    put_object(f"{lake}/{file.path}", whole[:last] + bytes([whole[last] ^ 1]) + whole[last + 1 :])
    found.check([file])
    assert f"{lake}/{file.path} is damaged" in str(damage_of(found.store, file.path))
    put_object(f"{lake}/{file.path}", whole[:-1])
    with pytest.raises(JournalCorrupt, match=f"{lake}/{file.path} has {len(whole) - 1} bytes"):
        found.check([file])
    files.delete_file(file.path)
    with pytest.raises(JournalCorrupt, match=f"{lake}/{file.path} is missing"):
        found.check([file])


def test_programs_without_our_code_read_an_object_store(written: Opener, bucket: str) -> None:
    journal, lake = written(), f"{bucket}/lake"
    journal.fill(40)
    archive(None, str(journal.directory), lake)
    count = len(journal.records)
    assert polars.scan_delta(lake).select(polars.len()).collect().item() == count
    assert len(DeltaTable(lake).to_pandas(columns=["stream", "seq"])) == count
    with duckdb.connect() as database:  # DuckDB's own S3 client needs an extension.
        database.register("records", DeltaTable(lake).to_pyarrow_dataset())
        assert database.execute("select count(*) from records").fetchall() == [(count,)]


def test_unusable_store_is_an_error_of_one_line(object_store: str, written: Opener) -> None:
    journal = written()
    journal.fill(1)
    with pytest.raises(JournalError) as caught:
        archive(None, str(journal.directory), "s3://nobody-made-this/lake")
    said = str(caught.value)
    assert (said.count("\n"), "\x1b" in said, "NoSuchBucket" in said, "AWS_ENDPOINT_URL" in said) == (
        0,
        False,
        True,
        True,
    )
    with pytest.raises(JournalError, match="NoSuchBucket"):
        Lake.existing("s3://nobody-made-this/lake")


def test_store_that_fails_is_not_taken_for_a_damaged_file(
    written: Opener, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, lake = written(), f"{bucket}/lake"
    journal.fill(1)
    archive(None, str(journal.directory), lake)
    store, path = LakeStore.at(lake), Lake.existing(lake).files()[0].path
    assert damage_of(store, path) is None
    assert f"{lake}/nothing is damaged" in str(damage_of(store, "nothing"))

    def fail(*args: object) -> Any:
        raise OSError("Generic S3 error\n  \x1b[31m\u21b3\x1b[0m client error (Connect)\n")

    monkeypatch.setattr(DeltaStorageHandler, "open_input_file", fail)
    for read in (
        lambda: damage_of(store, path),
        lambda: list(fetch(store, [path], None, [pa.record_batch({"id": [0]})])),
    ):
        with pytest.raises(
            JournalError, match=r"failed: Generic S3 error client error \(Connect\); see AWS_ENDPOINT_URL"
        ):
            read()


def start(journal: Any, lake: str) -> subprocess.Popen[bytes]:
    options = ["--server", journal.directory.name, "--follow", "--every", "50ms", "--round", "20K"]
    return subprocess.Popen([*ARCHIVE, str(journal.directory), lake, *options], stdout=subprocess.DEVNULL)


def rounds_of(lake: str) -> int:
    found = Lake.at(lake).table
    return 0 if found is None else found.version()


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.timeout(600)
def test_two_servers_archive_into_one_object_store_while_they_are_killed(
    written: Opener, bucket: str, ladder: Callable[[int, int], int]
) -> None:
    """Two kills in ``make test``, 20 in ``make torture``."""
    journals, lake, dice = [written("one"), written("other")], f"{bucket}/lake", Random(5)
    archive(None, str(journals[0].directory), lake, server="one")
    running = [start(journal, lake) for journal in journals]
    for _ in range(ladder(2, 20)):
        before, deadline = rounds_of(lake), time.monotonic() + 300
        while rounds_of(lake) < before + 3:
            assert time.monotonic() < deadline
            for journal in journals:
                journal.fill(1)
        chosen = dice.randrange(2)
        time.sleep(dice.uniform(0, 0.3))
        running[chosen].kill()
        running[chosen].wait()
        running[chosen] = start(journals[chosen], lake)
    time.sleep(1)
    for process in running:
        process.kill()
        process.wait()
    for journal in journals:
        archive(None, str(journal.directory), lake, server=journal.directory.name)
        assert journal.faults(stored(lake, journal.directory.name)) == []
