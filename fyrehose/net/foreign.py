"""Name the protocol that a peer speaks in place of the expected one, by its first bytes, and the remedy.

the first bytes of a connection, after a violation or a failed handshake -> text for people; empty: they tell nothing
"""

from __future__ import annotations

from zope.interface import Attribute, Interface

#: The beginnings of a PROXY header of version 1 and of version 2.
TEXT, SIGNATURE = b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"
#: How many bytes of a connection are kept to name its protocol.
BEGINNING = 16
TLS, HTTP = "TLS", "HTTP"
_PROXIED = "the peer sends a PROXY header: add its network to {}.proxies"
_METHODS = (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS ", b"CONNECT ", b"PATCH ", b"PRI * HTTP/2")
#: The first bytes that clients of other protocols send.
_CLIENTS = (
    (b"\x16\x03", TLS),
    *((method, HTTP) for method in _METHODS),
    (TEXT, "PROXY"),
    (SIGNATURE, "PROXY"),
    (b"\x03\x00\x00", "RDP"),
)
#: The first bytes that servers of other protocols send.
_SERVERS = (
    (b"HTTP/", "an HTTP server, such as the http or the admin listener"),
    (b"\xff\x00\x00\x00\x00\x00\x00\x00", "a ZeroMQ socket, such as the eventbus listener"),
    (bytes(8), "a relink listener"),
    (b"\x15\x03", "one that requires TLS"),
)


class IBegun(Interface):
    """The transport of a connection that keeps the peer's first bytes."""

    beginning = Attribute("The first bytes of the peer, at most BEGINNING: bytes.")


def spoken(beginning: bytes, kinds: tuple[tuple[bytes, str], ...] = _CLIENTS) -> str:
    """Return the name of the protocol whose data starts with *beginning*; empty if it is not known."""
    return next((kind for first, kind in kinds if beginning.startswith(first)), "")


def foreign_server(beginning: bytes) -> str:
    """Return which server sends *beginning*, as the end of a sentence; empty if it is not known."""
    return spoken(beginning, _SERVERS)


def foreign_client(beginning: bytes, protocol: str, lacks_tls: bool) -> str:
    """Return what the client of a listener speaks instead of *protocol*, and what to do; empty if it is not known.

    :param beginning: the first bytes of the client, without TLS if the listener has it
    :param lacks_tls: whether the listener would have TLS with a certificate
    """
    match spoken(beginning):
        case "TLS" if lacks_tls:
            remedy = f"this listener has no certificate: set {protocol}.tls-certificate, or turn TLS off at the peer"
            return f"the peer speaks TLS, and {remedy}"
        case "TLS":
            return f"the peer speaks TLS, and {protocol} does not expect it here: turn TLS off at the peer"
        case "HTTP":
            return "the peer speaks HTTP: connect it to the port of the http or the admin listener"
        case "PROXY":
            return _PROXIED.format(protocol)
        case "RDP":
            return "the peer speaks RDP, as scanners do: keep it away from this port by a firewall"
    return ""


def without_tls(beginning: bytes, protocol: str) -> str:
    """Return what the client of a listener with TLS sends without TLS, and what to do; empty if it does use TLS."""
    kind = spoken(beginning)
    if not beginning or kind == TLS:
        return ""
    if kind == "PROXY":
        return _PROXIED.format(protocol)
    what = f"speaks {kind}" if kind else f"sends {beginning!r}"
    return (
        f"the peer {what} without TLS: turn TLS on at the peer, or off here (tcp: without {protocol}.tls-certificate)"
    )
