"""Observability for operators: counters, meters, and the listeners with their connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fyrehose.imports import lazily

if TYPE_CHECKING:
    from fyrehose.observe.counters import Counters
else:
    __getattr__, __dir__ = lazily(__name__, {"counters": "Counters"})

__all__ = ["Counters"]
