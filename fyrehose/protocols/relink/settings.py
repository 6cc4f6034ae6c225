"""The options of a Relink listener; docs/protocols/relink.md explains the limits."""

from __future__ import annotations

import attrs

from fyrehose.net.tls import TLSSettings
from fyrehose.options import count, duration, exact_size, fixed, name, one_of, option, size
from fyrehose.protocols.relink.channels import MAX_WINDOW
from fyrehose.protocols.relink.link import NUMBERED, LinkLimits
from fyrehose.records import MAX_PAYLOAD
from fyrehose.subscriptions import letters


def _name_or_nothing(text: str) -> str:
    return name(text) if text else text


@attrs.frozen(kw_only=True)
class RelinkSettings(TLSSettings):
    """Options of the form ``--option relink.NAME=VALUE``."""

    links: str = option(
        "",
        _name_or_nothing,
        "name of the table of links, the same on all servers of a cluster (default: derived from the endpoint)",
    )
    retention: float = option(300.0, duration, "time for which a link without a connection is kept")
    max_payload: int = option(MAX_PAYLOAD, size, "largest message accepted, padding included")
    window: int = option(1_024, count, "messages sent to a subscriber before it has consumed the first of them")
    #: no value keeps messages that the policy forbids as dead letters: the link of such a peer ends, which it notices
    refused: str = option(
        letters.CLOSE, one_of(letters.CLOSE, letters.KEEP), "refused messages of plain channels: close or dead-letter"
    )
    #: the largest number of links, with or without a connection: that of connections, even if the server has fewer file
    #: descriptors
    max_links: int = fixed(attrs.Factory(lambda self: max(10_000, self.max_connections), takes_self=True))
    max_channels: int = fixed(4_096)  #: channels that a peer may have open on one link
    #: messages of a channel that may wait to be durable; twice as many may be undecided.  With four times as many, one
    #: read may occupy the reactor for 29 ms instead of 8 ms
    backlog: int = fixed(1_024)
    backlog_size: int = fixed(16 << 20)  #: bytes of all channels of a link that may wait to be durable

    def __attrs_post_init__(self) -> None:
        if not 0 < self.max_payload <= MAX_PAYLOAD:
            most, found = exact_size(MAX_PAYLOAD), exact_size(self.max_payload)
            raise ValueError(f"max-payload must be from 1 to {most}, not {found}")
        if not 0 < self.window <= MAX_WINDOW:
            raise ValueError(f"window must be from 1 to {MAX_WINDOW} messages, not {self.window}")

    @property
    def unused_retention(self) -> float:
        """Return for how many seconds a link is kept on which the peer never sent a packet."""
        return self.retention / 30

    @property
    def ping_after(self) -> float:
        """Return the silence in seconds after which a ping is sent."""
        return self.timeout / 2

    @property
    def drop_after(self) -> float:
        """Return the silence in seconds after which the connection is dropped; the link is kept."""
        return 3 * self.ping_after

    @property
    def limits(self) -> LinkLimits:
        """Return the limits of each link."""
        return LinkLimits(
            message_size=self.max_payload,
            sent_size=MAX_PAYLOAD + NUMBERED,
            channels=self.max_channels,
            backlog=self.backlog,
            backlog_size=self.backlog_size,
            window=self.window,
        )
