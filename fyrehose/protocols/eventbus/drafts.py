"""Group the PUBs of one turn into few runs, and keep the order of each client's events.

A PUB joins an earlier run with the same topic, producer and form of labels, unless the same client already has an event
in a later run.  The order between clients is not defined before events have sequences, so a thousand producers whose
PUBs arrive interleaved make a thousand runs, and not one run per event.

in: add(routing id, frames)      out: take() -> a batch of runs
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack

import attrs

from fyrehose.kernels import eventbus as kernel
from fyrehose.protocols.eventbus.frames import MAX_LABEL, check_event
from fyrehose.protocols.eventbus.labels import CONTENT_TYPE, read_labels
from fyrehose.records import MAX_NAME, MAX_PAYLOAD, Run

#: Memory of a run besides its columns, and of an event besides its data, in bytes; generous estimates.
RUN_OVERHEAD = 1 << 10
EVENT_OVERHEAD = 64

#: Topic, producer and content type, which says in what form the labels are, and so which columns a run has.
_Kind = tuple[str, str, str]


@attrs.define(eq=False)
class _Columns:
    """The columns of a run under construction."""

    kind: _Kind
    data: list[bytes] = attrs.field(factory=list, init=False)
    event_ids: list[bytes] = attrs.field(factory=list, init=False)
    event_times: list[int] = attrs.field(factory=list, init=False)


@attrs.frozen(slots=True, kw_only=True)
class EventBatch:
    """The events of one turn.

    :ivar size: their memory, in bytes
    :ivar count: number of events
    :ivar uuids: the UUIDs of the events, if the option ``dedup`` is on
    """

    runs: list[Run]
    size: int
    count: int
    uuids: list[bytes] = attrs.field(factory=list)

    def parts(self) -> list[EventBatch]:
        """Split the batch into its runs, or its only run into single events.

        The UUIDs are left out: an event that is refused permanently would be refused again.
        """
        runs = self.runs
        if len(runs) == 1:
            runs = [runs[0].slice(row, row + 1) for row in range(len(runs[0]))]
        return [EventBatch(runs=[run], size=run.size, count=len(run)) for run in runs]


@attrs.define(eq=False)
class Drafts:
    """The events of one turn of COLLECTOR.

    :ivar uuids: those to remember for the option ``dedup``
    """

    stream: str
    source: str
    uuids: list[bytes] = attrs.field(factory=list, init=False)
    _size: int = attrs.field(default=0, init=False)
    _count: int = attrs.field(default=0, init=False)
    _columns: list[_Columns] = attrs.field(factory=list, init=False)
    _latest: dict[_Kind, int] = attrs.field(factory=dict, init=False)
    _reached: dict[bytes, int] = attrs.field(factory=dict, init=False)

    def add(self, identity: bytes, frames: Sequence[bytes]) -> None:
        """Add a PUB.

        :param identity: the routing id of the client
        :param frames: the six frames of the PUB
        :raises RemoteProtocolError: the frames are not an event
        """
        event_id: bytes | None
        event_time: int | None
        usual = kernel.read_event(frames, MAX_NAME, MAX_LABEL, MAX_PAYLOAD)
        if usual is not None:
            topic, producer, event_id, event_time = usual
            content_type = CONTENT_TYPE
        else:
            topic = check_event(frames)
            producer, content_type, event_id, event_time = read_labels(*frames[2:5])
        kind = topic, producer, content_type
        data = frames[5]
        at = self._latest.get(kind, -1)
        if at < 0 or at < self._reached.get(identity, -1):
            at = self._latest[kind] = len(self._columns)
            self._columns.append(_Columns(kind))
            self._size += RUN_OVERHEAD
        self._reached[identity] = at
        columns = self._columns[at]
        columns.data.append(data)
        if event_id is not None:
            columns.event_ids.append(event_id)
        if event_time is not None:
            columns.event_times.append(event_time)
        self._size += len(data) + EVENT_OVERHEAD
        self._count += 1

    def take(self) -> EventBatch | None:
        """Return everything that was added, or None, and start with the next turn."""
        if not self._count:
            return None
        runs = [
            Run.of(
                self.stream,
                columns.data,
                source=self.source,
                topic=columns.kind[0],
                producer=columns.kind[1],
                content_type=columns.kind[2],
                event_ids=b"".join(columns.event_ids) or None,
                event_times=pack(f"<{len(columns.event_times)}q", *columns.event_times) or None,
            )
            for columns in self._columns
        ]
        batch = EventBatch(runs=runs, size=self._size, count=self._count, uuids=self.uuids)
        self._columns, self._latest, self._reached, self.uuids = [], {}, {}, []
        self._size = self._count = 0
        return batch
