"""Limit the number of connections to an event bus, and close connections that lose their permission.

ZeroMQ accepts every connection, asks the ZAP handler once whether to allow it, and has no call to close one.  Its
monitors report the file descriptor of each connection.  This module shuts that socket down: to ZeroMQ and to the peer
it looks like a lost connection, and the peer reconnects.

    accepted(port, descriptor) -> admitted, or refused: in both cases open until disconnected(port, descriptor)

in: monitor events, ZAP decisions      out: the connections to refuse and to close
"""

from __future__ import annotations

import os
import socket
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection
from ipaddress import ip_address

import attrs

from fyrehose.identity import Action, Identity, network_of

#: Admitted identities that are remembered.  Connections of forgotten ones are closed at any change of the policy.
REMEMBERED = 10_000
#: Upper bound of refused connections that are kept open for a while.
REFUSED = 256
#: The address of a connection that was closed before its address was read.
UNKNOWN = "an unknown address"

_Admission = tuple[Identity, Action]

#: A connection: the port that accepted it, and its file descriptor.  A descriptor alone is ambiguous, because another
#: port may have reused the number before the monitor reports the end of the first connection.
Key = tuple[int, int]


@attrs.define(eq=False)
class Connections:
    """The connections of a server.

    A part of ``most`` is reserved for refused connections, which stay open for a while, because a client that is
    refused at once reconnects at once.  When the server is full, the network with the most connections loses one to a
    new connection from a network that has less than half as many.

    :ivar most: the largest number of open connections, refused ones included
    """

    most: int = sys.maxsize
    _hosts: dict[Key, str] = attrs.field(factory=dict, init=False)
    _networks: dict[str, dict[Key, None]] = attrs.field(factory=dict, init=False)
    _occupied: int = attrs.field(default=0, init=False)
    #: refused connections, and those of them, by host, that the ZAP handler has not answered yet
    _refused: set[Key] = attrs.field(factory=set, init=False)
    _awaiting_zap: dict[str, dict[Key, None]] = attrs.field(factory=dict, init=False)
    _admitted: OrderedDict[_Admission, None] = attrs.field(factory=OrderedDict, init=False)
    #: hosts of admitted identities that are not remembered any more
    _forgotten_hosts: set[str] = attrs.field(factory=set, init=False)

    @property
    def count(self) -> int:
        """The number of open connections."""
        return len(self._hosts)

    @property
    def refused_limit(self) -> int:
        """The number of refused connections that may stay open."""
        return min(REFUSED, self.most // 16)

    def host(self, port: int, descriptor: int) -> str:
        """Return the address of an open connection."""
        return self._hosts.get((port, descriptor), UNKNOWN)

    def of(self, port: int) -> list[tuple[str, int]]:
        """Return the connections of *port*: the address and the descriptor of each."""
        return [(host, descriptor) for (accepted, descriptor), host in self._hosts.items() if accepted == port]

    def accepted(self, port: int, descriptor: int) -> Key | None:
        """Add a connection.

        :return: the connection to refuse: this one, another one that makes room for it, or None
        """
        key, host = (port, descriptor), _peer(port, descriptor)
        self._hosts[key] = host
        victim = None
        if self._occupied >= self.most - self.refused_limit:
            victim = self._make_room(host)
            if victim is None:
                self._refused.add(key)
                self._awaiting_zap.setdefault(host, {})[key] = None
                return key
        self._networks.setdefault(network_of(host), {})[key] = None
        self._occupied += 1
        return victim

    def disconnected(self, port: int, descriptor: int) -> str:
        """Remove a connection; return its address."""
        key = (port, descriptor)
        host = self._hosts.pop(key, UNKNOWN)
        self._refused.discard(key)
        _remove(self._awaiting_zap, host, key)
        self._release(host, key)
        return host

    def refuse(self, host: str) -> bool:
        """Return whether the ZAP handler has to refuse a connection from *host*.

        A ZAP request has the address of the peer and no descriptor.  If several connections from one address are
        waiting, another one than intended may be refused; its client reconnects.
        """
        host = _plain(host)
        waiting = self._awaiting_zap.get(host)
        if not waiting:
            return False
        _remove(self._awaiting_zap, host, next(iter(waiting)))
        return True

    def was_refused(self, port: int, descriptor: int) -> bool:
        """Return whether an open connection was refused."""
        return (port, descriptor) in self._refused

    def too_many_refused(self) -> bool:
        """Return whether more refused connections are open than :attr:`refused_limit`."""
        return len(self._refused) > self.refused_limit

    def end(self, port: int, descriptor: int) -> None:
        """Close a refused connection, if it is still open."""
        key = (port, descriptor)
        if key in self._refused:
            _shut_down(descriptor, [self._hosts[key]], [port])

    def admit(self, identity: Identity, action: Action) -> None:
        """Remember that the ZAP handler has admitted *identity* for *action*."""
        self._admitted[identity, action] = None
        self._admitted.move_to_end((identity, action))
        if len(self._admitted) > REMEMBERED:
            (gone, _), _ = self._admitted.popitem(last=False)
            self._forgotten_hosts.add(gone.host)

    def end_forbidden(self, may: Callable[[Identity, Action], bool], ports: Collection[int]) -> int:
        """Close the connections of hosts whose permission was withdrawn.

        The descriptor of an identity is not known, so this closes all connections of its host; clients that are still
        permitted reconnect.

        :param may: returns whether an identity still has permission
        :param ports: the ports of the server; other sockets that reuse a descriptor are left alone
        :return: the number of closed connections
        """
        refused = [wanted for wanted in self._admitted if not may(*wanted)]
        hosts = {_plain(identity.host) for identity, _ in refused} | {_plain(host) for host in self._forgotten_hosts}
        for wanted in refused:
            del self._admitted[wanted]
        self._forgotten_hosts.clear()
        return sum(_shut_down(descriptor, hosts, ports) for _, descriptor in list(self._hosts)) if hosts else 0

    def _make_room(self, host: str) -> Key | None:
        """Return the newest connection of the largest network, if a new one from *host* is to replace it."""
        most = max(self._networks.values(), key=len, default={})
        if 2 * len(self._networks.get(network_of(host), ())) + 1 >= len(most):
            return None
        key = next(reversed(most))
        self._release(self._hosts[key], key)
        self._refused.add(key)
        return key

    def _release(self, host: str, key: Key) -> None:
        if _remove(self._networks, network_of(host), key):
            self._occupied -= 1


def _remove(groups: dict[str, dict[Key, None]], name: str, key: Key) -> bool:
    """Remove *key* from the group *name*, and the group with its last key; return whether it was there."""
    group = groups.get(name, {})
    if key not in group:
        return False
    del group[key]
    if not group:
        del groups[name]
    return True


def _peer(port: int, descriptor: int) -> str:
    """Return the address at the other end of the connection that *port* accepted."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as found:
            return _plain(found.getpeername()[0]) if found.getsockname()[1] == port else UNKNOWN
    except (OSError, IndexError, TypeError):
        return UNKNOWN  # the connection is closed already


def shut_down(host: str, descriptor: int, port: int) -> bool:
    """Shut the connection *descriptor* down if it is one from *host* to *port*; return whether it was."""
    return _shut_down(descriptor, [_plain(host)], [port])


def _shut_down(descriptor: int, hosts: Collection[str], ports: Collection[int]) -> bool:
    """Shut *descriptor* down if it is a connection from one of *hosts* to one of *ports*; return whether it was."""
    try:
        held = os.dup(descriptor)  # so that the socket that is checked is the one that is shut down
    except OSError:
        return False  # the connection is closed already
    try:
        with socket.socket(fileno=held) as found:
            held = -1
            if found.getsockname()[1] not in ports or _plain(found.getpeername()[0]) not in hosts:
                return False
            found.shutdown(socket.SHUT_RDWR)
    except (OSError, IndexError, TypeError):
        return False  # the connection is closed already, or the descriptor is another file now
    finally:
        if held >= 0:
            os.close(held)
    return True


def _plain(host: str) -> str:
    """Return the canonical form of an IP address; an IPv4-mapped IPv6 address becomes IPv4."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    return str(getattr(address, "ipv4_mapped", None) or address)
