"""Test doubles, for the tests of Fyrehose and of programs that embed it."""

from fyrehose.testing.chunks import every_chunking, feed
from fyrehose.testing.journal import MemoryJournal
from fyrehose.testing.sinks import RecordingSink
from fyrehose.testing.waiting import until

__all__ = ["MemoryJournal", "RecordingSink", "every_chunking", "feed", "until"]
