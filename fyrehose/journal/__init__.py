"""The crash-safe log of all streams; ``format.py`` is its specification."""

from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings

__all__ = ["FileJournal", "JournalSettings"]
