"""Group the PUBs of one turn into few runs, and keep the order of each client's events.

A PUB joins an earlier run with the same topic, producer and form of labels, unless the same client already has an event
in a later run.  The order between clients is not defined before events have sequences, so a thousand producers whose
PUBs arrive interleaved make a thousand runs, and not one run per event.

in: add(routing id, frames)      out: build() -> runs
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

_Kind = tuple[str, str, str, bool, bool]


@attrs.define(eq=False)
class _Columns:
    """The columns of a run under construction."""

    kind: _Kind
    data: list[bytes] = attrs.field(factory=list, init=False)
    event_ids: list[bytes] = attrs.field(factory=list, init=False)
    event_times: list[int] = attrs.field(factory=list, init=False)

    def run(self, stream: str, source: str) -> Run:
        topic, producer, content_type, identified, timed = self.kind
        return Run.of(
            stream,
            self.data,
            source=source,
            topic=topic,
            producer=producer,
            content_type=content_type,
            event_ids=b"".join(self.event_ids) if identified else None,
            event_times=pack(f"<{len(self.event_times)}q", *self.event_times) if timed else None,
        )


@attrs.define(eq=False)
class Drafts:
    """The events of one turn of COLLECTOR.

    :ivar size: their memory, in bytes
    :ivar count: number of events
    """

    stream: str
    source: str
    size: int = attrs.field(default=0, init=False)
    count: int = attrs.field(default=0, init=False)
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
            kind = (topic, producer, CONTENT_TYPE, True, True)
        else:
            topic = check_event(frames)
            labels = read_labels(frames[2], frames[3], frames[4])
            event_id, event_time = labels.event_id, labels.event_time
            kind = (topic, labels.producer, labels.content_type, event_id is not None, event_time is not None)
        data = frames[5]
        at = self._latest.get(kind, -1)
        if at < 0 or at < self._reached.get(identity, -1):
            at = self._latest[kind] = len(self._columns)
            self._columns.append(_Columns(kind))
            self.size += RUN_OVERHEAD
        self._reached[identity] = at
        columns = self._columns[at]
        columns.data.append(data)
        if event_id is not None:
            columns.event_ids.append(event_id)
        if event_time is not None:
            columns.event_times.append(event_time)
        self.size += len(data) + EVENT_OVERHEAD
        self.count += 1

    def build(self) -> list[Run]:
        """Return everything that was added as runs, and start with the next turn."""
        runs = [columns.run(self.stream, self.source) for columns in self._columns]
        self._columns, self._latest, self._reached = [], {}, {}
        self.size = self.count = 0
        return runs
