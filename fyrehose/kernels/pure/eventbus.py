"""The event bus's kernels: labels of the usual forms, between what travels and columns.

    timestamp   2024-05-01T10:20:30.123Z                i64, microseconds since 1970 UTC
    uuid        7d444840-9dc0-11d1-b245-5ffdce74fad2    16 bytes
    sequence    8 bytes in network order, or digits     the first of a run, and so on

What has another form is rare, and not for these loops: ``fyrehose.protocols.eventbus.labels`` reads and writes it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from struct import Struct

Buffer = bytes | bytearray | memoryview
#: Sequence, timestamp and UUID, as they travel.
Row = tuple[bytes, bytes, bytes]

_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_TIMESTAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)
_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SEQUENCE = Struct(">Q")


def read_event(
    frames: Sequence[bytes], most_topic: int, most_label: int, most_data: int
) -> tuple[str, str, bytes, int] | None:
    """What the labels of an event's six frames say, where they have the usual forms.

    :param frames: topic, sequence, producer, timestamp, UUID, data
    :param most_topic: the longest topic, in bytes; so for the other labels, and for the data
    :return: topic, producer, UUID (16 bytes), time (us since 1970 UTC); None for anything that is not usual
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
    except ValueError:  # the 30th of February, or no UTF-8
        return None


def rows(
    first: int, event_times: Buffer, event_ids: Buffer, start: int, stop: int, decimal: bool
) -> list[tuple[bytes, bytes, bytes]]:
    """The labels of rows ``start`` to ``stop`` of a run whose first sequence is ``first``, in the usual forms.

    :raises ValueError: the columns have no such rows, or a time is not of the years 1 to 9999
    """
    count = len(event_times) // 8
    if not 0 <= start <= stop <= count or len(event_times) % 8 or len(event_ids) != 16 * count:
        raise ValueError("columns that have no such rows")
    times = memoryview(event_times).cast("B").cast("q")
    found = []
    for row in range(start, stop):
        sequence = b"%d" % (first + row) if decimal else _SEQUENCE.pack(first + row)
        found.append((sequence, _written_time(times[row]), _written_uuid(event_ids[16 * row : 16 * row + 16])))
    return found


def _written_time(micros: int) -> bytes:
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise ValueError("a time that is not of the years 1 to 9999") from None
    return moment.isoformat(timespec="milliseconds").encode() + b"Z"


def _written_uuid(event_id: Buffer) -> bytes:
    text = event_id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}".encode()
