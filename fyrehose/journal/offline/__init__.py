"""Tools that read a journal from outside its server, also while the server writes: verify, dump, copy, serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fyrehose.imports import lazily

if TYPE_CHECKING:
    from fyrehose.journal.offline.backup import Backup, restore
    from fyrehose.journal.offline.places import Place, place
    from fyrehose.journal.offline.replica import Replica
else:
    __getattr__, __dir__ = lazily(__name__, {"backup": "Backup restore", "places": "Place place", "replica": "Replica"})

__all__ = ["Backup", "Place", "Replica", "place", "restore"]
