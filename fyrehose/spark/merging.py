"""Merge Parquet files of a lake stream by stream, so that the layout of layout.py stays and files hold few streams.

    in: files of a day, each in the order of streams      out: larger files, each with streams of its own

A row group is read when its streams are written, a few MiB at a time.  Only small row groups that several streams share
are kept in memory, at most SHARED bytes; otherwise the files are merged in several steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby

import attrs
import pyarrow as pa
from deltalake.transaction import AddAction
from pyarrow import compute, parquet

from fyrehose.spark.layout import (
    BUFFER,
    GROUP_BYTES,
    READ,
    SCHEMA,
    STRINGS,
    fitting,
    groups,
    lake_file,
    of_group,
    spans,
)
from fyrehose.spark.stores import LakeStore

#: Limit of the bytes of shared row groups that are in memory at a time, uncompressed.
SHARED = 128 << 20
#: The size in bytes, uncompressed, from which a shared row group is not kept in memory: it is read stream by stream.
_LARGE = 8 << 20
#: The number of values that PyArrow writes before it looks whether a page is full.
_PAGE = 1024
#: The columns by which files are sorted, and their types.
_ORDER = {"server": pa.string(), "stream": pa.string(), "seq": pa.int64()}


@attrs.frozen(slots=True)
class _Piece:
    """Records of one stream in one row group.

    :ivar records: the records; None: the next ones of the row group, which are read when the stream is written
    """

    server: str
    stream: str
    first: int
    rows: int
    file: int
    group: int
    records: pa.Table | None


def together(store: LakeStore, paths: Sequence[str], room: int = SHARED) -> Iterator[list[str]]:
    """Yield groups of files that are merged together, because what is in memory meanwhile fits into *room* bytes."""
    lot: list[str] = []
    shared = alone = 0
    for path in paths:
        with store.files().open_input_file(path) as opened:
            found = parquet.read_metadata(opened)
        more, most = 0, 0
        for group in map(found.row_group, range(found.num_row_groups)):
            # A page has up to PAGE values, and is read as a whole.  Of groups of one stream one at a time is read.
            size, page = (
                group.total_byte_size,
                min(group.total_byte_size, _PAGE * group.total_byte_size // group.num_rows),
            )
            if _stream_of(group) is not None:
                most = max(most, page)
            else:
                more += size if size < _LARGE else max(READ, page)
        if lot and shared + more + max(alone, most) > room:
            if len(lot) > 1:
                yield lot
            lot, shared, alone = [], 0, 0
        lot.append(path)
        shared, alone = shared + more, max(alone, most)
    if len(lot) > 1:
        yield lot


def merged(store: LakeStore, folder: str, paths: Sequence[str], largest: int) -> list[AddAction]:
    """Write the records of files of one partition into new files, and return their actions.

    :param largest: the size at which a file is full, in bytes
    """
    actions: list[AddAction] = []
    with ExitStack() as stack, store.explained():
        inputs = [
            stack.enter_context(
                # Without pre_buffer, by which PyArrow reads whole row groups.
                parquet.ParquetFile(
                    stack.enter_context(opened), read_dictionary=STRINGS, buffer_size=BUFFER, pre_buffer=False
                )
            )
            for opened in (store.files().open_input_file(path) for path in paths)
        ]
        pieces = sorted(
            (piece for number, file in enumerate(inputs) for piece in _pieces(number, file)),
            key=lambda piece: (piece.server, piece.stream, piece.first, piece.file, piece.group),
        )
        keyed = groupby(pieces, key=lambda piece: (piece.server, piece.stream))
        sizes = [sum(piece.rows for piece in of_stream) for _, of_stream in keyed]
        rest = _records(inputs, pieces)
        tables = _cut(rest, groups(sizes))
        records = next(tables, None)
        while records is not None:
            with lake_file(store, folder, "part-merged") as file:
                while records is not None and file.size < largest:
                    file.write(records)
                    records = None  # so that two row groups are not in memory at the same time
                    records = next(tables, None)
            actions.append(file.action(data_change=False))
    return actions


def _stream_of(group: parquet.RowGroupMetaData) -> tuple[str, str, int] | None:
    """Return the server, the stream and the first number of a row group; None if it has several streams."""
    known = {}
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema in ("server", "stream", "seq"):
            statistics = column.statistics
            if statistics is None or not statistics.has_min_max:
                return None
            known[column.path_in_schema] = statistics.min, statistics.max
    server, stream, seq = (known.get(name, (None, "")) for name in ("server", "stream", "seq"))
    return (server[0], stream[0], seq[0]) if server[0] == server[1] and stream[0] == stream[1] else None


def _pieces(number: int, file: parquet.ParquetFile) -> Iterator[_Piece]:
    """Yield the pieces of one file; pieces of shared row groups contain their records already."""
    for at in range(file.num_row_groups):
        group = file.metadata.row_group(at)
        one = _stream_of(group)
        if one is not None:
            yield _Piece(*one, group.num_rows, number, at, None)
            continue
        large = group.total_byte_size >= _LARGE
        schema = pa.schema([SCHEMA.field(name) for name in (_ORDER if large else SCHEMA.names)])
        records = file.read_row_group(at, columns=schema.names).select(schema.names).cast(schema)
        found = _by_stream(records := records.unify_dictionaries().combine_chunks())
        names = [(server, stream) for server, stream, _ in found]
        if large and names == sorted(set(names)):
            for server, stream, some in found:
                yield _Piece(server, stream, some["seq"][0].as_py(), some.num_rows, number, at, None)
            continue
        if names != sorted(set(names)):  # another program wrote this file, in another order
            whole = file.read_row_group(at).select(SCHEMA.names).cast(SCHEMA)
            records = whole.unify_dictionaries().combine_chunks()
            plain = pa.table({name: records[name].cast(kind) for name, kind in _ORDER.items()})
            found = _by_stream(records.take(compute.sort_indices(plain, [(name, "ascending") for name in _ORDER])))
        for server, stream, some in found:
            yield _Piece(server, stream, some["seq"][0].as_py(), some.num_rows, number, at, some)


def _by_stream(records: pa.Table) -> list[tuple[str, str, pa.Table]]:
    """Return the server, the stream and the records of each run of equal servers and streams."""
    servers, streams = (records[name].combine_chunks() for name in ("server", "stream"))
    return [
        (servers[begin].as_py(), streams[begin].as_py(), records.slice(begin, end - begin))
        for begin, end in spans(servers, streams)
    ]


def _records(inputs: Sequence[parquet.ParquetFile], pieces: Sequence[_Piece]) -> Iterator[pa.Table]:
    """Yield the records of pieces; large row groups are read a few records at a time, each in its own order."""
    readers: dict[tuple[int, int], _Reader] = {}
    for piece in pieces:
        if piece.records is not None:
            yield piece.records
            continue
        key = piece.file, piece.group
        if key not in readers:
            readers[key] = _Reader(of_group(inputs[piece.file], piece.group))
        yield from readers[key].take(piece.rows)


@attrs.define(eq=False)
class _Reader:
    """A reader of the records of one row group."""

    batches: Iterator[pa.RecordBatch]
    rest: pa.Table | None = None

    def take(self, rows: int) -> Iterator[pa.Table]:
        """Yield the next *rows* records."""
        while rows:
            if self.rest is None or not self.rest.num_rows:
                self.rest = pa.Table.from_batches([next(self.batches)]).select(SCHEMA.names).cast(SCHEMA)
            some = self.rest.slice(0, rows)
            self.rest = self.rest.slice(some.num_rows)
            rows -= some.num_rows
            yield some


def _cut(tables: Iterator[pa.Table], counts: Iterator[int]) -> Iterator[pa.Table]:
    """Divide the rows of *tables* into row groups of *counts* rows each, or more if that is too much in bytes."""
    rest: pa.Table | None = None
    for count in counts:
        missing = count
        while missing:
            parts: list[pa.Table] = []
            room = GROUP_BYTES
            while missing:
                table = rest = next(tables) if rest is None else rest
                fits = min(missing, fitting(table, room))
                if not fits and parts:
                    break
                parts.append(table.slice(0, max(1, fits)))
                used = parts[-1].num_rows
                rest = table.slice(used) if table.num_rows > used else None
                missing -= used
                room -= parts[-1]["payload"].nbytes
            yield pa.concat_tables(parts)
