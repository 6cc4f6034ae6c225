"""Bound the memory that all connections take together, and share it between their addresses.

Each connection has an :class:`Account`, which is charged for what the connection holds: what it has published and is
not durable yet (``hold`` and ``release``), and the bytes that have arrived of a frame that is not whole (``expect``).
What a peer only announces costs nothing.  An account that may not grow pauses its connection; TCP then makes the peer
wait.  The limit has four parts:

- The *pool*, three quarters of it, holds what is published, and the first :attr:`Budget.part` bytes of each frame.  An
  address may hold at most twice what is left of the pool.  One address alone therefore has at most two thirds of the
  pool, and another address finds room.  A part and a read of each of 200 connections of one address do not fill that.
- *Grants*, three sixteenths of it, are for frames that need more than that.  A grant covers the whole frame.  Addresses
  take turns, and one address alone has at most two thirds of the grants, except for a single frame.
- The *spare*, a sixteenth of it, keeps connections going that hold next to nothing when their address has used up its
  share of the pool.
- What a peer makes the server remember for as long as it wants, such as subscriptions, is *kept* (``keep`` and
  ``forget``).  It comes out of the pool, and is at most half of the limit; callers bound what one address keeps.

There is no deadlock.  What is held becomes durable by itself.  A frame that is not whole either may grow, or waits for
a grant; a frame with a grant is not paused for the sake of memory, so it becomes whole, or its connection ends: by its
deadline, or as soon as another frame waits for the grant and this one is slower than a slow link (:class:`Frame`).  If
no frame has a grant and little is held, the next frame gets one however large it is, so some frame can always finish.
A grant that turns out too small, because its frame grows, is extended, and the oldest one always is.

No address uses it all up, because each of these parts leaves something to an address that has nothing yet; and no
frame waits for ever, because grants are given in turn, and a frame that is next keeps its turn until there is room.

A connection is read once more after it has reached a bound, so ``used`` is at most ``limit``, a frame, and these reads.

Use in a protocol::

    account = budget.account(reading, network_of(host), watch)
    account.expect(1 << 20, 65_536)  # 64 KiB of a frame of 1 MiB have arrived
    account.complete()               # it is whole, and what is held next takes its place
    account.hold(size)               # memory that will be released without anything more being read
    account.expect(0, 0)             # no other frame has begun
    account.release(size)
    if budget.keep(size): ...        # memory that stays; if it is refused, refuse what asked for it
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

import attrs

#: What is read of a connection at once, in bytes, as in :mod:`fyrehose.net.sockets`.
READ = 256 << 10


class Pausable(Protocol):
    """The reading half of a transport."""

    def pauseProducing(self) -> None: ...

    def resumeProducing(self) -> None: ...


class Frame(Protocol):
    """The frame that is coming in on a connection, as its account has to know it."""

    @property
    def slow(self) -> bool:
        """Whether it comes more slowly than a slow link brings it; never for time in which it was not read."""

    def drop(self) -> None:
        """End the connection, because memory is short and the frame is slow."""


@attrs.define(eq=False)
class Share:
    """The memory that the connections of one address hold together, and the connections that wait for more.

    :ivar held: and the next two, as in :class:`Budget`
    :ivar accounts: number of accounts that are open
    :ivar queues: accounts that wait: for the spare, for the pool, for a grant
    :ivar turn: which of them is next, see :meth:`next_frame`
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
        """Return the account whose frame is granted next.

        The heads of the queues take turns, and so does the smallest of the frames that wait for a grant: others that
        are much larger, and stop in the middle, cannot keep it waiting for all of them.
        """
        for turn in range(self.turn, self.turn + 4):
            if turn % 4 == 3:
                account = min(self.queues[2], key=lambda account: account.frame, default=None)
            else:
                account = next(iter(self.queues[turn % 4]), None)
            if account is not None and account.frame:
                self.turn = turn % 4
                return account
        return None


@attrs.define(eq=False)
class Budget:
    """Bytes that may be held in memory on behalf of all peers together.

    :ivar limit: all of it, in bytes
    :ivar each: what one account may have published and not durable before it stops reading, in bytes
    :ivar held: what is published and not durable, in bytes
    :ivar charged: that, and what has arrived of frames without a grant; bounded by ``pool``
    :ivar granted: the frames that have a grant, in bytes, arrived or not; bounded by ``grants``
    :ivar kept: what stays until a peer gives it up, in bytes
    :ivar spare: what may be held before connections that hold next to nothing are paused, too, in bytes
    :ivar part: how many bytes of a frame may come in without a grant
    :ivar next_to_nothing: what an account may hold when its address has used up its share of the pool, in bytes
    """

    limit: int = 512 << 20
    each: int = 8 << 20
    held: int = attrs.field(default=0, init=False)
    charged: int = attrs.field(default=0, init=False)
    granted: int = attrs.field(default=0, init=False)
    kept: int = attrs.field(default=0, init=False)
    pool: int = attrs.field(init=False)
    grants: int = attrs.field(init=False)
    spare: int = attrs.field(init=False)
    part: int = attrs.field(init=False)
    next_to_nothing: int = attrs.field(init=False)
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

    def account(self, transport: Pausable, network: str | None = None, frame: Frame | None = None) -> Account:
        """Return a new account for the connection that reads from *transport*.

        :param network: the network of the peer, from :func:`fyrehose.identity.network_of`; None: one of its own
        :param frame: judges and drops the frame that is coming in; None: it is never dropped
        """
        share = Share(None) if network is None else self._shares.setdefault(network, Share(network))
        share.accounts += 1
        return Account(self, transport, share, frame)

    def keep(self, size: int) -> bool:
        """Charge *size* bytes that stay until :meth:`forget`.

        :return: False if more than half of the limit would be kept; then nothing is charged
        """
        if 2 * (self.kept + size) > self.limit:
            return False
        self.kept += size
        self.pool -= size
        return True

    def forget(self, size: int) -> None:
        """Take back *size* bytes of those that are kept."""
        self.kept -= size
        self.pool += size
        self._free(size)

    @property
    def used(self) -> int:
        """All that is charged, in bytes."""
        return self.charged + self.granted + self.kept

    # Inside.

    def _free(self, size: int) -> None:
        """Note that *size* bytes are free; let accounts that wait go on when that is worth it."""
        self._freed += size
        if (self._waiting or self._growing) and (self._freed >= self.part // 2 or not self.held):
            self._serve()

    def _serve(self, room: bool = True) -> None:
        """Let accounts that wait go on; without *room* the pool is as full as before, and only grants are looked at."""
        if self._serving:  # an account that goes on, or is dropped, may free something at once, or wait again
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
        """Resume accounts that wait for the spare or the pool, as many as fill what is free with a read of each."""
        resumed = 0
        for share in list(self._waiting):
            small, medium, _ = share.queues
            while small and self.held <= self.spare and self.used + resumed <= self.limit:
                next(iter(small))._go_on()
                resumed += READ
            for queue in (small, medium):
                while queue and share.charged // 2 + self.charged + resumed <= self.pool:
                    next(iter(queue))._go_on()
                    resumed += READ

    def _grant(self) -> None:
        """Grant frames that wait, addresses in turn."""
        for growing in list(self._growing):
            if growing not in self._growing:  # it was dropped for the sake of one before it
                continue
            more = growing.frame - growing.granted
            if self.granted + more <= self.grants or growing is next(iter(self._with_grant)):
                growing._take_grant()
            else:
                self._drop_slow(self.granted + more - self.grants, None)
        if self.held > self.spare and self.charged > self.pool:
            return  # what is held becomes durable, and then there is room
        tries = len(self._waiting)
        while tries > 0:
            share = next(iter(self._waiting))
            account = share.next_frame()
            over = 0 if account is None or not self.granted else self.granted + account.frame - self.grants
            if over > 0:
                self._drop_slow(over, None)
                return  # it keeps its turn: others would take what becomes free, and it would wait for ever
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
        """Drop granted frames that are slow, those of *share* or of all, until *needed* bytes will be free."""
        for account in list(self._with_grant):
            if needed <= 0:
                return
            if share is None or account.share is share:
                granted = account.granted  # nothing any more if its connection ends at once
                if not account.leaving and account.slow:
                    account._drop()
                if account.leaving:
                    needed -= granted


@attrs.define(eq=False)
class Account:
    """What one connection holds.

    :ivar share: what its address holds
    :ivar held: published and not durable yet, in bytes
    :ivar frame: the size of the frame that is coming in, as far as it is known, in bytes; 0: there is none
    :ivar arrived: how much of it is here, in bytes
    :ivar granted: for how much of it there is a grant, in bytes; 0: it is charged as it arrives
    :ivar paused: whether its transport has been told to stop reading
    :ivar leaving: whether its connection was told to end, because memory is short and the frame is slow
    """

    budget: Budget
    transport: Pausable
    share: Share
    watch: Frame | None = None
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
        """Charge *size* bytes that were published, until they are released."""
        budget, share = self.budget, self.share
        self.held += size
        share.held += size
        budget.held += size
        self._charge(size)
        self._crowded = self._crowded or self.held > budget.each
        self._look()

    def release(self, size: int) -> None:
        """Take back *size* bytes, as one call of :meth:`hold` had them: they became durable, or were refused."""
        budget, share = self.budget, self.share
        self.held -= size
        share.held -= size
        budget.held -= size
        self._charge(-size)
        # It reads again when half of that is free: in large pieces, not in drops.
        if self.held <= budget.each // 2:
            self._crowded = False
        if self.paused:
            self._look()
        if budget.held <= budget.spare < budget.held + size:
            budget._serve()
        else:
            budget._free(size)
        if self._closed:
            self._forget_share()

    def expect(self, size: int, arrived: int) -> None:
        """Charge the frame that is coming in.

        :param size: the size of all of it, as far as it is known, in bytes; 0: there is none
        :param arrived: how much of it is in memory, in bytes
        """
        if size == self.frame and arrived == self.arrived and not self._freed:
            return
        freed = self._freed
        if self.granted > size:
            freed += self.granted
            self._give_back()
        elif not self.granted:
            freed += max(0, self.arrived - arrived)
            self._charge(-self.arrived)
        self.frame, self.arrived, self._freed = size, arrived, 0
        if not self.granted:
            self._charge(arrived)
        self._look()
        if freed:
            self.budget._free(freed)

    def complete(self) -> None:
        """Take back the frame, which is whole.  Call :meth:`expect` after what came of it is held.

        Others wait until then, because its memory is not free yet.
        """
        if self.frame:
            self._freed += self.granted or self.arrived
            if self.granted:
                self._give_back()
            else:
                self._charge(-self.arrived)
            self.frame = self.arrived = 0

    def retry(self) -> None:
        """Look again whether this account may go on.  Call this about once a second while it waits with a frame.

        Slow frames give way to it, and nothing else says when a frame has become slow.
        """
        seen, self._seen = self._seen, self.budget._served
        if seen == self._seen and self.waits:  # once for all that wait
            self.budget._serve()
            self._seen = self.budget._served

    def close(self) -> None:
        """Give back everything but what was published, which is charged until it is released."""
        budget = self.budget
        if self._closed:
            return
        self._closed = True
        self._leave()
        if self.granted:
            self._give_back()
        else:
            self._charge(-self.arrived)
        self.frame = self.arrived = 0
        self.share.accounts -= 1
        budget._serve()
        self._forget_share()

    @property
    def waits(self) -> bool:
        """Whether it waits for others to free memory."""
        return self._place is not None or self in self.budget._growing

    @property
    def slow(self) -> bool:
        """Whether its frame is read, and slower than a slow link."""
        return not self.paused and self.watch is not None and self.watch.slow

    # Inside.

    def _forget_share(self) -> None:
        if not self.share.accounts and not self.share.charged and self.share.network is not None:
            self.budget._shares.pop(self.share.network, None)

    def _charge(self, size: int) -> None:
        self.share.charged += size
        self.budget.charged += size

    def _take_grant(self) -> None:
        """Have the whole frame covered by a grant, and go on."""
        budget = self.budget
        if not self.granted:
            self._charge(-self.arrived)
            self.share.turn += 1
        more = self.frame - self.granted
        self.granted += more
        self.share.granted += more
        budget.granted += more
        budget._with_grant[self] = None
        self._go_on()

    def _give_back(self) -> None:
        """Give back the grant."""
        self.share.granted -= self.granted
        self.budget.granted -= self.granted
        self.granted = 0
        self.budget._with_grant.pop(self, None)
        self.budget._growing.pop(self, None)

    def _go_on(self) -> None:
        self._leave()
        self._switch()

    def _look(self) -> None:
        """Pause or resume, as what it holds now has it."""
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
        """Wait for room, or for a grant if there is one to be had."""
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
        # A slow frame is dropped where it would wait for memory that frames take; for the disk it may wait.
        if slow and self.waits and share.charged - share.held >= share.held:
            self._drop()

    def _leave(self) -> None:
        """Leave the queue."""
        self.budget._growing.pop(self, None)
        if self._place is not None:
            del self.share.queues[self._place][self]
            self._place = None
            if not any(self.share.queues):
                self.budget._waiting.pop(self.share, None)

    def _drop(self) -> None:
        """End the connection: memory is short, and its frame is slow."""
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
