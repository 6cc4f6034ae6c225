"""Test doubles, transports and conformance tests, for tests of Fyrehose and of programs that embed or extend it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fyrehose.imports import lazily

if TYPE_CHECKING:
    from fyrehose.testing.chunks import every_chunking, feed
    from fyrehose.testing.journal import MemoryJournal
    from fyrehose.testing.plugins import PluginConformance
    from fyrehose.testing.shell import ClientSide, Transport
    from fyrehose.testing.sinks import RecordingSink
    from fyrehose.testing.waiting import until
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "chunks": "every_chunking feed",
            "journal": "MemoryJournal",
            "plugins": "PluginConformance",
            "shell": "ClientSide Transport",
            "sinks": "RecordingSink",
            "waiting": "until",
        },
    )

__all__ = [
    "ClientSide",
    "MemoryJournal",
    "PluginConformance",
    "RecordingSink",
    "Transport",
    "every_chunking",
    "feed",
    "until",
]
