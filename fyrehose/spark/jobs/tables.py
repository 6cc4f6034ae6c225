"""``tables``: keep typed Delta tables up to date with a journal, each event exactly once.

    journal -> range of positions -> tasks extract columns -> files -> one commit for each table, with its position

The position that a table has reached is in its own log, as an application transaction, like that of an archive: there
is no checkpoint that could disagree with it.  A kill between two commits leaves one table ahead of another; the next
round fills only the tables that are behind, up to the position of the others.

Aggregates follow the versions of their table.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import numpy as np
import pyarrow as pa
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType
from pyarrow import compute

from fyrehose.errors import ConfigError, JournalCorrupt, JournalError, JournalUnreachable
from fyrehose.offline.places import place
from fyrehose.offline.view import View
from fyrehose.spark import memory
from fyrehose.spark.counting import Behind, account_of
from fyrehose.spark.engines import Engine, locally, on_spark
from fyrehose.spark.fetching import read
from fyrehose.spark.footers import CUT, bounds
from fyrehose.spark.jobs.optimize import FILE, due
from fyrehose.spark.lake import File, Lake, Progress, host_of, may_have
from fyrehose.spark.plan import Planner, check, resumed
from fyrehose.spark.repeating import Done, RoundJob
from fyrehose.spark.selection import Selection, microseconds, time_of
from fyrehose.spark.stores import LakeStore, plain
from fyrehose.spark.typed import windows
from fyrehose.spark.typed.backfilling import check_rows, sources_of, without
from fyrehose.spark.typed.config import ACCEPTED, CHECKS, QUARANTINE, ROWS, SYSTEM, TablesConfig, TypedTable, type_of
from fyrehose.spark.typed.extraction import MOST
from fyrehose.spark.typed.keys import RecentKeys
from fyrehose.spark.typed.summaries import Summary
from fyrehose.spark.typed.writing import (
    CHECKED,
    MEASURED,
    PART,
    QUARANTINED,
    Filled,
    FillTask,
    JournalPart,
    LakePart,
    RewriteTask,
    Target,
    TypedFile,
    checked,
    digests,
    fill,
    rewrite,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Size of a round, in bytes of the journal.
ROUND = 256 << 20
#: Size in bytes above which a table is not written again to give a column a wider type.
WIDEN = 1 << 30
#: The number of files from which they are merged.
MANY = 32
#: Property of a Delta table: whether it has a change data feed.
_FEED = "delta.enableChangeDataFeed"
#: How often the tasks of a round may try to agree on types before this is an error.
_TRIES = 20
#: The types from which a column can be declared wider, by the wider type; the digits of a decimal are left out.
_NARROWER = {"double": {"long"}, "decimal": {"long"}, "string": {"long", "double", "boolean", "decimal"}}


@attrs.frozen(kw_only=True)
class TableState:
    """The numbers of rows of one table.

    :ivar rows: how many rows were added by this run
    :ivar counts: number of rows of all runs, by outcome; empty for a quarantine or an aggregate
    """

    name: str
    rows: int
    counts: Mapping[str, int]


@attrs.frozen(kw_only=True)
class TablesState:
    """State of a run, for its metrics.

    :ivar output: where the tables are
    """

    output: str
    done: Done
    behind: Behind
    tables: list[TableState]


def fill_tables(
    spark: SparkSession | None,
    config: TablesConfig,
    *,
    follow: bool = False,
    every: float = 10.0,
    round_bytes: int = ROUND,
    optimize_every: float = 3600.0,
    progress: Callable[[Done, View], object] = lambda done, view: None,
    monitor: Callable[[TablesState], object] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> list[TableState]:
    """Fill the tables with the events of the journal; with ``follow``, continue until ``stop()``.

    :param spark: the session whose tasks write; None: this process writes, without Spark and Java
    :param every: interval of rounds with ``follow``, in seconds; a full round begins earlier
    :param round_bytes: size of a round, in bytes of the journal
    :param optimize_every: merge small files this often with ``follow``, in seconds; 0: never
    :param progress: called before the first round and after each
    :param monitor: called with the state at these times, too, and every few seconds while there is nothing to fill
    :raises ConfigError: a table has other columns than the configuration, or belongs to another journal
    :raises ExpectationFailed: a row does not meet an expectation that must be met; its round is not committed
    :raises JournalCorrupt: data is damaged, or was deleted before the tables had it
    :raises JournalLocked: another run writes to one of the tables
    """
    with opened(spark, config, round_bytes=round_bytes, optimize_every=optimize_every, monitor=monitor) as run:
        run.run(follow, every, progress, stop)
        return run.states()


@contextmanager
def opened(
    spark: SparkSession | None, config: TablesConfig, *, round_bytes: int = ROUND, **more: Any
) -> Iterator[TablesRun]:
    """Open the tables of a configuration, create them if necessary, and lock them against other runs.

    :param more: further attributes of the run
    """
    source = place(config.journal)
    run = TablesRun(
        journal=config.journal,
        target=config.output,
        source=source,
        identity=source.view().identity,
        round_bytes=round_bytes,
        subscription=config.subscription,
        config=config,
        engine=locally if spark is None else on_spark(spark),
        **more,
    )
    with ExitStack() as stack:
        stack.callback(memory.release)
        for lake in run.lakes():
            stack.enter_context(lake.locked(run.identity))
        run.load()
        yield run


@attrs.define(eq=False)
class _Output:
    """A Delta table with the rows of a typed table, its quarantine or its checks, and its position in the journal.

    :ivar before: the committed progress
    :ivar position: all records of the journal before this position are extracted; those after ``before`` gave no row to
        commit
    :ivar fields: the types of columns that are not declared
    :ivar fixed: the columns of ``fields`` that cannot get a wider type
    """

    table: TypedTable
    lake: Lake
    kind: str
    before: Progress | None = None
    position: int = 0
    chain: int | None = None
    fields: dict[str, str] = attrs.field(factory=dict)
    fixed: set[str] = attrs.field(factory=set)
    counts: Counter[str] = attrs.field(factory=Counter)
    keys: RecentKeys | None = None
    rows: int = 0

    @property
    def reached(self) -> Progress:
        return Progress(position=self.position, chain=self.chain)

    @property
    def name(self) -> str:
        return self.table.names[self.kind]


@attrs.define(eq=False, kw_only=True)
class TablesRun(RoundJob[TablesState]):
    """A run that fills the tables of one configuration; see :func:`opened`.

    :ivar part: the size of the part of a task, in bytes of the journal
    :ivar widen_below: a column gets a wider type only in tables that are smaller than this, in bytes
    :ivar merge_from: the number of files from which the files of a table are merged
    """

    config: TablesConfig
    engine: Engine
    part: int = PART
    widen_below: int = WIDEN
    merge_from: int = MANY
    outputs: list[_Output] = attrs.field(factory=list, init=False)
    summaries: list[Summary] = attrs.field(factory=list, init=False)
    done: Done = attrs.field(factory=lambda: Done(0), init=False)
    #: whether a step has failed, so that the state of the tables has to be read again
    _doubtful: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        for table in self.config.tables:
            schemas = {ROWS: table.schema, QUARANTINE: QUARANTINED, CHECKS: CHECKED}
            for kind, name in table.names.items():
                settings = {_FEED: "true"} if kind == ROWS and table.change_feed else {}
                measured = ("time",) if kind == CHECKS else MEASURED
                lake = self._lake(name, schemas[kind], measured, settings, table.by_hour if kind == ROWS else None)
                if (feed := settings.get(_FEED, "false")) != lake.properties().get(_FEED, "false"):
                    lake.set_properties({_FEED: feed})
                self.outputs.append(_Output(table, lake, kind))
        for aggregate in self.config.aggregates:
            of = next(each for each in self.outputs if each.table.name == aggregate.table and each.kind == ROWS)
            schema = windows.schema_of_aggregate(aggregate, of.table)
            lake = self._lake(aggregate.name, schema, (windows.WINDOW,))
            self.summaries.append(Summary(aggregate, of.table, of.lake, lake, schema, self.identity, self.engine))

    def _lake(
        self,
        name: str,
        schema: pa.Schema,
        measured: Sequence[str] = MEASURED,
        settings: Mapping[str, str] = MappingProxyType({}),
        by_hour: bool | None = None,
    ) -> Lake:
        lake = Lake(LakeStore.at(self.config.output).below(name), schema, measured, settings, by_hour)
        lake.create()
        others = set(lake.servers()) - {self.identity.hex()}
        if others:
            raise ConfigError(
                f"the table {lake} has the events of another journal (identity {min(others)}); choose another output"
            )
        lake.admit(self.identity, None, host_of(self.config.journal))
        return lake

    def lakes(self) -> list[Lake]:
        """Return the lakes of all tables."""
        return [*(each.lake for each in self.outputs), *(each.lake for each in self.summaries)]

    def load(self) -> None:
        """Read from the tables which positions they have reached, and which columns they have."""
        view = self.source.view()
        for output in self.outputs:
            output.lake.refresh()
            output.before = output.lake.progress(self.identity)
            output.position = view.start if output.before is None else output.before.position
            output.chain = None if output.before is None else output.before.chain
            output.counts = Counter(output.lake.counted())
            output.keys = None
            if output.kind == ROWS:
                main = output
                self._load_columns(output)
            elif output.kind == CHECKS and output.before is None:
                # Begin where the rows are, and not with the whole journal; durably, before a round can be killed.
                output.position, output.chain, output.before = main.position, main.chain, main.reached
                output.lake.commit(self.identity, None, main.reached, [])
        for summary in self.summaries:
            summary.load()
        self.done.position = self._reached()
        super().settle()  # register the subscription, so that retention waits for the first round
        self._doubtful = False

    def _reached(self) -> int:
        """Return the position that all tables have reached."""
        return min(output.position for output in self.outputs)

    def _load_columns(self, output: _Output) -> None:
        types = _types(output.lake)
        declared = {column.name: column.type for column in output.table.columns}
        wider = {name: kind for name, kind in declared.items() if types.get(name, kind) != kind}
        for name, kind in wider.items():
            if _plain(types[name]) not in _NARROWER.get(_plain(kind), ()):
                raise ConfigError(
                    f"the column {name!r} of the table {output.lake} is {types[name]}, and {kind} in the "
                    "configuration; give the column another name, or fill a new table"
                )
        if wider and not self._rewritten(output, wider):
            raise ConfigError(
                f"the columns {', '.join(wider)} of the table {output.lake} have values that do not fit into the types "
                "of the configuration; declare wider types, or give the columns other names"
            )
        output.lake.add_columns([field for field in output.table.schema if field.name not in types])
        others = {*declared, *SYSTEM, *output.lake.partitions()}
        output.fields = {name: kind for name, kind in types.items() if name not in others}
        output.fixed = set()

    def states(self) -> list[TableState]:
        """Return the numbers of rows of each table."""
        of_events = [each for each in self.outputs if each.kind != CHECKS]
        found = [TableState(name=each.name, rows=each.rows, counts=each.counts) for each in of_events]
        return found + [TableState(name=each.aggregate.name, rows=each.rows, counts={}) for each in self.summaries]

    def step(self, every: float | None, progress: Callable[[Any, View], object]) -> float | None:
        """Read the state of the tables again if the last step has failed, and do the next step."""
        try:
            if self._doubtful:
                self.load()
            return super().step(every, progress)
        except JournalUnreachable:
            self._doubtful = True
            raise

    def state(self, behind: Behind) -> TablesState:
        return TablesState(output=self.config.output, done=self.done, behind=behind, tables=self.states())

    def copy(self, view: View) -> None:
        """Fill the tables that are behind, until they reach the others or the round is full."""
        for output in self.outputs:
            position, _ = resumed(self.source, view, output.position, self.config.skip_gaps)
            if position != output.position:
                output.position, output.chain = position, None
        at = self._reached()
        due = [output for output in self.outputs if output.position == at]
        limit = min([view.mark, *(output.position for output in self.outputs if output.position > at)])
        check(self.source, view, at, limit)
        account = account_of(self.source, view, at, limit, self.round_bytes)
        for output in due:
            if None not in (output.chain, account.continued) and output.chain != account.continued:
                raise JournalCorrupt(
                    f"{self.config.journal} does not continue at position {at}, where the table {output.lake} ends: it "
                    "was put back from another copy; fill new tables"
                )
        mains = [each for each in self.outputs if each.kind == ROWS and any(each.table is one.table for one in due)]
        chosen = Selection(patterns=tuple(dict.fromkeys(each for main in mains for each in main.table.streams)))
        planner = Planner(self.source, chosen, self.part, self.config.skip_gaps)
        sources = [
            JournalPart(place=self.source, part=part, selection=chosen, skip_gaps=self.config.skip_gaps)
            for part in (planner.parts(at, account.end) if account.rows else ())
        ]
        about = {"start": at, "end": account.end}
        for main, filled in zip(mains, self._fitting(mains, due, sources, f"part-{at:016x}"), strict=True):
            for output in [each for each in due if each.table is main.table]:
                self._commit(output, filled, Progress(position=account.end, chain=account.chain), about)
        for output in due:
            output.position, output.chain = account.end, account.chain
        self.done.position = account.end
        self.idle()

    def _fitting(
        self, mains: Sequence[_Output], due: Sequence[_Output], sources: Sequence[JournalPart | LakePart], name: str
    ) -> list[list[Filled]]:
        """Let tasks fill the tables; give columns wider types if the rows need that."""
        while True:
            filled = self._filled(mains, due, sources, name)
            # A column that cannot get a wider type stays as it is; values that do not fit are kept in ``rescued``.
            if all(self._widen(main, each) for main, each in zip(mains, filled, strict=True)):
                return filled

    def _filled(
        self, mains: Sequence[_Output], due: Sequence[_Output], sources: Sequence[JournalPart | LakePart], name: str
    ) -> list[list[Filled]]:
        """Let tasks fill the tables, until all agree on the types of columns; return the results for each table."""
        targets = [_target(main, due) for main in mains]
        results: list[list[Filled]] = [[] for _ in sources]
        again = list(range(len(sources)))
        for _ in range(_TRIES):
            tasks = [
                FillTask(source=sources[number], targets=tuple(targets), name=f"{name}-{number:05}") for number in again
            ]
            for number, result in zip(again, self.engine(fill, tasks), strict=True):
                results[number] = result
            for index, target in enumerate(targets):
                agreed = _agreed(target.known, [result[index].fields for result in results])
                targets[index] = attrs.evolve(target, known=agreed)
            again = [
                number
                for number, result in enumerate(results)
                if any(
                    not one.fields.items() <= target.known.items() for one, target in zip(result, targets, strict=True)
                )
            ]
            if not again:
                return [[result[index] for result in results] for index in range(len(targets))]
        raise JournalError("the tasks of a round do not agree on the types of columns; declare the columns")

    def _commit(self, output: _Output, filled: Sequence[Filled], after: Progress, about: Mapping[str, Any]) -> None:
        """Commit the files of a round, unless there is nothing to commit."""
        counts: Counter[str] = Counter()
        try:
            if output.kind == QUARANTINE:
                files = [file for each in filled for file in each.quarantined]
            elif output.kind == CHECKS:
                file = checked(output.lake.store, output.table, filled, about["start"])
                files = [] if file is None else [file]
            else:
                files, repetitions = self._without_repetitions(output, [file for each in filled for file in each.files])
                for changes in (*(each.counts for each in filled), repetitions):
                    counts.update(changes)
                self._grow(output, filled)
            total = output.counts + counts
            changed = {name: count for name, count in total.items() if count != output.counts[name]}
            if files or changed:
                actions = [file.action for file in files]
                about = {**about, "counts": changed}
                output.lake.commit(self.identity, output.before, after, actions, about=about, counts=changed)
                output.before = after
        except BaseException:
            output.keys = None  # the keys include rows that are not committed
            raise
        output.counts = total
        output.rows += sum(file.rows for file in files)

    def _grow(self, output: _Output, filled: Sequence[Filled]) -> None:
        """Add the columns for fields that appeared in a round for the first time."""
        new = {name: kind for each in filled for name, kind in each.fields.items() if name not in output.fields}
        if new:
            output.lake.add_columns([pa.field(name, type_of(kind)) for name, kind in new.items()])
            log.info("the table %s has new columns: %s", output.lake, ", ".join(sorted(new)))
        output.fields |= new

    def _widen(self, output: _Output, filled: Sequence[Filled]) -> bool:
        """Give columns wider types if rows need that; return False if a column cannot get one.

        All files of the table are written again, in a separate commit, which does not move the position.
        """
        agreed = {name: kind for each in filled for name, kind in each.fields.items()}
        wider = {name: agreed[name] for name, kind in output.fields.items() if agreed.get(name, kind) != kind}
        if not wider:
            return True
        if output.lake.totals()[1] >= self.widen_below or not self._rewritten(output, wider):
            output.fixed |= set(wider)
            return False
        output.fields |= wider
        return True

    def _rewritten(self, output: _Output, wider: Mapping[str, str]) -> bool:
        """Write a table again with wider types, in one commit; return False if a value does not fit into its type."""
        lake = output.lake
        schema = _schema({**_types(lake), **wider})
        deleted = lake.vectors()
        tasks = []
        for file in lake.files():
            gone = deleted.get(file.path, np.empty(0, np.int64))
            stays = np.ones(file.rows + len(gone), bool)
            stays[gone] = False
            if file.rows:
                tasks.append(RewriteTask(store=lake.store, paths=(file.path,), schema=schema, chosen=stays))
        actions = self.engine(rewrite, tasks)
        if None in actions:
            return False
        before = output.before or output.reached
        lake.commit(self.identity, output.before, before, actions, about={"widened": dict(wider)}, schema=schema)
        output.before = before
        log.info("the table %s has wider columns: %s", lake, ", ".join(sorted(wider)))
        return True

    def _without_repetitions(
        self, output: _Output, files: Sequence[TypedFile], keys: RecentKeys | None = None
    ) -> tuple[list[TypedFile], dict[str, int]]:
        """Return files without events that were sent again, and the numbers of dropped rows for the counts."""
        if not output.table.key or not files:
            return list(files), {}
        if keys is None:
            keys = output.keys = output.keys or self._recent(output)
        masks = [keys.add(file.keys, file.times) for file in files]
        tasks = [
            RewriteTask(store=output.lake.store, paths=(file.action.path,), chosen=mask)
            for file, mask in zip(files, masks, strict=True)
            if not mask.all()
        ]
        made = iter(self.engine(rewrite, tasks))
        found = []
        for file, mask in zip(files, masks, strict=True):
            action = file.action if mask.all() else next(made)
            if action is not None:
                found.append(TypedFile(action=action, rows=int(mask.sum())))
        gone = sum(int((~mask).sum()) for mask in masks)
        rescued = sum(int((file.rescued & ~mask).sum()) for file, mask in zip(files, masks, strict=True))
        return found, {"duplicates": gone, "rows": -gone, "rescued": -rescued}

    def _recent(self, output: _Output, until: int | None = None) -> RecentKeys:
        """Return the keys of the newest rows of a table, by which events that are sent again are recognized.

        :param until: only keys of rows that were accepted before this time; None: of all rows
        """
        keys = RecentKeys(output.table.name, output.table.within)
        files = output.lake.actions()
        if not files.num_rows:
            return keys
        newest, most = until, bounds(files, ACCEPTED)[1]
        if newest is None and most is not None:
            newest = compute.max(most.cast(pa.int64())).as_py()
        # A bound may be up to CUT later than the newest row; a key too many does no harm.
        since = max(0, (newest or 0) - output.table.within - CUT)
        chosen = files.filter(may_have(files, ACCEPTED, time_of(since), None))
        whole = output.table.schema
        schema = pa.schema([whole.field(name) for name in dict.fromkeys((ACCEPTED, *output.table.key))])
        batches = list(read(output.lake.store, chosen["path"].to_pylist(), schema, output.lake.vectors()))
        rows = pa.Table.from_batches(batches, schema).sort_by(ACCEPTED)
        times = rows[ACCEPTED].cast(pa.int64())
        mask = compute.greater_equal(times, since)
        if until is not None:
            mask = compute.and_(mask, compute.less(times, until))
        rows = rows.filter(mask)
        keys.add(digests(rows, output.table.key), rows[ACCEPTED].cast(pa.int64()).to_numpy())
        return keys

    def settle(self) -> None:
        """Commit the positions of tables without new rows; let retention delete the records that all tables have."""
        for output in self.outputs:
            if output.position > (output.before.position if output.before else 0):
                after = output.reached
                output.lake.commit(self.identity, output.before, after, [])
                output.before = after
        super().settle()

    def idle(self) -> None:
        """Update the aggregates to the present versions of their tables, because a killed run may not have done so."""
        for summary in self.summaries:
            summary.update()

    def optimize(self) -> None:
        """Merge the files of tables with many files, and remove files that are not used any more."""
        for lake in self.lakes():
            try:
                lake.refresh()
                if lake.totals()[0] >= self.merge_from:
                    self._merge(lake)
                lake.vacuum()
            except JournalUnreachable:
                raise
            except (DeltaError, JournalError) as error:  # Another program changed the table at this moment.
                log.warning("the table %s was not optimized: %s", lake, plain(error))
            lake.refresh()

    def _merge(self, lake: Lake) -> None:
        """Write the small files of each day again as few files, in one commit."""
        files, tasks = [], []
        for _, small in due(lake, None):
            for some in _lots(small):
                files += some
                paths = tuple(file.path for file in some)
                schema = _schema(_types(lake))
                tasks.append(
                    RewriteTask(store=lake.store, paths=paths, schema=schema, measured=lake.measured, merges=True)
                )
        actions = [action for action in self.engine(rewrite, tasks) if action is not None]
        if files:
            lake.replace(files, actions)

    def backfill(self, name: str, start: datetime, end: datetime) -> TableState:
        """Extract the rows of a range of time again, and replace the table's rows of that range.

        :param start, end: when the records were accepted; the end is not included
        :raises ConfigError: there is no such table
        :raises JournalCorrupt: data is damaged, or neither the journal nor the lake has the records any more
        """
        outputs = [output for output in self.outputs if output.table.name == name]
        if not outputs:
            names = ", ".join(table.name for table in self.config.tables)
            raise ConfigError(f"there is no table {name!r} in the configuration; there are {names}")
        since, until = microseconds(start), microseconds(end)
        table = outputs[0].table
        stop = min(output.position for output in outputs)
        sources, oldest = sources_of(self.config, self.source, self.identity, table, since, until, stop)
        if oldest is not None and since < oldest:
            check_rows([output.lake for output in outputs if output.kind != CHECKS], since, min(until, oldest))
        (filled,) = self._fitting(outputs[:1], outputs, sources, "part-backfill")
        rows, about = 0, dict[str, Any](backfill=[start.isoformat(), end.isoformat()])
        for output in outputs:
            if output.kind == CHECKS:
                self._commit(output, filled, output.before or output.reached, {**about, "start": output.position})
                continue
            files = [
                file for each in filled for file in (each.quarantined if output.kind == QUARANTINE else each.files)
            ]
            if output.kind == ROWS:
                files, _ = self._without_repetitions(output, files, self._recent(output, since) if table.key else None)
                self._grow(output, filled)
                rows = sum(file.rows for file in files)
            rest, removed = without(output.lake, self.engine, since, until)
            before = output.before or output.reached
            about |= {"rows": rows}
            actions = [*(file.action for file in files), *rest]
            output.lake.commit(self.identity, output.before, before, actions, about=about, removed=removed)
            output.before, output.keys = before, None
        self.idle()
        return TableState(name=name, rows=rows, counts={})


def _lots(files: Sequence[File]) -> Iterator[list[File]]:
    """Yield the files that are merged into one, which is not larger than FILE bytes."""
    lot: list[File] = []
    for file in files:
        if sum(each.size for each in lot) + file.size > FILE:
            yield lot
            lot = []
        lot.append(file)
    if len(lot) > 1:
        yield lot


def _target(main: _Output, due: Sequence[_Output]) -> Target:
    """Return what tasks have to write for a table: its rows, the rows of its quarantine, or both."""
    stores = {each.kind: each.lake.store for each in due if each.table is main.table}
    return Target(
        table=main.table,
        store=stores.get(ROWS),
        quarantine=stores.get(QUARANTINE),
        known=main.fields,
        fixed=frozenset(main.fixed),
    )


def _types(lake: Lake) -> dict[str, str]:
    """Return the columns of a table, each with the name of its type in Delta.

    :raises ConfigError: another program has added a column of another type
    """
    assert lake.table is not None
    fields = lake.table.schema().fields
    found = {each.name: each.type.type if isinstance(each.type, PrimitiveType) else "struct" for each in fields}
    for name, kind in found.items():
        if not _known(kind):
            raise ConfigError(f"the column {name!r} of the table {lake} is {kind}, which typed tables do not have")
    return found


def _known(kind: str) -> bool:
    """Return whether typed tables have columns of a type."""
    try:
        return bool(_type(kind))
    except ValueError:
        return False


def _type(kind: str) -> pa.DataType:
    return pa.binary() if kind == "binary" else type_of(kind)


def _schema(types: Mapping[str, str]) -> pa.Schema:
    """Return the schema of a table from the names of its types in Delta."""
    return pa.schema([(name, _type(kind)) for name, kind in types.items()])


def _plain(kind: str) -> str:
    """Return the name of a type without the digits of a decimal."""
    return kind.partition("(")[0]


def _agreed(known: Mapping[str, str], found: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the types of columns on which all tasks agree: the widest type of numbers, or the most frequent type."""
    agreed = dict(known)
    votes: dict[str, Counter[str]] = {}
    spellings = {name.lower(): name for name in known}
    for each in found:
        for name, kind in each.items():
            if spellings.setdefault(name.lower(), name) == name:
                votes.setdefault(name, Counter())[kind] += 1
    for name, kinds in votes.items():
        if name in known:
            agreed[name] = "double" if known[name] == "long" and kinds["double"] else known[name]
        elif len(agreed) < MOST:
            if kinds["double"]:
                kinds["double"] += kinds.pop("long", 0)
            agreed[name] = max(kinds, key=lambda kind: (kinds[kind], kind))
    return agreed
