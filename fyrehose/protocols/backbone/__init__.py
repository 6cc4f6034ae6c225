"""The fyrehose backbone: publish and subscribe over UDP; clients request what was lost (fyrehose-backbone.txt)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fyrehose.imports import lazily

if TYPE_CHECKING:
    from fyrehose.protocols.backbone.client import BackboneClient
    from fyrehose.protocols.backbone.server import BackboneProtocol
    from fyrehose.protocols.backbone.settings import BackboneSettings
else:
    __getattr__, __dir__ = lazily(
        __name__, {"client": "BackboneClient", "server": "BackboneProtocol", "settings": "BackboneSettings"}
    )

__all__ = ["BackboneClient", "BackboneProtocol", "BackboneSettings"]
