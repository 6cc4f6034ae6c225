"""The crash-safe log of all streams; ``format.py`` specifies the files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fyrehose.imports import lazily

if TYPE_CHECKING:
    from fyrehose.journal.settings import Durability, JournalSettings
else:
    __getattr__, __dir__ = lazily(__name__, {"settings": "Durability JournalSettings"})

__all__ = ["Durability", "JournalSettings"]
