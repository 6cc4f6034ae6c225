"""What a peer may ask of us: every limit of a session and its link, with a default."""

from __future__ import annotations

import attrs

from fyrehose.records import MAX_PAYLOAD

#: What the largest record takes besides, in bytes, when its number is sent with it.
NUMBERED = 64


@attrs.frozen(kw_only=True, slots=True)
class Limits:
    """Limits of one link.  What is over a limit costs the peer its link, but where it says that it waits."""

    #: channel ids in one packet
    targets: int = 1_024
    #: parts of one message
    parts: int = 1_024
    #: the parts of one message, padding included (and, but for one part, a table of their sizes), in bytes
    message_size: int = MAX_PAYLOAD
    #: the same of a message that we send
    sent_size: int = MAX_PAYLOAD
    #: the peer's channels that are open at a time
    channels: int = 4_096
    #: messages of one channel that wait for us before we read no further; twice as many may wait for its decision
    backlog: int = 1_024
    #: bytes of all messages that wait, as for ``backlog``
    backlog_size: int = 16 << 20
    #: our own messages on one channel that the peer has not consumed
    window: int = 1_024
    #: results that are kept before a ping asks whether they may be forgotten (R6)
    results: int = 256
    #: separate runs of results that are kept while that ping is not answered
    result_runs: int = 4_096
    #: bytes that may come in while the listener looks the link up: nothing should (L1)
    early: int = 1 << 20
