"""The HTTP protocol: publish, read, follow and retire streams with curl or any other HTTP client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fyrehose.imports import lazily

if TYPE_CHECKING:
    from fyrehose.protocols.http.server import HttpFactory, HttpProtocol, HttpSettings
else:
    __getattr__, __dir__ = lazily(__name__, {"server": "HttpFactory HttpProtocol HttpSettings"})

__all__ = ["HttpFactory", "HttpProtocol", "HttpSettings"]
