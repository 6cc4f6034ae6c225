"""From frames to columns: events that came in one turn become few runs: one for each topic and content type in turn,
and for each that is large.

    J  byte for byte; application/json, or application/x-lumberjack-j where it is plainly no JSON (empty, cut short)
    D  an object of JSON; application/x-lumberjack-d and the body of the frame where its pairs are not UTF-8

A J frame's document is never decoded: whether it begins and ends as JSON does is all that is looked at.  One that is
larger than a record may be becomes several records: application/x-lumberjack-part, and for the last of them
application/x-lumberjack-last-part.
"""

from __future__ import annotations

from array import array
from json import loads
from struct import pack

import attrs

from fyrehose.kernels import lumberjack as kernel
from fyrehose.kernels.pure.lumberjack import Segment
from fyrehose.protocols.lumberjack.frames import EventRun, Pairs, to_json
from fyrehose.records import MAX_NAME, MAX_PAYLOAD, Buffer

JSON = "application/json"
#: The document of a J frame that does not begin and end as JSON does.
NOT_JSON = "application/x-lumberjack-j"
#: The body of a D frame (count, keys and values, as on the wire) that is not UTF-8, or too large as JSON.
RAW_PAIRS = "application/x-lumberjack-d"
#: A part of a document that is larger than a record may be, and the last part.
PART = "application/x-lumberjack-part"
LAST_PART = "application/x-lumberjack-last-part"
#: Payloads that are at least so long are not joined with others, in bytes: another run costs less than the copy.
LARGE = 128 << 10


@attrs.define(eq=False)
class _Group:
    """Events that follow on, of one topic and content type: a run in pieces."""

    topic: bytes | None
    looks: bool
    size: int = attrs.field(default=0, init=False)
    lengths: list[Buffer] = attrs.field(factory=list, init=False)
    payloads: list[Buffer] = attrs.field(factory=list, init=False)
    sequences: list[tuple[int | Buffer, int]] = attrs.field(factory=list, init=False)

    def add(self, lengths: Buffer, payload: Buffer, sequences: int | Buffer, count: int) -> None:
        self.lengths.append(lengths)
        self.payloads.append(payload)
        self.sequences.append((sequences, count))

    def run(self) -> EventRun:
        return EventRun(
            lengths=_whole(self.lengths),
            payload=_whole(self.payloads),
            producer_seq=_joined(self.sequences),
            topic=None if self.topic is None else topic_of(self.topic),
            content_type=JSON if self.looks else NOT_JSON,
        )


@attrs.define(eq=False)
class Columns:
    """What a turn has taken so far.

    :ivar path: the keys that lead to an event's topic; none: events have no topic
    :ivar most: in how many bytes of an event its topic is looked for
    """

    path: tuple[bytes, ...]
    most: int
    _runs: list[EventRun] = attrs.field(factory=list, init=False)
    _groups: list[_Group] = attrs.field(factory=list, init=False)
    _part_topic: str | None = attrs.field(default=None, init=False)

    def add_json(self, count: int, sequences: int | bytes, lengths: bytes, payload: bytes) -> int:
        """Documents; ``sequences`` is the first where they are consecutive, else a column.

        :return: how many runs they begin
        """
        segments = kernel.split(lengths, payload, self.path, self.most)
        before = len(self._groups)
        if len(segments) == 1:
            self._group(segments[0], len(payload)).add(lengths, payload, sequences, count)
            return len(self._groups) - before
        column, data = memoryview(lengths), memoryview(payload)
        sizes = column.cast("I")
        first = begin = 0
        for segment in segments:
            stop = first + segment[0]
            end = begin + sum(sizes[first:stop])
            part = sequences + first if isinstance(sequences, int) else sequences[8 * first : 8 * stop]
            self._group(segment, end - begin).add(column[4 * first : 4 * stop], data[begin:end], part, segment[0])
            first, begin = stop, end
        return len(self._groups) - before

    def add_pairs(self, sequence: int, body: bytes, pairs: Pairs) -> None:
        """The pairs of a D frame, and the body that they came in."""
        document = to_json(pairs)
        if document is not None and len(document) <= MAX_PAYLOAD:
            self.add_json(1, sequence, pack("<I", len(document)), document)
            return
        self._close()
        self._runs.append(
            EventRun(
                lengths=pack("<I", len(body)), payload=body, producer_seq=sequence, topic=None, content_type=RAW_PAIRS
            )
        )

    def add_part(self, sequence: int, payload: bytes, *, first: bool, last: bool) -> None:
        """A part of a document; all of them have the topic that is found in the first."""
        self._close()
        if first:
            found = kernel.find(payload[: self.most], self.path)
            self._part_topic = None if found is None else topic_of(found)
        self._runs.append(
            EventRun(
                lengths=pack("<I", len(payload)),
                payload=payload,
                producer_seq=sequence,
                topic=self._part_topic,
                content_type=LAST_PART if last else PART,
            )
        )

    def take(self) -> list[EventRun]:
        """The runs, in order, once."""
        self._close()
        runs, self._runs = self._runs, []
        return runs

    def _group(self, segment: Segment, size: int) -> _Group:
        """What ``segment``, of ``size`` bytes, goes on with, or begins."""
        _, topic, looks = segment
        last = self._groups[-1] if self._groups else None
        if last is None or (last.topic, last.looks) != (topic, looks) or max(last.size, size) >= LARGE:
            last = _Group(topic, looks)
            self._groups.append(last)
        last.size += size
        return last

    def _close(self) -> None:
        self._runs += [group.run() for group in self._groups]
        self._groups.clear()


def _whole(parts: list[Buffer]) -> Buffer:
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _joined(parts: list[tuple[int | Buffer, int]]) -> int | Buffer:
    """Sequences end to end: the first where they are consecutive throughout, else a column."""
    first = parts[0][0]
    expected = first
    for sequences, count in parts:
        if not isinstance(sequences, int) or sequences != expected:
            break
        expected = sequences + count
    else:
        return first
    column = array("Q")
    for sequences, count in parts:
        if isinstance(sequences, int):
            column.extend(range(sequences, sequences + count))
        else:
            column.frombytes(sequences)
    return column.tobytes()


def topic_of(raw: bytes) -> str | None:
    """The topic that a string of JSON says, given without its quotes; None if it cannot be one."""
    try:
        topic = loads(b'"' + raw + b'"') if b"\\" in raw else raw.decode()
        size = len(topic.encode())
    except ValueError:  # no UTF-8, no escape that JSON knows, or half of a surrogate pair
        return None
    return topic if 1 <= size <= MAX_NAME else None
