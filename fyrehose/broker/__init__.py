"""The path of a message through the server: access policy, numbers, the journal, and delivery to subscribers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fyrehose.imports import lazily

if TYPE_CHECKING:
    from fyrehose.broker.broker import Broker
    from fyrehose.broker.consuming import NoSubscriptions
    from fyrehose.broker.fanout import Cursor, Fanout
    from fyrehose.broker.quotas import PeerLimits
    from fyrehose.broker.sequencer import Sequencer
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "broker": "Broker",
            "consuming": "NoSubscriptions",
            "fanout": "Cursor Fanout",
            "quotas": "PeerLimits",
            "sequencer": "Sequencer",
        },
    )

__all__ = [
    "Broker",
    "Cursor",
    "Fanout",
    "NoSubscriptions",
    "PeerLimits",
    "Sequencer",
    "policy",
    "streams",
]
