"""The limits of a session: sizes of frames, and of the turns in which it works."""

from __future__ import annotations

import attrs

from fyrehose.protocols.lumberjack.frames import MAX_EVENT, MAX_FRAME

PROTOCOL = "lumberjack"


@attrs.frozen(kw_only=True)
class LumberjackLimits:
    """Limits of a session.

    :ivar max_frame: largest document and largest compressed frame, in bytes; D frames are also limited to MAX_EVENT
    :ivar max_inflated: limit of the inflated size of one compressed frame, in bytes
    :ivar turn_bytes: limit of a turn in bytes; more than one read
    :ivar turn_events: limit of a turn in units of the work for one J frame
    :ivar turn_inflated: limit of a turn in inflated bytes
    :ivar max_windows: number of unacknowledged windows at which the session stops processing
    :ivar topic: the keys that lead to an event's topic; empty: events have no topic
    :ivar fields: the keys that lead to each further string that is found in events, for routes
    :ivar topic_bytes: number of bytes of an event in which the topic and the fields are searched
    """

    max_frame: int = MAX_FRAME
    max_inflated: int = MAX_FRAME
    turn_bytes: int = 1_280 << 10
    turn_events: int = 4_096
    turn_inflated: int = 256 << 10
    max_windows: int = 1_000
    topic: tuple[bytes, ...] = (b"@metadata", b"beat")
    fields: tuple[tuple[bytes, ...], ...] = ()
    topic_bytes: int = 4 << 10

    @property
    def max_event(self) -> int:
        """Return the size of the largest document that becomes one record, and of the largest D frame, in bytes."""
        return min(self.max_frame, MAX_EVENT)
