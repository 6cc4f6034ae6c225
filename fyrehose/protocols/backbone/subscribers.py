"""Clients that send KEEPALIVEs: what each may be sent, who loses its place, and whose turn it is to answer a REQUEST.

A KEEPALIVE proves nothing about its sender: the token is the client's own, and the text gives the server nothing to
challenge a client with.  So a client counts as present with its second KEEPALIVE, which every client sends within a
second (rule 1 of the client).  Until then it is a newcomer: it is sent no more than three times what came from it, and
what that does not cover follows when the second KEEPALIVE arrives.

in: KEEPALIVEs, REQUESTs and the time      out: who gets DELIVERs, who gets a FORWARD
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from random import Random

import attrs

from fyrehose.protocols.backbone.frames import MAX_SEQUENCES, Address, Flags

#: For how long after a KEEPALIVE a client is there, in seconds, the end included (rule 2 of the backbone).
ALIVE = 5.0
#: REQUESTs of a newcomer that wait for its second KEEPALIVE.
MOST_OWED = 8
#: Ranges that a client asked for last, by which a repeated REQUEST is recognised.
REMEMBERED = 32
#: After a repeated REQUEST the journal answers all REQUESTs of that client for so long, in seconds.
UNANSWERED = 10.0
#: FLAGS of a client that wants neither DELIVERs nor FORWARDs.
QUIET = Flags.NOSUBSCRIBE | Flags.NOJOURNAL
# An operation of Flags takes a microsecond, of integers a twentieth: each delivery looks at every client.
_NOSUBSCRIBE, _NOJOURNAL = int(Flags.NOSUBSCRIBE), int(Flags.NOJOURNAL)

Range = tuple[int, int]


@attrs.define(eq=False, slots=True)
class Client:
    """A client: an address and port that sends KEEPALIVEs.

    :ivar last: when the last KEEPALIVE came
    :ivar flags: the FLAGS of the last KEEPALIVE
    :ivar credit: bytes that may be sent to it before its second KEEPALIVE; None after that
    :ivar held: first and last number of what the credit did not cover
    :ivar owed: ranges that it requested before its second KEEPALIVE
    """

    last: float
    flags: int = attrs.field(converter=int)
    credit: int | None = None
    held: Range | None = None
    owed: list[Range] = attrs.field(factory=list)
    _asked: deque[Range] = attrs.field(factory=lambda: deque(maxlen=REMEMBERED), init=False)
    _unanswered: float = attrs.field(default=float("-inf"), init=False)

    def hold(self, first: int, last: int) -> None:
        """Keep ``first`` to ``last`` for the second KEEPALIVE, as far as one answer can bring."""
        first = first if self.held is None else self.held[0]
        self.held = (first, min(last, first + MAX_SEQUENCES - 1))

    def owe(self, first: int, last: int) -> bool:
        """Keep a REQUEST for the second KEEPALIVE; return False if too many are kept already."""
        if (first, last) not in self.owed:
            if len(self.owed) >= MOST_OWED:
                return False
            self.owed.append((first, last))
        return True

    def confirm(self) -> list[Range]:
        """Record that another KEEPALIVE came; return the ranges that waited for the second."""
        ranges = [] if self.held is None else [self.held]
        ranges += [asked for asked in self.owed if asked not in ranges]
        self.credit, self.held, self.owed = None, None, []
        return ranges

    def repeats(self, first: int, last: int, now: float) -> bool:
        """Return whether the client asks again for any of ``first`` to ``last``, or has repeated itself lately.

        A repeat says that an answer was lost, or that the peer with the turn does not answer: then the client should
        not wait for such peers with its next ranges either.
        """
        if any(begin <= last and first <= end for begin, end in self._asked):
            self._unanswered = now + UNANSWERED
        self._asked.append((first, last))
        return now < self._unanswered


@attrs.define(eq=False)
class Table:
    """Clients in the order of their last KEEPALIVE, with a fair share of the places for every host.

    While places are free every client gets one, so that a crowd behind one address may have them all.  When all are
    taken, a client of another host takes the place of one of the host that holds the most, until both hold as many.
    (Hosts are IPv4 addresses here, because the protocol's are, so each is a network of its own.)

    :ivar most: number of places
    :ivar newcomers: the clients that have sent one KEEPALIVE so far
    """

    most: int
    clients: OrderedDict[Address, Client] = attrs.field(factory=OrderedDict, init=False)
    newcomers: dict[Address, Client] = attrs.field(factory=dict, init=False)
    _hosts: dict[str, OrderedDict[Address, None]] = attrs.field(factory=dict, init=False)
    #: the hosts that hold so many places
    _holding: dict[int, OrderedDict[str, None]] = attrs.field(factory=dict, init=False)
    _largest: int = attrs.field(default=0, init=False)

    def add(self, address: Address, client: Client) -> tuple[bool, Address | None]:
        """Give ``client`` a place; return whether there is one, and the address of the client that lost its own."""
        displaced = None
        if len(self.clients) >= self.most:
            if self._largest <= len(self._hosts.get(address[0], ())) + 1:
                return False, None
            # The one that has been silent for the longest is the most likely to have left.
            displaced = next(iter(self._hosts[next(iter(self._holding[self._largest]))]))
            self.remove(displaced)
        self.clients[address] = client
        if client.credit is not None:
            self.newcomers[address] = client
        self._hosts.setdefault(address[0], OrderedDict())[address] = None
        self._recount(address[0], len(self._hosts[address[0]]) - 1)
        return True, displaced

    def renew(self, address: Address) -> None:
        """Record another KEEPALIVE of ``address``."""
        self.newcomers.pop(address, None)
        self.clients.move_to_end(address)
        self._hosts[address[0]].move_to_end(address)

    def remove(self, address: Address) -> Client | None:
        """Take the place of ``address``, if it has one."""
        client = self.clients.pop(address, None)
        if client is not None:
            self.newcomers.pop(address, None)
            del self._hosts[address[0]][address]
            self._recount(address[0], len(self._hosts[address[0]]) + 1)
        return client

    def expire(self, now: float) -> None:
        """Take the places of clients that have been silent for too long."""
        while self.clients:
            address, client = next(iter(self.clients.items()))
            if now - client.last <= ALIVE:
                return
            self.remove(address)

    def _recount(self, host: str, before: int) -> None:
        """Keep :attr:`_holding` and :attr:`_largest` when ``host`` has one place more or less than ``before``."""
        count = len(self._hosts[host])
        if before:
            del self._holding[before][host]
            if not self._holding[before]:
                del self._holding[before]
        if count:
            self._holding.setdefault(count, OrderedDict())[host] = None
        else:
            del self._hosts[host]
        if count > self._largest or self._largest not in self._holding:
            self._largest = count


@attrs.frozen(slots=True)
class Seen:
    """The outcome of a KEEPALIVE.

    :ivar admitted: whether it may be acknowledged
    :ivar owed: ranges that waited for it
    :ivar displaced: the client that lost its place for it
    """

    admitted: bool
    owed: list[Range]
    displaced: Address | None = None


@attrs.define(eq=False)
class Subscribers:
    """All clients; those that fell silent are forgotten.

    Clients that want neither DELIVERs nor FORWARDs have places of their own: they take none from subscribers, are
    acknowledged with a place or without, and are known only so that their REQUESTs can be answered.

    :ivar most: how many of either kind are known at a time
    """

    most: int
    _table: Table = attrs.field(init=False)
    _quiet: Table = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._table, self._quiet = Table(self.most), Table(self.most)

    def __len__(self) -> int:
        return len(self._table.clients)

    @property
    def fresh(self) -> dict[Address, Client]:
        """The newcomers among those that take DELIVERs or FORWARDs: always the same dict."""
        return self._table.newcomers

    def seen(self, address: Address, flags: Flags, now: float, credit: int) -> Seen:
        """Record a KEEPALIVE of ``address``.

        :param credit: what a newcomer may be sent for it, in bytes
        """
        self._table.expire(now)
        self._quiet.expire(now)
        quiet = flags == QUIET
        table, other = (self._quiet, self._table) if quiet else (self._table, self._quiet)
        client = table.clients.get(address) or other.remove(address)
        owed: list[Range] = []
        if client is None:
            client = Client(now, flags, credit)
        else:
            owed = client.confirm()
            client.last, client.flags = now, flags
        if address in table.clients:
            table.renew(address)
            return Seen(True, owed)
        admitted, displaced = table.add(address, client)
        return Seen(admitted or quiet, owed if admitted else [], displaced)

    def find(self, address: Address, now: float) -> Client | None:
        """The client at ``address``, if it is alive."""
        self._table.expire(now)
        self._quiet.expire(now)
        return self._table.clients.get(address) or self._quiet.clients.get(address)

    def listening(self, now: float) -> list[Address]:
        """Subscribers that get every DELIVER."""
        self._table.expire(now)
        clients, newcomers = self._table.clients.items(), self._table.newcomers
        if newcomers:
            return [at for at, client in clients if not client.flags & _NOSUBSCRIBE and at not in newcomers]
        return [at for at, client in clients if not client.flags & _NOSUBSCRIBE]

    def newcomers(self, now: float) -> list[tuple[Address, Client]]:
        """Subscribers that get only as many DELIVERs as their credit covers."""
        self._table.expire(now)
        return [(at, new) for at, new in self._table.newcomers.items() if not new.flags & _NOSUBSCRIBE]

    def journals(self, now: float) -> list[Address]:
        """Those that answer FORWARDs."""
        self._table.expire(now)
        clients, newcomers = self._table.clients.items(), self._table.newcomers
        return [at for at, client in clients if not client.flags & _NOJOURNAL and at not in newcomers]


@attrs.define(eq=False)
class Rotation:
    """Shuffled turns: everybody once, in a random order, then again in another (rule 4: random; the introduction:
    round-robin)."""

    random: Random
    _turns: list[Address | None] = attrs.field(factory=list, init=False)

    def next(self, members: Iterable[Address | None], requester: Address) -> Address | None:
        """Whose turn it is among ``members``, never the requester's, who keeps its turn; None is a member, too.

        Members that came since the last shuffle have theirs after the next; those that left have none.
        """
        present = set(members)
        others = present - {requester}
        if not others:
            raise ValueError("a rotation needs a member besides the requester")
        turn = self._first(others)
        if turn is None:
            kept: list[Address | None] = [member for member in self._turns if member == requester]
            # Sorted, because the order of a set is not the same in each process, and a seed should tell all.
            fresh = sorted(present.difference(kept), key=lambda member: member or ("", 0))
            self.random.shuffle(fresh)
            self._turns = fresh + kept
            turn = self._first(others)
            assert turn is not None
        return self._turns.pop(turn)

    def _first(self, wanted: set[Address | None]) -> int | None:
        """Which turn is the next that belongs to one of ``wanted``; the last of the list comes first."""
        return next((i for i in range(len(self._turns) - 1, -1, -1) if self._turns[i] in wanted), None)
