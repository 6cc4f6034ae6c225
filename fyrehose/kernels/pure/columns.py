"""The kernels of runs: their construction, how many records fit into a number of bytes, their JSON, and the runs in a
batch of the journal.

Tables are arrays of 64-bit integers with two dimensions, such as those of numpy, so that both versions fill them:

    kinds      for each kind of run: index of its stream, or -1 if the stream is not selected; offset of the columns in
    a run; bytes of the optional columns for each record
    streams    for each stream: last number so far, or -1 if it is unknown; first and last number that are selected
    found      for each run: kind, records, first number, time, first producer_seq, chunk; offsets in the chunk of the
               optional columns, the lengths and the payloads; size of the payloads
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any

from fyrehose.jsontext import quoted
from fyrehose.kernels.buffers import Buffer

#: The header of a run (journal/format.py), up to the lengths of its names.
_RUN = Struct("<IIQQI")
#: Offset from which on the headers of all runs of one kind are equal, and the layout of the lengths of its names.
_KIND, _NAMES = 28, Struct("<HHHBB")
_HEADER, _NAMES_AT = 40, 30

#: Bytes of a run in the journal besides its columns and names, and the limit of the bytes that a name's character
#: needs.
AROUND, CHARACTER = 64, 6


def build_run(
    self: Any,
    *,
    lengths: Buffer,
    payload: Buffer,
    stream: str,
    source: str,
    producer: str | None = None,
    topic: str | None = None,
    content_type: str | None = None,
    producer_seq: int | Buffer | None = None,
    event_ids: Buffer | None = None,
    event_times: Buffer | None = None,
    first_seq: int = 0,
    time: int = 0,
) -> None:
    """Construct a :class:`.records.Run`: set its fields, and compute its sizes."""
    self.lengths, self.payload = lengths, payload
    self.stream, self.source = stream, source
    self.producer, self.topic, self.content_type = producer, topic, content_type
    self.producer_seq, self.event_ids, self.event_times = producer_seq, event_ids, event_times
    self.first_seq, self.time = first_seq, time
    size = len(payload) + len(lengths) + len(event_ids or b"") + len(event_times or b"")
    if producer_seq is not None and not isinstance(producer_seq, int):
        size += len(producer_seq)
    names = len(stream) + len(source) + len(producer or "") + len(topic or "") + len(content_type or "")
    self.last_seq = first_seq + len(lengths) // 4 - 1
    self.size = size
    self.room = size + AROUND + CHARACTER * names


def count(self: Any) -> int:
    """Return the number of payloads of a column; this is ``len()`` of a :class:`.records.Column`."""
    return len(self.lengths) // 4


def build_delivery(self: Any, runs: Sequence[Any]) -> None:
    """Construct a :class:`.records.Delivery`: set its fields, and add up the sizes of its runs."""
    self.runs = runs
    self.first_seq, self.last_seq = runs[0].first_seq, runs[-1].last_seq
    count = payload_size = size = 0
    for run in runs:
        count += len(run.lengths) // 4
        payload_size += len(run.payload)
        size += run.size
    self.payload_size, self.size, self.count, self._encoded = payload_size, size, count, {}


def encoded(self: Any, encode: Any) -> Any:
    """Return ``encode(runs)``, computed only once for each *encode*; the method of :class:`.records.Delivery`."""
    found = self._encoded.get(encode)
    if found is None:
        found = self._encoded[encode] = encode(self.runs)
    return found


def span(lengths: Buffer, start: int, stop: int, most: int) -> tuple[int, int]:
    """Find how many of the records from *start* to *stop* fit into *most* bytes.

    :param lengths: column of u32, little-endian
    :return: index of the first record that does not fit, or *stop*; and the size of the payloads before it, in bytes
    :raises IndexError: the column does not have all these records
    """
    sizes = memoryview(lengths).cast("B").cast("I")
    if not 0 <= start <= stop <= len(sizes):
        raise IndexError(f"records {start} to {stop} do not exist in a column of {len(sizes)}")
    total = 0
    for at, size in enumerate(sizes[start:stop], start):
        if total + size > most:
            return at, total
        total += size
    return stop, total


def walk(
    chunk: Buffer,
    at: int,
    stop: int,
    number: int,
    time: int,
    known: dict[bytes, int],
    kinds: Any,
    streams: Any,
    found: Any,
    used: int,
) -> tuple[int, int]:
    """Add the runs of a batch to *found*, and advance their streams.

    The walk ends before a run that the caller has to handle: its kind is not known, its numbers do not continue those
    of the previous run, only a part of it is selected, or its lengths contradict each other.

    :param at, stop: where the batch begins and ends in *chunk*
    :param number: the number of the chunk, which is stored for each run, as is *time*, the time of the batch
    :param known: the index of each kind, by the bytes of its headers
    :param used: how many runs *found* has already; it has space for all runs of the batch
    :return: the offset behind the last run that was processed, and the number of runs in *found*
    """
    view = memoryview(chunk)
    while stop - at >= _HEADER:
        length, count, first, producer_first, size = _RUN.unpack_from(view, at)
        names = sum(_NAMES.unpack_from(view, at + _NAMES_AT))
        kind = known.get(bytes(view[at + _KIND : min(at + _HEADER + names, stop)]))
        end = at + length
        if kind is None or not at + _HEADER + names <= end <= stop:
            break
        stream = kinds[kind, 0]
        if stream >= 0:
            last, final = streams[stream, 0], first + count - 1
            if (last >= 0 and first > last + 1) or first < streams[stream, 1] or final > streams[stream, 2]:
                break
            optional = at + kinds[kind, 1]
            lengths = optional + kinds[kind, 2] * count
            payload = lengths + 4 * count + (4 * count & 4)
            if payload + size > end:
                break
            streams[stream, 0] = final
            signed = producer_first - (producer_first >> 63 << 64)
            row = (kind, count, first, time, signed, number, optional, lengths, payload, size)
            for column, value in enumerate(row):
                found[used, column] = value
            used += 1
        at = end
    return at, used


def gather(chunks: Sequence[Buffer], pieces: Any, out: Any) -> None:
    """Copy *pieces* of *chunks* to *out*, one behind the other.

    :param pieces: for each piece: the number of its chunk, its offset there, and its size
    :param out: a writable buffer of the size of all pieces
    :raises IndexError: a chunk does not have all bytes of its piece, or *out* is not as large as all pieces
    """
    target, at = memoryview(out).cast("B"), 0
    rows: Any = memoryview(pieces).tolist()
    for number, begin, size in rows:
        if not 0 <= number < len(chunks) or begin < 0 or size < 0 or begin + size > len(chunks[number]):
            raise IndexError(f"chunk {number} has no bytes {begin} to {begin + size}")
        if at + size > len(target):
            raise IndexError(f"the pieces have more than {len(target)} bytes")
        target[at : at + size] = memoryview(chunks[number])[begin : begin + size]
        at += size
    if at != len(target):
        raise IndexError(f"the pieces have {at} bytes, and not {len(target)}")


def texts(lengths: Buffer, payload: Buffer, first: int, head: bytes, middle: bytes, end: bytes) -> bytes | None:
    """Return *head*, the number, *middle*, the payload as it stands in a JSON string, and *end* of each record.

    :param lengths: column of u32, little-endian
    :param first: the number of the first record
    :return: the texts of all records, one behind the other; None if a payload is not UTF-8
    :raises IndexError: the payloads have fewer bytes than *lengths* says
    """
    found, view, begin = [], memoryview(payload), 0
    for number, size in enumerate(memoryview(lengths).cast("B").cast("I"), first):
        if begin + size > len(view):
            raise IndexError(f"record {number - first} ends beyond the {len(view)} bytes of the payloads")
        try:
            text = quoted(str(view[begin : begin + size], "utf-8"))
        except UnicodeDecodeError:
            return None
        found.append(b"%b%d%b%b%b" % (head, number, middle, text[1:-1].encode(), end))
        begin += size
    return b"".join(found)
