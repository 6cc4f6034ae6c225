"""Merge Parquet files of a lake stream by stream, so that the layout of layout.py stays and files hold few streams.

    in: files of a day, each in the order of streams      out: larger files, each with streams of its own

A row group of one stream is read when that stream is written.  Only row groups that several streams share are kept in
memory, at most SHARED bytes; otherwise the files are merged in several steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby

import attrs
import pyarrow as pa
from deltalake.transaction import AddAction
from pyarrow import compute, parquet

from fyrehose.spark.layout import SCHEMA, STRINGS, LakeFile, groups, spans
from fyrehose.spark.stores import LakeStore

#: Limit of the bytes of shared row groups that are in memory at a time, uncompressed.
SHARED = 128 << 20
#: The columns by which files are sorted, and their types.
_ORDER = {"server": pa.string(), "stream": pa.string(), "seq": pa.int64()}


@attrs.frozen(slots=True)
class _Piece:
    """Records of one stream in one row group.

    :ivar records: the records; None: the whole row group, which is read when the stream is written
    """

    server: str
    stream: str
    first: int
    rows: int
    file: int
    group: int
    records: pa.Table | None


def together(store: LakeStore, paths: Sequence[str], room: int = SHARED) -> Iterator[list[str]]:
    """Yield groups of files that are merged together, because their shared row groups fit into *room* bytes."""
    lot: list[str] = []
    total = 0
    for path in paths:
        with store.files().open_input_file(path) as opened:
            found = parquet.read_metadata(opened)
            every = [found.row_group(number) for number in range(found.num_row_groups)]
            size = sum(group.total_byte_size for group in every if _stream_of(group) is None)
        if lot and total + size > room:
            if len(lot) > 1:
                yield lot
            lot, total = [], 0
        lot.append(path)
        total += size
    if len(lot) > 1:
        yield lot


def merged(store: LakeStore, day: str, paths: Sequence[str], largest: int) -> list[AddAction]:
    """Write the records of files of one day into new files, and return their actions.

    :param largest: the size at which a file is full, in bytes
    """
    actions: list[AddAction] = []
    with ExitStack() as stack, store.explained():
        inputs = [
            stack.enter_context(parquet.ParquetFile(stack.enter_context(opened), read_dictionary=STRINGS))
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
        for first in tables:
            with LakeFile(store, day, "part-merged") as file:
                file.write(first)
                while file.size < largest and (records := next(tables, None)) is not None:
                    file.write(records)
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
        records = file.read_row_group(at).select(SCHEMA.names).cast(SCHEMA).unify_dictionaries().combine_chunks()
        found = _by_stream(records)
        names = [(server, stream) for server, stream, _ in found]
        if names != sorted(set(names)):  # another program wrote this file, in another order
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
    for piece in pieces:
        if piece.records is not None:
            yield piece.records
        else:
            yield inputs[piece.file].read_row_group(piece.group).select(SCHEMA.names).cast(SCHEMA)


def _cut(tables: Iterator[pa.Table], counts: Iterator[int]) -> Iterator[pa.Table]:
    """Divide the rows of *tables* into tables of *counts* rows each."""
    rest: pa.Table | None = None
    for count in counts:
        parts, missing = [], count
        while missing:
            table = next(tables) if rest is None else rest
            parts.append(table.slice(0, missing))
            rest = table.slice(missing) if table.num_rows > missing else None
            missing -= parts[-1].num_rows
        yield pa.concat_tables(parts)
