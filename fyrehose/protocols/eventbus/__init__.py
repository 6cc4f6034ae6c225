"""The event bus: publish and subscribe over ZeroMQ (event-bus.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fyrehose.lazy import lazily

if TYPE_CHECKING:
    from fyrehose.protocols.eventbus.client import EventBusClient
    from fyrehose.protocols.eventbus.settings import Settings
else:
    __getattr__, __dir__ = lazily(__name__, {"client": "EventBusClient", "settings": "Settings"})

__all__ = ["EventBusClient", "Settings"]
