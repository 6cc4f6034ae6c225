"""Judge who can reach an endpoint, and which requests no page of another site can have made a browser send."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address

#: By these names a browser asks for a server on its own machine.
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})

#: The answer to a request that :func:`same_origin` refuses.
FOREIGN_ORIGIN = "pages of other sites may not use this server"


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


def foreign_host(hosts: frozenset[str]) -> str:
    """Return the answer to a request whose host is none of ``hosts``."""
    return f"this server is asked for as {' or '.join(sorted(hosts))}, not by that name"


def host_in(header: str) -> str:
    """Return the host in a ``Host`` header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def same_origin(headers: Mapping[str, str]) -> bool:
    """Return whether a request comes from no browser, or from a page of this server.

    :param headers: by lower-case name
    """
    origin = headers.get("origin")
    if origin is None:
        return headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    return origin.partition("://")[2] == headers.get("host")


def is_encrypted(endpoint: str) -> bool:
    """Whether the endpoint itself speaks TLS."""
    return endpoint.partition(":")[0] in ("ssl", "tls")


def _interface(endpoint: str) -> str:
    parts = re.split(r"(?<!\\):", endpoint)
    found = next((part.partition("=")[2] for part in parts if part.startswith("interface=")), "")
    return found.replace("\\:", ":")
