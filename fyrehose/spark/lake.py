"""The lake: the archived records of journals as one Delta table, which any tool can read.

    LAKE/_delta_log/...                             says which files belong to the lake
    LAKE/date=YYYY-MM-DD/part-ROUND-TASK.parquet    zstd, sorted by stream and number; in a lake by hours, below
                                                    date=YYYY-MM-DD/hour=H
    LAKE/_lost/...                                  a Delta table of the numbers that journals declare lost
    LAKE/_locks/IDENTITY                            held by the one archive of a journal that runs on this file system;
                                                    an object store has no locks

A round is committed with an application transaction of Delta: the journal's identity, and the position up to which the
lake has it.  So every record is in the lake exactly once or not at all, whenever an archive is killed; the next one
resumes at that position, and there is no second checkpoint that could disagree.  Two archives of one journal cannot
commit the same round, because their transactions conflict; transactions of different journals do not conflict.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from math import ceil
from pathlib import Path
from socket import gethostname
from typing import Any, TypeVar
from urllib.parse import urlsplit

import attrs
import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, PostCommitHookProperties, RemoveAction
from pyarrow import compute

from fyrehose.errors import ConfigError, JournalCorrupt, JournalError, JournalLocked
from fyrehose.journal.format import UNKNOWN
from fyrehose.offline.offsets import Offset
from fyrehose.offline.places import place
from fyrehose.offline.view import View
from fyrehose.spark.columns import TABLE
from fyrehose.spark.deltalog import LOG, damage_of, transactions, version_of, without_damaged_checkpoints
from fyrehose.spark.footers import bounds, check_files
from fyrehose.spark.gaps import streams_of
from fyrehose.spark.selection import EVERY, Selection, time_of
from fyrehose.spark.stores import LakeStore, plain, sync

log = logging.getLogger(__name__)

#: The columns by which a table is partitioned, with their values in the paths of its files: the day (UTC), and the hour
#: of that day in a table by hours.  All engines skip files by them; DuckDB does not by the statistics of times.
PARTITION, HOUR = "date", "hour"
_VALUES = re.compile(rf"({PARTITION}|{HOUR})=([^/]*)/")

_LOST = pa.schema(
    [("server", pa.string()), ("stream", pa.string()), ("first", pa.int64()), ("last", pa.int64()), ("at", pa.int64())]
)
#: Property of the table: the number of commits between two checkpoints of the log.
_INTERVAL = "delta.checkpointInterval"
#: Property of the table: how long files that it does not use any more stay; and Delta's default.
_RETENTION, _WEEK = "delta.deletedFileRetentionDuration", "interval 7 days"
_SETTINGS = {_INTERVAL: "100", "delta.logRetentionDuration": "interval 1 days", _RETENTION: "interval 1 days"}
#: Hours of the units of intervals, and an interval: numbers with units.
_HOURS = {"week": 168, "day": 24, "hour": 1, "minute": 1 / 60, "second": 1 / 3600, "millisecond": 0, "microsecond": 0}
_UNIT = re.compile(rf"(\d+)\s+({'|'.join(_HOURS)})s?\b", re.IGNORECASE)
#: Beginning of the names of the table's properties that hold servers' names; the identity of the journal follows.
_SERVER = "fyrehose.server."
#: Separates a journal's identity from a stream in the names of transactions.
_END = ".end/"
#: The beginning of the names of transactions that hold counts.
_COUNTED = "count/"
#: The version of Delta's reader protocol that is needed if columns have other names in the files.
_BY_COLUMN_MAPPING = 2
#: Property of the table: the columns whose least and largest values the log has for each file.
_MEASURED = "delta.dataSkippingStatsColumns"
#: Features of a table that do not change the meaning of its files, or that this module supports (vectors()).
FEATURES = frozenset({"deletionVectors", "timestampNtz", "vacuumProtocolCheck"})
#: Columns of the log's table of files, beside their statistics.
_FILE = {"path": pa.string(), "size_bytes": pa.int64(), "num_records": pa.int64()}
#: How often a commit is tried while other archives change the table.
_TRIES = 10

T = TypeVar("T")

#: Numbers that a journal declares lost: stream, first, last, and the position of the declaration.
Gap = tuple[str, int, int, int]


@attrs.frozen(slots=True, kw_only=True)
class File:
    """A Parquet file of the lake.

    :ivar path: relative to the lake
    :ivar size: in bytes
    :ivar rows: without those that a deletion vector deletes
    """

    path: str
    size: int
    rows: int


@attrs.frozen(slots=True, kw_only=True)
class Progress:
    """The progress of a journal in the lake.

    :ivar position: the lake has every record of the journal before it
    :ivar chain: the checksum of the last batch before it; None if that is unknown
    """

    position: int
    chain: int | None


@attrs.define(eq=False)
class Lake:
    """A lake in a directory, on this machine or on a shared file system, or in an object store.

    :ivar schema: the columns of a new table: those of archived records, or those of a typed table
    :ivar measured: the columns whose statistics the log has
    :ivar settings: further properties of a new table
    :ivar by_hour: whether the table has a partition for each hour, and a column with the hour; None: as it was created,
        and a new one has a partition for each day
    """

    store: LakeStore
    schema: pa.Schema = TABLE
    measured: Sequence[str] = ("server", "stream", "seq", "time")
    settings: Mapping[str, str] = attrs.field(factory=dict)
    by_hour: bool | None = None
    _table: DeltaTable | None = attrs.field(default=None, init=False)
    #: A version of the table, and results of reading its log, which are kept because each reading by delta-rs opens
    #: every entry since the checkpoint.
    _cache: tuple[int, dict[str, Any]] = attrs.field(factory=lambda: (-1, {}), init=False)

    @classmethod
    def at(cls, location: str | Path) -> Lake:
        """Return the lake at a path, ``file://`` or ``s3://`` URL, which need not exist yet.

        :raises ConfigError: it is another kind of URL
        """
        return cls(LakeStore.at(location))

    @classmethod
    def existing(cls, location: str | Path) -> Lake:
        """Return the lake at a path or URL; it must exist, so that a mistyped path is not read as an empty lake.

        :raises JournalError: there is no lake
        """
        lake = cls.at(location)
        if lake.table is None:
            raise JournalError(f"{lake} is no lake: nothing was archived there")
        return lake

    def __str__(self) -> str:
        return self.store.uri

    @property
    def table(self) -> DeltaTable | None:
        """Return the Delta table as of its first use, or of the last refresh; None if nothing was archived yet.

        :raises JournalCorrupt: its log is damaged
        """
        if self._table is None:
            self.refresh()
        return self._table

    def refresh(self) -> DeltaTable | None:
        """Read the present version of the Delta table, and return it.

        :raises JournalCorrupt: its log is damaged
        :raises JournalError: the table has features that this version does not support
        """
        try:
            with self.store.explained():
                table = self._table
                if table is not None:
                    table.update_incremental()
                else:
                    table = _opened(self.store)
        except DeltaError as error:
            if bad := without_damaged_checkpoints(self.store):
                log.warning(
                    "the log of the lake %s was read without %s, which %s damaged: every entry is there",
                    self,
                    ", ".join(bad),
                    "are" if len(bad) > 1 else "is",
                )
                self._table = None
                found = self.refresh()
                if (version := version_of(bad[-1])) is not None:  # write the last one again, to save time
                    with self.store.explained():
                        DeltaTable(self.store.uri, version, self.store.options).create_checkpoint()
                return found
            said = damage_of(self.store) or f"{plain(error)}; restore {self.store.below(LOG)} from a copy"
            raise JournalCorrupt(f"the log of the lake {self} is damaged: {said}") from error
        if table is not None:
            self._check_features(table)
        self._table = table
        return table

    def current(self) -> DeltaTable:
        """Read and return the present version of the table, which must exist."""
        table = self.refresh()
        assert table is not None
        return table

    def _cached(self, name: str, read: Callable[[], T]) -> T:
        """Return the result of *read*, called once for each version of the table; *name* is its key in the cache."""
        assert self.table is not None
        if self._cache[0] != (version := self.table.version()):
            self._cache = version, {}
        found = self._cache[1]
        if name not in found:
            found[name] = read()
        known: T = found[name]
        return known

    def _changed(self, change: Callable[[], T], tries: int = 1) -> T:
        """Return the result of *change*, which is called again if another program changes the table meanwhile.

        :raises JournalError: another program has changed the table in all of *tries* calls
        """
        while True:
            try:
                with self.store.explained():
                    return change()
            except CommitFailedError as error:
                tries -= 1
                if not tries:
                    raise JournalError(f"the lake {self} could not be changed, try again: {plain(error)}") from error

    def _check_features(self, table: DeltaTable) -> None:
        protocol = table.protocol()
        unknown = {*(protocol.reader_features or ())} - FEATURES
        if unknown or protocol.min_reader_version == _BY_COLUMN_MAPPING:
            names = ", ".join(sorted(unknown)) or "columnMapping"
            raise JournalError(
                f"the lake {self} needs the reader feature {names}, which this version does not support, so that its "
                "records could be read wrongly; drop the feature with the program that added it, or archive into a new "
                "lake"
            )

    def vectors(self) -> dict[str, Any]:
        """Return the rows that deletion vectors delete: sorted indexes of rows, by the path of the file."""
        if self.table is None or "deletionVectors" not in (self.table.protocol().reader_features or ()):
            return {}
        return self._cached("vectors", self._read_vectors)

    def _read_vectors(self) -> dict[str, Any]:
        assert self.table is not None
        found = {}
        for each in self.table.deletion_vectors():
            batch = pa.record_batch(each)
            for uri, kept in zip(batch["filepath"].to_pylist(), batch["selection_vector"], strict=True):
                mask = kept.values.to_numpy(zero_copy_only=False)
                found[self.store.relative(uri)] = np.flatnonzero(~mask)
        return found

    def create(self) -> None:
        """Create the lake, unless it exists.

        :raises ConfigError: it exists with other partitions
        """
        if self.refresh() is None:
            if not self.store.remote:
                self.store.directory.mkdir(parents=True, exist_ok=True)
            hour = [pa.field(HOUR, pa.int64())] if self.by_hour else []
            schema = Schema.from_arrow(pa.schema([*self.schema, *hour]))
            try:
                with self.store.explained():
                    DeltaTable.create(
                        self.store.uri,
                        schema,
                        mode="ignore",
                        partition_by=[PARTITION, *(field.name for field in hour)],
                        name="fyrehose",
                        configuration={**_SETTINGS, _MEASURED: ",".join(self.measured), **self.settings},
                        storage_options=self.store.options,
                    )
            except DeltaError:
                if self.refresh() is None:  # otherwise another archive was first, or the answer was lost
                    raise
        if self.by_hour not in (None, HOUR in self.partitions()):
            has = "day, and none for each hour" if self.by_hour else "hour"
            raise ConfigError(f"{self} has a partition for each {has}, as it was created: begin with a new one")

    def servers(self) -> dict[str, str]:
        """Return the names of the servers whose journals are in the lake, by the identity of the journal."""
        return {name[len(_SERVER) :]: value for name, value in self.properties().items() if name.startswith(_SERVER)}

    def partitions(self) -> list[str]:
        """Return the columns by which the table is partitioned, as it was created."""
        return [] if self.table is None else list(self.table.metadata().partition_columns)

    def properties(self) -> dict[str, str]:
        """Return the properties of the table."""
        return {} if self.table is None else dict(self.table.metadata().configuration)

    def server_of(self, identity: bytes, default: str = "") -> str:
        """Return the name of the server of a journal; *default* if the lake does not have the journal."""
        return self.servers().get(identity.hex(), default)

    def progress(self, identity: bytes) -> Progress | None:
        """Return the progress of a journal in the lake; None if the lake does not have the journal."""
        if self.table is None:
            return None
        return self._cached(identity.hex(), partial(self._read_progress, self.table, identity))

    def _read_progress(self, table: DeltaTable, identity: bytes) -> Progress | None:
        position = table.transaction_version(identity.hex())
        if position is None:
            return None
        chain = table.transaction_version(_chain_of(identity))
        return Progress(position=position, chain=chain if chain is not None and chain >= 0 else None)

    def admit(self, identity: bytes, server: str | None, default: str) -> str:
        """Give a journal a name in the lake, if it has none yet, and return its name.

        :param server: the name; None: the name that the journal has in the lake, or else ``default``
        :raises ConfigError: another journal has this name, or this journal has another name
        :raises JournalError: the journal has no identity
        """
        if identity == UNKNOWN:
            raise JournalError(
                "the journal has no identity, because an older version wrote it; start a server of this version with "
                "it once"
            )
        self.create()
        known = self.servers()
        name = server or known.get(identity.hex(), default)
        if known.get(identity.hex(), name) != name:
            raise ConfigError(
                f"the lake {self} has this journal under the name {known[identity.hex()]!r}, not {name!r}"
            )
        if name in {other for key, other in known.items() if key != identity.hex()}:
            raise ConfigError(
                f"the lake {self} has another journal of the server {name!r}; name this one with --server NAME"
            )
        if identity.hex() not in known:
            self.set_properties({f"{_SERVER}{identity.hex()}": name})
        return name

    def files(self, selection: Selection | None = None, server: str | None = None) -> list[File]:
        """Return the files of the log that may have selected records of the server."""
        found = self.actions()
        if selection is not None:
            found = found.filter(_may_match(found, selection))
        if server is not None:
            found = found.filter(may_have(found, "server", server, server))
        deleted = self.vectors()
        return [
            File(path=path, size=size, rows=(rows or 0) - len(deleted.get(path, ())))
            for path, size, rows in zip(*(found[name].to_pylist() for name in _FILE), strict=True)
        ]

    def totals(self) -> tuple[int, int]:
        """Return the number of files that the log names, and their size in bytes."""
        found = self.actions()
        return found.num_rows, compute.sum(found["size_bytes"]).as_py() or 0

    def actions(self) -> pa.Table:
        """Return a table with the path, the size and the statistics of each file that the log names."""
        if self.table is None:
            return pa.table({name: pa.array([], kind) for name, kind in _FILE.items()})
        return self._cached("actions", partial(_read_actions, self.table))

    def check(self, files: Sequence[File]) -> None:
        """Check that each file exists, and has the size that the log states.

        :raises JournalCorrupt: one is missing, or has another size
        """
        for file, size in zip(files, self.store.sizes([file.path for file in files]), strict=True):
            if size is None:
                raise JournalCorrupt(f"{self.store.below(file.path)} is missing from the lake; {_RESTORE}")
            if size != file.size:
                raise JournalCorrupt(
                    f"{self.store.below(file.path)} has {size} bytes, and the lake's log says {file.size}; {_RESTORE}"
                )

    def ends(self, identity: bytes) -> dict[str, int]:
        """Return the last number of each stream that was archived from a journal, even if its record was deleted."""
        prefix = _end_of(identity, "")
        found = {} if self.table is None else transactions(self.store)
        return {name.removeprefix(prefix): end for name, end in found.items() if name.startswith(prefix)}

    def counted(self) -> dict[str, int]:
        """Return the counts that commits have stored in the log, such as how many rows were dropped, by name."""
        found = {} if self.table is None else transactions(self.store)
        return {name.removeprefix(_COUNTED): count for name, count in found.items() if name.startswith(_COUNTED)}

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add columns to the table; in its existing rows, they are null.

        :raises JournalError: another program has changed the table
        """
        table = self.current()
        known = {field.name for field in table.schema().fields}
        new = [field for field in Schema.from_arrow(pa.schema(fields)).fields if field.name not in known]
        if new:
            self._changed(lambda: table.alter.add_columns(new))
            self.refresh()

    def check_records(self) -> None:
        """Check that this is the archive of a journal, and not a typed table or a table of another program.

        :raises ConfigError: it is another table
        """
        if not {field.name for field in self.current().schema().fields}.issuperset(TABLE.names):
            raise ConfigError(
                f"{self} is no archive of a journal, but another table; `tables` itself merges its tables"
            )

    def vacuum(self) -> int:
        """Remove the files that the table has not used for as long as its own property says; return how many.

        Files of killed rounds are removed, too; those of the last hour stay, because a round may be running.
        """
        table = self.current()
        interval = table.metadata().configuration.get(_RETENTION, _WEEK)
        parts = _UNIT.findall(interval) or _UNIT.findall(_WEEK)
        hours = max(1, ceil(sum(int(number) * _HOURS[unit.lower()] for number, unit in parts)))
        with self.store.explained():
            return len(table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True))

    def streams(self) -> set[str]:
        """Return the names of the streams that were archived; all of their records may be deleted."""
        found = {} if self.table is None else transactions(self.store)
        return {stream for _, mark, stream in (name.partition(_END) for name in found) if mark}

    def lost(self) -> list[tuple[str, str, int, int]]:
        """Return the ranges of numbers that the journals declare lost, as (server, stream, first, last)."""
        table = _opened(self.store.below("_lost"))
        if table is None:
            return []
        rows = table.to_pyarrow_table().to_pylist()
        return sorted({(row["server"], row["stream"], row["first"], row["last"]) for row in rows})

    def take_back(self, where: str) -> int:
        """Remove ranges of numbers from those that are declared lost; return how many ranges were removed.

        :param where: an SQL condition on server, stream, first and last
        :raises ConfigError: the condition is invalid
        """
        table = _opened(self.store.below("_lost"))
        return 0 if table is None else delete_rows(self.store, table, where)

    def commit(
        self,
        identity: bytes,
        before: Progress | None,
        after: Progress,
        files: Sequence[AddAction],
        gaps: Sequence[Gap] = (),
        about: dict[str, Any] | None = None,
        ends: Mapping[str, int] | None = None,
        *,
        counts: Mapping[str, int] | None = None,
        removed: Sequence[File] = (),
        schema: pa.Schema | None = None,
    ) -> None:
        """Commit a round durably: its files, and the journal's progress in the lake.

        :param before: the progress from which the round begins
        :param ends: the last number of each stream of the round
        :param about: shown in the history of the table
        :param counts: counts that become durable with the round, by name (:meth:`counted`)
        :param removed: files whose rows the round replaces
        :param schema: a schema that replaces the table's; then all files of the table are removed
        :raises JournalError: a file has other types than the table, or its statistics are wrong
        :raises JournalLocked: another archive of the journal has committed in the meantime
        """
        if gaps:
            self._record(identity, after, gaps)
        versions = {identity.hex(): after.position, _chain_of(identity): -1 if after.chain is None else after.chain}
        versions |= {_end_of(identity, stream): last for stream, last in (ends or {}).items()}
        versions |= {_COUNTED + name: number for name, number in (counts or {}).items()}
        properties = CommitProperties(
            custom_metadata={"fyrehose": json.dumps(about)},
            app_transactions=[Transaction(name, version) for name, version in versions.items()],
        )

        def change() -> None:
            table = self.current()
            if self.progress(identity) != before:
                if self.committed(identity, after, files):
                    return  # the answer of an object store was lost
                raise JournalLocked(f"another archive of this journal has committed to the lake {self}")
            version = table.version()
            declared = table.schema() if schema is None else Schema.from_arrow(schema)
            check_files(self.store, files, declared)
            table.create_write_transaction(
                [*files, *(() if schema is not None else _removes(removed))],
                "append" if schema is None else "overwrite",
                declared,
                self.partitions(),
                commit_properties=properties,
                post_commithook_properties=_hooks(table),
            )
            committed = self.current()
            _sync(self.store, committed, version)
            if committed.version() == version + 1:  # no other commit in between
                self._cached(identity.hex(), lambda: after)

        self._changed(change, _TRIES)

    def replace(self, files: Sequence[File], by: Sequence[AddAction]) -> None:
        """Replace files by others that have the same records, in one commit.

        :raises JournalError: another program has changed one of the files in the meantime, or a file has other types
            than the table
        """
        table = self.current()
        with self.store.explained():
            check_files(self.store, by, table.schema())
        deleted = self.vectors()
        # This finds changes by other programs until now; delta-rs finds later ones.
        known = {file.path for file in self.files() if file.path not in deleted}
        if not known.issuperset(file.path for file in files):
            raise JournalError(f"the lake {self} could not be changed: another program changed the files, try again")
        version = table.version()
        self._changed(
            lambda: table.create_write_transaction(
                [*by, *_removes(files, data_change=False)],
                "append",
                table.schema(),
                self.partitions(),
                post_commithook_properties=_hooks(table),
            )
        )
        _sync(self.store, self.current(), version)

    def committed(self, identity: bytes, after: Progress, files: Sequence[AddAction]) -> bool:
        """Return whether the table has these files and this progress, which means that their commit has succeeded."""
        table = self.refresh()
        if table is None or self.progress(identity) != after:
            return False
        known = self.actions()["path"]
        return bool(compute.all(compute.is_in(pa.array([file.path for file in files], pa.string()), known)).as_py())

    @contextmanager
    def locked(self, identity: bytes) -> Iterator[None]:
        """Hold the lock of one journal's archive during the context, if the file system has locks.

        An object store has no locks: there, of two archives of a journal, the one that commits second ends with an
        error.

        :raises JournalLocked: another archive of the journal holds it
        """
        if self.store.remote:
            yield
            return
        path = self.store.directory / "_locks" / identity.hex()
        path.parent.mkdir(exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise JournalLocked(f"another archive of this journal writes to the lake {self}") from error
            yield
        finally:
            os.close(fd)

    def _record(self, identity: bytes, after: Progress, gaps: Sequence[Gap]) -> None:
        """Add gaps to the table of lost numbers before the round is committed; adding them again changes nothing."""
        store, server = self.store.below("_lost"), self.server_of(identity)

        def change() -> None:
            table = _opened(store)
            known = None if table is None else table.transaction_version(identity.hex())
            new = [gap for gap in gaps if known is None or gap[3] >= known]
            if not new:
                return
            columns = [[server] * len(new), *map(list, zip(*new, strict=True))]
            arrays = [pa.array(values, field.type) for values, field in zip(columns, _LOST, strict=True)]
            write_deltalake(
                store.uri,
                pa.Table.from_arrays(arrays, schema=_LOST),
                mode="append",
                commit_properties=CommitProperties(app_transactions=[Transaction(identity.hex(), after.position)]),
                storage_options=store.options,
            )
            written = _opened(store)
            assert written is not None
            _sync(store, written, -1 if known is None else written.version() - 1)

        self._changed(change, _TRIES)  # also if the answer of an object store was lost

    def set_properties(self, properties: dict[str, str]) -> None:
        """Set properties of the table, beside those that it has."""
        self._changed(lambda: self.current().alter.set_table_properties(properties, raise_if_not_exists=False), _TRIES)
        self.refresh()


_RESTORE = "put it back from a copy, or archive into a new lake"


def _removes(files: Sequence[File], data_change: bool = True) -> list[RemoveAction]:
    now = time.time_ns() // 1_000_000
    return [RemoveAction(file.path, data_change, now, file.size, values_of(file.path)) for file in files]


def day_of(path: str) -> str:
    """Return the day in the path of a lake's file, such as 2026-01-31."""
    return path.rpartition(f"{PARTITION}=")[2][:10]


def folder_at(begin: datetime, by_hour: bool) -> str:
    """Return the directory of the partition that begins at a time."""
    return f"{PARTITION}={begin.date()}" + (f"/{HOUR}={begin.hour}" if by_hour else "")


def folder_of(path: str) -> str:
    """Return the directory of a lake's file, which is that of its partition."""
    return path.rpartition("/")[0]


def values_of(path: str) -> dict[str, str | None]:
    """Return the values of a file's partition, by column."""
    return dict(_VALUES.findall(path))


def lake_of(location: str | Path | Lake | None, journal: str | None) -> Lake | None:
    """Return the lake at a place; it need not exist yet if there is a journal.

    :param location: None: there is no lake
    :raises JournalError: the lake does not exist, or its log is damaged
    :raises ValueError: neither a lake nor a journal is given
    """
    if location is None and journal is None:
        raise ValueError("neither a lake nor a journal is given")
    if location is None or isinstance(location, Lake):
        return location
    return Lake.existing(location) if journal is None else Lake.at(location)


def beyond(lake: Lake | None, journal: str) -> tuple[View, Offset | None, str]:
    """Return a journal as it is now, the offset up to which a lake has its records, and the name of its server."""
    view, server = place(journal).view(), host_of(journal)
    if lake is None:
        return view, None, server
    known = lake.progress(view.identity)
    offset = None if known is None else Offset(known.position, view.identity, known.chain)
    return view, offset, lake.server_of(view.identity, server)


def streams_of_both(lake: Lake | None, journal: str | None) -> set[str]:
    """Return the names of the streams of a lake and of a journal."""
    found = set() if lake is None else lake.streams()
    return found if journal is None else found | streams_of(place(journal))


def host_of(journal: str) -> str:
    """Return the name of the host that has a journal, which is a path or a URL."""
    return (urlsplit(journal).hostname if "://" in journal else None) or gethostname()


def _chain_of(identity: bytes) -> str:
    """Return the name of the transaction that stores the checksum of a journal's last batch."""
    return f"{identity.hex()}.chain"


def _end_of(identity: bytes, stream: str) -> str:
    """Return the name of the transaction that stores the last number of a stream."""
    return f"{identity.hex()}{_END}{stream}"


def _may_match(files: pa.Table, selection: Selection) -> pa.Array:
    """Return a mask of the files that may have selected records, by their statistics."""
    start, end = selection.start, selection.end
    since, until = (None if bounds.time is None else time_of(bounds.time) for bounds in (start, end))
    named = (start.seqs.keys() | end.seqs.keys()) - {EVERY} if selection.streams is None else selection.streams
    chosen = _all(files, False)
    for stream in named:
        seqs = may_have(files, "seq", *selection.seqs(stream))
        chosen = compute.or_(chosen, compute.and_(may_have(files, "stream", stream, stream), seqs))
    if selection.streams is None:
        least, most = (files[name] if name in files.column_names else None for name in ("min.stream", "max.stream"))
        others = _all(files, True)
        if least is not None and most is not None:  # leave out files whose only stream is named
            one = compute.and_(compute.equal(least, most), compute.is_in(least, pa.array(sorted(named), pa.string())))
            others = compute.invert(compute.fill_null(one, False))
        chosen = compute.or_(chosen, compute.and_(others, may_have(files, "seq", *selection.seqs(EVERY))))
    return compute.and_(chosen, may_have(files, "time", since, until))


def may_have(files: pa.Table, column: str, first: Any, last: Any) -> pa.Array:
    """Return a mask of the files that may have values between two bounds, by their statistics; a bound may be None."""
    mask = _all(files, True)
    for values, bound, fits in zip(
        bounds(files, column), (last, first), (compute.less_equal, compute.greater_equal), strict=True
    ):
        if bound is not None and values is not None:
            found = fits(values, pa.scalar(bound, values.type))
            mask = compute.and_(mask, compute.fill_null(found, True))
    return mask


def _all(files: pa.Table, value: bool) -> pa.ChunkedArray:
    return pa.chunked_array([pa.repeat(pa.scalar(value), files.num_rows)])


def delete_rows(store: LakeStore, table: DeltaTable, where: str) -> int:
    """Delete the rows of a table that match an SQL condition, and return how many.

    :raises ConfigError: the condition is invalid
    :raises JournalError: another program changed the table meanwhile
    """
    try:
        with store.explained():
            return int(table.delete(where)["num_deleted_rows"] or 0)
    except CommitFailedError as error:
        raise JournalError(f"the lake {store} could not be changed, try again: {plain(error)}") from error
    except DeltaError as error:
        raise ConfigError(f"invalid condition {where!r}: {plain(error)}") from error


def _opened(store: LakeStore) -> DeltaTable | None:
    """Return the Delta table in a store; None if the store has no table."""
    with store.explained():
        if not DeltaTable.is_deltatable(store.uri, store.options):
            return None
        return DeltaTable(store.uri, storage_options=store.options)


def _read_actions(table: DeltaTable) -> pa.Table:
    return pa.table(table.get_add_actions(flatten=True))


def _hooks(table: DeltaTable) -> PostCommitHookProperties:
    """Return the options that let delta-rs remove old entries of the log only in a commit with a checkpoint.

    To find old entries, delta-rs examines every entry that the log still has; if every commit did that, commits would
    become slower with each entry.
    """
    interval = int(table.metadata().configuration.get(_INTERVAL) or _SETTINGS[_INTERVAL])
    makes_checkpoint = (table.version() + 2) % interval == 0
    return PostCommitHookProperties(cleanup_expired_logs=None if makes_checkpoint else False)


def _sync(store: LakeStore, table: DeltaTable, version: int) -> None:
    """Sync the log's entries after ``version`` to the disk, because delta-rs does not; object stores need no sync."""
    if store.remote:
        return
    log = store.directory / "_delta_log"
    for number in range(version + 1, table.version() + 1):
        sync(log / f"{number:020}.json")
    sync(log)
