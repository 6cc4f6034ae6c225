"""The clock that stamps records: the wall clock, as long as it can be believed.

Wall clocks lie, in both directions and by years: a dead battery, a typing error, a time server gone wrong.  A record's
time is for ever and retention deletes by it, so a step of more than :data:`BOUND` is not believed at first.  Time is
then counted on by the monotonic clock until the wall clock comes back, or until it has run steadily for
:data:`SETTLED`: then the step was a correction.

    in: the wall clock, the monotonic clock, the time of the last record      out: the time of the next record
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Lock

import attrs

#: A larger step of the wall clock is not believed at first, in microseconds.
BOUND = 3600 * 1_000_000
#: How long the wall clock has to run steadily after such a step to be believed again, in microseconds.
SETTLED = 600 * 1_000_000
#: How far the wall clock may drift from the monotonic clock while it counts as steady, in microseconds.
STEADY = 60 * 1_000_000


def wall_clock() -> int:
    """Return the wall clock, in microseconds since 1970 UTC."""
    return time.time_ns() // 1000


def monotonic_clock() -> int:
    """Return a clock that nobody can set, in microseconds; it goes on while the machine is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


@attrs.define(eq=False)
class RecordClock:
    """Stamps records.  The writer thread and the reactor thread may both ask it.

    :ivar wall: the wall clock, in microseconds since 1970 UTC
    :ivar monotonic: a clock that never steps, in microseconds
    """

    wall: Callable[[], int] = wall_clock
    monotonic: Callable[[], int] = monotonic_clock
    #: wall clock minus monotonic clock, as far as it is believed; None until the first look
    _offset: int | None = attrs.field(default=None, init=False)
    #: the same after a step that is not believed yet, and since when that step has stood (monotonic)
    _claimed: int | None = attrs.field(default=None, init=False)
    _since: int = attrs.field(default=0, init=False)
    #: until when a gap between the last record and the start of the server is doubted (monotonic); 0: it is not
    _doubted_until: int = attrs.field(default=0, init=False)
    #: the latest only: a clock that steps all the time must not fill the memory
    _news: deque[str] = attrs.field(factory=lambda: deque(maxlen=4), init=False)
    _lock: Lock = attrs.field(factory=Lock, init=False)

    def start(self, last: int) -> int:
        """Return the time to begin with, after a journal whose last record is of the time *last* (0: no record).

        A wall clock far behind the last record is not believed.  One far ahead is, because the server may have been
        down for so long; but deletion by age goes slowly until that clock has settled.
        """
        with self._lock:
            wall, now = self.wall(), self.monotonic()
            self._offset, self._claimed, self._doubted_until = wall - now, None, 0
            if last and wall < last - BOUND:
                self._offset = last - now
                self._doubt(wall, last, now)
            elif last and wall > last + BOUND:
                self._doubted_until = now + SETTLED
            return now + self._offset

    def now(self) -> int:
        """Return the time, in microseconds since 1970 UTC."""
        with self._lock:
            wall, now = self.wall(), self.monotonic()
            return self._judge(wall, now)

    @property
    def in_doubt(self) -> bool:
        """Return whether the wall clock has made a step that is not believed, or not for long enough."""
        with self._lock:
            return self._claimed is not None or self.monotonic() < self._doubted_until

    def news(self) -> list[str]:
        """Return sentences for the log about steps since the last call."""
        with self._lock:
            news = list(self._news)
            self._news.clear()
            return news

    def _judge(self, wall: int, now: int) -> int:
        if self._offset is None:
            self._offset = wall - now
        offset = wall - now
        if abs(offset - self._offset) <= BOUND:
            if self._claimed is not None:
                self._claimed = None
                self._news.append("the wall clock agrees with the time of the records again, and is followed")
            self._offset = offset
        elif self._claimed is None or abs(offset - self._claimed) > STEADY:
            self._doubt(wall, now + self._offset, now)
        elif now - self._since >= SETTLED:
            self._offset, self._claimed = offset, None
            self._news.append(
                f"the wall clock has run steadily for {_span(SETTLED)} since its step, and is followed from now on: "
                f"{_text(wall)}"
            )
        return now + self._offset

    def _doubt(self, wall: int, believed: int, now: int) -> None:
        self._claimed, self._since = wall - now, now
        way = "ahead of" if wall > believed else "behind"
        self._news.append(
            f"the wall clock says {_text(wall)}, {_span(abs(wall - believed))} {way} the time of the records; it is "
            f"not believed until it has run steadily for {_span(SETTLED)}: check the machine's clock"
        )


def _text(microseconds: int) -> str:
    try:
        return datetime.fromtimestamp(microseconds / 1_000_000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # a clock that lies may say anything
        return f"{microseconds} us since 1970"


def _span(microseconds: int) -> str:
    return str(timedelta(seconds=microseconds // 1_000_000))
