"""Decide which acknowledgements are due: track the windows in order, and how many events of each are durable.

Writers of version 1 take any A frame for the acknowledgement of a whole window (logstash-forwarder reads six bytes and
does not parse them), so they get exactly one per window, or one when they fall silent within a window.  Writers of
version 2 may also get partial acknowledgements, and A 0 as a keep-alive.

Sequences are opaque: they restart with every window (Beats), continue across windows (pylogbeat) and roll over.  So an
acknowledgement echoes the last sequence received, and sequences are never compared.
"""

from __future__ import annotations

from collections import deque

import attrs

from fyrehose.protocols.lumberjack.frames import Ack


@attrs.define(eq=False)
class OpenWindow:
    """Events that are acknowledged together.

    :ivar size: number of announced events; None if the writer sent no W frame
    :ivar last: sequence of the last event received
    :ivar durable: number of durable events, without those of ``unverified``
    :ivar durable_last: sequence of the last durable event
    :ivar unverified: number and last sequence of durable events in a compressed frame that is not verified yet
    :ivar acknowledged: number of events that a partial acknowledgement covered
    :ivar finished: whether the window is complete, so that no further event belongs to it
    :ivar sealed: False while the checksum of a compressed frame with some of the window's events is not verified
    """

    version: int
    size: int | None
    sealed: bool
    received: int = 0
    last: int = 0
    durable: int = 0
    durable_last: int = 0
    unverified: tuple[int, int] = (0, 0)
    acknowledged: int = 0
    finished: bool = False
    times: int = 1  #: number of consecutive empty windows that this object represents


@attrs.define(eq=False)
class Windows:
    """The unacknowledged windows of one connection; only the last one can be open.

    :ivar version: version of the last frame; 0 before the first one
    :ivar unacknowledged: the unacknowledged windows, the oldest first
    :ivar unsealed: windows with events in the compressed frame that is being inflated
    :ivar unverified: number of events received in the compressed frame that is being inflated
    :ivar begun: number of windows so far
    """

    version: int = attrs.field(default=0, init=False)
    unacknowledged: deque[OpenWindow] = attrs.field(factory=deque, init=False)
    #: received pieces that are not durable: window, records, events, last sequence, and the compressed frame
    _pieces: deque[tuple[OpenWindow, int, int, int, int]] = attrs.field(factory=deque, init=False)
    unsealed: list[OpenWindow] = attrs.field(factory=list, init=False)
    unverified: int = attrs.field(default=0, init=False)
    begun: int = attrs.field(default=0, init=False)
    _sealed: int = attrs.field(default=0, init=False)  #: ordinal of the compressed frame that is not verified yet
    _durable: int = attrs.field(default=0, init=False)
    _last_size: int | None = attrs.field(default=None, init=False)

    @property
    def room(self) -> int:
        """Return how many events fit into the open window, or into the window that the next event opens; at least 1."""
        window = self._open
        size, received = (self._implied_size, 0) if window is None else (window.size, window.received)
        return 1 << 32 if size is None else size - received

    @property
    def ack_pending(self) -> bool:
        """Return whether any received event is not acknowledged."""
        return any(window.received > window.acknowledged for window in self.unacknowledged)

    @property
    def silence_ack_due(self) -> bool:
        """Return whether a writer of version 1 needs an acknowledgement if it stays silent within its window."""
        window = self.unacknowledged[0] if self.unacknowledged else None
        if window is None or window.version != 1 or not window.sealed:
            return False
        return window.durable == window.received > window.acknowledged

    def announce(self, version: int, size: int, sealed: bool) -> None:
        """Handle a W frame: finish the open window, even if it is incomplete, and open a window of *size* events."""
        window = self._open
        if window is not None:
            window.finished = True
        self.version = version
        self._last_size = size or None
        last = self.unacknowledged[-1] if self.unacknowledged else None
        if not size and last is not None and last.size == 0 and last.version == version and last.sealed == sealed:
            last.times += 1
        else:
            self._add(OpenWindow(version=version, size=size, sealed=sealed, finished=not size))

    def receive(self, count: int, last: int, sealed: bool, records: int | None = None) -> None:
        """Add received events to the open window.

        :param count: number of events, at most :attr:`room`
        :param last: sequence of the last event
        :param sealed: False if the events came in a compressed frame whose checksum is not verified yet
        :param records: number of the events' records, if it differs from *count*: a part of an event is one record, and
            only the last part counts as an event
        """
        window = self._open or self._add(OpenWindow(version=self.version, size=self._implied_size, sealed=sealed))
        if not sealed and window.sealed:
            window.sealed = False
            self.unsealed.append(window)
        # A frame that is not compressed needs no checksum, so give the frame the ordinal of a verified compressed
        # frame.
        frame = self._sealed - sealed
        self._pieces.append((window, count if records is None else records, count, last, frame))
        self.unverified += 0 if sealed else count
        if count:
            window.received += count
            window.last = last
            window.finished = window.received == window.size

    def seal(self) -> None:
        """Let the events of the compressed frame be acknowledged: it was verified, or its end will never be read."""
        for window in self.unsealed:
            window.sealed = True
            count, last = window.unverified
            window.unverified = (0, 0)
            if count:
                window.durable += count
                window.durable_last = last
        self.unsealed.clear()
        self.unverified = 0
        self._sealed += 1

    def durable(self, count: int) -> None:
        """Record that the *count* oldest records became durable."""
        self._durable += count
        while self._pieces and self._pieces[0][1] <= self._durable:
            window, records, events, last, frame = self._pieces.popleft()
            self._durable -= records
            if events and frame < self._sealed:
                window.durable += events
                window.durable_last = last
            elif events:
                window.unverified = (window.unverified[0] + events, last)

    def acks(self) -> list[Ack]:
        """Return the acknowledgements that are due, and remove their windows."""
        acks: list[Ack] = []
        while self.unacknowledged:
            window = self.unacknowledged[0]
            if not window.finished or not window.sealed or window.durable != window.received:
                break
            del self.unacknowledged[0]
            owed = window.times if window.size == 0 else int(window.received > window.acknowledged)
            acks += [Ack(version=window.version, number=window.last)] * owed
        if self.unacknowledged and self.unacknowledged[0].version == 2 and self.unacknowledged[0].size is None:
            # No W frame announced these events, so the writer may wait for the acknowledgement of any of them.
            acks += self._partial(self.unacknowledged[0])
        return acks

    def partial_acks(self) -> list[Ack]:
        """Return a partial acknowledgement of the oldest window of version 2, if more of its events are durable."""
        window = self.unacknowledged[0] if self.unacknowledged else None
        return self._partial(window) if window is not None and window.version == 2 else []

    def keep_alive_acks(self) -> list[Ack]:
        """Return :meth:`partial_acks`, or an A frame with 0, for a waiting writer; nothing for version 1."""
        version = self.unacknowledged[0].version if self.unacknowledged else self.version
        return self.partial_acks() or ([Ack(version=2, number=0)] if version == 2 else [])

    def silence_acks(self) -> list[Ack]:
        """Return an acknowledgement for a writer of version 1 that stays silent within its window."""
        return self._partial(self.unacknowledged[0]) if self.silence_ack_due else []

    @property
    def _open(self) -> OpenWindow | None:
        return self.unacknowledged[-1] if self.unacknowledged and not self.unacknowledged[-1].finished else None

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

    @staticmethod
    def _partial(window: OpenWindow) -> list[Ack]:
        if window.durable <= window.acknowledged:
            return []
        window.acknowledged = window.durable
        return [Ack(version=window.version, number=window.durable_last)]
