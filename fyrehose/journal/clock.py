"""The clock that stamps records: the wall clock, protected against large steps.

A wall clock can be wrong by years: a dead battery, a typing error, a faulty time server.  The time of a record is never
changed, and retention deletes records by their time, so a step of more than :data:`BOUND` is not followed at first.
The monotonic
clock then counts the time, until the wall clock steps back, or has run steadily for :data:`SETTLED`: then the step was
a correction.

When the server starts, the clock is compared with the last record of the log: a wall clock that is further from it than
:data:`BOUND` counts as a step.
The server may really have been down for that long, so this step is followed as well after the wall clock has run
steadily for :data:`SETTLED`.

A server that begins to lead a cluster may find records that are ahead of its clock.  Times never step back, and would
stand still until the clock has caught up; instead, they run at half speed, unless they are ahead by more than
:data:`BOUND`.

    the wall clock, the monotonic clock, the time of the last record -> the time of the next record
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Lock

import attrs

from fyrehose.journal.files import monotonic_clock, wall_clock

__all__ = ["RecordClock", "monotonic_clock", "wall_clock"]

#: The largest step of the wall clock that record times follow at once, in microseconds.
BOUND = 3600 * 1_000_000
#: How long the wall clock must run steadily after such a step to be followed again, in microseconds.
SETTLED = 600 * 1_000_000
#: How far the wall clock may drift from the monotonic clock while it counts as steady, in microseconds.
STEADY = 60 * 1_000_000
#: How far the records of another leader may be ahead of the clock without being mentioned, in microseconds.
AHEAD = 1_000_000


@attrs.define(eq=False)
class RecordClock:
    """A clock that gives records their times; thread-safe, because the writer thread and the reactor thread call it.

    :ivar wall: the wall clock, in microseconds since 1970 UTC
    :ivar monotonic: a clock that never steps, in microseconds
    """

    wall: Callable[[], int] = wall_clock
    monotonic: Callable[[], int] = monotonic_clock
    #: Wall clock minus monotonic clock, from which record times are computed; None before the clocks are read.
    _offset: int | None = attrs.field(default=None, init=False)
    #: Wall clock minus monotonic clock after a step of the wall clock that is not followed yet; None without one.
    _stepped_offset: int | None = attrs.field(default=None, init=False)
    #: When the step that is not followed yet was noticed, by the monotonic clock.
    _stepped_at: int = attrs.field(default=0, init=False)
    #: The time of another leader, whose clock was ahead, and when this server began to lead, by the monotonic clock.
    _ahead: tuple[int, int] | None = attrs.field(default=None, init=False)
    #: The latest messages for the log; limited, so that a clock that steps all the time does not fill the memory.
    _messages: deque[str] = attrs.field(factory=lambda: deque(maxlen=4), init=False)
    _lock: Lock = attrs.field(factory=Lock, init=False)

    def start(self, last: int) -> int:
        """Start this clock, and return the time that it shows, in microseconds since 1970 UTC.

        :param last: the time of the last record of the log, in microseconds since 1970 UTC; 0: the log is empty, and
            the clock begins with the time of the wall clock
        """
        with self._lock:
            wall, now = self.wall(), self.monotonic()
            self._offset, self._stepped_offset = wall - now, None
            if last and abs(wall - last) > BOUND:
                self._offset = last - now
                hint = ", unless the server was down for that long" if wall > last else ""
                self._doubt(wall, last, now, "the last record", hint)
            return now + self._offset

    def lead(self, last: int) -> int:
        """Continue after a record of another server, which has led until now; return the time, as :meth:`now` does.

        :param last: the time of that record, in microseconds since 1970 UTC
        """
        time = self.now()
        if AHEAD < last - time <= BOUND:
            with self._lock:
                self._ahead = last, self.monotonic()
                self._messages.append(
                    f"the last record is of {_text(last)}, {_span(last - time)} ahead of this server's clock: until "
                    "that has caught up, times of records run at half its speed; check the clock of the last leader"
                )
        return max(time, last)

    def now(self) -> int:
        """Return the time for a record that is accepted now, in microseconds since 1970 UTC."""
        with self._lock:
            wall, now = self.wall(), self.monotonic()
            if self._offset is None or self._stepped_offset is not None or abs(wall - now - self._offset) > BOUND:
                time = self._follow(wall, now)
            else:
                self._offset = wall - now
                time = wall
            return time if self._ahead is None else self._catch_up(time, now, *self._ahead)

    def _catch_up(self, time: int, now: int, last: int, since: int) -> int:
        slow = last + (now - since) // 2
        if slow > time:
            return slow
        self._ahead = None
        self._messages.append("this server's clock has caught up with the times of the records")
        return time

    @property
    def in_doubt(self) -> bool:
        """Return whether the time may be wrong: the wall clock has made a step, or the last leader's was ahead."""
        with self._lock:
            return self._stepped_offset is not None or self._ahead is not None

    def messages(self) -> list[str]:
        """Return log messages about steps of the wall clock since the last call."""
        with self._lock:
            messages = list(self._messages)
            self._messages.clear()
            return messages

    def _follow(self, wall: int, now: int) -> int:
        if self._offset is None:
            self._offset = wall - now
        offset = wall - now
        if abs(offset - self._offset) <= BOUND:
            if self._stepped_offset is not None:
                self._stepped_offset = None
                self._messages.append("the wall clock agrees with the time of the records again, and is followed")
            self._offset = offset
        elif self._stepped_offset is None or abs(offset - self._stepped_offset) > STEADY:
            self._doubt(wall, now + self._offset, now)
        elif now - self._stepped_at >= SETTLED:
            self._offset, self._stepped_offset = offset, None
            self._messages.append(
                f"the wall clock has run steadily for {_span(SETTLED)} since its step, and is followed from now on: "
                f"{_text(wall)}"
            )
        return now + self._offset

    def _doubt(self, wall: int, time: int, now: int, what: str = "the time of the records", hint: str = "") -> None:
        self._stepped_offset, self._stepped_at = wall - now, now
        way = "ahead of" if wall > time else "behind"
        self._messages.append(
            f"the wall clock shows {_text(wall)}, {_span(abs(wall - time))} {way} {what}; it is not followed until it "
            f"has run steadily for {_span(SETTLED)}: check the machine's clock{hint}"
        )


def _text(microseconds: int) -> str:
    try:
        return datetime.fromtimestamp(microseconds / 1_000_000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # a wrong clock may be out of the range of datetime
        return f"{microseconds} us since 1970"


def _span(microseconds: int) -> str:
    return str(timedelta(seconds=microseconds // 1_000_000))
