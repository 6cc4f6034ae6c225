"""Read the ages and the mean size of a stream's records from its two ends, for lists of streams.

    first and last number of a stream -> at most three reads -> times of the two ends, mean size

The journal keeps no size and no time for each stream.  A result is kept until a record is added or deleted at the end
that it was read from, so a page that is open costs few reads.
"""

from __future__ import annotations

from collections import OrderedDict

import attrs

from fyrehose.errors import JournalError
from fyrehose.interfaces import IBroker

#: The number of streams whose ends are remembered.
KEPT = 2_000
#: The records at the end of a stream, and their bytes, from which the mean size is computed.
RECORDS = 64
BYTES = 64 << 10


@attrs.define(slots=True)
class End:
    """The times of the first and the last record of a stream, and the mean size of records.

    :ivar first: the first number of the stream when ``oldest`` was read; 0: ``oldest`` was not read yet
    :ivar last: the last number of the stream when ``newest`` was read; 0: ``newest`` was not read yet
    :ivar oldest: when the server accepted the oldest record, in seconds since 1970 UTC
    :ivar newest: when the server accepted the newest record, in seconds since 1970 UTC
    :ivar mean: the mean size of the newest records, in bytes
    """

    first: int = 0
    last: int = 0
    oldest: float | None = None
    newest: float | None = None
    mean: float | None = None


@attrs.define(eq=False)
class Ends:
    """A reader of the first and the last records of the streams of *broker*, which remembers the results.

    :ivar kept: how many streams are remembered
    """

    broker: IBroker
    kept: int = KEPT
    _known: OrderedDict[str, End] = attrs.field(factory=OrderedDict, init=False)

    def of(self, stream: str, first: int, last: int, grows: bool) -> End:
        """Return the ages and the size of *stream*, whose records are *first* to *last*, as far as known.

        :param grows: whether the stream grows at present; then its newest record is not looked up
        """
        end = self._known.get(stream)
        if end is None:
            end = self._known[stream] = End()
        self._known.move_to_end(stream)
        if len(self._known) > self.kept:
            self._known.popitem(last=False)
        if first > last:
            end.first = end.last = 0
            end.oldest = end.newest = end.mean = None
            return end
        try:
            if end.first != first:
                self._read_oldest(stream, end, first)
            if end.last != last and (end.mean is None or not grows):
                self._read_newest(stream, end, first, last)
        except JournalError:
            # Retention may have deleted the records.  Damage is reported to subscribers that read the stream.
            end.oldest = end.newest = end.mean = None
        return end

    def _read_oldest(self, stream: str, end: End, first: int) -> None:
        runs = self.broker.read(stream, first, 1)
        end.first, end.oldest = first, runs[0].time / 1e6 if runs else None

    def _read_newest(self, stream: str, end: End, first: int, last: int) -> None:
        runs = self.broker.read(stream, max(first, last - RECORDS + 1), BYTES)
        count, size = sum(map(len, runs)), sum(len(run.payload) for run in runs)
        end.mean = size / count if count else None
        if runs and runs[-1].last_seq < last:  # the records are so large that the newest one is not among them
            runs = self.broker.read(stream, last, 1)
        end.last, end.newest = last, runs[-1].time / 1e6 if runs else None
