"""Delta tables that Spark fills and that any program reads, without Spark's connector for Delta.

Each commit also records how far its input was read, as application transactions of Delta.  So a commit is in the table
together with its progress or not at all, whenever the pipeline is killed.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import attrs
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

#: How many files are merged.
MANY = 32
_HOURS = 24
_SETTINGS = {
    "delta.logRetentionDuration": f"interval {_HOURS} hours",
    "delta.deletedFileRetentionDuration": f"interval {_HOURS} hours",
}


@attrs.define(eq=False)
class Table:
    """A Delta table of the pipeline, which is created when it is first used."""

    path: Path
    schema: pa.Schema
    delta: DeltaTable = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        schema = Schema.from_arrow(self.schema)
        self.delta = DeltaTable.create(str(self.path), schema, mode="ignore", configuration=_SETTINGS)

    def progress(self, name: str) -> int:
        """Return the progress that was committed under a name; 0 if there is none."""
        return self.delta.transaction_version(name) or 0

    def columns(self) -> dict[str, str]:
        """Return the columns and their types, as Spark names them."""
        return {field.name: field.dataType.simpleString() for field in self._struct().fields}

    def append(self, rows: pa.Table, progress: Mapping[str, int]) -> None:
        """Commit rows and progress; a column that the table does not have is added to it."""
        write_deltalake(self.delta, rows, mode="append", schema_mode="merge", commit_properties=_with(progress))

    def replace(self, rows: pa.Table, where: str, progress: Mapping[str, int]) -> None:
        """Commit rows and progress, and remove the rows that matched ``where`` in the same commit."""
        write_deltalake(self.delta, rows, mode="overwrite", predicate=where, commit_properties=_with(progress))

    def read(self, spark: SparkSession, column: str | None = None, since: datetime | None = None) -> DataFrame:
        """Return the rows for Spark; with ``column`` only those since a time, and only files that may have them."""
        found = pa.table(self.delta.get_add_actions(flatten=True)).to_pylist()
        if column is not None and since is not None:
            found = [row for row in found if (last := row.get(f"max.{column}")) is None or last >= since]
        if not found:
            return spark.createDataFrame([], self._struct())
        paths = [str(self.path / row["path"]) for row in found]
        rows = spark.read.schema(self._struct()).parquet(*paths)
        return rows if column is None or since is None else rows.where(rows[column] >= since)

    def compact(self) -> None:
        """Merge the files if there are many, and remove those that nobody uses any more."""
        if self.delta.get_add_actions().num_rows >= MANY:
            self.delta.optimize.compact()
            self.delta.vacuum(retention_hours=_HOURS, dry_run=False)
            self.delta.create_checkpoint()
            self.delta.cleanup_metadata()

    def _struct(self) -> StructType:
        # Delta writes schemas as Spark does.
        return StructType.fromJson(json.loads(self.delta.schema().to_json()))


def _with(progress: Mapping[str, int]) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction(name, value) for name, value in progress.items()])


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Refuse a second pipeline that would write the same tables.

    :raises BlockingIOError: another one writes them
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
