"""The connections of an event bus: how many there may be, and how to end those that may not be any more.

ZeroMQ accepts every connection, asks once whether it may be (ZAP), and has no call to end one.  But it says which file
descriptor each connection has, and shutting that socket down is a lost connection to ZeroMQ and to the peer, which
connects again by itself.

    accepted(port, descriptor) -> admitted, or refused: in both cases open until disconnected(port, descriptor)

in: what monitors and the ZAP handler say      out: which connections to refuse and to end
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

#: Peers that are remembered; the oldest give way, and are parted with when the policy changes.
REMEMBERED = 10_000
#: Connections that are refused and kept open for a while, at the most.
REFUSED = 256
#: The address of a connection that ended before anybody looked.
UNKNOWN = "an unknown address"

_Wanted = tuple[Identity, Action]


#: A connection: the port that accepted it, and its file descriptor, whose number another port may use again already.
Key = tuple[int, int]


@attrs.define(eq=False)
class Connections:
    """The connections of a server.

    Of ``most`` connections a part is kept for those that are refused, because a client that is refused at once comes
    back at once.  When all places are taken, the network with the most of them gives one to a newcomer of a network
    that has less than half as many.

    :ivar most: the largest number of open connections, with those that are refused
    """

    most: int = sys.maxsize
    _hosts: dict[Key, str] = attrs.field(factory=dict, init=False)
    _networks: dict[str, dict[Key, None]] = attrs.field(factory=dict, init=False)
    _taken: int = attrs.field(default=0, init=False)
    #: refused connections, and of those the ones about which ZeroMQ has not asked yet
    _refused: set[Key] = attrs.field(factory=set, init=False)
    _unasked: dict[str, dict[Key, None]] = attrs.field(factory=dict, init=False)
    _admitted: OrderedDict[_Wanted, None] = attrs.field(factory=OrderedDict, init=False)
    #: the hosts of those that were too many to be remembered
    _others: set[str] = attrs.field(factory=set, init=False)

    @property
    def count(self) -> int:
        """The number of open connections."""
        return len(self._hosts)

    @property
    def held(self) -> int:
        """The number of refused connections that may be kept open for a while."""
        return min(REFUSED, self.most // 16)

    def host(self, port: int, descriptor: int) -> str:
        """Return the address of an open connection."""
        return self._hosts.get((port, descriptor), UNKNOWN)

    def of(self, port: int) -> list[tuple[str, int]]:
        """Return the connections of *port*: the address and the descriptor of each."""
        return [(host, descriptor) for (accepted, descriptor), host in self._hosts.items() if accepted == port]

    def accepted(self, port: int, descriptor: int) -> Key | None:
        """Add a connection; return the one that is refused for it: this one, another that makes room, or None."""
        key, host = (port, descriptor), _peer(port, descriptor)
        self._hosts[key] = host
        victim = None
        if self._taken >= self.most - self.held:
            victim = self._make_room(host)
            if victim is None:
                self._refused.add(key)
                self._unasked.setdefault(host, {})[key] = None
                return key
        self._networks.setdefault(network_of(host), {})[key] = None
        self._taken += 1
        return victim

    def disconnected(self, port: int, descriptor: int) -> str:
        """Remove a connection; return its address."""
        key = (port, descriptor)
        host = self._hosts.pop(key, UNKNOWN)
        self._refused.discard(key)
        _remove(self._unasked, host, key)
        self._give_back(host, key)
        return host

    def refuse(self, host: str) -> bool:
        """Return whether the answer to a question about a connection from *host* is that it is refused.

        A question names an address and no descriptor.  Of several connections of one address that are asked about at
        the same time, the wrong ones may be refused; they come back.
        """
        host = _plain(host)
        waiting = self._unasked.get(host)
        if not waiting:
            return False
        _remove(self._unasked, host, next(iter(waiting)))
        return True

    def was_refused(self, port: int, descriptor: int) -> bool:
        """Return whether an open connection is one that was refused."""
        return (port, descriptor) in self._refused

    def crowded(self) -> bool:
        """Return whether more refused connections are open than may be kept open."""
        return len(self._refused) > self.held

    def end(self, port: int, descriptor: int) -> None:
        """End a connection that was refused, if it is still open."""
        key = (port, descriptor)
        if key in self._refused:
            _shut_down(descriptor, [self._hosts[key]], [port])

    def admit(self, identity: Identity, action: Action) -> None:
        """Remember *identity*, to which the ZAP handler has said yes."""
        self._admitted[identity, action] = None
        self._admitted.move_to_end((identity, action))
        if len(self._admitted) > REMEMBERED:
            (gone, _), _ = self._admitted.popitem(last=False)
            self._others.add(gone.host)

    def part(self, may: Callable[[Identity, Action], bool], ports: Collection[int]) -> int:
        """End the connections of peers that have lost their permission, and all others of the same hosts.

        :param ports: ours: a descriptor may have become another's meanwhile
        :return: how many were ended
        """
        refused = [wanted for wanted in self._admitted if not may(*wanted)]
        hosts = {_plain(identity.host) for identity, _ in refused} | {_plain(host) for host in self._others}
        for wanted in refused:
            del self._admitted[wanted]
        self._others.clear()
        return sum(_shut_down(descriptor, hosts, ports) for _, descriptor in list(self._hosts)) if hosts else 0

    def _make_room(self, host: str) -> Key | None:
        """Return the newest connection of the network with the most, if a newcomer from *host* is to have its place."""
        most = max(self._networks.values(), key=len, default={})
        if 2 * len(self._networks.get(network_of(host), ())) + 1 >= len(most):
            return None
        key = next(reversed(most))
        self._give_back(self._hosts[key], key)
        self._refused.add(key)
        return key

    def _give_back(self, host: str, key: Key) -> None:
        if _remove(self._networks, network_of(host), key):
            self._taken -= 1


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
        return UNKNOWN  # it has gone already


def shut_down(host: str, descriptor: int, port: int) -> bool:
    """Shut the connection *descriptor* down if it is one from *host* to *port*; return whether it was."""
    return _shut_down(descriptor, [_plain(host)], [port])


def _shut_down(descriptor: int, hosts: Collection[str], ports: Collection[int]) -> bool:
    """Shut the connection down if it is one of ours, with one of ``hosts``."""
    try:
        held = os.dup(descriptor)  # what is held is looked at, and nothing that takes its number
    except OSError:
        return False  # it has gone
    try:
        with socket.socket(fileno=held) as found:
            held = -1
            if found.getsockname()[1] not in ports or _plain(found.getpeername()[0]) not in hosts:
                return False
            found.shutdown(socket.SHUT_RDWR)
    except (OSError, IndexError, TypeError):
        return False  # it has gone, and the number is of something else
    finally:
        if held >= 0:
            os.close(held)
    return True


def _plain(host: str) -> str:
    """An address in the one way to write it."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    return str(getattr(address, "ipv4_mapped", None) or address)
