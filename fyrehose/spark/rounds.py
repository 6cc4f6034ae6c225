"""Write a part of a journal as Parquet files of a lake, and describe them for the lake's log.

    in: a task: a part of a journal      out: its files, one for each day, with the AddActions for the log

This function is all that an archive does with records.  It runs in tasks of Spark, or in the process itself; either
way records become columns by PyArrow and do not pass through Spark's rows.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import date, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import pyarrow as pa
from deltalake.transaction import AddAction
from pyarrow import compute, parquet

from fyrehose.journal.offline.places import Place
from fyrehose.spark import memory
from fyrehose.spark.columns import COLUMNS, ENCODED, Pieces, arrow_schema
from fyrehose.spark.lake import PARTITION
from fyrehose.spark.plan import Part
from fyrehose.spark.reading import PartReader
from fyrehose.spark.selection import Selection
from fyrehose.spark.stores import LakeStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Size of a part, which becomes a file, in bytes of the journal.
PART = 64 << 20
#: Most records of a row group, which a reader skips if its statistics exclude it.
GROUP = 1 << 18

_SCHEMA = arrow_schema(tuple(COLUMNS), encoded=True)
_STRINGS = ["server", *(field.name for field in _SCHEMA if field.type == ENCODED)]
#: Statistics help to skip; those of payloads would only make files larger.
_MEASURED = ["server", "stream", "seq", "time", "source", "topic", "event_time"]
_NO_LIMIT = 1 << 62


@attrs.frozen(slots=True, kw_only=True)
class Task:
    """A part of a journal to write; can be pickled.

    :ivar server: the name of the journal in the lake
    :ivar lake: where the lake is
    :ivar name: beginning of the names of the files
    """

    place: Place
    part: Part
    server: str
    lake: LakeStore
    name: str


@attrs.frozen(slots=True, kw_only=True)
class Written:
    """A file that a task wrote; can be pickled.

    :ivar action: makes it a part of the lake
    :ivar rows: how many records it has
    :ivar ends: the last number of each stream in it
    """

    action: AddAction
    rows: int
    ends: dict[str, int]


#: Runs tasks, and yields the files of each.
Engine = Callable[[list[Task]], Iterable[list[Written]]]


def local(tasks: list[Task]) -> Iterator[list[Written]]:
    """Run tasks in this process, one after another."""
    with memory.kept():
        yield from map(write, tasks)


def on(spark: SparkSession) -> Engine:
    """Return the engine that runs tasks by Spark."""
    return lambda tasks: spark.sparkContext.parallelize(tasks, len(tasks)).map(_write_in_worker).collect()


def _write_in_worker(task: Task) -> list[Written]:
    memory.prepare_worker()
    return write(task)


def write(task: Task) -> list[Written]:
    """Write the records of a part, sorted by stream and number, to one Parquet file for each day.

    The files are durable when this returns; they are part of the lake when their actions are committed.

    :raises JournalCorrupt: durable bytes are damaged, or were deleted after the part was planned
    """
    reader = PartReader(task.place, task.part, Selection(), _SCHEMA, True, _NO_LIMIT, _NO_LIMIT)
    return [_write_day(task, day, of_day) for pieces in reader.pieces() for day, of_day in pieces.by_day()]


def _write_day(task: Task, day: int, pieces: Pieces) -> Written:
    when = str(date(1970, 1, 1) + timedelta(day))
    # A task that runs again, while it is not known to have ended, must not touch the file of the first run.
    path = f"{PARTITION}={when}/{task.name}-{uuid.uuid4().hex[:12]}.parquet"
    batch = pieces.batch()
    server = pa.DictionaryArray.from_arrays(pa.array(np.zeros(batch.num_rows, np.int32)), pa.array([task.server]))
    table = pa.Table.from_batches([batch]).add_column(0, "server", server)
    with task.lake.writing(path) as file:
        parquet.write_table(
            table,
            file,
            row_group_size=GROUP,
            compression="zstd",
            use_dictionary=_STRINGS,
            column_encoding={"seq": "DELTA_BINARY_PACKED", "time": "DELTA_BINARY_PACKED"},
            write_statistics=_MEASURED,
            write_page_checksum=True,
            store_schema=False,
        )
        size = file.tell()
    action = AddAction(
        path=path,
        size=size,
        partition_values={PARTITION: when},
        modification_time=time.time_ns() // 1_000_000,
        data_change=True,
        stats=statistics(table),
    )
    seqs = batch.column("seq").to_numpy()
    ends = {stream: int(seqs[end - 1]) for stream, _, end in spans(batch.column("stream"))}
    return Written(action=action, rows=batch.num_rows, ends=ends)


def spans(streams: pa.DictionaryArray) -> Iterator[tuple[str, int, int]]:
    """Yield each stream of a sorted column, with the index of its first record, and the index behind its last one."""
    codes, names = streams.indices.to_numpy(), streams.dictionary.to_pylist()
    cuts = [0, *(np.flatnonzero(codes[1:] != codes[:-1]) + 1).tolist(), len(codes)]
    for begin, end in pairwise(cuts):
        yield names[codes[begin]], begin, end


def statistics(table: pa.Table) -> str:
    """Return the statistics of a file for Delta's log: those by which readers skip files."""
    streams = table["stream"].unique().to_pylist()
    seq, times = (compute.min_max(table[name].combine_chunks()) for name in ("seq", "time"))
    least = {"stream": min(streams), "seq": seq["min"].as_py(), "time": _text(times["min"])}
    most = {"stream": max(streams), "seq": seq["max"].as_py(), "time": _text(times["max"])}
    server = table["server"][0].as_py()
    return json.dumps(
        {
            "numRecords": table.num_rows,
            "minValues": {"server": server} | least,
            "maxValues": {"server": server} | most,
            "nullCount": dict.fromkeys(("server", "stream", "seq", "time"), 0),
        },
        ensure_ascii=False,
    )


def _text(moment: Any) -> str:
    return str(moment.as_py().isoformat(timespec="microseconds").replace("+00:00", "Z"))
