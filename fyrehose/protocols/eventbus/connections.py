"""Who is connected to the event bus, and how to part with somebody who may not be any more.

ZeroMQ accepts, asks once who may come, and has no call to send one peer away.  But it tells which file descriptor each
connection has, and a connection whose socket is shut down is one that its peer has lost: the peer connects again by
itself, is asked about again, and stays away or not.

in: what monitors and the door say      out: whom to send away
"""

from __future__ import annotations

import os
import socket
from collections import OrderedDict
from collections.abc import Callable, Collection
from ipaddress import ip_address

import attrs

from fyrehose.policy import Action, Identity

#: Peers that are remembered; the oldest give way, and are parted with when the policy changes.
REMEMBERED = 10_000

_Wanted = tuple[Identity, Action]


@attrs.define(eq=False)
class Connections:
    """The connections of a server.

    :ivar count: how many there are
    """

    count: int = attrs.field(default=0, init=False)
    _descriptors: set[int] = attrs.field(factory=set, init=False)
    _admitted: OrderedDict[_Wanted, None] = attrs.field(factory=OrderedDict, init=False)
    #: the hosts of those that were too many to be remembered
    _others: set[str] = attrs.field(factory=set, init=False)

    def accepted(self, descriptor: int) -> None:
        """There is one more."""
        self.count += 1
        self._descriptors.add(descriptor)

    def disconnected(self, descriptor: int) -> None:
        """There is one less."""
        self.count -= 1
        self._descriptors.discard(descriptor)

    def admit(self, identity: Identity, action: Action) -> None:
        """The door has let ``identity`` in."""
        self._admitted[identity, action] = None
        self._admitted.move_to_end((identity, action))
        if len(self._admitted) > REMEMBERED:
            (gone, _), _ = self._admitted.popitem(last=False)
            self._others.add(gone.host)

    def part(self, may: Callable[[Identity, Action], bool], ports: Collection[int]) -> int:
        """Send away who may not be here any more, with everybody else from the same host; how many connections.

        :param ports: ours: a descriptor may have become another's meanwhile
        """
        refused = [wanted for wanted in self._admitted if not may(*wanted)]
        hosts = {_plain(identity.host) for identity, _ in refused} | {_plain(host) for host in self._others}
        for wanted in refused:
            del self._admitted[wanted]
        self._others.clear()
        return sum(_shut_down(descriptor, hosts, ports) for descriptor in list(self._descriptors)) if hosts else 0


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
