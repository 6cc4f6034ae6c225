"""Bound the bytes in memory that are not durable or not read, and share them between networks.

Each connection has an :class:`Account`, which is charged for what is *in flight*: publishes that are not durable
(``hold`` and ``release``), and the bytes that have arrived of an incomplete frame (``expect``).  What is announced
costs nothing.  A connection that may not have more is not read, so that TCP makes its peer wait.  Of the limit,

- 11/16 are for what is in flight.  A network may have at most twice what it leaves free there;
- 1/16 more is for connections that have at most SMALL bytes each, whatever their network has;
- 1/8 is for large frames that wait for a place: so many at a time, see slots.py;
- 1/16 is not given away, because a message is in memory twice while it goes from its connection into a commit;
- 1/16 is for what is not read (:class:`UnreadMemory`): large answers, and large records that are half sent.

State that lasts as long as a peer wants, such as subscriptions, is in flight, too, up to half of the limit (``keep``
and ``forget``), and its owners bound it for each address.

The journal commits the publishes of networks in turns.  It writes ``window`` bytes in a short time, of which each
network that has publishes there may have its part, so that what follows them does not wait long.  Beyond it the
network's input waits.

A connection that has nothing in flight is always read, and so is one whose frame has a slot.  Therefore ``used`` is at
most the limit, and a read of each connection.  And nobody waits for ever: publishes become durable without being read
further, and then their connection has nothing in flight, or an incomplete frame, which gets a slot in its turn.

    account = in_flight.account(reading, network_of(host), watch)
    account.expect(1 << 20, 65_536)  # 64 KiB of a frame of 1 MiB have arrived
    account.complete()               # it is complete: its memory is charged by the next hold
    account.hold(size)               # a publish, which is released when it is durable
    account.expect(0, 0)             # no other frame has begun
    account.release(size)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from fyrehose.broker.fairness import FairShare
from fyrehose.net.slots import Slots


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


class LargeAnswer(Protocol):
    """A connection that has a large answer, or a half-sent record, in memory for a peer that does not read."""

    @property
    def network(self) -> str: ...

    @property
    def repeatable(self) -> bool:
        """Return whether the data can be read again, and its peer does not read at present."""

    def displace(self) -> None:
        """Drop the data, because others need its memory; end the connection unless the data can be read again."""


@attrs.define(eq=False)
class Share:
    """The connections of one network: how many, and the bytes in flight, and of those the ones before the disk."""

    network: str
    used: int = attrs.field(default=0, init=False)
    submitted: int = attrs.field(default=0, init=False)
    accounts: int = attrs.field(default=0, init=False)


@attrs.define(eq=False)
class InFlight:
    """The memory budget of all connections; all sizes are in bytes.

    :ivar limit: the whole budget
    :ivar each: the size of its publishes that are not durable beyond which an account pauses its connection
    :ivar used: what is in flight, and lasting state
    :ivar held: publishes that are not durable
    :ivar kept: lasting state of peers, until it is forgotten
    :ivar room: limit of ``used``, but for small connections and slots
    :ivar part: the bytes of a frame that may arrive without a slot
    :ivar small: what a connection may have in flight after its network has used up its share
    :ivar submitting: how many networks have publishes that were submitted to the journal, and are not durable
    :ivar window: returns how many bytes of such publishes there may be, divided among these networks
    :ivar slots: the large frames that may arrive
    :ivar unread: what peers leave unread
    """

    limit: int = 512 << 20
    each: int = 8 << 20
    used: int = attrs.field(default=0, init=False)
    held: int = attrs.field(default=0, init=False)
    kept: int = attrs.field(default=0, init=False)
    submitting: int = attrs.field(default=0, init=False)
    window: Callable[[], int] = attrs.field(default=lambda: 1 << 62, init=False)
    room: int = attrs.field(init=False)
    reserve: int = attrs.field(init=False)
    part: int = attrs.field(init=False)
    small: int = attrs.field(init=False)
    slots: Slots = attrs.field(init=False)
    unread: UnreadMemory = attrs.field(init=False)
    _shares: dict[str, Share] = attrs.field(factory=dict, init=False)
    #: the input that waits for the journal, by the share of its network
    _parked: dict[Share, list[Callable[[], object]]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.room = self.limit * 11 // 16
        self.reserve = self.limit // 16
        self.part = self.limit // 2048
        self.small = self.part // 4
        # While publishes fill the room, memory becomes free without a slot.
        self.slots = Slots(self.limit // 8, lambda: self.used > self.room and self.held > self.reserve)
        self.unread = UnreadMemory(self.limit // 16)

    def account(self, transport: Pausable, network: str | None = None, frame: IncompleteFrame | None = None) -> Account:
        """Return a new account for the connection that reads from *transport*.

        :param network: the network of the peer, from :func:`fyrehose.identity.network_of`; None: the connection gets a
            share of its own
        :param frame: the incomplete frame of the connection; None: its frames are never dropped for being slow
        """
        share = Share("") if network is None else self._shares.setdefault(network, Share(network))
        share.accounts += 1
        return Account(self, transport, share, frame)

    def keep(self, size: int) -> bool:
        """Charge *size* bytes of state that lasts as long as a peer wants, until :meth:`forget`.

        :return: False if more than half of the limit would be kept; then nothing is charged
        """
        if 2 * (self.kept + size) > self.limit:
            return False
        self.change_kept(size)
        return True

    def forget(self, size: int) -> None:
        """Release *size* bytes that :meth:`keep` charged."""
        self.change_kept(-size)

    def change_kept(self, size: int) -> None:
        """Charge *size* bytes of lasting state for which there is a bound elsewhere; negative: release them."""
        self.kept += size
        self.charge(size)

    def charge(self, size: int) -> None:
        """Charge *size* bytes of state for which the caller has a limit of its own; negative: release them."""
        self.used += size
        if size < 0:
            self.slots.serve()

    def is_behind(self, share: Share) -> bool:
        """Return whether input of *share* has to wait, because the journal has much of its network to write."""
        return share.submitted > 0 and share.submitted * self.submitting >= self.window()

    def proceed(self) -> None:
        """Let input continue that waits for the journal, unless too much of its network still does."""
        for share in list(self._parked):
            self.proceed_with(share)

    def proceed_with(self, share: Share) -> None:
        """Let input of *share* continue, as :meth:`proceed` does with that of all."""
        if share in self._parked and not self.is_behind(share):
            for proceed in self._parked.pop(share):
                proceed()


@attrs.define(eq=False)
class Account:
    """Count the bytes that one connection has in flight.

    :ivar share: the share of the connection's network
    :ivar held: publishes that are not durable yet
    :ivar frame: the size of the incomplete frame, as far as it is known; 0 between frames
    :ivar arrived: the part of the frame that has arrived
    :ivar paused: whether the connection is not read for want of memory
    """

    budget: InFlight
    transport: Pausable
    share: Share
    watch: IncompleteFrame | None = None
    held: int = attrs.field(default=0, init=False)
    frame: int = attrs.field(default=0, init=False)
    arrived: int = attrs.field(default=0, init=False)
    paused: bool = attrs.field(default=False, init=False)
    _crowded: bool = attrs.field(default=False, init=False)
    _closed: bool = attrs.field(default=False, init=False)

    def hold(self, size: int, submitted: int = 0) -> None:
        """Charge the connection *size* bytes for a publish, until :meth:`release`.

        :param submitted: how many of them are submitted to the journal
        """
        budget, share = self.budget, self.share
        if submitted and not share.submitted:
            budget.submitting += 1
        share.submitted += submitted
        self.held += size
        budget.held += size
        share.used += size
        budget.used += size
        self._crowded = self._crowded or self.held > budget.each
        if self._crowded or self.paused or share.used // 2 + budget.used > budget.room:
            self._update()

    def release(self, size: int, submitted: int = 0) -> None:
        """Release the *size* bytes of one call of :meth:`hold`: the publish became durable, or was refused."""
        budget, share = self.budget, self.share
        share.submitted -= submitted
        if submitted and not share.submitted:
            budget.submitting -= 1
        self.held -= size
        budget.held -= size
        share.used -= size
        budget.used -= size
        # Read again only when half of the account's limit is free: a few large reads cost less than many small ones.
        if self.held <= budget.each // 2:
            self._crowded = False
        if self.paused:
            self._update()
        if budget.slots.waiting:
            budget.slots.serve()
        if self._closed:
            self._forget_share()
        if budget._parked:
            budget.proceed_with(share)

    @property
    def behind(self) -> bool:
        """Return whether input has to wait, because the journal has much of this network to write."""
        return self.budget.is_behind(self.share)

    def park(self, proceed: Callable[[], object]) -> bool:
        """Return False if input need not wait for the journal; else call *proceed* when it may continue."""
        if self._closed or not self.behind:
            return False
        self.budget._parked.setdefault(self.share, []).append(proceed)
        return True

    def expect(self, size: int, arrived: int) -> None:
        """Charge the connection for the incomplete frame that it is receiving; call this after each read.

        :param size: the size of the whole frame, as far as it is known, in bytes; 0: no frame has begun
        :param arrived: the part of the frame that is in memory, in bytes
        """
        if size == self.frame and arrived == self.arrived:
            return
        if size < self.frame:
            self.budget.slots.leave(self)  # it is another frame
        self._charge(arrived - self.arrived)
        self.frame, self.arrived = size, arrived
        self._update()

    def complete(self) -> None:
        """Release the memory of a frame, because it is complete; call :meth:`hold` for its content."""
        if self.frame:
            self._charge(-self.arrived)
            self.frame = self.arrived = 0
            self.budget.slots.leave(self)

    def retry(self, now: float) -> None:
        """Check again whether a paused connection may be read; call this every second while its frame is incomplete.

        Only this check notices that there is room again without a slot, or that another frame has become slow.

        :param now: a time that never steps, in seconds
        """
        self._update()
        if self.waits:
            self.budget.slots.relieve(now)

    def close(self) -> None:
        """Release the memory of a lost connection; its publishes stay charged until they are durable."""
        if not self._closed:
            self._closed = True
            self.complete()
            self.share.accounts -= 1
            self._forget_share()

    @property
    def waits(self) -> bool:
        """Return whether the connection waits for memory, except for its own publishes to become durable."""
        return self.budget.slots.waits(self)

    # Called by the slots.

    @property
    def network(self) -> str:
        return self.share.network

    @property
    def slow(self) -> bool:
        """Return whether the frame arrives more slowly than accepted, although its connection is read."""
        return not self.paused and self.watch is not None and self.watch.slow

    def proceed(self) -> None:
        """Read on: the frame has a slot of its size."""
        self._update()

    def give_way(self) -> None:
        """End the connection, because the frame is slow and others wait."""
        assert self.watch is not None, "it is slow"
        self.budget.slots.leave(self)
        self.watch.drop()

    # Private.

    def _charge(self, size: int) -> None:
        self.share.used += size
        self.budget.used += size

    def _forget_share(self) -> None:
        share, shares = self.share, self.budget._shares
        if not share.accounts and not share.used and shares.get(share.network) is share:
            del shares[share.network]

    def _update(self) -> None:
        """Pause or resume the connection; let a frame that may not arrive otherwise wait for a slot."""
        if self._closed:
            return
        slots, paused = self.budget.slots, self._crowded or not self._may_read()
        if paused and self.frame and not self._crowded:
            slots.wait(self)
            paused = not self._may_read()
        elif slots.waiting and not slots.covers(self):
            slots.leave(self)
        if paused != self.paused:
            self.paused = paused
            (self.transport.pauseProducing if paused else self.transport.resumeProducing)()

    def _may_read(self) -> bool:
        budget, own = self.budget, self.held + self.arrived
        if not own or budget.slots.covers(self):
            return True
        if self.arrived <= budget.part and self.share.used // 2 + budget.used <= budget.room:
            return True
        return own <= budget.small and budget.used <= budget.room + budget.reserve


class UnreadMemory(FairShare[LargeAnswer]):
    """Count the bytes that peers leave unread, where they are many."""

    def keep(self, answer: LargeAnswer, size: int) -> None:
        """Add an *answer* that was written and is not read; the network with the most loses its oldest data instead."""
        self.discard(answer)
        self.add(answer, answer.network, size)
        while len(self) > 1 and not self.fits(0):
            self._displace(next(iter(self.largest())))

    def lend(self, record: LargeAnswer, size: int) -> bool:
        """Return whether a *record* of *size* bytes may stay in memory until its next piece is sent.

        One network gets two thirds at most.  The largest loses records that are not sent at present.
        """
        assert self.capacity is not None
        if record in self:
            self.renew(record)
            return True
        network = record.network
        while self.used + size > self.capacity or (self.used and self.used_by(network) + size > self.capacity * 2 // 3):
            oldest = self.first_out(network)
            if oldest is None or not oldest.repeatable:
                return False
            self._displace(oldest)
        self.add(record, network, size)
        return True

    def _displace(self, data: LargeAnswer) -> None:
        self.discard(data)
        data.displace()
