"""Join the parts of an event that is larger than a record.

A lumberjack event of more than 16 MiB is stored as several records of its producer: parts of exactly 16 MiB, and the
rest as the last part.  Records of other producers may lie between them.

    part, part, another producer's record, last part  ->  another producer's record, event

The event has the number of its last part.  :class:`Joiner` is for a reader of all records from some number on, and
keeps the parts in memory; :func:`event_at` finds the parts of one event in a stream that can be read at any number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from fyrehose.kernels import lumberjack as kernel
from fyrehose.records import MAX_PAYLOAD, Run, column_of

#: Content types of the parts of an event, and of the last one.
PART = "application/x-lumberjack-part"
LAST_PART = "application/x-lumberjack-last-part"
PARTS = frozenset({PART, LAST_PART})
#: Content type of an event that was joined.
JSON = "application/json"
#: Limit of an event that the server joins for an answer, in bytes.
LARGEST = 64 << 20
#: Limit of the bytes of parts that a :class:`Joiner` keeps in memory.
HELD = 256 << 20
#: Limit of the bytes of other records between the parts of an event that :func:`event_at` reads in each direction.
BETWEEN = 32 << 20
#: Limit of the bytes of one read; how many records the first read of a backward search covers, and the limit of that
#: number, which doubles with each read.
_READ, _FEW, _MANY = 256 << 10, 16, 4_096


def is_part(run: Run) -> bool:
    """Return whether *run* is one record that is a part of an event, or its last part."""
    if run.content_type == PART:
        return len(run) == 1 and len(run.payload) == MAX_PAYLOAD
    return run.content_type == LAST_PART and len(run) == 1


def joined(parts: list[Run], content_type: str | None) -> Run:
    """Join *parts*, all parts of an event in order; the event gets the number and the time of the last part."""
    whole = column_of([b"".join(part.payload for part in parts)])
    return attrs.evolve(parts[-1], lengths=whole.lengths, payload=whole.payload, content_type=content_type)


def is_next(part: Run, run: Run) -> bool:
    """Return whether *run* can be the next part of the event that has *part*."""
    return (run.producer_seq, run.topic, run.source) == (part.producer_seq, part.topic, part.source)


@attrs.define(eq=False)
class Joiner:
    """A filter that joins the parts of large events for a reader, and passes on all other runs unchanged.

       Parts are joined only if the result is a JSON text.

    A reader that begins between the parts of an event gets only its end,
       which is no JSON text.

       :ivar most: limit of the bytes of parts in memory; beyond it, the parts of the oldest event are passed on
           unjoined
    """

    most: int = HELD
    _held: dict[tuple[str, str | None], list[Run]] = attrs.field(factory=dict, init=False)
    _size: int = attrs.field(default=0, init=False)

    def join(self, run: Run) -> Iterator[Run]:
        """Add *run*, and yield the whole events and incomplete parts that can be passed on now."""
        key = run.stream, run.producer
        if run.content_type in PARTS and len(run) > 1:
            for at in range(len(run)):
                yield from self.join(run.slice(at, at + 1))
            return
        held = self._held.get(key)
        if held is not None and not (is_part(run) and is_next(held[0], run)):
            yield from self._release(key)  # another record came before the last part, so the event is incomplete
            held = None
        if not is_part(run) or (held is None and run.content_type == LAST_PART):
            yield run
            return
        self._held.setdefault(key, []).append(run)
        self._size += len(run.payload)
        if run.content_type == LAST_PART:
            yield from self._complete(key)
        while self._size > self.most:
            yield from self._release(next(iter(self._held)))

    @property
    def holding(self) -> bool:
        """Return whether parts of incomplete events are in memory."""
        return bool(self._held)

    def first_held(self, stream: str) -> int | None:
        """Return the number of the oldest record of *stream* that is kept in memory, or None if no record is."""
        return min((parts[0].first_seq for (name, _), parts in self._held.items() if name == stream), default=None)

    def end(self) -> Iterator[Run]:
        """Yield the parts of the events that are still incomplete when no more records follow."""
        for key in list(self._held):
            yield from self._release(key)

    def _complete(self, key: tuple[str, str | None]) -> Iterator[Run]:
        parts = self._release(key)
        event = joined(parts, JSON)
        if kernel.split(event.lengths, event.payload, (), 0)[0][2]:
            yield event
        else:
            yield from parts

    def _release(self, key: tuple[str, str | None]) -> list[Run]:
        parts = self._held.pop(key)
        self._size -= sum(len(part.payload) for part in parts)
        return parts


Read = Callable[[int, int], tuple[Run, ...]]


def event_at(read: Read, run: Run, oldest: int, last: int) -> tuple[int, ...] | None:
    """Return the numbers of all parts of the event of which *run* is one.

    :param read: called with a number and a size in bytes; returns the records from that number on, about as many bytes,
        and at least one record
    :param oldest: the oldest number of the stream that can be read
    :param last: the last number to consider
    :return: None if the event is incomplete or larger than :data:`LARGEST`, or if its parts are too far apart
    """
    before = _parts_before(read, run, oldest)
    if before is None:
        return None
    numbers, left = [*before, run.first_seq], BETWEEN
    size = len(before) * MAX_PAYLOAD + len(run.payload)
    position = run.first_seq + 1
    complete = run.content_type == LAST_PART
    while not complete and left > 0 and position <= last and size <= LARGEST:
        found = read(position, _READ)
        if not found:
            return None
        for each in found:
            if each.first_seq > last:
                return None
            if each.producer != run.producer:
                left -= each.size
                continue
            if not (is_part(each) and is_next(run, each)):
                return None
            numbers.append(each.first_seq)
            size += len(each.payload)
            complete = each.content_type == LAST_PART
            if complete:
                break
        position = found[-1].last_seq + 1
    return tuple(numbers) if complete and len(numbers) > 1 and size <= LARGEST else None


def _parts_before(read: Read, run: Run, oldest: int) -> list[int] | None:
    """Return the numbers of the parts before *run*, or None if the first one is not found."""
    numbers: list[int] = []
    end, count, left = run.first_seq, _FEW, BETWEEN
    while end > oldest:
        begin = max(oldest, end - count)
        mine, left = _of_producer(read, run, begin, end, left)
        if left <= 0:
            return None
        for each in reversed(mine):
            if each.content_type != PART or not (is_part(each) and is_next(run, each)):
                return numbers
            numbers.insert(0, each.first_seq)
            if len(numbers) * MAX_PAYLOAD > LARGEST:
                return None
        end, count = begin, min(2 * count, _MANY)
    return numbers if oldest == 1 else None


def _of_producer(read: Read, run: Run, begin: int, end: int, left: int) -> tuple[list[Run], int]:
    """Return those runs from number *begin* to before *end* whose producer is that of *run*.

    :return: these runs, and *left* minus the bytes of the records of other producers in between
    """
    mine: list[Run] = []
    while begin < end and left > 0:
        found = read(begin, _READ)
        if not found:
            break
        for each in found:
            if each.first_seq >= end:
                break
            if each.producer == run.producer:
                mine.append(each)
            else:
                left -= each.size
        begin = found[-1].last_seq + 1
    return mine, left
