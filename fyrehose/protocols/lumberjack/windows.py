"""Which acknowledgement is due: windows in the order in which they came, and how far each is durable.

What writers make of an acknowledgement is their version's: to version 1 it is one for a whole window, whatever it says
(logstash-forwarder reads six bytes and does not look at them), so it gets exactly one, or one when it has fallen
silent.  Version 2 may be told how far a window has come, and by 0 that it should have patience.

Sequences are opaque: they restart with every window (Beats), go on across windows (pylogbeat) and roll over, so the
last one that was received is echoed, and nothing is compared.
"""

from __future__ import annotations

from collections import deque

import attrs

from fyrehose.protocols.lumberjack.frames import Ack


@attrs.define(eq=False)
class Window:
    """Some events that are acknowledged together.

    :ivar size: how many were announced; None: nobody has said
    :ivar sealed: the compressed frame that its events came in has come to a good end
    :ivar finished: no further event belongs to it
    """

    version: int
    size: int | None
    sealed: bool
    received: int = 0
    last: int = 0
    durable: int = 0
    durable_last: int = 0
    acknowledged: int = 0
    finished: bool = False
    times: int = 1  #: how many empty windows this stands for

    @property
    def due(self) -> bool:
        """Whether all of it may be acknowledged."""
        return self.finished and self.sealed and self.durable == self.received


@attrs.define(eq=False)
class Windows:
    """The windows of one connection that are not acknowledged yet, the last one open.

    :ivar version: of the last frame; 0 before the first
    :ivar unsealed: the windows of which a part came in a compressed frame that has not ended
    """

    version: int = attrs.field(default=0, init=False)
    _windows: deque[Window] = attrs.field(factory=deque, init=False)
    _pieces: deque[tuple[Window, int, int, int]] = attrs.field(factory=deque, init=False)
    unsealed: list[Window] = attrs.field(factory=list, init=False)
    _durable: int = attrs.field(default=0, init=False)
    _last_size: int | None = attrs.field(default=None, init=False)

    def __len__(self) -> int:
        return len(self._windows)

    @property
    def room(self) -> int:
        """How many events the open window takes, at the least one: where there is none, an event opens one."""
        window = self._open
        size, received = (self._implied, 0) if window is None else (window.size, window.received)
        return 1 << 32 if size is None else size - received

    @property
    def waits(self) -> bool:
        """Whether something was received, and is not acknowledged."""
        return any(window.received > window.acknowledged for window in self._windows)

    @property
    def idle_due(self) -> bool:
        """Whether a writer of version 1 that says nothing more should be told how far we are."""
        window = self._windows[0] if self._windows else None
        return window is not None and window.version == 1 and self._has_progress(window)

    def announce(self, version: int, size: int, sealed: bool) -> None:
        """A window of ``size`` events begins; one that was open is finished as it is."""
        window = self._open
        if window is not None:
            window.finished = True
        self.version = version
        self._last_size = size or None
        last = self._windows[-1] if self._windows else None
        if not size and last is not None and last.size == 0 and last.version == version and last.sealed == sealed:
            last.times += 1
        else:
            self._add(Window(version=version, size=size, sealed=sealed, finished=not size))

    def receive(self, count: int, last: int, sealed: bool, records: int | None = None) -> None:
        """``count`` events were received, at most :attr:`room`; ``last`` is the sequence of the last of them.

        :param records: how many records they become, where that is another number: one for a part of an event, which
            counts as an event when its last part was received
        """
        window = self._open or self._add(Window(version=self.version, size=self._implied, sealed=sealed))
        if not sealed and window.sealed:
            window.sealed = False
            self.unsealed.append(window)
        self._pieces.append((window, count if records is None else records, count, last))
        if count:
            window.received += count
            window.last = last
            window.finished = window.received == window.size

    def seal(self) -> None:
        """The compressed frame has come to a good end."""
        for window in self.unsealed:
            window.sealed = True
        self.unsealed.clear()

    def durable(self, count: int) -> None:
        """The ``count`` oldest records that were not durable are."""
        self._durable += count
        while self._pieces and self._pieces[0][1] <= self._durable:
            window, records, events, last = self._pieces.popleft()
            self._durable -= records
            if events:
                window.durable += events
                window.durable_last = last

    def acks(self) -> list[Ack]:
        """What may be acknowledged now."""
        acks: list[Ack] = []
        while self._windows and self._windows[0].due:
            window = self._windows.popleft()
            owed = window.times if window.size == 0 else int(window.received > window.acknowledged)
            acks += [Ack(version=window.version, number=window.last)] * owed
        if self._windows and self._windows[0].version == 2 and self._windows[0].size is None:
            # Events that no window was announced for: nobody can know which of them is waited for.
            acks += self._partial(self._windows[0])
        return acks

    def partial(self) -> list[Ack]:
        """How far the oldest window of version 2 is durable, if it is farther than was said."""
        window = self._windows[0] if self._windows else None
        return self._partial(window) if window is not None and window.version == 2 else []

    def alive(self) -> list[Ack]:
        """For a writer of version 2 that waits: :meth:`partial`, or 0."""
        version = self._windows[0].version if self._windows else self.version
        return self.partial() or ([Ack(version=2, number=0)] if version == 2 else [])

    def idle(self) -> list[Ack]:
        """For a writer of version 1 that says nothing more within its window."""
        return self._partial(self._windows[0]) if self.idle_due else []

    @property
    def _open(self) -> Window | None:
        return self._windows[-1] if self._windows and not self._windows[-1].finished else None

    @property
    def _implied(self) -> int | None:
        """The size of a window that nobody announces: a writer of version 1 announces one window, and slides it."""
        return self._last_size if self.version == 1 else None

    def _add(self, window: Window) -> Window:
        if not window.sealed:
            self.unsealed.append(window)
        self._windows.append(window)
        return window

    @staticmethod
    def _has_progress(window: Window) -> bool:
        return window.sealed and window.durable == window.received > window.acknowledged

    @staticmethod
    def _partial(window: Window) -> list[Ack]:
        if not window.sealed or window.durable <= window.acknowledged:
            return []
        window.acknowledged = window.durable
        return [Ack(version=window.version, number=window.durable_last)]
