"""Bound the memory that all connections use together, and share it fairly between addresses.

Each connection has an :class:`Account`, which is charged for publishes that are not durable yet (``hold`` and
``release``), and for the bytes that have arrived of an incomplete frame (``expect``).  An announced size alone costs
nothing.  An account that may not grow pauses its connection; TCP then makes the peer wait.  The limit has four parts:

- The *pool*, three quarters of the limit, holds publishes, and the first :attr:`Budget.part` bytes of each frame.  An
  address may hold at most twice the free part of the pool, so one address alone has at most two thirds of the pool and
  leaves room for others.  A part and a read of each of 200 connections of one address fit into that.
- *Grants*, three sixteenths, are for frames that are larger than a part.  A grant covers the whole frame.  Addresses
  take turns, and one address alone has at most two thirds of the grants, except for a single frame.
- The *spare*, a sixteenth, lets connections that hold very little continue when their address has used up its share of
  the pool.
- State that lasts as long as a peer wants, such as subscriptions, is *kept* (``keep`` and ``forget``).  It reduces the
  pool, and is at most half of the limit; callers bound it for each address.  State with a bound of its own is *set
  aside* (``set_aside`` and ``put_back``): it reduces the pool, too, and takes nothing of that half.  Records that are
  half sent are lent memory in the same way (lending.py), and answers that peers leave unread have a part of their own.

Deadlock is impossible.  Held publishes become durable without further input.  An incomplete frame either may grow or
waits for a grant.  A frame with a grant is never paused for memory: it completes, or its connection ends at its
deadline, or as soon as another frame waits for the grant and this one arrives below the least rate that is accepted.
If no frame has a grant and little is held, the next frame gets one of any size, so some frame can always finish.
A grant that becomes too small because its frame grows is extended; the oldest grant can always be extended.

Starvation is impossible, too: each part leaves some memory to an address that holds nothing yet, grants are given in
turn, and the next frame in turn keeps its place until it fits.  ``used`` is at most ``limit`` plus a frame and a read
of each connection, because a connection is read once more after it has reached a bound.

Use in a protocol::

    account = budget.account(reading, network_of(host), watch)
    account.expect(1 << 20, 65_536)  # 64 KiB of a frame of 1 MiB have arrived
    account.complete()               # the frame is complete; its memory is charged again by the next hold
    account.hold(size)               # a publish, which is released without reading anything more
    account.expect(0, 0)             # no other frame has begun
    account.release(size)            # the publish is durable
    if budget.keep(size): ...        # lasting state; False: refuse the request that needs it
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

import attrs

from fyrehose.broker.fairness import FairShare
from fyrehose.broker.lending import Lending, within

#: How many bytes one read from a connection returns, at most; the same as in :mod:`fyrehose.net.sockets`.
READ = 256 << 10


class Pausable(Protocol):
    """A connection whose reading an account can pause and resume."""

    def pauseProducing(self) -> None: ...

    def resumeProducing(self) -> None: ...


class IncompleteFrame(Protocol):
    """The incomplete frame of a connection, which its account may drop if the frame arrives too slowly."""

    @property
    def slow(self) -> bool:
        """Return whether the frame arrives more slowly than accepted, not counting time without reads."""

    def drop(self) -> None:
        """End the connection, because memory is short and the frame is slow."""


class UnreadAnswer(Protocol):
    """A connection whose peer leaves a large answer unread."""

    def displace(self) -> None:
        """End the connection, because others need the memory."""


@attrs.define(eq=False)
class Share:
    """The memory that the connections of one address hold together, and the connections that wait for memory.

    :ivar held: like ``charged`` and ``granted``, the share of this address in the counter of :class:`Budget`
    :ivar accounts: number of open accounts
    :ivar queues: accounts that wait for the spare, for the pool, and for a grant
    :ivar turn: the queue whose turn is next, see :meth:`next_frame`
    """

    network: str | None
    held: int = attrs.field(default=0, init=False)
    charged: int = attrs.field(default=0, init=False)
    granted: int = attrs.field(default=0, init=False)
    accounts: int = attrs.field(default=0, init=False)
    queues: tuple[OrderedDict[Account, None], ...] = attrs.field(
        factory=lambda: (OrderedDict(), OrderedDict(), OrderedDict()), init=False
    )
    turn: int = attrs.field(default=0, init=False)

    def next_frame(self) -> Account | None:
        """Return the account whose incomplete frame gets memory (a grant) next; None if no account waits for one.

        The heads of the three queues take turns with the smallest frame that waits for a grant, so that a small frame
        need not wait for many larger ones that arrive slowly.
        """
        for turn in range(self.turn, self.turn + 4):
            if turn % 4 == 3:
                account = min(self.queues[2], key=lambda account: account.frame, default=None)
            else:
                account = next(iter(self.queues[turn % 4]), None)
            if account is not None and account.frame:
                self.turn = turn
                return account
        return None


@attrs.define(eq=False)
class Budget:
    """The memory budget of all connections; all sizes are in bytes.

    :ivar limit: the whole budget
    :ivar each: the size of its publishes that are not durable beyond which an account pauses its connection
    :ivar held: the publishes of all accounts that are not durable
    :ivar charged: ``held``, and the arrived bytes of frames without a grant; bounded by ``pool``
    :ivar granted: the full size of all frames with a grant; bounded by ``grants``
    :ivar kept: lasting state of peers, until it is forgotten
    :ivar aside: lasting state for which its owners have limits of their own; together at most an eighth of the limit
    :ivar spare: the value of ``held`` beyond which even connections that hold very little are paused
    :ivar part: the bytes of a frame that may arrive without a grant
    :ivar lending: memory for large records that are half sent, a sixteenth of the limit
    :ivar unread: large answers that peers leave unread, another sixteenth
    :ivar next_to_nothing: the bytes that an account may hold after its address has used up its share of the pool
    """

    limit: int = 512 << 20
    each: int = 8 << 20
    held: int = attrs.field(default=0, init=False)
    charged: int = attrs.field(default=0, init=False)
    granted: int = attrs.field(default=0, init=False)
    kept: int = attrs.field(default=0, init=False)
    aside: int = attrs.field(default=0, init=False)
    pool: int = attrs.field(init=False)
    grants: int = attrs.field(init=False)
    spare: int = attrs.field(init=False)
    part: int = attrs.field(init=False)
    next_to_nothing: int = attrs.field(init=False)
    lending: Lending = attrs.field(init=False)
    unread: FairShare[UnreadAnswer] = attrs.field(init=False)
    _shares: dict[str, Share] = attrs.field(factory=dict, init=False)
    _waiting: OrderedDict[Share, None] = attrs.field(factory=OrderedDict, init=False)
    _with_grant: OrderedDict[Account, None] = attrs.field(factory=OrderedDict, init=False)
    _growing: OrderedDict[Account, None] = attrs.field(factory=OrderedDict, init=False)
    _freed: int = attrs.field(default=0, init=False)
    _served: int = attrs.field(default=0, init=False)
    _serving: bool = attrs.field(default=False, init=False)
    _again: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.pool = self.limit * 3 // 4
        self.grants = self.limit * 3 // 16
        self.spare = self.limit // 16
        self.part = self.limit // 512
        self.next_to_nothing = self.part // 16
        self.lending = Lending(self, within(self.limit // 16))
        self.unread = FairShare(self.limit // 16)

    def account(self, transport: Pausable, network: str | None = None, frame: IncompleteFrame | None = None) -> Account:
        """Return a new account for the connection that reads from *transport*.

        :param network: the network of the peer, from :func:`fyrehose.identity.network_of`; None: the connection gets a
            share of its own
        :param frame: the incomplete frame of the connection; None: its frames are never dropped for being slow
        """
        share = Share(None) if network is None else self._shares.setdefault(network, Share(network))
        share.accounts += 1
        return Account(self, transport, share, frame)

    def keep(self, size: int) -> bool:
        """Charge *size* bytes of state that lasts as long as a peer wants, until :meth:`forget`.

        :return: False if more than half of the limit would be kept; then nothing is charged
        """
        if 2 * (self.kept + size) > self.limit:
            return False
        self.kept += size
        self.pool -= size
        return True

    def forget(self, size: int) -> None:
        """Release *size* bytes that :meth:`keep` charged."""
        self.kept -= size
        self.pool += size
        self._free(size)

    def set_aside(self, size: int) -> None:
        """Charge *size* bytes of state for which the caller has a limit of its own, until :meth:`put_back`."""
        self.aside += size
        self.pool -= size

    def put_back(self, size: int) -> None:
        """Release *size* bytes that :meth:`set_aside` charged."""
        self.aside -= size
        self.pool += size
        self._free(size)

    @property
    def used(self) -> int:
        """Return how many bytes of the budget are in use, for whatever purpose."""
        return self.charged + self.granted + self.kept + self.aside

    def _free(self, size: int) -> None:
        """Record that *size* bytes of the budget were released; resume waiting connections once enough is free."""
        self._freed += size
        if (self._waiting or self._growing) and (self._freed >= self.part // 2 or not self.held):
            self._serve()

    def _serve(self, room: bool = True) -> None:
        """Resume the connections that wait for memory, as far as memory is free.

        :param room: False if the pool is as full as before, so that only grants are considered
        """
        if self._serving:  # a connection that is resumed or closed below calls this again
            self._again = True
            return
        self._serving = self._again = True
        try:
            while self._again:
                self._again = False
                self._grant()
                if room or self._again:
                    self._served += 1
                    self._freed = 0
                    self._resume()
        finally:
            self._serving = False

    def _resume(self) -> None:
        """Resume connections that were paused for memory, as many as fill the free memory with one read each."""
        resumed = 0
        for share in list(self._waiting):
            small, medium, _ = share.queues
            while small and self.held <= self.spare and self.used + resumed <= self.limit:
                next(iter(small))._proceed()
                resumed += READ
            for queue in (small, medium):
                while queue and share.charged // 2 + self.charged + resumed <= self.pool:
                    next(iter(queue))._proceed()
                    resumed += READ

    def _grant(self) -> None:
        """Give memory to waiting incomplete frames, one network after another."""
        for growing in list(self._growing):
            if growing not in self._growing:  # its connection was closed to make room for an earlier frame of this loop
                continue
            more = growing.frame - growing.granted
            if self.granted + more <= self.grants or growing is next(iter(self._with_grant)):
                growing._take_grant()
            else:
                self._drop_slow(self.granted + more - self.grants, None)
        if self.held > self.spare and self.charged > self.pool:
            return  # publishes become durable soon, and then there is memory without a grant
        tries = len(self._waiting)
        while tries > 0:
            share = next(iter(self._waiting))
            account = share.next_frame()
            over = 0 if account is None or not self.granted else self.granted + account.frame - self.grants
            if over > 0:
                self._drop_slow(over, None)
                return  # the frame keeps its turn: otherwise smaller frames would take all memory that becomes free
            self._waiting.move_to_end(share)
            tries -= 1
            if account is None:
                continue
            over = share.granted // 2 + self.granted + account.frame - self.grants
            if share.granted and over > 0:
                self._drop_slow(over, share)
            else:
                account._take_grant()
                tries = len(self._waiting)

    def _drop_slow(self, needed: int, share: Share | None) -> None:
        """Close connections whose frames have memory and arrive slowly, until *needed* bytes will be free.

        :param share: the share of the address whose frames may be dropped; None: frames of all addresses
        """
        for account in list(self._with_grant):
            if needed <= 0:
                return
            if share is None or account.share is share:
                granted = account.granted  # becomes 0 if the connection ends at once
                if not account.leaving and account.slow:
                    account._drop()
                if account.leaving:
                    needed -= granted


@attrs.define(eq=False)
class Account:
    """The memory that one connection holds; all sizes are in bytes.

    :ivar share: the share of the connection's address
    :ivar held: publishes that are not durable yet
    :ivar frame: the size of the incomplete frame, as far as it is known; 0 between frames
    :ivar arrived: the part of the frame that has arrived
    :ivar granted: the part of the frame that is covered by a grant; 0: the frame is charged as it arrives
    :ivar paused: True while reading from the transport is paused
    :ivar leaving: True after the connection was dropped, because memory is short and its frame is slow
    """

    budget: Budget
    transport: Pausable
    share: Share
    watch: IncompleteFrame | None = None
    held: int = attrs.field(default=0, init=False)
    frame: int = attrs.field(default=0, init=False)
    arrived: int = attrs.field(default=0, init=False)
    granted: int = attrs.field(default=0, init=False)
    paused: bool = attrs.field(default=False, init=False)
    leaving: bool = attrs.field(default=False, init=False)
    _freed: int = attrs.field(default=0, init=False)
    _place: int | None = attrs.field(default=None, init=False)
    _seen: int = attrs.field(default=0, init=False)
    _crowded: bool = attrs.field(default=False, init=False)
    _closed: bool = attrs.field(default=False, init=False)

    def hold(self, size: int) -> None:
        """Charge the connection *size* bytes for a publish, until :meth:`release`."""
        budget, share = self.budget, self.share
        self.held += size
        share.held += size
        budget.held += size
        share.charged += size
        budget.charged += size
        self._crowded = self._crowded or self.held > budget.each
        # Only publishes were charged, so only the limits that count publishes can be exceeded.
        full = share.charged // 2 + budget.charged > budget.pool
        if self.paused or self._crowded or (full and not self._may_read()):
            self._update()

    def release(self, size: int) -> None:
        """Release the *size* bytes of one call of :meth:`hold`: the publish became durable, or was refused."""
        budget, share = self.budget, self.share
        self.held -= size
        share.held -= size
        budget.held -= size
        share.charged -= size
        budget.charged -= size
        # Read again only when half of the account's limit is free: a few large reads cost less than many small ones.
        if self.held <= budget.each // 2:
            self._crowded = False
        if self.paused:
            self._update()
        if budget.held <= budget.spare < budget.held + size:
            budget._serve()
        elif budget._waiting or budget._growing:
            budget._free(size)
        if self._closed:
            self._forget_share()

    def expect(self, size: int, arrived: int) -> None:
        """Charge the connection for the incomplete frame that it is receiving; call this after each read.

        :param size: the size of the whole frame, as far as it is known, in bytes; 0: no frame has begun
        :param arrived: the part of the frame that is in memory, in bytes
        """
        if size == self.frame and arrived == self.arrived and not self._freed:
            return
        freed = self._freed
        if self.granted > size:
            freed += self.granted
            self._release_grant()
        elif not self.granted:
            freed += max(0, self.arrived - arrived)
            self._charge(-self.arrived)
        self.frame, self.arrived, self._freed = size, arrived, 0
        if not self.granted:
            self._charge(arrived)
        self._update()
        if freed:
            self.budget._free(freed)

    def complete(self) -> None:
        """Release the memory that was charged for a frame, because the frame is complete.

        Call :meth:`hold` for its contents, and then :meth:`expect`: waiting accounts are resumed only then, because
        the memory of the frame is not free before.
        """
        if self.frame:
            self._freed += self.granted or self.arrived
            if self.granted:
                self._release_grant()
            else:
                self._charge(-self.arrived)
            self.frame = self.arrived = 0

    def retry(self) -> None:
        """Check again whether a paused connection may read; call this every second while its frame is incomplete.

        Only this check notices that another frame has become slow and can be dropped to make room.
        """
        seen, self._seen = self._seen, self.budget._served
        if seen == self._seen and self.waits:  # one check serves all waiting accounts
            self.budget._serve()
            self._seen = self.budget._served

    def close(self) -> None:
        """Release the memory of a lost connection; its publishes stay charged until they are durable."""
        if self._closed:
            return
        self._closed = True
        self._leave()
        if self.granted:
            self._release_grant()
        else:
            self._charge(-self.arrived)
        self.frame = self.arrived = 0
        self.share.accounts -= 1
        self.budget._serve()
        self._forget_share()

    @property
    def waits(self) -> bool:
        """Return whether the connection waits for memory of the budget."""
        return self._place is not None or self in self.budget._growing

    @property
    def slow(self) -> bool:
        """Return whether the frame arrives too slowly, although the server reads the connection."""
        return not self.paused and self.watch is not None and self.watch.slow

    # Private.

    def _forget_share(self) -> None:
        if not self.share.accounts and not self.share.charged and self.share.network is not None:
            self.budget._shares.pop(self.share.network, None)

    def _charge(self, size: int) -> None:
        self.share.charged += size
        self.budget.charged += size

    def _take_grant(self) -> None:
        """Reserve memory for the whole incomplete frame (a grant), and resume the connection."""
        budget = self.budget
        if not self.granted:
            self._charge(-self.arrived)
            self.share.turn += 1
        more = self.frame - self.granted
        self.granted += more
        self.share.granted += more
        budget.granted += more
        budget._with_grant[self] = None
        self._proceed()

    def _release_grant(self) -> None:
        """Return the memory that was reserved for the frame (its grant) to the budget."""
        self.share.granted -= self.granted
        self.budget.granted -= self.granted
        self.granted = 0
        self.budget._with_grant.pop(self, None)
        self.budget._growing.pop(self, None)

    def _proceed(self) -> None:
        self._leave()
        self._switch()

    def _update(self) -> None:
        """Pause or resume the connection, depending on the memory that it holds."""
        if self._closed or self.leaving:
            return
        if self._crowded or self._may_read():
            self._leave()
        else:
            self._wait()
        self._switch()

    def _may_read(self) -> bool:
        budget, own = self.budget, self.held + self.arrived
        if self.granted:
            return self.granted >= self.frame
        if not own:
            return True
        if self.arrived <= budget.part and self.share.charged // 2 + budget.charged <= budget.pool:
            return True
        return own <= budget.next_to_nothing and budget.held <= budget.spare and budget.used <= budget.limit

    def _wait(self) -> None:
        """Put the account into the queue for the kind of memory that it needs: the spare, the pool or a grant."""
        budget, share = self.budget, self.share
        place = 2
        if self.granted:
            budget._growing[self] = None
        else:
            small = self.held + self.arrived <= budget.next_to_nothing
            place = 0 if small else 1 if self.arrived <= budget.part else 2
            if place != self._place:
                self._leave()
                self._place = place
                share.queues[place][self] = None
                budget._waiting[share] = None
        if not self.frame:
            return
        slow = place > 0 and self.slow
        budget._serve(room=False)
        # Close the connection if its frame is slow and other frames have the memory; wait if publishes have it.
        if slow and self.waits and share.charged - share.held >= share.held:
            self._drop()

    def _leave(self) -> None:
        """Remove the account from the queue in which it waits for memory, if any."""
        self.budget._growing.pop(self, None)
        if self._place is not None:
            del self.share.queues[self._place][self]
            self._place = None
            if not any(self.share.queues):
                self.budget._waiting.pop(self.share, None)

    def _drop(self) -> None:
        """End the connection, because memory is short and its frame is slow."""
        assert self.watch is not None
        self._leave()
        self.leaving = True
        self.watch.drop()

    def _switch(self) -> None:
        wanted = self._crowded or self._place is not None or self in self.budget._growing
        if self._closed or wanted == self.paused:
            return
        self.paused = wanted
        if wanted:
            self.transport.pauseProducing()
        else:
            self.transport.resumeProducing()
