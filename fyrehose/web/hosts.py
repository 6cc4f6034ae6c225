"""Decide who can reach an endpoint, and refuse requests that a web page of another site has caused.

Such a page can make a browser send requests to this machine: directly, or under a name of the page's own site that
resolves to this machine (DNS rebinding).  The ``Origin`` header shows the direct requests, the ``Host`` header the
others.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address

#: Values of ``Host`` by which a browser reaches a server on its own machine.
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
#: A ``Host`` header: an IPv6 address in brackets, or a name or an address, and perhaps a port; or nothing.
_HOST = re.compile(r"(?:(?:\[([0-9A-Za-z:.%_~-]+)\]|([0-9A-Za-z._~!$&'()*+,;=%-]+))(?::[0-9]{1,5})?)?")


def url_of(address: str, secure: bool) -> str:
    """Return the URL of the server at *address*, without a slash at its end.

    :param address: a URL of http or https, or HOST:PORT
    :param secure: whether HOST:PORT stands for https
    :return: the URL; empty if *address* has neither form
    """
    url = address if "://" in address else f"http{'s' * secure}://{address}"
    found = re.fullmatch(r"(https?://[A-Za-z0-9.:_\[\]-]+)/?", url)
    return found[1] if found else ""


def is_local(endpoint: str) -> bool:
    """Return whether only this machine can reach *endpoint*; False if that is not certain."""
    if endpoint.startswith("unix:"):
        return True
    interface = _interface(endpoint)
    try:
        return ip_address(interface).is_loopback
    except ValueError:
        return interface == "localhost"


def hosts_of(endpoint: str | None, names: tuple[str, ...]) -> frozenset[str] | None:
    """Return the values of ``Host`` that a server at *endpoint* accepts, including *names*; None: it accepts all.

    On loopback the names of this machine are known, so that DNS rebinding is refused.  On other endpoints only the
    operator knows the names, and TLS and tokens protect the server.  An unknown endpoint (None) counts as loopback.
    """
    if endpoint is None:
        return LOCAL_HOSTS | set(names)
    if is_local(endpoint):
        return LOCAL_HOSTS | {_interface(endpoint)} | set(names) - {""}
    return frozenset(names) or None


def foreign_host(hosts: frozenset[str]) -> str:
    """Return the text of the error for a request whose ``Host`` is not among *hosts*."""
    return f"unknown host: request this server as {' or '.join(sorted(hosts))}"


@lru_cache(64)
def host_in(header: str) -> str | None:
    """Return the host of a ``Host`` header in lower case, without the port and without a dot at its end.

    :return: None if the header is not valid
    """
    found = _HOST.fullmatch(header)
    return None if found is None else (found[1] or found[2] or "").lower().removesuffix(".")


def is_encrypted(endpoint: str) -> bool:
    """Return whether *endpoint* is of a type that uses TLS."""
    return endpoint.partition(":")[0] in ("ssl", "tls")


def _interface(endpoint: str) -> str:
    parts = re.split(r"(?<!\\):", endpoint)
    found = next((part.partition("=")[2] for part in parts if part.startswith("interface=")), "")
    return found.replace("\\:", ":")
