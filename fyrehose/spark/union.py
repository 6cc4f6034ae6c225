"""The durable records of a lake and its journal in plain SQL, as of each query: for DuckDB, and for Spark's catalog.

in: a lake, a journal      out: record batches of what is durable; the schema ``fyrehose`` of a connection to DuckDB

DuckDB asks a dataset for its rows whenever a query reads it, so :func:`attach` passes it one that looks at the lake and
the journal then: no view freezes.  The columns and the filters of the query are applied while files are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
from pyarrow import compute, dataset

from fyrehose.offline.offsets import Offsets
from fyrehose.offline.places import Place, place
from fyrehose.spark.columns import COLUMNS, TABLE, arrow_schema
from fyrehose.spark.fetching import chosen_of, records_of
from fyrehose.spark.lake import Lake, beyond, lake_of, streams_of_both
from fyrehose.spark.plan import ANEW, PIECE, Part, Planner, resumed
from fyrehose.spark.reading import PartReader
from fyrehose.spark.selection import Selection
from fyrehose.spark.statements import SCHEMA, TEXTS, views
from fyrehose.spark.stores import LakeStore

if TYPE_CHECKING:
    import duckdb

_EVERY = Selection()


@attrs.frozen(kw_only=True)
class DurableRecords:
    """The records that are durable at one moment; it can be pickled.

    :ivar store: where the lake is; None: there is no lake
    :ivar paths: the files of the lake
    :ivar deleted: indexes of the rows that deletion vectors delete, by file
    :ivar parts: the parts of the journal that the lake does not have
    :ivar server: the name of the journal's server
    :ivar match: a pattern of streams
    """

    store: LakeStore | None
    paths: Sequence[str] = ()
    deleted: Mapping[str, Any] = attrs.field(factory=dict)
    place: Place | None = None
    parts: Sequence[Part] = ()
    server: str = ""
    skip_gaps: bool = False
    match: str = "*"

    def batches(
        self, columns: Sequence[str] | None = None, wanted: dataset.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of the journal, and then those of the lake; none is there twice.

        Files of the lake stay for a day, but retention may delete a segment at any time, so these are read first.

        :param columns: the columns; None: all
        :param wanted: the records to yield
        :raises JournalCorrupt: durable bytes are missing or damaged
        """
        streams = _streams(self.match)
        wanted = streams if wanted is None else streams & wanted
        for part in self.parts:
            assert self.place is not None
            reader = PartReader(self.place, part, _chosen(self.match), arrow_schema(tuple(COLUMNS)), self.skip_gaps)
            yield from chosen_of(map(self._complete, reader.read()), columns, wanted)
        for path in self.paths:
            assert self.store is not None
            yield from records_of(self.store, path, self.deleted.get(path), columns, wanted)

    def _complete(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        days = batch["time"].cast(pa.timestamp("us")).cast(pa.date32(), safe=False)
        return pa.RecordBatch.from_arrays([pa.repeat(self.server, batch.num_rows), *batch.columns, days], schema=TABLE)


def durable_records(lake: Lake | None, journal: str | None, gaps: str = "error", match: str = "*") -> DurableRecords:
    """Return what is durable now.

    :param gaps: ``error``, or ``skip`` to ignore numbers that are missing from the journal
    :param match: a pattern of streams; one that begins with a dot matches the server's own streams, too
    :raises JournalCorrupt: the lake's log or a file is damaged, or the journal is another one than the lake's
    """
    found = DurableRecords(store=None, match=match)
    if lake is not None:
        lake.refresh()
        files = lake.files(Selection(streams=frozenset([match])) if "*" not in match else None)
        lake.check(files)
        found = attrs.evolve(found, store=lake.store, paths=[file.path for file in files], deleted=lake.vectors())
    if journal is None:
        return found
    # Look at the journal after the lake, so that it has everything that the lake does not have.
    source = place(journal)
    view, known, server = beyond(lake, journal)
    begin = view.start
    if known is not None:
        Offsets(source).check(known, view, ANEW)
        begin, _ = resumed(source, view, known.position, gaps == "skip")
    parts = Planner(source, _chosen(match), PIECE, gaps == "skip").parts(begin, view.mark)
    return attrs.evolve(found, place=source, parts=parts, server=server, skip_gaps=gaps == "skip")


def attach(
    connection: duckdb.DuckDBPyConnection, lake: str | Path | None, journal: str | None = None, *, gaps: str = "error"
) -> list[str]:
    """Give a connection to DuckDB the view ``fyrehose.records``, and a view of each stream, of what is durable.

    Each query sees what is durable when it begins.  Streams that appear later have no view until this is called again;
    ``fyrehose.records`` has their records.

    :param lake, journal, gaps: as in :func:`fyrehose.spark.table`
    :return: the names of the streams that have a view
    :raises JournalError: the lake does not exist, or its log is damaged
    """
    target = lake_of(lake, journal)
    streams = streams_of_both(target, journal)
    connection.register("_fyrehose", _Live(lambda: durable_records(target, journal, gaps)))
    connection.execute(f"create schema if not exists {SCHEMA}")
    records = f"select *, {TEXTS['duckdb']} as text from _fyrehose"
    connection.execute(f"create or replace view {SCHEMA}.records as {records}")
    shown = sorted(stream for stream in streams if not stream.startswith("."))
    for statement in views("duckdb", shown):
        connection.execute(statement)
    return shown


class Records:
    """The table function ``fyrehose_records(lake, journal, match)`` of Spark's SQL, which looks when a query runs.

    One task reads all records; the views of :func:`fyrehose.spark.catalog` are read by as many as there are files.
    """

    def eval(self, lake: pa.Array, journal: pa.Array, match: pa.Array) -> Iterator[pa.RecordBatch]:
        """Yield the records of a lake and a journal, one of which may be null, in the streams of a pattern.

        :raises JournalError: the lake does not exist, or something is damaged
        """
        source, pattern = journal[0].as_py(), match[0].as_py()
        target = lake_of(lake[0].as_py(), source)
        yield from durable_records(target, source, match="*" if pattern is None else pattern).batches()


class _Live(dataset.Dataset):  # type: ignore[misc]
    """A dataset whose rows are those of a new look for each query."""

    def __init__(self, look: Callable[[], DurableRecords]) -> None:
        self._look = look

    @property
    def schema(self) -> pa.Schema:
        return TABLE

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: dataset.Expression | None = None,  # noqa: A002
        **_: Any,
    ) -> dataset.Scanner:
        """Return a scanner of what is durable now, as DuckDB asks for it."""
        chosen = pa.schema([TABLE.field(name) for name in (TABLE.names if columns is None else columns)])
        return dataset.Scanner.from_batches(self._look().batches(chosen.names, filter), schema=chosen)


def _chosen(match: str) -> Selection:
    return _EVERY if match == "*" else Selection(patterns=(match,))


def _streams(match: str) -> dataset.Expression:
    """Return the condition on streams that a pattern stands for."""
    stream = compute.field("stream")
    if "*" not in match:
        return stream == match
    others = ~compute.starts_with(stream, ".")
    if match == "*":
        return others
    # Not match_like(), which finds no names that end with a backslash.
    found = compute.match_substring_regex(stream, rf"(?s)\A{'.*'.join(map(re.escape, match.split('*')))}\z")
    return found if match.startswith(".") else found & others
