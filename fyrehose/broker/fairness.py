"""Share a limited table between those who fill it: when it is full, the largest holder loses its oldest member.

Whatever the server remembers for its peers has a bound, and a bound alone lets one peer push out everybody else's.  A
quota for each peer is no answer either: many honest clients may stand behind one address (NAT, Kubernetes), and one
client alone may need the whole table while nobody else wants it.  So a holder may take as much as is free, and only a
full table is divided:

- A *member* is one entry of the table: a connection, a link, a key.  It belongs to one *holder* and has a *size*: 1 if
  the table counts entries, or a number of bytes.  Entries that are never displaced, such as subscriptions, need not be
  members: ``take`` and ``give`` only count how many of them a holder has.
- A *holder* is the party that the members count for: the network of a peer
  (:func:`~fyrehose.identity.network_of`) and, where the access policy asks for a proof of identity, that proof as well.
  A name that a peer can make up is no holder.
- In a full table *the oldest member of the largest holder goes first*.  If the holder that wants room is one of the
  largest, it loses its own.
- Where nothing may be displaced, the newcomer waits or is refused, and *each* holder has a bound of its own below the
  capacity.  One holder alone then never fills the table: ``fits`` is false for it while others still have room.

Three things follow.  A holder whose share is at most ``capacity / n`` of a table with *n* holders never loses a member
to others, however fast they are.  A holder that adds without end replaces its own members once it is the largest.  And
a table that is not full costs nobody anything.

The mechanism only chooses a member.  The owner of the table removes the member, counts and logs that
(``Counters.refuse``).  If the member must not go now, the owner refuses the newcomer instead, with an error that says
when to try again.

Finding the largest holder takes constant time, adding and removing the logarithm of the number of different shares.

Use::

    table: FairShare[Link] = FairShare(10_000)
    for link in table.make_room(network):   # members that are not in the table any more
        forget(link)
    table.add(link, network)

    memory: FairShare[object] = FairShare(64 << 20, each=32 << 20)
    if not memory.fits(size, network):
        raise NoRoom
    memory.take(network, size)              # until memory.give(network, size)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeVar

import attrs

M = TypeVar("M")

#: The heap of levels is cleaned up only when it has at least this many outdated entries.
LEAST_LEVELS = 64


@attrs.define(eq=False)
class _Holder(Generic[M]):
    """The members of one holder with their sizes, the oldest first.

    :ivar used: the sum of the sizes
    :ivar taken: the size that :meth:`FairShare.take` has counted, without a member
    """

    name: str
    members: OrderedDict[M, int] = attrs.field(factory=OrderedDict, init=False)
    used: int = attrs.field(default=0, init=False)
    taken: int = attrs.field(default=0, init=False)


@attrs.define(eq=False)
class FairShare(Generic[M]):
    """The members of a table by holder, each holder's in the order in which they were added.

    :ivar capacity: the largest sum of all sizes; None: the owner of the table has a bound of its own
    :ivar each: the largest sum of one holder, as :meth:`fits` applies it; None: whatever is free
    :ivar used: the sum of the sizes of all members, and what was taken without a member
    """

    capacity: int | None = None
    each: int | None = None
    used: int = attrs.field(default=0, init=False)
    _holders: dict[str, _Holder[M]] = attrs.field(factory=dict, init=False)
    _holder_of: dict[M, _Holder[M]] = attrs.field(factory=dict, init=False)
    #: the holders by the sum of their sizes
    _levels: dict[int, dict[str, None]] = attrs.field(factory=dict, init=False)
    #: a heap of the sums in ``_levels``, as negative numbers, so that the largest sum comes first; outdated sums may be
    #: left below the top
    _heap: list[int] = attrs.field(factory=list, init=False)

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self._holder_of)

    def __contains__(self, member: M) -> bool:
        return member in self._holder_of

    @property
    def holders(self) -> Collection[str]:
        """Return those who hold anything."""
        return self._holders.keys()

    def of(self, holder: str) -> OrderedDict[M, int]:
        """Return the members of *holder* with their sizes, the oldest first; the owner may only reorder them."""
        found = self._holders.get(holder)
        return OrderedDict() if found is None else found.members

    def used_by(self, holder: str) -> int:
        """Return how much of the table *holder* uses: the sizes of its members, and what :meth:`take` has counted."""
        found = self._holders.get(holder)
        return 0 if found is None else found.used + found.taken

    def room(self, holder: str | None = None) -> float:
        """Return the free size of the table, or of the share of *holder* if that is less; infinite without a bound."""
        free = inf if self.capacity is None else self.capacity - self.used
        return free if holder is None or self.each is None else min(free, self.each - self.used_by(holder))

    def fits(self, size: int = 1, holder: str | None = None) -> bool:
        """Return whether a member of *size* can be added without displacing another.

        :param holder: the holder whose share must have room for the member, too; None: only the table must have room
        """
        return size <= self.room(holder)

    def add(self, member: M, holder: str, size: int = 1) -> None:
        """Add *member*, which is not in the table yet, as the youngest of *holder*."""
        found = self._holders.get(holder)
        if found is None:
            found = self._holders[holder] = _Holder(holder)
        found.members[member] = size
        self._holder_of[member] = found
        self._grow(found, size)

    def renew(self, member: M) -> None:
        """Make *member* the youngest of its holder's members, so that it is displaced last."""
        found = self._holder_of[member]
        found.members.move_to_end(member)
        self._grow(found, 0)

    def discard(self, member: M) -> None:
        """Remove *member*; do nothing if it is not in the table."""
        found = self._holder_of.pop(member, None)
        if found is not None:
            self._grow(found, -found.members.pop(member))

    def take(self, holder: str, size: int = 1) -> None:
        """Count *size* more for *holder*, without a member that could be displaced, until :meth:`give`.

        Nobody displaces that, so it does not make *holder* one of the largest.
        """
        found = self._holders.get(holder)
        if found is None:
            found = self._holders[holder] = _Holder(holder)
        found.taken += size
        self.used += size
        if not found.taken and not found.members:
            del self._holders[holder]

    def give(self, holder: str, size: int = 1) -> None:
        """Count *size* less for *holder*, which :meth:`take` has counted."""
        self.take(holder, -size)

    def largest(self, preferred: str = "") -> OrderedDict[M, int]:
        """Return the members of the holder that uses most of the table; of several equal ones, those of *preferred*."""
        if not self._heap:
            return OrderedDict()
        names = self._levels[-self._heap[0]]
        return self.of(preferred if preferred in names else next(iter(names)))

    def first_out(self, holder: str = "") -> M | None:
        """Return the member that is displaced first when *holder* needs room: the oldest of the largest holder.

        :return: None if the table is empty
        """
        return next(iter(self.largest(holder)), None)

    def make_room(self, holder: str = "", size: int = 1) -> list[M]:
        """Remove members until a member of *size* fits, and return the removed ones in the order of their removal.

        If *size* exceeds the capacity, all members are removed.
        """
        gone: list[M] = []
        while not self.fits(size) and (member := self.first_out(holder)) is not None:
            self.discard(member)
            gone.append(member)
        return gone

    def _grow(self, holder: _Holder[M], size: int) -> None:
        """Add *size*, which may be negative, to the sum of *holder*; forget the holder if nothing is left of it."""
        if holder.used:
            level = self._levels[holder.used]
            del level[holder.name]
            if not level:
                del self._levels[holder.used]
        self.used += size
        holder.used += size
        if holder.used:
            if holder.used not in self._levels:
                self._levels[holder.used] = {}
                heappush(self._heap, -holder.used)
            self._levels[holder.used][holder.name] = None
        if not holder.members and not holder.taken:
            del self._holders[holder.name]
        if len(self._heap) > 2 * len(self._levels) + LEAST_LEVELS:
            self._heap = [-used for used in self._levels]
            heapify(self._heap)
        while self._heap and -self._heap[0] not in self._levels:
            heappop(self._heap)
