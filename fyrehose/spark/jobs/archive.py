"""``archive``: copy the records of a journal into a lake, exactly once.

    journal -> range of positions -> round of Parquet files -> counted -> synced -> committed -> retention hold updated

This is a loop of batch queries rather than a streaming query, because the lake's log is the only checkpoint: nothing
has to agree with it, and nothing is lost when the driver, the planner or a worker is killed.  Before a round is
committed, its records are counted against the headers of the journal.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal.offline.places import CHUNK, Missing, Place, place
from fyrehose.journal.offline.view import View
from fyrehose.spark import tables
from fyrehose.spark.lake import Commit, File, Lake, round_files
from fyrehose.spark.plan import admitted, check, missing, walk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Size of a round, in bytes of the journal: large enough for Parquet files, and small enough to be repeated.
ROUND = 1 << 30
#: How often a retention hold is updated, in seconds, while there is nothing to copy.
HEARTBEAT = 60.0

#: Names of streams that are used as names of directories; others are replaced by a digest.
_PLAIN = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"


@attrs.frozen(kw_only=True)
class Account:
    """Counts of a range of the journal, from its batch headers.

    :ivar chain: the checksum of its last batch; None if that replaces a damaged range
    :ivar continued: the checksum from which its first batch continues; None if that replaces a damaged range
    """

    rows: int
    continued: int | None
    chain: int | None
    gaps: tuple[tuple[str, int, int], ...]


@attrs.define
class Archived:
    """Progress of an archive.

    :ivar position: the lake has every record of the journal before it
    """

    position: int
    rounds: int = 0
    rows: int = 0
    size: int = 0  #: of the files, in bytes
    gaps: int = 0  #: numbers that the journal declares as lost
    removed: int = 0  #: rounds that were not committed


def archive(
    spark: SparkSession,
    journal: str,
    lake: str | Path,
    *,
    follow: bool = False,
    every: float = 60.0,
    hold: str | None = None,
    round_bytes: int = ROUND,
    by_stream: bool = True,
    variant: bool = False,
    progress: Callable[[Archived, View], object] = lambda done, view: None,
    stop: Callable[[], bool] = lambda: False,
) -> Archived:
    """Archive the durable records of a journal; with ``follow``, continue with new records until ``stop()``.

    :param every: interval of rounds with ``follow``, in seconds; a full round begins earlier
    :param hold: name of the archive's retention hold (``fyrehose journal holds``); None: it registers none
    :param round_bytes: size of a round, in bytes of the journal
    :param by_stream: write a directory for each stream; use False for thousands of small streams
    :param variant: add a column ``json`` of the payloads whose content type is application/json
    :param progress: called before the first round and after each
    :raises JournalCorrupt: data is damaged, or was deleted before it was archived; the lake has all records before it
    :raises JournalLocked: another archive writes to the lake
    """
    source, target = place(journal), Lake.at(lake)
    target.lock()
    try:
        run = _Run(spark, journal, source, target, hold, round_bytes, by_stream, variant)
        removed = len(target.clean())
        run.done = Archived(run.resume(source.view()), removed=removed)
        return run.loop(follow, every, progress, stop)
    finally:
        target.unlock()


@attrs.define(eq=False)
class _Run:
    spark: SparkSession
    journal: str
    source: Place
    lake: Lake
    hold: str | None
    round_bytes: int
    by_stream: bool
    variant: bool
    done: Archived = attrs.field(init=False)
    _chain: int | None = attrs.field(default=None, init=False)
    _reported: float = attrs.field(default=float("-inf"), init=False)

    def resume(self, view: View) -> int:
        """Return the position at which to resume."""
        commits = self.lake.commits()
        self._chain = commits[-1].chain if commits else None
        return commits[-1].end if commits else view.start

    def loop(
        self, follow: bool, every: float, progress: Callable[[Archived, View], object], stop: Callable[[], bool]
    ) -> Archived:
        began = float("-inf")
        progress(self.done, self.source.view())
        while not stop():
            view = self.source.view()
            behind = view.mark - self.done.position
            waited = time.monotonic() - began
            if behind > 0 and (not follow or behind >= self.round_bytes or waited >= every):
                began = time.monotonic()
                self.round(view)
                progress(self.done, view)
            elif behind < 0:
                check(self.source, view, self.done.position, self.done.position)  # says that it is another journal
            elif follow:
                self.report(HEARTBEAT)
                time.sleep(min(1.0, max(0.05, every - waited)) if behind else 0.5)
            else:
                break
        self.report(0)
        return self.done

    def round(self, view: View) -> None:
        """Archive one round, completely or not at all."""
        start = self.done.position
        end = admitted(self.source, start, view.mark, 1 << 62, self.round_bytes)
        account = account_of(self.source, view, start, end)
        if None not in (self._chain, account.continued) and self._chain != account.continued:
            raise JournalCorrupt(
                f"{self.journal} does not go on at position {start} from what the lake {self.lake} has: it is another "
                "journal, or was put back from another copy; use a lake of its own"
            )
        directory = self.lake.begin(start, end)
        try:
            commit = self._written(directory, start, end, account)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        self.lake.commit(commit)
        self._chain = account.chain
        self.done.position = end
        self.done.rounds += 1
        self.done.rows += commit.rows
        self.done.size += sum(file.size for file in commit.files)
        self.done.gaps += sum(last - first + 1 for _, first, last in commit.gaps)
        self.report(0)

    def _written(self, directory: Path, start: int, end: int, account: Account) -> Commit:
        files: tuple[File, ...] = ()
        if account.rows:
            rows = tables.of_journal(self.spark, self.journal, start=start, stop=end, gaps="skip")
            self._write(rows, directory)
            files = tuple(round_files(directory))
        written = sum(file.rows for file in files)
        if written != account.rows:
            raise JournalCorrupt(
                f"{directory} has {written} records, and the journal has {account.rows} between the positions {start} "
                f"and {end}; nothing was committed"
            )
        return Commit(
            start=start,
            end=end,
            chain=account.chain,
            directory=directory.name if files else "",
            rows=written,
            files=files,
            gaps=account.gaps,
            time=time.time_ns() // 1000,
        )

    def _write(self, rows: DataFrame, directory: Path) -> None:
        from pyspark.sql import functions as f

        stream = f.col("stream")
        digest = f.concat(f.lit("~"), f.substring(f.sha2(stream.cast("binary"), 256), 1, 32))
        key = f.when(stream.rlike(_PLAIN), stream).otherwise(digest) if self.by_stream else f.lit("~")
        if self.variant:
            is_json = f.col("content_type") == "application/json"
            rows = rows.withColumn("json", f.when(is_json, f.try_parse_json(f.col("payload").cast("string"))))
        (
            rows.withColumn("stream_key", key)
            .write.partitionBy("stream_key", "date")
            .option("compression", "zstd")
            .option("parquet.block.size", 64 << 20)
            .parquet(str(directory))
        )

    def report(self, at_least: float) -> None:
        """Say to retention how far we have come, if we did not within so many seconds."""
        if self.hold is not None and time.monotonic() - self._reported >= at_least:
            self.source.update_hold(self.hold, self.done.position)
            self._reported = time.monotonic()


def account_of(source: Place, view: View, start: int, end: int) -> Account:
    """Count the records between two positions from the batch headers alone.

    :raises JournalCorrupt: a header is damaged, or a segment is missing
    """
    rows, first, last = 0, None, None
    gaps: list[tuple[str, int, int]] = []
    for extent in view.segments:
        if extent.end <= start or extent.base >= end:
            continue
        position = max(start, extent.base + fmt.SEGMENT_HEADER.size)
        try:
            reader = source.open(extent.base, min(extent.end, end))
        except Missing as error:
            raise missing(source, view, position, f"{error} was deleted before it was archived") from None
        reader.ahead = CHUNK
        try:
            for header in walk(reader, position, min(extent.end, end)):
                rows += header.records
                if header.kind is fmt.Kind.GAP:
                    body = reader.batch(header.position)[1]
                    gaps += [(e.stream, e.first, e.last) for e in fmt.entries(body, header.parts) if e.stream]
                first = first or header
                last = header
                position = header.end
        except fmt.Damage as damage:
            raise JournalCorrupt(f"{source.name(extent.base)} is damaged at position {position}: {damage}") from damage
        finally:
            reader.close()
    return Account(
        rows=rows,
        continued=None if first is None or first.mended else first.chain,
        chain=None if last is None or last.mended else last.checksum,
        gaps=tuple(gaps),
    )
