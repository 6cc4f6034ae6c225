"""The table of clients that send KEEPALIVEs, and the rotation of those that answer REQUESTs.

A KEEPALIVE does not prove its source address: the client chooses the token, and the protocol gives the server no way to
challenge a client.  So a client has a ration, unless its network is trusted: the server sends it at most three times as
many bytes as came from it, and an allowance that grows with each second in which the client sends KEEPALIVEs.  Records
beyond the ration are held back until the next KEEPALIVE.

in: KEEPALIVEs, REQUESTs and the time      out: the clients that receive DELIVERs, the client that receives a FORWARD
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from random import Random

import attrs

from fyrehose.broker.fairness import FairShare
from fyrehose.identity import network_of
from fyrehose.protocols.backbone.frames import MAX_SEQUENCES, Address, Flags
from fyrehose.protocols.backbone.ranges import Ranges

#: How long a client is alive after a KEEPALIVE, in seconds, the end included (rule 2 of the backbone).
ALIVE = 5.0
#: A KEEPALIVE raises the allowance only if the last raise was at least this long ago, in seconds.  Honest clients send
#: one each second, and a flood of KEEPALIVEs earns no more.
INTERVAL = 0.5
#: The allowance: how many bytes the server may send from one KEEPALIVE to the next to a client that has sent KEEPALIVEs
#: for one second, two seconds and so on.  After the last value the client has no ration.
ALLOWANCES = (64 << 10, 512 << 10, 4 << 20, 32 << 20)
#: Maximum number of ranges that are held back for a client.
MOST_HELD = 64
#: How long the server answers all REQUESTs of a client from its own journal after a repeated REQUEST, in seconds.
UNANSWERED = 10.0
#: FLAGS of a client that receives neither DELIVERs of new records nor FORWARDs.
QUIET = Flags.NOSUBSCRIBE | Flags.NOJOURNAL
# Integers, because each delivery tests the flags of every client, and an operation of Flags takes 20 times as long.
_NOSUBSCRIBE, _NOJOURNAL = int(Flags.NOSUBSCRIBE), int(Flags.NOJOURNAL)


@attrs.define(eq=False, slots=True)
class KnownClient:
    """A client: an address and port that sends KEEPALIVEs.

    :ivar last: time of the last KEEPALIVE, in seconds
    :ivar flags: the FLAGS of the last KEEPALIVE
    :ivar credit: bytes that the client may be sent until its next KEEPALIVE; None: it has no ration
    :ivar trusted: the client has never had a ration, because its network is trusted
    :ivar held: the records that were held back because the credit did not cover them
    """

    last: float
    flags: int = attrs.field(converter=int)
    credit: int | None = None
    trusted: bool = attrs.field(init=False)
    held: Ranges = attrs.field(factory=Ranges, init=False)
    _raised: float = attrs.field(init=False)
    _raises: int = attrs.field(default=0, init=False)
    _requested_to: int = attrs.field(default=0, init=False)
    _unanswered: float = attrs.field(default=float("-inf"), init=False)

    def __attrs_post_init__(self) -> None:
        self.trusted = self.credit is None
        self._raised = self.last

    def hold(self, first: int, last: int) -> None:
        """Hold the records *first* to *last* back until the next KEEPALIVE, but no more than one answer may have."""
        last = min(last, first + MAX_SEQUENCES - self.held.sequences - 1)
        if first <= last:
            self.held.add(first, last, MOST_HELD)

    def renew(self, now: float, credit: int) -> Ranges:
        """Record another KEEPALIVE, and return the records that were held back.

        :param credit: bytes that may be sent for it
        """
        self.last = now
        if self.credit is not None:
            self.credit += credit
            if now - self._raised >= INTERVAL:
                self.credit = max(self.credit, ALLOWANCES[self._raises]) if self._raises < len(ALLOWANCES) else None
                self._raised = now
                self._raises += 1
        held, self.held = self.held, Ranges()
        return held

    def repeats(self, first: int, last: int, now: float) -> bool:
        """Record a REQUEST; return whether the client has repeated a REQUEST in the last UNANSWERED seconds.

        A repetition means that an answer was lost, or that the client that received the FORWARD does not answer.  Then
        the server itself answers the next REQUESTs, too, so that the requester does not wait again for a client that is
        silent.  Clients find gaps in the order of the sequences, so a REQUEST that begins below the end of an earlier
        one repeats it.
        """
        if first <= self._requested_to:
            self._unanswered = now + UNANSWERED
        self._requested_to = max(self._requested_to, last)
        return now < self._unanswered


@attrs.define(eq=False)
class Places:
    """A table of clients in the order of their last KEEPALIVE; each network may have a fair share of its places.

    While places are free every client gets one, so that the clients behind one address may have all of them.  When all
    are taken, a client of another network displaces one of the network with the most places, until both hold as many.

    :ivar clients: all clients
    """

    _places: FairShare[Address] = attrs.field(converter=FairShare)
    clients: OrderedDict[Address, KnownClient] = attrs.field(factory=OrderedDict, init=False)

    def change(self, most: int) -> None:
        """Let at most *most* clients have a place from now on; no client loses its place."""
        self._places.capacity = most

    def add(self, address: Address, client: KnownClient) -> tuple[bool, Address | None]:
        """Add *client* if a place is free, or if it may displace a client of another network.

        :return: whether *client* got a place, and the address of the client that it displaced, if any
        """
        network, displaced = network_of(address[0]), None
        if not self._places.fits():
            largest = self._places.largest(network)
            if len(largest) <= self._places.used_by(network) + 1:
                return False, None
            displaced = next(iter(largest))  # its KEEPALIVE is the oldest, so most likely it has left
            self.remove(displaced)
        self.clients[address] = client
        self._places.add(address, network)
        return True, displaced

    def renew(self, address: Address) -> None:
        """Record another KEEPALIVE of the client at *address*."""
        self.clients.move_to_end(address)
        self._places.renew(address)

    def remove(self, address: Address) -> KnownClient | None:
        """Remove and return the client at *address*; None if there is none."""
        self._places.discard(address)
        return self.clients.pop(address, None)

    def expire(self, now: float) -> None:
        """Remove clients whose last KEEPALIVE is older than ALIVE."""
        while self.clients:
            address, client = next(iter(self.clients.items()))
            if now - client.last <= ALIVE:
                return
            self.remove(address)


@attrs.frozen(slots=True)
class KeepAliveResult:
    """The outcome of a KEEPALIVE: whether it is acknowledged, and what it releases or displaces.

    :ivar admitted: the KEEPALIVE is to be acknowledged
    :ivar held: records that were held back, and are to be delivered now
    :ivar displaced: the client that lost its place
    """

    admitted: bool
    held: Ranges = attrs.field(factory=Ranges)
    displaced: Address | None = None


class Subscribers:
    """All live clients.

    Clients with NOSUBSCRIBE and NOJOURNAL have places of their own, so that they take no places from subscribers.
    They are acknowledged even without a place, and are remembered only so that their REQUESTs can be answered.

    :param most: number of places of either kind
    """

    def __init__(self, most: int) -> None:
        self._table, self._quiet = Places(most), Places(most)

    def __len__(self) -> int:
        return len(self._table.clients)

    def change(self, most: int) -> None:
        """Let at most *most* clients of either kind have a place from now on; no client loses its place."""
        for places in (self._table, self._quiet):
            places.change(most)

    def keep_alive(self, address: Address, flags: Flags, now: float, credit: int | None) -> KeepAliveResult:
        """Process a KEEPALIVE of the client at *address*.

        :param credit: how many bytes the client may be sent until its next KEEPALIVE; None: it has no ration
        """
        self._table.expire(now)
        self._quiet.expire(now)
        quiet = flags == QUIET
        table, other = (self._quiet, self._table) if quiet else (self._table, self._quiet)
        client = table.clients.get(address) or other.remove(address)
        held = Ranges()
        if client is None:
            client = KnownClient(now, flags, credit)
        else:
            held = client.renew(now, credit or 0)
            client.flags = int(flags)
        if address in table.clients:
            table.renew(address)
            return KeepAliveResult(True, held)
        admitted, displaced = table.add(address, client)
        return KeepAliveResult(admitted or quiet, held if admitted else Ranges(), displaced)

    def find(self, address: Address, now: float) -> KnownClient | None:
        """Return the client at *address*; None if it is not alive."""
        self._quiet.expire(now)
        return self._alive(now).get(address) or self._quiet.clients.get(address)

    def receivers(self, now: float) -> list[tuple[Address, KnownClient]]:
        """Return the subscribers: they receive DELIVERs."""
        clients = self._alive(now).items()
        return [(at, client) for at, client in clients if not client.flags & _NOSUBSCRIBE]

    def journals(self, now: float) -> list[Address]:
        """Return the clients that receive FORWARDs: those without a ration."""
        clients = self._alive(now).items()
        return [at for at, client in clients if not client.flags & _NOJOURNAL and client.credit is None]

    def _alive(self, now: float) -> OrderedDict[Address, KnownClient]:
        self._table.expire(now)
        return self._table.clients


@attrs.define(eq=False)
class Rotation:
    """The order in which members answer REQUESTs: each once in a random order, then each once in another order.

    That satisfies both rule 4 of the backbone ("randomly") and the specification's introduction ("round-robin").
    """

    random: Random
    _turns: list[Address | None] = attrs.field(factory=list, init=False)

    def next(self, members: Iterable[Address | None], requester: Address) -> Address | None:
        """Return the member whose turn it is; never the requester, whose turn comes later.

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
        """Return the index of the last entry of the queue that is one of *wanted*; the queue is served from its end."""
        return next((i for i in range(len(self._turns) - 1, -1, -1) if self._turns[i] in wanted), None)
