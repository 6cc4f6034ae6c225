"""Describe listeners for operators: endpoint, encryption, access, and connections.

The server adds each open listener to the broker's ``listeners``; the page, ``/api/status`` and ``fyrehose stats`` show
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Listener:
    """One open listener.

    :ivar name: PROTOCOL or PROTOCOL/LABEL
    :ivar endpoint: the endpoint string of the configuration
    :ivar encryption: for people, such as ``TLS, client certificates required``; empty: not encrypted
    :ivar access: returns which clients have access at present, for people
    :ivar connections: returns the number of connections; None if it is unknown
    :ivar stream: the only stream of the listener, by its settings; None: its peers name the streams
    """

    name: str
    protocol: str
    endpoint: str
    encryption: str = ""
    access: Callable[[], str]
    connections: Callable[[], int | None]
    stream: str | None = None


def encryption(endpoint: str, settings: Any) -> str:
    """Return how connections to *endpoint* are encrypted, for people; empty if they are not.

    :param settings: the settings of the listener
    """
    options = attrs.asdict(settings, recurse=False)
    if options.get("tls_certificate"):
        client_auth = settings.tls_client_auth
        return "TLS" if client_auth == "none" else f"TLS, client certificates {client_auth}"
    if endpoint.startswith(("ssl:", "tls:")):
        return "TLS"
    return "CURVE" if options.get("server_key") else ""
