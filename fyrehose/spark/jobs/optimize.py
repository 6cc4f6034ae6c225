"""``optimize`` and ``delete``: keep a lake small and fast, while archives write it.

    many small files of a partition -> a few large ones      days that are not kept -> deleted      old files -> removed

Files are merged stream by stream (merging.py), because delta-rs would mix the streams again.

Files that the table does not use any more are removed when they are older than its property
``delta.deletedFileRetentionDuration`` says, a day unless somebody changed it, so that queries that use them can end.
Files of killed rounds are removed, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import attrs
from deltalake.exceptions import DeltaError

from fyrehose.errors import JournalError
from fyrehose.spark.lake import PARTITION, File, Lake, day_of, delete_rows, folder_of
from fyrehose.spark.merging import merged, together
from fyrehose.spark.stores import plain

#: Size from which a file is not merged any more, in bytes.
FILE = 128 << 20
#: Number of small files from which the files of the current day are merged; those of finished days always are.
MANY = 32


@attrs.frozen(kw_only=True)
class Optimized:
    """Result of maintenance.

    :ivar days: number of days whose files were merged
    :ivar files: how many files the lake has
    :ivar removed: how many files were removed
    """

    days: int
    files: int
    removed: int


def optimize(lake: str | Path, *, keep: float | None = None, now: datetime | None = None) -> Optimized:
    """Merge small files, delete days that are not kept, and remove files that are not used any more.

    :param keep: delete records of days that ended longer ago, in seconds; None: keep all
    :param now: the time by which a day has finished, for tests
    :raises ConfigError: *target* is no lake of records, but another table
    :raises JournalError: another process changed the same files in the meantime
    """
    target = Lake.existing(lake)
    table, today = target.current(), (now or datetime.now(UTC)).date()
    target.check_records()
    with _explained(target):
        if keep is not None:
            table.delete(f"{PARTITION} < DATE '{today - timedelta(seconds=keep)}'")
            target.refresh()
        folders = list(due(target, today))
        for folder, files in folders:
            for some in together(target.store, [file.path for file in files]):
                target.replace([file for file in files if file.path in some], merged(target.store, folder, some, FILE))
        removed = target.vacuum()
    target.refresh()
    days = {day_of(f"{folder}/") for folder, _ in folders}
    return Optimized(days=len(days), files=len(target.files()), removed=removed)


def delete(lake: str | Path, where: str) -> int:
    """Delete records from a lake, and return how many; their bytes are removed by ``optimize`` a day later.

    :param where: an SQL condition on the columns of the lake
    :raises ConfigError: the condition is invalid
    """
    target = Lake.existing(lake)
    return delete_rows(target.store, target.current(), where)


def due(lake: Lake, today: date | None) -> Iterator[tuple[str, list[File]]]:
    """Yield the directory of each partition that has small files to merge, and these files.

    A file with a deletion vector (a list of its deleted rows) is left as it is: only the program that wrote the vector
    can remove it.

    :param today: the day that has not finished, which needs MANY files; None: each day with two small files is due
    """
    small: dict[str, list[File]] = {}
    deleted = lake.vectors()
    for file in lake.files():
        if file.size < FILE // 2 and file.path not in deleted:
            small.setdefault(folder_of(file.path), []).append(file)
    for folder, files in sorted(small.items()):
        if len(files) >= (2 if today is None or folder < f"{PARTITION}={today}" else MANY):
            yield folder, sorted(files, key=lambda file: file.path)


@contextmanager
def _explained(lake: Lake) -> Iterator[None]:
    try:
        with lake.store.explained():
            yield
    except DeltaError as error:
        raise JournalError(f"the lake {lake} could not be changed, try again: {plain(error)}") from error
