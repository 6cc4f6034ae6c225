"""Limit the number of connections to an event bus, and close connections that lose their permission.

ZeroMQ accepts every connection and asks the ZAP handler once whether to allow it.  It has no call that closes a
connection of a ROUTER or PUB socket later (libzmq issue 2319).  But its monitors report the file descriptor of each
connection, so this module shuts that socket down: to ZeroMQ and to the peer it looks like a lost connection, and the
peer reconnects.  ZeroMQ's thread may close a descriptor at any time, and the number may then stand for another file, so
:func:`socket_of` duplicates it, and the duplicate is checked before it is shut down.

    accepted(port, descriptor) -> admitted, or refused: in both cases open until disconnected(port, descriptor)

A message names its connection by the descriptor, too, and may be read when that connection has ended and another one
has the descriptor.  So the ZAP handler numbers the connections, and each message has the number of its connection.  A
ZAP request names no descriptor, but is answered after its connection was reported.  So the number of a connection is
greater than all that were given before it was reported, and the number of an earlier connection is not.

in: monitor events, ZAP decisions      out: the connections to close

:class:`Handshakes` finds connections that never complete the ZeroMQ handshake: port scans, browsers, other protocols,
garbage.

    accepted(descriptor) -> succeeded() or failed(cause) -> ended(descriptor)

A monitor reports the descriptors of accepted and ended connections.  It reports the outcome of a handshake without the
descriptor, and some failures not at all.  A connection whose handshake fails ends at once, so a failure belongs to the
next connection that ends.  While several handshakes are in progress, it is unknown which of them has succeeded; then
the end of a connection without a reported failure counts as the end of a successful one.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv6Address, ip_address

import attrs
from twisted.internet.interfaces import IDelayedCall

from fyrehose.broker.fairness import FairShare
from fyrehose.identity import Action, Identity, network_of

#: Number of admitted identities that are remembered.  Any change of the access policy closes the connections of
#: forgotten identities.
REMEMBERED = 10_000
#: Upper bound of refused connections that are kept open for a while.
REFUSED = 256
#: The address of a connection that was closed before its address was read.
UNKNOWN = "an unknown address"

#: An address and a port.
Peer = tuple[str, int]
_Admission = tuple[Identity, Action]


@attrs.define(eq=False)
class AcceptedConnection:
    """A connection that ZeroMQ has accepted.

    :ivar port: the port that accepted it
    :ivar peer: the address and the port of the peer
    :ivar after: the last number that the ZAP handler had given when the connection was accepted; the connection's own
        number is greater
    :ivar refused: whether the connection is refused, and will be closed soon
    :ivar ending: the call that closes a refused connection which is kept open for a while
    """

    port: int
    descriptor: int
    peer: Peer
    after: int = 0
    refused: bool = False
    ending: IDelayedCall | None = None

    @property
    def host(self) -> str:
        """Return the address of the peer."""
        return self.peer[0]

    def close(self) -> bool:
        """Close the connection if it is still open, and return whether it was open."""
        # The descriptor may be that of another file or connection by now.
        with suppress(OSError, IndexError, TypeError), socket_of(self.descriptor) as found:
            if _ends(found) == (self.port, self.peer):
                found.shutdown(socket.SHUT_RDWR)
                return True
        return False


@attrs.define(eq=False)
class Connections:
    """The connections of a server.

    A part of ``most`` is reserved for refused connections, which stay open for a while, because a client that is
    refused at once reconnects at once.  When the server is full, and a new connection comes from a network with less
    than half as many connections as the largest, the largest network loses one.

    :ivar most: the largest number of open connections, refused ones included
    """

    most: int = sys.maxsize
    #: the connections by port and descriptor, because another port may use a descriptor again before the monitor
    #: reports the end of the first connection
    _open: dict[tuple[int, int], AcceptedConnection] = attrs.field(factory=dict, init=False)
    _number: int = attrs.field(default=0, init=False)  #: the last number that was given to a connection
    _counts: Counter[int] = attrs.field(factory=Counter, init=False)  #: open connections by port
    _refused: dict[AcceptedConnection, None] = attrs.field(factory=dict, init=False)
    _networks: FairShare[AcceptedConnection] = attrs.field(init=False)  #: the connections that are not refused
    _admitted: OrderedDict[_Admission, None] = attrs.field(factory=OrderedDict, init=False)
    #: hosts of admitted identities that are not remembered any more
    _forgotten_hosts: set[str] = attrs.field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self._networks = FairShare(self.most - self.refused_limit)

    def __len__(self) -> int:
        return len(self._open)

    def change(self, most: int) -> None:
        """Admit up to *most* connections from now on; no open connection is closed."""
        self.most = most
        self._networks.capacity = most - self.refused_limit

    @property
    def refused_limit(self) -> int:
        """Return the number of refused connections that may stay open."""
        return min(REFUSED, self.most // 16)

    def count(self, port: int) -> int:
        """Return the number of connections of *port*."""
        return self._counts[port]

    def of(self, port: int) -> list[AcceptedConnection]:
        """Return the connections of *port*."""
        return [each for each in self._open.values() if each.port == port]

    def number(self) -> int:
        """Return a number that no other connection has, for a connection that is being admitted."""
        self._number += 1
        return self._number

    def find(self, port: int, descriptor: int, number: int) -> AcceptedConnection | None:
        """Return the connection to *port* by which a message has come, or None if that connection has ended.

        :param descriptor: the descriptor that the message names
        :param number: the number that the message has
        """
        found = self._open.get((port, descriptor))
        return found if found is not None and number > found.after else None

    def accepted(self, port: int, descriptor: int) -> AcceptedConnection | None:
        """Add a connection.

        :return: the connection to close: the new one, an open one that makes room for it, or None
        """
        self.disconnected(port, descriptor)  # the end of an earlier connection was not reported
        new = self._open[port, descriptor] = AcceptedConnection(
            port, descriptor, peer_of(port, descriptor), self._number
        )
        self._counts[port] += 1
        network = network_of(new.host)
        self._networks.add(new, network)
        if self._networks.fits(0):
            return None
        largest = self._networks.largest(network)
        victim = new if 2 * self._networks.used_by(network) - 1 >= len(largest) else next(reversed(largest))
        victim.refused = True
        self._refused[victim] = None
        self._networks.discard(victim)
        return victim

    def disconnected(self, port: int, descriptor: int) -> AcceptedConnection | None:
        """Remove and return a connection; return None if it is unknown."""
        gone = self._open.pop((port, descriptor), None)
        self._counts[port] -= gone is not None
        if gone is not None and gone.refused:
            del self._refused[gone]
        elif gone is not None:
            self._networks.discard(gone)
        return gone

    def clear(self) -> None:
        """Remove all connections, because the server has stopped."""
        for each in list(self._open.values()):
            if each.ending is not None and each.ending.active():
                each.ending.cancel()
            self.disconnected(each.port, each.descriptor)

    def refused_until(self, host: str) -> float:
        """Return when the last refused connection from *host* that is kept open will be closed; 0 if there is none.

        :return: a time of the reactor's clock, in seconds
        """
        host = _plain(host)
        times = (
            each.ending.getTime()
            for each in reversed(self._refused)  # the latest one is closed last
            if each.host == host and each.ending is not None and each.ending.active()
        )
        return next(times, 0)

    def too_many_refused(self) -> bool:
        """Return whether more refused connections are open than :attr:`refused_limit`."""
        return len(self._refused) > self.refused_limit

    def close(self, port: int, descriptor: int, number: int) -> None:
        """Close the connection that :meth:`find` finds, if it is still open."""
        found = self.find(port, descriptor, number)
        if found is not None:
            found.close()

    def admit(self, identity: Identity, action: Action) -> None:
        """Remember that the ZAP handler has admitted *identity* for *action*."""
        self._admitted[identity, action] = None
        self._admitted.move_to_end((identity, action))
        if len(self._admitted) > REMEMBERED:
            (gone, _), _ = self._admitted.popitem(last=False)
            self._forgotten_hosts.add(gone.host)

    def end_forbidden(self, may: Callable[[Identity, Action], bool]) -> int:
        """Close the connections of hosts whose permission was withdrawn.

        The descriptor of an identity is not known, so this closes all connections of its host; clients that are still
        permitted reconnect.

        :param may: returns whether an identity still has permission
        :return: the number of closed connections
        """
        refused = [wanted for wanted in self._admitted if not may(*wanted)]
        hosts = {_plain(identity.host) for identity, _ in refused} | {_plain(host) for host in self._forgotten_hosts}
        for wanted in refused:
            del self._admitted[wanted]
        self._forgotten_hosts.clear()
        return sum(each.close() for each in self._open.values() if each.host in hosts) if hosts else 0


@contextmanager
def socket_of(descriptor: int) -> Iterator[socket.socket]:
    """Return a socket with a duplicate of *descriptor*, which stays open even if ZeroMQ closes the original.

    :raises OSError: the descriptor is closed already, or belongs to another kind of file
    """
    held = os.dup(descriptor)
    try:
        found = socket.socket(fileno=held)
    except OSError:
        os.close(held)
        raise
    with found:
        yield found


def peer_of(port: int, descriptor: int) -> Peer:
    """Return the address and the port at the other end of the connection that *port* accepted."""
    # The connection may be closed already, and the descriptor may be another file now.
    with suppress(OSError, IndexError, TypeError), socket_of(descriptor) as found:
        ours, peer = _ends(found)
        if ours == port:
            return peer
    return UNKNOWN, 0


def _ends(connection: socket.socket) -> tuple[int, Peer]:
    """Return the local port of a connection, and the address of its peer."""
    host, port, *_ = connection.getpeername()
    return connection.getsockname()[1], (_plain(host), port)


def _plain(host: str) -> str:
    """Return the canonical form of an IP address; an IPv4-mapped IPv6 address becomes IPv4."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    return str((address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address)


#: The peer closed the connection before it sent anything invalid.
LEFT = "handshake-left"
#: The peer did not complete the handshake in time.
TIMEOUT = "handshake-timeout"
#: The peer sent something other than a ZeroMQ handshake.
BAD = "bad-handshake"


@attrs.define(eq=False)
class Handshakes:
    """The handshakes in progress at one port."""

    _pending: set[int] = attrs.field(factory=set, init=False)
    _succeeded: int = attrs.field(default=0, init=False)
    _failure: str | None = attrs.field(default=None, init=False)

    def accepted(self, descriptor: int) -> None:
        """Record an accepted connection, whose handshake begins."""
        self._pending.add(descriptor)

    def succeeded(self) -> None:
        """Record that one of the handshakes in progress has succeeded."""
        self._succeeded += 1
        if self._succeeded >= len(self._pending):
            self._pending.clear()
            self._succeeded = 0

    def failed(self, number: int, *, protocol: bool = False, refused: bool = False) -> None:
        """Record that the handshake of the next connection that ends has failed.

        :param number: errno, or the number of the protocol error
        :param protocol: whether the peer violated the protocol
        :param refused: whether the ZAP handler refused the peer, and has counted that already
        """
        if refused:
            self._failure = ""
        elif protocol:
            self._failure = BAD
        else:
            self._failure = TIMEOUT if number == errno.EAGAIN else LEFT

    def ended(self, descriptor: int) -> str | None:
        """Record that a connection has ended; return the cause if its handshake failed, or None."""
        failure, self._failure = self._failure, None
        pending = descriptor in self._pending
        self._pending.discard(descriptor)
        if failure is None and pending and self._succeeded:
            self._succeeded -= 1
        elif failure is None and pending:
            failure = BAD
        return failure or None
