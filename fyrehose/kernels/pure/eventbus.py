"""The event bus's kernels: convert labels in their usual formats between the wire and columns.

    timestamp   2024-05-01T10:20:30.123Z                i64, microseconds since 1970 UTC
    uuid        7d444840-9dc0-11d1-b245-5ffdce74fad2    16 bytes
    sequence    8 bytes in network order, or digits     consecutive within a run

Labels in other formats are rare; ``fyrehose.protocols.eventbus.labels`` reads and writes them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from struct import Struct

from fyrehose.kernels.buffers import Buffer

#: Sequence, timestamp and UUID in wire format.
Row = tuple[bytes, bytes, bytes]

_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_TIMESTAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)
_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SEQUENCE = Struct(">Q")


def read_event(
    frames: Sequence[bytes], most_topic: int, most_label: int, most_data: int
) -> tuple[str, str, bytes, int] | None:
    """Parse the labels of an event's six frames, if they have the usual formats.

    :param frames: topic, sequence, producer, timestamp, UUID, data
    :param most_topic: limit of the topic in bytes; *most_label* is that of each other label, *most_data* that of the
        data
    :return: topic, producer, UUID (16 bytes), time (us since 1970 UTC); None if a format is unusual or a limit exceeded
    """
    if len(frames) != 6:
        return None
    topic, sequence, producer, timestamp, uuid, data = frames
    if len(topic) > most_topic or max(len(sequence), len(producer)) > most_label or len(data) > most_data:
        return None
    if not _TIMESTAMP.fullmatch(timestamp) or not _UUID.fullmatch(uuid):
        return None
    try:
        time = (datetime.fromisoformat(timestamp[:-1].decode()) - _EPOCH) // _MICROSECOND
        return topic.decode(), producer.decode(), bytes.fromhex(uuid.replace(b"-", b"").decode()), time
    except ValueError:  # for example the 30th of February, or invalid UTF-8
        return None


def rows(first: int, event_times: Buffer, event_ids: Buffer, start: int, stop: int, decimal: bool) -> list[Row]:
    """Format the labels of the rows *start* to *stop* of a run.

    :param first: sequence of the run's row 0
    :param event_times: column of i64, microseconds since 1970 UTC
    :param event_ids: column of UUIDs, 16 bytes each
    :param decimal: format sequences as decimal digits instead of 8 bytes
    :return: (sequence, timestamp, UUID) of each row, in wire format
    :raises ValueError: the columns hold no such rows, or a time is outside the years 1 to 9999
    """
    count = len(event_times) // 8
    if not 0 <= start <= stop <= count or len(event_times) % 8 or len(event_ids) != 16 * count:
        raise ValueError(f"columns hold no rows {start} to {stop}")
    times = memoryview(event_times).cast("B").cast("q")
    found = []
    for row in range(start, stop):
        sequence = b"%d" % (first + row) if decimal else _SEQUENCE.pack(first + row)
        found.append((sequence, _format_time(times[row]), _format_uuid(event_ids[16 * row : 16 * row + 16])))
    return found


def _format_time(micros: int) -> bytes:
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise ValueError("time is outside the years 1 to 9999") from None
    return moment.isoformat(timespec="milliseconds").encode() + b"Z"


def _format_uuid(event_id: Buffer) -> bytes:
    text = event_id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}".encode()
