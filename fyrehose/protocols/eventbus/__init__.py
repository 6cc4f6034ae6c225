"""The event bus: publish and subscribe over ZeroMQ (event-bus.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fyrehose.imports import lazily

if TYPE_CHECKING:
    from fyrehose.protocols.eventbus.client import EventBusClient
    from fyrehose.protocols.eventbus.settings import EventBusSettings
else:
    __getattr__, __dir__ = lazily(__name__, {"client": "EventBusClient", "settings": "EventBusSettings"})

__all__ = ["EventBusClient", "EventBusSettings"]
