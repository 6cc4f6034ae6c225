"""Convert frames to columns: consecutive events of one turn with the same topic and content type become one run.

The events of a run are consecutive in their own stream; with routes, events of other streams may stand between them.

    J  the document as it is; application/json, or application/x-lumberjack-j if it is not JSON
    D  a JSON object; or the frame's body as application/x-lumberjack-d, if its pairs are not UTF-8

The document of a J frame is never decoded; the kernel checks that it is a JSON text, and builds no object.  A document
that exceeds a record becomes several records: application/x-lumberjack-part, and application/x-lumberjack-last-part for
the last one.  Large events are runs of their own.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
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
#: Content types of the parts of a J frame's document that is larger than a record, and of its last part.
PART = "application/x-lumberjack-part"
LAST_PART = "application/x-lumberjack-last-part"
#: Content type of a D frame's body (count, keys and values, as on the wire) that is not UTF-8, or too large as JSON.
RAW_PAIRS = "application/x-lumberjack-d"
#: Payloads of at least this many bytes become runs of their own, because copying such a payload costs more than a run.
LARGE = 128 << 10


#: A function that returns the stream of an event for its topic and its further strings; None: no route fits.
Route = Callable[[str | None, Sequence[str | None]], str | None]


@attrs.define(eq=False)
class _Group:
    """Consecutive events of a stream with the same topic and content type, which become one run."""

    stream: str | None
    topic: bytes | None
    is_json: bool
    size: int = attrs.field(default=0, init=False)
    #: the lengths, payloads and sequences of consecutive events, and how many events these are
    parts: list[tuple[Buffer, Buffer, int | Buffer, int]] = attrs.field(factory=list, init=False)

    def run(self) -> EventRun:
        """Return the events as one run."""
        lengths, payload, sequences, _ = self.parts[0]
        if len(self.parts) > 1:
            lengths = b"".join(part[0] for part in self.parts)
            payload = b"".join(part[1] for part in self.parts)
            sequences = _join_sequences([part[2:] for part in self.parts])
        return EventRun(
            lengths=lengths,
            payload=payload,
            producer_seq=sequences,
            topic=text_of(self.topic),
            content_type=JSON if self.is_json else NOT_JSON,
            stream=self.stream,
        )


@attrs.define(eq=False)
class Columns:
    """A collector of the events of one turn, which returns them as runs.

    :ivar paths: the keys that lead to an event's topic (empty: events have no topic), and to each further string
    :ivar route: returns the stream of an event for its topic and its further strings; None: there are no routes
    """

    paths: tuple[tuple[bytes, ...], ...]
    route: Route | None = None
    _runs: list[EventRun] = attrs.field(factory=list, init=False)
    _groups: list[_Group] = attrs.field(factory=list, init=False)
    #: the last group of each stream
    _latest: dict[str | None, _Group] = attrs.field(factory=dict, init=False)
    #: the stream for each combination of topic and further strings that was found in this turn
    _streams: dict[tuple[bytes | None, ...], str | None] = attrs.field(factory=dict, init=False)
    #: the topic and the stream of the parts that follow
    _part_place: tuple[bytes | None, str | None] = attrs.field(default=(None, None), init=False)

    def add_json(self, count: int, sequences: int | bytes, lengths: bytes, payload: bytes) -> int:
        """Add *count* documents.

        :param sequences: the first sequence if the sequences are consecutive, otherwise a column of u64
        :param lengths: the length of each document, as a column of u32
        :return: the number of new runs that the documents begin
        """
        before = len(self._groups)
        if self.route is not None and self._add_routed(sequences, lengths, payload):
            return len(self._groups) - before
        segments = kernel.split(lengths, payload, self.paths)
        if len(segments) == 1:
            self._group_of(segments[0], len(payload)).parts.append((lengths, payload, sequences, count))
            return len(self._groups) - before
        column, data = memoryview(lengths), memoryview(payload)
        sizes = column.cast("I")
        first = begin = 0
        for segment in segments:
            stop = first + segment[0]
            end = begin + sum(sizes[first:stop])
            part = sequences + first if isinstance(sequences, int) else sequences[8 * first : 8 * stop]
            lengths_of = column[4 * first : 4 * stop]
            self._group_of(segment, end - begin).parts.append((lengths_of, data[begin:end], part, segment[0]))
            first, begin = stop, end
        return len(self._groups) - before

    def _add_routed(self, sequences: int | bytes, lengths: bytes, payload: bytes) -> bool:
        """Add documents of several streams, sorted by stream; return False if that could change their order."""
        classes, of = kernel.classify(lengths, payload, self.paths)
        parts: dict[tuple[str | None, bytes | None, bool], int] = {}
        table = bytearray(256)
        for number, (found, is_json) in enumerate(classes):
            table[number] = parts.setdefault((self._stream_of(found), found[0], is_json), len(parts))
        if not classes or len({stream for stream, *_ in parts}) < len(parts):
            return False
        if len(parts) == 1:
            self._group(*next(iter(parts)), len(payload)).parts.append((lengths, payload, sequences, len(of)))
            return True
        scattered = kernel.scatter(of.translate(table), len(parts), sequences, lengths, payload)
        for part, (count, numbers, sizes, data) in zip(parts, scattered, strict=True):
            self._group(*part, len(data)).parts.append((sizes, data, numbers, count))
        return True

    def add_pairs(self, sequence: int, body: bytes, pairs: Pairs) -> None:
        """Add the event of a D frame, as JSON, or as the frame's *body* if JSON cannot represent its pairs."""
        document = to_json(pairs)
        if document is not None and len(document) <= MAX_PAYLOAD:
            self.add_json(1, sequence, pack("<I", len(document)), document)
            return
        self._add_alone(sequence, body, self._place((None,) * len(self.paths)), RAW_PAIRS)

    def add_part(self, sequence: int, payload: bytes, *, first: bool, last: bool) -> None:
        """Add a part of a document; all parts get the topic and the stream of the first part."""
        if first:
            self._part_place = self._place(self._find(payload))
        self._add_alone(sequence, payload, self._part_place, LAST_PART if last else PART)

    def add_refused(self, sequence: int, payload: bytes, size: int) -> None:
        """Add a document of *size* bytes that is too large, and of which *payload* is the beginning."""
        self._add_alone(sequence, payload, self._place(self._find(payload)), NOT_JSON, size)

    def take(self) -> list[EventRun]:
        """Return the runs in order, and clear them."""
        self._close_groups()
        self._streams.clear()  # the routes may change between two turns
        runs, self._runs = self._runs, []
        return runs

    def _find(self, document: bytes) -> tuple[bytes | None, ...]:
        return tuple(kernel.find(document, path) for path in self.paths)

    def _place(self, found: tuple[bytes | None, ...]) -> tuple[bytes | None, str | None]:
        """Return the topic and the stream of an event with the strings *found*."""
        return found[0], self._stream_of(found)

    def _add_alone(
        self, sequence: int, payload: bytes, place: tuple[bytes | None, str | None], content_type: str, size: int = 0
    ) -> None:
        """Add an event with the topic and the stream of *place* as a run of its own."""
        self._close_groups()
        self._runs.append(
            EventRun(
                lengths=pack("<I", len(payload)),
                payload=payload,
                producer_seq=sequence,
                topic=text_of(place[0]),
                content_type=content_type,
                stream=place[1],
                too_large=size,
            )
        )

    def _group_of(self, segment: Segment, size: int) -> _Group:
        """Return the group to which the events of *segment* (*size* bytes) belong, and count them there."""
        _, found, is_json = segment
        return self._group(self._stream_of(found), found[0], is_json, size)

    def _group(self, stream: str | None, topic: bytes | None, is_json: bool, size: int) -> _Group:
        """Return the group for events of *size* bytes: the last group of their *stream*, or a new one."""
        last = self._latest.get(stream)
        if last is None or (last.topic, last.is_json) != (topic, is_json) or max(last.size, size) >= LARGE:
            last = self._latest[stream] = _Group(stream, topic, is_json)
            self._groups.append(last)
        last.size += size
        return last

    def _stream_of(self, found: tuple[bytes | None, ...]) -> str | None:
        """Return the stream of an event with the strings *found*; None: no route fits, or there are no routes."""
        if self.route is None:
            return None
        if found not in self._streams:
            topic, *strings = map(text_of, found)
            self._streams[found] = self.route(topic, strings)
        return self._streams[found]

    def _close_groups(self) -> None:
        for group in self._groups:
            self._runs.append(group.run())
        self._groups.clear()
        self._latest.clear()


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


def text_of(raw: bytes | None) -> str | None:
    """Decode the inside of a JSON string; return None if *raw* is None, or is no valid topic."""
    if raw is None:
        return None
    try:
        topic = loads(b'"' + raw + b'"') if b"\\" in raw else raw.decode()
        size = len(topic.encode())
    except ValueError:  # invalid UTF-8, an invalid escape, or half of a surrogate pair
        return None
    return topic if 1 <= size <= MAX_NAME else None
