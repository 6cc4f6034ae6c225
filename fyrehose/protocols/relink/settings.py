"""The Relink server's options: limits with their reasons (docs/protocols/relink.md has the table)."""

from __future__ import annotations

import attrs

from fyrehose.net.tls import TLSSettings
from fyrehose.options import count, duration, option, size
from fyrehose.protocols.relink.limits import NUMBERED, Limits
from fyrehose.protocols.relink.sending import MAX_WINDOW
from fyrehose.records import MAX_PAYLOAD


@attrs.frozen(kw_only=True)
class Settings(TLSSettings):
    """What the protocol takes as ``--option relink.NAME=VALUE``."""

    max_links: int = option(10_000, count, "links that are kept, connected or not", least=1)
    retention: float = option(300.0, duration, "how long a link without a connection is kept")
    unused_retention: float = option(10.0, duration, "the same, where no packet ever came")
    ping_after: float = option(15.0, duration, "silence after which a ping is sent")
    drop_after: float = option(45.0, duration, "silence after which the connection is given up; its link is kept")
    max_message: int = option(MAX_PAYLOAD, size, "largest message taken, in bytes, padding included")
    max_channels: int = option(4_096, count, "channels that a peer may have open on one link", least=1)
    backlog: int = option(
        1_024, count, "messages of a channel that wait to be durable; twice as many to be decided", least=1
    )
    backlog_size: int = option(16 << 20, size, "bytes of all messages of a link that wait", least=1)
    link_memory: int = option(
        256 << 20, size, "bytes that all links may hold: undecided messages, and 2 KiB for each channel", least=1
    )
    window: int = option(1_024, count, "messages sent to a subscriber that it has not consumed")

    def __attrs_post_init__(self) -> None:
        if not 0 < self.max_message <= MAX_PAYLOAD:
            raise ValueError(f"max_message is 1 to {MAX_PAYLOAD} bytes")
        if not 0 < self.window <= MAX_WINDOW:
            raise ValueError(f"window is 1 to {MAX_WINDOW} messages")

    @property
    def limits(self) -> Limits:
        """Those of each link."""
        return Limits(
            message_size=self.max_message,
            sent_size=MAX_PAYLOAD + NUMBERED,
            channels=self.max_channels,
            backlog=self.backlog,
            backlog_size=self.backlog_size,
            window=self.window,
        )
