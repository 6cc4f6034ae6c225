"""Read the streams in which the server keeps its own state, such as Relink's links and the positions of subscriptions.

read, bounds -> the last record of one source; the records from a number on
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fyrehose.records import Record, Run

#: The journal's ``read``: stream, first number, size in bytes -> runs.
Read = Callable[[str, int, int], tuple[Run, ...]]
#: Size of one read, in bytes.
READ_SIZE = 4 << 20


def records(read: Read, stream: str, start: int, last: int) -> Iterator[Record]:
    """Yield the records from *start* to the end of the last run that begins at or below *last*."""
    while start <= last:
        runs = read(stream, start, READ_SIZE)
        if not runs:
            return
        for run in runs:
            yield from run.records()
        start = runs[-1].last_seq + 1


def last_record(read: Read, stream: str, bounds: tuple[int, int], source: str) -> Record | None:
    """Return the last record of *source*, searching backwards past records of others; None if there is none.

    :param bounds: the oldest and the last number of the stream
    """
    oldest, last = bounds
    step, end = 1, last
    while end >= oldest:
        start = max(oldest, end - step + 1)
        own = [r for r in records(read, stream, start, end) if r.seq <= end and r.source == source]
        if own:
            return own[-1]
        end, step = start - 1, step * 2
    return None
