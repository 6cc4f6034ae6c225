"""``archive``: copy the records of a journal into a lake, exactly once.

    journal -> range of positions -> round of Parquet files -> counted -> synced -> committed -> subscription updated

The lake's log is the only checkpoint, so no second one can disagree with it, and no record is lost when the driver or a
worker is killed.  Before a round is committed, its records are counted against the headers of the journal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from fyrehose.errors import JournalCorrupt, JournalError
from fyrehose.offline.places import place
from fyrehose.offline.view import View
from fyrehose.spark import rounds
from fyrehose.spark.counting import Behind, RangeCounts
from fyrehose.spark.engines import Engine, locally, on_spark
from fyrehose.spark.jobs.optimize import optimize
from fyrehose.spark.lake import HOUR, Gap, Lake, Progress, host_of
from fyrehose.spark.plan import Planner, check, resumed
from fyrehose.spark.repeating import Done, RoundJob
from fyrehose.spark.selection import Selection
from fyrehose.spark.stores import LakeStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

#: Size of a round, in bytes of the journal: large enough for large Parquet files, and small enough to be repeated after
#: a failure.
ROUND = 1 << 30


@attrs.define
class Archived(Done):
    """The progress of an archive: the rows and files that it has added, and the lost numbers that it has declared."""

    rows: int = 0
    size: int = 0  #: of the files, in bytes
    gaps: int = 0  #: numbers that are declared as lost


@attrs.frozen(kw_only=True)
class ArchiveState:
    """State of an archive, for its metrics.

    :ivar server, lake: name of the journal in the lake, and where the lake is
    :ivar files, size: number of the lake's files, and their size in bytes
    """

    server: str
    lake: str
    done: Archived
    behind: Behind
    files: int
    size: int


def archive(
    spark: SparkSession | None,
    journal: str,
    lake: str | Path,
    *,
    server: str | None = None,
    follow: bool = False,
    every: float = 60.0,
    subscription: str | None = None,
    round_bytes: int = ROUND,
    optimize_every: float = 0.0,
    keep: float | None = None,
    accept_loss: bool = False,
    by_hour: bool = False,
    progress: Callable[[Archived, View], object] = lambda done, view: None,
    monitor: Callable[[ArchiveState], object] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Archived:
    """Archive the durable records of a journal; with ``follow``, continue with new records until ``stop()``.

    :param spark: the session whose tasks write the files; None: this process writes them, without Spark and Java
    :param server: name of the journal in the lake; by default its host
    :param every: interval of rounds with ``follow``, in seconds; a full round begins earlier
    :param subscription: name of the archive's subscription to the journal's files; None: the archive has none
    :param round_bytes: size of a round, in bytes of the journal
    :param optimize_every: merge small files this often with ``follow``, in seconds; 0: never
    :param keep: delete days that ended longer ago whenever files are merged, in seconds; None: keep all
    :param accept_loss: declare as lost the numbers that retention deleted before they were archived, and continue after
        them
    :param by_hour: a new lake has a partition for each hour, and the column ``hour``; one by days is refused
    :param progress: called before the first round and after each
    :param monitor: called with the state at these times, too, and every few seconds while there is nothing to copy
    :raises JournalCorrupt: data is damaged, or was deleted before it was archived; the lake has all records before it
    :raises JournalLocked: another archive of the journal writes to the lake
    """
    source, target = place(journal), Lake(LakeStore.at(lake), by_hour=by_hour or None)
    view = source.view()
    if doubt := view.doubt(source):
        log.warning("%s", doubt)
    name = target.admit(view.identity, server, host_of(journal))
    engine = locally if spark is None else on_spark(spark)
    with target.locked(view.identity):
        run = _Archive(
            journal=journal,
            target=f"the lake {target}",
            source=source,
            identity=view.identity,
            round_bytes=round_bytes,
            subscription=subscription,
            optimize_every=optimize_every,
            monitor=monitor,
            engine=engine,
            lake=target,
            server=name,
            keep=keep,
        )
        if accept_loss:
            run.accept_loss(view)
        run.run(follow, every, progress, stop)
        return run.done


def check_free(journal: str, lake: str | Path, server: str | None = None, by_hour: bool = False) -> None:
    """Check that an archive could begin, before Spark is started for it.

    :raises ConfigError: the journal has another name in the lake, another journal has this name, or the lake is by days
    :raises JournalLocked: another archive of the journal writes to the lake
    """
    target, view = Lake(LakeStore.at(lake), by_hour=by_hour or None), place(journal).view()
    target.admit(view.identity, server, host_of(journal))
    with target.locked(view.identity):
        pass


@attrs.define(eq=False, kw_only=True)
class _Archive(RoundJob[ArchiveState]):
    engine: Engine
    lake: Lake
    server: str
    keep: float | None
    done: Archived = attrs.field(init=False)
    #: The last round, if it is unknown whether its commit has succeeded.
    _unsure: tuple[Progress, list[rounds.Written], RangeCounts] | None = attrs.field(default=None, init=False)
    #: Number and size of the lake's files, which are read after each round.
    _files: tuple[int, int] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        before = self.lake.progress(self.identity)
        self.done = Archived(self.source.view().start if before is None else before.position)

    def copy(self, view: View) -> None:
        if self._unsure is not None:
            after, files, account = self._unsure
            if self.lake.committed(self.identity, after, [file.action for file in files]):
                self._committed(after, files, account)
                return
        before, start = self.lake.progress(self.identity), self.done.position
        check(self.source, view, start, view.mark)
        account = self._ahead.next(view, start)
        if before is not None and None not in (before.chain, account.continued) and before.chain != account.continued:
            raise JournalCorrupt(
                f"{self.journal} does not continue at position {start}, where the lake {self.lake} ends: the journal "
                "is another one, or was put back from another copy; archive it into a lake of its own"
            )
        files = self._written(start, account.end, account)
        after = Progress(position=account.end, chain=account.chain)
        about = {"server": self.server, "start": start, "end": account.end, "rows": account.rows}
        ends: dict[str, int] = {}
        for stream, last in (*(pair for file in files for pair in file.ends.items()), *_ends(account.gaps)):
            ends[stream] = max(last, ends.get(stream, 0))
        self._unsure = after, files, account  # An object store may report a failure although it has stored the commit.
        self.lake.commit(self.identity, before, after, [file.action for file in files], account.gaps, about, ends)
        self._committed(after, files, account)

    def _committed(self, after: Progress, files: list[rounds.Written], account: RangeCounts) -> None:
        self._unsure = None
        self._files = None
        self.done.position = after.position
        self.done.rows += account.rows
        self.done.size += sum(file.action.size for file in files)
        self.done.gaps += sum(last - first + 1 for _, first, last, _ in account.gaps)
        self.settle()

    def _written(self, start: int, end: int, account: RangeCounts) -> list[rounds.Written]:
        """Write the files of a round, and check that they have as many records as the journal."""
        parts = Planner(self.source, Selection(), rounds.PART, skip_gaps=True).parts(start, end) if account.rows else []
        tasks = [
            rounds.Task(
                place=self.source,
                part=part,
                server=self.server,
                lake=self.lake.store,
                name=f"part-{start:016x}-{number:05}",
                by_hour=HOUR in self.lake.partitions(),
            )
            for number, part in enumerate(parts)
        ]
        found = [file for files in self.engine(rounds.write, tasks) for file in files]
        written = sum(file.rows for file in found)
        if written != account.rows:
            raise JournalCorrupt(
                f"the files of the round have {written} records, and the journal has {account.rows} between the "
                f"positions {start} and {end}; nothing was committed"
            )
        return found

    def accept_loss(self, view: View) -> None:
        """Declare as lost the numbers that retention deleted before they were archived, and continue after them."""
        before = self.lake.progress(self.identity)
        if before is None or before.position >= view.start:
            return
        _, lost = resumed(self.source, view, before.position, skip=True, known=self.lake.ends(self.identity))
        gaps = [(stream, first, last, view.start - 1) for stream, first, last in lost]
        after = Progress(position=view.start, chain=None)
        about = {"server": self.server, "start": before.position, "end": view.start, "rows": 0, "accepted": len(gaps)}
        self.lake.commit(self.identity, before, after, [], gaps, about, dict(_ends(gaps)))
        self.done.position = view.start
        self.done.gaps += sum(last - first + 1 for _, first, last, _ in gaps)

    def optimize(self) -> None:
        try:
            optimize(self.lake.store.uri, keep=self.keep)
        except JournalError as error:  # Another archive merges at this moment, or will merge.
            log.warning("%s", error)

    def state(self, behind: Behind) -> ArchiveState:
        if self._files is None:
            self._files = self.lake.totals()
        count, size = self._files
        name = str(self.lake)
        return ArchiveState(server=self.server, lake=name, done=self.done, behind=behind, files=count, size=size)


def _ends(gaps: Iterable[Gap]) -> Iterator[tuple[str, int]]:
    """Yield the stream and the last number of each gap; the lake stores both, so that no gap is declared twice."""
    for stream, _, last, _ in gaps:
        yield stream, last
