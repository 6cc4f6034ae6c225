"""Connections and links by network, to choose which of them has to go when there are too many.

Many honest clients may come from one address (NAT, Kubernetes), so the limit per address is high.  When everything is
full, the network with the most members loses one.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

import attrs

T = TypeVar("T")


@attrs.define(eq=False)
class Crowd(Generic[T]):
    """Members grouped by network; each network keeps the order in which its members were added.

    Adding, removing and finding the largest network take constant time.
    """

    _members: dict[str, OrderedDict[T, None]] = attrs.field(factory=dict, init=False)
    #: member -> network
    _networks: dict[T, str] = attrs.field(factory=dict, init=False)
    #: number of members -> the networks that have that many
    _levels: dict[int, dict[str, None]] = attrs.field(factory=dict, init=False)
    _most: int = attrs.field(default=0, init=False)

    def __len__(self) -> int:
        return len(self._networks)

    def of(self, network: str) -> OrderedDict[T, None]:
        """Return the members of *network*, in their order."""
        return self._members.get(network) or OrderedDict()

    def add(self, member: T, network: str) -> None:
        """Add *member*, which is in no network yet, as the youngest of *network*."""
        members = self._members.setdefault(network, OrderedDict())
        self._move(network, len(members), len(members) + 1)
        members[member] = None
        self._networks[member] = network

    def discard(self, member: T) -> None:
        """Remove *member*; do nothing if it is not a member."""
        network = self._networks.pop(member, None)
        if network is None:
            return
        members = self._members[network]
        self._move(network, len(members), len(members) - 1)
        del members[member]
        if not members:
            del self._members[network]

    def largest(self, preferred: str = "") -> OrderedDict[T, None]:
        """Return the members of the network with the most; *preferred* among several of the same size."""
        members = self.of(preferred)
        if len(members) >= self._most:
            return members
        return self._members[next(iter(self._levels[self._most]))]

    def _move(self, network: str, old: int, new: int) -> None:
        """Record that *network* now has *new* members instead of *old*, and update the largest count."""
        if old:
            del self._levels[old][network]
            if not self._levels[old]:
                del self._levels[old]
        if new:
            self._levels.setdefault(new, {})[network] = None
        # Counts change by one at a time, so the largest count cannot change by more.
        if new > self._most or (old == self._most and old not in self._levels):
            self._most = new
