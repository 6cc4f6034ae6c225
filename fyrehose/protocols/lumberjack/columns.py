"""Converts frames to columns: consecutive events of one turn with the same topic and content type become one run.

    J  the document as it is; application/json, or application/x-lumberjack-j if it is not JSON
    D  a JSON object; or the frame's body as application/x-lumberjack-d, if its pairs are not UTF-8

The document of a J frame is never decoded; the kernel checks that it is a JSON text, and builds no object.  A document
that exceeds a record becomes several records: application/x-lumberjack-part, and application/x-lumberjack-last-part for
the last one.  Large events are runs of their own.
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
#: Content type of a J frame's document that is not JSON.
NOT_JSON = "application/x-lumberjack-j"
#: Content type of a D frame's body (count, keys and values, as on the wire) that is not UTF-8, or too large as JSON.
RAW_PAIRS = "application/x-lumberjack-d"
#: Content types of the parts of a document that exceeds a record.
PART = "application/x-lumberjack-part"
LAST_PART = "application/x-lumberjack-last-part"
#: Payloads of at least this many bytes become runs of their own, because copying them costs more than another run.
LARGE = 128 << 10


@attrs.define(eq=False)
class _Group:
    """Consecutive events with the same topic and content type, which become one run."""

    topic: bytes | None
    is_json: bool
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
            lengths=_join(self.lengths),
            payload=_join(self.payloads),
            producer_seq=_join_sequences(self.sequences),
            topic=None if self.topic is None else topic_of(self.topic),
            content_type=JSON if self.is_json else NOT_JSON,
        )


@attrs.define(eq=False)
class Columns:
    """Collects the events of one turn as runs.

    :ivar path: the keys that lead to an event's topic; empty: events have no topic
    :ivar most: number of bytes of an event in which its topic is searched
    """

    path: tuple[bytes, ...]
    most: int
    _runs: list[EventRun] = attrs.field(factory=list, init=False)
    _groups: list[_Group] = attrs.field(factory=list, init=False)
    _part_topic: str | None = attrs.field(default=None, init=False)

    def add_json(self, count: int, sequences: int | bytes, lengths: bytes, payload: bytes) -> int:
        """Add *count* documents.

        :param sequences: the first sequence if they are consecutive, otherwise a column of u64
        :param lengths: column of u32
        :return: number of runs that they start
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
        """Add the event of a D frame, as JSON, or as its *body* if JSON cannot represent its pairs."""
        document = to_json(pairs)
        if document is not None and len(document) <= MAX_PAYLOAD:
            self.add_json(1, sequence, pack("<I", len(document)), document)
            return
        self._close_groups()
        self._runs.append(
            EventRun(
                lengths=pack("<I", len(body)), payload=body, producer_seq=sequence, topic=None, content_type=RAW_PAIRS
            )
        )

    def add_part(self, sequence: int, payload: bytes, *, first: bool, last: bool) -> None:
        """Add a part of a document; all parts have the topic that the first part contains."""
        self._close_groups()
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
        """Return the runs in order, and clear them."""
        self._close_groups()
        runs, self._runs = self._runs, []
        return runs

    def _group(self, segment: Segment, size: int) -> _Group:
        """Return the group that *segment*, of *size* bytes, belongs to: the last one, or a new one."""
        _, topic, is_json = segment
        last = self._groups[-1] if self._groups else None
        if last is None or (last.topic, last.is_json) != (topic, is_json) or max(last.size, size) >= LARGE:
            last = _Group(topic, is_json)
            self._groups.append(last)
        last.size += size
        return last

    def _close_groups(self) -> None:
        self._runs += [group.run() for group in self._groups]
        self._groups.clear()


def _join(parts: list[Buffer]) -> Buffer:
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _join_sequences(parts: list[tuple[int | Buffer, int]]) -> int | Buffer:
    """Join sequences: return the first one if all are consecutive, otherwise a column of u64."""
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
    """Decode the inside of a JSON string as a topic; return None if it is no valid topic."""
    try:
        topic = loads(b'"' + raw + b'"') if b"\\" in raw else raw.decode()
        size = len(topic.encode())
    except ValueError:  # invalid UTF-8, an invalid escape, or half of a surrogate pair
        return None
    return topic if 1 <= size <= MAX_NAME else None
