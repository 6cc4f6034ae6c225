"""Every limit that a session and its link impose on the peer, with its default."""

from __future__ import annotations

import attrs

from fyrehose.records import MAX_PAYLOAD

#: Extra size that a message may have beyond the largest record if it carries the record's number (``?seq``), or the
#: head of leases.py (``?share``), in bytes.
NUMBERED, LEASED = 64, 320


@attrs.frozen(kw_only=True, slots=True)
class LinkLimits:
    """Limits of one link.

    A peer that exceeds a limit loses its link, except for ``backlog`` and ``backlog_size``, which stop reading instead.
    """

    #: channel ids in one packet
    targets: int = 1_024
    #: parts of one message
    parts: int = 1_024
    #: size of one message's parts with their padding, and of the size table if there is not exactly one part, in bytes
    message_size: int = MAX_PAYLOAD
    #: the same limit for messages that this side sends
    sent_size: int = MAX_PAYLOAD
    #: channels that the peer may have open at a time
    channels: int = 4_096
    #: messages of one channel that wait to be settled before reading stops; twice as many may wait for the peer's
    #: decision
    backlog: int = 1_024
    #: size of all waiting messages of a link in bytes; twice as much may wait for the peer's decision
    backlog_size: int = 16 << 20
    #: messages on one of our channels that the peer has not consumed
    window: int = 1_024
    #: results that are kept before a ping is sent, whose pong allows to forget them (R6)
    results: int = 256
    #: runs of equal results that are kept while that ping is unanswered
    result_runs: int = 4_096
    #: bytes that may arrive while the listener looks up the link; a correct peer sends none (L1)
    early: int = 1 << 20


#: The protocol's own counters, and the causes for which it refuses messages and closes connections.
EVENTS = (
    "connections-fenced",
    "links-ended",
    "links-expired",
    "links-made",
    "links-resumed",
    "links-unknown",
    "skipped",
)
REFUSALS = (
    "links-displaced",
    "links-too-large",
    "acknowledged-unsent",
    "backlog-too-large",
    "bad-id-size",
    "bad-link-id",
    "channel-after-shutdown",
    "consumed-before-result",
    "consumed-undecided",
    "endpoint-not-utf-8",
    "endpoint-unknown",
    "format-unknown",
    "gap-not-written",
    "general-unknown",
    "handshake-timeout",
    "message-after-close",
    "message-to-subscription",
    "message-too-large",
    "notices-unconsumed",
    "operation-not-transactional",
    "operation-on-unreceived",
    "request-invalid",
    "result-not-transactional",
    "result-unasked",
    "results-unconfirmed",
    "resume-unexpected",
    "resumes-mismatched",
    "silent-peer",
    "subscription-displaced",
    "subscription-refused",
    "too-early",
    "too-many-channels",
    "too-many-gaps",
    "too-many-links",
    "too-many-parts",
    "too-many-targets",
    "transactions-forgotten",
    "transactions-too-large",
    "transactions-unsupported",
)
