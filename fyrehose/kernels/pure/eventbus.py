"""The event bus's kernels: convert events between ZMTP frames and columns, if their labels have the usual forms.

An event is a ZeroMQ message of six frames (event-bus.md, "Client-to-Server Updates"), each with the header of ZMTP 3
(RFC 23): flags u8 (1: more frames follow, 2: a long size), and the size as u8 or u64 in network byte order::

    topic | sequence | producer | timestamp | uuid | data

    sequence    8 bytes in network order, or digits     consecutive within a run
    timestamp   2024-05-01T10:20:30.123Z                i64, microseconds since 1970 UTC
    uuid        7d444840-9dc0-11d1-b245-5ffdce74fad2    16 bytes

Events with labels of other forms are rare; ``fyrehose.protocols.eventbus.labels`` reads and writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import groupby
from struct import Struct, pack

from fyrehose.kernels.buffers import Buffer, places

#: Topic, producer, UUIDs (16 bytes each), times (i64, us since 1970 UTC), lengths of the data (u32), data end to end;
#: integers of columns are little-endian.
Events = tuple[str, str, bytes, bytes, bytes, bytes]

#: The largest sequence and the largest producer, in bytes.
MAX_LABEL = 64
#: Largest number of runs that one call of gather() returns.
RUNS = 256

_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_TIMESTAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)
_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_LONG = Struct(">BQ")
#: The flags of a frame: other frames follow; its size has 8 bytes.
_MORE, _LONG_SIZE = 1, 2
#: How many frames of an event follow its topic, and precede its data.
_LABELS = 4

_Event = tuple[int, str, str, bytes, int, Buffer]


def gather(buffer: bytes | bytearray, start: int, largest: int, most: int) -> tuple[int, list[Events]]:
    """Scan complete events whose labels have the usual forms, as runs of the same topic and producer.

    The scan ends before a command, an event that is incomplete or has other labels, data of more than *largest* bytes,
    and before the data exceeds *most* bytes (but it returns at least one event) or there are more than ``RUNS`` runs.

    :return: the end of the last event, and the runs in the order of the events
    """
    found: list[_Event] = []
    total = runs = 0
    for event in _whole(buffer, start, largest):
        runs += not found or found[-1][1:3] != event[1:3]
        if runs > RUNS or (found and total + len(event[5]) > most):
            break
        total += len(event[5])
        found.append(event)
        start = event[0]
    return start, [_run(list(group)) for _, group in groupby(found, lambda event: event[1:3])]


def _run(events: list[_Event]) -> Events:
    _, topic, producer, *_ = events[0]
    count = len(events)
    ids = b"".join(event[3] for event in events)
    times = pack(f"<{count}q", *(event[4] for event in events))
    return topic, producer, ids, times, pack(f"<{count}I", *(len(event[5]) for event in events)), _joined(events)


def _joined(events: list[_Event]) -> bytes:
    return b"".join(event[5] for event in events)


def _whole(buffer: bytes | bytearray, start: int, largest: int) -> Iterator[_Event]:
    """Yield end, topic, producer, UUID, time and data of each event, up to one that is not as usual."""
    while True:
        labels, at = [], start
        for _ in range(1 + _LABELS):
            begin = at + 2
            if len(buffer) < begin or buffer[at] != _MORE or len(buffer) < (at := begin + buffer[begin - 1]):
                return
            labels.append(bytes(buffer[begin:at]))
        if len(buffer) < at + 2 or buffer[at] not in (0, _LONG_SIZE):
            return
        begin = at + (_LONG.size if buffer[at] else 2)
        if len(buffer) < begin:
            return
        size = _LONG.unpack_from(buffer, at)[1] if buffer[at] else buffer[at + 1]
        start = begin + size
        if size > largest or len(buffer) < start:
            return
        read = _read_labels(*labels)
        if read is None:
            return
        yield (start, *read, buffer[begin:start])


def _read_labels(
    topic: bytes, sequence: bytes, producer: bytes, timestamp: bytes, uuid: bytes
) -> tuple[str, str, bytes, int] | None:
    if max(len(sequence), len(producer)) > MAX_LABEL:
        return None
    if not _TIMESTAMP.fullmatch(timestamp) or not _UUID.fullmatch(uuid):
        return None
    try:
        time = (datetime.fromisoformat(timestamp[:-1].decode()) - _EPOCH) // _MICROSECOND
        return topic.decode(), producer.decode(), bytes.fromhex(uuid.replace(b"-", b"").decode()), time
    except ValueError:  # for example the 30th of February, or invalid UTF-8
        return None


def frames(
    head: bytes,
    topic: bytes,
    producer: bytes,
    first: int,
    event_times: Buffer,
    event_ids: Buffer,
    lengths: Buffer,
    payload: Buffer,
    decimal: bool,
) -> bytes:
    """Encode a run as events, end to end.

    :param head: the frames that precede each event, encoded
    :param topic: at most 255 bytes, as *producer*
    :param first: sequence of the first event
    :param event_times: column of i64, microseconds since 1970 UTC
    :param event_ids: column of UUIDs, 16 bytes each
    :param lengths: column of u32, little-endian
    :param decimal: write sequences as decimal digits instead of 8 bytes
    :raises ValueError: the columns do not fit together, a label is too long, a sequence is negative, or a time is
        outside the years 1 to 9999
    """
    found = places(lengths, payload)
    count = len(found)
    if len(event_times) != 8 * count or len(event_ids) != 16 * count or max(len(topic), len(producer)) > 255:
        raise ValueError("the events cannot be framed: expected a time and a UUID for each, and labels of 255 bytes")
    if first < 0 or first + count > 1 << 64:
        raise ValueError("the events cannot be framed: expected sequences of 64 bits")
    times, ids, view = memoryview(event_times).cast("B").cast("q"), memoryview(event_ids), memoryview(payload)
    before, between = head + _short(topic), _short(producer)
    parts: list[Buffer] = []
    for row, (begin, end) in enumerate(found):
        sequence = b"%d" % (first + row) if decimal else (first + row).to_bytes(8, "big")
        uuid = _short(_format_uuid(ids[16 * row : 16 * row + 16]))
        size = end - begin
        data = bytes((0, size)) if size < 256 else _LONG.pack(_LONG_SIZE, size)
        parts += (before, _short(sequence), between, _short(_format_time(times[row])), uuid, data, view[begin:end])
    return b"".join(parts)


def _short(label: bytes) -> bytes:
    return bytes((_MORE, len(label))) + label


def _format_time(micros: int) -> bytes:
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise ValueError("time is outside the years 1 to 9999") from None
    return moment.isoformat(timespec="milliseconds").encode() + b"Z"


def _format_uuid(event_id: memoryview) -> bytes:
    text = event_id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}".encode()
