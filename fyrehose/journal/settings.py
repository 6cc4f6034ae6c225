"""The options of the journal."""

from __future__ import annotations

import re

import attrs

from fyrehose.journal.streams import StreamLimits
from fyrehose.options import boolean, duration, fixed, option, size


@attrs.frozen
class Durability:
    """The moment at which an accepted message is acknowledged.

    :ivar mode: ``batch``: after it was synced to disk; ``interval``: after it was handed to the kernel, with a sync
        every ``seconds``; ``never``: after it was handed to the kernel, which writes it out whenever it chooses
    """

    mode: str = "batch"
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"interval:{self.seconds * 1000:g}" if self.mode == "interval" else self.mode


def durability(text: str) -> Durability:
    """Parse ``batch``, ``interval:MS`` or ``never``.

    :raises ValueError: *text* is none of these
    """
    if text in ("batch", "never"):
        return Durability(text)
    match = re.fullmatch(r"interval:(\d+)(?:ms)?", text)
    if not match or not int(match[1]):
        raise ValueError("batch, never, or interval:MS with a number of milliseconds")
    return Durability("interval", int(match[1]) / 1000)


@attrs.frozen(kw_only=True)
class Caches:
    """How much a store keeps in memory.

    :ivar batches: bytes of batches, of which live subscribers read the last ones; a single larger one is kept all the
        same
    :ivar indexes: bytes of indexes of sealed segments; a single larger one is kept all the same, and one with 100,000
        streams takes several MiB
    :ivar files: number of segments that are kept open; the process reserves 64 file descriptors for its own use
    :ivar places: number of positions that are remembered at which a read stopped, because the next read of the stream
        often continues there
    :ivar enough: how many bytes a read scans that has found records already
    :ivar ahead: how many bytes of a segment are read at once
    """

    batches: int = 32 << 20
    indexes: int = 64 << 20
    files: int = 32
    places: int = 1_024
    enough: int = 1 << 20
    ahead: int = 256 << 10


@attrs.frozen(kw_only=True)
class JournalSettings:
    """The options of the journal, which a configuration has as ``journal.NAME``."""

    durability: Durability = option(
        Durability(), durability, "when a message is acknowledged: batch, interval:MS, never"
    )
    segment_size: int = option(
        64 << 20, size, "size at which a segment file is sealed and the next begins", least=1 << 10
    )
    keep_bytes: int = option(
        0,
        size,
        "delete the oldest segments when there are more bytes than this; 0: keep all",
        above_zero=1 << 10,
    )
    keep_age: float = option(0.0, duration, "delete segments whose newest record is older than this; 0: keep all")
    subscription_timeout: float = option(
        2 * 86400.0, duration, "stop waiting for a named subscription that was not used for this long"
    )
    subscription_bytes: int = option(
        16 << 30, size, "limit of the bytes that are kept only because of named subscriptions"
    )
    min_free: int = option(
        256 << 20, size, "refuse messages while the disk has less free space than this", above_zero=1 << 10
    )
    quarantine: bool = option(False, boolean, "set damaged ranges aside as gaps instead of refusing to start")
    verify: int = fixed(256 << 20)  #: bytes of sealed segments to check at the start, the newest first
    caches: Caches = fixed(Caches())  #: how much is kept in memory
    stream_limits: StreamLimits = fixed(StreamLimits())  #: how many streams are listed and remembered
