"""What an operator can say of the journal."""

from __future__ import annotations

import re

import attrs

from fyrehose.options import boolean, duration, option, size


@attrs.frozen
class Durability:
    """When what was accepted is acknowledged.

    :ivar mode: ``batch``: when it is on disk; ``interval``: when the kernel has it, which syncs every ``seconds``;
        ``never``: when the kernel has it, which syncs when it likes
    """

    mode: str = "batch"
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"interval:{self.seconds * 1000:g}" if self.mode == "interval" else self.mode


def durability(text: str) -> Durability:
    """``batch``, ``interval:MS`` or ``never``."""
    if text in ("batch", "never"):
        return Durability(text)
    match = re.fullmatch(r"interval:(\d+)(?:ms)?", text)
    if not match or not int(match[1]):
        raise ValueError("batch, never, or interval:MS with a number of milliseconds")
    return Durability("interval", int(match[1]) / 1000)


@attrs.frozen(kw_only=True)
class JournalSettings:
    """The journal's options."""

    durability: Durability = option(
        Durability(), durability, "when a message is acknowledged: batch, interval:MS, never"
    )
    segment_size: int = option(64 << 20, size, "when the next segment file is begun", least=1 << 10)
    keep_bytes: int = option(0, size, "delete the oldest segments when there are more bytes than this; 0: keep all")
    keep_age: float = option(0.0, duration, "delete segments whose newest record is older than this; 0: keep all")
    reader_wait: float = option(
        2 * 86400.0, duration, "wait with deleting for a named reader that said within this time how far it has come"
    )
    reader_bytes: int = option(16 << 30, size, "but keep no more than so much in addition, whoever has not read it")
    min_free: int = option(256 << 20, size, "accept nothing while the disk has less room than this")
    verify: int = option(256 << 20, size, "how much of the older segments is checked at the start, the newest first")
    quarantine: bool = option(False, boolean, "set damaged ranges aside as gaps instead of refusing to start")
