"""The server's side of the backbone, without I/O: check each datagram, and apply the rules and limits.

    PUSH            -> Pushed, within the rate of its address
    KEEPALIVE       -> a place in the table and an ACK, if ADDR is the source address; Replay of records held back
    REQUEST         -> a FORWARD to the client whose turn it is; Replay if it is the turn of the server's own journal,
                       if the client repeats a REQUEST or has a ration, or if there were many FORWARDs; Dropped without
                       a recent KEEPALIVE
    anything else   -> Dropped; errors are not answered

Specification: fyrehose-backbone.txt, RULES (BACKBONE) 1 to 5.  Times are monotonic, in seconds, and passed as
arguments.

in: receive_datagrams(train, source, now)      out: events; data_to_send() -> (destination, datagram) each
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from random import Random

import attrs

from fyrehose.errors import RemoteProtocolError
from fyrehose.identity import Action, in_networks
from fyrehose.kernels import backbone
from fyrehose.protocols.backbone.frames import (
    HEADER,
    KEEPALIVE,
    MAX_SEQUENCES,
    MAX_UNFRAGMENTED,
    Address,
    Forward,
    Frame,
    KeepAlive,
    KeepAliveAck,
    Request,
    can_receive,
    first_seq,
)
from fyrehose.protocols.backbone.gso_batches import Train, single
from fyrehose.protocols.backbone.ranges import Range
from fyrehose.protocols.backbone.rates import Rates
from fyrehose.protocols.backbone.session import BackboneSession, Dropped
from fyrehose.protocols.backbone.settings import BackboneSettings
from fyrehose.protocols.backbone.subscribers import KnownClient, Rotation, Subscribers
from fyrehose.records import Column

#: An equal REQUEST that arrives within this time is a duplicate, in seconds.
MERGE = 0.1
#: Maximum number of REQUESTs that are remembered to find duplicates.
MERGED = 4_096
#: Bytes that a client with a ration may be sent for each byte received from it.
AMPLIFICATION = 3
#: A REQUEST counts as this many more records than it asks for, because the REQUEST itself causes work.
REQUEST_COST = 20
#: A destination may receive at once what its rate permits in this time, in seconds; a receive buffer can hold that.
BURST = 1 / 16


@attrs.frozen(kw_only=True, slots=True)
class Pushed(Column):
    """Received messages, which the server has to publish.

    :ivar large: number of messages that IP had to fragment
    """

    source: Address
    large: int


@attrs.frozen(kw_only=True, slots=True)
class Replay:
    """The server has to deliver ``first`` to ``last`` to ``destination`` from its own journal."""

    destination: Address
    first: int
    last: int


Event = Pushed | Replay | Dropped


class BackboneServerSession(BackboneSession[Pushed | Replay]):
    """The protocol state of a server.

    :param bounds: returns the oldest and the last durable sequence of the stream
    :param is_own: returns whether an address is that of the server itself
    :param random: shuffles the order in which clients receive FORWARDs
    :param permits: returns whether the access policy permits a host to publish to the stream, or to subscribe to it
    :ivar subscribers: all live clients
    :ivar sent_bytes: limits the bytes to each host
    """

    def __init__(
        self,
        settings: BackboneSettings,
        bounds: Callable[[], tuple[int, int]],
        is_own: Callable[[Address], bool],
        random: Random,
        permits: Callable[[str, Action], bool],
    ) -> None:
        super().__init__()
        self._settings = settings
        self._bounds = bounds
        self._is_own = is_own
        self._permits = permits
        self.subscribers = Subscribers(settings.subscribers)
        self.sent_bytes = Rates(settings.destination_rate, settings.destination_rate * BURST)
        self._rotation = Rotation(random)
        self._pushes = Rates(settings.push_rate, settings.push_rate)
        # REQUESTs are accepted only from clients in the table, so each of these has a bucket of its own.
        self._requests = Rates(settings.request_rate, settings.request_rate, most=2 * settings.subscribers)
        self._forwards = Rates(settings.forward_rate, settings.forward_rate, most=1)
        self._recent_requests: OrderedDict[Request, float] = OrderedDict()

    def change(self, settings: BackboneSettings) -> None:
        """Use other settings, of the same stream, from now on; clients stay in the table and keep their rations."""
        self._settings = settings
        self.subscribers.change(settings.subscribers)
        self.sent_bytes.change(settings.destination_rate, settings.destination_rate * BURST)
        self._pushes.change(settings.push_rate, settings.push_rate)
        self._requests.change(settings.request_rate, settings.request_rate)
        self._requests.most = 2 * settings.subscribers

    def ration(self, client: KnownClient, trains: tuple[Train, ...], ranges: Iterable[Range]) -> tuple[Train, ...]:
        """Return the part of *trains* that *client* may be sent now, and hold the rest back until its next KEEPALIVE.

        :param ranges: the sequences of *trains*
        """
        if client.credit is None:
            return trains
        allowed = []
        for train in trains:
            part = train.first(client.credit // train.segment)
            if part.count:
                client.credit -= part.size
                allowed.append(part)
            if part.count < train.count:
                held = first_seq(train.data, part.size)
                for first, last in ranges:
                    client.hold(max(first, held), last)
                break
        return tuple(allowed)

    # Received datagrams.

    def _messages(
        self, events: list[Event], view: memoryview, at: int, segment: int, source: Address, now: float
    ) -> int:
        """Process PUSHes, which need no KEEPALIVE (rule 5 of the backbone)."""
        total_length = self._settings.total_length
        end, count, lengths, payload = backbone.scan_pushes(view, at, len(view), segment, total_length)
        if not count:
            return at
        if not self._permits(source[0], Action.PUBLISH):
            detail = "the access policy does not permit this address to publish"
            events.append(Dropped(source=source, cause="Forbidden", detail=detail, count=count))
            return end
        granted = self._pushes.take(source[0], count, now)
        if granted < count:
            events.append(Dropped(source=source, cause="push-rate", count=count - granted))
            if not granted:
                return end
            lengths = lengths[: 4 * granted]
            payload = payload[: sum(memoryview(lengths).cast("I"))]
        client = self.subscribers.find(source, now)
        if client is not None and client.credit is not None:
            client.credit += AMPLIFICATION * (len(payload) + HEADER * granted)
        large = 0
        if segment > HEADER + MAX_UNFRAGMENTED:
            large = sum(size > MAX_UNFRAGMENTED for size in memoryview(lengths).cast("I"))
        events.append(Pushed(source=source, lengths=lengths, payload=payload, large=large))
        return end

    def _control(self, events: list[Event], frame: Frame, source: Address, now: float) -> None:
        if isinstance(frame, KeepAlive):
            self._keep_alive(events, frame, source, now)
        elif isinstance(frame, Request):
            self._request(events, frame, source, now)
        else:
            raise RemoteProtocolError("not-for-servers", type(frame).__name__)

    def _keep_alive(self, events: list[Event], frame: KeepAlive, source: Address, now: float) -> None:
        client = self._own_address(frame.address, source)
        ack = KeepAliveAck(token=frame.token).serialize()
        trusted = in_networks(source[0], self._settings.trusted)
        credit = None if trusted else AMPLIFICATION * KEEPALIVE - len(ack)
        seen = self.subscribers.keep_alive(client, frame.flags, now, credit)
        if not seen.admitted:
            # Send no ACK, because the client would take it for a successful subscription.
            why = self._places_taken("its own address holds as many as any other")
            raise RemoteProtocolError("too-many-subscribers", why)
        self._to_send.append((single(ack), client))
        events.extend(Replay(destination=client, first=first, last=last) for first, last in seen.held)
        if seen.displaced is not None:
            why = self._places_taken(f"its address holds the most: {source[0]} gets the place")
            events.append(Dropped(source=seen.displaced, cause="subscriber-displaced", detail=why))

    def _places_taken(self, why: str) -> str:
        return f"all {self._settings.subscribers} places are taken, and {why}; raise backbone.subscribers"

    def _request(self, events: list[Event], frame: Request, source: Address, now: float) -> None:
        requester = self._own_address(frame.address, source)
        client = self.subscribers.find(requester, now)
        if client is None:
            raise RemoteProtocolError(
                "request-without-keepalive", f"no KEEPALIVE for port {requester[1]} has arrived for 5 s"
            )
        frame = Request(address=requester, first=frame.first, last=frame.last)
        if self._is_repeated(frame, now):
            raise RemoteProtocolError("request-repeated")
        oldest, newest = self._bounds()
        first = max(frame.first, oldest)
        last = min(frame.last, newest, first + MAX_SEQUENCES - 1)
        if not self._requests.spend(requester, REQUEST_COST + max(last - first + 1, 0), now):
            raise RemoteProtocolError("request-rate")
        if first > last:
            raise RemoteProtocolError("request-of-nothing")
        peer = None
        # A client that receives a FORWARD does not know whether the requester has a ration, so the server itself
        # answers requesters with a ration.
        if client.credit is None and not client.repeats(first, last, now) and self._forwards.take("all", 1, now):
            peer = self._rotation.next([None, *self.subscribers.journals(now)], requester)
        if peer is None:
            events.append(Replay(destination=requester, first=first, last=last))
        else:
            self._to_send.append((single(Forward(address=requester, first=first, last=last).serialize()), peer))

    # Checks.

    def _own_address(self, claimed: Address, source: Address) -> Address:
        """Return the address that a client claims in ADDR and PORT, if it is valid.

        The protocol has no proof of an address, so ADDR must be the source address, or 0.0.0.0, which stands for it;
        PORT 0 stands for the source port.

        :raises RemoteProtocolError: the client may not claim this address, or may not subscribe
        """
        host, port = claimed
        if not self._permits(source[0], Action.SUBSCRIBE):
            raise RemoteProtocolError("Forbidden", "the access policy does not permit this address to subscribe")
        if host not in (source[0], "0.0.0.0"):
            raise RemoteProtocolError("foreign-address")
        client = (source[0], port or source[1])
        if not can_receive(client):
            raise RemoteProtocolError("impossible-address")
        if self._is_own(client):
            raise RemoteProtocolError("own-address")
        return client

    def _is_repeated(self, request: Request, now: float) -> bool:
        while self._recent_requests:
            oldest, at = next(iter(self._recent_requests.items()))
            if now - at < MERGE and len(self._recent_requests) < MERGED:
                break
            del self._recent_requests[oldest]
        if request in self._recent_requests:
            return True
        self._recent_requests[request] = now
        return False
