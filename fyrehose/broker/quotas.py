"""Quotas of peers: the streams that one peer may create, and the subscriptions that one address may have.

    publish into new streams     -> NewStreams.charge              -> TooManyStreamsFromPeer
    subscribe, unsubscribe       -> Subscriptions.take, .release   -> TooManySubscriptions
    create named subscriptions   -> NamedRoom.check, .count        -> TooManyNamedSubscriptions

All count an address by its network (:func:`~fyrehose.identity.network_of`).  The server itself has no quota.  Nor do
the backbone and the event bus, which use one stream for all of their peers.
"""

from __future__ import annotations

import attrs

from fyrehose.broker.fairness import FairShare
from fyrehose.errors import (
    NoRoomForSubscription,
    TooManyNamedSubscriptions,
    TooManyStreamsFromPeer,
    TooManySubscriptions,
)
from fyrehose.identity import Identity, network_of
from fyrehose.net.inflight import InFlight

#: How many streams one peer may create, unless half of ``max_streams`` is less.
STREAMS = 10_000
#: The number of peers whose new streams are counted; beyond that, the network with the most such peers loses its
#: oldest.
MOST_PEERS = 10_000
#: The charge of one subscription to the memory budget, in bytes; measured with Figg, including the topic's name.
SUBSCRIPTION = 768
#: The charges of a named subscription, and of each stream of one of a pattern, in bytes.
ENTRY, PLACE = 2 << 10, 1 << 10


@attrs.frozen(kw_only=True)
class PeerLimits:
    """Limits of the state that one peer may create.

    The limits of streams hold for each address, and for each certificate, key or token.  The limit of subscriptions
    holds for each address.

    :ivar streams: how many streams a peer may create since the server started; 0: :data:`STREAMS`, or half of
        ``max_streams`` if that is less
    :ivar subscriptions: how many subscriptions an address may have at a time
    """

    streams: int = 0
    subscriptions: int = 50_000


@attrs.define(eq=False)
class NewStreams:
    """The counts of the streams that each peer has created, which refuse streams beyond the limits of the peer.

    :ivar most: how many streams one peer may create
    :ivar creators: how many streams each peer has created
    """

    most: int
    creators: dict[tuple[str, str], int] = attrs.field(factory=dict, init=False)
    #: the keys of ``creators``, by network; each network's in the order in which they last created a stream
    _by_network: FairShare[tuple[str, str]] = attrs.field(factory=lambda: FairShare(MOST_PEERS), init=False)

    def charge(self, identity: Identity, streams: list[str]) -> None:
        """Count *streams*, which the peer *identity* is about to create: all of them, or none.

        :raises TooManyStreamsFromPeer: the peer would exceed its limit of streams
        """
        keys, network = _keys(identity), network_of(identity.host)
        for key in keys:
            self._check(key, streams)
        for key in keys:
            created = self.creators.get(key, 0) + len(streams)
            self._by_network.discard(key)
            for gone in self._by_network.make_room(network):
                del self.creators[gone]
            self.creators[key] = created
            self._by_network.add(key, network)

    def _check(self, key: tuple[str, str], streams: list[str]) -> None:
        kind, value = key
        peer = "this token" if kind == "token" else f"{kind} {value}"
        count, created = len(streams), self.creators.get(key, 0)
        subject = f"stream {streams[0]!r}" if count == 1 else f"{count} streams, the first of them {streams[0]!r},"
        if created + count > self.most:
            raise TooManyStreamsFromPeer(
                f"{subject} cannot be created: {peer} has created {created} since the server started, and the limit is "
                f"{self.most}; publish to streams that exist, or raise the option server.streams-per-address"
            )


@attrs.define(eq=False)
class Subscriptions:
    """The counts of the subscriptions of each address, which are charged to the memory budget.

    :ivar most: how many subscriptions one address may have
    """

    budget: InFlight
    most: int
    _counts: FairShare[object] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._counts = FairShare(each=self.most)

    def change(self, most: int) -> None:
        """Use another limit from now on; present subscriptions stay."""
        self.most = self._counts.each = most

    def take(self, network: str) -> None:
        """Count one more subscription of *network*.

        :raises TooManySubscriptions: the network has reached its limit, or the budget has no room for another
        """
        if not self._counts.fits(1, network):
            raise TooManySubscriptions(
                f"address {network} has reached its limit of {self.most} subscriptions; end some, "
                "or raise the option server.subscriptions-per-address"
            )
        if not self.budget.keep(SUBSCRIPTION):
            raise TooManySubscriptions(
                f"the memory budget has no room for another subscription: they hold {self.budget.kept} bytes, and "
                "the limit is half of the budget; raise the option server.memory"
            )
        self._counts.take(network)

    def release(self, network: str) -> None:
        """Release a subscription that :meth:`take` counted."""
        self.budget.forget(SUBSCRIPTION)
        self._counts.give(network)


@attrs.define(eq=False)
class NamedRoom:
    """The counts of named subscriptions, and of the streams of patterns, which are charged to the memory budget.

    Every change is counted when it happens, so that the entries never have to be summed.  One creator may have half of
    the places, and half of the memory that all subscriptions may take, which is a quarter of the budget.

    :ivar most: how many subscriptions and streams of patterns there may be together
    :ivar counts: how many entries count for each creator
    """

    budget: InFlight
    most: int
    counts: FairShare[object] = attrs.field(init=False)
    memory: FairShare[object] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.counts = FairShare(self.most, each=(self.most + 1) // 2)
        self.memory = FairShare(self.budget.limit // 4, each=self.budget.limit // 8)

    def change(self, most: int) -> None:
        """Use another limit from now on; present subscriptions stay."""
        self.most = self.counts.capacity = most
        self.counts.each = (most + 1) // 2

    def left(self, creator: str) -> float:
        """Return how many more streams of patterns the subscriptions of *creator* may have.

        :param creator: a network; empty: the server itself
        """
        return min(self.counts.room(creator or None), (self.budget.limit // 2 - self.budget.kept) // PLACE)

    def check(self, name: str, creator: str, count: int, memory: int = 0) -> None:
        """Check that the limits leave room for subscription *name*, which *creator* is about to create.

        :param count: 1 for the subscription, and 1 for each stream of its pattern
        :param memory: what the subscription takes besides, in bytes
        :raises TooManyNamedSubscriptions: the limit of the server or of *creator* is reached
        :raises NoRoomForSubscription: the memory budget, or the share of *creator*, has no room
        """
        if not self.counts.fits(count, creator or None):
            raise TooManyNamedSubscriptions(
                f"no room for subscription {name!r}, which needs {count} more entries: the server has "
                f"{self.counts.used} of at most {self.most} entries, {self.counts.used_by(creator)} of them by "
                f"{creator or 'itself'}, and one address may have half; a subscription is an entry, and so is each "
                "stream of its pattern; delete some, or raise server.named-subscriptions"
            )
        size = ENTRY * count + memory
        if not self.memory.fits(size, creator or None) or 2 * (self.budget.kept + size) > self.budget.limit:
            raise NoRoomForSubscription(
                f"the memory budget has no room for subscription {name!r}: subscriptions take {self.memory.used} "
                f"bytes, {self.memory.used_by(creator)} of them those of {creator or 'the server itself'}; end others, "
                "choose a smaller window, or raise server.memory"
            )

    def count(self, creator: str, entries: int, streams: int, memory: int = 0) -> None:
        """Count *entries* more subscriptions of *creator*, and *streams* more of their patterns; negative: less.

        :param memory: what they take besides, in bytes
        """
        size = ENTRY * entries + PLACE * streams + memory
        self.counts.take(creator, entries + streams)
        self.memory.take(creator, size)
        self.budget.change_kept(size)


def _keys(identity: Identity) -> list[tuple[str, str]]:
    """Return the keys under which streams of *identity* count: its address, and the strongest of its proofs."""
    found = [("address", network_of(identity.host))]
    if identity.certificates:
        found.append(("certificate", repr(identity.certificates[0])))
    elif identity.key is not None:
        found.append(("key", identity.key))
    elif identity.token is not None:
        found.append(("token", identity.token))
    return found
