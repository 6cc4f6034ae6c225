"""Find what a backfill reads, and what it replaces: the records of a range of time, and the rows of a table in it.

in: a table, a range of time
out: the parts of the lake and of the journal to read; the table's files, written again without rows of the range
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake.transaction import AddAction
from pyarrow import compute

from fyrehose.errors import ConfigError, JournalUnreachable
from fyrehose.offline.places import Place
from fyrehose.offline.view import View
from fyrehose.spark.counting import account_of
from fyrehose.spark.engines import Engine
from fyrehose.spark.fetching import read
from fyrehose.spark.lake import File, Lake, day_of
from fyrehose.spark.plan import Planner, resumed
from fyrehose.spark.selection import Bounds, Selection, time_of
from fyrehose.spark.typed.config import ACCEPTED, SYSTEM, TablesConfig, TypedTable
from fyrehose.spark.typed.writing import PART, JournalPart, LakePart, RewriteTask, rewrite


def check_rows(lakes: Sequence[Lake], since: int, until: int) -> None:
    """Refuse a backfill that would remove rows whose records neither the journal nor the lake has any more.

    :raises JournalUnreachable: a table has such rows
    """
    for lake in lakes:
        if any(inside.any() for _, inside in _inside(lake, since, until)):
            raise JournalUnreachable(
                f"the table {lake} has rows of records that were accepted before "
                f"{time_of(until):%Y-%m-%dT%H:%M:%S}, and neither the journal nor "
                "the lake has these any more: begin there, or name a lake that has them in the configuration"
            )


def sources_of(
    config: TablesConfig, source: Place, identity: bytes, table: TypedTable, since: int, until: int, stop: int
) -> tuple[list[JournalPart | LakePart], int | None]:
    """Return the parts to read for a backfill, and when the oldest record in them was accepted.

    Records are read from the lake up to its end, and from the journal behind that.
    """
    chosen = Selection(patterns=table.streams, start=Bounds(time=since), end=Bounds(time=until - 1))
    view, found = source.view(), list[JournalPart | LakePart]()
    begin, oldest = view.start, _oldest(source, view)
    if config.lake is not None:
        lake = Lake.existing(config.lake)
        known = lake.progress(identity)
        if known is None:
            raise ConfigError(f"the lake {lake} has nothing of the journal {config.journal}")
        begin = known.position
        every = lake.actions()
        if every.num_rows:
            oldest = compute.min(every["min.time"].cast(pa.int64())).as_py()
        server = lake.server_of(identity)
        files = lake.files(chosen, server)
        lake.check(files)
        found += _lake_parts(lake, server, chosen, [file.path for file in files])
    if stop < begin:
        raise JournalUnreachable(
            f"the tables of {config.output} are at position {stop}, and the lake is at {begin}: fill the "
            "tables before the backfill"
        )
    begin, _ = resumed(source, view, begin, config.skip_gaps)
    parts = Planner(source, chosen, PART, config.skip_gaps).parts(begin, stop) if stop > begin else []
    found += [JournalPart(place=source, part=part, selection=chosen, skip_gaps=config.skip_gaps) for part in parts]
    return found, oldest


def _oldest(source: Place, view: View) -> int | None:
    """Return when the oldest record of the journal was accepted; None if it has none."""
    at = view.start
    while at < view.mark:
        account = account_of(source, view, at, view.mark, 1)
        if account.since is not None:
            return account.since
        at = account.end
    return None


def without(lake: Lake, engine: Engine, since: int, until: int) -> tuple[list[AddAction], list[File]]:
    """Write files again without their rows of a range of time; return the new files, and the files to remove."""
    touched, tasks = [], []
    deleted = lake.vectors()
    for file, inside in _inside(lake, since, until):
        if not inside.any():
            continue
        touched.append(file)
        stays = ~inside
        if file.path in deleted:
            stays[deleted[file.path]] = False
        if stays.any():
            tasks.append(RewriteTask(store=lake.store, paths=(file.path,), chosen=stays))
    return [action for action in engine(rewrite, tasks) if action is not None], touched


def _inside(lake: Lake, since: int, until: int) -> Iterator[tuple[File, Any]]:
    """Yield the files of the days of a range of time, with a mask of their rows in it."""
    schema = pa.schema([(ACCEPTED, SYSTEM[ACCEPTED])])
    first, last = (str(time_of(at).date()) for at in (since, until - 1))
    for file in lake.files():
        if first <= day_of(file.path) <= last:
            batches = read(lake.store, [file.path], schema)
            times = [np.empty(0, np.int64), *(batch[0].cast(pa.int64()).to_numpy() for batch in batches)]
            every = np.concatenate(times)
            yield file, (every >= since) & (every < until)


def _lake_parts(lake: Lake, server: str, chosen: Selection, paths: Sequence[str]) -> Iterator[LakePart]:
    """Yield a part for each file of an archive that tasks read."""
    deleted = lake.vectors()
    for path in paths:
        here = {path: deleted[path]} if path in deleted else {}
        yield LakePart(store=lake.store, paths=(path,), server=server, selection=chosen, deleted=here)
