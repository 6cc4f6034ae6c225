"""Decide which acknowledgements are due: track the windows in order, and how many records of each are not durable.

The window is the unit of recovery: no writer uses the acknowledgement of a part of it when its connection ends, but
sends the whole window again (``AwaitACK`` of go-lumber).  So each window is acknowledged once, when all of it is
durable, and A 0 keeps a waiting writer of version 2 patient.  Writers of version 1 take any A frame for the
acknowledgement of a whole window (logstash-forwarder reads six bytes and does not parse them), so they get no A 0.

The specification lets a writer announce more events than it sends.  Both versions get an acknowledgement within a
window when the writer falls silent and all that it has sent is durable.

Sequences are opaque: they restart with every window (Beats), continue across windows (pylogbeat) and roll over.  So an
acknowledgement echoes the last sequence received, and sequences are never compared.
"""

from __future__ import annotations

from collections import deque

import attrs

#: The version and the sequence of each acknowledgement.
Acks = list[tuple[int, int]]


@attrs.define(eq=False)
class OpenWindow:
    """Events that are acknowledged together.

    :ivar size: number of announced events; None if the writer sent no W frame
    :ivar last: sequence of the last event received
    :ivar pending: number of received records that are not durable
    :ivar acknowledged: number of events that were acknowledged already, because the writer was silent
    :ivar finished: whether the window is complete, so that no further event belongs to it
    :ivar sealed: False while the checksum of a compressed frame with some of the window's events is not verified
    :ivar times: number of consecutive empty windows that this object represents
    """

    version: int
    size: int | None
    sealed: bool
    received: int = 0
    last: int = 0
    pending: int = 0
    acknowledged: int = 0
    finished: bool = False
    times: int = 1

    @property
    def owed(self) -> bool:
        """Return whether all events received are verified and durable, and some of them are not acknowledged."""
        return self.sealed and not self.pending and self.received > self.acknowledged


@attrs.define(eq=False)
class Windows:
    """The unacknowledged windows of one connection; only the last one can be open.

    :ivar version: version of the last frame; 0 before the first one
    :ivar unacknowledged: the unacknowledged windows, the oldest first
    :ivar unsealed: windows with events in the compressed frame that is being inflated
    :ivar begun: number of windows so far
    """

    version: int = attrs.field(default=0, init=False)
    unacknowledged: deque[OpenWindow] = attrs.field(factory=deque, init=False)
    unsealed: list[OpenWindow] = attrs.field(factory=list, init=False)
    begun: int = attrs.field(default=0, init=False)
    _last_size: int | None = attrs.field(default=None, init=False)

    @property
    def open(self) -> OpenWindow | None:
        """Return the window to which the next event belongs; None if the next event opens a window."""
        return self.unacknowledged[-1] if self.unacknowledged and not self.unacknowledged[-1].finished else None

    @property
    def room(self) -> int:
        """Return how many events fit into the open window, or into the window that the next event opens; at least 1."""
        window = self.open
        size, received = (self._implied_size, 0) if window is None else (window.size, window.received)
        return 1 << 32 if size is None else size - received

    @property
    def ack_pending(self) -> bool:
        """Return whether any received event is not acknowledged."""
        windows = self.unacknowledged
        return bool(windows) and any(window.received > window.acknowledged for window in windows)

    @property
    def silence_ack_due(self) -> bool:
        """Return whether the writer needs an acknowledgement if it stays silent within its window."""
        return bool(self.unacknowledged) and self.unacknowledged[0].owed

    def announce(self, version: int, size: int, sealed: bool) -> None:
        """Handle a W frame: finish the open window, even if it is incomplete, and open a window of *size* events."""
        self.finish()
        self.version = version
        self._last_size = size or None
        last = self.unacknowledged[-1] if self.unacknowledged else None
        if not size and last is not None and last.size == 0 and last.version == version and last.sealed == sealed:
            last.times += 1
        else:
            self._add(OpenWindow(version=version, size=size, sealed=sealed, finished=not size))

    def finish(self) -> None:
        """Finish the open window, even if it is incomplete."""
        if self.unacknowledged:
            self.unacknowledged[-1].finished = True

    def receive(self, count: int, last: int, sealed: bool, records: int | None = None) -> None:
        """Add received events to the open window.

        :param count: number of events, at most :attr:`room`
        :param last: sequence of the last event
        :param sealed: False if the events came in a compressed frame whose checksum is not verified yet
        :param records: number of the events' records, if it differs from *count*: a part of an event is one record, and
            only the last part counts as an event
        """
        window = self.open or self._add(OpenWindow(version=self.version, size=self._implied_size, sealed=sealed))
        if not sealed and window.sealed:
            window.sealed = False
            self.unsealed.append(window)
        window.pending += count if records is None else records
        if count:
            window.received += count
            window.last = last
            window.finished = window.received == window.size

    def seal(self) -> None:
        """Let the events of the compressed frame be acknowledged, because its checksum was verified."""
        for window in self.unsealed:
            window.sealed = True
        self.unsealed.clear()

    def durable(self, count: int) -> None:
        """Record that the *count* oldest records became durable."""
        for window in self.unacknowledged:
            part = min(count, window.pending)
            window.pending -= part
            count -= part
            if not count:
                return

    def acks(self) -> Acks:
        """Return the acknowledgements that are due, and remove their windows."""
        acks: Acks = []
        while self.unacknowledged:
            window = self.unacknowledged[0]
            if not window.finished or not window.sealed or window.pending:
                break
            del self.unacknowledged[0]
            owed = window.times if window.size == 0 else int(window.received > window.acknowledged)
            acks += [(window.version, window.last)] * owed
        if self.unacknowledged and self.unacknowledged[0].version == 2 and self.unacknowledged[0].size is None:
            # No W frame announced these events, so the writer may wait for the acknowledgement of any of them.
            acks += self.silence_acks()
        return acks

    def keep_alive_acks(self, version: int = 0) -> Acks:
        """Return an A frame with 0 for a waiting writer; nothing for version 1.

        :param version: the version of the writer before its first window
        """
        version = self.unacknowledged[0].version if self.unacknowledged else self.version or version
        return [(2, 0)] if version == 2 else []

    def silence_acks(self) -> Acks:
        """Return the acknowledgement of all events that a writer has sent, which stays silent within its window."""
        if not self.silence_ack_due:
            return []
        window = self.unacknowledged[0]
        window.acknowledged = window.received
        return [(window.version, window.last)]

    @property
    def _implied_size(self) -> int | None:
        """Return the size of a window without a W frame: writers of version 1 announce one window, and slide it."""
        return self._last_size if self.version == 1 else None

    def _add(self, window: OpenWindow) -> OpenWindow:
        if not window.sealed:
            self.unsealed.append(window)
        self.unacknowledged.append(window)
        self.begun += 1
        return window
