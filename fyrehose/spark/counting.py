"""Count the records of a journal from the headers of its batches, for the rounds of an archive and for its lag.

in: the headers of batches      out: the number of records in each future round
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing

import attrs

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal.scan import SegmentReader
from fyrehose.offline.places import Place
from fyrehose.offline.view import View
from fyrehose.spark.lake import Gap
from fyrehose.spark.plan import no_deletion, walk


@attrs.frozen(kw_only=True)
class RangeCounts:
    """The content of a range of the journal, counted from the headers of its batches.

    :ivar start, end: the position of its first batch, and the position behind its last one
    :ivar full: whether the range is complete, because the next batch would make it too large
    :ivar since: time of its first batch with records, in microseconds since 1970 UTC; None if there is none
    :ivar continued: the checksum of the batch before its first batch; None if the first batch replaces a damaged range
    :ivar chain: the checksum of its last batch; None if the last batch replaces a damaged range
    """

    start: int
    end: int
    full: bool = False
    rows: int = 0
    since: int | None = None
    continued: int | None = None
    chain: int | None = None
    gaps: tuple[Gap, ...] = ()


@attrs.frozen(kw_only=True)
class Behind:
    """The part of the journal that is not in the lake yet, which is the lag of the archive.

    :ivar records, size: durable records, and bytes of the journal
    :ivar since: when the oldest of these records was accepted, in microseconds since 1970 UTC; None if there is none
    """

    records: int
    size: int
    since: int | None

    def age(self) -> float:
        """Return the age of the oldest of these records, in seconds; 0 if there is none."""
        return 0.0 if self.since is None else max(0.0, time.time() - self.since / 1e6)


def account_of(
    source: Place, view: View, start: int, stop: int, most: int | None = None, begun: RangeCounts | None = None
) -> RangeCounts:
    """Count the records between two positions from the batch headers alone.

    :param most: the largest size of the range in bytes; the first batch is counted even if it is larger
    :param begun: the counts of the batches before ``start``, to be continued
    :raises JournalCorrupt: a header is damaged, or a segment is missing
    """
    found = begun or RangeCounts(start=start, end=start)
    rows, since, continued, last, full = found.rows, found.since, found.continued, None, False
    gaps = list(found.gaps)
    for header, reader in _headers(source, view, start, stop):
        empty = found.end == found.start and last is None
        if most is not None and not empty and header.end - found.start > most:
            full = True
            break
        rows += header.records
        if since is None and header.records:
            since = header.time
        if header.kind is fmt.Kind.GAP:
            entries = fmt.entries(reader.batch(header.position)[1], header.parts)
            gaps += [(e.stream, e.first, e.last, header.position) for e in entries if e.stream]
        if empty and not header.mended:
            continued = header.chain
        elif last is None and not header.mended and found.chain not in (None, header.chain):
            raise JournalCorrupt(
                f"{source} was replaced by another journal while it was archived; put the former journal back"
            )
        last = header
    return attrs.evolve(
        found,
        end=found.end if last is None else last.end,
        full=full,
        rows=rows,
        since=since,
        continued=continued,
        chain=found.chain if last is None else None if last.mended else last.checksum,
        gaps=tuple(gaps),
    )


@attrs.define(eq=False)
class Ahead:
    """A counter of the records in the rounds that are not copied yet; it reads the header of each batch only once.

    The counts serve both the lag and the plan of the next round.

    :ivar round_bytes: size of a round, in bytes of the journal
    """

    source: Place
    round_bytes: int
    _accounts: deque[RangeCounts] = attrs.field(factory=deque, init=False)

    def next(self, view: View, start: int) -> RangeCounts:
        """Return the counts of the round that begins at ``start``.

        :raises JournalCorrupt: a header is damaged, or a segment is missing
        """
        self._forget(start)
        if not self._accounts or (len(self._accounts) == 1 and not self._accounts[0].full):
            self._count(view, start)
        return self._accounts[0]

    def behind(self, view: View, start: int) -> Behind:
        """Count the durable records from position ``start`` on.

        :raises JournalCorrupt: a header is damaged, or a segment is missing
        """
        size = view.mark - start
        if start < view.start:  # deleted by retention, which the next round reports
            return Behind(records=0, size=size, since=None)
        self._forget(start)
        self._count(view, start)
        while self._accounts[-1].full:
            self._count(view, start)
        since = (account.since for account in self._accounts if account.since is not None)
        return Behind(records=sum(account.rows for account in self._accounts), size=size, since=next(since, None))

    def _forget(self, start: int) -> None:
        """Remove the counts of rounds before ``start``."""
        while self._accounts and self._accounts[0].start < start:
            self._accounts.popleft()
        if self._accounts and self._accounts[0].start != start:
            self._accounts.clear()

    def _count(self, view: View, start: int) -> None:
        """Continue the counts of the last round, or begin the next round if it is full."""
        last = self._accounts[-1] if self._accounts else None
        begin = start if last is None else last.end
        begun = None if last is None or last.full else self._accounts.pop()
        self._accounts.append(account_of(self.source, view, begin, view.mark, self.round_bytes, begun))


def _headers(source: Place, view: View, start: int, stop: int) -> Iterator[tuple[fmt.BatchHeader, SegmentReader]]:
    for extent in view.segments:
        if extent.end <= start or extent.base >= stop:
            continue
        position = max(start, extent.base + fmt.SEGMENT_HEADER.size)
        with (
            no_deletion(source, view, position, "before it was archived"),
            closing(source.open(extent.base, min(extent.end, stop))) as reader,
        ):
            reader.ahead = source.for_headers
            try:
                for header in walk(reader, position, min(extent.end, stop)):
                    yield header, reader
                    position = header.end
            except fmt.Damage as damage:
                raise JournalCorrupt(
                    f"{source.name(extent.base)} is damaged at position {position}: {damage}"
                ) from damage
