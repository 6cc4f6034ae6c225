"""The table of clients that send KEEPALIVEs, and the rotation of those that answer REQUESTs.

A KEEPALIVE does not prove its source address: the client chooses the token, and the protocol gives the server no way to
challenge a client.  So a client is established with its second KEEPALIVE, which every client sends within a second
(rule 1 of the client).  Until then it is a newcomer: the server sends it at most three times as many bytes as came from
it, and holds the rest back until the second KEEPALIVE arrives.

in: KEEPALIVEs, REQUESTs and the time      out: the clients that receive DELIVERs, the client that receives a FORWARD
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from random import Random

import attrs

from fyrehose.protocols.backbone.frames import MAX_SEQUENCES, Address, Flags

#: How long a client is alive after a KEEPALIVE, in seconds, the end included (rule 2 of the backbone).
ALIVE = 5.0
#: Maximum number of REQUESTs of a newcomer that wait for its second KEEPALIVE.
MOST_DEFERRED = 8
#: Number of recent ranges of a client by which a repeated REQUEST is recognised.
REMEMBERED = 32
#: How long the server's journal answers all REQUESTs of a client after a repeated REQUEST, in seconds.
UNANSWERED = 10.0
#: FLAGS of a client that receives neither DELIVERs of new records nor FORWARDs.
QUIET = Flags.NOSUBSCRIBE | Flags.NOJOURNAL
# Integers, because each delivery tests the flags of every client, and an operation of Flags takes 20 times as long.
_NOSUBSCRIBE, _NOJOURNAL = int(Flags.NOSUBSCRIBE), int(Flags.NOJOURNAL)

Range = tuple[int, int]


@attrs.define(eq=False, slots=True)
class Client:
    """A client: an address and port that sends KEEPALIVEs.

    :ivar last: time of the last KEEPALIVE, in seconds
    :ivar flags: the FLAGS of the last KEEPALIVE
    :ivar credit: bytes that may be sent to it before its second KEEPALIVE; None after that
    :ivar held: first and last sequence of the records that the credit did not cover
    :ivar deferred: ranges that it requested before its second KEEPALIVE
    """

    last: float
    flags: int = attrs.field(converter=int)
    credit: int | None = None
    held: Range | None = None
    deferred: list[Range] = attrs.field(factory=list)
    _requested: deque[Range] = attrs.field(factory=lambda: deque(maxlen=REMEMBERED), init=False)
    _unanswered: float = attrs.field(default=float("-inf"), init=False)

    def hold(self, first: int, last: int) -> None:
        """Hold *first* to *last* back for the second KEEPALIVE, up to the maximum of one answer."""
        first = first if self.held is None else self.held[0]
        self.held = (first, min(last, first + MAX_SEQUENCES - 1))

    def defer(self, first: int, last: int) -> bool:
        """Defer a REQUEST to the second KEEPALIVE; return False if too many are deferred already."""
        if (first, last) not in self.deferred:
            if len(self.deferred) >= MOST_DEFERRED:
                return False
            self.deferred.append((first, last))
        return True

    def confirm(self) -> list[Range]:
        """Record another KEEPALIVE; return the ranges that waited for the second."""
        ranges = [] if self.held is None else [self.held]
        ranges += [requested for requested in self.deferred if requested not in ranges]
        self.credit, self.held, self.deferred = None, None, []
        return ranges

    def repeats(self, first: int, last: int, now: float) -> bool:
        """Record a REQUEST; return whether the client has repeated a REQUEST in the last UNANSWERED seconds.

        A repetition means that an answer was lost, or that the client that received the FORWARD does not answer.  Then
        the server answers the next ranges, too, so that the requester does not wait for such clients again.
        """
        if any(begin <= last and first <= end for begin, end in self._requested):
            self._unanswered = now + UNANSWERED
        self._requested.append((first, last))
        return now < self._unanswered


@attrs.define(eq=False)
class Table:
    """Clients in the order of their last KEEPALIVE, with a fair share of the places for every host.

    While places are free every client gets one, so that the clients behind one address may have all of them.  When all
    are taken, a client of another host displaces one of the host with the most places, until both hold as many.

    :ivar most: number of places
    :ivar clients: all clients
    :ivar newcomers: the clients that have sent only one KEEPALIVE
    """

    most: int
    clients: OrderedDict[Address, Client] = attrs.field(factory=OrderedDict, init=False)
    newcomers: dict[Address, Client] = attrs.field(factory=dict, init=False)
    _hosts: dict[str, OrderedDict[Address, None]] = attrs.field(factory=dict, init=False)
    #: number of places -> the hosts that hold as many
    _holding: dict[int, OrderedDict[str, None]] = attrs.field(factory=dict, init=False)
    _largest: int = attrs.field(default=0, init=False)

    def add(self, address: Address, client: Client) -> tuple[bool, Address | None]:
        """Add *client* if it gets a place.

        :return: whether it got a place, and the address of the client that it displaced, if any
        """
        displaced = None
        if len(self.clients) >= self.most:
            if self._largest <= len(self._hosts.get(address[0], ())) + 1:
                return False, None
            # The client with the oldest KEEPALIVE is the most likely to have left.
            displaced = next(iter(self._hosts[next(iter(self._holding[self._largest]))]))
            self.remove(displaced)
        self.clients[address] = client
        if client.credit is not None:
            self.newcomers[address] = client
        self._hosts.setdefault(address[0], OrderedDict())[address] = None
        self._recount(address[0], len(self._hosts[address[0]]) - 1)
        return True, displaced

    def renew(self, address: Address) -> None:
        """Record another KEEPALIVE of the client at *address*."""
        self.newcomers.pop(address, None)
        self.clients.move_to_end(address)
        self._hosts[address[0]].move_to_end(address)

    def remove(self, address: Address) -> Client | None:
        """Remove and return the client at *address*; None if there is none."""
        client = self.clients.pop(address, None)
        if client is not None:
            self.newcomers.pop(address, None)
            del self._hosts[address[0]][address]
            self._recount(address[0], len(self._hosts[address[0]]) + 1)
        return client

    def expire(self, now: float) -> None:
        """Remove clients whose last KEEPALIVE is older than ALIVE."""
        while self.clients:
            address, client = next(iter(self.clients.items()))
            if now - client.last <= ALIVE:
                return
            self.remove(address)

    def _recount(self, host: str, before: int) -> None:
        """Update :attr:`_holding` and :attr:`_largest` after *host* got or lost a place.

        :param before: the number of its places before the change
        """
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
class KeepAliveResult:
    """The result of a KEEPALIVE.

    :ivar admitted: the KEEPALIVE is to be acknowledged
    :ivar deferred: ranges that waited for it and are to be delivered now
    :ivar displaced: the client that lost its place
    """

    admitted: bool
    deferred: list[Range]
    displaced: Address | None = None


@attrs.define(eq=False)
class Subscribers:
    """All live clients.

    Clients with NOSUBSCRIBE and NOJOURNAL have a table of their own, so that they take no places from subscribers.
    They are acknowledged even without a place, and are remembered only so that their REQUESTs can be answered.

    :ivar most: number of places in each table
    """

    most: int
    _table: Table = attrs.field(init=False)
    _quiet: Table = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._table, self._quiet = Table(self.most), Table(self.most)

    def __len__(self) -> int:
        return len(self._table.clients)

    @property
    def new_clients(self) -> dict[Address, Client]:
        """The newcomers that receive DELIVERs or FORWARDs; always the same dictionary."""
        return self._table.newcomers

    def keep_alive(self, address: Address, flags: Flags, now: float, credit: int) -> KeepAliveResult:
        """Process a KEEPALIVE of the client at *address*.

        :param credit: bytes that a newcomer may be sent for it
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
            return KeepAliveResult(True, owed)
        admitted, displaced = table.add(address, client)
        return KeepAliveResult(admitted or quiet, owed if admitted else [], displaced)

    def find(self, address: Address, now: float) -> Client | None:
        """Return the client at *address*; None if it is not alive."""
        self._table.expire(now)
        self._quiet.expire(now)
        return self._table.clients.get(address) or self._quiet.clients.get(address)

    def established(self, now: float) -> list[Address]:
        """Return the subscribers that receive every DELIVER."""
        self._table.expire(now)
        clients, newcomers = self._table.clients.items(), self._table.newcomers
        if newcomers:
            return [at for at, client in clients if not client.flags & _NOSUBSCRIBE and at not in newcomers]
        return [at for at, client in clients if not client.flags & _NOSUBSCRIBE]

    def newcomers(self, now: float) -> list[tuple[Address, Client]]:
        """Return the subscribers that receive only the DELIVERs that their credit covers."""
        self._table.expire(now)
        return [(at, new) for at, new in self._table.newcomers.items() if not new.flags & _NOSUBSCRIBE]

    def journals(self, now: float) -> list[Address]:
        """Return the clients that receive FORWARDs."""
        self._table.expire(now)
        clients, newcomers = self._table.clients.items(), self._table.newcomers
        return [at for at, client in clients if not client.flags & _NOJOURNAL and at not in newcomers]


@attrs.define(eq=False)
class Rotation:
    """Choose members in a shuffled rotation: each once in a random order, then again in another order.

    That satisfies both rule 4 of the backbone ("randomly") and the introduction ("round-robin").
    """

    random: Random
    _turns: list[Address | None] = attrs.field(factory=list, init=False)

    def next(self, members: Iterable[Address | None], requester: Address) -> Address | None:
        """Return the member whose turn it is; never the requester, which keeps its turn.

        Members that joined since the last shuffle get their first turn after the next one.

        :param members: the current members; None, the server's own journal, is a member, too
        :raises ValueError: there is no member besides the requester
        """
        present = set(members)
        others = present - {requester}
        if not others:
            raise ValueError("no member besides the requester")
        turn = self._first(others)
        if turn is None:
            kept: list[Address | None] = [member for member in self._turns if member == requester]
            # Sorted, because the order of a set differs between processes, and a seed should determine the turns.
            fresh = sorted(present.difference(kept), key=lambda member: member or ("", 0))
            self.random.shuffle(fresh)
            self._turns = fresh + kept
            turn = self._first(others)
            assert turn is not None
        return self._turns.pop(turn)

    def _first(self, wanted: set[Address | None]) -> int | None:
        """Return the index of the next turn that belongs to one of *wanted*; turns are taken from the end."""
        return next((i for i in range(len(self._turns) - 1, -1, -1) if self._turns[i] in wanted), None)
