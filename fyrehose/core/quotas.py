"""Quotas of peers: the streams that one peer may make, and the subscriptions that one address may have.

    publish into new streams  -> NewStreams.charge              -> TooManyStreamsFromPeer, NewStreamRateExceeded
    subscribe, unsubscribe    -> Subscriptions.take, .release   -> TooManySubscriptions

Both count an address by its network (:func:`~fyrehose.identity.network_of`).  The server itself has no quota, and
neither have the backbone and the event bus, which publish into and read one stream for all of their peers.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from math import ceil

import attrs

from fyrehose.core.budget import Budget
from fyrehose.errors import NewStreamRateExceeded, TooManyStreamsFromPeer, TooManySubscriptions
from fyrehose.identity import Identity, network_of

#: Streams that one peer may make, unless half of ``max_streams`` is less.
STREAMS = 10_000
#: Peers whose new streams are remembered; beyond that the peer is forgotten that made its last stream first.
MOST_PEERS = 10_000
#: What one subscription is charged to the memory budget, in bytes; measured with Figg, the topic's name included.
SUBSCRIPTION = 768


@attrs.frozen(kw_only=True)
class PeerLimits:
    """Limits of what one peer may make the server remember.

    A peer is an address, and as well what it proved to be: a certificate, a key, a token.  The limits of streams hold
    for each of these by itself, that of subscriptions for addresses.

    :ivar streams: streams made since the server started; 0: :data:`STREAMS`, or half of all streams if that is less
    :ivar burst: streams made at once
    :ivar rate: streams made each second after that
    :ivar subscriptions: subscriptions at a time
    """

    streams: int = 0
    burst: int = 5_000
    rate: float = 50.0
    subscriptions: int = 50_000


@attrs.define(eq=False)
class _Maker:
    """A peer that made streams: how many more it may make at once, as of when, and how many it made."""

    tokens: float
    time: float
    made: int = 0


@attrs.define(eq=False)
class NewStreams:
    """Counts the streams that each peer makes, and refuses those beyond its limits.

    :ivar most: streams that one peer may make
    :ivar seconds: the monotonic clock
    """

    limits: PeerLimits
    most: int
    seconds: Callable[[], float]
    _makers: OrderedDict[tuple[str, str], _Maker] = attrs.field(factory=OrderedDict, init=False)

    def charge(self, identity: Identity, streams: list[str]) -> None:
        """Count *streams*, which the peer *identity* is about to make: all of them, or none.

        A peer that has not used its burst may make more than that in one publish, because a publish that never fits
        would be repeated for ever; it then has to wait the longer.

        :raises TooManyStreamsFromPeer: the peer has made as many as it may
        :raises NewStreamRateExceeded: it makes them too fast, and may repeat the publish later
        """
        now, count = self.seconds(), len(streams)
        makers = {key: self._maker(key, now) for key in _peers(identity)}
        for key, maker in makers.items():
            self._check(key, maker, streams)
        for key, maker in makers.items():
            maker.tokens -= count
            maker.made += count
            self._makers[key] = maker
            self._makers.move_to_end(key)
        while len(self._makers) > MOST_PEERS:
            self._makers.popitem(last=False)

    def _maker(self, key: tuple[str, str], now: float) -> _Maker:
        maker = self._makers.get(key)
        if maker is None:
            return _Maker(self.limits.burst, now)
        maker.tokens = min(self.limits.burst, maker.tokens + (now - maker.time) * self.limits.rate)
        maker.time = now
        return maker

    def _check(self, key: tuple[str, str], maker: _Maker, streams: list[str]) -> None:
        kind, value = key
        peer = "this token" if kind == "token" else f"{kind} {value}"
        count, limits = len(streams), self.limits
        what = f"stream {streams[0]!r}" if count == 1 else f"{count} streams, the first of them {streams[0]!r},"
        if maker.made + count > self.most:
            raise TooManyStreamsFromPeer(
                f"{what} cannot be made: {peer} has made {maker.made} since the server started, and {self.most} are "
                "the most; publish into streams that exist, or raise the option server.streams-per-address"
            )
        missing = min(count, limits.burst) - maker.tokens
        if missing > 0:
            raise NewStreamRateExceeded(
                f"{what} cannot be made yet: {peer} makes streams faster than {limits.rate:g} a second after "
                f"{limits.burst} at once; publish again in {ceil(missing / limits.rate)} s, or raise the options "
                "server.new-streams-rate and server.new-streams-burst"
            )


@attrs.define(eq=False)
class Subscriptions:
    """Counts the subscriptions of each address, and charges them to the memory budget.

    :ivar most: subscriptions that one address may have
    """

    budget: Budget
    most: int
    _counts: Counter[str] = attrs.field(factory=Counter, init=False)

    def take(self, network: str) -> None:
        """Count one more subscription of *network*.

        :raises TooManySubscriptions: it has as many as it may, or the budget has no room for another
        """
        if self._counts[network] >= self.most:
            raise TooManySubscriptions(
                f"address {network} has {self._counts[network]} subscriptions, and {self.most} are the most; end some, "
                "or raise the option server.subscriptions-per-address"
            )
        if not self.budget.keep(SUBSCRIPTION):
            raise TooManySubscriptions(
                f"the memory budget has no room for another subscription: all of them hold {self.budget.kept} "
                "bytes, and half of the budget is the most; raise the option server.memory"
            )
        self._counts[network] += 1

    def release(self, network: str) -> None:
        """Forget a subscription that :meth:`take` counted."""
        self.budget.forget(SUBSCRIPTION)
        self._counts[network] -= 1
        if not self._counts[network]:
            del self._counts[network]


def _peers(identity: Identity) -> list[tuple[str, str]]:
    """Return under which names the streams of *identity* count: its address, and the best proof that it has shown."""
    found = [("address", network_of(identity.host))]
    if identity.certificates:
        found.append(("certificate", repr(identity.certificates[0])))
    elif identity.key is not None:
        found.append(("key", identity.key))
    elif identity.token is not None:
        found.append(("token", identity.token))
    return found
