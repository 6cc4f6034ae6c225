"""Keep the aggregates of a typed table up to date with the versions of its log.

    in: the files that a table's commits have added or removed      out: the rows of the windows that these touch

The version that an aggregate has reached is in its own log, as the position of a table is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
from deltalake import Schema

from fyrehose.errors import ConfigError
from fyrehose.spark.deltalog import changes
from fyrehose.spark.engines import Engine
from fyrehose.spark.lake import Lake, Progress
from fyrehose.spark.typed import windows
from fyrehose.spark.typed.config import Aggregate, TypedTable
from fyrehose.spark.typed.windows import WindowTask

#: How many files of a table a task aggregates.
_FILES = 16
#: Property of the Delta table of an aggregate: the definition of the aggregate.
_DEFINITION = "fyrehose.definition"


@attrs.define(eq=False)
class Summary:
    """An aggregate, and the version of its table up to which it has counted.

    :ivar table, source: its table, and the lake of that table
    :ivar lake: the lake of the aggregate itself
    :ivar identity: the identity of the journal
    """

    aggregate: Aggregate
    table: TypedTable
    source: Lake
    lake: Lake
    schema: pa.Schema
    identity: bytes
    engine: Engine
    before: Progress | None = None
    version: int = 0
    rows: int = 0

    def load(self) -> None:
        """Read from the aggregate's log which version of the table it has reached.

        :raises ConfigError: the aggregate was made by another definition
        """
        table = self.lake.current()
        self.before = self.lake.progress(self.identity)
        self.version = 0 if self.before is None else self.before.position
        made, wanted = table.metadata().configuration.get(_DEFINITION), repr(self.aggregate)
        if made is None:
            self.lake.set_properties({_DEFINITION: wanted})
        elif made != wanted:
            raise ConfigError(
                f"the aggregate {self.lake} was made by another definition; choose another name, or delete its "
                "directory, so that it is made again"
            )
        if Schema.from_arrow(self.schema) != table.schema():  # a column of its table has a wider type
            after = Progress(position=0, chain=None)
            self.lake.commit(self.identity, self.before, after, [], schema=self.schema)
            self.before, self.version = after, 0

    def update(self) -> None:
        """Compute those windows of the aggregate again in which the table's last commits have changed rows."""
        version = self.source.current().version()
        if version > self.version:
            self._count(version)
            self.version = version

    def _count(self, version: int) -> None:
        aggregate, source = self.aggregate, self.source
        paths = changes(source.store, self.version, version)
        if paths == []:
            return
        if paths is None or None in source.store.sizes(paths):
            paths = [file.path for file in source.files()]
        types = {field.name: field.type for field in self.table.schema}
        tasks = [self._task(some, types) for some in windows.chunks(paths, _FILES)]
        found = [np.empty(0, np.int64), *self.engine(windows.windows_of, tasks)]
        changed = np.unique(np.concatenate(found))
        if not len(changed):
            return
        overlapping = windows.overlapping(source.actions(), changed, aggregate.window)
        tasks = [self._task(some, types, changed) for some in windows.chunks(overlapping, _FILES)]
        rows = windows.finished(self.engine(windows.count, tasks), aggregate, self.schema)
        actions, removed = windows.replaced(self.lake, rows, changed, aggregate.window)
        after = Progress(position=version, chain=None)
        about = {"version": version, "windows": len(changed)}
        self.lake.commit(self.identity, self.before, after, actions, about=about, removed=removed)
        self.before = after
        self.rows += rows.num_rows

    def _task(self, paths: Iterable[str], types: Mapping[str, pa.DataType], wanted: Any = None) -> WindowTask:
        known = self.source.vectors()
        return WindowTask(
            store=self.source.store,
            paths=tuple(paths),
            deleted={path: known[path] for path in paths if path in known},
            aggregate=self.aggregate,
            types=types,
            windows=wanted,
        )
