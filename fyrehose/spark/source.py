"""The data source ``fyrehose``: ``spark.read.format("fyrehose")`` and ``spark.readStream.format("fyrehose")``.

    path                 a journal's directory, or http://HOST:PORT of ``fyrehose journal serve``
    tokenFile            the file with that server's token; default: the environment's FYREHOSE_TOKEN_FILE
    streams, start, end  select records (spark/selection.py)
    startPosition, endPosition    select records by positions of the journal
    gaps                 ``error``, or ``skip`` to ignore numbers that are missing from the journal
    table                ``records``, or ``gaps`` for the numbers that are missing (spark/gaps.py)
    partitionBytes       size of the part that a task reads, in bytes
    maxRowsPerBatch, maxBytesPerBatch    limits of a micro-batch
    subscription         name of a subscription: retention keeps what a stream's checkpoint does not have yet

The offset of a stream of micro-batches is a position of the journal, for all streams, with the journal's identity and
the checksum of what is before it.  Therefore, instead of skipping records, a query is refused if its checkpoint was
made with another journal, or with a copy of the journal that was continued differently.

Spark does not prune columns for a source in Python: pass ``.schema("stream string, seq bigint")`` to read only these.
Filters are not pushed down, because Spark 4.3 reuses the plan of a filtered query for the next query of the same
DataFrame without a filter, which would silently return fewer rows (docs/spark.md).  Use the options instead.

A DataFrame is planned once, when it is first used, and keeps the same records from then on.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import attrs
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from fyrehose.errors import ConfigError, JournalCorrupt
from fyrehose.journal.subscriptions import checked_name
from fyrehose.offline.offsets import Offset, Offsets
from fyrehose.offline.places import Place, place
from fyrehose.offline.view import Extent, View
from fyrehose.options import size as size_of
from fyrehose.spark import columns as col
from fyrehose.spark.gaps import survey
from fyrehose.spark.plan import ANEW, PIECE, Planner, admitted, check, resumed
from fyrehose.spark.reading import PartReader
from fyrehose.spark.selection import Selection, selection
from fyrehose.spark.sink import BatchWriter, SinkTarget, StreamWriter, refuse_unknown

log = logging.getLogger(__name__)

GAPS = (
    "stream string, first_seq bigint, last_seq bigint, kind string not null, file string not null, "
    "position bigint not null, reason string not null"
)
_NO_LIMIT = 1 << 62
#: How often a subscription that does not move is updated, in seconds; without updates it would expire.
HEARTBEAT = 60.0
#: The options of the source.
OPTIONS = (
    *("path", "tokenFile", "streams", "start", "end", "startPosition", "endPosition", "gaps", "table"),
    *("partitionBytes", "maxRowsPerBatch", "maxBytesPerBatch", "subscription"),
)


@attrs.frozen
class SourceOptions:
    """Parsed options of the source."""

    place: Place
    selection: Selection
    latest: bool  #: begin with records that are appended from now on
    start_position: Offset | None
    end_position: Offset | None
    skip_gaps: bool
    table: str
    piece: int
    max_rows: int | None
    max_bytes: int | None
    subscription: str | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse the options.

        :raises ConfigError: an option is invalid, or ``path`` is missing
        """
        refuse_unknown(options, OPTIONS, "source")
        path = options.get("path")
        if not path:
            raise ConfigError(
                'no journal given: use .load("/path/of/journal"), or .load("http://HOST:PORT"); Spark does not pass '
                "the options of CREATE TABLE to sources in Python, so in SQL use CREATE TEMPORARY VIEW name USING "
                "fyrehose OPTIONS (path '/path/of/journal')"
            )
        return cls(
            place=place(path, options.get("tokenFile")),
            selection=selection(options.get("streams"), options.get("start"), options.get("end")),
            latest=options.get("start") == "latest",
            start_position=_offset(options, "startPosition"),
            end_position=_offset(options, "endPosition"),
            skip_gaps=_one_of(options, "gaps", ("error", "skip")) == "skip",
            table=_one_of(options, "table", ("records", "gaps")),
            piece=_number(options, "partitionBytes", least=1) or PIECE,
            max_rows=_number(options, "maxRowsPerBatch", least=1),
            max_bytes=_number(options, "maxBytesPerBatch", least=1),
            subscription=None if (name := options.get("subscription")) is None else checked_name(name),
        )

    def parts(self, start: int | None, stop: int | None) -> list[InputPartition]:
        """Return the parts of the journal between two positions, each as the partition of one task."""
        planner = Planner(self.place, self.selection, self.piece, self.skip_gaps)
        if start is not None:
            start, _ = resumed(self.place, self.place.view(), start, self.skip_gaps)
        return [*map(InputPartition, planner.parts(start, stop))]

    def read(self, partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the records of a partition; yield none for the empty partition that Spark adds if there is no other."""
        if partition.value is not None:
            yield from PartReader(self.place, partition.value, self.selection, schema, self.skip_gaps).read()


class FyrehoseDataSource(DataSource):
    """The data source that Spark loads for the format ``fyrehose``."""

    @classmethod
    def name(cls) -> str:
        return "fyrehose"

    def schema(self) -> StructType | str:
        return GAPS if self.options.get("table") == "gaps" else from_arrow_schema(col.arrow_schema(tuple(col.COLUMNS)))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.of(self.options)
        if options.subscription is not None:
            raise ConfigError("the option subscription is for streams; use spark.readStream")
        return GapReader(options) if options.table == "gaps" else RecordReader(options, checked(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = SourceOptions.of(self.options)
        if options.table == "gaps":
            raise ConfigError("the table of gaps cannot be read as a stream; use spark.read")
        return StreamReader(options, checked(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        _refuse_overwrite(overwrite)
        return BatchWriter(SinkTarget.of(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        _refuse_overwrite(overwrite)
        return StreamWriter(SinkTarget.of(self.options, schema, streaming=True))


class RecordReader(DataSourceReader):
    """A reader of the records that the journal has when the query is planned."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Check the offsets of the query, and return its parts: pieces of segments that tasks read side by side."""
        options = self.options
        view = options.place.view()
        if doubt := view.doubt(options.place):
            log.warning("%s", doubt)
        for offset in (options.start_position, options.end_position):
            if offset is not None:
                Offsets(options.place).check(offset, view, ANEW)
        start = view.mark if options.latest else _position(options.start_position)
        return options.parts(start, _position(options.end_position))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.options.read(partition, self.schema)


class GapReader(DataSourceReader):
    """A reader of the table of gaps: the numbers that are missing from the journal."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [*map(InputPartition, with_holes(self.options.place.view()))]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        if partition.value is not None:  # Spark adds an empty partition if the list is empty
            for lost in survey(self.options.place, *partition.value):
                if lost.stream is None or self.options.selection.wants(lost.stream):
                    yield attrs.astuple(lost)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of records in micro-batches; its offsets are those of offline/offsets.py."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema
        self.offsets = Offsets(options.place)
        #: position at which a query with the trigger availableNow ends
        self.target: int | None = None
        #: the position of the subscription, and when it was updated
        self.kept: tuple[int, float] = (-1, 0.0)
        #: why newer records may be missing, as it was logged last
        self.doubt = ""

    def _look(self) -> View:
        """Return the durable content of the journal; warn, once, if newer records may be missing."""
        view = self.options.place.view()
        doubt = view.doubt(self.options.place)
        if doubt and not self.doubt:
            log.warning("%s", doubt)
        self.doubt = doubt
        return view

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset at which a new query begins: the one in its options, or else that of the oldest record."""
        view = self._look()
        position, start = view.start, self.options.start_position
        if self.options.latest:
            position = view.mark
        elif start is not None:
            self.offsets.check(start, view, ANEW)
            position = start.position
        self._keep(position, view)
        return self.offsets.at(position, view).fields

    def commit(self, end: dict[str, Any]) -> None:
        """Let retention delete the records before *end*, because the checkpoint has them."""
        view = self._look()
        self._keep(self._checked(end, view), view)

    def _keep(self, position: int, view: View) -> None:
        """Move the subscription, if there is one, to *position*; renew an unmoved one every HEARTBEAT seconds."""
        now = time.monotonic()
        if self.options.subscription is not None and (position > self.kept[0] or now - self.kept[1] >= HEARTBEAT):
            self.options.place.update_subscription(self.options.subscription, position, view.identity)
            self.kept = position, now

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.max_rows is not None:
            return ReadMaxRows(self.options.max_rows)
        if self.options.max_bytes is not None:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the offset at which the next micro-batch ends.

        :param start: the offset at which it begins
        :param limit: the limit of rows or bytes that Spark passes
        :raises JournalCorrupt: *start* belongs to another journal
        """
        view = self._look()
        begin = self._checked(start, view)
        position, _ = resumed(self.options.place, view, begin, self.options.skip_gaps)
        self._keep(position, view)  # the previous micro-batch has ended
        stop = view.mark if self.target is None else self.target
        if self.options.end_position is not None:
            stop = min(stop, self.options.end_position.position)
        if position >= stop:
            check(self.options.place, view, position, position)  # The checkpoint may be of another journal.
            return start if position == begin else self.offsets.at(position, view).fields
        rows, size = self.options.max_rows, self.options.max_bytes  # Spark passes only one of two limits.
        if isinstance(limit, ReadAllAvailable):
            rows = size = None
        elif isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        if rows is None and size is None:
            check(self.options.place, view, position, stop)
        else:
            stop = admitted(self.options.place, position, stop, rows or _NO_LIMIT, size or _NO_LIMIT)
        return self.offsets.at(stop).fields

    def reportLatestOffset(self) -> dict[str, Any]:
        view = self._look()
        return self.offsets.at(view.mark, view).fields

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = self._look().mark

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        view = self._look()
        return self.options.parts(self._checked(start, view), self._checked(end, view))

    def _checked(self, fields: dict[str, Any], view: View) -> int:
        """Return the position of an offset.

        :raises JournalCorrupt: the offset belongs to another journal
        """
        try:
            offset = Offset.parse(fields)
        except ValueError as error:
            raise JournalCorrupt(f"the checkpoint cannot be used: {error}; {ANEW}") from error
        self.offsets.check(offset, view, ANEW)
        return offset.position

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.options.read(partition, self.schema)


def with_holes(view: View) -> Iterator[tuple[Extent, Extent | None]]:
    """Yield each segment of a view together with the next one; missing segments are yielded, too."""
    whole: list[Extent] = []
    for extent in view.segments:
        if whole and extent.base > whole[-1].end:
            whole.append(Extent(whole[-1].end, extent.base))
        whole.append(extent)
    yield from zip(whole, [*whole[1:], None], strict=True)


def checked(schema: StructType) -> pa.Schema:
    """Return the requested schema as an Arrow schema.

    :raises ConfigError: a column does not exist, has another type, or is declared not null but may be null
    """
    wanted = cast("pa.Schema", to_arrow_schema(schema, timezone="UTC"))
    for ours, field in zip(col.arrow_schema(tuple(wanted.names)), wanted, strict=True):
        if field.type != ours.type:
            raise ConfigError(f"column {ours.name} is {ours.type}, not {field.type}")
        if ours.nullable and not field.nullable:
            raise ConfigError(f"column {ours.name} is null in some records; declare it nullable")
    return wanted


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise ConfigError("a stream cannot be overwritten; use .mode('append')")


def _number(options: Mapping[str, str], name: str, least: int = 0) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        found = size_of(text)
    except ValueError:
        found = -1
    if found < least:
        raise ConfigError(f"invalid option {name} {text!r}: expected a number of at least {least}")
    return found


def _offset(options: Mapping[str, str], name: str) -> Offset | None:
    text = options.get(name, "")
    if not text.startswith("{"):
        number = _number(options, name)
        return None if number is None else Offset(number)
    try:
        return Offset.parse(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"invalid option {name} {text!r}: expected a number or an offset: {error}") from error


def _position(offset: Offset | None) -> int | None:
    return None if offset is None else offset.position


def _one_of(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    chosen = options.get(name, choices[0])
    if chosen not in choices:
        raise ConfigError(f"invalid option {name} {chosen!r}: expected {' or '.join(choices)}")
    return chosen
