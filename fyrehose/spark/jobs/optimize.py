"""``optimize`` and ``delete``: keep a lake small and fast, while archives write it.

    many small files of a day -> a few large ones      days that are not kept -> deleted      old files -> removed

Files that no version of the table names any more are removed when they are older than a day, so that a query that has
begun can end.  These are also the files of rounds that were killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import attrs
from deltalake import DeltaTable, WriterProperties
from deltalake.exceptions import DeltaError

from fyrehose.errors import JournalError
from fyrehose.spark.lake import PARTITION, Lake, delete_rows
from fyrehose.spark.rounds import GROUP
from fyrehose.spark.stores import plain

#: Size of a file that is not compacted any more, in bytes.
FILE = 128 << 20
#: Number of small files of the current day that are compacted; small files of finished days always are.
MANY = 32
#: Age at which a file that is not used any more is removed, in hours.
AGE = 24

_WRITER = WriterProperties(compression="ZSTD", compression_level=1, max_row_group_size=GROUP)


@attrs.frozen(kw_only=True)
class Optimized:
    """Result of maintenance.

    :ivar days: how many days were compacted
    :ivar files: how many files the lake has
    :ivar removed: how many files were removed
    """

    days: int
    files: int
    removed: int


def optimize(
    lake: str | Path, *, keep: float | None = None, sort: bool = False, now: datetime | None = None
) -> Optimized:
    """Merge small files, delete days that are not kept, and remove files that are not used any more.

    :param keep: delete records of days that ended longer ago, in seconds; None: keep all
    :param sort: also sort the compacted files of finished days by stream and number, which takes several times as long
    :param now: the time by which a day has finished, for tests
    :raises JournalError: another process did the same in the meantime
    """
    target = Lake.existing(lake)
    table, today = _table(target), (now or datetime.now(UTC)).date()
    with _explained(target):
        if keep is not None:
            table.delete(f"{PARTITION} < DATE '{today - timedelta(seconds=keep)}'")
            target.refresh()
        days = list(_due(target, today))
        for day in days:
            filters = [(PARTITION, "=", day)]
            if sort and day != str(today):
                columns = ["server", "stream", "seq"]
                table.optimize.z_order(columns, partition_filters=filters, target_size=FILE, writer_properties=_WRITER)
            else:
                table.optimize.compact(partition_filters=filters, target_size=FILE, writer_properties=_WRITER)
        removed = table.vacuum(retention_hours=AGE, dry_run=False, full=True)
    target.refresh()
    return Optimized(days=len(days), files=len(target.files()), removed=len(removed))


def delete(lake: str | Path, where: str) -> int:
    """Delete records from a lake, and return how many; their bytes are removed by ``optimize`` a day later.

    :param where: an SQL condition on the columns of the lake
    :raises ConfigError: the condition is invalid
    """
    target = Lake.existing(lake)
    return delete_rows(target.store, _table(target), where)


def _due(lake: Lake, today: date) -> Iterator[str]:
    """Yield the days that have small files to merge."""
    small = Counter(file.path.rpartition(f"{PARTITION}=")[2][:10] for file in lake.files() if file.size < FILE // 2)
    for day, count in sorted(small.items()):
        if count >= (2 if day < str(today) else MANY):
            yield day


def _table(lake: Lake) -> DeltaTable:
    assert lake.table is not None, "the lake exists"
    return lake.table


@contextmanager
def _explained(lake: Lake) -> Iterator[None]:
    try:
        with lake.store.explained():
            yield
    except DeltaError as error:
        raise JournalError(f"the lake {lake} could not be changed, try again: {plain(error)}") from error
