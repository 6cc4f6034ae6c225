"""``archive``: copy the records of a journal into a lake, exactly once.

    journal -> range of positions -> round of Parquet files -> counted -> synced -> committed -> subscription updated

The lake's log is the only checkpoint, so no second one can disagree with it, and no record is lost when the driver or a
worker is killed.  Before a round is committed, its records are counted against the headers of the journal.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from fyrehose.errors import JournalCorrupt, JournalError, JournalUnreachable
from fyrehose.journal.offline.places import Place, check_identity, place
from fyrehose.journal.offline.view import View
from fyrehose.spark import memory, rounds
from fyrehose.spark.counting import Ahead, Behind, RangeCounts
from fyrehose.spark.failures import own_error
from fyrehose.spark.gaps import starting_ends
from fyrehose.spark.jobs.optimize import optimize
from fyrehose.spark.lake import Gap, Lake, Progress, host_of
from fyrehose.spark.plan import Planner, check, check_beginning
from fyrehose.spark.repeating import repeated
from fyrehose.spark.selection import Selection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

#: Size of a round, in bytes of the journal: large enough for Parquet files, and small enough to be repeated.
ROUND = 1 << 30
#: How often the state is passed to ``monitor``, in seconds, while there is nothing to copy.
MONITORED = 5.0
#: How often the subscription is updated, in seconds, while there is nothing to copy.
HEARTBEAT = 60.0


@attrs.define
class Archived:
    """Progress of an archive.

    :ivar position: the lake has every record of the journal before it
    """

    position: int
    rounds: int = 0
    rows: int = 0
    size: int = 0  #: of the files, in bytes
    gaps: int = 0  #: numbers that are declared as lost
    seconds: float = 0.0  #: duration of the rounds
    last_seconds: float = 0.0  #: duration of the last round


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
    :param accept_loss: declare numbers lost that retention deleted before they were archived, and continue behind them
    :param progress: called before the first round and after each
    :param monitor: called with the state at these times, too, and every few seconds while there is nothing to copy
    :raises JournalCorrupt: data is damaged, or was deleted before it was archived; the lake has all records before it
    :raises JournalLocked: another archive of the journal writes to the lake
    """
    source, target = place(journal), Lake.at(lake)
    view = source.view()
    name = target.admit(view.identity, server, host_of(journal))
    engine = rounds.local if spark is None else rounds.on(spark)
    with target.locked(view.identity):
        run = _Run(
            engine,
            journal,
            source,
            target,
            name,
            view.identity,
            subscription,
            round_bytes,
            optimize_every,
            keep,
            monitor,
        )
        if accept_loss:
            run.accept_loss(view)
        return run.loop(follow, every, progress, stop)


def check_free(journal: str, lake: str | Path, server: str | None = None) -> None:
    """Check that an archive could begin, before Spark is started for it.

    :raises ConfigError: the journal has another name in the lake, or another journal has this one
    :raises JournalLocked: another archive of the journal writes to the lake
    """
    target, view = Lake.at(lake), place(journal).view()
    target.admit(view.identity, server, host_of(journal))
    with target.locked(view.identity):
        pass


@attrs.define(eq=False)
class _Run:
    engine: rounds.Engine
    journal: str
    source: Place
    lake: Lake
    server: str
    identity: bytes
    subscription: str | None
    round_bytes: int
    optimize_every: float
    keep: float | None
    monitor: Callable[[ArchiveState], object] | None
    done: Archived = attrs.field(init=False)
    _ahead: Ahead = attrs.field(init=False)
    #: Number and size of the lake's files, which are read after each round.
    _files: tuple[int, int] | None = attrs.field(default=None, init=False)
    _monitored: float = attrs.field(default=float("-inf"), init=False)
    _reported: float = attrs.field(default=float("-inf"), init=False)
    _optimized: float = attrs.field(factory=time.monotonic, init=False)
    #: When the last round began.
    _began: float = attrs.field(default=float("-inf"), init=False)
    #: The end of the lake at which the journal was last checked to have the beginning of a batch.
    _compared: int = attrs.field(default=-1, init=False)
    #: A round of which it is not known whether it was committed.
    _unsure: tuple[Progress, list[rounds.Written], RangeCounts] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._ahead = Ahead(self.source, self.round_bytes)
        before = self.lake.progress(self.identity)
        self.done = Archived(self.source.view().start if before is None else before.position)

    def loop(
        self, follow: bool, every: float, progress: Callable[[Archived, View], object], stop: Callable[[], bool]
    ) -> Archived:
        """Archive the journal in rounds to its end, or with *follow* until *stop* returns True; return the totals.

        :param every: seconds between rounds, if the job follows
        :param progress: called with the totals and the view of the journal, at the start and after each round
        """
        progress(self.done, self.source.view())
        try:
            step = partial(self.step, every if follow else None, progress)
            repeated(step, follow, stop, f"the archive of {self.journal}")
        finally:
            memory.release()
        with suppress(JournalUnreachable):  # All committed rounds are durable in any case.
            self.report(0)
            self.observe(self.source.view(), 0)
        return self.done

    def step(self, every: float | None, progress: Callable[[Archived, View], object]) -> float | None:
        """Archive a round if one is due; return the pause before the next step in seconds, or None at the end.

        :param every: interval of rounds, in seconds; None: do not wait for new records
        :raises JournalUnreachable: the journal or the lake is not available at present
        """
        view = self.source.view()
        check_identity(self.source, self.identity, view)
        self._compare(view)
        self.observe(view, MONITORED)
        behind, waited = view.mark - self.done.position, time.monotonic() - self._began
        if behind < 0:
            raise JournalUnreachable(
                f"{self.journal} ends at position {view.mark}, and the lake {self.lake} has it up to "
                f"{self.done.position}: it is behind, such as a server of a cluster that has not caught up, or was "
                "put back from an older copy, or is a standby that was promoted and lacks the end; put the newer "
                "journal back, or give this one a lake of its own"
            )
        if behind and (every is None or behind >= self.round_bytes or waited >= every):
            self._began = time.monotonic()
            self.round(view)
            self.done.last_seconds = time.monotonic() - self._began
            self.done.seconds += self.done.last_seconds
            progress(self.done, view)
            self._files = None
            self.observe(view, 0)
            return 0.0
        if every is None:
            return None
        memory.release()
        self.report(HEARTBEAT)
        self.optimize()
        return min(1.0, max(0.05, every - waited)) if behind else min(0.5, max(0.05, every / 4))

    def _compare(self, view: View) -> None:
        """Check that a batch of the journal begins where the lake ends; otherwise it is another journal."""
        position = self.done.position
        if view.mark > position != self._compared:
            check_beginning(self.source, view, position)
            self._compared = position

    def round(self, view: View) -> None:
        """Archive one round, completely or not at all."""
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
                f"{self.journal} does not continue at position {start}, where the lake {self.lake} ends: it is another "
                "journal, or was put back from another copy; use a lake of its own"
            )
        files = self._written(start, account.end, account)
        after = Progress(server=self.server, position=account.end, chain=account.chain)
        about = {"server": self.server, "start": start, "end": account.end, "rows": account.rows}
        ends: dict[str, int] = {}
        for stream, last in (*(pair for file in files for pair in file.ends.items()), *_ends(account.gaps)):
            ends[stream] = max(last, ends.get(stream, 0))
        self._unsure = after, files, account  # A store may report a failure of a commit that has reached it.
        self.lake.commit(self.identity, before, after, [file.action for file in files], account.gaps, about, ends)
        self._committed(after, files, account)

    def _committed(self, after: Progress, files: list[rounds.Written], account: RangeCounts) -> None:
        self._unsure = None
        self.done.position = after.position
        self.done.rounds += 1
        self.done.rows += account.rows
        self.done.size += sum(file.action.size for file in files)
        self.done.gaps += sum(last - first + 1 for _, first, last, _ in account.gaps)
        self.report(0)

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
            )
            for number, part in enumerate(parts)
        ]
        try:
            found = [file for files in self.engine(tasks) for file in files] if tasks else []
        except Exception as error:
            raise own_error(error) or error from None
        written = sum(file.rows for file in found)
        if written != account.rows:
            raise JournalCorrupt(
                f"the files of the round have {written} records, and the journal has {account.rows} between the "
                f"positions {start} and {end}; nothing was committed"
            )
        return found

    def accept_loss(self, view: View) -> None:
        """Declare the numbers lost that retention deleted before they were archived, and continue behind them."""
        before = self.lake.progress(self.identity)
        if before is None or before.position >= view.start:
            return
        has = self.lake.ends(self.identity)
        ends = starting_ends(self.source, view.segments[0])
        gaps = [(s, has.get(s, 0) + 1, last, view.start - 1) for s, last in ends.items() if last > has.get(s, 0)]
        after = Progress(server=self.server, position=view.start, chain=None)
        about = {"server": self.server, "start": before.position, "end": view.start, "rows": 0, "accepted": len(gaps)}
        self.lake.commit(self.identity, before, after, [], gaps, about, dict(_ends(gaps)))
        self.done.position = view.start
        self.done.gaps += sum(last - first + 1 for _, first, last, _ in gaps)

    def optimize(self) -> None:
        """Merge small files, if the time for this has come."""
        if self.optimize_every and time.monotonic() - self._optimized >= self.optimize_every:
            try:
                optimize(self.lake.store.uri, keep=self.keep)
            except JournalError as error:  # Another archive merges at this moment, or will merge.
                log.warning("%s", error)
            self._optimized = time.monotonic()

    def observe(self, view: View, at_least: float) -> None:
        """Pass the state to the monitor, if there is one; but not if this was done less than *at_least* seconds ago."""
        if self.monitor is None or time.monotonic() - self._monitored < at_least or view.mark < self.done.position:
            return
        if self._files is None:
            self._files = self.lake.totals()
        count, size = self._files
        behind, name = self._ahead.behind(view, self.done.position), str(self.lake)
        self.monitor(ArchiveState(server=self.server, lake=name, done=self.done, behind=behind, files=count, size=size))
        self._monitored = time.monotonic()

    def report(self, at_least: float) -> None:
        """Report the progress to retention, unless this was done less than *at_least* seconds ago."""
        if self.subscription is not None and time.monotonic() - self._reported >= at_least:
            self.source.update_subscription(self.subscription, self.done.position, self.identity)
            self._reported = time.monotonic()


def _ends(gaps: Iterable[Gap]) -> Iterator[tuple[str, int]]:
    """Yield the stream and the last number of each gap that is declared lost, so that it is not declared again."""
    for stream, _, last, _ in gaps:
        yield stream, last
