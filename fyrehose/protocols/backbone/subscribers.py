"""Who is there: the table of clients that sent a KEEPALIVE, and whose turn it is to answer the next REQUEST.

in: KEEPALIVEs and the time      out: who gets DELIVERs, who gets a FORWARD
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from random import Random

import attrs

from fyrehose.protocols.backbone.frames import Address, Flags

#: For how long after a KEEPALIVE a client is there, in seconds, the end included (rule 2 of the backbone).
ALIVE = 5.0


@attrs.define(eq=False)
class Subscribers:
    """Clients by address, in the order of their last KEEPALIVE; those that fell silent are forgotten.

    :ivar most: how many are known at a time
    """

    most: int
    _clients: OrderedDict[Address, tuple[float, Flags]] = attrs.field(factory=OrderedDict, init=False)

    def __len__(self) -> int:
        return len(self._clients)

    def seen(self, client: Address, flags: Flags, now: float) -> bool:
        """``client`` sent a KEEPALIVE; False when there is no room for it.

        One that wants neither DELIVERs nor FORWARDs needs no place in the table.
        """
        self._expire(now)
        known = client in self._clients
        if flags == Flags.NOSUBSCRIBE | Flags.NOJOURNAL:
            self._clients.pop(client, None)
            return True
        if not known and len(self._clients) >= self.most:
            return False
        self._clients[client] = (now, flags)
        self._clients.move_to_end(client)
        return True

    def listening(self, now: float) -> list[Address]:
        """Those that get DELIVERs."""
        self._expire(now)
        return [client for client, (_, flags) in self._clients.items() if not flags & Flags.NOSUBSCRIBE]

    def journals(self, now: float) -> list[Address]:
        """Those that answer FORWARDs."""
        self._expire(now)
        return [client for client, (_, flags) in self._clients.items() if not flags & Flags.NOJOURNAL]

    def _expire(self, now: float) -> None:
        while self._clients:
            client, (last, _) = next(iter(self._clients.items()))
            if now - last <= ALIVE:
                return
            del self._clients[client]


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
