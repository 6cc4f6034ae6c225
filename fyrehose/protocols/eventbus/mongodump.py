"""Read a dump of the reference program's MongoDB collection: its events, with their numbers and times.

    mongodump    events.bson, events.bson.gz    documents in BSON, end to end
    mongoexport  events.json                    one document a line, in extended JSON, version 1 or 2

The reference program stores a document for each event:

    sequence   the number that it has given to the event
    created    when it stored the event
    raw        the event: topic, producer, timestamp, uuid, data

    file -> documents -> events, in the order of their numbers -> numbered runs

Documents may be a little out of order, because the program does not wait for MongoDB before the next event.
"""

from __future__ import annotations

import gzip
import heapq
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any
from uuid import UUID

import attrs

from fyrehose.errors import FyrehoseError, RemoteProtocolError
from fyrehose.imports import MONGODB
from fyrehose.protocols.eventbus.columns import PROTOCOL, RunBuilder
from fyrehose.protocols.eventbus.frames import check_event
from fyrehose.records import LAST_SEQ, Run

#: The largest document of BSON, in bytes: the 16 MiB that MongoDB permits, and what MongoDB itself may add.
LARGEST = (16 << 20) + (16 << 10)
#: The longest line of JSON, in bytes: a document of LARGEST bytes in base64, with room for its field names.
LONGEST = 32 << 20
#: How far documents may be out of order: the number of events that are sorted at a time, and the bytes of their data.
SORTED = 10_000
SORTED_BYTES = 64 << 20
#: How many events one run may have, and how many bytes of data.
RUN_EVENTS = 1_000
RUN_BYTES = 1 << 20

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Unusable(Exception):
    """A document holds no event, or an event that the event bus would refuse; the text says why."""


@attrs.frozen(order=False)
class DumpedEvent:
    """One event of a dump.

    :ivar where: where the document is in the file, for errors: ``the document at byte 4096``, for example
    :ivar created: when the reference program stored it, in microseconds since 1970 UTC
    :ivar frames: the six frames, as a publisher sends them
    """

    where: str
    sequence: int
    created: int
    frames: tuple[bytes, ...]


@attrs.define(eq=False)
class Dump:
    """The events of a dump file.

    :ivar refuse: called with the place of each unusable document in the file, and the reason; it may raise an error
    :ivar progress: called with the bytes of the file that were read, and its size
    :ivar repeated: number of documents that the file has more than once
    """

    path: Path
    stream: str
    refuse: Callable[[str, str], object]
    progress: Callable[[int, int], object] = lambda done, total: None
    repeated: int = attrs.field(default=0, init=False)

    def runs(self) -> Iterator[Run]:
        """Yield the events as numbered runs, in the order of their numbers.

        :raises MissingExtra: the package that reads BSON is not installed
        :raises FyrehoseError: the file is damaged, or a document is too far from its place in the order of the numbers
        """
        MONGODB.require("reading a dump of MongoDB")
        with self.path.open("rb") as raw:
            size = self.path.stat().st_size

            def events(file: IO[bytes]) -> Iterator[DumpedEvent]:
                for number, event in enumerate(self._events(file)):
                    if number % 256 == 0:
                        self.progress(raw.tell(), size)
                    yield event

            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with _damage_named(self.path), io.BufferedReader(gzip.GzipFile(fileobj=raw) if packed else raw) as file:
                yield from _runs(self._ordered(events(file)), self.stream)
            self.progress(size, size)

    def _events(self, file: IO[bytes]) -> Iterator[DumpedEvent]:
        """Yield the events in the order of the file."""
        begin = file.peek(4)[:4]  # type: ignore[attr-defined]
        documents = _bson if len(begin) == 4 and begin[3] < 2 else _json_lines
        for where, read in documents(file):
            try:
                yield event_of(where, read())
            except Unusable as reason:
                self.refuse(where, str(reason))

    def _ordered(self, events: Iterable[DumpedEvent]) -> Iterator[DumpedEvent]:
        """Yield *events* in the order of their numbers, each once."""
        heap: list[tuple[int, int, DumpedEvent]] = []
        size, last = 0, None

        def pop() -> Iterator[DumpedEvent]:
            """Yield the event with the lowest number if it is new; only count the event if it repeats the last one.

            :raises FyrehoseError: a higher number was yielded already
            """
            nonlocal size, last
            sequence, _, event = heapq.heappop(heap)
            size -= len(event.frames[5])
            if last is None or sequence > last.sequence:
                last = event
                yield event
            elif event.frames == last.frames:
                self.repeated += 1
            elif sequence == last.sequence:
                self.refuse(event.where, f"number {sequence} is that of another event, {last.where}")
            else:
                raise FyrehoseError(
                    f"{self.path}, {event.where}: number {sequence} follows {last.sequence}, too far out of order; "
                    "sort the dump: mongoexport --sort '{\"sequence\": 1}'"
                )

        for order, event in enumerate(events):
            heapq.heappush(heap, (event.sequence, order, event))
            size += len(event.frames[5])
            while len(heap) > SORTED or size > SORTED_BYTES:
                yield from pop()
        while heap:
            yield from pop()


def _runs(events: Iterable[DumpedEvent], stream: str) -> Iterator[Run]:
    """Yield *events* as runs; those of a run have consecutive numbers and were stored at the same time."""
    builder = RunBuilder(stream, PROTOCOL)
    first = following = created = size = 0

    def take() -> Iterator[Run]:
        batch, seq = builder.take(), first
        for run in () if batch is None else batch.runs:
            yield run.numbered(seq, created)
            seq += len(run)

    for event in events:
        full = following - first >= RUN_EVENTS or size >= RUN_BYTES
        if event.sequence != following or event.created != created or full:
            yield from take()
            first, created, size = event.sequence, event.created, 0
        builder.add(b"", event.frames)
        following = event.sequence + 1
        size += len(event.frames[5])
    yield from take()


def event_of(where: str, document: Any) -> DumpedEvent:
    """Return the event of a document.

    :param where: where the document is in the file
    :raises Unusable: the document is no event
    """
    raw = document.get("raw") if isinstance(document, dict) else None
    if not isinstance(raw, dict):
        advice = "; export without --jsonArray" if isinstance(document, list) else ""
        raise Unusable(f"the document has no event: expected the fields sequence, created and raw{advice}")
    sequence = document.get("sequence")
    whole = isinstance(sequence, int) or (isinstance(sequence, float) and sequence.is_integer())
    if isinstance(sequence, bool) or not whole or not 1 <= sequence <= LAST_SEQ:
        raise Unusable(f"sequence is {_shown(sequence)}, expected a whole number from 1 to {LAST_SEQ}")
    labels = (_text(raw, "topic"), b"null", _text(raw, "producer"), _text(raw, "timestamp"), _text(raw, "uuid"))
    frames = (*labels, _data(raw.get("data")))
    try:
        check_event(frames)
    except RemoteProtocolError as error:
        raise Unusable(str(error)) from error
    created = document.get("created", raw.get("timestamp"))
    return DumpedEvent(where, int(sequence), _micros(created) if isinstance(created, datetime) else 0, frames)


def _text(raw: dict[str, Any], name: str) -> bytes:
    value = raw.get(name)
    if value is None:
        return b""
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    if isinstance(value, datetime):  # as JavaScript writes it, whose times have milliseconds
        return _utc(value).replace(tzinfo=None).isoformat(timespec="milliseconds").encode() + b"Z"
    if isinstance(value, UUID):
        return str(value).encode()
    if isinstance(value, bytes) and len(value) == 16 and name == "uuid":  # BSON's own type of a UUID
        return str(UUID(bytes=value)).encode()
    raise Unusable(f"raw.{name} is {_shown(value)}, expected text")


def _data(value: Any) -> bytes:
    """Return the data in the form that the reference program sends: buffers unchanged, any other value as text."""
    if value is None:
        return b"null"
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    raise Unusable(f"raw.data is {_shown(value)}, expected binary data or text")


def _utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _micros(time: datetime) -> int:
    return (_utc(time) - _EPOCH) // _MICROSECOND


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, gzip.BadGzipFile) as error:
        raise FyrehoseError(f"{path} is damaged: {error}; copy it again") from error


#: A document: where it is in the file, and a function that parses it.
_Document = tuple[str, Callable[[], Any]]


def _bson(file: IO[bytes]) -> Iterator[_Document]:
    """Yield the documents of a BSON file."""
    import bson
    from bson.errors import BSONError

    def parse(data: bytes) -> Any:
        try:
            return bson.decode(data)
        except (BSONError, RecursionError, ValueError) as error:
            raise Unusable(f"the document is not BSON: {error}") from error

    at = 0
    while head := file.read(4):
        where, size = f"the document at byte {at}", int.from_bytes(head, "little")
        if not 5 <= size <= LARGEST:
            raise FyrehoseError(
                f"{where} claims {size} bytes, expected 5 to {LARGEST}: the file is no dump, or damaged"
            )
        data = head + file.read(size - 4)
        if len(data) < size:
            raise FyrehoseError(f"{where} has {size} bytes, and the file ends after {len(data)} of them; copy it again")
        yield where, lambda data=data: parse(data)  # type: ignore[misc]
        at += size


def _json_lines(file: IO[bytes]) -> Iterator[_Document]:
    """Yield the documents of a file with a JSON document on each line."""
    from bson import json_util
    from bson.errors import BSONError

    def parse(line: bytes) -> Any:
        try:
            return json_util.loads(line.decode())
        except (BSONError, RecursionError, ValueError, TypeError, KeyError) as error:
            advice = "; export without --jsonArray" if line[:1] == b"[" else ""
            raise Unusable(f"the line is not a JSON document: {error}{advice}") from error

    number = 0
    while line := file.readline(LONGEST):
        number += 1
        if not line.endswith(b"\n") and len(line) == LONGEST:
            raise FyrehoseError(f"line {number} is longer than {LONGEST} bytes: the file is no dump of events")
        if line.strip():
            yield f"line {number}", lambda line=line: parse(line)  # type: ignore[misc]
