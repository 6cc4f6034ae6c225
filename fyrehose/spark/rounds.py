"""Write a part of a journal as Parquet files of a lake, and describe them for the lake's log.

    in: a task: a part of a journal      out: its files, one for each partition, with the AddActions for the log

:func:`write` is all that an archive does with records.  It runs in tasks of Spark, or in the process itself; either
way records become columns by PyArrow and do not pass through Spark's rows.
"""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa
from deltalake.transaction import AddAction

from fyrehose.offline.places import Place
from fyrehose.spark import memory
from fyrehose.spark.columns import AN_HOUR, COLUMNS, DAY, Pieces, arrow_schema, numbers, texts
from fyrehose.spark.lake import folder_at
from fyrehose.spark.layout import fitting, groups, lake_file, spans
from fyrehose.spark.plan import Part
from fyrehose.spark.reading import PartReader
from fyrehose.spark.selection import Selection, time_of
from fyrehose.spark.stores import LakeStore

#: Size of a part of the journal, which becomes one file, in bytes.
PART = 64 << 20

_SCHEMA = arrow_schema(tuple(COLUMNS), encoded=True)
_NO_LIMIT = 1 << 62


@attrs.frozen(slots=True, kw_only=True)
class Task:
    """A part of a journal to write; can be pickled.

    :ivar server: the name of the journal in the lake
    :ivar lake: where the lake is
    :ivar name: beginning of the names of the files
    :ivar by_hour: whether the lake has a partition for each hour
    """

    place: Place
    part: Part
    server: str
    lake: LakeStore
    name: str
    by_hour: bool = False


@attrs.frozen(slots=True, kw_only=True)
class Written:
    """A file that a task wrote; can be pickled.

    :ivar action: the action for the lake's log that makes the file a part of the lake
    :ivar rows: how many records it has
    :ivar ends: the last number of each stream in it
    """

    action: AddAction
    rows: int
    ends: dict[str, int]


def write(task: Task) -> list[Written]:
    """Write the records of a part, sorted by stream and number, to one Parquet file for each partition.

    The files are durable when this returns; they are part of the lake when their actions are committed.

    :raises JournalCorrupt: durable bytes are damaged, or were deleted after the part was planned
    """
    reader = PartReader(task.place, task.part, Selection(), _SCHEMA, True, _NO_LIMIT, _NO_LIMIT)
    with memory.uncollected():
        length = AN_HOUR if task.by_hour else DAY
        return [
            _write_file(task, folder_at(time_of(period * length), task.by_hour), some)
            for pieces in reader.pieces()
            for period, some in pieces.by_period(length)
        ]


def _write_file(task: Task, folder: str, pieces: Pieces) -> Written:
    batch = pieces.batch()
    codes = numbers(pa.int32(), np.zeros(batch.num_rows, np.int32))
    server = pa.DictionaryArray.from_arrays(codes, texts([task.server]))
    table = pa.Table.from_batches([batch]).add_column(0, "server", server)
    streams = batch.column("stream")
    found = spans(streams)
    file, at = lake_file(task.lake, folder, task.name), 0
    with file:
        for count in groups(end - begin for begin, end in found):
            stop = at + count
            while at < stop:
                some = table.slice(at, stop - at)
                some = some.slice(0, max(1, fitting(some)))
                file.write(some)
                at += some.num_rows
    codes, seqs = np.from_dlpack(streams.indices), np.from_dlpack(batch.column("seq"))
    names = streams.dictionary.to_pylist()
    ends = {names[codes[end - 1]]: int(seqs[end - 1]) for _, end in found}
    return Written(action=file.action(data_change=True), rows=batch.num_rows, ends=ends)
