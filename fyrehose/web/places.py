"""What an endpoint string says of who can come: by that a door decides how careful it has to be."""

from __future__ import annotations

import re
from ipaddress import ip_address

#: By these names a browser asks for a server on its own machine.
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


def is_local(endpoint: str) -> bool:
    """Whether nobody beyond this machine can come to ``endpoint``; no, where that is not certain."""
    if endpoint.startswith("unix:"):
        return True
    interface = _interface(endpoint)
    try:
        return ip_address(interface).is_loopback
    except ValueError:
        return interface == "localhost"


def hosts_of(endpoint: str, names: tuple[str, ...]) -> frozenset[str] | None:
    """By which names a server at ``endpoint`` may be asked for, besides ``names``; None: by any.

    On this machine it is reached by few, and a page that has its own name lead here is refused.  Elsewhere nobody knows
    but its operator, and TLS and tokens keep it.
    """
    if is_local(endpoint):
        return LOCAL_HOSTS | {_interface(endpoint)} | set(names) - {""}
    return frozenset(names) or None


def is_encrypted(endpoint: str) -> bool:
    """Whether the endpoint itself speaks TLS."""
    return endpoint.partition(":")[0] in ("ssl", "tls")


def _interface(endpoint: str) -> str:
    parts = re.split(r"(?<!\\):", endpoint)
    found = next((part.partition("=")[2] for part in parts if part.startswith("interface=")), "")
    return found.replace("\\:", ":")
