"""Tools that read a journal from outside its server, also while the server writes: verify, dump, copy, serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fyrehose.imports import lazily

if TYPE_CHECKING:
    from fyrehose.offline.backup import Backup, restore
    from fyrehose.offline.mirror import Replica
    from fyrehose.offline.places import Place, place
else:
    __getattr__, __dir__ = lazily(__name__, {"backup": "Backup restore", "places": "Place place", "mirror": "Replica"})

__all__ = ["Backup", "Place", "Replica", "place", "restore"]
