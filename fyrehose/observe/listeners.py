"""What there is to say of a listener: where it listens, how it is kept from others, and how many have come in by it.

Whoever opens one adds it to the broker's ``listeners``; the page, ``/api/status`` and ``fyrehose stats`` show them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Listener:
    """One listener.

    :ivar name: PROTOCOL or PROTOCOL/LABEL
    :ivar endpoint: as it was given
    :ivar encryption: for people, such as ``TLS, client certificates required``; nothing: there is none
    :ivar who: says who may come in, as things are now
    :ivar connections: says how many there are; None where that is not known
    :ivar stream: the stream that its settings bind it to; None: its peers name the streams
    """

    name: str
    protocol: str
    endpoint: str
    encryption: str = ""
    who: Callable[[], str]
    connections: Callable[[], int | None]
    stream: str | None = None


def encryption(endpoint: str, settings: Any) -> str:
    """How what comes to ``endpoint`` is encrypted, by the settings of its protocol."""
    if getattr(settings, "tls_certificate", ""):
        asked = settings.tls_client_auth
        return "TLS" if asked == "none" else f"TLS, client certificates {asked}"
    if endpoint.startswith(("ssl:", "tls:")):
        return "TLS"
    return "CURVE" if getattr(settings, "server_key", "") else ""
