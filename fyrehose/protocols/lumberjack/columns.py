"""From frames to columns: events that came in one turn become as few runs as their topics and content types allow.

    J  byte for byte; application/json, or application/x-lumberjack-j where it is plainly no JSON (empty, cut short)
    D  an object of JSON; application/x-lumberjack-d and the body of the frame where its pairs are not UTF-8

A J frame's document is never decoded: whether it begins and ends as JSON does is all that is looked at.
"""

from __future__ import annotations

from array import array
from json import loads
from struct import pack

import attrs

from fyrehose.kernels import lumberjack as kernel
from fyrehose.protocols.lumberjack.frames import EventRun, Pairs, to_json
from fyrehose.records import MAX_NAME, MAX_PAYLOAD

JSON = "application/json"
#: The document of a J frame that does not begin and end as JSON does.
NOT_JSON = "application/x-lumberjack-j"
#: The body of a D frame (count, keys and values, as on the wire) that is not UTF-8, or too large as JSON.
RAW_PAIRS = "application/x-lumberjack-d"


@attrs.define(eq=False)
class Columns:
    """What a turn has taken so far.

    :ivar path: the keys that lead to an event's topic; none: events have no topic
    :ivar most: in how many bytes of an event its topic is looked for
    """

    path: tuple[bytes, ...]
    most: int
    _runs: list[EventRun] = attrs.field(factory=list, init=False)
    _lengths: list[bytes] = attrs.field(factory=list, init=False)
    _payloads: list[bytes] = attrs.field(factory=list, init=False)
    _sequences: list[tuple[int | bytes, int]] = attrs.field(factory=list, init=False)

    def add_json(self, count: int, sequences: int | bytes, lengths: bytes, payload: bytes) -> None:
        """Documents; ``sequences`` is the first where they are consecutive, else a column."""
        self._lengths.append(lengths)
        self._payloads.append(payload)
        self._sequences.append((sequences, count))

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

    def take(self) -> list[EventRun]:
        """The runs, in order, once."""
        self._close()
        runs, self._runs = self._runs, []
        return runs

    def _close(self) -> None:
        if not self._lengths:
            return
        lengths, payload = b"".join(self._lengths), b"".join(self._payloads)
        sequences = _joined(self._sequences)
        self._lengths, self._payloads, self._sequences = [], [], []
        segments = kernel.split(lengths, payload, self.path, self.most)
        if len(segments) == 1:
            _, topic, looks = segments[0]
            self._runs.append(_run(lengths, payload, sequences, topic, looks))
            return
        sizes = memoryview(lengths).cast("I")
        first = begin = 0
        for count, topic, looks in segments:
            end = begin + sum(sizes[first : first + count])
            stop = first + count
            part = sequences + first if isinstance(sequences, int) else sequences[8 * first : 8 * stop]
            self._runs.append(_run(lengths[4 * first : 4 * stop], payload[begin:end], part, topic, looks))
            first, begin = stop, end


def _run(lengths: bytes, payload: bytes, sequences: int | bytes, topic: bytes | None, looks: bool) -> EventRun:
    return EventRun(
        lengths=lengths,
        payload=payload,
        producer_seq=sequences,
        topic=None if topic is None else topic_of(topic),
        content_type=JSON if looks else NOT_JSON,
    )


def _joined(parts: list[tuple[int | bytes, int]]) -> int | bytes:
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
